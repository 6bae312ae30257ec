"""Port from a bookie's request handlers to its storage, which `LedgerStore` implements.

The simulator puts wrappers between the two: a witness of promises, deferred syncs, faults. A wrapper derives from the
port, so mypy refuses one that lacks a way into the storage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bookies.kernels import Adds
from bookies.storage.engine.store_writes import AddsDone, RefusedAdds
from bookies.storage.journal.journal import Done


class Storage(Protocol):
    """Requests to a bookie's storage, all on the loop's thread. Writes are decided at the call; `done` reports later.

    `StoreWrites`, `StoreReads` and `LedgerStore` describe the methods and their errors.
    """

    def add(
        self,
        adds: Adds,
        master_key: bytes,
        *,
        is_recovery: bool,
        is_deferred_sync: bool,
        accepted: Callable[[int], None],
        done: AddsDone,
    ) -> list[RefusedAdds]: ...

    def note_open(self, ledger_id: int) -> None: ...

    def fence(self, ledger_id: int, master_key: bytes, done: Done) -> None: ...

    def write_lac(
        self, ledger_id: int, master_key: bytes, last_add_confirmed: int, body: bytes, done: Done
    ) -> None: ...

    def force(self, ledger_id: int, done: Done) -> None: ...

    # -- reads ---------------------------------------------------------------------------------------------------
    def read_resident(self, ledger_id: int, entry_id: int) -> bytes | None: ...

    def read_batch_resident(
        self, ledger_id: int, first_entry_id: int, count_max: int, size_max: int
    ) -> bytes | None: ...

    async def read(self, ledger_id: int, entry_id: int) -> bytes: ...

    async def read_batch(self, ledger_id: int, first_entry_id: int, count_max: int, size_max: int) -> bytes: ...

    async def last_add_confirmed(self, ledger_id: int) -> int: ...

    async def read_lac(self, ledger_id: int) -> tuple[bytes | None, bytes | None]: ...

    async def list_entries(self, ledger_id: int) -> list[range]: ...

    def watch_lac(self, ledger_id: int, previous_lac: int, callback: Callable[[], None]) -> Callable[[], None]: ...

    def usage(self) -> tuple[int, int]: ...
