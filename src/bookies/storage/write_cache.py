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

Owned by the loop's thread. `Run`s are immutable, so workers may be given them.

Source: storage 5.6, 5.7.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from bookies.kernels import Records
from bookies.storage.mark_format import LogMark

RUN_OVERHEAD = 300  # bytes of Python objects for each run, counted so that tiny adds cannot outgrow the budget


@dataclass(frozen=True, slots=True)
class Run:
    """Entries of one ledger in ascending order, as they arrived together. One id per record."""

    entry_ids: Sequence[int]
    records: Records

    @property
    def first(self) -> int:
        return self.entry_ids[0]

    @property
    def last(self) -> int:
        return self.entry_ids[-1]

    def index(self, entry_id: int) -> int:
        """Index of the entry, or -1."""
        ids = self.entry_ids
        if isinstance(ids, range):
            return ids.index(entry_id) if entry_id in ids else -1
        at = bisect_left(ids, entry_id)
        return at if at < len(ids) and ids[at] == entry_id else -1

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


_FIRST = attrgetter("first")


class LedgerRuns:
    """The runs of one ledger in one generation.

    `_runs` never overlap, are ascending by first entry, and are found by bisection. What overlaps any of them goes,
    entry by entry, to `_later`, which has precedence because it arrived later.
    """

    __slots__ = ("_later", "_runs", "highest")

    def __init__(self) -> None:
        self.highest = -1
        self._runs: list[Run] = []
        self._later: dict[int, Run] = {}  # entry id -> run of one entry, in the order of arrival

    def add(self, run: Run) -> None:
        if run.last > self.highest:
            is_behind = not self._runs or run.first > self._runs[-1].last
            self.highest = run.last
            if is_behind and not self._later:
                self._runs.append(run)
                return
        if self._overlaps(run):
            for index, entry_id in enumerate(run.entry_ids):
                self._put_later(entry_id, Run((entry_id,), run.records.slice(index, index + 1)))
        else:
            insort(self._runs, run, key=_FIRST)

    def add_unordered(self, entry_ids: Sequence[int], records: Records) -> None:
        """Entries whose ids are not ascending: the last copy of each wins."""
        for index, entry_id in enumerate(entry_ids):
            self._put_later(entry_id, Run((entry_id,), records.slice(index, index + 1)))
            self.highest = max(self.highest, entry_id)

    def _put_later(self, entry_id: int, run: Run) -> None:
        self._later.pop(entry_id, None)  # so that its place in the order is the last
        self._later[entry_id] = run

    def _overlaps(self, run: Run) -> bool:
        """Whether the spans of this and any other run meet, or an entry of it is in `_later`."""
        at = bisect_right(self._runs, run.first, key=_FIRST)
        if at and self._runs[at - 1].last >= run.first:
            return True
        if at < len(self._runs) and self._runs[at].first <= run.last:
            return True
        return bool(self._later) and not self._later.keys().isdisjoint(run.entry_ids)

    def find(self, entry_id: int) -> tuple[Run, int] | None:
        """(run, index in it) of the copy that counts."""
        if self._later and (later := self._later.get(entry_id)) is not None:
            return later, 0
        at = bisect_right(self._runs, entry_id, key=_FIRST)
        if at:
            run = self._runs[at - 1]
            if (index := run.index(entry_id)) >= 0:
                return run, index
        return None

    def next_held(self, first: int, stop: int) -> int:
        """The smallest entry id from `first` on that is here, at most `stop`."""
        at = bisect_right(self._runs, first, key=_FIRST)
        if at < len(self._runs):
            stop = min(stop, self._runs[at].first)
        if at and self._runs[at - 1].last >= first:
            ids = self._runs[at - 1].entry_ids
            stop = min(stop, ids[bisect_left(ids, first)])
        return self.next_later(first, stop)

    def next_later(self, first: int, stop: int) -> int:
        """As `next_held`, of those that came later than what they overlap: their copies in longer runs do not count."""
        if not self._later:
            return stop
        if len(self._later) < stop - first:
            return min((entry_id for entry_id in self._later if first <= entry_id < stop), default=stop)
        return next((entry_id for entry_id in range(first, stop) if entry_id in self._later), stop)

    def ordered(self) -> Iterator[Run]:
        """All runs, ascending as far as the precedence of later copies allows."""
        yield from self._runs
        yield from self._later.values()


class Generation:
    """A half of the cache. `marks`: see the invariants; one for each journal. `end`: those of the next generation."""

    __slots__ = ("end", "ledgers", "marks", "size")

    def __init__(self, marks: tuple[LogMark, ...]) -> None:
        self.marks = marks
        self.end: tuple[LogMark, ...] = ()
        self.size = 0
        self.ledgers: dict[int, LedgerRuns] = {}

    def add(self, ledger_id: int, entry_ids: Sequence[int], records: Records) -> None:
        runs = self.ledgers.get(ledger_id)
        if runs is None:
            runs = self.ledgers[ledger_id] = LedgerRuns()
        if _is_ascending(entry_ids):
            runs.add(Run(entry_ids, records))
        else:
            runs.add_unordered(entry_ids, records)
        self.size += records.size + RUN_OVERHEAD

    def runs(self) -> Iterator[tuple[int, Run]]:
        """(ledger id, run) in the order in which they go to the entry log and into the index."""
        for ledger_id in sorted(self.ledgers):
            for run in self.ledgers[ledger_id].ordered():
                yield ledger_id, run


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
        return ledger_id in self.current.ledgers or (self.snapshot is not None and ledger_id in self.snapshot.ledgers)

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
            while age < len(newest_first) and (found := newest_first[age].find(first)) is None:
                age += 1
            if found is None:
                break
            run, index = found
            stop = newest_first[age].next_later(first + 1, first + run.consecutive(index, count_max))
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
        generations = (self.current,) if self.snapshot is None else (self.current, self.snapshot)
        return [runs for each in generations if (runs := each.ledgers.get(ledger_id)) is not None]


def _is_ascending(entry_ids: Sequence[int]) -> bool:
    if isinstance(entry_ids, range):
        return entry_ids.step > 0 or len(entry_ids) == 1
    return len(entry_ids) == 1 or list(entry_ids) == sorted(set(entry_ids))
