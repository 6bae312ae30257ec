"""Fragments of a ledger's record: which entries each of their bookies must hold, and whether it does.

A fragment is finished when it can receive no more entries: its ledger is closed, or another fragment follows and the
last add confirmed has reached that one's start. (The second half is cautious: with an empty last fragment the value
learnt from bookies may lag, and a copy that stops where it does would be incomplete.) Source: client-protocol 7.2.

Checking is: ask the bookie of each position for its first entry, its last, and a sample of those between; one that is
not there, or not good, makes the replica bad. A bookie that is not registered is not asked. The last fragment of a
ledger that is not closed may begin with an entry that was never written; if nobody has it, nobody lacks it.

A ledger that bookies were allowed to forget, its entries being in files, has no fragment here: nothing of it can be
missing, renewed, copied or lost, whomever its record still names (`offload.is_given_up`).
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bookies.errors import BookieUnreachable, BookKeeperError, DigestMismatch
from bookies.model import INVALID_ENTRY_ID, BookieId, Ensemble, LedgerMetadata
from bookies.protocol.ledger.offload import is_given_up
from bookies.protocol.ledger.read import NEGATIVE
from bookies.protocol.quorums.quorum import next_stored, stores, write_sets_of


@dataclass(frozen=True, slots=True)
class Fragment:
    """Entries first..last of a ledger, which share an ensemble. Empty fragments are never made.

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
        """Whether a bookie holds only some of the entries."""
        return self.write_quorum < len(self.ensemble)

    @property
    def write_sets(self) -> list[tuple[int, ...]]:
        """Those of its entries, as positions, each once."""
        return write_sets_of(self.first, self.last, len(self.ensemble), self.write_quorum)

    def stored(self, position: int) -> Sequence[int]:
        """The ids that the bookie at this position must hold, ascending; a `range` where they are consecutive.

        Takes no memory, however many there are.
        """
        if not self.is_striped:
            return range(self.first, self.last + 1)
        return _StripedIds(self.first_stored(position), self.last_stored(position), position, self)

    def first_stored(self, position: int) -> int:
        """The first id that the position must hold, -1: none."""
        found = next_stored(position, self.first, len(self.ensemble), self.write_quorum)
        return found if found <= self.last else INVALID_ENTRY_ID

    def last_stored(self, position: int) -> int:
        """The last id that the position must hold, -1: none."""
        size = len(self.ensemble)
        ahead = (position - self.last) % size
        found = self.last if ahead < self.write_quorum else self.last - (size - ahead)
        return found if found >= self.first else INVALID_ENTRY_ID


class _StripedIds(Sequence[int]):
    """Ids first..last that a position of a striped fragment stores: runs of `write_quorum`, one per turn of the
    ensemble, of which the first may have begun before. `first` -1: none."""

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
            return [self[each] for each in range(*index.indices(self._count))]
        turn, offset = divmod(range(self._count)[index] + self._skipped, self._size)
        return self._origin + turn * self._period + offset


