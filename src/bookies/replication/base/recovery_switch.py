"""Switch of auto-recovery, with a watch. Source: metadata 8.10."""

from __future__ import annotations

import asyncio

from bookies.metadata.interface import RecoveryStore, Watch


class Switch:
    """Switch that allows repairs of ledgers. `is_on`: the last known state; `wait_on` and `is_off` ask the store."""

    def __init__(self, store: RecoveryStore) -> None:
        self._store = store
        self._is_stale = True
        self._change = asyncio.Event()  # replaced after each change, so that every waiter is notified
        self._watch: Watch | None = None
        self.is_on = True

    async def start(self) -> None:
        """Watch the switch and read it. Raises `MetadataError`."""
        self._watch = self._store.watch_switch(self._changed)
        await self._read()

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def wait_on(self) -> None:
        """Return when repairs are allowed. Raises `MetadataError`."""
        while await self.is_off():
            await self._change.wait()

    async def is_off(self) -> bool:
        """Report whether work in progress has to stop. Raises `MetadataError`."""
        if self._is_stale:
            await self._read()
        return not self.is_on

    def _changed(self) -> None:
        self._is_stale = True
        self._notify()

    def _notify(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def _read(self) -> None:
        self._is_stale = False
        try:
            self.is_on = await self._store.is_enabled()
        except BaseException:
            self._is_stale = True
            raise
        finally:
            self._notify()
