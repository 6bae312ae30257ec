"""Base of the wrappers between a bookie's request handlers and its storage.

A wrapper implements every write itself: mypy refuses to create one that lacks a write. Reads are passed on after a
common hook.
"""

from __future__ import annotations

from collections.abc import Callable

from bookies.bookie.storage_port import Storage


class StorageWrapper(Storage):
    """Storage that passes reads on to `inner`."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    def prepare(self, ledger_id: int) -> None:
        """Run before a read of the ledger. Raises the error of the read."""

    def note_open(self, ledger_id: int) -> None:
        self.inner.note_open(ledger_id)

    def read_resident(self, ledger_id: int, entry_id: int) -> bytes | None:
        self.prepare(ledger_id)
        return self.inner.read_resident(ledger_id, entry_id)

    def read_batch_resident(self, ledger_id: int, first_entry_id: int, count_max: int, size_max: int) -> bytes | None:
        self.prepare(ledger_id)
        return self.inner.read_batch_resident(ledger_id, first_entry_id, count_max, size_max)

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        self.prepare(ledger_id)
        return await self.inner.read(ledger_id, entry_id)

    async def read_batch(self, ledger_id: int, first_entry_id: int, count_max: int, size_max: int) -> bytes:
        self.prepare(ledger_id)
        return await self.inner.read_batch(ledger_id, first_entry_id, count_max, size_max)

    async def last_add_confirmed(self, ledger_id: int) -> int:
        self.prepare(ledger_id)
        return await self.inner.last_add_confirmed(ledger_id)

    async def read_lac(self, ledger_id: int) -> tuple[bytes | None, bytes | None]:
        self.prepare(ledger_id)
        return await self.inner.read_lac(ledger_id)

    async def list_entries(self, ledger_id: int) -> list[range]:
        self.prepare(ledger_id)
        return await self.inner.list_entries(ledger_id)

    def watch_lac(self, ledger_id: int, previous_lac: int, callback: Callable[[], None]) -> Callable[[], None]:
        return self.inner.watch_lac(ledger_id, previous_lac, callback)

    def usage(self) -> tuple[int, int]:
        return self.inner.usage()
