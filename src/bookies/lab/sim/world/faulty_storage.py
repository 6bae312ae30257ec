"""A bookie whose disks are well and whose answers are not: it refuses an add, or cannot say what it holds.

Unlike faults of a disk these end no life of the bookie and lose nothing, so no promise has an excuse. *Refusing*: an
add is answered with an I/O error, while those before and behind it are stored. *Limbo*: no read, no last entry, no end
is answered, not even with "no such entry", while adds and fences are served; as of a bookie that has lost a disk.
Source: storage 10.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bookies.errors import DataUnknown, StorageError
from bookies.storage.store import LedgerStore


@dataclass
class Mood:
    """How a bookie answers now. `refusals`: of so many adds; `is_in_limbo`: whether it can say what it holds."""

    refusals: int = 0
    is_in_limbo: bool = False


def spoil(storage: LedgerStore, mood: Mood) -> None:
    """Put the mood between a bookie's handlers and its storage."""
    add, add_many = storage.add, storage.add_many

    def moody_add(ledger_id: int, *rest: Any, **flags: Any) -> None:
        if mood.refusals > 0 and not flags["is_recovery"]:
            mood.refusals -= 1
            raise StorageError("the disk refuses this entry", ledger_id=ledger_id)
        add(ledger_id, *rest, **flags)

    def moody_add_many(master_key: bytes, batches: Sequence[Any], **rest: Any) -> list[Any]:
        return list(batches) if mood.refusals > 0 else add_many(master_key, batches, **rest)

    def moody(read: Callable[..., Any]) -> Callable[..., Any]:
        async def ask(ledger_id: int, *rest: Any) -> Any:
            if mood.is_in_limbo:
                raise DataUnknown("it is not known what this bookie holds", ledger_id=ledger_id)
            return await read(ledger_id, *rest)

        return ask

    def moody_look(look: Callable[..., bytes | None]) -> Callable[..., bytes | None]:
        return lambda *arguments: None if mood.is_in_limbo else look(*arguments)

    storage.add = moody_add  # type: ignore[method-assign]
    storage.add_many = moody_add_many  # type: ignore[method-assign]
    storage.read_resident = moody_look(storage.read_resident)  # type: ignore[method-assign]
    storage.read_batch_resident = moody_look(storage.read_batch_resident)  # type: ignore[method-assign]
    storage.read = moody(storage.read)  # type: ignore[method-assign]
    storage.read_batch = moody(storage.read_batch)  # type: ignore[method-assign]
    storage.read_lac = moody(storage.read_lac)  # type: ignore[method-assign]
    storage.last_add_confirmed = moody(storage.last_add_confirmed)  # type: ignore[method-assign]
