"""Compaction: copies the live entries of a sealed entry log elsewhere and deletes the log.

An entry is live if its index slot names exactly this log and this offset. F-32: copy an entry only if the index points
to exactly this place. So superseded copies are dropped, and old ones cannot come back. There are two modes:

*Transactional.* Source `s`, output `n`, a log of its own.

    n.log.compacting        being written
    n.log.s.compacted       complete and durable; from here on the compaction is always completed
    n.log                   a second name of it, durable before any slot names it
                            slots move from s to n; the index is made durable; then n.log.s.compacted and s.log are
                            deleted

Each run first drops incomplete outputs and completes the others. Slots are set by reading the output, in the first
attempt too. The names alone hold the state of a compaction.

*Plain.* Live entries are appended to the log of normal traffic, and their slots move.

Invariants
- R-18: make copies durable, then the index, then delete the source, with directory fsyncs in between.
- F-34: fsync the directory after each link and before the source is deleted.
- R-19: location updates are compare-and-set. A slot moves only if it names the source at that moment, and not at all if
  its ledger was deleted. No slot is ever set to a sealed log, so comparing log ids is as exact as comparing offsets.
- F-14: delete only after a clean end. The source is deleted only if it was read to a clean end and no slot of a ledger
  in its map names it.
- Only logs that a checkpoint has covered are sources.
- A missing slot proves nothing of a ledger in limbo: what the index lacks may be live. The log stays.
- A ledger that the index does not know is dropped only if it was deleted here, or its record does not name this bookie.

On the loop's thread; the collector's worker reads and writes files. Source: storage 7.5, 7.6.
"""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial

from bookies.errors import BookKeeperError, CorruptRecord, StorageError
from bookies.kernels import Records
from bookies.runtime.events import Events
from bookies.runtime.ports import Buffer, Disk, Worker
from bookies.storage.cache.write_cache import Run
from bookies.storage.disks.durable_files import remove, sync_all, sync_data, sync_directory, unlink_all
from bookies.storage.engine import StorageParts
from bookies.storage.engine.log_pieces import Piece, current_slots, matching_parts, may_lack_slot, pieces_of, slots_of
from bookies.storage.entry_log import LogUsage
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.entry_log.log_directories import LogDirectories
from bookies.storage.entry_log.log_usage import keys_of, read_map
from bookies.storage.gc.sealed_logs import SealedLogs
from bookies.storage.index.log_references import greatest_offsets
from bookies.storage.records import Batch, EndKind
from bookies.storage.records.record_scan import ScanEnd
from bookies.storage.sealing.sealer import Recoder

SYNC_STEP = 8 << 20  # bytes written to an output between two syncs


class LogReading:
    """A reader of a sealed log, one batch at a time. Blocks. `recoder`: of its entries, if the bookie has keys."""

    def __init__(self, disk: Disk, path: str, recoder: Recoder | None = None) -> None:
        self._recoder = recoder
        self._is_encrypted = recoder is not None and bool(keys_of(disk, path))
        self._file = disk.open(path, "r")
        self._items: Iterator[Batch | ScanEnd] = layout.scan(self._file.pread, self._file.size())

    def read(self) -> Batch | ScanEnd:
        """Return the next batch, or how the log ended. Raises: OSError."""
        item = next(self._items)
        if isinstance(item, Batch):
            self._file.drop_cache(item.offset, item.records.size)
        return item

    def recoded(self, batch: Batch, live: Sequence[Piece]) -> list[Records]:
        """Return the records of these parts as they are written to the copy. Raises CorruptRecord."""
        records = [batch.records.slice(part.start, part.stop) for part in live]
        if self._recoder is None:
            return records
        recode = partial(self._recoder.recoded, is_sealed=self._is_encrypted, path=self._file.path, offset=batch.offset)
        return [recode(part) for part in records]

    def close(self) -> None:
        self._file.close()


