"""Reads of entries by the loop's thread: from the page cache, or from the device if the system can do that alone.

A read by a worker costs two thread switches, which is more than the read itself if no device is involved. So the loop
tries first; a worker reads, and reports damage, if the system needs a thread or the data is not as expected. Workers
also open the files, because that may wait. Source: storage 5.7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bookies.errors import StorageError
from bookies.runtime.ports import File, ReadEnded
from bookies.storage.entry_log.entry_log import LOG_FILES_MAX, records_at
from bookies.storage.entry_log.log_opener import LogOpener, log_of
from bookies.storage.records.record_scan import Pread

BeginRead = Callable[[File, int, int, ReadEnded], bool]
"""See `ports.Worker.begin_read`."""


class _NotHere(Exception):
    """The read needs these bytes: size, offset."""


class OpenLogs:
    """Reader of entries without a worker. `open_file`: opens a log on a worker; this class closes it. `opener`: of
    sealed entries, with the bookie's keys.
    """

    def __init__(
        self, open_file: Callable[[int], asyncio.Future[File]], begin_read: BeginRead, opener: LogOpener | None = None
    ) -> None:
        self._opener = opener
        self._open_file = open_file
        self._begin_read = begin_read
        self._files: dict[int, File] = {}  # the least recently used first
        self._opening: dict[int, asyncio.Future[File]] = {}

    def read_resident(self, ledger_id: int, first_entry_id: int, slots: bytes, size_max: int) -> bytes | None:
        """Read from memory as `EntryLogReader.read_records` does; return None if that is impossible."""
        file = self._file_of(slots)
        if file is None:
            return None
        try:
            return self._records(_pread_of(file), file, ledger_id, first_entry_id, slots, size_max)
        except (_NotHere, OSError, StorageError):
            return None

    async def read(self, ledger_id: int, first_entry_id: int, slots: bytes, size_max: int) -> bytes | None:
        """Read from the device as `EntryLogReader.read_records` does; return None if a worker has to read."""
        file = self._file_of(slots)
        pieces: dict[tuple[int, int], bytes] = {}

        def pread(size: int, offset: int) -> bytes:
            data = pieces.get((size, offset))
            if data is None:
                raise _NotHere(size, offset)
            return data

        while file is not None:
            try:
                return self._records(pread, file, ledger_id, first_entry_id, slots, size_max)
            except _NotHere as missing:
                size, offset = missing.args
            except StorageError:
                return None
            # The log may be removed during the read. The bytes are still those of its file.
            data = await self._piece(file, size, offset)
            if data is None:
                return None
            pieces[size, offset] = data
        return None

    def _records(self, pread: Pread, file: File, ledger_id: int, first: int, slots: bytes, size_max: int) -> bytes:
        records = records_at(pread, file.path, ledger_id, first, slots, size_max)
        return records if self._opener is None else self._opener.opened(records, slots, pread, file.path)

    async def _piece(self, file: File, size: int, offset: int) -> bytes | None:
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def ended(data: bytes | None) -> None:
            if not future.done():  # not cancelled
                future.set_result(data)

        return await future if self._begin_read(file, size, offset, ended) else None

    def _file_of(self, slots: bytes) -> File | None:
        """Return the log that the first slot names, now the most recently used; None: it is being opened."""
        log_id = log_of(slots)
        file = self._files.pop(log_id, None)
        if file is None:
            self._open(log_id)
        else:
            self._files[log_id] = file
        return file

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


def _pread_of(file: File) -> Pread:
    def pread(size: int, offset: int) -> bytes:
        data = file.pread_resident(size, offset)
        if data is None:
            raise _NotHere(size, offset)
        return data

    return pread
