"""Fragments of a ledger's record: the entries that each bookie must hold, and the check whether it does.

A fragment is finished when it can receive no more entries: its ledger is closed, or another fragment follows and the
last add confirmed (LAC) has reached that one's start. The second condition is cautious: with an empty last fragment the
LAC from bookies may lag, and a copy that stops at it would be incomplete. Source: client-protocol 7.2.

A check asks the bookie of each position for its first entry, its last, and a sample of those between. An entry that is
missing or damaged makes the replica bad. Unregistered bookies are not asked. The last fragment of a ledger that is not
closed may begin with an entry that was never written; if no bookie has it, no replica lacks it.

A ledger whose entries are in files and may be deleted from bookies has no fragment here: none of its replicas can be
missing, renewed, copied or lost, even if its record still names bookies (`offload.is_given_up`).
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from bookies.errors import BookieUnreachable, BookKeeperError, DigestMismatch
from bookies.model import INVALID_ENTRY_ID, BookieId, Ensemble, LedgerMetadata
from bookies.protocol.ledger.offload import is_given_up
from bookies.protocol.ledger.read import NEGATIVE
from bookies.protocol.quorums.quorum import next_stored, stores, write_sets_of


class Fragment(Struct, frozen=True):
    """Entries first..last of a ledger, which share an ensemble; without entries if `last` is before `first`.

    `is_doubtful`: its only entry may never have been written.
    """

    ledger_id: int
    first: int
    last: int
    ensemble: Ensemble
    write_quorum: int
    is_finished: bool
    is_doubtful: bool = False
    ack_quorum: int = 1

    @property
    def is_striped(self) -> bool:
        """Report whether a bookie holds only part of the entries."""
        return self.write_quorum < len(self.ensemble)

    @property
    def write_sets(self) -> list[tuple[int, ...]]:
        """Return the distinct write sets of its entries, as positions."""
        return write_sets_of(self.first, self.last, len(self.ensemble), self.write_quorum)

    def stored(self, position: int) -> Sequence[int]:
        """Return the ids that the bookie at this position must hold, ascending; a `range` where they are consecutive.

        The result uses constant memory.
        """
        if not self.is_striped:
            return range(self.first, self.last + 1)
        return _StripedIds(self.first_stored(position), self.last_stored(position), position, self)

    def first_stored(self, position: int) -> int:
        """Return the first id that the position must hold; -1: none."""
        entry_id = next_stored(position, self.first, len(self.ensemble), self.write_quorum)
        return entry_id if entry_id <= self.last else INVALID_ENTRY_ID

    def last_stored(self, position: int) -> int:
        """Return the last id that the position must hold; -1: none."""
        size = len(self.ensemble)
        ahead = (position - self.last) % size
        entry_id = self.last if ahead < self.write_quorum else self.last - (size - ahead)
        return entry_id if entry_id >= self.first else INVALID_ENTRY_ID


class _StripedIds(Sequence[int]):
    """Ids first..last that a position of a striped fragment stores. `first` -1: none.

    They form runs of `write_quorum` ids, one per round of the ensemble; the first run may begin before `first`.
    """

    def __init__(self, first: int, last: int, position: int, fragment: Fragment) -> None:
        self._period, self._size = len(fragment.ensemble), fragment.write_quorum
        self._skipped = (first - position - 1 + self._size) % self._period  # ids of the first run before `first`
        self._origin = first - self._skipped
        turns, rest = divmod(last - self._origin, self._period)
        self._count = 0 if first == INVALID_ENTRY_ID else turns * self._size + rest + 1 - self._skipped

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:  # an id of an index, a list of a slice, as `Sequence` declares
        if isinstance(index, slice):
            return [self[item] for item in range(*index.indices(self._count))]
        turn, offset = divmod(range(self._count)[index] + self._skipped, self._size)
        return self._origin + turn * self._period + offset


def fragments_to_check(record: LedgerMetadata, last_add_confirmed: int) -> list[Fragment]:
    """Return the fragments that hold entries, in order. `last_add_confirmed`: ignored for a closed ledger."""
    if is_given_up(record):
        return []
    starts = [first for first, _ in record.ensembles]
    if record.is_closed:
        end, is_doubtful = record.last_entry_id, False
    else:
        end, is_doubtful = max(last_add_confirmed, starts[-1]), last_add_confirmed < starts[-1]
    fragments = []
    for index, (first, ensemble) in enumerate(record.ensembles):
        is_last = index == len(starts) - 1
        last = end if is_last else min(end, starts[index + 1] - 1)
        if last >= first:
            is_finished = record.is_closed or (not is_last and last_add_confirmed >= starts[-1] - 1)
            fragments.append(
                Fragment(
                    record.ledger_id,
                    first,
                    last,
                    ensemble,
                    record.write_quorum,
                    is_finished,
                    is_doubtful and is_last,
                    record.ack_quorum,
                )
            )
    return fragments


def fragments_without_entries(record: LedgerMetadata) -> list[Fragment]:
    """Return the fragments of a closed ledger that hold no entries: its last one at most.

    No replica can be missing there, but the record names bookies for it, lost ones too.
    """
    first, ensemble = record.ensembles[-1]
    if not record.is_closed or first <= record.last_entry_id or is_given_up(record):
        return []
    quorum, ack_quorum = record.write_quorum, record.ack_quorum
    return [Fragment(record.ledger_id, first, record.last_entry_id, ensemble, quorum, True, ack_quorum=ack_quorum)]


def fragments_on(fragments: Sequence[Fragment], bookies: Collection[BookieId]) -> list[tuple[Fragment, list[int]]]:
    """Return the fragments whose ensemble has any of these bookies, with the bookies' positions."""
    matches = []
    for fragment in fragments:
        positions = [position for position, bookie in enumerate(fragment.ensemble) if bookie in bookies]
        if positions:
            matches.append((fragment, positions))
    return matches


