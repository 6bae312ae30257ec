"""Flushes: a generation of the write cache goes into the entry log, and its slots into the index.

F-25: a failed flush is repeated from where it failed, before anything newer is flushed or a mark is moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice

from bookies.errors import DiskFull, StorageError
from bookies.runtime.activities import Activities
from bookies.runtime.events import Events
from bookies.runtime.histogram import Distribution
from bookies.runtime.ports import Runtime
from bookies.storage.cache import WriteCache
from bookies.storage.cache.write_cache import AddRun, Generation, Run
from bookies.storage.checkpoint.index_writes import IndexWriter
from bookies.storage.checkpoint.mark_files import Marks

SLICE_SIZE = 1 << 20  # bytes of entries written to the entry log by one call of the worker
RETRY_S = 1.0  # seconds between attempts to flush while writes fail


class Flusher:
    """Flushes one generation of the cache at a time. Owned by the loop's thread.

    `rotated()`: called when a generation is complete; returns the marks of the journals.
    `on_change`: called after every end of a flush.
    """

    def __init__(
        self,
        runtime: Runtime,
        cache: WriteCache,
        index_writer: IndexWriter,
        rotated: Callable[[], Marks],
        on_change: Callable[[], None],
        activities: Activities,
    ) -> None:
        self.problem = ""  # the reason why the last attempt failed, otherwise empty
        self.flushed_size = 0  # bytes of flushed generations
        self.times = Distribution()  # seconds
        self.cache = cache
        self._index_writer = index_writer
        self._rotated = rotated
        self._on_change = on_change
        self._clock = runtime.clock
        self._activities = activities
        self._events = Events("storage.checkpoint", runtime.clock)
        self._written_runs = 0  # runs of the snapshot written so far, also by an attempt that failed later
        self._written_mixed = 0  # entries of its mixed runs written so far
        self._waiters: list[asyncio.Future[None]] = []
        self._wanted = asyncio.Event()

    def inserted(self) -> None:
        """Begin a flush if the cache needs one. Call after every insertion into the cache."""
        if self.cache.is_due and self.cache.snapshot is None:
            self._rotate()

    def _rotate(self) -> None:
        self._wanted.set()
        self._written_runs = self._written_mixed = 0
        self.cache.rotate(self._rotated())

    async def wait_room(self) -> None:
        """Wait until the cache is not congested. Raises the error of a failed flush."""
        while self.cache.is_congested:
            await self._wait_flush()

    async def _wait_flush(self) -> None:
        """Wait for the next end of a flush. Raises its error."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        await future

    async def flush_all(self, marks: Marks) -> Marks:
        """Flush everything inserted before now; return marks before which no entry is left in the cache.

        `marks`: of the journals now. Waits only for what is in the cache now. Under a load that fills generations
        faster than they are flushed, a checkpoint that waited for an empty cache would starve.
        """
        last = self.cache.current
        if not last.is_empty:
            while self.cache.current is last:
                if self.cache.snapshot is None:
                    self._rotate()
                else:
                    await self._wait_flush()
            marks = last.end
        else:
            last = self.cache.snapshot or last
        while self.cache.snapshot is last:
            await self._wait_flush()
        return marks

    async def run(self) -> None:
        """Flush forever. Raises: StorageError, OSError."""
        failover, worker = self._index_writer.failover, self._index_writer.worker
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self.cache.snapshot is not None:
                began_s, size = self._clock.monotonic(), self.cache.snapshot.size
                try:
                    with self._activities.during("flush"):
                        await self._flush(self.cache.snapshot)
                except (OSError, StorageError) as error:
                    if await failover.survives(error, worker):
                        await asyncio.sleep(0)
                        continue
                    if not isinstance(error, OSError | DiskFull):
                        raise
                    self._events.error("storage.flush_failed", error=error, retry_s=RETRY_S)
                    self._flush_ended(error)
                    await asyncio.sleep(RETRY_S)
                else:
                    self.times.record(self._clock.monotonic() - began_s)
                    self.flushed_size += size
                    self._flush_ended(None)

    async def _flush(self, snapshot: Generation) -> None:
        """Write the rest of the snapshot to the entry log, a slice at a time, and set its slots."""
        runs = islice(snapshot.runs(), self._written_runs, None)  # lazy, because some runs are joined copies
        while batch := list(_take_slice(runs)):
            await self._index_writer.log.write(batch)
            self._written_runs += len(batch)
            await self._index_writer.relieve()
        if snapshot.mixed:
            await self._flush_mixed(snapshot.mixed)

    async def _flush_mixed(self, mixed: list[AddRun]) -> None:
        """Flush the mixed runs, sorted by ledger and entry. They follow the other runs, whose copies are older."""
        log = self._index_writer.log
        sorted_entries = await log.sort(mixed)
        while self._written_mixed < len(sorted_entries):
            self._written_mixed += await log.write_sorted(sorted_entries, self._written_mixed)
            await self._index_writer.relieve()

    def _flush_ended(self, error: Exception | None) -> None:
        self.problem = "" if error is None else str(error) or repr(error)
        if error is None:
            self.cache.drop_snapshot()
            if self.cache.is_due:
                self._rotate()
        self._wake(error)
        self._on_change()

    def _wake(self, error: Exception | None) -> None:
        """End the waits for a flush."""
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def abort(self, error: BaseException) -> None:
        """Fail everyone who waits for a flush: there will be no further flush."""
        self._wake(StorageError(f"the storage has failed: {error}"))


def _take_slice(runs: Iterator[tuple[int, Run]]) -> Iterator[tuple[int, Run]]:
    """Yield the next runs, up to `SLICE_SIZE` bytes for one call of the worker."""
    size = 0
    for ledger_id, run in runs:
        yield ledger_id, run
        size += run.records.size
        if size >= SLICE_SIZE:
            return