def fragments_to_check(record: LedgerMetadata, last_add_confirmed: int) -> list[Fragment]:
    """The fragments that hold entries, in order. `last_add_confirmed` counts only while the ledger is not closed."""
    if is_given_up(record):
        return []
    starts = [first for first, _ in record.ensembles]
    if record.is_closed:
        end, is_doubtful = record.last_entry_id, False
    else:
        end, is_doubtful = max(last_add_confirmed, starts[-1]), last_add_confirmed < starts[-1]
    found = []
    for index, (first, ensemble) in enumerate(record.ensembles):
        is_last = index == len(starts) - 1
        last = end if is_last else min(end, starts[index + 1] - 1)
        if last >= first:
            is_finished = record.is_closed or (not is_last and last_add_confirmed >= starts[-1] - 1)
            found.append(
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
    return found


def fragments_on(fragments: Sequence[Fragment], bookies: Collection[BookieId]) -> list[tuple[Fragment, list[int]]]:
    """The fragments whose ensemble has any of these bookies, each with their positions."""
    found = []
    for fragment in fragments:
        positions = [position for position, bookie in enumerate(fragment.ensemble) if bookie in bookies]
        if positions:
            found.append((fragment, positions))
    return found


def is_stored_on(record: LedgerMetadata, bookie: BookieId) -> bool:
    """Whether, by the record, the bookie holds entries of the ledger, or may yet receive some.

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


def missing_runs(expected: Sequence[int], held: Sequence[range]) -> list[range]:
    """The expected ids that are not held, as runs. Both ascend; `held` as a bookie lists its entries.

    Source: client-protocol 7.5.
    """
    missing: list[range] = []
    for run in runs_of(expected):
        at = run.start
        index = max(0, bisect_right(held, at, key=lambda each: each.start) - 1)
        while at < run.stop:
            while index < len(held) and held[index].stop <= at:
                index += 1
            gap_end = min(run.stop, held[index].start) if index < len(held) else run.stop
            if at < gap_end:
                missing.append(range(at, gap_end))
            at = max(gap_end, min(run.stop, held[index].stop)) if index < len(held) else run.stop
    return missing


def stored_in(stored: Sequence[int], runs: Sequence[range]) -> list[int]:
    """Those of the ids that are in any of the runs. Both ascend; work per id found, not per id."""
    found: list[int] = []
    for run in runs:
        at = bisect_left(stored, max(run.start, found[-1] + 1 if found else run.start))
        while at < len(stored) and stored[at] < run.stop:
            found.append(stored[at])
            at += 1
    return found


def runs_of(ids: Sequence[int]) -> Iterator[range]:
    """Ascending ids as maximal runs."""
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
    """OK: it has what it was asked for. MISSING: certainly not, or a damaged copy. UNAVAILABLE: its bookie is gone,
    for now or for ever. CANNOT_TELL: it answered that it does not know, or cannot read."""

    OK = "ok"
    MISSING = "missing"
    UNAVAILABLE = "unavailable"
    CANNOT_TELL = "cannot tell"


class Ask(NamedTuple):
    """Read these entries at this bookie: all good, or the first that is not."""

    position: int
    bookie: BookieId
    entry_ids: Sequence[int]


class ReplicaVerdict(NamedTuple):
    """What is known of the replica at one position. `entry_id`: the first bad entry, with its `error`."""

    position: int
    bookie: BookieId
    state: ReplicaState
    entry_id: int | None = None
    error: BookKeeperError | None = None


class FragmentVerdict(NamedTuple):
    """What is known of a fragment: one verdict per position."""

    fragment: Fragment
    replicas: tuple[ReplicaVerdict, ...]

    @property
    def is_ok(self) -> bool:
        """Whether every replica is known to be good."""
        return not self.bad_positions

    @property
    def bad_positions(self) -> list[int]:
        """Positions that are not known to be good: the fragment is under-replicated."""
        return self.positions(ReplicaState.MISSING, ReplicaState.UNAVAILABLE, ReplicaState.CANNOT_TELL)

    def positions(self, *states: ReplicaState) -> list[int]:
        """The positions whose replicas are in any of these states."""
        return [replica.position for replica in self.replicas if replica.state in states]

    @property
    def fewest_replicas(self) -> int:
        """Of the entry that is worst off, how many replicas are on positions known to be good."""
        good = self.positions(ReplicaState.OK)
        return min(sum(position in good for position in members) for members in self.fragment.write_sets)


class FragmentCheck:
    """Ask what `asks` says, report each with `held` or `failed`, then take the `verdict`.

    `known`: the registered bookies, in whatever mode. `percentage`: how many of the entries between first and last to
    ask for, 100: all. `pick(n)`: a random number below n.
    """

    def __init__(
        self, fragment: Fragment, known: Collection[BookieId], percentage: float, pick: Callable[[int], int]
    ) -> None:
        self._fragment = fragment
        self._verdicts: dict[int, ReplicaVerdict] = {}
        self.asks: list[Ask] = []
        for position, bookie in enumerate(fragment.ensemble):
            if bookie not in known:
                error = BookieUnreachable("it is not registered", ledger_id=fragment.ledger_id, bookie=bookie)
                self._verdicts[position] = ReplicaVerdict(position, bookie, ReplicaState.UNAVAILABLE, None, error)
                continue
            ids = sample_of(fragment, position, percentage, pick)
            if ids:
                self.asks.append(Ask(position, bookie, ids))
            else:
                self.held(position)

    def held(self, position: int) -> None:
        """Every entry asked for at this position is there and good."""
        self._verdicts[position] = ReplicaVerdict(position, self._fragment.ensemble[position], ReplicaState.OK)

    def failed(self, position: int, entry_id: int, error: BookKeeperError) -> None:
        """The first entry that was not delivered, or does not verify."""
        bookie = self._fragment.ensemble[position]
        self._verdicts[position] = ReplicaVerdict(position, bookie, state_of(error), entry_id, error)

    def verdict(self) -> FragmentVerdict:
        """Every ask has been reported."""
        fragment = self._fragment
        replicas = [self._verdicts[position] for position in range(len(fragment.ensemble))]
        if fragment.is_doubtful and not any(
            each.state is ReplicaState.OK and stores(each.position, fragment.last, len(replicas), fragment.write_quorum)
            for each in replicas
        ):
            replicas = [
                ReplicaVerdict(each.position, each.bookie, ReplicaState.OK)
                if isinstance(each.error, NEGATIVE)
                else each
                for each in replicas
            ]
        return FragmentVerdict(fragment, tuple(replicas))


def state_of(error: BookKeeperError) -> ReplicaState:
    """What an answer to a read says of the replica."""
    if isinstance(error, (*NEGATIVE, DigestMismatch)):
        return ReplicaState.MISSING
    return ReplicaState.UNAVAILABLE if isinstance(error, BookieUnreachable) else ReplicaState.CANNOT_TELL


def sample_of(fragment: Fragment, position: int, percentage: float, pick: Callable[[int], int]) -> Sequence[int]:
    """Which of its entries to ask a position for: the first, the last, and one out of each of equally long parts.

    Ascending, without repetition; empty when the position holds nothing.
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
