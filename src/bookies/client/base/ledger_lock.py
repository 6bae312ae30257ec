"""A ledger's lock of auto-recovery, for copying entries to bookies that the ledger's record does not name yet.

A bookie deletes copies that no record names, and does so under this lock (`storage/gc/deleted_ledgers.py`). So a copier
takes the lock before the first entry and releases it after the record has changed. A caller that already holds the lock
passes it on, in the `MetadataLoop` that will change the record. Source: metadata 8.5 and 8.9.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from bookies.errors import LedgerLocked, MetadataError
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.recovery_store import LedgerLock, Mark

AGAIN_S = 5.0  # before ledgers that another process has locked are tried again
TRIES = 12


@asynccontextmanager
async def ledger_locked(
    driver: MetadataDriver, ledger_id: int, owner: str, mark: Mark | None = None
) -> AsyncIterator[LedgerLock]:
    """Hold the ledger's lock, marked or not; with `mark`: only if the ledger's mark is still this one. Never waits.

    Raises `LedgerLocked`, also if the mark has changed; `MetadataError`.
    """
    store = driver.recovery
    version = None if mark is None else mark.version
    lock = await store.lock(ledger_id, owner, needs_mark=mark is not None, mark_version=version)
    if lock is None:
        holder = (await store.locks()).get(ledger_id)
        raise LedgerLocked(
            f"{holder or 'another process'} has its lock and may be copying it; nothing was changed, repeat it when "
            "that is done",
            ledger_id=ledger_id,
            owner=holder,
        )
    try:
        yield lock
    finally:
        with suppress(MetadataError):  # The lock ends with the session, and the work under it is done.
            await store.unlock(lock)


async def in_rounds(
    ledger_ids: Sequence[int], carry_out: Callable[[Sequence[int], bool], Awaitable[list[int]]]
) -> None:
    """Process all ledgers, and retry the locked ones at the end, for about a minute.

    `carry_out(ledger_ids, is_last)`: processes what it can and returns the ledgers that another process has locked; in
    the last round, none.
    """
    todo = list(ledger_ids)
    for tries in range(1, TRIES + 1):
        todo = await carry_out(todo, tries == TRIES)
        if not todo:
            return
        await asyncio.sleep(AGAIN_S)
