"""Watching for work in a store on servers: a task that looks whenever something may have changed.

How to look is the store's own. Between two looks there is a pause, so that many changes are one look and one call.
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
    """See `RecoveryStore.watch_marks`. `is_work`: there may be some that was not there when we told of it last."""

    def __init__(self, tasks: Tasks, callback: Callable[[], None]) -> None:
        self.is_work = True
        self.news = asyncio.Event()
        self.news.set()
        self._callback = callback
        self._is_cancelled = False
        self._task = tasks.start(self._run(), "watch of marks")

    @abstractmethod
    async def _look(self) -> None:
        """Find out whether `is_work`, and leave watches behind that set `news`. Repeated after a failure."""

    @abstractmethod
    def _end(self) -> None:
        """Take the watches back."""

    async def _run(self) -> None:
        try:
            while True:
                await self.news.wait()
                self.news.clear()
                try:
                    await self._look()
                except MetadataError:
                    self.news.set()
                    await asyncio.sleep(RETRY_INTERVAL_S)
                    continue
                if self.is_work:
                    self.is_work = False
                    asyncio.get_running_loop().call_soon(self._tell)
                await asyncio.sleep(PAUSE_S)
        finally:
            self._end()

    def _tell(self) -> None:
        if not self._is_cancelled:
            self._callback()

    def cancel(self) -> None:
        self._is_cancelled = True
        self._task.cancel()
