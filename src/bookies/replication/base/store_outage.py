"""Retries of operator commands while the metadata store is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from bookies.errors import MetadataError
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.recovery_store import LedgerLock

AWAY_S = 90.0  # longest outage of the store, in addition to the time of a single call
AGAIN_S = 5.0  # between two attempts


class StoreOutageRetry:
    """Retries work while the metadata store is unavailable.

    trouble: error of the store since its last answer; None: it answers.
    kept: locks still to be released.
    """

    def __init__(self, driver: MetadataDriver) -> None:
        self.trouble: str | None = None
        self.kept: list[LedgerLock] = []
        self._driver = driver

    def failed(self, error: MetadataError) -> None:
        """Record that the store has not answered."""
        self.trouble = str(error)

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work`; repeat it after an outage of the store.

        Raises `MetadataError` for an outage of `AWAY_S`, or an error that is not retriable.
        """
        loop = asyncio.get_running_loop()
        failed_since: float | None = None  # loop time of the first of the consecutive failures
        while True:
            begun = loop.time()
            try:
                await work()
            except MetadataError as error:
                self.failed(error)
                if failed_since is None or loop.time() - begun > AWAY_S:  # The store was available meanwhile.
                    failed_since = loop.time()
                if not error.retriable or loop.time() - failed_since >= AWAY_S:
                    raise
            else:
                self.trouble = None
                return
            await asyncio.sleep(AGAIN_S)

    async def unlock(self, lock: LedgerLock | None = None) -> None:
        """Release a lock, and those that could not be released before. Raises `MetadataError`; then they are kept."""
        self.kept += [] if lock is None else [lock]
        while self.kept:
            oldest = self.kept.pop(0)
            try:
                await self._driver.recovery.unlock(oldest)
            except MetadataError:
                self.kept.append(oldest)
                raise
