"""Watches on one stream: who is told what, and when the stream breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bookies.errors import MetadataError
from bookies.metadata.etcd import etcd_watches
from bookies.metadata.etcd.etcd_messages import pack_unwatch, pack_watch
from bookies.metadata.etcd.etcd_port import OutcomeUnknown
from bookies.metadata.etcd.etcd_watches import Watches
from bookies.runtime.tasks import Tasks

EVENT = b"\x5a\x02\x08\x01"  # field 11


class FakeStream:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.is_cancelled = False

    async def send(self, data: bytes) -> None:
        self.sent.append(data)

    async def receive(self) -> bytes:
        data = await self.answers.get()
        if not data:
            raise OutcomeUnknown("broken")
        return data

    def cancel(self) -> None:
        self.is_cancelled = True


class World:
    """`streams`: made so far. `refusals`: of the next attempts to make one."""

    def __init__(self) -> None:
        self.streams: list[FakeStream] = []
        self.refusals = 0
        self.told: asyncio.Queue[str] = asyncio.Queue()
        self.tasks = Tasks(lambda cause: pytest.fail(repr(cause)))
        self.watches = Watches(self._connect, self.tasks)
        self.callbacks = {name: self._callback(name) for name in "ab"}

    def _callback(self, name: str) -> Callable[[], None]:
        return lambda: self.told.put_nowait(name)

    async def _connect(self) -> FakeStream:
        if self.refusals:
            self.refusals -= 1
            raise MetadataError("nobody there")
        self.streams.append(FakeStream())
        return self.streams[-1]

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


def play(body: Callable[[World], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_watches, "RETRY_S", 0.01)

    async def main() -> None:
        world = World()
        async with asyncio.timeout(120):
            await body(world)
            await world.tasks.stop()

    asyncio.run(main())


def test_each_watch_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(world: World) -> None:
        a, b = world.callbacks.values()
        world.watches.watch("x", None, 5, a)
        world.watches.watch("y/", "y0", 6, b)
        await world.settle()
        stream = world.streams[0]
        assert stream.sent == [pack_watch(1, "x", None, 5), pack_watch(2, "y/", "y0", 6)]
        stream.answers.put_nowait(b"\x10\x01\x18\x01")  # it was made
        stream.answers.put_nowait(b"\x10\x02" + EVENT)
        stream.answers.put_nowait(b"\x10\x02" + EVENT)
        assert await world.told.get() == "b"
        await world.settle()
        assert stream.sent[2:] == [pack_unwatch(2)]
        stream.answers.put_nowait(b"\x10\x01\x20\x01")  # etcd ended it
        assert await world.told.get() == "a"
        world.watches.watch("x", None, 7, a)
        world.watches.unwatch(a)
        world.watches.unwatch(b)
        await world.settle()
        assert stream.sent[3:] == [pack_watch(3, "x", None, 7), pack_unwatch(3)]
        assert world.told.empty()
        assert len(world.streams) == 1

    play(body, monkeypatch)


def test_when_the_stream_breaks_all_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(world: World) -> None:
        a, b = world.callbacks.values()
        for callback in (a, b, a):
            world.watches.watch("x", None, 5, callback)
        await world.settle()
        world.streams[0].answers.put_nowait(b"")
        assert [await world.told.get() for _ in range(2)] == ["a", "b"]
        assert world.told.empty()
        assert world.streams[0].is_cancelled
        assert len(world.streams) == 1, "nobody watches"
        world.refusals = 1
        world.watches.watch("x", None, 6, a)
        assert await world.told.get() == "a"
        world.watches.watch("x", None, 7, a)
        await world.settle()
        assert world.streams[1].sent == [pack_watch(5, "x", None, 7)]

    play(body, monkeypatch)
