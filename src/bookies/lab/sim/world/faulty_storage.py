"""Storage faults without disk faults: a bookie that refuses an add, or cannot determine what it holds.

Unlike disk faults, these neither end a bookie's life nor lose data, so they excuse no broken promise. *Refusing*: the
bookie fails an add with an I/O error, and stores the adds before and after it. *Limbo*: the bookie answers neither
reads nor requests for the last add confirmed, not even with `NO_ENTRY`; it serves adds and fences. This is the state of
a bookie that has lost a disk. Source: storage 10.2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from bookies.bookie.storage_port import Storage
from bookies.errors import DataUnknown, StorageError
from bookies.kernels import Adds
from bookies.lab.sim.world.storage_wrapper import StorageWrapper
from bookies.storage.engine.store_writes import AddsDone, RefusedAdds
from bookies.storage.journal.journal import Done


class StorageFaults(Struct):
    """Current storage faults of a bookie. `refusals`: number of adds to refuse. `is_in_limbo`: contents are unknown."""

    refusals: int = 0
    is_in_limbo: bool = False


class FaultyStorage(StorageWrapper):
    """Storage with these faults."""

    def __init__(self, inner: Storage, faults: StorageFaults) -> None:
        super().__init__(inner)
        self._faults = faults

    # -- refusing: one by one ----------------------------------------------------------------------------------------
    def add(
        self,
        adds: Adds,
        master_key: bytes,
        *,
        is_recovery: bool,
        is_deferred_sync: bool,
        accepted: Callable[[int], None],
        done: AddsDone,
    ) -> list[RefusedAdds]:
        add = partial(
            self.inner.add, is_recovery=is_recovery, is_deferred_sync=is_deferred_sync, accepted=accepted, done=done
        )
        if self._faults.refusals <= 0 or is_recovery:
            return add(adds, master_key)
        refused: list[RefusedAdds] = []
        for part in adds.parts():
            if self._faults.refusals > 0:
                self._faults.refusals -= 1
                error = StorageError("the disk refuses this entry", ledger_id=part.first_ledger_id)
                refused.append((part, error))
            else:
                refused += add(part, master_key)
        return refused

    def fence(self, ledger_id: int, master_key: bytes, done: Done) -> None:
        self.inner.fence(ledger_id, master_key, done)

    def write_lac(self, ledger_id: int, master_key: bytes, last_add_confirmed: int, body: bytes, done: Done) -> None:
        self.inner.write_lac(ledger_id, master_key, last_add_confirmed, body, done)

    def force(self, ledger_id: int, done: Done) -> None:
        self.inner.force(ledger_id, done)

    # -- limbo -------------------------------------------------------------------------------------------------------
    def prepare(self, ledger_id: int) -> None:
        if self._faults.is_in_limbo:
            raise DataUnknown("it is not known what this bookie holds", ledger_id=ledger_id)

    def read_resident(self, ledger_id: int, entry_id: int) -> bytes | None:
        return None if self._faults.is_in_limbo else self.inner.read_resident(ledger_id, entry_id)

    def read_batch_resident(self, ledger_id: int, first_entry_id: int, count_max: int, size_max: int) -> bytes | None:
        if self._faults.is_in_limbo:
            return None
        return self.inner.read_batch_resident(ledger_id, first_entry_id, count_max, size_max)

    async def list_entries(self, ledger_id: int) -> list[range]:
        return await self.inner.list_entries(ledger_id)  # Limbo hides entries, not their list.
