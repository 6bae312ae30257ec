"""Flushes and checkpoints: what makes the journal's past forgettable.

A flush moves a generation of the write cache into the entry log and sets index slots in memory. A checkpoint
  a. flushes everything inserted before the instant at which it noted the journals' marks,
  b. syncs the entry logs,
  c. writes and syncs dirty index pages, and
  d. dirty headers: keys, fences, explicit LACs,
then persists the marks, and only then deletes journals.

Invariants
- The marks a checkpoint persists are those of the generation that began when it cut the cache, so all they cover is in
  older generations or in the index (R-1, R-9).
- A failure in a to d persists nothing and forgets nothing: generation, pages and headers stay as they are and are part
  of the next attempt, so a later success cannot skip them (R-17, F-25).
- An entry log is synced before a slot that names it is written, also under memory pressure (R-2).
- Marks only move forward; deciding and writing is one call of one worker (R-12). Without a copy in at least one
  directory nothing is deleted (F-12).
- A failed sync is fatal, but for one in a directory that is given up (`failover`): what was to be synced there is
  written again elsewhere, and what failed is tried again.

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
from bookies.runtime.events import Events
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
from bookies.storage.index.index_moves import leave_crowded
from bookies.storage.index.index_readers import Readers
from bookies.storage.index.slots import pieces
from bookies.storage.journal import Journal, LogMark, log_mark_format

SLICE_SIZE = 1 << 20  # bytes of entries written to the entry log by one call of the worker
INSTALLED_AT_ONCE = 100  # ledgers whose slots are set before others have their turn on the loop
RETRY_S = 1.0  # between attempts to flush when the disks take nothing

Marks = tuple[LogMark, ...]


class MarkFiles:
    """The marks in the ledger directories. Blocks; confined to the checkpoint's worker once the bookie serves."""

    def __init__(self, disk: Disk, directories: Sequence[str], journal_count: int) -> None:
        self._disk = disk
        self._directories = list(directories)
        self._names = [log_mark_format.file_name(index, journal_count) for index in range(journal_count)]
        self._written: list[LogMark] = []

    def read(self) -> list[list[LogMark]]:
        """Of each journal what its files say, in whatever directory, ascending; torn copies do not count."""
        found = []
        for name in self._names:
            paths = (posixpath.join(directory, name) for directory in self._directories)
            found.append(
                log_mark_format.distinct(self._disk.read_bytes(path) for path in paths if self._disk.exists(path))
            )
        return found

    def assume(self, marks: Sequence[LogMark]) -> None:
        """Replay begins at these, whatever the files say; greater ones will be written over them."""
        self._written = list(marks)

    def write(self, marks: Marks) -> Marks:
        """Persist marks that are greater than what is there; what is persisted then.

        Raises StorageError when no directory took one of them.
        """
        for index, (name, mark) in enumerate(zip(self._names, marks, strict=True)):
            if mark <= self._written[index]:
                continue
            paths = [posixpath.join(directory, name) for directory in self._directories]
            try:
                replace_copies(self._disk, paths, log_mark_format.pack(mark))
            except (OSError, DiskFull) as error:
                raise DiskFull(f"no ledger directory takes {name}: {error}") from error
            self._written[index] = mark
        return tuple(self._written)


