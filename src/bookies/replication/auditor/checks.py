"""Checks of an auditor: each inspects one ledger and returns the bookies whose replicas need a repair.

A check receives every record of a pass and returns the bookies to mark the ledger with; None: the ledger is in order,
or its state is unknown. Only certain damage is marked: a bookie that does not answer, or cannot determine its state,
has not lost an entry. Source: metadata 8.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from bookies.client.repair import Administration
from bookies.errors import BookKeeperError, ClientClosed, LedgerNotFound
from bookies.metadata.interface.driver import Versioned
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.ledger.offload import is_given_up
from bookies.protocol.placement.placement_policy import Adherence
from bookies.protocol.repair.absence import is_endangered
from bookies.protocol.repair.fragments import (
    FragmentVerdict,
    ReplicaState,
    fragments_on,
    fragments_to_check,
    is_named,
    is_stored_on,
)
from bookies.replication.base import Membership

SHORTAGES = (
    "an entry has no replica",
    "an entry has less than its ack quorum",
    "an entry has less than its write quorum",
)


class PassReport(Struct):
    """Report of one pass over all ledgers. Times: wall clock, ms; `ended_ms` None: in progress, or aborted."""

    checks: tuple[str, ...]
    began_ms: int
    ended_ms: int | None = None
    ledgers: int = 0
    marked: int = 0
    unreadable: int = 0
    unreadable_ids: Sequence[int] = ()
    facts: Mapping[str, object] = field(default_factory=dict)


class Check(Protocol):
    """Check of an auditor. `name`: as in reports.

    `asks_bookies`: bookies report what it finds, so it is damage of bookies that are there. It is slow, so only some
    ledgers are checked at a time.
    """

    name: str
    asks_bookies: bool

    async def inspect(self, ledger: Versioned) -> Sequence[BookieId] | None:
        """Return the bookies to mark the ledger with, possibly none; None: it needs no mark. Raises `MetadataError`."""

    def facts(self) -> dict[str, object]:
        """Return the facts for the operator's report, beside the marks."""


class LostBookies:
    """Check for ledgers whose record names one of these bookies, which are lost or to be emptied, and for ledgers in
    recovery, whose client may be gone. The worker leaves that client a grace period, and then continues the recovery.

    `named`: collects the bookies that records name.
    """

    name = "lost bookies"
    asks_bookies = False

    def __init__(self, lost: Collection[BookieId]) -> None:
        self._lost = lost
        self.named: dict[BookieId, None] = {}
        self._ensemble_size = 0  # the largest of ledgers that may be written to
        self._in_recovery = 0

    async def inspect(self, ledger: Versioned) -> Sequence[BookieId] | None:
        if ledger.metadata.state is LedgerState.OPEN:
            self._ensemble_size = max(self._ensemble_size, ledger.metadata.ensemble_size)
        if not is_given_up(ledger.metadata):  # No bookie has to return for a ledger in files.
            self.named.update(dict.fromkeys(ledger.metadata.bookies))
        is_in_recovery = ledger.metadata.state is LedgerState.IN_RECOVERY
        self._in_recovery += is_in_recovery
        named = [bookie for bookie in self._lost if is_named(ledger.metadata, bookie)]
        return named if named or is_in_recovery else None

    def facts(self) -> dict[str, object]:
        return {
            "lost": list(self._lost),
            "largest ensemble of open ledgers": self._ensemble_size,
            "ledgers in recovery": self._in_recovery,
        }


class Endangered:
    """Check for ledgers with one replica left while several bookies are away that are not lost yet."""

    name = "endangered ledgers"
    asks_bookies = False

    def __init__(self, away: Collection[BookieId]) -> None:
        self._away = away

    async def inspect(self, ledger: Versioned) -> Sequence[BookieId] | None:
        if not is_endangered(ledger.metadata, self._away):
            return None
        return [bookie for bookie in self._away if is_stored_on(ledger.metadata, bookie)]

    def facts(self) -> dict[str, object]:
        return {"away": list(self._away)}


