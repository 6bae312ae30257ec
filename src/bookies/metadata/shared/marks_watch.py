"""Watch for ledgers to repair in a store on servers: a task that checks whenever something may have changed.

The check is the store's own. A pause follows each check, so that many changes cause one check and one call.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable

from bookies.errors import MetadataError
from bookies.metadata.interface import Watch
from bookies.metadata.shared.store_driver import RETRY_INTERVAL_S
from bookies.runtime.tasks import Tasks

PAUSE_S = 0.25


class MarksWatch(Watch):
    """The watch of `RecoveryStore.watch_marks`. `is_work`: there may be work that was not reported yet."""

    def __init__(self, tasks: Tasks, callback: Callable[[], None]) -> None:
        self.is_work = True
        self.news = asyncio.Event()
        self.news.set()
        self._callback = callback
        self._is_cancelled = False
        self._task = tasks.start(self._run(), "watch of marks")

    @abstractmethod
    async def _check(self) -> None:
        """Determine `is_work`, and register watches that set `news`. Repeated after a failure."""

    @abstractmethod
    def _end(self) -> None:
        """Remove the watches."""

    async def _run(self) -> None:
        try:
            while True:
                await self.news.wait()
                self.news.clear()
                try:
                    await self._check()
                except MetadataError:
                    self.news.set()
                    await asyncio.sleep(RETRY_INTERVAL_S)
                    continue
                if self.is_work:
                    self.is_work = False
                    asyncio.get_running_loop().call_soon(self._notify)
                await asyncio.sleep(PAUSE_S)
        finally:
            self._end()

    def _notify(self) -> None:
        if not self._is_cancelled:
            self._callback()

    def cancel(self) -> None:
        self._is_cancelled = True
        self._task.cancel()