def is_stored_on(record: LedgerMetadata, bookie: BookieId) -> bool:
    """Report whether, by the record, the bookie holds entries of the ledger, or may receive some.

    Source: client-protocol 7.6.
    """
    if is_given_up(record):
        return False
    for index, (first, ensemble) in enumerate(record.ensembles):
        if bookie not in ensemble:
            continue
        is_last = index == len(record.ensembles) - 1
        if is_last and not record.is_closed:
            return True
        last = record.last_entry_id if is_last else record.ensembles[index + 1][0] - 1
        position = ensemble.index(bookie)
        if next_stored(position, first, len(ensemble), record.write_quorum) <= last:
            return True
    return False


def is_named(record: LedgerMetadata, bookie: BookieId) -> bool:
    """Report whether the record names the bookie, for entries or without any, and a repair can replace it there."""
    return record.names(bookie) and not is_given_up(record)


def missing_runs(expected: Sequence[int], held: Sequence[range]) -> list[range]:
    """Return the expected ids that are not held, as runs. Both ascend; `held`: as a bookie lists its entries.

    Source: client-protocol 7.5.
    """
    missing: list[range] = []
    for run in runs_of(expected):
        start = run.start
        index = max(0, bisect_right(held, start, key=lambda held_run: held_run.start) - 1)
        while start < run.stop:
            while index < len(held) and held[index].stop <= start:
                index += 1
            gap_end = min(run.stop, held[index].start) if index < len(held) else run.stop
            if start < gap_end:
                missing.append(range(start, gap_end))
            start = max(gap_end, min(run.stop, held[index].stop)) if index < len(held) else run.stop
    return missing


def stored_in(stored: Sequence[int], runs: Sequence[range]) -> list[int]:
    """Return the ids that are in any of the runs. Both ascend; the cost is per id in the result, not per id."""
    ids: list[int] = []
    for run in runs:
        index = bisect_left(stored, max(run.start, ids[-1] + 1 if ids else run.start))
        while index < len(stored) and stored[index] < run.stop:
            ids.append(stored[index])
            index += 1
    return ids


def runs_of(ids: Sequence[int]) -> Iterator[range]:
    """Yield ascending ids as maximal runs."""
    if not ids:
        return
    if isinstance(ids, range):
        yield ids
        return
    start = stop = ids[0]
    for entry_id in ids:
        if entry_id != stop:
            yield range(start, stop)
            start = entry_id
        stop = entry_id + 1
    yield range(start, stop)


# -- checking ------------------------------------------------------------------------------------------------------


class ReplicaState(enum.Enum):
    """State of a replica by its bookie's answer.

    OK: it has all entries asked for. MISSING: it certainly lacks one, or has a damaged one. UNAVAILABLE: the bookie is
    unreachable, for now or for ever. CANNOT_TELL: it answered that its state is unknown, or that it cannot read.
    """

    OK = "ok"
    MISSING = "missing"
    UNAVAILABLE = "unavailable"
    CANNOT_TELL = "cannot tell"


class Ask(NamedTuple):
    """Request to read these entries at this bookie; the answer: all good, or the first that is not."""

    position: int
    bookie: BookieId
    entry_ids: Sequence[int]


class ReplicaVerdict(NamedTuple):
    """State of the replica at one position. `entry_id`: the first bad entry, with its `error`."""

    position: int
    bookie: BookieId
    state: ReplicaState
    entry_id: int | None = None
    error: BookKeeperError | None = None


