"""A ledger's lock of auto-recovery, for whoever copies its entries to bookies that its record does not name yet.

A bookie deletes the copies that no record names, and does so under this lock (`storage/gc/deleted_ledgers.py`). So who copies
takes it before the first entry, and gives it back after the record has been changed; whoever holds it already passes it
on, in the `MetadataLoop` that is to change the record. Source: metadata 8.5 and 8.9.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from bookies.errors import LedgerLocked, MetadataError
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.recovery_store import LedgerLock, Mark

AGAIN_S = 5.0  # before another look at ledgers that somebody else has locked
TRIES = 12


@asynccontextmanager
async def ledger_locked(
    driver: MetadataDriver, ledger_id: int, owner: str, mark: Mark | None = None
) -> AsyncIterator[LedgerLock]:
    """Hold it, whether the ledger is marked or not; with `mark`: while that is how it is marked. Never waits.

    Raises `LedgerLocked`, also when the mark is another one by now; `MetadataError`.
    """
    store = driver.recovery
    version = None if mark is None else mark.version
    lock = await store.lock(ledger_id, owner, needs_mark=mark is not None, mark_version=version)
    if lock is None:
        holder = (await store.locks()).get(ledger_id)
        raise LedgerLocked(
            f"{holder or 'somebody'} has its lock and may be copying it; nothing was changed, repeat it when that is "
            "done",
            ledger_id=ledger_id,
            owner=holder,
        )
    try:
        yield lock
    finally:
        with suppress(MetadataError):  # It ends with the session; what was done under it is what counts.
            await store.unlock(lock)


async def in_rounds(
    ledger_ids: Sequence[int], carry_out: Callable[[Sequence[int], bool], Awaitable[list[int]]]
) -> None:
    """Do all of them, and those that somebody else has locked again at the end, for about a minute.

    `carry_out`: does what it can of these, and says which are locked; the last time, when it is told True, none.
    """
    todo = list(ledger_ids)
    for tries in range(1, TRIES + 1):
        todo = await carry_out(todo, tries == TRIES)
        if not todo:
            return
        await asyncio.sleep(AGAIN_S)
