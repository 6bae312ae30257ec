"""Visitors for `LedgerIndex.scan_slots`: each receives the pages of a ledger that have slots, and returns a result.

Pages come as (entry id of the first slot, data), ascending. Slots outside them are missing entries. No IO.

Source: storage 4.3.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

from bookies.storage.index import index_format as layout

Pages = Iterator[tuple[int, bytes]]


def entry_runs(pages: Pages) -> list[range]:
    """Return the maximal runs of entries with a slot."""
    runs: list[range] = []
    for first_entry_id, data in pages:
        extend_runs(runs, data, first_entry_id)
    return runs


def runs_in_logs(pages: Pages, log_ids: Collection[int], greatest_id: int) -> list[range]:
    """Return the maximal runs of entries whose slot names one of these entry logs, or one above `greatest_id`."""
    runs: list[range] = []
    for first_entry_id, page in pages:
        data = bytearray(page)
        for log_id in logs_named(page):
            if log_id <= greatest_id and log_id not in log_ids:
                for index, _ in _offsets_in(page, log_id):
                    data[index * layout.SLOT_SIZE : (index + 1) * layout.SLOT_SIZE] = bytes(layout.SLOT_SIZE)
        extend_runs(runs, data, first_entry_id)
    return runs


def all_pages(pages: Pages) -> list[tuple[int, bytes]]:
    """Return (entry id of the first slot, data) of every page."""
    return list(pages)


def greatest_offsets(pages: Pages, log_ids: Sequence[int]) -> dict[int, int]:
    """Return the greatest offset in each of these entry logs that a slot names."""
    greatest: dict[int, int] = {}
    for _, data in pages:
        for log_id in log_ids:
            for _, offset in _offsets_in(data, log_id):
                greatest[log_id] = max(greatest.get(log_id, 0), offset)
    return greatest


def size_and_logs(pages: Pages) -> tuple[int, list[int]]:
    """Return (bytes of slots, the entry logs that the slots name)."""
    size, log_ids = 0, dict[int, None]()
    for _, data in pages:
        size += len(data)
        log_ids |= dict.fromkeys(logs_named(data))
    return size, sorted(log_ids)


def logs_named(data: bytes) -> Iterator[int]:
    """Yield the entry logs that the slots of a page name."""
    words = memoryview(data).cast("I")
    for word in dict.fromkeys(words[::2]):
        log_id = int.from_bytes(word.to_bytes(4, sys.byteorder), "big")
        # The first four bytes of a slot in log 0 are zeros, as in a missing slot.
        if log_id or any(low and not high for high, low in zip(words[::2], words[1::2], strict=True)):
            yield log_id


def slots_in(pages: Pages, log_id: int, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (offset of the body, entry id) of the slots that name a place in these spans of a log.

    `spans`: (start, stop), ascending, with gaps between them.
    """
    places: list[tuple[int, int]] = []
    starts = [start for start, _ in spans]
    for first_entry_id, data in pages:
        for index, offset in _offsets_in(data, log_id):
            at = bisect_right(starts, offset) - 1
            if at >= 0 and offset < spans[at][1]:
                places.append((offset, first_entry_id + index))
    return places


def least_offset(pages: Pages, log_id: int, after: int) -> int | None:
    """Return the least offset above `after` that a slot names in a log."""
    return min((offset for _, data in pages for _, offset in _offsets_in(data, log_id) if offset > after), default=None)


def _offsets_in(data: bytes, log_id: int) -> Iterator[tuple[int, int]]:
    """Yield (index of the slot, offset of the body) for the slots of a page that name this log."""
    prefix = log_id.to_bytes(4, "big")
    at = data.find(prefix)
    while at >= 0:
        slot = at - at % layout.SLOT_SIZE
        if slot == at:
            offset = int.from_bytes(data[slot + 4 : slot + 8], "big")
            if offset:  # a missing entry's slot has an offset of 0
                yield slot // layout.SLOT_SIZE, offset
        at = data.find(prefix, slot + layout.SLOT_SIZE)


def extend_runs(runs: list[range], data: bytes | bytearray, first_entry_id: int) -> None:
    """Append the entries whose slots are set, joining them to the last run where they continue it."""
    count = len(data) // layout.SLOT_SIZE
    slots = memoryview(data)[: count * layout.SLOT_SIZE].cast("q")  # zero in any byte order
    at = 0
    if 0 not in slots:
        _append_run(runs, first_entry_id, first_entry_id + count)
        return
    while at < count:
        if slots[at] == 0:
            at += 1
            continue
        start = at
        while at < count and slots[at] != 0:
            at += 1
        _append_run(runs, first_entry_id + start, first_entry_id + at)


def _append_run(runs: list[range], start: int, stop: int) -> None:
    if start == stop:
        return
    if runs and runs[-1].stop == start:
        start = runs.pop().start
    runs.append(range(start, stop))
