"""Comparison of consecutive entries in a log with their index slots, which decides whether they are live.

Source: storage 7.4, 7.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bookies import kernels
from bookies.errors import LedgerUnknownToBookie, ReadFailed
from bookies.storage.index import LedgerIndex
from bookies.storage.index.index_format import SLOT_SIZE
from bookies.storage.records import Batch
from bookies.storage.records.record_scan import RunIds


class Piece(NamedTuple):
    """Consecutive entries of one ledger in a batch: records from `start` to before `stop`, from entry `first` on."""

    ledger_id: int
    first: int
    start: int
    stop: int

    @property
    def entry_ids(self) -> range:
        return range(self.first, self.first + self.stop - self.start)


def pieces_of(batch: Batch) -> Iterator[Piece]:
    """Yield the batch as runs of consecutive entries."""
    ids, start = batch.ids, 0
    if isinstance(ids, RunIds):
        for ledger_id, first, count in ids.runs:
            yield Piece(ledger_id, first, start, start + count)
            start += count
        return
    for index in range(1, len(ids) + 1):
        ledger_id, entry_id = ids[index - 1]
        if index == len(ids) or ids[index] != (ledger_id, entry_id + 1):
            yield Piece(ledger_id, ids[start][1], start, index)
            start = index


def slots_of(log_id: int, batch: Batch, piece: Piece) -> bytes:
    """Return the slots of these entries that name this place in the log."""
    starts = batch.records.starts[piece.start : piece.stop + 1]
    slots: bytes = kernels.pack_locations(log_id, batch.offset + starts[0], starts)
    return slots


def matching_parts(piece: Piece, expected: bytes, actual: bytes) -> Iterator[Piece]:
    """Yield the parts of a run whose slots are as expected."""
    if actual == expected:
        yield piece
        return
    start: int | None = None
    count = piece.stop - piece.start
    for index in range(count + 1):
        at = index * SLOT_SIZE
        matches = index < count and expected[at : at + SLOT_SIZE] == actual[at : at + SLOT_SIZE]
        if matches and start is None:
            start = index
        elif not matches and start is not None:
            yield Piece(piece.ledger_id, piece.first + start, piece.start + start, piece.start + index)
            start = None


async def current_slots(index: LedgerIndex, piece: Piece) -> bytes:
    """Return the index slots of these entries; zeros for missing ones. Raises: ReadFailed if they are unknown."""
    slots = b""
    first, stop = piece.first, piece.entry_ids.stop
    try:
        ledger = await index.load(piece.ledger_id)
        with ledger:
            while first < stop:
                if ledger.lacks_entries:
                    raise ReadFailed("its index file is being rebuilt", ledger_id=piece.ledger_id)
                count = min(stop - first, index.slots_per_page - first % index.slots_per_page)
                slots += (await index.slots(ledger, first, count)).ljust(count * SLOT_SIZE, b"\0")
                first += count
    except LedgerUnknownToBookie:
        return bytes(len(piece.entry_ids) * SLOT_SIZE)  # deleted meanwhile
    return slots


def may_lack_slot(index: LedgerIndex, piece: Piece, slots: bytes) -> bool:
    """Report whether some entries have no slot and may be live, because the ledger is uncertain.

    `slots`: those of the piece, just read.
    """
    ledger = index.get(piece.ledger_id)
    if ledger is None or not ledger.header.is_uncertain:
        return False
    return any(not slots[at : at + SLOT_SIZE].strip(b"\0") for at in range(0, len(slots), SLOT_SIZE))