class OutputLog:
    """The output log of a transactional compaction. Blocks. Raises: OSError, DiskFull; SyncFailed, which is final.

    `keys`: those that its entries are sealed with.
    """

    def __init__(
        self, disk: Disk, logs: LogDirectories, directory: str, log_id: int, source_id: int, keys: Sequence[int] = ()
    ) -> None:
        self.log_id = log_id
        self.directory = directory
        self.sizes: dict[int, int] = {}  # ledger id -> bytes
        self._disk = disk
        self._path = posixpath.join(directory, f"{logs.file_name(log_id)}.compacting")
        self._done = posixpath.join(directory, compacted_name(logs, log_id, source_id))
        self._file = disk.open(self._path, "x+")
        self._position = self._synced = layout.HEADER_SIZE
        self._file.pwrite(layout.pack_header(keys=keys), 0)

    def append(self, buffers: Sequence[Buffer], sizes: Iterable[tuple[int, int]]) -> None:
        """Write records. `sizes`: (ledger id, bytes) of them."""
        self._file.pwritev(buffers, self._position)
        for ledger_id, size in sizes:
            self.sizes[ledger_id] = self.sizes.get(ledger_id, 0) + size
            self._position += size
        if self._position - self._synced >= SYNC_STEP:
            sync_data(self._file)
            self._synced = self._position

    def finish(self) -> None:
        """Add the ledgers map, make everything durable, and rename the file to a complete output."""
        self._file.pwrite(layout.pack_ledgers_map(self.sizes.items()), self._position)
        self._file.pwrite(layout.pack_map_fields(self._position, len(self.sizes)), layout.MAP_FIELDS_OFFSET)
        sync_all(self._file)
        self._file.drop_cache(0, self._position)
        self._file.close()
        self._disk.link(self._path, self._done)
        sync_directory(self._disk, self.directory)
        self._disk.unlink(self._path)

    def discard(self) -> None:
        """Close and delete the output."""
        self._file.close()
        remove(self._disk, self._path)

    def close(self) -> None:
        self._file.close()


def compacted_name(logs: LogDirectories, log_id: int, source_id: int) -> str:
    """Return the name of a complete output. F-33: use hex everywhere."""
    return f"{logs.file_name(log_id)}.{logs.file_id(source_id):x}.compacted"


def give_name(disk: Disk, logs: LogDirectories, directory: str, log_id: int, source_id: int) -> str:
    """Make a complete output an entry log, durably. Return its path.

    F-34: fsync the directory after each link.
    """
    path = posixpath.join(directory, logs.file_name(log_id))
    if not disk.exists(path):
        disk.link(posixpath.join(directory, compacted_name(logs, log_id, source_id)), path)
    sync_directory(disk, directory)
    return path


def find_outputs(disk: Disk, logs: LogDirectories, among: Sequence[str]) -> list[tuple[str, int, int | None]]:
    """Return (directory, output, source) of every interrupted compaction. Source None: the output is incomplete."""
    outputs = []
    for directory in among:
        for name in disk.list(directory):
            if (ids := layout.parse_compacted_name(name)) is not None:
                output, source = ids
                source_id = None if source is None else logs.id_in(directory, source)
                outputs.append((directory, logs.id_in(directory, output), source_id))
    return outputs


