"""The client inside a Spark worker: one event loop thread and one connection pool a process, reused by its tasks.

Workers are forked, and a fork carries no threads, so what is cached is bound to the process id. Nothing depends on
being closed: an idle worker goes away without a word. Source: spark 1.2 and 3.5.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from bookies.errors import BookieUnreachable

T = TypeVar("T")
_worker: Worker | None = None
_END = object()


class Worker:
    """An event loop on a thread of its own, for as long as the process lives."""

    def __init__(self) -> None:
        from bookies.runtime import aio

        self.pid = os.getpid()
        self.runtime = aio.runtime()
        self.loop = aio.new_event_loop()
        thread = threading.Thread(target=self.loop.run_forever, name="bookies", daemon=True)
        thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on the loop and wait for its end; an interruption of the wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it on the loop, and do not wait."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def iterate(
        self, make: Callable[[], AsyncGenerator[T, None]], size_of: Callable[[T], int], size_max: int
    ) -> Iterator[T]:
        """What the asynchronous generator yields, fetched ahead by at most `size_max` bytes (or one item)."""
        return _Ahead(self, make, size_of, size_max).items()


class _Ahead(Generic[T]):
    """A bounded channel from a coroutine on the loop to the thread that iterates."""

    def __init__(
        self, worker: Worker, make: Callable[[], AsyncGenerator[T, None]], size_of: Callable[[T], int], size_max: int
    ) -> None:
        self._worker, self._make, self._size_of, self._size_max = worker, make, size_of, size_max
        self._items: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()
        self._size = 0
        self._room = asyncio.Event()

    def items(self) -> Iterator[T]:
        task = asyncio.run_coroutine_threadsafe(self._fetch(), self._worker.loop)
        try:
            while True:
                item, size = self._items.get()
                if item is _END:
                    task.result()
                    return
                yield item
                self._worker.loop.call_soon_threadsafe(self._taken, size)
        finally:
            task.cancel()

    async def _fetch(self) -> None:
        try:
            async with contextlib.aclosing(self._make()) as items:
                async for item in items:
                    size = self._size_of(item)
                    while self._size and self._size + size > self._size_max:
                        self._room.clear()
                        await self._room.wait()
                    self._size += size
                    self._items.put((item, size))
        finally:
            self._items.put((_END, 0))

    def _taken(self, size: int) -> None:
        self._size -= size
        self._room.set()


def worker() -> Worker:
    """This process's worker."""
    global _worker
    if _worker is None or _worker.pid != os.getpid():
        _worker = Worker()
    return _worker


def resolver(addresses: dict[str, tuple[str, int]]) -> Callable[[str], Coroutine[Any, Any, tuple[str, int]]]:
    """Addresses from the partition instead of the metadata store."""

    async def resolve(bookie: str) -> tuple[str, int]:
        if bookie not in addresses:
            raise BookieUnreachable("was not registered when the query was planned", bookie=bookie)
        return addresses[bookie]

    return resolve
