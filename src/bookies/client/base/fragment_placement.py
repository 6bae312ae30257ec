"""Where the replicas of a ledger are: bookies with their locations, and whether they are spread as they should be."""

from __future__ import annotations

from dataclasses import dataclass

from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.placement import PlacementPolicy, Topology
from bookies.protocol.placement.placement import judge


@dataclass(frozen=True, slots=True)
class FragmentPlacement:
    """The entries from `first_entry` on, up to the next fragment. `replicas`: its bookies in their order, each with its
    location, None: nobody knows it. `adherence`: to the client's policy: "strict", "soft" or "fail". `findings`: what
    is wrong with which bookies, in words.
    """

    first_entry: int
    replicas: tuple[tuple[BookieId, str | None], ...]
    adherence: str
    findings: tuple[str, ...]


def receipt(record: LedgerMetadata, topology: Topology, policy: PlacementPolicy) -> list[FragmentPlacement]:
    """Every fragment of a ledger, in order."""
    fragments = []
    for first, ensemble in record.ensembles:
        judgement = judge(topology, policy, ensemble, record.write_quorum, record.ack_quorum)
        findings = [finding.reason for finding in judgement.findings]
        findings += [f"{problem.bookie}: {problem.reason}" for problem in judgement.problems]
        replicas = tuple((bookie, topology.location(bookie)) for bookie in ensemble)
        fragments.append(FragmentPlacement(first, replicas, judgement.adherence.name.lower(), tuple(findings)))
    return fragments