class Compactor:
    """The compaction of one log at a time. `read_size`, `copied_size`: bytes so far."""

    def __init__(
        self,
        parts: StorageParts,
        worker: Worker,
        logs: SealedLogs,
        events: Events,
        is_unwanted: Callable[[int], Awaitable[bool]],
    ) -> None:
        self.compacted_count = 0
        self.copied_size = 0
        self.reclaimed_size = 0  # bytes of deleted sources that were not copied
        self.read_size = 0
        self._index_writer = parts.checkpointer.index_writer
        self._parts = parts
        self._worker = worker
        self._logs = logs
        self._events = events
        self._is_unwanted = is_unwanted
        self._unwanted: dict[int, None] = {}  # ledgers of the source that are proven garbage
        self._recoder = None if parts.sealer is None else Recoder(parts.sealer, parts.runtime.random)
        self._reading: LogReading | None = None
        self._output: OutputLog | None = None

    @property
    def _disk(self) -> Disk:
        return self._parts.runtime.disk

    def close_files(self) -> None:
        """Close the files that a cancelled compaction left open. On the worker."""
        for file in (self._reading, self._output):
            if file is not None:
                file.close()
        self._reading = self._output = None

    async def recover(self) -> None:
        """Drop incomplete outputs and complete the other compactions. Raises: StorageError, OSError."""
        await self._worker.run(self.close_files)
        directories = self._parts.health.healthy(self._parts.directories.ledgers)
        outputs = await self._worker.run(find_outputs, self._disk, self._parts.logs, directories)
        unfinished = [
            posixpath.join(directory, f"{self._parts.logs.file_name(log_id)}.compacting")
            for directory, log_id, source_id in outputs
            if source_id is None
        ]
        if unfinished:
            await self._worker.run(unlink_all, self._disk, unfinished)
        for directory, log_id, source_id in outputs:
            if source_id is not None:
                await self._adopt_output(directory, log_id, source_id)
                await self._remove_source(source_id)
                label = self._parts.logs.label
                self._events.info("gc.compaction_recovered", log=label(source_id), output=label(log_id))

    async def compact(self, usage: LogUsage, *, is_transactional: bool) -> None:
        """Copy the live entries of a log and delete it. Raises: BookKeeperError, OSError; then the log still exists."""
        sizes = await self._worker.run(read_map, self._disk, usage.path) or {}
        # `SealedLogs.drop_ledgers` has proven the ledgers garbage that the map names and `usage` does not.
        self._unwanted = {ledger_id: None for ledger_id in sizes if not usage.size_of(ledger_id)}
        copy = self._copy_to_output if is_transactional else self._copy_to_active
        copied = await copy(usage)
        if await self._remove_source(usage.log_id):
            self.compacted_count += 1
            self.copied_size += copied
            self.reclaimed_size += usage.total - copied
            self.read_size += usage.total + (copied if is_transactional else 0)
            label = self._parts.logs.label(usage.log_id)
            self._events.info("gc.log_compacted", log=label, bytes=usage.total, copied=copied)

    # -- copying -------------------------------------------------------------------------------------------------
    async def _copy_to_output(self, usage: LogUsage) -> int:
        """Copy the live entries to an output log. Return their bytes."""
        log, logs = self._parts.checkpointer.log, self._parts.logs
        log_id, directory = await log.worker.run(log.writer.allocate, usage.log_id)
        await self._worker.run(self.close_files)
        keys = () if self._recoder is None else self._recoder.begin()
        open_output = partial(OutputLog, keys=keys)
        self._output = output = await self._worker.run(open_output, self._disk, logs, directory, log_id, usage.log_id)
        copied = 0
        try:
            reading = await self._read(usage.path)
            while isinstance(batch := await self._worker.run(reading.read), Batch):
                live = await self._live(usage.log_id, batch)
                if live:
                    records = await self._recoded(usage, reading, batch, live)
                    sizes = [(part.ledger_id, of_part.size) for part, of_part in zip(live, records, strict=True)]
                    await self._worker.run(output.append, _buffers(records), sizes)
                    await self._logs.pay(sum(size for _, size in sizes))
                    copied += sum(size for _, size in sizes)
                await self._logs.pay(batch.records.size)
            self._check_end(usage, batch)
        except (OSError, BookKeeperError):
            await self._worker.run(output.discard)
            raise
        if not copied:
            await self._worker.run(output.discard)
            return 0
        await self._worker.run(output.finish)
        await self._adopt_output(directory, log_id, usage.log_id)
        return copied

    async def _copy_to_active(self, usage: LogUsage) -> int:
        """Copy the live entries to the log of normal traffic. Return their bytes."""
        copied = 0
        reading = await self._read(usage.path)
        while isinstance(batch := await self._worker.run(reading.read), Batch):
            live = await self._live(usage.log_id, batch)
            if self._recoder is not None:
                self._recoder.begin()
            records = await self._recoded(usage, reading, batch, live) if live else []
            runs = [(part.ledger_id, Run(part.entry_ids, of_part)) for part, of_part in zip(live, records, strict=True)]
            if runs:
                await self._index_writer.log.copy(runs, usage.log_id)
                await self._index_writer.relieve()
            size = sum(run.records.size for _, run in runs)
            copied += size
            await self._logs.pay(batch.records.size + size)
        self._check_end(usage, batch)
        await self._index_writer.write()
        return copied

    async def _recoded(self, usage: LogUsage, reading: LogReading, batch: Batch, live: list[Piece]) -> list[Records]:
        """Return the records of these parts as they are to be stored now. Raises CorruptRecord, and sets the log aside:
        an entry that does not authenticate stays where it is until it was repaired.
        """
        if self._recoder is None:
            return reading.recoded(batch, live)
        try:
            return await self._worker.run(reading.recoded, batch, live)
        except CorruptRecord as error:
            self._logs.put_aside(usage.log_id, str(error))
            raise

    async def _read(self, path: str) -> LogReading:
        if self._reading is not None:
            await self._worker.run(self._reading.close)
        self._reading = await self._worker.run(LogReading, self._disk, path, self._recoder)
        return self._reading

    def _check_end(self, usage: LogUsage, end: ScanEnd) -> None:
        """Raise CorruptRecord, and set the log aside, unless it was read to a clean end.

        F-14: report how a scan ended; delete only after a clean end.
        """
        if end.kind is not EndKind.CLEAN:
            self._logs.put_aside(usage.log_id, f"byte {end.offset:,}: {end.problem}")
            raise CorruptRecord(end.problem, path=usage.path, offset=end.offset)

    async def _live(self, log_id: int, batch: Batch) -> list[Piece]:
        """Return the parts of a batch that the index names.

        Raises: ReadFailed when a part of the index cannot be read; StorageError.
        """
        live: list[Piece] = []
        for piece in pieces_of(batch):
            if self._parts.index.is_known(piece.ledger_id):
                slots = await current_slots(self._parts.index, piece)
                if may_lack_slot(self._parts.index, piece, slots):
                    self._logs.wait_for(log_id, piece.ledger_id)
                    raise StorageError("the index may lack entries of it", ledger_id=piece.ledger_id)
                live += matching_parts(piece, slots_of(log_id, batch, piece), slots)
            elif piece.ledger_id not in self._unwanted:
                await self._check_unwanted(log_id, piece.ledger_id)
        return live

    async def _check_unwanted(self, log_id: int, ledger_id: int) -> None:
        """Raise StorageError, and set the log aside, if the metadata may want a ledger that the index lacks.

        Logs of other such ledgers are not chosen. This one is missing from the ledgers map, or was lost just now.
        """
        if not self._parts.removals.is_proven(ledger_id) and not await self._is_unwanted(ledger_id):
            text = f"ledger {ledger_id} has entries in it, is missing from the index, and may be live in the metadata"
            self._logs.put_aside(log_id, text)
            raise StorageError(text, ledger_id=ledger_id)
        self._unwanted[ledger_id] = None

    # -- from the source to the copy -----------------------------------------------------------------------------
    async def _adopt_output(self, directory: str, log_id: int, source_id: int) -> None:
        """Make a complete output an entry log, and move the slots to it."""
        logs = self._parts.logs
        path = await self._worker.run(give_name, self._disk, logs, directory, log_id, source_id)
        reading = await self._read(path)
        while isinstance(batch := await self._worker.run(reading.read), Batch):
            for piece in pieces_of(batch):
                await self._move(piece, source_id, slots_of(log_id, batch, piece))
            await self._logs.pay(batch.records.size)
        batch.raise_if_corrupt(path)
        await self._index_writer.write()
        done = posixpath.join(directory, compacted_name(logs, log_id, source_id))
        await self._worker.run(unlink_all, self._disk, [done])

    async def _move(self, piece: Piece, source_id: int, slots: bytes) -> None:
        await self._parts.index.move(piece.ledger_id, piece.first, source_id, slots)
        await self._index_writer.relieve()

    async def _remove_source(self, log_id: int) -> bool:
        """Delete a log whose entries have moved. Return False if a slot still names it."""
        usage = self._logs.known.get(log_id) or await self._logs.read_usage(log_id)
        if usage is None:
            return True
        named = await greatest_offsets(self._parts.index, [log_id], usage.ledger_ids)
        if named:
            self._logs.put_aside(log_id, f"the index names byte {named[log_id]:,}, where the log has no such entry")
            return False
        await self._logs.delete(usage)
        return True


def _buffers(parts: Sequence[Records]) -> list[Buffer]:
    """Return the bytes of these records. Parts that are adjacent in one buffer are one piece."""
    spans: list[tuple[bytes, int, int]] = []
    for records in parts:
        start, stop = records.starts[0], records.starts[-1]
        if spans and spans[-1][0] is records.data and spans[-1][2] == start:
            start = spans.pop()[1]
        spans.append((records.data, start, stop))
    return [memoryview(data)[start:stop] for data, start, stop in spans]
