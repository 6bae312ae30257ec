"""The scrub of journals and of the index: compares groups, pages and headers with their checksums.

Both are repaired by existing mechanisms, so their damage is not listed. On the loop's thread; the scrub's worker reads
journals, the readers read index files. Source: storage 2.10, 4.6.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable, Generator

from bookies.errors import BookKeeperError, CorruptRecord, DataUnknown, LedgerUnknownToBookie, ReadFailed
from bookies.runtime.events import Events
from bookies.runtime.ports import Disk, Worker
from bookies.storage.engine import StorageParts
from bookies.storage.index import slot_scans
from bookies.storage.index.catalog_format import trimmed
from bookies.storage.index.index_format import HEADER_SIZE
from bookies.storage.index.index_ledger import Ledger
from bookies.storage.journal import LogMark, journal_format
from bookies.storage.journal.journal import journal_ids
from bookies.storage.journal.page_cache import READ_STEP, DroppedPrefix, SparseReader
from bookies.storage.records import Batch, EndKind
from bookies.storage.scrub.scrub_format import Counts

SAVE_S = 60.0  # between two saves of the progress in the index
STEP = 128 << 10  # bytes of groups checked by one call of the worker

Pay = Callable[[int], Awaitable[None]]


class PassReplaced(BookKeeperError):
    """The pass was replaced by another one that an operator has started."""


class IndexScrub:
    """The comparison of every index file with the catalog. `counts`: of the present pass."""

    def __init__(self, parts: StorageParts, pay: Pay, events: Events) -> None:
        self.counts = Counts()
        self._parts = parts
        self._index = parts.index
        self._pay = pay
        self._events = events
        self._saved = 0.0

    def is_save_due(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now - self._saved < SAVE_S:
            return False
        self._saved = now
        return True

    async def check(self, cursor: int) -> AsyncIterator[tuple[int, list[int]]]:
        """Yield (ledger, the entry logs that its slots name) for each checked ledger above the cursor.

        The index rebuilds a file with a damaged page. A damaged header is rewritten.
        """
        for ledger_id in sorted(known for known in self._index.ledger_ids() if known > cursor):
            before = self._index.damaged_count
            log_ids: list[int] = []
            try:
                ledger = await self._index.load(ledger_id)
                if ledger.path is not None:
                    size, log_ids = await self._index.scan_slots(ledger, slot_scans.size_and_logs)
                    await self._check_header(ledger)
                    self.counts.index_read += size + HEADER_SIZE
                    await self._pay(size + HEADER_SIZE)
            except (LedgerUnknownToBookie, DataUnknown):
                continue  # It has been deleted.
            except ReadFailed as error:
                if self._index.damaged_count == before:
                    self._events.warning("scrub.index_unreadable", ledger=ledger_id, error=error)
            self.counts.indexes_damaged += self._index.damaged_count > before
            yield ledger_id, log_ids

    async def _check_header(self, ledger: Ledger) -> None:
        """Compare key, fence and explicit LAC in the file with those in memory."""
        header, path = ledger.header, ledger.path
        if path is None or ledger.is_header_dirty or ledger.frozen is not None:
            return  # It is about to be written anyway.
        try:
            [loading] = self._parts.readers.load_indexes([(ledger.ledger_id, path, True)])
            loaded = await loading
        except OSError as error:
            raise ReadFailed(f"index file: {error}", ledger_id=ledger.ledger_id) from error
        is_changing = ledger.header is not header or ledger.is_header_dirty or ledger.frozen is not None
        if is_changing or ledger.is_deleted or ledger.path != path:
            return
        if loaded.header is None or trimmed(loaded.header) != trimmed(header):
            self.counts.indexes_damaged += 1
            problem = str(loaded.problem or "it differs from the header in memory")
            self._events.error(
                "scrub.header_damaged",
                path=path,
                ledger=ledger.ledger_id,
                problem=problem,
                consequence="none",
                remedy="the next checkpoint rewrites it",
            )
            self._index.set_header(ledger, header)

    async def check_catalog(self) -> None:
        """Check the catalog's file, and rewrite a damaged one at once. Raises: OSError, StorageError."""
        checkpointer = self._parts.checkpointer
        size, problem = await checkpointer.worker.run(self._index.catalog_writer.file.verify)
        self.counts.index_read += size
        await self._pay(size)
        if problem:
            self.counts.indexes_damaged += 1
            self._events.error(
                "scrub.catalog_damaged", problem=problem, consequence="none", remedy="it is being rewritten"
            )
            await checkpointer.checkpoint()


