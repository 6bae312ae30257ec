"""Placement of a ledger's replicas: bookies, their locations, and how well they meet the placement policy."""

from __future__ import annotations

from msgspec import Struct

from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.placement import PlacementPolicy, Topology
from bookies.protocol.placement.placement import judge


class FragmentPlacement(Struct, frozen=True):
    """The entries from `first_entry` up to the next fragment, and the placement of their replicas.

    `replicas`: the bookies in ensemble order, each with its location (None: unknown). `adherence`: to the client's
    placement policy: "strict", "soft" or "fail". `findings`: violations, as text that names the bookies.
    """

    first_entry: int
    replicas: tuple[tuple[BookieId, str | None], ...]
    adherence: str
    findings: tuple[str, ...]


def placement_of(record: LedgerMetadata, topology: Topology, policy: PlacementPolicy) -> list[FragmentPlacement]:
    """Return the placement of every fragment of a ledger, in order."""
    fragments = []
    for first, ensemble in record.ensembles:
        judgement = judge(topology, policy, ensemble, record.write_quorum, record.ack_quorum)
        findings = [finding.reason for finding in judgement.findings]
        findings += [f"{problem.bookie}: {problem.reason}" for problem in judgement.problems]
        replicas = tuple((bookie, topology.location(bookie)) for bookie in ensemble)
        fragments.append(FragmentPlacement(first, replicas, judgement.adherence.name.lower(), tuple(findings)))
    return fragments
