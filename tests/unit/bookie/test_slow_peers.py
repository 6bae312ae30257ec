"""A connection whose peer leaves its answers: what is in memory for it counts until it is gone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bookies.bookie.transport.connection import STALL_S, UNSENT_SIZE_MAX, UNSENT_SIZE_MIN, Connection, Surroundings
from bookies.bookie.transport.pressure import Intake, ReadBudget
from bookies.bookie.transport.secure_connection import SecureConnection
from bookies.errors import Status
from bookies.runtime.aio import SystemClock
from bookies.runtime.events import Events
from bookies.wire.messages import BatchReadRequest, ReadRequest, ReadResponse, StartTlsRequest

from .conftest import World, adds

BUDGET = 8 << 20


class HeldTransport(asyncio.Transport):
    """Keeps what it is given until somebody takes it, and tells its protocol as a socket's does."""

    def __init__(self, protocol: Connection) -> None:
        super().__init__()
        self.protocol = protocol
        self.written: list[int] = []  # bytes of each call
        self.held = 0
        self.is_full = self.is_ended = self.is_aborted = False
        self.protocol.connection_made(self)

    def get_write_buffer_size(self) -> int:
        return self.held

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == UNSENT_SIZE_MIN

    def is_closing(self) -> bool:
        return self.is_aborted

    def write(self, data: Any) -> None:
        self.written.append(len(data))
        self.held += len(data)
        if self.held > UNSENT_SIZE_MIN and not self.is_full:
            self.is_full = True
            self.protocol.pause_writing()

    def take(self) -> None:
        """The peer takes everything that is here."""
        self.held = 0
        if self.is_full:
            self.is_full = False
            self.protocol.resume_writing()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_ended = True

    def abort(self) -> None:
        self.is_aborted = True


def answer(size: int) -> ReadResponse:
    return ReadResponse(2, 0, Status.OK, 1, 0, bytes(size))


class Meeting:
    """A connection that has no service, with a peer that takes what it is told to. `security`: of one with TLS."""

    def __init__(self, security: Any = None) -> None:
        self.budget = ReadBudget(BUDGET)
        self.share = self.budget.new_share()
        intake = Intake(1 << 20, lambda: False, lambda resume: None)
        service: Any = None
        rest = Surroundings(service, intake, Events("bookies.test", SystemClock()), 5 << 20), self.share
        self.connection = Connection(*rest) if security is None else SecureConnection(security, False, *rest)
        self.transport = HeldTransport(self.connection)

    def respond(self, size: int) -> None:
        self.share.take(size)
        self.connection.respond(answer(size), size)


async def turn() -> None:
    await asyncio.sleep(0)


def test_answers_count_until_they_are_out_of_our_hands() -> None:
    async def main() -> None:
        meeting = Meeting()
        meeting.respond(100_000)
        await turn()
        assert meeting.transport.is_full
        assert meeting.budget.size == 100_000
        meeting.respond(200_000)
        meeting.transport.take()  # of the first, in the very turn in which there is a second
        assert meeting.transport.held > 200_000
        assert meeting.budget.size == 300_000, "the peer has the first, and we do not know that"
        await turn()
        meeting.transport.take()
        assert meeting.budget.size == 0
        assert meeting.connection.share.maybe_take(BUDGET // 8), "it has taken its answers"

    asyncio.run(main())


def test_what_a_slow_peer_is_sent_waits_its_turn() -> None:
    """Nothing is written to a transport that has not got rid of what it has, and all of it comes in its order."""

    async def main() -> None:
        meeting = Meeting()
        for size in (100_000, 300_000, 90_000, 10):
            meeting.respond(size)
            await turn()
        written = meeting.transport.written
        assert len(written) == 2, "the first answer, head and body"
        meeting.transport.take()
        assert written[3] == 300_000
        meeting.transport.take()
        assert written[5] == 90_000
        assert len(written) == 6
        meeting.transport.take()
        assert len(written) == 7
        assert not meeting.transport.is_full
        assert meeting.budget.size == 0

    asyncio.run(main())


def test_a_connection_that_closes_counts_until_it_is_gone() -> None:
    async def main() -> None:
        meeting = Meeting()
        meeting.respond(100_000)
        meeting.respond(200_000)
        await turn()
        meeting.connection.close()
        assert meeting.transport.is_ended
        assert meeting.transport.held > 300_000, "it has a moment to fetch all of it"
        assert meeting.budget.size == 300_000
        meeting.share.take(50)
        meeting.connection.respond(answer(50), 50)  # Too late.
        assert meeting.budget.size == 300_000
        meeting.connection.connection_lost(None)
        assert meeting.budget.size == 0

    asyncio.run(main())


def test_a_transport_that_takes_all_gets_it_in_parts() -> None:
    """As TLS does: it tells only of what stays in its own hands, after all was encrypted."""

    async def main() -> None:
        meeting = Meeting()
        meeting.connection._answers.part_size = UNSENT_SIZE_MIN
        meeting.respond(UNSENT_SIZE_MAX)
        await turn()
        written = meeting.transport.written
        while meeting.budget.size:
            assert meeting.budget.size == UNSENT_SIZE_MAX
            assert meeting.transport.is_full
            assert meeting.transport.held <= 2 * UNSENT_SIZE_MIN
            meeting.transport.take()
        assert max(written) == UNSENT_SIZE_MIN
        assert sum(written) > UNSENT_SIZE_MAX

    asyncio.run(main())


def test_who_asks_for_nothing_more_gets_what_was_answered() -> None:
    """A transport closes at the peer's end of file, behind what it has been given."""

    async def main() -> None:
        meeting = Meeting()
        for size in (100_000, 300_000, 90_000):
            meeting.respond(size)
        meeting.connection.eof_received()
        assert meeting.transport.held > 490_000
        assert meeting.budget.size == 490_000
        meeting.connection.connection_lost(None)
        assert meeting.budget.size == 0

    asyncio.run(main())


class StillClock:
    """The loop of a connection, whose time passes when the test says so; what is to be done later is not."""

    def __init__(self) -> None:
        self.now = 0.0
        self.call_soon = asyncio.get_running_loop().call_soon

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, function: Any) -> Any:
        return asyncio.get_running_loop().create_future()  # It can be cancelled.


