"""Compaction: what lives in a sealed entry log is copied elsewhere, and the log goes.

An entry lives if its index slot names exactly this log and this offset, so superseded copies are dropped and old ones
cannot come back (F-32). Two ways:

*Transactional.* Source `s`, output `n`, a log of its own.

    n.log.compacting        being written
    n.log.s.compacted       complete and durable; from here on it only goes forward
    n.log                   a second name of it, durable before any slot names it
                            slots move from s to n; the index is made durable; then n.log.s.compacted and s.log go

At the start of each run an output that is not complete is dropped, and one that is complete is taken further: slots
are set by reading the output, which is what the first attempt does too. The state of a compaction is in the names.

*Plain.* Live entries are appended to the log of normal traffic, and their slots move.

Invariants
- Copies durable, then the index, then the source away (R-18), with the directories synced in between (F-34).
- A slot moves only if it names the source at that moment, and not at all if its ledger was deleted (R-19). Nothing ever
  sets a slot to a sealed log, so that is as exact as comparing offsets.
- The source goes only if it was read to a clean end, and then no slot of a ledger in its map names it (F-14).
- Only logs that a checkpoint has covered are sources.
- A ledger that the index does not know is dropped only if it was deleted here, or the metadata wants nothing of it.

On the loop's thread; files are read and written by the collector's worker. Source: storage 7.5, 7.6.
"""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from bookies.errors import BookKeeperError, CorruptRecord, StorageError
from bookies.runtime.events import Events
from bookies.runtime.ports import Buffer, Disk, Runtime, Worker
from bookies.storage.cache.write_cache import Run
from bookies.storage.disks.durable_files import remove, sync_all, sync_data, sync_directory, unlink_all
from bookies.storage.disks.rate_limit import DiskRateLimit
from bookies.storage.engine import StorageParts
from bookies.storage.engine.log_pieces import Piece, current_slots, matching_parts, pieces_of, slots_of
from bookies.storage.entry_log import LogUsage
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.entry_log.log_usage import read_map
from bookies.storage.gc.sealed_logs import SealedLogs
from bookies.storage.index.log_references import greatest_offsets
from bookies.storage.records import Batch, EndKind
from bookies.storage.records.record_scan import ScanEnd

SYNC_STEP = 8 << 20  # bytes of an output after which it is synced anyway


