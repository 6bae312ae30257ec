"""Arithmetic on index slots and on runs of entries; no IO."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from bookies.storage.index.index_format import MISSING, SLOT_SIZE

MISSING_SLOT = MISSING.to_bytes(SLOT_SIZE, "big")


def leading_present(slots: bytes) -> int:
    """Return the number of slots before the first missing one."""
    at = slots.find(MISSING_SLOT)
    while at % SLOT_SIZE and at >= 0:  # zeros of two neighbours
        at = slots.find(MISSING_SLOT, at + 1)
    return (at if at >= 0 else len(slots)) // SLOT_SIZE


def span(slots: bytes) -> int:
    """Return the bytes of log from the first to the last entry; more than any limit if they are in different logs."""
    return abs(int.from_bytes(slots[-SLOT_SIZE:], "big") - int.from_bytes(slots[:SLOT_SIZE], "big"))


class LeadingSlots:
    """Slots of consecutive entries, added page by page: as many as `size_max` bytes of log can need.

    `first`, `count`: the entries whose slots are to be added next. The object is complete when `count` is 0.
    """

    __slots__ = ("_per_page", "_size_max", "count", "first", "slots")

    def __init__(self, first: int, count_max: int, size_max: int, per_page: int) -> None:
        self.slots = b""
        self.first = first
        self.count = count_max
        self._size_max = size_max
        self._per_page = per_page

    def add(self, part: bytes) -> None:
        """Add the slots of the next page, which starts at entry `first`."""
        present = leading_present(part)
        part = part[: present * SLOT_SIZE]
        self.slots = self.slots + part if self.slots else part
        self.first += present
        self.count -= present
        # The run continues only at the end of a page; otherwise the next entry is missing.
        if not present or self.first % self._per_page or span(self.slots) > self._size_max:
            self.count = 0


def merged(runs: Sequence[Sequence[int]]) -> list[range]:
    """Return the same ids as maximal ranges, ascending."""
    pieces: list[range] = []
    for run in runs:
        if isinstance(run, range) and run.step == 1:
            pieces.append(run)
        else:
            pieces.extend(range(entry_id, entry_id + 1) for entry_id in run)
    pieces.sort(key=lambda piece: piece.start)
    merged: list[range] = []
    for piece in pieces:
        if merged and piece.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, piece.stop))
        else:
            merged.append(piece)
    return merged


def pieces(entry_ids: Sequence[int], per_page: int) -> Iterator[tuple[int, int, int]]:
    """Yield runs of consecutive entries within one page: (first id, its index in `entry_ids`, count)."""
    start, end = 0, len(entry_ids)
    is_range = isinstance(entry_ids, range) and entry_ids.step == 1
    while start < end:
        first = entry_ids[start]
        limit = min(end - start, per_page - first % per_page)
        count = limit if is_range else 1
        while count < limit and entry_ids[start + count] == first + count:
            count += 1
        yield first, start, count
        start += count


def by_page(entry_ids: Sequence[int], per_page: int) -> Iterator[tuple[int, int, int]]:
    """Split ascending ids by page: (number of the page, index of its first id, index after its last)."""
    start, end = 0, len(entry_ids)
    while start < end:
        number = entry_ids[start] // per_page
        stop = bisect_left(entry_ids, (number + 1) * per_page, lo=start, hi=min(end, start + per_page))
        yield number, start, stop
        start = stop


def overlaid(stored: bytes, first: int, newer: bytes | bytearray) -> bytearray:
    """Return the stored slots of a page, replaced by those of `newer` that are set. `first`: its first slot's index."""
    start = first * SLOT_SIZE
    data = bytearray(stored.ljust(start + len(newer), b"\0"))
    stop = start + len(newer)
    both = zip(array("q", bytes(newer)), array("q", bytes(data[start:stop])), strict=True)
    data[start:stop] = array("q", [own or other for own, other in both]).tobytes()
    return data


def replaced(old: bytes, new: bytes, prefix: bytes) -> bytes:
    """Return `new` where a slot of `old` is set and begins with these four bytes, otherwise `old`."""
    count = len(old) // SLOT_SIZE
    # The first four bytes of a slot in log 0 are zeros, as in a missing slot, so log 0 needs the slow path.
    if any(prefix) and all(old[at::SLOT_SIZE] == prefix[at : at + 1] * count for at in range(4)):
        return new
    merged = bytearray(old)
    for at in range(0, len(old), SLOT_SIZE):
        if old[at : at + 4] == prefix and any(old[at + 4 : at + 8]):
            merged[at : at + SLOT_SIZE] = new[at : at + SLOT_SIZE]
    return bytes(merged)
