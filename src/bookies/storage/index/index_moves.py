"""Index files leave a directory with little room for one with more, when they have to be written anyway.

A file that moves is written as a new one: all its slots are brought into memory first, and count as changed. From then
on nothing is read from the file, which stays until the new one is durable.

Source: storage 4.7.
"""

from __future__ import annotations

from bookies.errors import BookKeeperError
from bookies.runtime.events import Events
from bookies.storage.index import slot_scans
from bookies.storage.index.index import LedgerIndex
from bookies.storage.index.index_ledger import Ledger

SIZE_MAX = 8 << 20  # bytes of index files at once, a million entries; a file that is larger stays


async def leave_crowded(index: LedgerIndex, events: Events, size_max: int = SIZE_MAX) -> int:
    """Have the next write of the index put files elsewhere; how many. No write is under way."""
    if not index.is_crowded:
        return 0
    count = size = 0
    for ledger in index.dirty():
        if not _can_move(index, ledger) or size + ledger.size > size_max:
            continue
        size += ledger.size
        try:
            pages = await index.scan_slots(ledger, slot_scans.everything)
        except BookKeeperError:
            continue  # It is damaged, or deleted: others see to that.
        if _can_move(index, ledger):
            index.leave(ledger, pages)
            count += 1
    if count:
        events.info("storage.index_files_leave", count=count, reason="little room is left in their directory")
    return count


def _can_move(index: LedgerIndex, ledger: Ledger) -> bool:
    if ledger.path is None or ledger.is_deleted or ledger.header.is_rebuilding or ledger.is_rebuilt:
        return False
    return index.is_left(ledger.path)
