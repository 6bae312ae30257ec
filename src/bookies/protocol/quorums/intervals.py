"""Set of entry ids that is nearly always "everything below a bound": the bound, and the runs above it.

Acknowledgements of one bookie arrive in order, so a watermark describes them. Ids that arrive out of order wait as runs
until the gap below closes. Costs depend on the number of gaps, not on the number of acknowledged entries.
"""

from __future__ import annotations

from bisect import bisect_right


class IdSet:
    """Set of all ids below `bound`, and those in `runs`: [start, stop) pairs above it, ascending, never adjacent."""

    __slots__ = ("bound", "runs")

    def __init__(self, bound: int = -1) -> None:
        self.bound = bound
        self.runs: list[tuple[int, int]] = []

    def add(self, start: int, stop: int) -> None:
        """Add the ids start..stop-1."""
        if start <= self.bound and not self.runs:  # the usual case: in order
            if stop > self.bound:
                self.bound = stop
            return
        if start >= stop:
            return
        runs = self.runs
        if start > self.bound:
            first = bisect_right(runs, start, key=_start)
            if first and runs[first - 1][1] >= start:
                first -= 1
                start = runs[first][0]
        else:
            first, start = 0, self.bound
        past = first
        while past < len(runs) and runs[past][0] <= stop:
            stop = max(stop, runs[past][1])
            past += 1
        if start <= self.bound:
            self.bound = max(self.bound, stop)
            del runs[:past]
        else:
            runs[first:past] = [(start, stop)]

    def reach(self, entry_id: int) -> int:
        """Return the first id from `entry_id` on that is not in the set."""
        if entry_id < self.bound:
            return self.bound
        if self.runs:
            index = bisect_right(self.runs, entry_id, key=_start) - 1
            if index >= 0 and self.runs[index][1] > entry_id:
                return self.runs[index][1]
        return entry_id

    def next_in(self, entry_id: int) -> int | None:
        """Return the first id from `entry_id` on that is in the set; None: there is none."""
        if entry_id < self.bound:
            return entry_id
        for start, stop in self.runs:
            if stop > entry_id:
                return max(start, entry_id)
        return None

    def __contains__(self, entry_id: int) -> bool:
        return self.reach(entry_id) > entry_id

    def cut(self, first: int) -> list[tuple[int, int]]:
        """Remove, and return as runs, all ids from `first` on that are above the bound."""
        taken = [(max(start, first), stop) for start, stop in self.runs if stop > first]
        self.runs = [(start, min(stop, first)) for start, stop in self.runs if start < first]
        return taken


def _start(run: tuple[int, int]) -> int:
    return run[0]
