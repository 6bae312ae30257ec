"""Storage faults without disk faults: a bookie that refuses an add, or cannot determine what it holds.

Unlike disk faults, these neither end a bookie's life nor lose data, so they excuse no broken promise. *Refusing*: the
bookie fails an add with an I/O error, and stores the adds before and after it. *Limbo*: the bookie answers neither
reads nor requests for the last add confirmed, not even with `NO_ENTRY`; it serves adds and fences. This is the state of
a bookie that has lost a disk. Source: storage 10.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bookies.errors import DataUnknown, StorageError
from bookies.storage.store import LedgerStore


@dataclass
class StorageFaults:
    """Current storage faults of a bookie. `refusals`: number of adds to refuse. `is_in_limbo`: contents are unknown."""

    refusals: int = 0
    is_in_limbo: bool = False


def inject_faults(storage: LedgerStore, faults: StorageFaults) -> None:
    """Apply the faults between a bookie's request handlers and its storage."""
    add, add_many = storage.add, storage.add_many

    def faulty_add(ledger_id: int, *rest: Any, **flags: Any) -> None:
        if faults.refusals > 0 and not flags["is_recovery"]:
            faults.refusals -= 1
            raise StorageError("the disk refuses this entry", ledger_id=ledger_id)
        add(ledger_id, *rest, **flags)

    def faulty_add_many(master_key: bytes, batches: Sequence[Any], **rest: Any) -> list[Any]:
        return list(batches) if faults.refusals > 0 else add_many(master_key, batches, **rest)

    def faulty(read: Callable[..., Any]) -> Callable[..., Any]:
        async def faulty_read(ledger_id: int, *rest: Any) -> Any:
            if faults.is_in_limbo:
                raise DataUnknown("it is not known what this bookie holds", ledger_id=ledger_id)
            return await read(ledger_id, *rest)

        return faulty_read

    def faulty_resident(read: Callable[..., bytes | None]) -> Callable[..., bytes | None]:
        return lambda *arguments: None if faults.is_in_limbo else read(*arguments)

    storage.add = faulty_add  # type: ignore[method-assign]
    storage.add_many = faulty_add_many  # type: ignore[method-assign]
    storage.read_resident = faulty_resident(storage.read_resident)  # type: ignore[method-assign]
    storage.read_batch_resident = faulty_resident(storage.read_batch_resident)  # type: ignore[method-assign]
    storage.read = faulty(storage.read)  # type: ignore[method-assign]
    storage.read_batch = faulty(storage.read_batch)  # type: ignore[method-assign]
    storage.read_lac = faulty(storage.read_lac)  # type: ignore[method-assign]
    storage.last_add_confirmed = faulty(storage.last_add_confirmed)  # type: ignore[method-assign]
