"""The persisted mode, in `BOOKIE_STATUS`: mainly an operator's request that the bookie is read-only.

Only with the setting `persist_bookie_status`. Whether disks are full is measured again at the start, not read from
the file; it is written nevertheless, for Apache's bookie.

Source: storage 8.5.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable
from typing import TypeVar

from bookies.config import BookieConfig
from bookies.errors import CorruptRecord, StorageError
from bookies.model import BookieMode
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime
from bookies.storage.disks import status_format as layout
from bookies.storage.disks.directories import current
from bookies.storage.disks.durable_files import replace_copies
from bookies.storage.disks.status_format import StatusRecord

T = TypeVar("T")


class PersistedStatus:
    """The copies in the ledger directories. Methods run on the loop's thread and wait for a worker of their own."""

    def __init__(self, runtime: Runtime, config: BookieConfig, events: Events) -> None:
        self.is_on = config.persist_bookie_status
        self._runtime = runtime
        self._events = events
        self._paths = [posixpath.join(current(directory), layout.FILE_NAME) for directory in config.ledger_directories]
        self._last: StatusRecord | None = None
        self._lock = asyncio.Lock()

    async def load(self) -> bool:
        """Report whether an operator has set the bookie read-only. Copies that cannot be read are reported and ignored.

        Without the setting no file is read.
        """
        if not self.is_on:
            return False
        records = []
        for path, record in await self._run(self._read):
            if isinstance(record, StatusRecord):
                records.append(record)
            else:
                self._events.warning("status.malformed", path=path, error=record, consequence="the copy is ignored")
        self._last = layout.newest(records)
        return self._last is not None and self._last.is_held

    async def keep(self, mode: BookieMode, *, is_held: bool) -> str | None:
        """Write the mode, unless the files already have it. Return None, or why it could not be written."""
        if not self.is_on:
            return None
        async with self._lock:
            is_read_only = mode is BookieMode.READ_ONLY
            last = self._last
            if last is not None and (last.is_read_only, last.is_held) == (is_read_only, is_held):
                return None
            # If the clock was set back, this copy must not be older than one that could not be replaced.
            written_ms = max(self._runtime.clock.wall_ms(), 0 if last is None else last.written_ms + 1)
            record = StatusRecord(is_read_only, written_ms, is_held)
            try:
                await self._run(lambda: replace_copies(self._runtime.disk, self._paths, record.pack()))
            except (OSError, StorageError) as error:
                self._events.warning(
                    "status.not_kept", error=error, consequence="the mode is lost when the process ends"
                )
                return str(error)
            self._last = record
            return None

    def _read(self) -> list[tuple[str, StatusRecord | Exception]]:
        disk = self._runtime.disk
        records: list[tuple[str, StatusRecord | Exception]] = []
        for path in self._paths:
            try:
                if disk.exists(path):
                    records.append((path, layout.parse(disk.read_bytes(path), path=path)))
            except (CorruptRecord, OSError) as error:
                records.append((path, error))
        return records

    async def _run(self, call: Callable[[], T]) -> T:
        worker = self._runtime.workers.start("status")
        try:
            return await worker.run(call)
        finally:
            worker.close()
