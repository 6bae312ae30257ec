"""The write cache: entries that are in the journal but not yet in an entry log, in two generations.

`current` receives runs. When it holds half of the budget it becomes `snapshot`, which is written to the entry log
sorted by ledger and entry, and then dropped. When both are full the cache is congested: the server stops receiving, and
the cache still accepts what was received before. So it holds at most `size_max` plus those entries.

Invariants
- An entry is in the cache from before it is queued for the journal until its index slot is set.
- R-9: a generation has the journal marks captured when it started. Entries before these marks are in older generations,
  so the marks may be persisted only after all older generations are durable.
- Of several copies of an entry the last one received wins, here and in the index, at every stage of a flush. Q-9 leaves
  the choice free, because copies differ at most in their LAC.
- The Python objects of entries are counted, and are few for every order of arrival: a batch is one run, even with many
  ledgers. Within a generation, a ledger's entries in mixed runs are newer than those in its own runs.

Owned by the loop's thread. A `Run` is never changed, so it may be passed to workers.

Source: storage 5.6, 5.7.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from operator import attrgetter, lt

from msgspec import Struct

from bookies.kernels import Adds, Records, find_ledger
from bookies.storage.cache.merge import concat_runs, gathered_in_windows, merge_runs
from bookies.storage.journal import LogMark

RUN_OVERHEAD = 300  # bytes of Python objects for each run, counted so that tiny adds cannot outgrow the budget
NUMBER_SIZE, OBJECT_SIZE = 8, 40  # bytes of a number in an array; in a list, where each is an object
MIXED_MIN = 8  # stretches; adds with fewer become runs of their ledgers
MIXED_OVERHEAD = 600  # bytes of Python objects for each mixed run
MIXED_ENTRY_SIZE = 100  # bytes per entry of a mixed run: numbers, the ledger's place in a set, a place when sorted
NUMBERS_SIZE = 100  # bytes of ids, and of starts, that `RUN_OVERHEAD` includes: the size of a range

SMALL_SIZE = 4 << 10  # bytes; a flush joins smaller runs with their neighbours
JOINED_SIZE = 64 << 10  # bytes of a joined run, at most
WINDOW_SIZE = 512 << 10  # bytes that a flush merges at once where runs overlap
GATHERED_SIZE = 256 << 10  # bytes; larger runs are not merged again, because the loop would wait for the copy
FAN = 8  # runs of similar size that are merged at once


class Run(Struct, frozen=True):
    """Entries of one ledger in ascending order, as they arrived together or were merged. One id per record."""

    entry_ids: Sequence[int]
    records: Records

    @property
    def first(self) -> int:
        return self.entry_ids[0]

    @property
    def last(self) -> int:
        return self.entry_ids[-1]

    @property
    def overhead(self) -> int:
        """Return the bytes of memory in addition to those of the records."""
        starts = self.records.starts
        if len(starts) == 2:  # one entry: its numbers are in `RUN_OVERHEAD`
            return RUN_OVERHEAD
        return RUN_OVERHEAD + _numbers_size(self.entry_ids) + _numbers_size(starts)

    def index(self, entry_id: int) -> int:
        """Return the index of the entry, or -1."""
        ids = self.entry_ids
        if isinstance(ids, range):
            return ids.index(entry_id) if entry_id in ids else -1
        at = bisect_left(ids, entry_id)
        return at if at < len(ids) and ids[at] == entry_id else -1

    def next_held(self, first: int, stop: int) -> int:
        """Return the smallest entry id from `first` on in this run, at most `stop`."""
        ids = self.entry_ids
        at = bisect_left(ids, first)
        return min(stop, ids[at]) if at < len(ids) else stop

    def consecutive(self, index: int, count_max: int) -> int:
        """Return the number of entries with consecutive ids from `index` on, at most `count_max`."""
        ids = self.entry_ids
        end = min(len(ids), index + count_max)
        if isinstance(ids, range) and ids.step == 1:
            return end - index
        stop = index + 1
        while stop < end and ids[stop] == ids[stop - 1] + 1:
            stop += 1
        return stop - index


class AddRun(Struct):
    """A mixed run: entries of many ledgers that arrived together, with a ledger id, entry id and record for each.

    `records.starts` is an array. A writer to ten thousand ledgers sends one entry of each ledger, and an object per
    entry would cost more than all other work for it.
    """

    ledger_ids: array[int]
    entry_ids: array[int]
    records: Records

    def __len__(self) -> int:
        return len(self.ledger_ids)

    @staticmethod
    def of(adds: Adds) -> AddRun:
        """Return all entries of these adds; they share its buffer."""
        ledger_ids, entry_ids, starts = adds.ledger_ids, adds.entry_ids, adds.records.starts
        if len(ledger_ids) < len(entry_ids):
            ledger_ids, start = array("q"), 0
            for ledger_id, stop, *_ in adds.rows():
                ledger_ids.extend(repeat(ledger_id, stop - start))
                start = stop
        return AddRun(ledger_ids, _as_array(entry_ids), Records(adds.records.data, _as_array(starts)))

    def stretches(self) -> Iterator[tuple[int, int, int]]:
        """Yield (ledger id, first index, index after the last) of consecutive entries of one ledger."""
        ledger_ids, entry_ids = self.ledger_ids, self.entry_ids
        start, ledger_id, following = 0, -1, -1
        for index, entry_id in enumerate(entry_ids):
            if entry_id != following or ledger_ids[index] != ledger_id:
                if index:
                    yield ledger_id, start, index
                start, ledger_id = index, ledger_ids[index]
            following = entry_id + 1
        if entry_ids:
            yield ledger_id, start, len(entry_ids)

    def runs(self) -> Iterator[tuple[int, Run]]:
        """Yield (ledger id, run) for each of the stretches."""
        entry_ids, records = self.entry_ids, self.records
        for ledger_id, start, stop in self.stretches():
            yield ledger_id, Run(range(entry_ids[start], entry_ids[stop - 1] + 1), records.slice(start, stop))


_FIRST = attrgetter("first")


class LedgerRuns:
    """The runs of one ledger in one generation.

    `_runs` never overlap, ascend by first entry, and are found by bisection. A run whose span overlaps another one goes
    to `_later`. A run in `_later` has precedence over those before it and over `_runs`, because it arrived later. To
    keep these few, `FAN` neighbours in `_later` at a time are merged into one until they are large. Each entry is
    copied about once for every eightfold growth of its run.
    """

    __slots__ = ("_later", "_later_first", "_later_last", "_runs", "highest")

    def __init__(self) -> None:
        self.highest = -1
        self._runs: list[Run] = []
        self._later: list[Run] = []
        self._later_first = self._later_last = -1  # the span of all of `_later`

    def add(self, run: Run) -> int:
        """Add a run and return the growth of the overhead in bytes."""
        if run.entry_ids[0] > self.highest:
            self.highest = run.entry_ids[-1]
            self._runs.append(run)
            return run.overhead
        self.highest = max(self.highest, run.last)
        if not self._overlaps(run):
            insort(self._runs, run, key=_FIRST)
            return run.overhead
        self._later_first = min(self._later_first, run.first) if self._later else run.first
        self._later_last = max(self._later_last, run.last)
        self._later.append(run)
        return run.overhead + self._gather_later()

    def _overlaps(self, run: Run) -> bool:
        """Report whether the run's span overlaps that of another run, or that of all in `_later`."""
        if self._later and run.first <= self._later_last and run.last >= self._later_first:
            return True
        at = bisect_right(self._runs, run.first, key=_FIRST)
        if at and self._runs[at - 1].last >= run.first:
            return True
        return at < len(self._runs) and self._runs[at].first <= run.last

    def _gather_later(self) -> int:
        """Merge the newest runs while they are small and of similar size; return the growth of the overhead."""
        later, growth = self._later, 0
        while len(later) >= FAN and later[-FAN].records.size < min(GATHERED_SIZE, FAN * later[-1].records.size):
            merged = later[-FAN:]
            later[-FAN:] = [Run(*merge_runs([(run.entry_ids, run.records) for run in merged]))]
            growth += later[-1].overhead - sum(run.overhead for run in merged)
        return growth

    def find(self, entry_id: int) -> tuple[Run, int] | None:
        """Return (run, index in it) of the copy that counts."""
        for run in reversed(self._later):
            if (index := run.index(entry_id)) >= 0:
                return run, index
        at = bisect_right(self._runs, entry_id, key=_FIRST)
        if at:
            run = self._runs[at - 1]
            if (index := run.index(entry_id)) >= 0:
                return run, index
        return None

    def find_consecutive(self, first: int, count_max: int) -> tuple[Run, int, int] | None:
        """Return the result of `find` and the number of consecutive entries there that count, at most `count_max`."""
        match = self.find(first)
        if match is None:
            return None
        run, index = match
        stop = first + run.consecutive(index, count_max)
        for later in reversed(self._later):
            if later is run:
                break
            stop = later.next_held(first + 1, stop)
        return run, index, stop - first

    def next_held(self, first: int, stop: int) -> int:
        """Return the smallest entry id from `first` on in these runs, at most `stop`."""
        at = bisect_right(self._runs, first, key=_FIRST)
        for run in (*self._runs[max(0, at - 1) : at + 1], *self._later):
            stop = run.next_held(first, stop)
        return stop

    @property
    def only(self) -> Run | None:
        """Return the run if there is exactly one."""
        return self._runs[0] if len(self._runs) == 1 and not self._later else None

    def ordered(self) -> Iterator[Run]:
        """Yield all runs: non-overlapping ones ascending, then those that overlap, in order of precedence."""
        yield from self._runs
        yield from self._later

    def flushed(self) -> Iterator[Run]:
        """Yield every entry once, ascending, in few runs, because a flush pays for each run. Deterministic.

        Overlapping runs are merged and small neighbours are joined into copies, created one after the other.
        """
        start = stop = len(self._runs)
        if self._later:
            start = bisect_right(self._runs, self._later_first, key=_FIRST)
            start -= bool(start and self._runs[start - 1].last >= self._later_first)
            stop = bisect_right(self._runs, self._later_last, key=_FIRST)
        yield from _joined_neighbours(self._runs[:start])
        if self._later:
            overlapping = [(run.entry_ids, run.records) for run in (*self._runs[start:stop], *self._later)]
            for entry_ids, records in gathered_in_windows(overlapping, WINDOW_SIZE):
                yield Run(entry_ids, records)
        yield from _joined_neighbours(self._runs[stop:])


