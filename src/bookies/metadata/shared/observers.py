"""Watches of what is in ZooKeeper or etcd: one task for each thing that is watched, however many callbacks watch it.

A task looks at what is watched and leaves a watch behind in one step, tells those who have not heard of what it sees,
and waits for the store, or a lost connection, to say that it should look again. So nothing is missed, several changes
may become one call, and an older state never follows a newer. Source: metadata 5.3 and 6.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bookies.errors import MetadataError
from bookies.metadata.interface import Watch
from bookies.metadata.interface.driver import BookieSet, LedgerEvent
from bookies.metadata.interface.watches import MISSING, NEVER_SEEN, Subscription
from bookies.metadata.shared.store_driver import RETRY_INTERVAL_S
from bookies.model import BookieMode
from bookies.runtime.tasks import Tasks

_Key = str | BookieMode
_Look = Callable[[Callable[[], None]], Awaitable[None]]  # at what is watched, leaving the watch behind


@dataclass(frozen=True, slots=True)
class Eyes:
    """How a driver looks. `News` are called once after the next change of what was seen, or when that can be missed.

    `last_seen`: the version of a path that this driver saw last, None if it has not looked. `version`, `present`: what
    is there now, and the news from then on. `unwatch`: these news are not called any more.
    """

    last_seen: Callable[[str], int | None]
    version: Callable[[str, Callable[[], None]], Awaitable[int]]
    present: Callable[[BookieMode, Callable[[], None]], Awaitable[BookieSet]]
    unwatch: Callable[[Callable[[], None]], None]


class Observers:
    """The watches of one driver."""

    def __init__(self, eyes: Eyes, tasks: Tasks) -> None:
        self._eyes = eyes
        self._tasks = tasks
        self._ledgers: dict[Subscription[str, LedgerEvent], None] = {}
        self._records: dict[Subscription[str, None], None] = {}
        self._sets: dict[Subscription[BookieMode, BookieSet], None] = {}
        self._running: dict[_Key, tuple[asyncio.Task[None], asyncio.Event]] = {}

    def clear(self) -> None:
        """Nobody is called any more."""
        self._ledgers.clear()
        self._records.clear()
        self._sets.clear()

    def ledger(self, path: str | None, callback: Callable[[LedgerEvent], None]) -> Watch:
        """What our caller has read is the state it starts from; of a ledger it has not read, it hears once at least.

        Without a path: of an id that can have none, which there is nothing to say of.
        """
        if path is None:
            return Subscription(self._ledgers, "", callback, NEVER_SEEN)
        seen = self._eyes.last_seen(path)
        known = NEVER_SEEN if seen is None else seen
        watch = Subscription(self._ledgers, path, callback, known, self._cancelled)
        self._look_soon(path, lambda news: self._look_at_path(path, news))
        return watch

    def record(self, path: str, version: int, callback: Callable[[], None]) -> Watch:
        watch = Subscription(self._records, path, lambda _: callback(), version, self._cancelled)
        self._look_soon(path, lambda news: self._look_at_path(path, news))
        return watch

    def bookies(self, mode: BookieMode, callback: Callable[[BookieSet], None]) -> Watch:
        watch = Subscription(self._sets, mode, callback, NEVER_SEEN, self._cancelled)
        self._look_soon(mode, lambda news: self._look_at_set(mode, news))
        return watch

    # -- looking -------------------------------------------------------------------------------------------------
    async def _look_at_path(self, path: str, news: Callable[[], None]) -> None:
        version = await self._eyes.version(path, news)
        event = LedgerEvent.DELETED if version == MISSING else LedgerEvent.CHANGED
        for ledger in self._ledgers:
            if ledger.key == path and ledger.known != version:
                ledger.known = version
                ledger.deliver(event)
        for record in self._records:
            if record.key == path and record.known != version:
                record.known = version
                record.deliver(None)

    async def _look_at_set(self, mode: BookieMode, news: Callable[[], None]) -> None:
        found = await self._eyes.present(mode, news)
        for each in self._sets:
            if each.key is mode and found.version > each.known:
                each.known = found.version
                each.deliver(found)

    def _look_soon(self, key: _Key, look: _Look) -> None:
        if key in self._running:
            self._running[key][1].set()
            return
        news = asyncio.Event()
        self._running[key] = (self._tasks.start(self._observe(look, news), f"watch of {key}"), news)

    async def _observe(self, look: _Look, news: asyncio.Event) -> None:
        told = news.set  # the same object each time, by which it is known
        try:
            while True:
                news.clear()
                try:
                    await look(told)
                except MetadataError:
                    await asyncio.sleep(RETRY_INTERVAL_S)
                    continue
                await news.wait()
        finally:
            self._eyes.unwatch(told)

    def _cancelled(self, key: _Key) -> None:
        """The last watch of something ends its task."""
        watched = [each.key for watches in (self._ledgers, self._records, self._sets) for each in watches]
        if key not in watched:
            task, _ = self._running.pop(key)
            task.cancel()
