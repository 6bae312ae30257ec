"""Connections that come while the bookie takes in nothing, on the loops that a bookie runs on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from bookies.bookie.transport.connection import Connection, Surroundings
from bookies.bookie.transport.pressure import Intake, ReadBudget
from bookies.runtime import aio
from bookies.runtime.events import Events
from bookies.wire.client import encode_request
from bookies.wire.messages import AddRequest, Request

from .conftest import SIZE_MAX, adds

READ_SIZE_MAX = 256 << 10  # bytes that asyncio and uvloop read at once


class Sink:
    """A service that only counts what reaches it."""

    def __init__(self) -> None:
        self.size = 0
        self.came = asyncio.Event()

    def handle(self, connection: Connection, requests: list[Request]) -> None:
        self.size += sum(each.adds.records.size for each in requests if isinstance(each, AddRequest))
        self.came.set()


@pytest.mark.parametrize("run", [asyncio.run, aio.run], ids=["asyncio", "uvloop"])
def test_a_connection_that_comes_while_all_are_paused_is_paused_too(run: Callable[[Any], None]) -> None:
    """uvloop begins to read after `connection_made`, although that has paused: one read may come through, no more."""
    batch = adds(1, range(100), size=40_000)
    frames = b"".join(map(bytes, encode_request(batch)))

    async def main() -> None:
        sink, intake = Sink(), Intake(1, lambda: False, lambda _: None)
        intake.accepted(2)
        intake.check()
        made: list[Connection] = []

        def accept() -> Connection:
            surroundings = Surroundings(sink, intake, Events("bookie", aio.SystemClock()), SIZE_MAX)
            made.append(Connection(surroundings, ReadBudget(SIZE_MAX).new_share()))
            return made[-1]

        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(accept, sock=theirs)
        sending = asyncio.create_task(loop.sock_sendall(ours, frames))
        try:
            if type(loop).__module__.startswith("uvloop"):
                await sink.came.wait()
            assert not transport.is_reading()
            assert sink.size <= READ_SIZE_MAX
            intake.answered(2)
            assert transport.is_reading()
            await sending
            while sink.size < batch.adds.records.size:
                sink.came.clear()
                await sink.came.wait()
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            ours.close()
            transport.abort()
            await intake.wait_empty()

    run(main())
