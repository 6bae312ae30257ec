"""Rebuilds index files from the entry logs, for ledgers whose file is damaged or lost, while the bookie serves.

One pass reads all logs for all waiting ledgers. It does not use ledgers maps to choose logs, because maps have no
checksum. Of several copies of an entry the last one counts, in the order of log ids; a slot that a flush sets meanwhile
has precedence.

The content of an unreadable part of a log is unknown, so ledgers rebuilt then stay uncertain (limbo). If the log could
not be read at all (too many open files, an I/O error), their headers keep STATE_REBUILDING too, until they are whole or
all logs were read. So the rebuild is repeated as soon as one of these logs can be read, and by every start. Parts that
a power failure has torn were not synced and do not count, because the journal had their entries (`torn_logs`).

Source: storage 3.5, 4.6, 10.2.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct, field

from bookies.config import BookieConfig
from bookies.errors import BookKeeperError, CorruptRecord, LedgerUnknownToBookie
from bookies.runtime.events import Events
from bookies.runtime.ports import Disk, Runtime
from bookies.storage.disks.durable_files import run_last
from bookies.storage.engine.log_pieces import pieces_of
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.entry_log.entry_log import greatest_log_id
from bookies.storage.entry_log.entry_log_format import LOG_ID_MAX
from bookies.storage.entry_log.log_directories import LogDirectories
from bookies.storage.entry_log.log_usage import find_logs
from bookies.storage.index import LedgerIndex
from bookies.storage.index.catalog_format import Known, checker
from bookies.storage.index.index_format import (
    ENTRY_ID_MAX,
    SLOT_SIZE,
    STATE_FENCED,
    STATE_LIMBO,
    STATE_REBUILDING,
    iterate_slots,
    slots_per_page,
)
from bookies.storage.index.index_format import HEADER_SIZE as INDEX_HEADER_SIZE
from bookies.storage.index.index_ledger import Ledger
from bookies.storage.index.rebuild_states import RebuildEvent, RebuildState
from bookies.storage.index.slots import pieces
from bookies.storage.records import Batch, EndKind
from bookies.storage.records.record_scan import CHUNK_SIZE

AGAIN_S, AGAIN_S_MAX = 60.0, 7680.0  # before logs that could not be read are tried again; doubled each time


def ledgers_in_logs(disk: Disk, logs: LogDirectories) -> list[int]:
    """Return the ids of all ledgers with entries in their logs, ascending. Raises: OSError.

    Uses the map of each closed log, and scans logs without a map.
    """
    ledger_ids: set[int] = set()
    for log_id, path in find_logs(disk, logs).items():
        file = disk.open(path, "r")
        named: set[int] = set()
        try:
            ledgers_map = layout.read_ledgers_map(file.pread, file.size())
            if ledgers_map is not None:
                named.update(ledgers_map)
            for item in layout.scan(file.pread, file.size()) if ledgers_map is None else ():
                if isinstance(item, Batch):
                    named.update(piece.ledger_id for piece in pieces_of(item))
        finally:
            file.close()
        ledger_ids.update(ledger_id for ledger_id in named if logs.holds(log_id, ledger_id))
    return sorted(ledger_ids)


def without_slots(disk: Disk, paths: Mapping[int, str]) -> list[int]:
    """Return the ledgers whose index file ends with its header, or earlier. Raises: OSError."""
    empty: list[int] = []
    for ledger_id, path in paths.items():
        file = disk.open(path, "r")
        if file.size() <= INDEX_HEADER_SIZE:
            empty.append(ledger_id)
        file.close()
    return empty


class LedgerSlots(Struct):
    """Entry id -> location of one ledger. `entries`: from the logs.

    `kept`: valid slots of the old file. If no log has the entry, the slot dangles and records that the entry existed.
    `is_whole`: the old file is exactly what was written, so `kept` is sufficient.
    `doubted`: slots of changed pages. They count only if their log cannot be read.
    """

    entries: dict[int, int] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    doubted: dict[int, int] = field(default_factory=dict)
    is_whole: bool = False


def entries_of(
    disk: Disk,
    path: str,
    ledger_ids: Sequence[int],
    size_max: int,
    end: int | None = None,
    *,
    may_be_empty: bool = True,
) -> Iterator[object]:
    """Yield lists of (ledger id, entry id, offset of its body), and at last whether all of the log was readable.

    `end`: file offset from which on the log does not count. `may_be_empty`: a crash may have left the log without a
    header. Blocks, a piece at a time.
    """
    wanted = frozenset(ledger_ids)
    file = disk.open(path, "r")
    try:
        size = file.size()
        is_whole = _is_whole(file.pread(layout.HEADER_SIZE, 0), size) if end is None else size >= end
        is_whole = is_whole and (may_be_empty or size >= layout.HEADER_SIZE)
        for item in layout.scan(file.pread, size if end is None else min(size, end), record_size_max=size_max):
            if isinstance(item, Batch):
                starts = item.records.starts
                entries = [
                    (ledger_id, entry_id, item.offset + starts[index] + 4)
                    for index, (ledger_id, entry_id) in enumerate(item.ids)
                    if ledger_id in wanted
                ]
                if any(entry_id > ENTRY_ID_MAX for _, entry_id, _ in entries):
                    is_whole = False  # a damaged record, which was of another entry
                    entries = [entry for entry in entries if entry[1] <= ENTRY_ID_MAX]
                yield entries
            else:
                is_whole = is_whole and item.kind is not EndKind.CORRUPT
        yield is_whole
    finally:
        file.close()


def named_logs(wanted: Mapping[int, LedgerSlots]) -> dict[int, int]:
    """Return log -> greatest offset, for the logs that slots of the old files name. Blocks: there may be millions."""
    greatest: dict[int, int] = {}
    for slots in wanted.values():
        for location in chain(slots.doubted.values(), slots.kept.values()):
            log_id, offset = layout.split_location(location)
            greatest[log_id] = max(offset, greatest.get(log_id, 0))
    return greatest


def _is_whole(first: bytes, size: int) -> bool:
    """Report whether a closed log is as long as its header claims."""
    try:
        header = layout.parse_header(first)
    except CorruptRecord:
        return True  # records do not depend on the header
    return header is None or header.map_offset < size


class LogsRead(enum.Enum):
    """The part that a pass has read of the logs that may have entries of a ledger."""

    ALL = "all"  # so entries without a slot were never stored here
    DAMAGED = "damaged"  # all that can be read; a later pass would find no more
    SOME = "some"  # a log could not be read: a later pass may find more


class Rebuilder:
    """Rebuilds index files. Owned by the loop's thread; has its own worker for reads.

    `logs_lock`: held while entry logs are deleted, and while none may be, because slots that name them are about to be
    set.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        index: LedgerIndex,
        logs: LogDirectories,
    ) -> None:
        self.logs_lock = asyncio.Lock()
        self._disk = runtime.disk
        self._index = index
        self._logs = logs
        self._page_size = config.index_page_size
        self._record_size_max = config.frame_size_max + 64 * 1024
        self._worker = runtime.workers.start("index-rebuild")
        self._events = Events("storage.rebuild", runtime.clock)
        self._is_busy = False
        self._ended = asyncio.Event()
        self._unread: dict[int, None] = {}  # ledgers of which a log could not be read
        self._unreadable: list[str] = []  # logs and directories that the last pass could not read
        self._again_s = AGAIN_S
        self.count = 0  # ledgers rebuilt

    async def wait_idle(self) -> None:
        """Wait until no ledger is waiting to be rebuilt."""
        while self._is_busy or self._index.rebuilds.wanted.is_set():
            self._ended.clear()
            await self._ended.wait()

    async def run(self) -> None:
        """Rebuild index files on request until cancelled."""
        while True:
            await self._wait()
            self._is_busy = True
            try:
                await self._rebuild()
            except (OSError, BookKeeperError) as error:
                # These ledgers stay uncertain; a later pass retries, and so does the next start.
                self._unreadable = []  # so that a later pass does not wait for them
                self._events.error("storage.rebuild_failed", error=error)
            finally:
                self._is_busy = False
                self._ended.set()

    async def _wait(self) -> None:
        """Wait for a request, or until one of the logs that could not be read can be."""
        wanted = self._index.rebuilds.wanted
        while not wanted.is_set():
            self._unread = {ledger_id: None for ledger_id in self._unread if self._lacks_logs(ledger_id)}
            if not self._unread:
                self._again_s = AGAIN_S
            try:
                async with asyncio.timeout(self._again_s if self._unread else None):
                    await wanted.wait()
            except TimeoutError:
                self._again_s = min(2 * self._again_s, AGAIN_S_MAX)
                # Only these are read before: a pass over all logs that finds nothing more would cost hours of reading.
                if await self._can_read_more():
                    for ledger_id in self._unread:
                        self._index.rebuilds.want(ledger_id)

    def _lacks_logs(self, ledger_id: int) -> bool:
        """Report whether logs have to be read for a ledger. One that is not in memory is rebuilt when it is loaded."""
        ledger = self._index.get(ledger_id)
        return ledger is not None and ledger.rebuild in (RebuildState.DOUBTED, RebuildState.PARTIAL)

    async def _can_read_more(self) -> bool:
        """Report whether a log or directory can be read that could not be in the last pass."""
        for path in self._unreadable:
            pieces = self._read_again(path)
            while (is_readable := await self._worker.run(next, pieces)) is None:
                pass
            if is_readable:
                return True
        return not self._unreadable

    def _read_again(self, path: str) -> Iterator[bool | None]:
        """Read a log, a piece at a time, or list a directory; yield at last whether that was possible."""
        is_directory = path in self._logs.paths
        try:
            if is_directory:
                self._disk.list(path)
            else:
                file = self._disk.open(path, "r")
                try:
                    for at in range(0, file.size(), CHUNK_SIZE):
                        file.pread(CHUNK_SIZE, at)
                        yield None
                finally:
                    file.close()
        except OSError as error:
            yield isinstance(error, FileNotFoundError) and not is_directory  # A log that is gone hides no entry.
        else:
            yield True

    async def _rebuild(self) -> None:
        wanted: dict[int, LedgerSlots] = {}
        for ledger_id in self._index.rebuilds.take():
            try:
                await self._index.load(ledger_id)
            except LedgerUnknownToBookie:
                continue  # deleted meanwhile
            except BookKeeperError as error:
                self._events.error("storage.rebuild_failed", ledger=ledger_id, error=error)
            else:
                wanted[ledger_id] = LedgerSlots()
        wanted |= {ledger_id: LedgerSlots() for ledger_id in self._index.rebuilds.take()}
        if not wanted:
            return
        self._events.info("storage.rebuild_begins", ledgers=len(wanted))
        self._unread |= dict.fromkeys(wanted)  # until it is known better, also if an error ends the pass
        async with self.logs_lock:
            await self._rebuild_of(wanted)

    async def _rebuild_of(self, wanted: dict[int, LedgerSlots]) -> None:
        for ledger_id in list(wanted):
            if not self._index.is_known(ledger_id):
                del wanted[ledger_id]
                continue
            path, known = self._index.places.last_known(ledger_id), self._index.catalog.ledgers.get(ledger_id)
            known = known.copy() if known is not None else None  # what the file should hold
            await self._worker.run(self._read_old, path, known, wanted[ledger_id])
        for ledger_id in [number for number in wanted if wanted[number].is_whole]:
            await self._finish(ledger_id, wanted.pop(ledger_id), set(), LOG_ID_MAX, LogsRead.ALL)
        if not wanted:
            return
        named = await self._worker.run(named_logs, wanted)
        # No durable slot names a torn part. So the page is damaged or, if the catalog lost its last records, the log
        # was synced: then it may have the only copy of an entry, because a compaction has deleted its source.
        catalog = self._index.catalog
        catalog.note_torn({log_id: end for log_id, end in catalog.torn.items() if named.get(log_id, -1) < end})
        readable: set[int] = set()
        self._unreadable = []
        logs, failed = await self._worker.run(self._find_logs)  # `failed`: spaces whose logs may be readable later
        damaged: set[int] = set()
        id_max = LOG_ID_MAX if failed else await self._worker.run(greatest_log_id, self._disk, self._logs)
        for log_id, path in logs.items():
            try:
                if await self._read_log(log_id, path, wanted, is_named=log_id in named):
                    readable.add(log_id)
                else:
                    damaged.add(log_id % self._logs.count)
            except OSError as error:
                self._events.error("storage.log_unreadable", path=path, error=error)
                self._unreadable.append(path)
                failed.add(log_id % self._logs.count)
        for ledger_id, ledger_slots in wanted.items():
            space = self._logs.space_of(ledger_id)
            read = LogsRead.SOME if space in failed else LogsRead.DAMAGED if space in damaged else LogsRead.ALL
            await self._finish(ledger_id, ledger_slots, readable, id_max, read)

    def _find_logs(self) -> tuple[dict[int, str], set[int]]:
        """Return (entry logs by id, the spaces that could not be listed completely). Runs on the worker."""
        logs: dict[int, str] = {}
        lacking: set[int] = set()
        for number, directory in enumerate(self._logs.paths):
            try:
                logs |= find_logs(self._disk, self._logs, [directory])
            except OSError as error:
                self._events.error("storage.directory_unreadable", path=directory, error=error)
                self._unreadable.append(directory)
                lacking.add(number if self._logs.is_split else 0)
        return {log_id: logs[log_id] for log_id in sorted(logs)}, lacking

    def _read_old(self, path: str, known: Known | None, ledger_slots: LedgerSlots) -> None:
        """Read the slots of the old file, which may name entries in unreadable logs. Runs on the worker."""
        right: set[int] = set()
        files = self._index.places.new_files(1, "r")
        per_page = slots_per_page(self._page_size)
        try:
            is_right = checker(known, self._page_size)
            for page, data, was_right in files.slots(path, is_right):
                (ledger_slots.kept if was_right else ledger_slots.doubted).update(iterate_slots(data, page * per_page))
                if was_right:
                    right.add(page)
            ledger_slots.is_whole = known is not None and known.is_exactly(right, self._page_size)
        except OSError as error:
            self._events.error("storage.index_unreadable", path=path, error=error)
        finally:
            files.close()

    async def _read_log(self, log_id: int, path: str, wanted: dict[int, LedgerSlots], *, is_named: bool) -> bool:
        """Collect the slots of a log; return whether all of it was readable.

        `is_named`: slots name the log. It was synced before them, so it had a header.
        """
        catalog = self._index.catalog
        end = catalog.torn.get(log_id)
        if end is not None and end <= layout.HEADER_SIZE:
            return True  # none of its entries counts
        is_synced = catalog.is_trusted and catalog.synced is not None and log_id <= catalog.synced.greatest_id
        may_be_empty = not is_synced and not is_named
        own = [ledger_id for ledger_id in wanted if self._logs.holds(log_id, ledger_id)]
        pieces = entries_of(self._disk, path, own, self._record_size_max, end, may_be_empty=may_be_empty)
        while not isinstance(piece := await self._worker.run(next, pieces), bool):
            assert isinstance(piece, list)
            for ledger_id, entry_id, offset in piece:
                wanted[ledger_id].entries[entry_id] = layout.location(log_id, offset)
        await self._worker.run(next, pieces, None)  # closes the file
        return piece

    async def _finish(
        self, ledger_id: int, ledger_slots: LedgerSlots, readable: set[int], log_id_max: int, read: LogsRead
    ) -> None:
        """Write the index file of a ledger. Slots of changed pages count only if their log is unreadable."""
        doubted = {}
        for entry_id, location in ledger_slots.doubted.items():
            log_id, offset = layout.split_location(location)
            if log_id not in readable and log_id <= log_id_max and offset > layout.HEADER_SIZE:
                doubted[entry_id] = location
        entries = doubted | ledger_slots.kept | ledger_slots.entries
        try:
            count = await self._set_missing(ledger_id, entries, read)
        except LedgerUnknownToBookie:
            return  # deleted meanwhile
        if read is not LogsRead.SOME:
            self._unread.pop(ledger_id, None)
        self.count += 1
        is_complete = read is LogsRead.ALL
        self._events.info("storage.index_rebuilt", ledger=ledger_id, entries=count, is_complete=is_complete)

    async def _set_missing(self, ledger_id: int, entries: dict[int, int], read: LogsRead) -> int:
        """Set the slots (entry id to location) that are missing. Return how many.

        `read`: unless it is `ALL`, the ledger stays uncertain: until it has been fetched or, while a directory has
        failed, until a start that finds it again.

        Raises: OSError; LedgerUnknownToBookie.
        """
        ledger = await self._index.load(ledger_id)
        with ledger:
            return await self._set_missing_of(ledger, entries, read)

    async def _set_missing_of(self, ledger: Ledger, entries: dict[int, int], read: LogsRead) -> int:
        index, ledger_id = self._index, ledger.ledger_id
        index.places.abandoned.pop(ledger_id, None)
        entry_ids = sorted(entries)
        missing: list[int] = []
        known = index.catalog.ledgers.get(ledger_id)
        is_vouched = ledger.path is None or (known is not None and not known.is_partial)
        for first, start, count in pieces(entry_ids, index.slots_per_page):
            present = await index.slots(ledger, first, count)
            if not is_vouched and first // index.slots_per_page in ledger.pages:
                index.change(ledger, first // index.slots_per_page)  # The write gives it a checksum.
            for number in range(count):
                slot = present[number * SLOT_SIZE : (number + 1) * SLOT_SIZE]
                if not slot.strip(b"\0"):
                    missing.append(entry_ids[start + number])
        if missing:
            slots = b"".join(entries[entry_id].to_bytes(SLOT_SIZE, "big", signed=True) for entry_id in missing)
            await index.install(ledger_id, missing, slots)
            ledger.is_lac_known = False  # The last entry may be one of them.
        has_failed_directory = bool(index.places.health.failed)
        if read is LogsRead.SOME or (read is LogsRead.DAMAGED and has_failed_directory):
            was_doubted = ledger.lacks_entries
            ledger.take(RebuildEvent.PARTLY_READ)
            if was_doubted:
                # The header keeps STATE_REBUILDING, so that the next start reads the logs again.
                index.catalog.limbo.doubt(ledger_id)
                if not has_failed_directory:
                    index.set_header(ledger, ledger.header.with_state(STATE_LIMBO | STATE_FENCED))
            return len(missing)
        ledger.take(RebuildEvent.READ)
        header = ledger.header.without_state(STATE_REBUILDING)
        if read is LogsRead.DAMAGED:
            index.catalog.limbo.doubt(ledger_id)
            header = header.with_state(STATE_LIMBO | STATE_FENCED)
        index.set_header(ledger, header)
        return len(missing)

    def close(self) -> None:
        """Close the worker."""
        run_last(self._worker, lambda: None)
