"""Switch of auto-recovery, with a watch. Source: metadata 8.10."""

from __future__ import annotations

import asyncio

from bookies.errors import MetadataError
from bookies.metadata.interface import RecoveryStore, Watch


class Switch:
    """Switch that allows repairs of ledgers. `is_on`: the last known state; `wait_on` and `is_off` ask the store.

    Invariant: no answer is older than the last change that the watch has reported. While a change is unread or a read
    is in flight, a question is answered by a read that began after it. Such reads follow each other, and each answers
    all questions that were asked before it began. Otherwise the last read answers, without a request.
    """

    def __init__(self, store: RecoveryStore) -> None:
        self._store = store
        self._is_stale = True
        self._change = asyncio.Event()  # replaced after each change, so that every waiter is notified
        self._watch: Watch | None = None
        self._turn = asyncio.Lock()  # of the read in flight
        self._begun = self._ended = 0  # reads
        self._failure: MetadataError | None = None  # of the read that ended last
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
        while True:
            change = self._change  # before the question, so that a change during its read is not missed
            if not await self.is_off():
                return
            await change.wait()

    async def is_off(self) -> bool:
        """Report whether work in progress has to stop. Raises `MetadataError`."""
        if self._is_stale or self._turn.locked():
            await self._read()
        return not self.is_on

    def _changed(self) -> None:
        self._is_stale = True
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def _read(self) -> None:
        """Return after a read that began after this call, or raise its error."""
        asked = self._begun
        async with self._turn:
            if self._ended <= asked:  # otherwise another question has caused such a read
                self._begun += 1
                self._is_stale, self._failure = False, None
                try:
                    self.is_on = await self._store.is_enabled()
                except MetadataError as error:
                    self._is_stale, self._failure = True, error
                except BaseException:
                    self._is_stale = True
                    raise
                self._ended = self._begun
            if self._failure is not None:
                raise self._failure
