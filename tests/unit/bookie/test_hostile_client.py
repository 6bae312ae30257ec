"""Clients that send what no correct client sends, next to one that is honest: the bookie serves that one as ever.

Whatever arrives, the bookie neither dies nor keeps anything of it, answers nobody with what others asked, and finds
no mistake of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
from collections.abc import Callable
from random import Random

import pytest

from bookies.bookie import reads
from bookies.bookie.server import BookieServer
from bookies.bookie.transport import connection
from bookies.errors import Status
from bookies.wire.client import encode_request
from bookies.wire.framing import DIRECT_HELD, ROOM_SHARE
from bookies.wire.messages import (
    AddResponses,
    AuthRequest,
    BatchReadRequest,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    ReadResponse,
    Request,
    StartTlsRequest,
    WriteLacRequest,
)

from .conftest import KEY, RawClient, World, adds, package

# Far from what others come upon: whoever writes to a ledger first decides its key.
HONEST_LEDGER, THEIR_LEDGER = 0x5A17_1234_0000, 2
ENTRIES = 40
STRANGE = (-(1 << 63), -2, -1, 0, 1, 7, 1 << 31, 1 << 32, (1 << 62) + 5, (1 << 63) - 1)
MUTATIONS_MAX = 60
_LENGTH = struct.Struct(">I")


def strange_request(random: Random) -> Request:
    """A request that can be encoded; ids, sizes and keys are whatever they are."""
    version = random.choice((2, 3))
    txn_id = random.choice((0, 1, random.getrandbits(62)))
    ledger_id = random.choice((THEIR_LEDGER, THEIR_LEDGER, 99, abs(random.choice(STRANGE)) % (1 << 63)))
    entry_id = random.choice(STRANGE)
    key = random.choice((KEY, bytes(20), random.randbytes(20)))
    is_fencing = random.random() < 0.3
    fencing_key = key if is_fencing else random.choice((None, key))
    choice = random.randrange(9)
    if choice == 0:
        first = random.choice((0, 5, 1 << 17, 1 << 40, 1 << 62))
        return adds(ledger_id, range(first, first + random.choice((1, 3, 50))), version=version, key=key)
    if choice == 1:
        return ReadRequest(version, txn_id, ledger_id, entry_id, fencing_key, is_fencing)
    if choice == 2:
        previous, timeout_ms = random.choice(STRANGE), random.choice((0, 1, 1 << 30, 1 << 62))
        return ReadRequest(3, txn_id, ledger_id, -1, previous_lac=previous, timeout_ms=timeout_ms, wants_piggyback=True)
    if choice == 3:
        count, size = random.choice((-1, 0, 1, (1 << 31) - 1)), random.choice((-1, 0, 1, 1 << 20, (1 << 62)))
        return BatchReadRequest(2, txn_id, ledger_id, entry_id, count, size, fencing_key, is_fencing)
    if choice == 4:
        body = random.choice((b"", random.randbytes(15), random.randbytes(40), package(ledger_id, 1, b"")))
        return WriteLacRequest(3, txn_id, ledger_id, entry_id, key, body)
    return (
        ReadLacRequest(3, txn_id, ledger_id),
        ListEntriesRequest(3, txn_id, ledger_id),
        ForceLedgerRequest(3, txn_id, ledger_id),
        random.choice((GetBookieInfoRequest(3, txn_id, random.getrandbits(8)), StartTlsRequest(3, txn_id),
                       AuthRequest(3, txn_id, "plugin" * random.randint(0, 9), random.randbytes(9)))),
    )[choice - 5]  # fmt: skip


def strange_bytes(random: Random) -> bytes:
    """Requests, most of them damaged in one way or another."""
    frame = b"".join(bytes(part) for part in encode_request(strange_request(random)))
    kind = random.randrange(8)
    if kind == 0:
        return frame
    if kind == 1:
        return random.randbytes(random.choice((1, 4, 50, 5000)))
    if kind == 2:
        return _LENGTH.pack(random.choice((0, 1, 3, 1 << 30, (1 << 32) - 1))) + random.randbytes(30)
    if kind == 3:
        return frame[: random.randrange(len(frame))]
    if kind == 4:  # a whole frame with a body of another length
        body = frame[4 : random.randrange(5, len(frame) + 1)] + random.randbytes(random.choice((0, 1, 30)))
        return _LENGTH.pack(len(body)) + body
    if kind == 5:
        return frame * random.choice((2, 30))
    damaged = bytearray(frame)
    for _ in range(random.choice((1, 1, 5))):
        damaged[random.randrange(4, len(damaged))] = random.getrandbits(8)
    return bytes(damaged)


async def be_hostile(world: World, server: BookieServer, random: Random) -> None:
    """One connection after the other, none of which takes its answers before it ends."""
    sent = 0
    while sent < MUTATIONS_MAX:
        client = await world.connect(server)
        for _ in range(random.randint(1, 15)):
            if client.is_lost:
                break
            client.transport.write(strange_bytes(random))
            sent += 1
            if random.random() < 0.5:
                await asyncio.sleep(random.expovariate(1000))
        (client.transport.abort if random.random() < 0.5 else client.transport.close)()


async def be_honest(client: RawClient, version: int) -> None:
    """Add and read entries one after the other: each answer is the one to what was asked."""
    for entry_id in range(ENTRIES):
        (added,) = await client.add(adds(HONEST_LEDGER, range(entry_id, entry_id + 1), version=version))
        assert isinstance(added, AddResponses)
        assert (added.status, added.ledger_id, list(added.entry_ids)) == (Status.OK, HONEST_LEDGER, [entry_id])
        found = await client.ask(ReadRequest(version, 5000 + entry_id, HONEST_LEDGER, entry_id))
        assert isinstance(found, ReadResponse)
        assert (found.status, found.ledger_id, found.entry_id) == (Status.OK, HONEST_LEDGER, entry_id)
        expected = adds(HONEST_LEDGER, range(entry_id, entry_id + 1)).adds.records.body(0)
        assert bytes(found.body or b"") == bytes(expected)


async def left_by(server: BookieServer, count: int) -> None:
    """Wait until so many connections are left, and what the others had asked is over. In virtual time."""
    for _ in range(1000):
        await asyncio.sleep(0.1)
        if len(server._reception.intake.connections()) == count and server._reception.intake.adds_size == 0:
            await asyncio.sleep(1)
            return
    raise AssertionError(server._reception.intake.connections())


def check_nothing_is_left(server: BookieServer) -> None:
    """Nothing is left of what was asked."""
    assert server.state.may_serve()
    assert server._reception.intake.adds_size == 0
    assert server._reception.budget.size == 0
    assert server._reception.budget.waiting == 0
    assert server._reception.intake.partial_frames.size == 0


@pytest.mark.parametrize("seed", range(6))
def test_an_honest_client_notices_nothing(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    world = World(seed)

    async def body(world: World) -> None:
        server = await world.start()
        honest = await world.connect(server)
        enemies = [be_hostile(world, server, Random(f"{seed}/{number}")) for number in range(4)]
        await asyncio.gather(be_honest(honest, 2 + seed % 2), *enemies)
        await left_by(server, 1)
        check_nothing_is_left(server)
        honest.transport.close()

    with caplog.at_level(logging.INFO, "bookies"):
        world.run(body)
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


FLOODS: dict[str, Callable[[int], Request]] = {
    "reads": lambda number: ReadRequest(2, 0, THEIR_LEDGER, number % 10),
    "reads over v3": lambda number: ReadRequest(3, number, THEIR_LEDGER, number % 10),
    "batch reads": lambda number: BatchReadRequest(2, number, THEIR_LEDGER, 0, 10, 100_000),
    "adds": lambda number: adds(THEIR_LEDGER, range(100 + number, 101 + number), size=2000),
    "long polls": lambda number: ReadRequest(3, number, THEIR_LEDGER, -1, previous_lac=1 << 40, timeout_ms=1 << 30),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_client_that_asks_and_never_listens_is_made_to_wait(world: World, flood: str) -> None:
    """What the bookie keeps for it has a bound, and others are served meanwhile."""
    limit = 1 << 20

    async def body(world: World) -> None:
        server = await world.start(reads_in_progress_size_max=limit, adds_in_progress_size_max=limit)
        greedy, honest = await world.connect(server), await world.connect(server)
        await greedy.add(adds(THEIR_LEDGER, range(10), size=20_000))
        greedy.transport.pause_reading()
        largest = 0

        async def ask() -> None:
            nonlocal largest
            for number in itertools.count():
                greedy.send(FLOODS[flood](number))
                largest = max(largest, server._reception.budget.size)
                await asyncio.sleep(0.0002)

        asking = asyncio.ensure_future(ask())
        await be_honest(honest, 2)
        asking.cancel()
        assert largest <= limit + (1 << 20)
        greedy.transport.abort()
        honest.transport.close()
        await left_by(server, 0)
        check_nothing_is_left(server)

    world.run(body)


def test_clients_that_never_end_what_they_begin_are_given_up(world: World) -> None:
    """Many connections, each with almost all of a request of the largest size."""

    async def body(world: World) -> None:
        server = await world.start(adds_in_progress_size_max=16 << 20)
        honest = await world.connect(server)
        partial_frames = server._reception.intake.partial_frames
        head = encode_request(adds(THEIR_LEDGER, [0], size=100))[0]
        waiting = []
        for _ in range(20):
            client = await world.connect(server)
            client.transport.write(_LENGTH.pack((4 << 20) + 1000) + bytes(head[4:]) + bytes(4 << 20))
            waiting.append(client)
            await asyncio.sleep(0.1)
            assert partial_frames.size <= partial_frames.size_max == 4 * (5 << 20)
        assert len(server._reception.intake.connections()) == 1 + 4
        # Room is made for a frame when little of it is there, and that is memory, too.
        beginning = _LENGTH.pack((4 << 20) + 1000) + bytes(head[4:]) + bytes(DIRECT_HELD)
        for _ in range(100):
            client = await world.connect(server)
            client.transport.write(beginning)
            waiting.append(client)
            await asyncio.sleep(0.1)
            assert partial_frames.size <= partial_frames.size_max
        assert len(server._reception.intake.connections()) <= 1 + ROOM_SHARE * 6
        large = adds(HONEST_LEDGER, [1000], size=1 << 20)
        for _ in range(5):
            (added,) = await honest.add(large)
            assert isinstance(added, AddResponses)
            assert added.status is Status.OK
        await be_honest(honest, 2)
        for client in waiting:
            client.transport.abort()
        honest.transport.close()
        await left_by(server, 0)
        check_nothing_is_left(server)

    world.run(body)


def long_polls(first: int, count: int) -> list[Request]:
    """For news that never come."""
    return [
        ReadRequest(3, txn_id, THEIR_LEDGER, -1, previous_lac=1 << 40, timeout_ms=1 << 30, wants_piggyback=True)
        for txn_id in range(first, first + count)
    ]


def test_long_polls_have_a_bound_over_all_clients(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "LONG_POLLS_MAX", 20)

    async def body(world: World) -> None:
        server = await world.start()
        honest, greedy = await world.connect(server), await world.connect(server)
        await honest.add(adds(THEIR_LEDGER, [0], version=3))
        greedy.send(*long_polls(0, 30))
        refused = [await greedy.response("v3") for _ in range(10)]
        assert {each.status for each in refused} == {Status.TOO_MANY_REQUESTS}
        greedy.transport.abort()
        await left_by(server, 1)
        honest.send(*long_polls(0, 20))
        await be_honest(honest, 3)
        honest.transport.close()

    world.run(body)


def test_a_client_with_too_many_requests_waiting_is_not_read_from(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "TASKS_MAX", 20)

    async def body(world: World) -> None:
        server = await world.start()
        honest, greedy = await world.connect(server), await world.connect(server)
        await greedy.add(adds(THEIR_LEDGER, [0], version=3, lac=-1))
        greedy.send(*long_polls(0, 25))
        await asyncio.sleep(1)
        greedy.send(adds(THEIR_LEDGER, [2], version=3))
        await asyncio.sleep(1)
        assert not greedy.frames, "not even read"
        await be_honest(honest, 2)
        # News for all who wait: the client is read from again.
        (added,) = await honest.add(adds(THEIR_LEDGER, [1], lac=(1 << 40) + 1))
        assert isinstance(added, AddResponses)
        answers = [await greedy.response("v3") for _ in range(26)]
        assert {each.status for each in answers} == {Status.OK}
        greedy.transport.close()
        honest.transport.close()

    world.run(body)
