"""Peers that take their answers slowly or not at all, over real sockets, encrypted too, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import socket
from collections.abc import Callable

import pytest
from tests.live.test_security import LOOPS, SIZE_MAX, Place, Raw, run

import bookies as bk
from bookies.bookie.server import BookieServer
from bookies.bookie.transport import connection
from bookies.bookie.transport.pressure import ReadShare
from bookies.errors import Status
from bookies.wire.client import ResponseDecoder
from bookies.wire.messages import BatchReadRequest, ReadLacRequest, ReadRequest, ReadResponse, StartTlsRequest

pytestmark = pytest.mark.live

ENTRY_SIZE = 100_000
COUNT = 40  # 4 MB in one answer
RECEIVED_MAX = 64 << 10  # that the system takes for the reader


async def fill(place: Place) -> int:
    async with (
        bk.connect(place.uri) as store,
        store.create(ensemble=1, write_quorum=1, ack_quorum=1, password=b"") as ledger,
    ):
        await ledger.append_many([os.urandom(ENTRY_SIZE) for _ in range(COUNT)])
        return ledger.ledger_id


async def reader_of(server: BookieServer, place: Place, is_encrypted: bool) -> Raw:
    """A peer whose system takes little for it."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_MAX)
    made.connect(server.address)  # The system answers for the bookie.
    made.setblocking(False)
    peer = Raw(*await asyncio.open_connection(sock=made))
    if is_encrypted:
        assert (await peer.ask(StartTlsRequest(3, 1))).status is Status.OK
        await peer.encrypt(place)
    return peer


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if is_so():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not come to that")


async def left(*peers: Raw) -> None:
    for peer in peers:
        peer.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await peer.writer.wait_closed()


def batch(ledger_id: int) -> BatchReadRequest:
    return BatchReadRequest(2, 7, ledger_id, 0, COUNT, SIZE_MAX)


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "fastest"])
def test_what_nobody_takes_is_counted_and_given_up(
    tmp_path: pathlib.Path,
    loop: Callable[[], asyncio.AbstractEventLoop],
    is_encrypted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "STALL_CHECK_S", 0.05)
    place = Place(tmp_path)

    async def body() -> None:
        async with place.bookie(**place.tls()) as server:
            ledger_id = await fill(place)
            other = await Raw.connect(server)
            silent = await reader_of(server, place, is_encrypted)
            silent.send(batch(ledger_id))
            await until(lambda: server._reception.budget.size >= COUNT * ENTRY_SIZE)
            for _ in range(20):
                assert (await other.ask(ReadLacRequest(3, 1, ledger_id))).status is Status.OK
            assert server._reception.budget.size >= COUNT * ENTRY_SIZE, "the peer has taken next to nothing"
            monkeypatch.setattr(connection, "STALL_S", 0.1)  # Only now: on a busy machine the requests above take time.
            await until(lambda: len(server._reception.intake.connections()) == 1)
            assert server._reception.budget.size == 0
            await left(silent, other)

    run(body(), loop)


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "fastest"])
def test_who_takes_steadily_gets_everything(
    tmp_path: pathlib.Path,
    loop: Callable[[], asyncio.AbstractEventLoop],
    is_encrypted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading takes longer than the time after which a silent peer is disconnected while others wait for the memory."""
    monkeypatch.setattr(connection, "STALL_CHECK_S", 0.05)
    monkeypatch.setattr(connection, "STALL_PRESSED_S", 1.5)  # Pauses of this process must stay shorter.
    monkeypatch.setattr(ReadShare, "is_pressed", property(lambda share: True))
    place = Place(tmp_path)

    async def body() -> None:
        async with place.bookie(**place.tls()) as server:
            ledger_id = await fill(place)
            peer = await reader_of(server, place, is_encrypted)
            peer.send(*[batch(ledger_id)] * 2)
            for _ in range(2):
                head = await peer.reader.readexactly(4)
                rest = bytearray()
                size = int.from_bytes(head, "big")
                while len(rest) < size:
                    rest += await peer.reader.readexactly(min(32 << 10, size - len(rest)))
                    await asyncio.sleep(0.008)  # the pace of this reader: 4 MB/s at most
                (found,) = ResponseDecoder("v2", SIZE_MAX).feed(head + bytes(rest))
                assert found.status is Status.OK
                assert not isinstance(found, ReadResponse)
            await left(peer)

    run(body(), loop)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "fastest"])
def test_who_asks_and_says_no_more_gets_its_answers(
    tmp_path: pathlib.Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    place = Place(tmp_path)

    async def body() -> None:
        async with place.bookie() as server:
            ledger_id = await fill(place)
            peer = await reader_of(server, place, is_encrypted=False)
            peer.send(*[ReadRequest(2, 0, ledger_id, entry_id) for entry_id in range(8)])
            await until(lambda: server._reception.budget.size > 0)
            peer.writer.write_eof()
            for entry_id in range(8):
                found = await peer.response("v2")
                assert isinstance(found, ReadResponse)
                assert (found.status, found.entry_id) == (Status.OK, entry_id)
            assert await peer.is_closed()
            await left(peer)

    run(body(), loop)
