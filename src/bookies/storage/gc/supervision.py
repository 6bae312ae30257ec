"""Supervision of the collection: failures of its steps are isolated, and a run without progress ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from bookies.runtime.events import Events
from bookies.storage.disks.durable_files import SyncFailed
from bookies.storage.engine import StorageParts

LOGS_WAIT_S = 60.0  # wait for a rebuild of index files, which uses the same logs; each such period counts as progress
STALL_S = 900.0  # a run without progress for this time is cancelled


class Supervision:
    """Supervision of one run at a time and its steps."""

    def __init__(self, parts: StorageParts, events: Events) -> None:
        self.failure_count = 0  # steps that failed
        self.restart_count = 0  # runs that were cancelled
        self.is_running = False
        self._progress_count = 0
        self._parts = parts
        self._events = events

    def progressed(self) -> None:
        """Note that the present run is not stalled."""
        self._progress_count += 1

    async def guard(self, job: str, work: Awaitable[None]) -> bool:
        """Run one step and isolate its failure. Return whether it succeeded. Raises: SyncFailed."""
        is_done = False
        try:
            await work
            is_done = True
        except Exception as error:
            if isinstance(error, SyncFailed) and not self._parts.checkpointer.index_writer.failover.covers(error):
                raise
            self.failure_count += 1
            self._events.error("gc.job_failed", job=job, error=error)
        self.progressed()
        return is_done

    async def removing(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a step that removes entry logs, while no rebuild of an index file reads them."""
        lock = self._parts.rebuilder.logs_lock
        while True:
            try:
                async with asyncio.timeout(LOGS_WAIT_S):
                    await lock.acquire()
                break
            except TimeoutError:
                self.progressed()  # The wait does not count as a stall.
        try:
            await work()
        finally:
            lock.release()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run until the work is done, or has made no progress for `STALL_S`. Raises: SyncFailed."""
        task = asyncio.ensure_future(work)
        self.is_running = True
        try:
            while not task.done():
                before = self._progress_count
                await asyncio.wait([task], timeout=STALL_S)
                if not task.done() and self._progress_count == before:
                    self.restart_count += 1
                    self._events.error("gc.stalled", seconds=STALL_S)
                    break
        finally:
            self.is_running = False
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()