class LogReading:
    """A sealed log, a batch at a time. Blocks."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._file = disk.open(path, "r")
        self._items: Iterator[Batch | ScanEnd] = layout.scan(self._file.pread, self._file.size())

    def read(self) -> Batch | ScanEnd:
        """The next batch, or how it ended. Raises: OSError."""
        item = next(self._items)
        if isinstance(item, Batch):
            self._file.drop_cache(item.offset, item.records.size)
        return item

    def close(self) -> None:
        self._file.close()


class OutputLog:
    """The log that a transactional compaction writes. Blocks. Raises: OSError, DiskFull; SyncFailed, which is final."""

    def __init__(self, disk: Disk, directory: str, log_id: int, source_id: int) -> None:
        self.log_id = log_id
        self.directory = directory
        self.sizes: dict[int, int] = {}  # ledger id -> bytes
        self._disk = disk
        self._path = posixpath.join(directory, f"{layout.file_name(log_id)}.compacting")
        self._done = posixpath.join(directory, compacted_name(log_id, source_id))
        self._file = disk.open(self._path, "x+")
        self._position = self._synced = layout.HEADER_SIZE
        self._file.pwrite(layout.pack_header(), 0)

    def append(self, buffers: Sequence[Buffer], sizes: Iterable[tuple[int, int]]) -> None:
        """Write records; (ledger id, bytes) of them."""
        self._file.pwritev(buffers, self._position)
        for ledger_id, size in sizes:
            self.sizes[ledger_id] = self.sizes.get(ledger_id, 0) + size
            self._position += size
        if self._position - self._synced >= SYNC_STEP:
            sync_data(self._file)
            self._synced = self._position

    def finish(self) -> None:
        """Add the ledgers map, make everything durable, and give it the name of a complete output."""
        self._file.pwrite(layout.pack_ledgers_map(self.sizes.items()), self._position)
        self._file.pwrite(layout.pack_map_fields(self._position, len(self.sizes)), layout.MAP_FIELDS_OFFSET)
        sync_all(self._file)
        self._file.drop_cache(0, self._position)
        self._file.close()
        self._disk.link(self._path, self._done)
        sync_directory(self._disk, self.directory)
        self._disk.unlink(self._path)

    def discard(self) -> None:
        """Nobody needs it."""
        self._file.close()
        remove(self._disk, self._path)

    def close(self) -> None:
        self._file.close()


def compacted_name(log_id: int, source_id: int) -> str:
    """The name of a complete output. All ids are hexadecimal (F-33)."""
    return f"{layout.file_name(log_id)}.{source_id:x}.compacted"


def give_name(disk: Disk, directory: str, log_id: int, source_id: int) -> str:
    """Make a complete output an entry log, durably; its path."""
    path = posixpath.join(directory, layout.file_name(log_id))
    if not disk.exists(path):
        disk.link(posixpath.join(directory, compacted_name(log_id, source_id)), path)
    sync_directory(disk, directory)
    return path


def find_outputs(disk: Disk, directories: Sequence[str]) -> list[tuple[str, int, int | None]]:
    """(directory, output, source) of every compaction that did not get to its end; no source: not complete."""
    found = []
    for directory in directories:
        for name in disk.list(directory):
            if (ids := layout.parse_compacted_name(name)) is not None:
                found.append((directory, *ids))
    return found


class Compactor:
    """Compacts one log at a time. `read_size`, `copied_size`: bytes so far."""

    def __init__(
        self,
        runtime: Runtime,
        parts: StorageParts,
        worker: Worker,
        logs: SealedLogs,
        throttle: DiskRateLimit,
        events: Events,
        is_unwanted: Callable[[int], Awaitable[bool]],
    ) -> None:
        self.compacted_count = 0
        self.copied_size = 0
        self.read_size = 0
        self._disk = runtime.disk
        self._parts = parts
        self._worker = worker
        self._logs = logs
        self._throttle = throttle
        self._events = events
        self._is_unwanted = is_unwanted
        self._unwanted: dict[int, None] = {}  # ledgers of the source of which nothing is wanted for certain
        self._reading: LogReading | None = None
        self._output: OutputLog | None = None

    def close_files(self) -> None:
        """On the worker: a compaction that was broken off leaves its files open until then."""
        for file in (self._reading, self._output):
            if file is not None:
                file.close()
        self._reading = self._output = None

    async def recover(self) -> None:
        """Drop outputs that are not complete, and take the others to their end. Raises: StorageError, OSError."""
        await self._worker.run(self.close_files)
        directories = self._parts.health.healthy(self._parts.directories.ledgers)
        outputs = await self._worker.run(find_outputs, self._disk, directories)
        unfinished = [
            posixpath.join(directory, f"{layout.file_name(log_id)}.compacting")
            for directory, log_id, source_id in outputs
            if source_id is None
        ]
        if unfinished:
            await self._worker.run(unlink_all, self._disk, unfinished)
        for directory, log_id, source_id in outputs:
            if source_id is not None:
                await self._adopt(directory, log_id, source_id)
                await self._remove_source(source_id)
                self._events.info("gc.compaction_recovered", log=f"{source_id:x}", output=f"{log_id:x}")

    async def compact(self, usage: LogUsage, *, is_transactional: bool) -> None:
        """Copy what lives in a log, and remove it. Raises: BookKeeperError, OSError; then the log is still there."""
        sizes = await self._worker.run(read_map, self._disk, usage.path) or {}
        # Of ledgers of the map that have left the books it was proven (`SealedLogs.drop_ledgers`).
        self._unwanted = {each: None for each in sizes if not usage.size_of(each)}
        copy = self._copy_out if is_transactional else self._copy_on
        copied = await copy(usage)
        if await self._remove_source(usage.log_id):
            self.compacted_count += 1
            self.copied_size += copied
            self.read_size += usage.total + (copied if is_transactional else 0)
            self._events.info("gc.log_compacted", log=f"{usage.log_id:x}", bytes=usage.total, copied=copied)

    # -- copying -------------------------------------------------------------------------------------------------
    async def _copy_out(self, usage: LogUsage) -> int:
        """Into an output of its own. Returns how many bytes lived."""
        log_id, directory = await self._parts.checkpointer.allocate_log()
        await self._worker.run(self.close_files)
        self._output = output = await self._worker.run(OutputLog, self._disk, directory, log_id, usage.log_id)
        copied = 0
        try:
            reading = await self._read(usage.path)
            while isinstance(batch := await self._worker.run(reading.read), Batch):
                live = await self._live(usage.log_id, batch)
                if live:
                    starts = batch.records.starts
                    sizes = [(part.ledger_id, starts[part.stop] - starts[part.start]) for part in live]
                    await self._worker.run(output.append, _buffers(batch, live), sizes)
                    await self._pay(sum(size for _, size in sizes))
                    copied += sum(size for _, size in sizes)
                await self._pay(batch.records.size)
            self._check_end(usage, batch)
        except (OSError, BookKeeperError):
            await self._worker.run(output.discard)
            raise
        if not copied:
            await self._worker.run(output.discard)
            return 0
        await self._worker.run(output.finish)
        await self._adopt(directory, log_id, usage.log_id)
        return copied

    async def _copy_on(self, usage: LogUsage) -> int:
        """Into the log of normal traffic. Returns how many bytes lived."""
        copied = 0
        reading = await self._read(usage.path)
        while isinstance(batch := await self._worker.run(reading.read), Batch):
            live = await self._live(usage.log_id, batch)
            runs = [(part.ledger_id, Run(part.entry_ids, batch.records.slice(part.start, part.stop))) for part in live]
            if runs:
                await self._parts.checkpointer.append_entries(runs, usage.log_id)
            size = sum(run.records.size for _, run in runs)
            copied += size
            await self._pay(batch.records.size + size)
        self._check_end(usage, batch)
        await self._parts.checkpointer.write_index()
        return copied

    async def _read(self, path: str) -> LogReading:
        if self._reading is not None:
            await self._worker.run(self._reading.close)
        self._reading = await self._worker.run(LogReading, self._disk, path)
        return self._reading

    def _check_end(self, usage: LogUsage, end: ScanEnd) -> None:
        """Raises CorruptRecord, after the log was set aside, if it was not read to its end."""
        if end.kind is not EndKind.CLEAN:
            self._logs.put_aside(usage.log_id, f"byte {end.offset:,}: {end.problem}")
            raise CorruptRecord(end.problem, path=usage.path, offset=end.offset)

    async def _live(self, log_id: int, batch: Batch) -> list[Piece]:
        """The parts of a batch that the index names. Raises: ReadFailed when it cannot say; StorageError."""
        live: list[Piece] = []
        for piece in pieces_of(batch):
            if self._parts.index.is_known(piece.ledger_id):
                live += matching_parts(
                    piece, slots_of(log_id, batch, piece), await current_slots(self._parts.index, piece)
                )
            elif piece.ledger_id not in self._unwanted:
                await self._check_unwanted(log_id, piece.ledger_id)
        return live

    async def _check_unwanted(self, log_id: int, ledger_id: int) -> None:
        """Raises StorageError, after the log was set aside, if the metadata may want a ledger that only the log has.

        Other such ledgers keep their logs from being chosen; this one is not in the ledgers map, or was lost just now.
        """
        if not self._parts.removals.is_deleted(ledger_id) and not await self._is_unwanted(ledger_id):
            text = f"the index has nothing of ledger {ledger_id}, of which it has entries that the metadata may want"
            self._logs.put_aside(log_id, text)
            raise StorageError(text, ledger_id=ledger_id)
        self._unwanted[ledger_id] = None

    async def _pay(self, size: int) -> None:
        await self._throttle.take(size)
        self._logs.on_progress()

    # -- from the source to the copy -----------------------------------------------------------------------------
    async def _adopt(self, directory: str, log_id: int, source_id: int) -> None:
        """Give a complete output its name, and let the slots name it."""
        path = await self._worker.run(give_name, self._disk, directory, log_id, source_id)
        reading = await self._read(path)
        while isinstance(batch := await self._worker.run(reading.read), Batch):
            for piece in pieces_of(batch):
                await self._move(piece, source_id, slots_of(log_id, batch, piece))
            await self._pay(batch.records.size)
        batch.raise_if_corrupt(path)
        await self._parts.checkpointer.write_index()
        done = posixpath.join(directory, compacted_name(log_id, source_id))
        await self._worker.run(unlink_all, self._disk, [done])

    async def _move(self, piece: Piece, source_id: int, slots: bytes) -> None:
        await self._parts.index.move(piece.ledger_id, piece.first, source_id, slots)
        if self._parts.index.is_pressed:
            await self._parts.checkpointer.write_index()

    async def _remove_source(self, log_id: int) -> bool:
        """Remove a log whose entries have moved; False if something names it all the same."""
        usage = self._logs.known.get(log_id) or await self._logs.look_at(log_id)
        if usage is None:
            return True
        named = await greatest_offsets(self._parts.index, [log_id], usage.ledger_ids)
        if named:
            self._logs.put_aside(log_id, f"the index names byte {named[log_id]:,}, where no such entry is")
            return False
        await self._logs.delete(usage)
        return True


def _buffers(batch: Batch, live: Sequence[Piece]) -> list[Buffer]:
    """The records of these parts; of neighbours together."""
    view, starts = memoryview(batch.records.data), batch.records.starts
    spans: list[tuple[int, int]] = []
    for part in live:
        if spans and spans[-1][1] == part.start:
            spans[-1] = (spans[-1][0], part.stop)
        else:
            spans.append((part.start, part.stop))
    return [view[starts[start] : starts[stop]] for start, stop in spans]
