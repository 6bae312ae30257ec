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
from collections.abc import Callable, Sequence

from bookies.config import BookieConfig
from bookies.errors import StorageError
from bookies.runtime.activities import Activities
from bookies.runtime.events import Events
from bookies.runtime.histogram import Distribution
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks
from bookies.storage.cache import WriteCache
from bookies.storage.checkpoint.flushes import Flusher
from bookies.storage.checkpoint.index_writes import IndexWriter
from bookies.storage.checkpoint.mark_files import MarkFiles, Marks
from bookies.storage.disks.directories import current
from bookies.storage.disks.durable_files import SyncFailed, run_last
from bookies.storage.journal import Journal


class JournalGrowth:
    """The journals as checkpoints see them. There are none until they have opened."""

    def __init__(self, size_max: int) -> None:
        self.journals: Sequence[Journal] = ()
        self._size_max = size_max
        self._checkpointed_size = 0

    @property
    def marks(self) -> Marks:
        return tuple(journal.mark for journal in self.journals)

    @property
    def _size(self) -> int:
        return sum(journal.size for journal in self.journals)

    @property
    def is_large(self) -> bool:
        """Report whether the journals have grown so much since the last checkpoint that one is due."""
        return self._size - self._checkpointed_size >= self._size_max

    async def cut(self, marks: Marks) -> None:
        """Delete the files before the persisted marks."""
        self._checkpointed_size = self._size
        for journal, mark in zip(self.journals, marks, strict=bool(self.journals)):
            await journal.delete_before(mark.journal_id)


class Checkpointer:
    """Runs checkpoints, one at a time, and holds what takes part in them. Owned by the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        cache: WriteCache,
        index_writer: IndexWriter,
        on_change: Callable[[], None],
        activities: Activities,
    ) -> None:
        self.times = Distribution()  # seconds
        self.persisted: Marks = ()
        ledgers = [current(path) for path in config.ledger_directories]
        self.mark_files = MarkFiles(runtime.disk, ledgers, len(config.journal_directories))
        self.worker = index_writer.worker
        self.log = index_writer.log
        self.index_writer = index_writer
        self.flusher = Flusher(runtime, cache, index_writer, self._rotated, on_change, activities)
        self._journals = JournalGrowth(config.checkpoint_journal_size)
        self._clock = runtime.clock
        self.activities = activities
        self._events = Events("storage.checkpoint", runtime.clock)
        self._interval_s = config.checkpoint_interval_ms / 1000
        self._wanted = asyncio.Event()
        self._lock = asyncio.Lock()

    def start(self, tasks: Tasks) -> asyncio.Task[None]:
        """Start the task that flushes."""
        return tasks.start(self.flusher.run(), "flush")

    def serve(self, tasks: Tasks, journals: Sequence[Journal]) -> asyncio.Task[None]:
        """Start the task that checkpoints, after the journals have opened."""
        self._journals.journals = journals
        self.flusher.cache.current.marks = self._journals.marks
        return tasks.start(self._run(), "checkpoint")

    def _rotated(self) -> Marks:
        if self._journals.is_large:
            self._wanted.set()
        return self._journals.marks

    async def checkpoint(self, marks: Marks | None = None) -> None:
        """Make everything inserted so far durable outside the journal, persist the marks, delete journals.

        `marks`: the end of replay, when the journals are not open yet. Raises: DiskFull, OSError, after which it may be
        retried; SyncFailed.
        """
        async with self._lock:
            with self.activities.during("checkpoint"):
                await self._checkpoint(marks)

    async def _checkpoint(self, marks: Marks | None) -> None:
        began_s = self._clock.monotonic()
        cut = await self.flusher.flush_all(self._journals.marks)
        newest_ids = list(self.log.newest_ids)
        await self.index_writer.write(marks or cut, min((log_id for log_id in newest_ids if log_id >= 0), default=-1))
        self.persisted = await self.worker.run(self.mark_files.write, marks or cut)
        self.log.cover(newest_ids)
        self.times.record(self._clock.monotonic() - began_s)
        await self._journals.cut(self.persisted)
        self.log.index.forget_idle(lambda ledger_id: not self.flusher.cache.holds(ledger_id))

    async def roll_log(self, threshold: int) -> None:
        """Seal and cover the active entry logs of which less than `threshold` percent belong to known ledgers.

        Raises: DiskFull, OSError, SyncFailed.
        """
        async with self._lock:
            sealed_ids = await self.log.roll(threshold)
            if not sealed_ids:
                return
            await self.flusher.flush_all(self._journals.marks)  # sets the slots of entries written to it meanwhile
            self.log.note_sealed(sealed_ids)
        await self.checkpoint()

    async def _run(self) -> None:
        index, cache = self.log.index, self.flusher.cache
        while True:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._wanted.wait()
            except TimeoutError:
                if not (index.is_dirty or cache.size) and self._journals.marks == self.persisted:
                    continue
            self._wanted.clear()
            try:
                await self.checkpoint()
            except (OSError, StorageError) as error:
                if isinstance(error, SyncFailed) and not self.index_writer.failover.covers(error):
                    raise
                self._events.error("storage.checkpoint_failed", error=error, retry_s=self._interval_s)

    def close(self) -> None:
        """Close the files without a sync and end the workers. Blocks until their current work is done."""
        self.log.close()
        run_last(self.worker, self.log.index.close_files)