class Generation:
    """A half of the cache. `marks`: see the invariants; one for each journal. `end`: marks of the next generation.

    `mixed`: mixed runs, oldest first; their copies of an entry have precedence over those in runs of its ledger.
    """

    __slots__ = ("_extracted", "_ledgers", "_mixed_ids", "_mixed_ledgers", "count", "end", "marks", "mixed", "size")

    def __init__(self, marks: tuple[LogMark, ...]) -> None:
        self.marks = marks
        self.end: tuple[LogMark, ...] = ()
        self.size = 0
        self.count = 0  # entries, superseded copies included
        self.mixed: list[AddRun] = []
        self._ledgers: dict[int, LedgerRuns] = {}
        self._mixed_ids: list[array[int]] = []  # the ledger ids of each mixed run
        self._mixed_ledgers: set[int] = set()  # the ledger ids of all mixed runs
        self._extracted: dict[int, tuple[int, LedgerRuns]] = {}  # ledgers that were read: see `_runs_in_mixed`

    @property
    def is_empty(self) -> bool:
        return not (self._ledgers or self.mixed)

    def holds(self, ledger_id: int) -> bool:
        return ledger_id in self._ledgers or ledger_id in self._mixed_ledgers

    def add(self, adds: Adds) -> None:
        """Insert entries: as one mixed run if nearly every entry is of another ledger, else as runs of the ledgers."""
        count = adds.stretch_count
        if count == 1:
            self.add_run(adds.first_ledger_id, adds.entry_ids, adds.records)
        elif count >= MIXED_MIN and len(adds) < 2 * count:
            self._add_mixed(AddRun.of(adds))
        else:
            for ledger_id, entry_ids, records in adds.stretches():
                self.add_run(ledger_id, entry_ids, records)

    def add_run(self, ledger_id: int, entry_ids: Sequence[int], records: Records) -> None:
        """Insert entries of one ledger, in any order."""
        if ledger_id in self._mixed_ledgers:
            self._add_mixed(AddRun.of(Adds.of(ledger_id, entry_ids, records.alone(), -1)))
            return
        runs = self._ledgers.get(ledger_id)
        if runs is None:
            runs = self._ledgers[ledger_id] = LedgerRuns()
        self.count += len(entry_ids)
        # Superseded copies still count towards the size: a late flush would delay the journal's deletion.
        self.size += records.size
        if len(entry_ids) > 1 and not _is_ascending(entry_ids):
            entry_ids, records = merge_runs([(entry_ids, records)])
        self.size += runs.add(Run(entry_ids, records))

    def _add_mixed(self, mixed: AddRun) -> None:
        self.mixed.append(mixed)
        self.count += len(mixed)
        self._mixed_ids.append(mixed.ledger_ids)
        self._mixed_ledgers.update(mixed.ledger_ids)
        self.size += mixed.records.size + MIXED_OVERHEAD + MIXED_ENTRY_SIZE * len(mixed)

    def runs(self) -> Iterator[tuple[int, Run]]:
        """Yield (ledger id, run) in the order of the flush to the entry log and the index, which precede `mixed`."""
        for ledger_id in sorted(self._ledgers):
            runs = self._ledgers[ledger_id]
            if (only := runs.only) is not None:
                yield ledger_id, only
                continue
            for run in runs.flushed():
                yield ledger_id, run

    def of_ledger(self, ledger_id: int) -> tuple[LedgerRuns, ...]:
        """Return the runs of a ledger, newest first; earlier elements have precedence."""
        runs = self._ledgers.get(ledger_id)
        older = () if runs is None else (runs,)
        if ledger_id not in self._mixed_ledgers:
            return older
        return (self._runs_in_mixed(ledger_id), *older)

    def _runs_in_mixed(self, ledger_id: int) -> LedgerRuns:
        """Return the ledger's entries in mixed runs. Scans only the mixed runs added since the last call.

        Writes never pay for this; a read pays only for its own ledger.
        """
        scanned, runs = self._extracted.get(ledger_id) or (0, LedgerRuns())
        if scanned < len(self.mixed):
            for number, start, stop in self._stretches_of(ledger_id, scanned):
                mixed = self.mixed[number]
                entry_ids = range(mixed.entry_ids[start], mixed.entry_ids[stop - 1] + 1)
                self.size += runs.add(Run(entry_ids, mixed.records.slice(start, stop)))
            self._extracted[ledger_id] = len(self.mixed), runs
        return runs

    def _stretches_of(self, ledger_id: int, first: int) -> Iterator[tuple[int, int, int]]:
        """Yield (number of the mixed run, first index, index after the last) of consecutive entries, from run `first`.

        `first`: number of the first mixed run to scan.
        """
        start = stop = -1  # places: see `find_ledger`
        following = -1
        for place in find_ledger(self._mixed_ids, first, ledger_id):
            entry_id = self.mixed[place >> 32].entry_ids[place & 0xFFFFFFFF]
            if place != stop or entry_id != following:
                if start >= 0:
                    yield start >> 32, start & 0xFFFFFFFF, stop & 0xFFFFFFFF
                start = place
            stop, following = place + 1, entry_id + 1
        if start >= 0:
            yield start >> 32, start & 0xFFFFFFFF, stop & 0xFFFFFFFF


