"""Flushes and checkpoints, after which journal files can be deleted.

A flush moves a generation of the write cache into the entry log and sets index slots in memory. A checkpoint
  a. flushes everything inserted before the moment at which it noted the journals' marks,
  b. syncs the entry logs,
  c. writes and syncs dirty index pages, and
  d. dirty headers: keys, fences, explicit LACs,
then persists the marks, and only then deletes journals.

Invariants
- R-1: persist a mark only after all data inserted before it is durable. R-9: a checkpoint persists the marks captured
  when the next generation started, so everything they cover is in older generations or in the index.
- A failure in a to d persists no mark. Generation, pages and headers stay unchanged for the next attempt, so a later
  success cannot skip them. R-17: a log or memtable leaves the "to be synced" set only after its sync succeeded. F-25:
  flush the failed half first, and block the mark until then.
- R-2: the entry log is durable before the index that names it, also under memory pressure.
- R-12: marks only move forward; decision and write are one call of one worker. F-12: if the mark cannot be written to
  any directory, fail the checkpoint and delete no journal.
- A failed sync is fatal, except in a failed directory (`failover`): the unsynced data is written again elsewhere, and
  the failed step is retried.

The loop never waits for the device: slices of work go to two workers, one for the entry log and one for the index.

Source: storage 2.9, 5.4, 5.5, 5.6.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from bookies.config import BookieConfig
from bookies.errors import DiskFull, StorageError
from bookies.kernels import SortedEntries
from bookies.runtime.activities import Activities
from bookies.runtime.events import Events
from bookies.runtime.histogram import Distribution
from bookies.runtime.ports import Disk, Runtime, Worker
from bookies.runtime.tasks import Tasks
from bookies.storage.cache import WriteCache
from bookies.storage.cache.write_cache import AddRun, Generation, Run
from bookies.storage.disks import DirectoryHealth
from bookies.storage.disks.durable_files import SyncFailed, replace_copies, run_last, unlink_all
from bookies.storage.engine.failover import Failover
from bookies.storage.entry_log.entry_log import EntryLogWriter, LogLost
from bookies.storage.index import LedgerIndex
from bookies.storage.index.index_format import SLOT_SIZE
from bookies.storage.index.index_moves import move_from_crowded
from bookies.storage.index.index_readers import Readers
from bookies.storage.index.slots import pieces
from bookies.storage.journal import Journal, LogMark, log_mark_format

SLICE_SIZE = 1 << 20  # bytes of entries written to the entry log by one call of the worker
INSTALLED_AT_ONCE = 100  # ledgers whose slots are set in one iteration of the event loop
RETRY_S = 1.0  # seconds between attempts to flush while writes fail

Marks = tuple[LogMark, ...]


class MarkFiles:
    """The mark files in the ledger directories. Blocks; confined to the checkpoint's worker once the bookie serves."""

    def __init__(self, disk: Disk, directories: Sequence[str], journal_count: int) -> None:
        self._disk = disk
        self._directories = list(directories)
        self._names = [log_mark_format.file_name(index, journal_count) for index in range(journal_count)]
        self._written: list[LogMark] = []

    def read(self) -> list[list[LogMark]]:
        """Return the distinct marks of each journal in all directories, ascending, without torn copies."""
        marks = []
        for name in self._names:
            paths = (posixpath.join(directory, name) for directory in self._directories)
            marks.append(
                log_mark_format.distinct(self._disk.read_bytes(path) for path in paths if self._disk.exists(path))
            )
        return marks

    def assume(self, marks: Sequence[LogMark]) -> None:
        """Take these marks, from which replay begins, as the persisted ones; only greater marks are written."""
        self._written = list(marks)

    def write(self, marks: Marks) -> Marks:
        """Persist the marks that are greater than the persisted ones; return the persisted marks.

        Raises DiskFull if no directory accepts one of them.
        """
        for index, (name, mark) in enumerate(zip(self._names, marks, strict=True)):
            if mark <= self._written[index]:
                continue
            paths = [posixpath.join(directory, name) for directory in self._directories]
            try:
                replace_copies(self._disk, paths, log_mark_format.pack(mark))
            except (OSError, DiskFull) as error:
                raise DiskFull(f"no ledger directory accepts {name}: {error}") from error
            self._written[index] = mark
        return tuple(self._written)


