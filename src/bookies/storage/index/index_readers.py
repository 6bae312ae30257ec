"""Workers that read: entries from logs, headers and pages from index files. A ledger always uses the same worker.

Owned by the loop's thread. Each reader is confined to its worker. Threads share only bytes, and files that a worker
opened for the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from bookies.config import BookieConfig
from bookies.errors import CorruptRecord
from bookies.runtime.ports import File, Runtime
from bookies.storage.disks.durable_files import run_last
from bookies.storage.entry_log.entry_log import EntryLogReader
from bookies.storage.entry_log.log_directories import LogDirectories
from bookies.storage.entry_log.log_opener import LogOpener
from bookies.storage.entry_log.open_logs import OpenLogs
from bookies.storage.index.index_files import IndexFiles, LoadedIndex, NewFiles
from bookies.storage.index.index_format import HEADER_SIZE, SLOT_SIZE, STATE_FENCED, STATE_LIMBO, IndexHeader
from bookies.storage.sealing.sealer import Sealer

T = TypeVar("T")
Wanted = tuple[int, str, bool]  # (ledger id, path of its index file, whether the catalog knows all of the file)

# In place of the header of a file that may be another ledger's. Or the record is damaged: then its slot must stay.
OF_ANOTHER_LEDGER = IndexHeader(b"", STATE_FENCED | STATE_LIMBO)


class _Reader:
    def __init__(
        self, runtime: Runtime, logs: LogDirectories, number: int, index: IndexFiles, opener: LogOpener | None
    ) -> None:
        self.worker = runtime.workers.start(f"read-{number}")
        self.logs = EntryLogReader(runtime.disk, logs, opener)
        self.index = index

    def load_indexes(self, wanted: Sequence[Wanted]) -> list[LoadedIndex | Exception]:
        return [
            outcome if is_vouched or isinstance(outcome, Exception) else self._checked(ledger_id, path, outcome)
            for (ledger_id, path, is_vouched), outcome in zip(
                wanted, self.index.load_all([path for _, path, _ in wanted]), strict=True
            )
        ]

    def forget_indexes(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.index.forget(path)

    def _checked(self, ledger_id: int, path: str, loaded: LoadedIndex) -> LoadedIndex:
        """Return what was loaded: as damaged if the last slot names an entry of another ledger. It may dangle."""
        if loaded.last_entry_id < 0:
            return loaded
        owner = self.logs.ids_at(loaded.last_slot)
        if owner in (None, (ledger_id, loaded.last_entry_id)):
            return loaded
        text = f"the slot of entry {loaded.last_entry_id} names entry {owner[1]} of ledger {owner[0]}"
        offset = HEADER_SIZE + SLOT_SIZE * loaded.last_entry_id
        problem = CorruptRecord(text, path=path, offset=offset)
        return replace(loaded, header=OF_ANOTHER_LEDGER, problem=problem)

    def close(self) -> None:
        self.logs.close()
        self.index.close()


class Readers:
    """The read workers. `logs`: the ledger directories. Cancelling a returned future does not stop its read.

    `sealer`: the keys of the bookie, if it has any.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        logs: LogDirectories,
        new_files: NewFiles | None = None,
        sealer: Sealer | None = None,
    ) -> None:
        self.logs = logs
        self._opener = None if sealer is None else LogOpener(sealer)
        new_files = new_files or partial(IndexFiles, runtime.disk, config.index_page_size)
        files_max = max(1, config.open_files_max // config.read_workers)
        self._readers = [
            _Reader(runtime, logs, number, new_files(files_max, "r"), self._opener)
            for number in range(config.read_workers)
        ]
        self.open_logs = OpenLogs(self._open_log, self._readers[0].worker.begin_read, self._opener)

    def _reader_of(self, ledger_id: int) -> _Reader:
        return self._readers[ledger_id % len(self._readers)]

    async def read_records(self, ledger_id: int, first_entry_id: int, slots: bytes, size_max: int) -> bytes:
        """Do `EntryLogReader.read_records`, on the ledger's worker unless the system reads without it."""
        records = await self.open_logs.read(ledger_id, first_entry_id, slots, size_max)
        if records is None:
            reader = self._reader_of(ledger_id)
            records = await reader.worker.run(reader.logs.read_records, ledger_id, first_entry_id, slots, size_max)
        return records

    def _open_log(self, log_id: int) -> asyncio.Future[File]:
        reader = self._reader_of(log_id)
        return reader.worker.run(reader.logs.open_another, log_id)

    def load_indexes(self, wanted: Sequence[Wanted]) -> list[asyncio.Future[LoadedIndex]]:
        """Load index files, with one call of each worker that is needed. For failures see `IndexFiles.load_all`."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[LoadedIndex]] = [loop.create_future() for _ in wanted]
        for number, reader in enumerate(self._readers):
            chosen = [at for at, (ledger_id, *_) in enumerate(wanted) if ledger_id % len(self._readers) == number]
            if chosen:
                loads = reader.worker.run(reader.load_indexes, [wanted[at] for at in chosen])
                loads.add_done_callback(partial(_pass_on, [futures[at] for at in chosen]))
        return futures

    def read_page(self, ledger_id: int, path: str, page: int) -> asyncio.Future[bytes]:
        reader = self._reader_of(ledger_id)
        return reader.worker.run(reader.index.read_page, path, page)

    def scan_slots(
        self,
        ledger_id: int,
        path: str | None,
        newer: dict[int, bytes],
        pages: Sequence[int],
        is_right: Callable[[int, bytes], bool],
        visit: Callable[..., T],
        *arguments: object,
    ) -> asyncio.Future[T]:
        """Run `IndexFiles.scan_slots` on the ledger's worker."""
        reader = self._reader_of(ledger_id)
        return reader.worker.run(reader.index.scan_slots, path, newer, pages, is_right, visit, *arguments)

    def forget_indexes(self, paths: Sequence[tuple[int, str]]) -> None:
        """Close the index files of these ledgers, at paths that now name another file or none."""
        for number, reader in enumerate(self._readers):
            own = [path for ledger_id, path in paths if ledger_id % len(self._readers) == number]
            if own:
                reader.worker.run(reader.forget_indexes, own)

    async def forget_log(self, log_id: int) -> None:
        """Close an entry log that was removed, in every reader."""
        self.open_logs.forget(log_id)
        for reader in self._readers:
            await reader.worker.run(reader.logs.forget, log_id)
        if self._opener is not None:
            self._opener.forget(log_id)

    def close(self) -> None:
        """Finish queued work, close the files and end the workers. Blocks."""
        self.open_logs.close()
        for reader in self._readers:
            run_last(reader.worker, reader.close)


def _pass_on(
    futures: Sequence[asyncio.Future[LoadedIndex]], loads: asyncio.Future[list[LoadedIndex | Exception]]
) -> None:
    """Give each future its outcome, or the failure of the call itself."""
    failure = None if loads.cancelled() else loads.exception()
    outcomes = [failure] * len(futures) if loads.cancelled() or failure is not None else loads.result()
    for future, outcome in zip(futures, outcomes, strict=True):
        if future.done():
            continue
        if outcome is None:
            future.cancel()
        elif isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
