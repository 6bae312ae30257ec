"""The watches of one etcd client, all on one stream, which is opened with the first watch.

When the stream breaks, every callback is called, because changes may have been missed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Protocol

from bookies.errors import ClientClosed, MetadataError
from bookies.metadata.etcd.etcd_messages import pack_unwatch, pack_watch, parse_watch_news
from bookies.metadata.etcd.etcd_port import Only
from bookies.runtime.tasks import Tasks

RETRY_S = 0.2  # between two streams
_Callback = Callable[[], None]


class Stream(Protocol):
    """A bidirectional call. Raises `MetadataError` after it has broken."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes: ...

    def cancel(self) -> None: ...


class Watches:
    """The watches of one client. `connect`: opens a new stream; raises `MetadataError`."""

    def __init__(self, connect: Callable[[], Awaitable[Stream]], tasks: Tasks) -> None:
        self._connect = connect
        self._tasks = tasks
        self._callbacks: dict[int, _Callback] = {}  # by the number of the watch on the stream
        self._numbers: dict[_Callback, list[int]] = {}
        self._count = 0
        self._requests: asyncio.Queue[bytes] = asyncio.Queue()  # not sent yet
        self._is_running = False

    def watch(
        self, key: str, stop: str | None, revision: int, callback: _Callback, *, only: Only | None = None
    ) -> None:
        """Add a watch, see `Etcd.watch`."""
        self._count += 1
        self._callbacks[self._count] = callback
        self._numbers.setdefault(callback, []).append(self._count)
        self._requests.put_nowait(pack_watch(self._count, key, stop, revision, only=only))
        if not self._is_running:
            self._is_running = True
            self._tasks.start(self._run(), "watches of etcd")

    def unwatch(self, callback: _Callback) -> None:
        """Remove a callback's watches: it is not called any more."""
        for number in self._numbers.pop(callback, []):
            del self._callbacks[number]
            self._requests.put_nowait(pack_unwatch(number))

    async def _run(self) -> None:
        """Use one stream until it breaks."""
        try:
            stream = await self._connect()
            sender = asyncio.ensure_future(self._send(stream))
            try:
                while True:
                    self._hear(await stream.receive())
            finally:
                stream.cancel()
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)
        except (MetadataError, ClientClosed):
            await asyncio.sleep(RETRY_S)
        # The callbacks register new watches, and the first of them opens a new stream.
        self._is_running = False
        self._requests = asyncio.Queue()
        broken, self._callbacks, self._numbers = list(self._numbers), {}, {}
        for callback in broken:
            callback()

    async def _send(self, stream: Stream) -> None:
        with contextlib.suppress(MetadataError, ClientClosed):  # The receiver gets the error too.
            while True:
                await stream.send(await self._requests.get())

    def _hear(self, data: bytes) -> None:
        news = parse_watch_news(data)
        callback = self._callbacks.get(news.number)
        if callback is None or not (news.has_events or news.is_ended):
            return
        del self._callbacks[news.number]
        numbers = self._numbers[callback]
        numbers.remove(news.number)
        if not numbers:
            del self._numbers[callback]
        if not news.is_ended:
            self._requests.put_nowait(pack_unwatch(news.number))
        callback()