class Replicas:
    """Check for ledgers of which a registered bookie lacks an entry, or has a damaged one.

    Reads the first and the last entry of every replica, and a sample of the others.
    """

    name = "replicas by reading"
    asks_bookies = True

    def __init__(self, administration: Administration, membership: Membership, percentage: int) -> None:
        self._administration = administration
        self._membership = membership
        self._percentage = percentage
        self._unknown = 0
        self._few = Counter[str]()  # ledgers by the entry with the fewest replicas

    async def inspect(self, ledger: Versioned) -> Sequence[BookieId] | None:
        try:
            check = await self._administration.check_record(
                ledger, self._membership.registered, percentage=self._percentage
            )
        except ClientClosed:
            raise
        except BookKeeperError:
            self._unknown += 1
            return None  # An error is no proof of damage.
        self._unknown += any(
            replica.state in (ReplicaState.UNAVAILABLE, ReplicaState.CANNOT_TELL)
            for verdict in check.fragments
            for replica in verdict.replicas
        )
        if (shortage := _shortage(ledger.metadata, check.fragments)) is not None:
            self._few[shortage] += 1
        missing = {
            replica.bookie: None
            for verdict in check.fragments
            if verdict.fragment.is_finished  # In others entries may be in flight.
            for replica in verdict.replicas
            if replica.state is ReplicaState.MISSING
        }
        return list(missing) or None

    def facts(self) -> dict[str, object]:
        counts = {shortage: self._few[shortage] for shortage in SHORTAGES}
        return {"ledgers with replicas of which nothing is known": self._unknown, **counts}


def _shortage(record: LedgerMetadata, verdicts: Sequence[FragmentVerdict]) -> str | None:
    """Return which of `SHORTAGES` the entry with the fewest replicas has. One of unknown state counts as good."""
    left = min(
        (
            verdict.fewest(ReplicaState.OK, ReplicaState.CANNOT_TELL)
            for verdict in verdicts
            if verdict.fragment.is_finished
        ),
        default=record.write_quorum,
    )
    if left >= record.write_quorum:
        return None
    return SHORTAGES[0 if left == 0 else 1 if left < record.ack_quorum else 2]


class Listings:
    """Check for sealed ledgers of which a bookie's own list lacks an entry, or the bookie has no ledger.

    Reads no entries: one request per replica.
    """

    name = "replicas by lists"
    asks_bookies = True

    def __init__(self, administration: Administration, membership: Membership) -> None:
        self._administration = administration
        self._membership = membership

    async def inspect(self, ledger: Versioned) -> Sequence[BookieId] | None:
        record = ledger.metadata
        if not record.is_closed or record.last_entry_id < 0:
            return None
        fragments = fragments_to_check(record, -1)
        members = dict.fromkeys(bookie for fragment in fragments for bookie in fragment.ensemble)
        lacking = []
        for bookie in members:
            if bookie not in self._membership.registered:
                continue
            for fragment, positions in fragments_on(fragments, [bookie]):
                try:
                    scan = await self._administration.scan_replica(
                        record, bookie, fragment.stored(positions[0]), is_listing=True
                    )
                except ClientClosed:
                    raise
                except (LedgerNotFound, BookKeeperError):
                    break
                if scan.bad:
                    lacking.append(bookie)
                    break
        return lacking or None

    def facts(self) -> dict[str, object]:
        return {}


class Placement:
    """Check for sealed ledgers that do not meet the placement policy; counts them.

    `repairs`: also mark them, without naming a bookie, because none has lost entries.
    """

    name = "placement"
    asks_bookies = False

    def __init__(self, administration: Administration, repairs: bool) -> None:
        self._administration = administration
        self._repairs = repairs
        self._counts = {Adherence.FAIL: 0, Adherence.SOFT: 0}

    async def inspect(self, ledger: Versioned) -> Sequence[BookieId] | None:
        record = ledger.metadata
        if not record.is_closed or record.last_entry_id < 0:
            return None
        worst = Adherence.STRICT
        for fragment in fragments_to_check(record, -1):
            adherence, _ = await self._administration.judge_placement(fragment)
            worst = min(worst, Adherence(adherence))
        if worst is Adherence.STRICT:
            return None
        self._counts[worst] += 1
        return [] if self._repairs and worst is Adherence.FAIL else None

    def facts(self) -> dict[str, object]:
        return {
            "not adhering": self._counts[Adherence.FAIL],
            "adhering, less than desired": self._counts[Adherence.SOFT],
        }
