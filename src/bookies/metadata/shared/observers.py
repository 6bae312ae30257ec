"""Watches of names in ZooKeeper or etcd: one task for each watched name, for any number of callbacks.

A task reads the watched state and registers a watch in one step, calls back those that do not know the state yet, and
waits until the store reports a change or the connection is lost. So no change is missed, several changes may become
one call, and an older state never follows a newer one. Source: metadata 5.3 and 6.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct

from bookies.errors import MetadataError
from bookies.metadata.interface import Watch
from bookies.metadata.interface.driver import BookieSet, LedgerEvent
from bookies.metadata.interface.watches import MISSING, NEVER_SEEN, Subscription
from bookies.metadata.shared.store_driver import RETRY_INTERVAL_S
from bookies.model import BookieMode
from bookies.runtime.tasks import Tasks

_Key = str | BookieMode
_Check = Callable[[Callable[[], None]], Awaitable[None]]  # reads the watched state and registers a watch


class WatchedNames(Struct, frozen=True):
    """A driver's access to the names that it watches. The callback passed to `version` or `present` is called once,
    after the next change, or when a change could be missed.

    `last_seen`: the version of a path that this driver read last, None if it has not read it. `version`: reads a
    path's current version. `present`: reads the bookies in a mode. `unwatch`: ends the calls of a callback.
    """

    last_seen: Callable[[str], int | None]
    version: Callable[[str, Callable[[], None]], Awaitable[int]]
    present: Callable[[BookieMode, Callable[[], None]], Awaitable[BookieSet]]
    unwatch: Callable[[Callable[[], None]], None]


class Observers:
    """The watches of one driver."""

    def __init__(self, names: WatchedNames, tasks: Tasks) -> None:
        self._names = names
        self._tasks = tasks
        self._ledgers: dict[Subscription[str, LedgerEvent], None] = {}
        self._records: dict[Subscription[str, None], None] = {}
        self._sets: dict[Subscription[BookieMode, BookieSet], None] = {}
        self._running: dict[_Key, tuple[asyncio.Task[None], asyncio.Event]] = {}

    def clear(self) -> None:
        """End all watches."""
        self._ledgers.clear()
        self._records.clear()
        self._sets.clear()

    def ledger(self, path: str | None, callback: Callable[[LedgerEvent], None]) -> Watch:
        """Watch a ledger, starting from the version that the caller has read; without one, the first call comes soon.

        `path`: None for an id that cannot have a path; such a watch never calls back.
        """
        if path is None:
            return Subscription(self._ledgers, "", callback, NEVER_SEEN)
        seen = self._names.last_seen(path)
        known = NEVER_SEEN if seen is None else seen
        watch = Subscription(self._ledgers, path, callback, known, self._cancelled)
        self._check_soon(path, lambda news: self._check_path(path, news))
        return watch

    def record(self, path: str, version: int, callback: Callable[[], None]) -> Watch:
        watch = Subscription(self._records, path, lambda _: callback(), version, self._cancelled)
        self._check_soon(path, lambda news: self._check_path(path, news))
        return watch

    def bookies(self, mode: BookieMode, callback: Callable[[BookieSet], None]) -> Watch:
        watch = Subscription(self._sets, mode, callback, NEVER_SEEN, self._cancelled)
        self._check_soon(mode, lambda news: self._check_set(mode, news))
        return watch

    # -- checks --------------------------------------------------------------------------------------------------
    async def _check_path(self, path: str, news: Callable[[], None]) -> None:
        version = await self._names.version(path, news)
        event = LedgerEvent.DELETED if version == MISSING else LedgerEvent.CHANGED
        for ledger in self._ledgers:
            if ledger.key == path and ledger.known != version:
                ledger.known = version
                ledger.deliver(event)
        for record in self._records:
            if record.key == path and record.known != version:
                record.known = version
                record.deliver(None)

    async def _check_set(self, mode: BookieMode, news: Callable[[], None]) -> None:
        bookies = await self._names.present(mode, news)
        for watch in self._sets:
            if watch.key is mode and bookies.version > watch.known:
                watch.known = bookies.version
                watch.deliver(bookies)

    def _check_soon(self, key: _Key, check: _Check) -> None:
        if key in self._running:
            self._running[key][1].set()
            return
        news = asyncio.Event()
        self._running[key] = (self._tasks.start(self._observe(check, news), f"watch of {key}"), news)

    async def _observe(self, check: _Check, news: asyncio.Event) -> None:
        callback = news.set  # one object: `unwatch` compares callbacks
        try:
            while True:
                news.clear()
                try:
                    await check(callback)
                except MetadataError:
                    await asyncio.sleep(RETRY_INTERVAL_S)
                    continue
                await news.wait()
        finally:
            self._names.unwatch(callback)

    def _cancelled(self, key: _Key) -> None:
        """End the task of a name after its last watch."""
        watched = [watch.key for watches in (self._ledgers, self._records, self._sets) for watch in watches]
        if key not in watched:
            task, _ = self._running.pop(key)
            task.cancel()
