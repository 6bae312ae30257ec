"""Storage faults without disk faults: a bookie that refuses an add, or cannot determine what it holds.

Unlike disk faults, these neither end a bookie's life nor lose data, so they excuse no broken promise. *Refusing*: the
bookie fails an add with an I/O error, and stores the adds before and after it. *Limbo*: the bookie answers neither
reads nor requests for the last add confirmed, not even with `NO_ENTRY`; it serves adds and fences. This is the state of
a bookie that has lost a disk. Source: storage 10.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bookies.bookie.storage_port import Storage
from bookies.errors import DataUnknown, StorageError
from bookies.kernels import Records
from bookies.lab.sim.world.storage_wrapper import StorageWrapper
from bookies.storage.cache.write_cache import AddRun
from bookies.storage.engine.store_writes import B
from bookies.storage.journal.journal import Done


@dataclass
class StorageFaults:
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
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        records: Records,
        last_add_confirmed: int,
        *,
        is_recovery: bool,
        is_deferred_sync: bool,
        done: Done,
    ) -> None:
        if self._faults.refusals > 0 and not is_recovery:
            self._faults.refusals -= 1
            raise StorageError("the disk refuses this entry", ledger_id=ledger_id)
        self.inner.add(
            ledger_id,
            master_key,
            entry_ids,
            records,
            last_add_confirmed,
            is_recovery=is_recovery,
            is_deferred_sync=is_deferred_sync,
            done=done,
        )

    def add_many(
        self,
        master_key: bytes,
        batches: Sequence[B],
        *,
        is_recovery: bool,
        accepted: Callable[[int], None],
        done: Callable[[Sequence[B], int, BaseException | None], None],
    ) -> list[B]:
        if self._faults.refusals > 0:
            return list(batches)
        return self.inner.add_many(master_key, batches, is_recovery=is_recovery, accepted=accepted, done=done)

    def add_mixed(
        self,
        master_key: bytes,
        mixed: AddRun,
        lacs: Sequence[int],
        *,
        is_recovery: bool,
        accepted: Callable[[int], None],
        done: Callable[[AddRun, BaseException | None], None],
    ) -> list[int]:
        if self._faults.refusals > 0:
            return list(range(len(mixed)))
        return self.inner.add_mixed(master_key, mixed, lacs, is_recovery=is_recovery, accepted=accepted, done=done)

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
