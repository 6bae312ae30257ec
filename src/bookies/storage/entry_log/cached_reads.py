"""Reads of entries that are in the page cache, on the loop's thread.

A read by a worker costs two thread switches, which is more than the read itself if no device is involved. So the loop
tries first; a worker reads, and reports damage, if the data is not in memory or not as expected. Workers also open the
files, because that may wait. Source: storage 5.7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bookies.errors import StorageError
from bookies.runtime.ports import File
from bookies.storage.entry_log.entry_log import LOG_FILES_MAX, log_of, records_at


class _NotResident(Exception):
    pass


class ResidentLogs:
    """Reader of resident entries. `open_file`: opens a log on a worker; this class closes it."""

    def __init__(self, open_file: Callable[[int], asyncio.Future[File]]) -> None:
        self._open_file = open_file
        self._files: dict[int, File] = {}  # the least recently used first
        self._opening: dict[int, asyncio.Future[File]] = {}

    def read_records(self, ledger_id: int, first_entry_id: int, slots: bytes, size_max: int) -> bytes | None:
        """Read as `EntryLogReader.read_records` does; return None if a worker has to read."""
        log_id = log_of(slots)
        file = self._files.pop(log_id, None)
        if file is None:
            self._open(log_id)
            return None
        self._files[log_id] = file
        try:
            return records_at(_pread_of(file), file.path, ledger_id, first_entry_id, slots, size_max)
        except (_NotResident, OSError, StorageError):
            return None

    def _open(self, log_id: int) -> None:
        """Open the log on a worker for later reads."""
        if log_id in self._opening:
            return
        self._opening[log_id] = opening = self._open_file(log_id)

        def opened(opening: asyncio.Future[File]) -> None:
            if opening.cancelled() or opening.exception() is not None:
                self._opening.pop(log_id, None)  # the worker's read reports the error
            elif self._opening.get(log_id) is not opening:
                opening.result().close()  # forgotten meanwhile
            else:
                del self._opening[log_id]
                while len(self._files) >= LOG_FILES_MAX:
                    self._files.pop(next(iter(self._files))).close()
                self._files[log_id] = opening.result()

        opening.add_done_callback(opened)

    def forget(self, log_id: int) -> None:
        """Close a log that was removed."""
        self._opening.pop(log_id, None)
        if (file := self._files.pop(log_id, None)) is not None:
            file.close()

    def close(self) -> None:
        self._opening.clear()
        for file in self._files.values():
            file.close()
        self._files.clear()


def _pread_of(file: File) -> Callable[[int, int], bytes]:
    def pread(size: int, offset: int) -> bytes:
        data = file.pread_resident(size, offset)
        if data is None:
            raise _NotResident
        return data

    return pread
