"""Index files made again from the entry logs, for ledgers whose file is damaged or gone, while everything is served.

One pass over all logs for all ledgers that wait. Ledgers maps are not asked which logs to read: they have no checksum.
Of copies of an entry the one behind counts, in the order of log ids; a slot set meanwhile, by a flush, counts more.

What an unreadable part of a log may have held is not known, so ledgers rebuilt then stay uncertain (limbo). But for
what a power failure has torn, which was not synced: that does not count, as the journal has had it (`torn_logs`).

Source: storage 3.5, 4.6, 10.2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bookies.config import BookieConfig
from bookies.errors import BookKeeperError, CorruptRecord, LedgerUnknownToBookie
from bookies.runtime.events import Events
from bookies.runtime.ports import Disk, Runtime
from bookies.storage.disks.durable_files import run_last
from bookies.storage.engine.log_pieces import pieces_of
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.entry_log.entry_log import greatest_log_id
from bookies.storage.entry_log.entry_log_format import LOG_ID_MAX
from bookies.storage.entry_log.log_usage import find_logs
from bookies.storage.index import LedgerIndex
from bookies.storage.index.catalog_format import Known, checker
from bookies.storage.index.index_files import IndexFiles
from bookies.storage.index.index_format import iterate_slots, slots_per_page
from bookies.storage.records import Batch, EndKind


def ledgers_in_logs(disk: Disk, directories: Sequence[str]) -> list[int]:
    """Ledgers that were here once, ascending, says the map of each closed log; others are read from end to end.

    Raises: OSError.
    """
    found: set[int] = set()
    for path in find_logs(disk, directories).values():
        file = disk.open(path, "r")
        try:
            ledgers_map = layout.read_ledgers_map(file.pread, file.size())
            if ledgers_map is not None:
                found.update(ledgers_map)
                continue
            for item in layout.scan(file.pread, file.size()):
                if isinstance(item, Batch):
                    found.update(piece.ledger_id for piece in pieces_of(item))
        finally:
            file.close()
    return sorted(found)


@dataclass
class Found:
    """Of one ledger: entry id to location. `entries`: in the logs.

    `kept`: slots of the old file. Where no log has the entry they lead nowhere, and say that it was here.
    `is_whole`: the old file is exactly what was written, so nothing but `kept` is needed.
    `doubted`: slots of pages that are not what was written. They count like that only if their log cannot be read.
    """

    entries: dict[int, int] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    doubted: dict[int, int] = field(default_factory=dict)
    is_whole: bool = False


def entries_of(
    disk: Disk, log_id: int, path: str, ledger_ids: Sequence[int], size_max: int, end: int | None = None
) -> Iterator[object]:
    """For each piece of a log a list of (ledger id, entry id, location); at last whether it was read to its end.

    `end`: what is behind does not count. Blocks, a piece at a time.
    """
    wanted = frozenset(ledger_ids)
    file = disk.open(path, "r")
    try:
        size = file.size()
        is_whole = _is_whole(file.pread(layout.HEADER_SIZE, 0), size) if end is None else size >= end
        for item in layout.scan(file.pread, size if end is None else min(size, end), record_size_max=size_max):
            if isinstance(item, Batch):
                starts = item.records.starts
                yield [
                    (ledger_id, entry_id, layout.location(log_id, item.offset + starts[index] + 4))
                    for index, (ledger_id, entry_id) in enumerate(item.ids)
                    if ledger_id in wanted
                ]
            else:
                is_whole = is_whole and item.kind is not EndKind.CORRUPT
        yield is_whole
    finally:
        file.close()


def _is_whole(first: bytes, size: int) -> bool:
    """Whether a closed log is as long as its header says."""
    try:
        header = layout.parse_header(first)
    except CorruptRecord:
        return True  # Records do not depend on it.
    return header is None or header.map_offset < size


class Rebuilder:
    """Owned by the loop's thread; reading is done by a worker of its own.

    `logs_lock`: held while entry logs must not go, because slots that are found in them are about to be set.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        index: LedgerIndex,
        directories: Sequence[str],
        logs_lock: asyncio.Lock,
    ) -> None:
        self._logs_lock = logs_lock
        self._disk = runtime.disk
        self._index = index
        self._directories = list(directories)
        self._page_size = config.index_page_size
        self._record_size_max = config.frame_size_max + 64 * 1024
        self._worker = runtime.workers.start("index-rebuild")
        self._events = Events("storage.rebuild", runtime.clock)
        self._is_busy = False
        self._ended = asyncio.Event()
        self.count = 0  # of ledgers rebuilt

    async def wait_idle(self) -> None:
        """Return when no ledger waits for being rebuilt."""
        while self._is_busy or self._index.rebuild_wanted.is_set():
            self._ended.clear()
            await self._ended.wait()

    async def run(self) -> None:
        """Rebuild whatever is wanted, for ever."""
        while True:
            await self._index.rebuild_wanted.wait()
            self._is_busy = True
            try:
                await self._rebuild()
            except (OSError, BookKeeperError) as error:
                # Those ledgers stay uncertain; the next start tries again.
                self._events.error("storage.rebuild_failed", error=error)
            finally:
                self._is_busy = False
                self._ended.set()

    async def _rebuild(self) -> None:
        wanted: dict[int, Found] = {}
        for ledger_id in self._index.take_rebuilds():
            try:
                await self._index.load(ledger_id)
            except LedgerUnknownToBookie:
                continue  # It was deleted meanwhile.
            except BookKeeperError as error:
                self._events.error("storage.rebuild_failed", ledger=ledger_id, error=error)
            else:
                wanted[ledger_id] = Found()
        wanted |= {ledger_id: Found() for ledger_id in self._index.take_rebuilds()}
        if not wanted:
            return
        self._events.info("storage.rebuild_begins", ledgers=len(wanted))
        async with self._logs_lock:
            await self._rebuild_of(wanted)

    async def _rebuild_of(self, wanted: dict[int, Found]) -> None:
        for ledger_id in list(wanted):
            if not self._index.is_known(ledger_id):
                del wanted[ledger_id]
                continue
            path, known = self._index.file_of(ledger_id)
            await self._worker.run(self._read_old, path, known, wanted[ledger_id])
        for ledger_id in [ledger_id for ledger_id, found in wanted.items() if found.is_whole]:
            await self._finish(ledger_id, wanted.pop(ledger_id), set(), LOG_ID_MAX, is_complete=True)
        if not wanted:
            return
        readable: set[int] = set()
        logs, is_complete = await self._worker.run(self._find_logs)
        id_max = await self._worker.run(greatest_log_id, self._disk, self._directories) if is_complete else LOG_ID_MAX
        for log_id, path in logs.items():
            try:
                is_whole = await self._read_log(log_id, path, wanted)
            except OSError as error:
                self._events.error("storage.log_unreadable", path=path, error=error)
                is_whole = False
            if is_whole:
                readable.add(log_id)
            else:
                is_complete = False
        for ledger_id, found in wanted.items():
            await self._finish(ledger_id, found, readable, id_max, is_complete=is_complete)

    def _find_logs(self) -> tuple[dict[int, str], bool]:
        """On the worker: entry logs by id, and whether every directory could be looked at."""
        found: dict[int, str] = {}
        is_complete = True
        for directory in self._directories:
            try:
                found |= find_logs(self._disk, [directory])
            except OSError as error:
                self._events.error("storage.directory_unreadable", path=directory, error=error)
                is_complete = False
        return {log_id: found[log_id] for log_id in sorted(found)}, is_complete

    def _read_old(self, path: str, known: Known | None, found: Found) -> None:
        """On the worker. What is left of the old file may name entries in logs that cannot be read now."""
        right: set[int] = set()
        files = IndexFiles(self._disk, self._page_size, 1, "r")
        per_page = slots_per_page(self._page_size)
        try:
            is_right = checker(known, self._page_size)
            for page, data, was_right in files.slots(path, is_right):
                (found.kept if was_right else found.doubted).update(iterate_slots(data, page * per_page))
                if was_right:
                    right.add(page)
            found.is_whole = known is not None and known.is_exactly(right, self._page_size)
        except OSError as error:
            self._events.error("storage.index_unreadable", path=path, error=error)
        finally:
            files.close()

    async def _read_log(self, log_id: int, path: str, wanted: dict[int, Found]) -> bool:
        """Whether all of it could be read."""
        end = self._index.catalog.torn.get(log_id)
        if end is not None and end <= layout.HEADER_SIZE:
            return True  # Nothing in it counts.
        pieces = entries_of(self._disk, log_id, path, list(wanted), self._record_size_max, end)
        while not isinstance(piece := await self._worker.run(next, pieces), bool):
            assert isinstance(piece, list)
            for ledger_id, entry_id, location in piece:
                wanted[ledger_id].entries[entry_id] = location
        await self._worker.run(next, pieces, None)  # which closes the file
        return piece

    async def _finish(
        self, ledger_id: int, found: Found, readable: set[int], log_id_max: int, *, is_complete: bool
    ) -> None:
        """Of a page that is not what was written, slots count that may name what cannot be read now."""
        doubted = {}
        for entry_id, location in found.doubted.items():
            log_id, offset = layout.split_location(location)
            if log_id not in readable and log_id <= log_id_max and offset > layout.HEADER_SIZE:
                doubted[entry_id] = location
        entries = doubted | found.kept | found.entries
        try:
            count = await self._index.rebuilt(ledger_id, entries, is_complete=is_complete)
        except LedgerUnknownToBookie:
            return  # It was deleted meanwhile.
        self.count += 1
        self._events.info("storage.index_rebuilt", ledger=ledger_id, entries=count, is_complete=is_complete)

    def close(self) -> None:
        """End the worker."""
        run_last(self._worker, lambda: None)
