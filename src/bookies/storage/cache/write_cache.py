"""Entries that are in the journal but not yet in an entry log, in two generations.

`current` receives runs; when it holds half of the budget it becomes `snapshot`, which is written to the entry log
sorted by ledger and entry, and then dropped. When both are full the cache is congested, which only stops the sources:
what they have received already is taken. So it holds `size_max` and what had been received and not inserted by then.

Invariants
- An entry is in the cache from before it is queued for the journal until its index slot is set.
- A generation carries the journal marks of the instant at which it was created: whatever lies before them is in older
  generations, so they may be persisted once all older generations are durable, and not earlier (R-9).
- Of several copies of an entry the one that came last wins, here and in the index, wherever the flush is (Q-9 leaves
  the choice free, as copies differ at most in their LAC).
- Whatever the order in which entries come, their objects are counted, and few: a batch is one run, of many ledgers
  too. Within a generation what a ledger has in mixed runs is younger than what it has in runs of its own.

Owned by the loop's thread. Nobody changes a `Run`, so workers may be given them.

Source: storage 5.6, 5.7.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from operator import attrgetter, lt

from bookies.kernels import Records, find_ledger
from bookies.storage.cache.merge import concat_runs, gathered_in_windows, merge_runs
from bookies.storage.journal import LogMark

RUN_OVERHEAD = 300  # bytes of Python objects for each run, counted so that tiny adds cannot outgrow the budget
NUMBER_SIZE, OBJECT_SIZE = 8, 40  # bytes of a number in an array; in a list, where it is an object of its own
MIXED_OVERHEAD = 600  # bytes of Python objects for each mixed run
MIXED_ENTRY_SIZE = 100  # bytes for an entry of one: its numbers, a ledger's place in a set, a place when sorted
NUMBERS_SIZE = 100  # bytes of them that `RUN_OVERHEAD` has room for, in ids and in starts: what a range takes

SMALL_SIZE = 4 << 10  # bytes of a run, below which a flush joins it with its neighbours
JOINED_SIZE = 64 << 10  # bytes that it joins at most
WINDOW_SIZE = 512 << 10  # bytes that it gathers at once where runs overlap
GATHERED_SIZE = 256 << 10  # bytes of a run from which on it is not gathered again: the loop must not wait for it
FAN = 8  # runs of about one size that are gathered at once


@dataclass(slots=True)  # never changed; "frozen" would make each of very many cost three times as much
class Run:
    """Entries of one ledger in ascending order, as they arrived together or were gathered. One id per record."""

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
        """Bytes of memory beside those of the records."""
        entry_ids, starts = self.entry_ids, self.records.starts
        return RUN_OVERHEAD + _numbers_size(entry_ids) + _numbers_size(starts)

    def index(self, entry_id: int) -> int:
        """Index of the entry, or -1."""
        ids = self.entry_ids
        if isinstance(ids, range):
            return ids.index(entry_id) if entry_id in ids else -1
        at = bisect_left(ids, entry_id)
        return at if at < len(ids) and ids[at] == entry_id else -1

    def next_held(self, first: int, stop: int) -> int:
        """The smallest entry id from `first` on that is here, at most `stop`."""
        ids = self.entry_ids
        at = bisect_left(ids, first)
        return min(stop, ids[at]) if at < len(ids) else stop

    def consecutive(self, index: int, count_max: int) -> int:
        """How many entries from `index` on have consecutive ids, at most `count_max`."""
        ids = self.entry_ids
        end = min(len(ids), index + count_max)
        if isinstance(ids, range) and ids.step == 1:
            return end - index
        stop = index + 1
        while stop < end and ids[stop] == ids[stop - 1] + 1:
            stop += 1
        return stop - index


@dataclass(slots=True)
class AddRun:
    """Entries of many ledgers as they arrived together: one ledger id, entry id and record each, starts in an array.

    A writer to ten thousand ledgers sends an entry of each; an object for every one of them costs more than all the
    rest that is done for it.
    """

    ledger_ids: array[int]
    entry_ids: array[int]
    records: Records

    def __len__(self) -> int:
        return len(self.ledger_ids)

    def picked(self, indices: Sequence[int]) -> AddRun:
        """Some of the entries, in a buffer of their own."""
        starts, data = self.records.starts, self.records.data
        pieces = [data[starts[index] : starts[index + 1]] for index in indices]
        return AddRun(
            array("q", [self.ledger_ids[index] for index in indices]),
            array("q", [self.entry_ids[index] for index in indices]),
            Records(b"".join(pieces), array("q", accumulate(map(len, pieces), initial=0))),
        )

    def stretches(self) -> Iterator[tuple[int, int, int]]:
        """(ledger id, first index, index behind the last) of consecutive entries of one ledger."""
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
        """(ledger id, run) of each of the stretches."""
        entry_ids, records = self.entry_ids, self.records
        for ledger_id, start, stop in self.stretches():
            yield ledger_id, Run(range(entry_ids[start], entry_ids[stop - 1] + 1), records.slice(start, stop))


_FIRST = attrgetter("first")


class LedgerRuns:
    """The runs of one ledger in one generation.

    `_runs` never overlap, are ascending by first entry, and are found by bisection. A run whose span meets any other's
    goes to `_later`, where each has precedence over those before it and over `_runs`, because it arrived later. So
    that these stay few, neighbours in `_later` are gathered into one, eight at a time, until they are large: each
    entry is copied about once for every eightfold of what it arrived in.
    """

    __slots__ = ("_later", "_later_first", "_later_last", "_runs", "highest")

    def __init__(self) -> None:
        self.highest = -1
        self._runs: list[Run] = []
        self._later: list[Run] = []
        self._later_first = self._later_last = -1  # the span of all of `_later`

    def add(self, run: Run) -> int:
        """Take a run; by how much the overhead has grown, in bytes."""
        if run.first > self.highest:
            self.highest = run.last
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
        """Whether its span and that of another run, or of all in `_later`, meet."""
        if self._later and run.first <= self._later_last and run.last >= self._later_first:
            return True
        at = bisect_right(self._runs, run.first, key=_FIRST)
        if at and self._runs[at - 1].last >= run.first:
            return True
        return at < len(self._runs) and self._runs[at].first <= run.last

    def _gather_later(self) -> int:
        """Make one run of the newest ones while they are small, and of about one size; the growth of the overhead."""
        later, growth = self._later, 0
        while len(later) >= FAN and later[-FAN].records.size < min(GATHERED_SIZE, FAN * later[-1].records.size):
            some = later[-FAN:]
            later[-FAN:] = [Run(*merge_runs([(run.entry_ids, run.records) for run in some]))]
            growth += later[-1].overhead - sum(run.overhead for run in some)
        return growth

    def find(self, entry_id: int) -> tuple[Run, int] | None:
        """(run, index in it) of the copy that counts."""
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
        """As `find`, and how many consecutive entries from there on count too, at most `count_max`."""
        found = self.find(first)
        if found is None:
            return None
        run, index = found
        stop = first + run.consecutive(index, count_max)
        for later in reversed(self._later):
            if later is run:
                break
            stop = later.next_held(first + 1, stop)
        return run, index, stop - first

    def next_held(self, first: int, stop: int) -> int:
        """The smallest entry id from `first` on that is here, at most `stop`."""
        at = bisect_right(self._runs, first, key=_FIRST)
        for run in (*self._runs[max(0, at - 1) : at + 1], *self._later):
            stop = run.next_held(first, stop)
        return stop

    @property
    def only(self) -> Run | None:
        """The run, if there is just one."""
        return self._runs[0] if len(self._runs) == 1 and not self._later else None

    def ordered(self) -> Iterator[Run]:
        """All runs, ascending as far as the precedence of later copies allows."""
        yield from self._runs
        yield from self._later

    def flushed(self) -> Iterator[Run]:
        """What `ordered` has, each entry once, ascending, in few runs: a flush pays for each. The same every time.

        Where runs overlap they are gathered, and small neighbours are joined: copies, made one after the other.
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
    """A half of the cache. `marks`: see the invariants; one for each journal. `end`: those of the next generation.

    `mixed`: mixed runs, the oldest first; copies of an entry in them count before those in runs of its ledger.
    """

    __slots__ = ("_found", "_ledgers", "_mixed_ids", "_mixed_ledgers", "end", "marks", "mixed", "size")

    def __init__(self, marks: tuple[LogMark, ...]) -> None:
        self.marks = marks
        self.end: tuple[LogMark, ...] = ()
        self.size = 0
        self.mixed: list[AddRun] = []
        self._ledgers: dict[int, LedgerRuns] = {}
        self._mixed_ids: list[array[int]] = []  # the ledgers of each
        self._mixed_ledgers: set[int] = set()  # and of all
        self._found: dict[int, tuple[int, LedgerRuns]] = {}  # of ledgers that somebody has looked for: see `_look_for`

    @property
    def is_empty(self) -> bool:
        return not (self._ledgers or self.mixed)

    def holds(self, ledger_id: int) -> bool:
        return ledger_id in self._ledgers or ledger_id in self._mixed_ledgers

    def add(self, ledger_id: int, entry_ids: Sequence[int], records: Records) -> None:
        if ledger_id in self._mixed_ledgers:
            starts = array("q", [at - records.starts[0] for at in records.starts])
            ledger_ids = array("q", [ledger_id]) * len(entry_ids)
            self.add_mixed(AddRun(ledger_ids, array("q", entry_ids), Records(records.tobytes(), starts)))
            return
        runs = self._ledgers.get(ledger_id)
        if runs is None:
            runs = self._ledgers[ledger_id] = LedgerRuns()
        # Copies that later ones replace go on counting: a flush that came late would hold up the journal.
        if _is_ascending(entry_ids):
            self.size += records.size + runs.add(Run(entry_ids, records))
        else:
            self.size += records.size + runs.add(Run(*merge_runs([(entry_ids, records)])))

    def add_mixed(self, mixed: AddRun) -> None:
        self.mixed.append(mixed)
        self._mixed_ids.append(mixed.ledger_ids)
        self._mixed_ledgers.update(mixed.ledger_ids)
        self.size += mixed.records.size + MIXED_OVERHEAD + MIXED_ENTRY_SIZE * len(mixed)

    def runs(self) -> Iterator[tuple[int, Run]]:
        """(ledger id, run) in the order in which they go to the entry log and into the index, before `mixed`."""
        for ledger_id in sorted(self._ledgers):
            runs = self._ledgers[ledger_id]
            if (only := runs.only) is not None:
                yield ledger_id, only
                continue
            for run in runs.flushed():
                yield ledger_id, run

    def of_ledger(self, ledger_id: int) -> tuple[LedgerRuns, ...]:
        """What is here of a ledger, the newest first: what they have in common counts in the first."""
        runs = self._ledgers.get(ledger_id)
        older = () if runs is None else (runs,)
        if ledger_id not in self._mixed_ledgers:
            return older
        return (self._look_for(ledger_id), *older)

    def _look_for(self, ledger_id: int) -> LedgerRuns:
        """What the mixed runs have of a ledger: those that have come since the last look are looked through.

        Whoever only writes never pays for it, and whoever reads pays for the ledger in question.
        """
        looked, runs = self._found.get(ledger_id) or (0, LedgerRuns())
        if looked < len(self.mixed):
            for number, start, stop in self._stretches_of(ledger_id, looked):
                mixed = self.mixed[number]
                entry_ids = range(mixed.entry_ids[start], mixed.entry_ids[stop - 1] + 1)
                self.size += runs.add(Run(entry_ids, mixed.records.slice(start, stop)))
            self._found[ledger_id] = len(self.mixed), runs
        return runs

    def _stretches_of(self, ledger_id: int, first: int) -> Iterator[tuple[int, int, int]]:
        """(number of the mixed run, first index, index behind the last) of consecutive entries, from run `first` on."""
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
    """The two generations. `size_max`: bytes of both together."""

    def __init__(self, size_max: int, marks: tuple[LogMark, ...]) -> None:
        self.current = Generation(marks)
        self.snapshot: Generation | None = None
        self._half_size = size_max // 2
        self._size_max = size_max
        # Above its half the current generation takes whatever had been received when the server began to wait, which
        # the server bounds. While flushes fail this is the bound.
        self._excess_size = max(self._half_size // 2, 1 << 20)

    @property
    def is_due(self) -> bool:
        """The current generation is full."""
        return self.current.size >= self._half_size

    @property
    def is_congested(self) -> bool:
        """Nothing more should be received: the half in use is full, or both are because one took more than a half."""
        return self.snapshot is not None and (self.is_due or self.size >= self._size_max)

    @property
    def is_exhausted(self) -> bool:
        """Congested beyond what may be accepted while flushes fail."""
        return self.snapshot is not None and self.current.size >= self._half_size + self._excess_size

    @property
    def size(self) -> int:
        return self.current.size + (self.snapshot.size if self.snapshot else 0)

    def rotate(self, marks: tuple[LogMark, ...]) -> Generation:
        """Make the current generation the snapshot; `marks` belong to the new one."""
        assert self.snapshot is None
        self.snapshot = self.current
        self.snapshot.end = marks
        self.current = Generation(marks)
        return self.snapshot

    def drop_snapshot(self) -> None:
        """Its entries are in an entry log and in the index."""
        self.snapshot = None

    def holds(self, ledger_id: int) -> bool:
        return self.current.holds(ledger_id) or (self.snapshot is not None and self.snapshot.holds(ledger_id))

    def find(self, ledger_id: int, entry_id: int) -> tuple[Run, int] | None:
        """(run, index in it) of an entry."""
        for runs in self._runs_of_generations(ledger_id):
            if (found := runs.find(entry_id)) is not None:
                return found
        return None

    def read(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The body of an entry."""
        found = self.find(ledger_id, entry_id)
        return found[0].records.body(found[1]) if found is not None else None

    def read_batch(self, ledger_id: int, first: int, count_max: int, size_max: int) -> list[bytes]:
        """Pieces of records of consecutive entries, as many as are here and fit; the first one even if it does not."""
        pieces: list[bytes] = []
        size = 0
        newest_first = self._runs_of_generations(ledger_id)
        while count_max > 0:
            age, found = 0, None
            while age < len(newest_first) and (found := newest_first[age].find_consecutive(first, count_max)) is None:
                age += 1
            if found is None:
                break
            run, index, count = found
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
        """The smallest entry id from `first` on that is here, at most `stop`: what is stored counts only up to it."""
        for runs in self._runs_of_generations(ledger_id):
            stop = runs.next_held(first, stop)
        return stop

    def runs_of(self, ledger_id: int) -> list[Run]:
        """Every run of a ledger, older ones first."""
        return [run for runs in reversed(self._runs_of_generations(ledger_id)) for run in runs.ordered()]

    def _runs_of_generations(self, ledger_id: int) -> list[LedgerRuns]:
        """What the generations hold of a ledger, the newest first: what they have in common counts in the first."""
        if self.snapshot is None:
            return list(self.current.of_ledger(ledger_id))
        return [*self.current.of_ledger(ledger_id), *self.snapshot.of_ledger(ledger_id)]


def _joined_neighbours(runs: Sequence[Run]) -> Iterator[Run]:
    """Runs in ascending order, small ones that follow each other as one."""
    some: list[Run] = []
    size = 0
    for run in runs:
        is_small = run.records.size < SMALL_SIZE
        if some and (not is_small or size + run.records.size > JOINED_SIZE):
            yield _joined(some)
            some, size = [], 0
        if is_small:
            some.append(run)
            size += run.records.size
        else:
            yield run
    if some:
        yield _joined(some)


def _joined(runs: Sequence[Run]) -> Run:
    return runs[0] if len(runs) == 1 else Run(*concat_runs([(run.entry_ids, run.records) for run in runs]))


def _numbers_size(numbers: Sequence[int]) -> int:
    """Bytes of memory above those that are in `RUN_OVERHEAD`."""
    if isinstance(numbers, range):
        return 0
    return max(0, len(numbers) * (OBJECT_SIZE if isinstance(numbers, list | tuple) else NUMBER_SIZE) - NUMBERS_SIZE)


def _is_ascending(entry_ids: Sequence[int]) -> bool:
    if isinstance(entry_ids, range):
        return entry_ids.step > 0 or len(entry_ids) == 1
    return all(map(lt, entry_ids, islice(entry_ids, 1, None)))
