"""The workers that read: entries from logs, headers and pages from index files. One ledger always uses the same one.

Owned by the loop's thread; what blocks is confined to its worker, so nothing is shared between threads but bytes, and
files that a worker opened for the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from bookies.config import BookieConfig
from bookies.runtime.ports import File, Runtime
from bookies.storage.disks.durable_files import run_last
from bookies.storage.entry_log.cached_reads import ResidentLogs
from bookies.storage.entry_log.entry_log import EntryLogReader
from bookies.storage.index.index_files import IndexFiles, LoadedIndex

T = TypeVar("T")


class _Reader:
    def __init__(self, runtime: Runtime, config: BookieConfig, directories: Sequence[str], number: int) -> None:
        self.worker = runtime.workers.start(f"read-{number}")
        self.logs = EntryLogReader(runtime.disk, directories)
        files_max = max(1, config.open_files_max // config.read_workers)
        self.index = IndexFiles(runtime.disk, config.index_page_size, files_max, "r")

    def close(self) -> None:
        self.logs.close()
        self.index.close()


class Readers:
    """`directories`: of the ledgers. Futures are the workers': cancelling one does not stop its read."""

    def __init__(self, runtime: Runtime, config: BookieConfig, directories: Sequence[str]) -> None:
        self._readers = [_Reader(runtime, config, directories, number) for number in range(config.read_workers)]
        self.resident = ResidentLogs(self._open_log)

    def _of(self, ledger_id: int) -> _Reader:
        return self._readers[ledger_id % len(self._readers)]

    def read_records(self, ledger_id: int, first_entry_id: int, slots: bytes, size_max: int) -> asyncio.Future[bytes]:
        """See `EntryLogReader.read_records`."""
        reader = self._of(ledger_id)
        return reader.worker.run(reader.logs.read_records, ledger_id, first_entry_id, slots, size_max)

    def _open_log(self, log_id: int) -> asyncio.Future[File]:
        reader = self._of(log_id)
        return reader.worker.run(reader.logs.open_another, log_id)

    def load_index(self, ledger_id: int, path: str) -> asyncio.Future[LoadedIndex]:
        reader = self._of(ledger_id)
        return reader.worker.run(reader.index.load, path)

    def read_page(self, ledger_id: int, path: str, page: int) -> asyncio.Future[bytes]:
        reader = self._of(ledger_id)
        return reader.worker.run(reader.index.read_page, path, page)

    def scan_slots(
        self,
        ledger_id: int,
        path: str | None,
        newer: dict[int, bytes],
        pages: Sequence[int],
        is_right: Callable[[int, bytes], bool],
        look: Callable[..., T],
        *arguments: object,
    ) -> asyncio.Future[T]:
        """See `IndexFiles.scan_slots`."""
        reader = self._of(ledger_id)
        return reader.worker.run(reader.index.scan_slots, path, newer, pages, is_right, look, *arguments)

    def forget_index(self, ledger_id: int, path: str) -> None:
        """The path names another file from now on, or none."""
        reader = self._of(ledger_id)
        reader.worker.run(reader.index.forget, path)

    async def forget_log(self, log_id: int) -> None:
        """Close an entry log that was removed, wherever it is open."""
        self.resident.forget(log_id)
        for reader in self._readers:
            await reader.worker.run(reader.logs.forget, log_id)

    def close(self) -> None:
        """Finish what was asked, then close the files and end the workers. Blocks."""
        self.resident.close()
        for reader in self._readers:
            run_last(reader.worker, reader.close)
