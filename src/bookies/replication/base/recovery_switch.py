"""The switch of auto-recovery, watched. Source: metadata 8.10."""

from __future__ import annotations

import asyncio

from bookies.metadata.interface import RecoveryStore, Watch


class Switch:
    """Whether ledgers may be repaired, as far as we know; whoever waits for it asks the store."""

    def __init__(self, store: RecoveryStore) -> None:
        self._store = store
        self._is_stale = True
        self._news = asyncio.Event()  # another one after each piece of news, so that all who wait hear of it
        self._watch: Watch | None = None
        self.is_on = True

    async def start(self) -> None:
        """Raises `MetadataError`."""
        self._watch = self._store.watch_switch(self._changed)
        await self._read()

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def wait_on(self) -> None:
        """Return when repairs are allowed. Raises `MetadataError`."""
        while await self.is_off():
            await self._news.wait()

    async def is_off(self) -> bool:
        """Whether work that is under way has to stop. Raises `MetadataError`."""
        if self._is_stale:
            await self._read()
        return not self.is_on

    def _changed(self) -> None:
        self._is_stale = True
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _read(self) -> None:
        self._is_stale = False
        try:
            self.is_on = await self._store.is_enabled()
        except BaseException:
            self._is_stale = True
            raise
        finally:
            self._tell()