class FragmentVerdict(NamedTuple):
    """State of a fragment: one verdict per position."""

    fragment: Fragment
    replicas: tuple[ReplicaVerdict, ...]

    @property
    def is_ok(self) -> bool:
        """Report whether every replica is known to be good."""
        return not self.bad_positions

    @property
    def bad_positions(self) -> list[int]:
        """Return the positions that are not known to be good; with any, the fragment is under-replicated."""
        return self.positions(ReplicaState.MISSING, ReplicaState.UNAVAILABLE, ReplicaState.CANNOT_TELL)

    def positions(self, *states: ReplicaState) -> list[int]:
        """Return the positions whose replicas are in any of these states."""
        return [replica.position for replica in self.replicas if replica.state in states]

    @property
    def fewest_replicas(self) -> int:
        """Return how many known good replicas each entry has at least: a bookie that lacks one counts for none."""
        return self.fewest(ReplicaState.OK)

    def without(self, gone: Collection[BookieId]) -> FragmentVerdict:
        """Return the verdict with the replicas of these bookies unavailable: they were registered when asked, and are
        not any more."""
        return self._replace(
            replicas=tuple(
                _unregistered(self.fragment, replica.position) if replica.bookie in gone else replica
                for replica in self.replicas
            )
        )

    def fewest(self, *states: ReplicaState) -> int:
        """Return how many replicas in any of these states the entry with the fewest has."""
        good = self.positions(*states)
        return min(sum(position in good for position in members) for members in self.fragment.write_sets)


class FragmentCheck:
    """Check of one fragment. Send the `asks`, report each with `held` or `failed`, then take the `verdict`.

    known: the registered bookies, in any mode.
    percentage: share of the entries between the first and the last to ask for; 100: all.
    pick(n): a random number below n.
    """

    def __init__(
        self, fragment: Fragment, known: Collection[BookieId], percentage: float, pick: Callable[[int], int]
    ) -> None:
        self._fragment = fragment
        self._verdicts: dict[int, ReplicaVerdict] = {}
        self.asks: list[Ask] = []
        for position, bookie in enumerate(fragment.ensemble):
            if bookie not in known:
                self._verdicts[position] = _unregistered(fragment, position)
                continue
            ids = sample_of(fragment, position, percentage, pick)
            if ids:
                self.asks.append(Ask(position, bookie, ids))
            else:
                self.held(position)

    def held(self, position: int) -> None:
        """Report that every entry asked for at this position is present and good."""
        self._verdicts[position] = ReplicaVerdict(position, self._fragment.ensemble[position], ReplicaState.OK)

    def failed(self, position: int, entry_id: int, error: BookKeeperError) -> None:
        """Report the first entry that was not delivered, or does not verify."""
        bookie = self._fragment.ensemble[position]
        self._verdicts[position] = ReplicaVerdict(position, bookie, state_of(error), entry_id, error)

    def verdict(self) -> FragmentVerdict:
        """Return the verdict, after every ask has been reported."""
        fragment = self._fragment
        replicas = [self._verdicts[position] for position in range(len(fragment.ensemble))]
        if fragment.is_doubtful and not any(
            replica.state is ReplicaState.OK
            and stores(replica.position, fragment.last, len(replicas), fragment.write_quorum)
            for replica in replicas
        ):
            replicas = [
                ReplicaVerdict(replica.position, replica.bookie, ReplicaState.OK)
                if isinstance(replica.error, NEGATIVE)
                else replica
                for replica in replicas
            ]
        return FragmentVerdict(fragment, tuple(replicas))


def _unregistered(fragment: Fragment, position: int) -> ReplicaVerdict:
    bookie = fragment.ensemble[position]
    error = BookieUnreachable("it is not registered", ledger_id=fragment.ledger_id, bookie=bookie)
    return ReplicaVerdict(position, bookie, ReplicaState.UNAVAILABLE, None, error)


def state_of(error: BookKeeperError) -> ReplicaState:
    """Return the state of a replica by the error of a read."""
    if isinstance(error, (*NEGATIVE, DigestMismatch)):
        return ReplicaState.MISSING
    return ReplicaState.UNAVAILABLE if isinstance(error, BookieUnreachable) else ReplicaState.CANNOT_TELL


def sample_of(fragment: Fragment, position: int, percentage: float, pick: Callable[[int], int]) -> Sequence[int]:
    """Return the ids to ask a position for: the first, the last, and one out of each of equally long parts.

    Ascending and distinct; empty when the position holds no entry.
    """
    first, last = fragment.first_stored(position), fragment.last_stored(position)
    if first == INVALID_ENTRY_ID:
        return ()
    if percentage >= 100:
        return fragment.stored(position)
    span = last - first + 1
    count = int(span * percentage / 100)
    chosen = {first: None, last: None}
    for part in range(count):
        start, stop = first + span * part // count, first + span * (part + 1) // count
        entry_id = start + pick(stop - start)
        chosen[next_stored(position, entry_id, len(fragment.ensemble), fragment.write_quorum)] = None
    return sorted(chosen)