class WriteCache:
    """The cache of both generations. `size_max`: bytes of both together."""

    def __init__(self, size_max: int, marks: tuple[LogMark, ...]) -> None:
        self.current = Generation(marks)
        self.snapshot: Generation | None = None
        self._half_size = size_max // 2
        self._size_max = size_max
        # Beyond its half the current generation accepts entries that were received before the server began to wait; the
        # server bounds these. While flushes fail this is the bound.
        self._excess_size = max(self._half_size // 2, 1 << 20)

    @property
    def is_due(self) -> bool:
        """Report whether the current generation is full."""
        return self.current.size >= self._half_size

    @property
    def is_congested(self) -> bool:
        """Report whether the server should stop receiving: the current half is full, or both together are."""
        return self.snapshot is not None and (self.is_due or self.size >= self._size_max)

    @property
    def is_exhausted(self) -> bool:
        """Report whether the cache has reached its bound for the time in which flushes fail."""
        return self.snapshot is not None and self.current.size >= self._half_size + self._excess_size

    @property
    def size(self) -> int:
        return self.current.size + (self.snapshot.size if self.snapshot else 0)

    @property
    def entry_count(self) -> int:
        return self.current.count + (self.snapshot.count if self.snapshot else 0)

    def rotate(self, marks: tuple[LogMark, ...]) -> Generation:
        """Make the current generation the snapshot; `marks` belong to the new one."""
        assert self.snapshot is None
        self.snapshot = self.current
        self.snapshot.end = marks
        self.current = Generation(marks)
        return self.snapshot

    def drop_snapshot(self) -> None:
        """Drop the snapshot; its entries are in an entry log and in the index."""
        self.snapshot = None

    def holds(self, ledger_id: int) -> bool:
        return self.current.holds(ledger_id) or (self.snapshot is not None and self.snapshot.holds(ledger_id))

    def find(self, ledger_id: int, entry_id: int) -> tuple[Run, int] | None:
        """Return (run, index in it) of an entry."""
        for runs in self._runs_of_generations(ledger_id):
            if (match := runs.find(entry_id)) is not None:
                return match
        return None

    def read(self, ledger_id: int, entry_id: int) -> bytes | None:
        """Return the body of an entry."""
        match = self.find(ledger_id, entry_id)
        return match[0].records.body(match[1]) if match is not None else None

    def read_batch(self, ledger_id: int, first: int, count_max: int, size_max: int) -> list[bytes]:
        """Return records of consecutive entries in pieces: all that are cached and fit, and always the first one."""
        pieces: list[bytes] = []
        size = 0
        newest_first = self._runs_of_generations(ledger_id)
        while count_max > 0:
            age, match = 0, None
            while age < len(newest_first) and (match := newest_first[age].find_consecutive(first, count_max)) is None:
                age += 1
            if match is None:
                break
            run, index, count = match
            stop = first + count
            for newer in newest_first[:age]:
                stop = newer.next_held(first + 1, stop)
            count = stop - first
            starts = run.records.starts
            limit = starts[index] + max(0, size_max - size)
            fitting = bisect_right(starts, limit, lo=index, hi=index + count + 1) - 1 - index
            if not pieces:
                fitting = max(fitting, 1)
            if fitting <= 0:
                break
            piece = run.records.slice(index, index + fitting).tobytes()
            pieces.append(piece)
            size += len(piece)
            first += fitting
            count_max -= fitting
        return pieces

    def next_held(self, ledger_id: int, first: int, stop: int) -> int:
        """Return the smallest cached entry id from `first` on, at most `stop`; stored entries count only up to it."""
        for runs in self._runs_of_generations(ledger_id):
            stop = runs.next_held(first, stop)
        return stop

    def runs_of(self, ledger_id: int) -> list[Run]:
        """Return every run of a ledger, oldest first."""
        return [run for runs in reversed(self._runs_of_generations(ledger_id)) for run in runs.ordered()]

    def _runs_of_generations(self, ledger_id: int) -> list[LedgerRuns]:
        """Return the runs of a ledger in both generations, newest first; earlier elements have precedence."""
        if self.snapshot is None:
            return list(self.current.of_ledger(ledger_id))
        return [*self.current.of_ledger(ledger_id), *self.snapshot.of_ledger(ledger_id)]


def _joined_neighbours(runs: Sequence[Run]) -> Iterator[Run]:
    """Yield runs in ascending order, with small neighbours joined."""
    neighbours: list[Run] = []
    size = 0
    for run in runs:
        is_small = run.records.size < SMALL_SIZE
        if neighbours and (not is_small or size + run.records.size > JOINED_SIZE):
            yield _joined(neighbours)
            neighbours, size = [], 0
        if is_small:
            neighbours.append(run)
            size += run.records.size
        else:
            yield run
    if neighbours:
        yield _joined(neighbours)


def _joined(runs: Sequence[Run]) -> Run:
    return runs[0] if len(runs) == 1 else Run(*concat_runs([(run.entry_ids, run.records) for run in runs]))


def _numbers_size(numbers: Sequence[int]) -> int:
    """Return the bytes of memory in addition to those in `RUN_OVERHEAD`."""
    if isinstance(numbers, range):
        return 0
    return max(0, len(numbers) * (OBJECT_SIZE if isinstance(numbers, list | tuple) else NUMBER_SIZE) - NUMBERS_SIZE)


def _as_array(numbers: Sequence[int]) -> array[int]:
    return numbers if isinstance(numbers, array) else array("q", numbers)


def _is_ascending(entry_ids: Sequence[int]) -> bool:
    if type(entry_ids) is range:
        return entry_ids.step > 0
    return all(map(lt, entry_ids, islice(entry_ids, 1, None)))