def test_who_takes_less_than_comes_is_not_given_up() -> None:
    async def main() -> None:
        meeting = Meeting()
        clock: Any = StillClock()
        meeting.connection._loop = clock
        meeting.respond(1_000_000)
        await turn()
        for _ in range(15):
            clock.now += STALL_S / 2
            meeting.transport.held -= 50_000  # too little to be told of
            meeting.respond(60_000)
            await turn()
            meeting.connection._watch_stall()
            assert not meeting.transport.is_aborted
        clock.now += STALL_S
        meeting.connection._watch_stall()
        assert meeting.transport.is_aborted

    asyncio.run(main())


class Encrypting:
    """`Security` that offers TLS and demands nothing."""

    encryption = object()

    def gate(self) -> Any:
        return SimpleNamespace(is_open=True)


def test_what_was_answered_in_plain_text_counts_until_it_is_taken() -> None:
    async def main() -> None:
        meeting = Meeting(Encrypting())
        meeting.respond(100_000)
        meeting.respond(200_000)
        await turn()
        meeting.connection.start_tls(StartTlsRequest(3, 1))
        assert meeting.transport.held > 300_000
        meeting.respond(70_000)
        await turn()
        assert meeting.budget.size == 370_000
        meeting.transport.take()
        assert meeting.budget.size == 70_000, "it is encrypted when the peer has shaken hands"
        assert not meeting.transport.held
        meeting.connection.connection_lost(None)
        assert meeting.budget.size == 0

    asyncio.run(main())


@pytest.mark.parametrize("name", ["read_resident", "read_batch_resident"])
def test_a_read_that_breaks_gives_its_memory_back(world: World, name: str) -> None:
    async def body(world: World) -> None:
        server = await world.start(write_cache_size=1 << 20)
        client, unlucky = await world.connect(server), await world.connect(server)
        for entry_id in range(4):
            await client.add(adds(1, [entry_id], size=1_000_000))

        def fail(*arguments: Any) -> None:
            raise MemoryError

        setattr(server.store, name, fail)
        request = ReadRequest(2, 0, 1, 0) if name == "read_resident" else BatchReadRequest(2, 0, 1, 0, 10, 1 << 20)
        unlucky.send(request)
        await unlucky.closed()
        assert server._reception.budget.size == 0
        delattr(server.store, name)
        assert (await client.ask(request)).status is Status.OK

    world.run(body)


def test_a_store_that_has_failed_says_so_to_those_who_read(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        await client.add(adds(1, [0]))
        server.store._failure = OSError(5, "Input/output error")  # type: ignore[assignment]
        assert (await client.ask(ReadRequest(2, 0, 1, 0))).status is Status.IO_ERROR
        server.store._failure = None

    world.run(body)


def test_a_small_entry_in_memory_does_not_wait_for_room_for_a_large_one(world: World) -> None:
    """What a newcomer reads first is taken for a megabyte until it is known; it is, if it is in memory."""

    async def body(world: World) -> None:
        server = await world.start(write_cache_size=32 << 20)
        writer = await world.connect(server)
        for entry_id in range(8):
            await writer.add(adds(1, [entry_id], size=4_000_000))
        await writer.add(adds(2, [0], size=100))
        stuck = [await world.connect(server) for _ in range(8)]
        for entry_id, client in enumerate(stuck):
            client.transport.pause_reading()
            client.send(ReadRequest(2, 0, 1, entry_id))
            await asyncio.sleep(0.05)
        size = server._reception.budget.size
        assert 16_000_000 < size < 16_100_000
        newcomer = await world.connect(server)
        begun = world.loop.time()
        assert (await newcomer.ask(ReadRequest(2, 0, 2, 0))).status is Status.OK
        assert world.loop.time() - begun < 0.1
        assert server._reception.budget.size == size
        for client in stuck:
            client.transport.abort()

    world.run(body)