class JournalScrub:
    """The check of the part of each journal that a replay would read. `counts`: of the present pass."""

    def __init__(self, disk: Disk, parts: StorageParts, worker: Worker, pay: Pay, record_size_max: int) -> None:
        self.counts = Counts()
        self._disk = disk
        self._parts = parts
        self._worker = worker
        self._pay = pay
        self._record_size_max = record_size_max
        self._reading: Generator[int, None, str] | None = None

    def close_files(self) -> None:
        """Close the file of a cancelled check. On the worker."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    async def check(self) -> list[tuple[str, str]]:
        """Return (path, problem) of damaged files that are still needed."""
        damaged: list[tuple[str, str]] = []
        for number, directory in enumerate(self._parts.directories.journals):
            newest = self._parts.journals[number].mark
            for journal_id in await self._worker.run(journal_ids, self._disk, directory):
                if not self._is_needed(number, journal_id) or journal_id > newest.journal_id:
                    continue
                path = posixpath.join(directory, journal_format.file_name(journal_id))
                stop = newest.offset if journal_id == newest.journal_id else None
                problem = await self._check_file(number, journal_id, path, stop)
                # A checkpoint may have released the file, and the journal may have reused it.
                if problem and self._is_needed(number, journal_id):
                    self.counts.journals_damaged += 1
                    damaged.append((path, problem))
        return damaged

    def _is_needed(self, number: int, journal_id: int) -> bool:
        return journal_id >= self._mark(number).journal_id

    def _mark(self, number: int) -> LogMark:
        """Return where a replay would begin: the persisted mark, or the first file if none could be persisted."""
        persisted = self._parts.checkpointer.persisted
        return persisted[number] if persisted else LogMark()

    async def _check_file(self, number: int, journal_id: int, path: str, stop: int | None) -> str:
        mark = self._mark(number)
        start = mark.offset if journal_id == mark.journal_id else 0
        await self._worker.run(self.close_files)
        self._reading = _read(self._disk, path, journal_id, start, stop, self._record_size_max)
        while True:
            size, problem = await self._worker.run(_next, self._reading)
            self.counts.journal_read += size
            if problem is not None:
                return problem
            await self._pay(size)
            if not self._is_needed(number, journal_id):
                return ""


def _next(reading: Generator[int, None, str]) -> tuple[int, str | None]:
    """Return (bytes read, problem, or "" at the end of an intact file, or None before the end).

    Reads several groups, because a call of the worker costs more than the check of a small group.
    """
    size = 0
    try:
        while size < STEP:
            size += next(reading)
    except StopIteration as end:
        return size, end.value
    except FileNotFoundError:
        return size, "the file is missing"
    except OSError as error:
        return size, f"it cannot be read: {error.strerror or error}"
    return size, None


def _read(
    disk: Disk, path: str, journal_id: int, start: int, stop: int | None, record_size_max: int
) -> Generator[int, None, str]:
    """Yield the bytes of each batch up to `stop`; None: to the end. Return the problem, or ""."""
    file = disk.open(path, "r")
    dropped = DroppedPrefix(READ_STEP)
    try:
        size = file.size() if stop is None else stop
        if size > file.size():
            return f"it ends at byte {file.size():,} of {size:,}"
        try:
            version, first = journal_format.parse_header(file.pread(24, 0), size, path=path)
        except CorruptRecord as error:
            return str(error)
        end = None
        for item in journal_format.scan(
            file.pread,
            size,
            max(first, start),
            version,
            is_newest=False,
            journal_id=journal_id,
            record_size_max=record_size_max,
            search=SparseReader(file),
        ):
            if isinstance(item, Batch):
                dropped.grow(file, item.offset)
                yield item.records.size
            else:
                end = item
        assert end is not None
        if end.kind is EndKind.CLEAN and (stop is None or end.offset >= size):
            return ""
        return f"byte {end.offset:,}: {end.problem}"
    finally:
        file.close()