class Checkpointer:
    """Runs flushes and checkpoints, one of each at a time. Owned by the loop's thread.

    `is_failing`: the last attempt to flush failed. `on_change` is called when room was made, or when `is_failing`
    changes.
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
    ) -> None:
        self.is_failing = False
        self.problem = ""  # why, while it is
        self.checkpoint_count = 0
        self.flush_count = 0
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
        self._cut_log_id = -1  # the same, for what the checkpoint under way covers
        self.uncounted_log_id: int | None = None  # from this log on there may be copies that no slot names
        self._flushed_runs = 0  # of the snapshot, by an attempt that failed later
        self._flushed_mixed = 0  # entries of its mixed runs, likewise
        self._waiters: list[asyncio.Future[None]] = []
        self._flush_wanted = asyncio.Event()
        self._checkpoint_wanted = asyncio.Event()
        self._failover = failover
        self._health = health
        self._moves: list[tuple[int, int, Run, bytes]] = []  # of entries rescued from a lost log: see `rescue`
        self._has_lost = False  # a log has lost entries that are not all rescued
        self._log_lock = asyncio.Lock()  # from a write to the log until its slots are set
        self._checkpoint_lock = asyncio.Lock()
        self._index_lock = asyncio.Lock()

    def start(self, tasks: Tasks) -> asyncio.Task[None]:
        """Flush from now on."""
        return tasks.start(self._run_flushes(), "flush")

    def serve(self, tasks: Tasks, journals: list[Journal]) -> asyncio.Task[None]:
        """The journals are open: checkpoint from now on."""
        self._journals = journals
        self._cache.current.marks = self._marks()
        return tasks.start(self._run_checkpoints(), "checkpoint")

    def _marks(self) -> Marks:
        return tuple(journal.mark for journal in self._journals)

    # -- flushes -------------------------------------------------------------------------------------------------
    def inserted(self) -> None:
        """To be called after every insertion into the cache."""
        if self._cache.is_due and self._cache.snapshot is None:
            self._rotate()

    def _rotate(self) -> Generation:
        if sum(journal.size for journal in self._journals) - self._checkpointed_size >= self._journal_size_max:
            self._checkpoint_wanted.set()
        self._flush_wanted.set()
        self._flushed_runs = self._flushed_mixed = 0
        return self._cache.rotate(self._marks())

    async def wait_room(self) -> None:
        """Return when the cache is not congested. Raises what prevented a flush."""
        while self._cache.is_congested:
            await self._wait_flush()

    async def _wait_flush(self) -> None:
        """Return after the next end of a flush. Raises why it failed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        await future

    async def _run_flushes(self) -> None:
        while True:
            await self._flush_wanted.wait()
            self._flush_wanted.clear()
            while self._cache.snapshot is not None:
                try:
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
                    self._flush_ended(None)

    async def _flush(self, snapshot: Generation) -> None:
        """Write what is left of the snapshot to the entry log, a slice at a time, and set its slots."""
        runs = islice(snapshot.runs(), self._flushed_runs, None)  # made as they are needed: some are joined copies
        while some := list(_slice(runs)):
            async with self._log_lock:
                slots = await self._log_worker.run(self._log.write, some)
                for (ledger_id, run), data in zip(some, slots, strict=True):
                    if not self._index.try_install(ledger_id, run.entry_ids, data):
                        await self._index.install(ledger_id, run.entry_ids, data)
            self._installed_log_id = int.from_bytes(slots[-1][-8:], "big") >> 32
            self._flushed_runs += len(some)
            if self._index.is_pressed:
                await self.write_index()
        if snapshot.mixed:
            await self._flush_mixed(snapshot.mixed)

    async def _flush_mixed(self, mixed: list[AddRun]) -> None:
        """The same of what came as mixed runs, by ledger and entry; after the others, which are older copies."""
        mixture = await self._log_worker.run(_mixture, mixed)
        while self._flushed_mixed < len(mixture):
            async with self._log_lock:
                some, slots = await self._log_worker.run(self._log.write_mixed, mixture, self._flushed_mixed)
                for number, (ledger_id, start, stop) in enumerate(some.stretches(), 1):
                    entry_ids = range(some.entry_ids[start], some.entry_ids[stop - 1] + 1)
                    data = slots[start * SLOT_SIZE : stop * SLOT_SIZE]
                    if not self._index.try_install(ledger_id, entry_ids, data):
                        await self._index.install(ledger_id, entry_ids, data)
                    if not number % INSTALLED_AT_ONCE:
                        await asyncio.sleep(0)
            self._installed_log_id = int.from_bytes(slots[-SLOT_SIZE:], "big") >> 32
            self._flushed_mixed += len(some)
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

        `marks`: after replay, where it ended; the journals are not open then. Raises: DiskFull, OSError, after which
        it may be tried again; SyncFailed.
        """
        async with self._checkpoint_lock:
            cut = await self._flush_all()
            self._cut_log_id = installed = self._installed_log_id
            await self.write_index(marks or cut)
            self.persisted = await self.worker.run(self.mark_files.write, marks or cut)
            self.covered_log_id = max(self.covered_log_id, installed)
            self.checkpoint_count += 1
            self._checkpointed_size = sum(journal.size for journal in self._journals)
            for journal, mark in zip(self._journals, self.persisted, strict=bool(self._journals)):
                await journal.delete_before(mark.journal_id)
            self._index.forget_idle(lambda ledger_id: not self._cache.holds(ledger_id))

    async def _flush_all(self) -> Marks:
        """Flush everything inserted before now; marks before which nothing is left.

        Waits for what is in the cache now and for nothing else: under a load that fills the next generation faster
        than the last one is flushed there is always another, and a checkpoint that waited for the last would starve.
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
        """Make dirty pages and headers durable; first the logs that they name. `marks`: will be persisted then."""
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
        await leave_crowded(self._index, self._events)
        while True:
            frozen = self._index.freeze()
            try:
                extent = await self._log_worker.run(self._log.sync)
                self._index.catalog.note_synced(*extent, marks)
                await self._index.write(frozen, self.worker)
            finally:
                self._index.unfreeze(frozen)
            if not self._index.has_proven:
                break
        if marks is not None:
            await self._index.catalog_writer.settle(marks, self._doubtful_from(), self.worker)

    def _doubtful_from(self) -> int:
        """See `Contents`. What a replay would write once more is behind the cut."""
        if self.uncounted_log_id is not None:
            return -1 - self.uncounted_log_id
        return self._cut_log_id if self._cut_log_id >= 0 else self._index.catalog.doubtful_from

    async def _rescue(self) -> None:
        """Write again what lost logs had not synced, and let the slots name the new places. Raises as a flush does."""
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
        """After the checkpoint of the start, before anything is added: it has covered all logs that are there."""
        self.covered_log_id = await self._log_worker.run(self._log.first_unfinished_id)

    async def roll_log(self, threshold: int) -> None:
        """Seal the active entry log, and cover it, if less than `threshold` percent of it belongs to ledgers we know.

        Raises: DiskFull, OSError; SyncFailed.
        """
        async with self._checkpoint_lock:
            sizes = await self._log_worker.run(self._log.active_sizes)
            wanted = sum(size for ledger_id, size in sizes.items() if self._index.is_known(ledger_id))
            if wanted * 100 >= threshold * sum(sizes.values()):
                return
            sealed = await self._log_worker.run(self._log.roll)
            if sealed is None:
                return
            await self._flush_all()  # what was written to it while this was decided has its slots by then
            self._installed_log_id = max(self._installed_log_id, sealed + 1)
        await self.checkpoint()

    async def active_log(self) -> tuple[int, int]:
        """(id of the log that is being written, bytes of it that are synced); see `EntryLogWriter.extent`."""
        return await self._log_worker.run(self._log.extent)

    async def allocate_log(self) -> tuple[int, str]:
        """The id of a new entry log and the directory for it; see `EntryLogWriter.allocate`."""
        return await self._log_worker.run(self._log.allocate)

    async def _move(self, ledger_id: int, entry_ids: Sequence[int], log_id: int, slots: bytes) -> None:
        """Let the slots of entries that name a log name new places. Raises: ReadFailed."""
        for first, start, count in pieces(entry_ids, self._index.slots_per_page):
            part = slots[start * SLOT_SIZE : (start + count) * SLOT_SIZE]
            await self._index.move(ledger_id, first, log_id, part)

    async def append_entries(self, runs: Sequence[tuple[int, Run]], source_id: int) -> None:
        """Append entries of the entry log `source_id` to the log of normal traffic, and move their slots.

        They are durable before any slot is, as everything in that log. Raises: OSError, DiskFull; SyncFailed.
        """
        async with self._log_lock:
            slots = await self._log_worker.run(self._log.write, runs)
            for (ledger_id, run), data in zip(runs, slots, strict=True):
                await self._move(ledger_id, run.entry_ids, source_id, data)
        if self._index.is_pressed:
            await self.write_index()

    async def drop_ledgers(self, ledger_ids: Sequence[int]) -> None:
        """Remove ledgers and their index files. The cache holds nothing of them. Raises: OSError, SyncFailed.

        After a failure they are all still known, and their files may be gone.
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
        """Nothing will be flushed any more: tell those who wait for it."""
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_exception(StorageError(f"the storage has failed: {error}"))

    async def seal(self) -> None:
        """Leave the active entry log complete, with its ledgers map; a checkpoint has covered it."""
        await self._log_worker.run(self._log.close)

    async def discard(self) -> None:
        """The start has failed: remove the entry logs that it has written for nothing."""
        await self._log_worker.run(self._log.discard)

    def close(self) -> None:
        """Close files as they are and end the workers. Blocks until what they do is done."""
        run_last(self._log_worker, self._log.abort)
        run_last(self.worker, self._index.close_files)


def _mixture(mixed: Sequence[AddRun]) -> SortedEntries:
    return SortedEntries([(each.ledger_ids, each.entry_ids, each.records) for each in mixed])


def _slice(runs: Iterator[tuple[int, Run]]) -> Iterator[tuple[int, Run]]:
    """The next ones, as many as the worker is to write at once."""
    size = 0
    for ledger_id, run in runs:
        yield ledger_id, run
        size += run.records.size
        if size >= SLICE_SIZE:
            return