class StorageObserver:
    """Receiver of moments that answers to requests do not show. This one ignores them."""

    def index_write_begins(self) -> None:
        """Learn that the content of the next index files is fixed."""

    def deletion_begins(self, ledger_ids: Sequence[int]) -> None:
        """Learn that the data of these ledgers is about to be removed."""


class Checkpointer:
    """Runs flushes and checkpoints, one of each at a time. Owned by the loop's thread.

    `is_failing`: the last attempt to flush failed. `on_change`: called after every end of a flush.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        cache: WriteCache,
        index: LedgerIndex,
        readers: Readers,
        directories: Sequence[str],
        health: DirectoryHealth,
        failover: Failover,
        on_change: Callable[[], None],
        activities: Activities,
    ) -> None:
        self.is_failing = False
        self.problem = ""  # the reason while `is_failing`, otherwise empty
        self.checkpoint_count = 0
        self.flush_count = 0
        self.flush_size = 0  # bytes of flushed generations
        self.flushes = Distribution()  # seconds
        self.checkpoints = Distribution()  # seconds
        self._clock = runtime.clock
        self._activities = activities
        self.covered_log_id = -1  # entry logs with smaller ids are sealed, and a checkpoint has covered their entries
        self.persisted: Marks = ()
        self.worker: Worker = runtime.workers.start("checkpoint")
        self.mark_files = MarkFiles(runtime.disk, directories, len(config.journal_directories))
        self._log_worker = runtime.workers.start("entry-log")
        self._log = EntryLogWriter(runtime.disk, directories, config, health)
        self._cache = cache
        self._index = index
        self._readers = readers
        self._disk = runtime.disk
        self._journals: list[Journal] = []
        self._on_change = on_change
        self._events = Events("storage.checkpoint", runtime.clock)
        self._interval_s = config.checkpoint_interval_ms / 1000
        self._journal_size_max = config.checkpoint_journal_size
        self._checkpointed_size = 0
        self._installed_log_id = -1  # the entry log that the newest slot names
        self._cut_log_id = -1  # the entry log named by the newest slot that the current checkpoint covers
        self.observer = StorageObserver()
        self.uncounted_log_id: int | None = None  # from this log on there may be copies that no slot names
        self._flushed_runs = 0  # runs of the snapshot written so far, also by an attempt that failed later
        self._flushed_mixed = 0  # entries of its mixed runs written so far
        self._waiters: list[asyncio.Future[None]] = []
        self._flush_wanted = asyncio.Event()
        self._checkpoint_wanted = asyncio.Event()
        self._failover = failover
        self._health = health
        self._moves: list[tuple[int, int, Run, bytes]] = []  # pending slot moves of rescued entries: see `rescue`
        self._has_lost = False  # a lost log has entries that are not rescued yet
        self._log_lock = asyncio.Lock()  # from a write to the log until its slots are set
        self._checkpoint_lock = asyncio.Lock()
        self._index_lock = asyncio.Lock()

    def start(self, tasks: Tasks) -> asyncio.Task[None]:
        """Start the task that flushes."""
        return tasks.start(self._run_flushes(), "flush")

    def serve(self, tasks: Tasks, journals: list[Journal]) -> asyncio.Task[None]:
        """Start the task that checkpoints, after the journals have opened."""
        self._journals = journals
        self._cache.current.marks = self._marks()
        return tasks.start(self._run_checkpoints(), "checkpoint")

    def _marks(self) -> Marks:
        return tuple(journal.mark for journal in self._journals)

    # -- flushes -------------------------------------------------------------------------------------------------
    def inserted(self) -> None:
        """Begin a flush if the cache needs one. Call after every insertion into the cache."""
        if self._cache.is_due and self._cache.snapshot is None:
            self._rotate()

    def _rotate(self) -> Generation:
        if sum(journal.size for journal in self._journals) - self._checkpointed_size >= self._journal_size_max:
            self._checkpoint_wanted.set()
        self._flush_wanted.set()
        self._flushed_runs = self._flushed_mixed = 0
        return self._cache.rotate(self._marks())

    async def wait_room(self) -> None:
        """Wait until the cache is not congested. Raises the error of a failed flush."""
        while self._cache.is_congested:
            await self._wait_flush()

    async def _wait_flush(self) -> None:
        """Wait for the next end of a flush. Raises its error."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        await future

    async def _run_flushes(self) -> None:
        while True:
            await self._flush_wanted.wait()
            self._flush_wanted.clear()
            while self._cache.snapshot is not None:
                began_s, size = self._clock.monotonic(), self._cache.snapshot.size
                try:
                    with self._activities.during("flush"):
                        await self._flush(self._cache.snapshot)
                except (OSError, StorageError) as error:
                    if await self._failover.survives(error, self.worker):
                        await asyncio.sleep(0)
                        continue
                    if not isinstance(error, OSError | DiskFull):
                        raise
                    self._events.error("storage.flush_failed", error=error, retry_s=RETRY_S)
                    self._flush_ended(error)
                    await asyncio.sleep(RETRY_S)
                else:
                    self.flushes.record(self._clock.monotonic() - began_s)
                    self.flush_size += size
                    self._flush_ended(None)

    async def _flush(self, snapshot: Generation) -> None:
        """Write the rest of the snapshot to the entry log, a slice at a time, and set its slots."""
        runs = islice(snapshot.runs(), self._flushed_runs, None)  # lazy, because some runs are joined copies
        while batch := list(_take_slice(runs)):
            async with self._log_lock:
                slots = await self._log_worker.run(self._log.write, batch)
                for (ledger_id, run), data in zip(batch, slots, strict=True):
                    if not self._index.try_install(ledger_id, run.entry_ids, data):
                        await self._index.install(ledger_id, run.entry_ids, data)
            self._installed_log_id = int.from_bytes(slots[-1][-8:], "big") >> 32
            self._flushed_runs += len(batch)
            if self._index.is_pressed:
                await self.write_index()
        if snapshot.mixed:
            await self._flush_mixed(snapshot.mixed)

    async def _flush_mixed(self, mixed: list[AddRun]) -> None:
        """Flush the mixed runs, sorted by ledger and entry. They follow the other runs, whose copies are older."""
        sorted_entries = await self._log_worker.run(_sorted_entries, mixed)
        while self._flushed_mixed < len(sorted_entries):
            async with self._log_lock:
                entries, slots = await self._log_worker.run(self._log.write_mixed, sorted_entries, self._flushed_mixed)
                for number, (ledger_id, start, stop) in enumerate(entries.stretches(), 1):
                    entry_ids = range(entries.entry_ids[start], entries.entry_ids[stop - 1] + 1)
                    data = slots[start * SLOT_SIZE : stop * SLOT_SIZE]
                    if not self._index.try_install(ledger_id, entry_ids, data):
                        await self._index.install(ledger_id, entry_ids, data)
                    if not number % INSTALLED_AT_ONCE:
                        await asyncio.sleep(0)
            self._installed_log_id = int.from_bytes(slots[-SLOT_SIZE:], "big") >> 32
            self._flushed_mixed += len(entries)
            if self._index.is_pressed:
                await self.write_index()

    def _flush_ended(self, error: Exception | None) -> None:
        self.is_failing = error is not None
        self.problem = str(error or "")
        if error is None:
            self.flush_count += 1
            self._cache.drop_snapshot()
            if self._cache.is_due:
                self._rotate()
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
        self._on_change()

    # -- checkpoints ---------------------------------------------------------------------------------------------
    async def checkpoint(self, marks: Marks | None = None) -> None:
        """Make everything inserted so far durable outside the journal, persist the marks, delete journals.

        `marks`: the end of replay, when the journals are not open yet. Raises: DiskFull, OSError, after which it may be
        retried; SyncFailed.
        """
        async with self._checkpoint_lock:
            with self._activities.during("checkpoint"):
                await self._checkpoint(marks)

    async def _checkpoint(self, marks: Marks | None) -> None:
        began_s = self._clock.monotonic()
        cut = await self._flush_all()
        self._cut_log_id = installed = self._installed_log_id
        await self.write_index(marks or cut)
        self.persisted = await self.worker.run(self.mark_files.write, marks or cut)
        self.covered_log_id = max(self.covered_log_id, installed)
        self.checkpoint_count += 1
        self.checkpoints.record(self._clock.monotonic() - began_s)
        self._checkpointed_size = sum(journal.size for journal in self._journals)
        for journal, mark in zip(self._journals, self.persisted, strict=bool(self._journals)):
            await journal.delete_before(mark.journal_id)
        self._index.forget_idle(lambda ledger_id: not self._cache.holds(ledger_id))

    async def _flush_all(self) -> Marks:
        """Flush everything inserted before now; return marks before which no entry is left in the cache.

        Waits only for what is in the cache now. Under a load that fills generations faster than they are flushed, a
        checkpoint that waited for an empty cache would starve.
        """
        marks, last = self._marks(), self._cache.current
        if not last.is_empty:
            while self._cache.current is last:
                if self._cache.snapshot is None:
                    self._rotate()
                else:
                    await self._wait_flush()
            marks = last.end
        else:
            last = self._cache.snapshot or last
        while self._cache.snapshot is last:
            await self._wait_flush()
        return marks

    async def write_index(self, marks: Marks | None = None) -> None:
        """Make dirty pages and headers durable, after the logs that they name. `marks`: to be persisted afterwards."""
        async with self._index_lock:
            while True:
                try:
                    if self._has_lost:
                        await self._rescue()
                    await self._write_index(marks)
                    return
                except LogLost:
                    self._has_lost = True
                    await self._failover.react(self.worker, self._log.lost_ends)
                except (OSError, StorageError) as error:
                    if not await self._failover.survives(error, self.worker):
                        raise

    async def _write_index(self, marks: Marks | None) -> None:
        await move_from_crowded(self._index, self._events)
        while True:
            frozen = self._index.freeze()
            try:
                extent = await self._log_worker.run(self._log.sync)
                self._index.catalog.note_synced(*extent, marks)
                self.observer.index_write_begins()
                await self._index.write(frozen, self.worker)
            finally:
                self._index.unfreeze(frozen)
            if not self._index.has_saved_rebuilt:
                break
        if marks is not None:
            await self._index.catalog_writer.settle(marks, self._uncounted_from(), self.worker)

    def _uncounted_from(self) -> int:
        """Return the first log that may have uncounted copies: see `Contents`. Replay writes only after the cut."""
        if self.uncounted_log_id is not None:
            return -1 - self.uncounted_log_id
        return self._cut_log_id if self._cut_log_id >= 0 else self._index.catalog.uncounted_from

    async def _rescue(self) -> None:
        """Write the unsynced entries of lost logs again and move their slots. Raises as a flush does."""
        async with self._log_lock:
            while True:
                while self._moves:
                    lost_id, ledger_id, run, slots = self._moves[0]
                    await self._move(ledger_id, run.entry_ids, lost_id, slots)
                    self._moves.pop(0)
                self._moves = await self._log_worker.run(self._log.rescue)
                if not self._moves:
                    self._has_lost = False
                    return

    async def cover_logs(self) -> None:
        """Count all existing logs as covered, after the checkpoint of the start and before any add."""
        self.covered_log_id = await self._log_worker.run(self._log.first_unfinished_id)

    async def roll_log(self, threshold: int) -> None:
        """Seal and cover the active entry log if less than `threshold` percent of it belongs to known ledgers.

        Raises: DiskFull, OSError, SyncFailed.
        """
        async with self._checkpoint_lock:
            sizes = await self._log_worker.run(self._log.active_sizes)
            wanted = sum(size for ledger_id, size in sizes.items() if self._index.is_known(ledger_id))
            if wanted * 100 >= threshold * sum(sizes.values()):
                return
            sealed = await self._log_worker.run(self._log.roll)
            if sealed is None:
                return
            await self._flush_all()  # sets the slots of entries written to the log meanwhile
            self._installed_log_id = max(self._installed_log_id, sealed + 1)
        await self.checkpoint()

    async def active_log(self) -> tuple[int, int]:
        """Return (id of the active log, its synced bytes); see `EntryLogWriter.extent`."""
        return await self._log_worker.run(self._log.extent)

    async def allocate_log(self) -> tuple[int, str]:
        """Return the id of a new entry log and its directory; see `EntryLogWriter.allocate`."""
        return await self._log_worker.run(self._log.allocate)

    async def _move(self, ledger_id: int, entry_ids: Sequence[int], log_id: int, slots: bytes) -> None:
        """Move the slots of entries that name a log to new places. Raises: ReadFailed."""
        for first, start, count in pieces(entry_ids, self._index.slots_per_page):
            part = slots[start * SLOT_SIZE : (start + count) * SLOT_SIZE]
            await self._index.move(ledger_id, first, log_id, part)

    async def append_entries(self, runs: Sequence[tuple[int, Run]], source_id: int) -> None:
        """Append entries of the entry log `source_id` to the log of normal traffic, and move their slots.

        Like all entries of that log they are durable before their slots. Raises: OSError, DiskFull, SyncFailed.
        """
        async with self._log_lock:
            slots = await self._log_worker.run(self._log.write, runs)
            for (ledger_id, run), data in zip(runs, slots, strict=True):
                await self._move(ledger_id, run.entry_ids, source_id, data)
        if self._index.is_pressed:
            await self.write_index()

    async def drop_ledgers(self, ledger_ids: Sequence[int]) -> None:
        """Remove ledgers and their index files. The cache must not hold them. Raises: OSError, SyncFailed.

        After a failure all of them are still known, but their files may be deleted.
        """
        async with self._index_lock:
            paths = {ledger_id: self._index.path_of(ledger_id) for ledger_id in ledger_ids}
            files = [path for path in paths.values() if path is not None and not self._health.is_failed(path)]
            await self._index.catalog_writer.forget(ledger_ids, self.worker)
            await self.worker.run(self._index.forget_files, files)
            await self.worker.run(unlink_all, self._disk, files)
            for ledger_id in ledger_ids:
                self._index.remove(ledger_id)
        for ledger_id, path in paths.items():
            if path is not None:
                self._readers.forget_index(ledger_id, path)

    async def _run_checkpoints(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._checkpoint_wanted.wait()
            except TimeoutError:
                if not (self._index.is_dirty or self._cache.size) and self._marks() == self.persisted:
                    continue
            self._checkpoint_wanted.clear()
            try:
                await self.checkpoint()
            except (OSError, StorageError) as error:
                if isinstance(error, SyncFailed) and not self._failover.covers(error):
                    raise
                self._events.error("storage.checkpoint_failed", error=error, retry_s=self._interval_s)

    # -- end -----------------------------------------------------------------------------------------------------
    def abort(self, error: BaseException) -> None:
        """Fail everyone who waits for a flush: there will be no further flush."""
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_exception(StorageError(f"the storage has failed: {error}"))

    async def seal(self) -> None:
        """Complete the active entry log with its ledgers map, after a checkpoint has covered it."""
        await self._log_worker.run(self._log.close)

    async def discard(self) -> None:
        """Remove the entry logs that a failed start has written."""
        await self._log_worker.run(self._log.discard)

    def close(self) -> None:
        """Close the files without a sync and end the workers. Blocks until their current work is done."""
        run_last(self._log_worker, self._log.abort)
        run_last(self.worker, self._index.close_files)


def _sorted_entries(mixed: Sequence[AddRun]) -> SortedEntries:
    return SortedEntries([(run.ledger_ids, run.entry_ids, run.records) for run in mixed])


def _take_slice(runs: Iterator[tuple[int, Run]]) -> Iterator[tuple[int, Run]]:
    """Yield the next runs, up to `SLICE_SIZE` bytes for one call of the worker."""
    size = 0
    for ledger_id, run in runs:
        yield ledger_id, run
        size += run.records.size
        if size >= SLICE_SIZE:
            return
