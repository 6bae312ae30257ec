"""Work that a person waits for, and that a metadata store which is away for a while need not end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from bookies.errors import MetadataError
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.recovery_store import LedgerLock

AWAY_S = 90.0  # that the store may be away, beside what a single call takes
AGAIN_S = 5.0  # between two tries


class StoreOutageRetry:
    """`trouble`: of the store, since it answered last; None: it does. `kept`: locks to be given back."""

    def __init__(self, driver: MetadataDriver) -> None:
        self.trouble: str | None = None
        self.kept: list[LedgerLock] = []
        self._driver = driver

    def failed(self, error: MetadataError) -> None:
        """The store has not answered."""
        self.trouble = str(error)

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do it, and again when the store was away. Raises `MetadataError` when that lasts, or will not pass."""
        loop = asyncio.get_running_loop()
        away_s: float | None = None  # loop time of the first failure in a row
        while True:
            begun = loop.time()
            try:
                await work()
            except MetadataError as error:
                self.failed(error)
                if away_s is None or loop.time() - begun > AWAY_S:  # The store has been there meanwhile.
                    away_s = loop.time()
                if not error.retriable or loop.time() - away_s >= AWAY_S:
                    raise
            else:
                self.trouble = None
                return
            await asyncio.sleep(AGAIN_S)

    async def unlock(self, lock: LedgerLock | None = None) -> None:
        """Give it back, and those that could not be before. Raises `MetadataError`; then they are kept."""
        self.kept += [] if lock is None else [lock]
        while self.kept:
            oldest = self.kept.pop(0)
            try:
                await self._driver.recovery.unlock(oldest)
            except MetadataError:
                self.kept.append(oldest)
                raise
