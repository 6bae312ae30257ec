"""Moves index files out of a directory that is almost full, when they have to be written anyway.

A file that moves is written as a new one. All its slots are first loaded into memory and marked dirty. From then on the
old file is not read. It stays until the new one is durable.

Source: storage 4.7.
"""

from __future__ import annotations

from bookies.errors import BookKeeperError
from bookies.runtime.events import Events
from bookies.storage.index import slot_scans
from bookies.storage.index.index import LedgerIndex
from bookies.storage.index.index_ledger import Ledger

SIZE_MAX = 8 << 20  # bytes of index files at once, a million entries; larger files stay


async def move_from_crowded(index: LedgerIndex, events: Events, size_max: int = SIZE_MAX) -> int:
    """Have the next write of the index move files to other directories. Return how many.

    No write is in progress.
    """
    if not index.places.is_crowded:
        return 0
    count = size = 0
    for ledger in index.dirty():
        if not _can_move(index, ledger) or size + ledger.size > size_max:
            continue
        size += ledger.size
        try:
            pages = await index.scan_slots(ledger, slot_scans.all_pages)
        except BookKeeperError:
            continue  # It is damaged or deleted, and handled elsewhere.
        if _can_move(index, ledger):
            index.start_move(ledger, pages)
            count += 1
    if count:
        events.info("storage.index_files_leave", count=count, reason="little room is left in their directory")
    return count


def _can_move(index: LedgerIndex, ledger: Ledger) -> bool:
    if ledger.path is None or ledger.is_deleted or ledger.header.is_rebuilding or ledger.has_unsaved_slots:
        return False
    return index.places.should_move(ledger.path)
