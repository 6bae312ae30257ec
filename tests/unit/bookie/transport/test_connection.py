"""Connections that misbehave, stall, or end: nothing but themselves is disturbed."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from bookies.bookie.transport.connection import LINGER_S, STALL_CHECK_S, STALL_PRESSED_S, STALL_S, UNSENT_SIZE_MIN
from bookies.bookie.transport.pressure import READS_WAITING_MAX
from bookies.errors import Status
from bookies.wire.messages import AddResponses, BatchReadRequest, ReadRequest

from ..conftest import World, adds

READ = bytes.fromhex("000000140202000000000000000000010000000000000000")


@pytest.mark.parametrize(
    "garbage",
    [
        bytes.fromhex("00000000"),  # no frame is empty
        (5 << 20).to_bytes(4, "big"),  # one byte beyond the limit with its prefix
        b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n",
        bytes.fromhex("0000001402090000") + bytes(16),  # v2, unknown opcode
        bytes.fromhex("000000080a0608031063180a"),  # v3, unknown operation
        bytes.fromhex("00000003020200"),
        Random(3).randbytes(10_000),
    ],
    ids=["empty", "oversized", "huge", "http", "opcode", "operation", "short", "random"],
)
def test_garbage_closes_its_connection_and_no_other(
    world: World, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        good, bad = await world.connect(server), await world.connect(server)
        await good.add(adds(1, [0]))
        good.send(adds(1, [1]))
        bad.transport.write(garbage)
        await bad.closed()
        assert not bad.frames
        assert (await good.response()).status is Status.OK
        assert (await good.ask(ReadRequest(2, 0, 1, 1))).status is Status.OK

    world.run(body)
    assert len([message for message in caplog.messages if "connection.refused" in message]) == 1


def test_garbage_behind_requests_that_were_understood(world: World) -> None:
    """The requests before it are gone too, unanswered: their sender has to treat them as unknown."""

    async def body(world: World) -> None:
        client = await world.connect(await world.start())
        client.transport.write(READ[:-2])
        await asyncio.sleep(0.1)
        client.transport.write(READ[-2:])
        assert await client.frame()
        client.transport.write(bytes(4))
        await client.closed()

    world.run(body)


def test_any_cut_into_pieces_is_the_same(world: World) -> None:
    async def body(world: World) -> None:
        client = await world.connect(await world.start())
        batch = adds(1, range(3))
        from bookies.wire.client import encode_request

        data = b"".join(bytes(part) for part in encode_request(batch))
        for index in range(len(data)):
            client.transport.write(data[index : index + 1])
            if index % 50 == 0:
                await asyncio.sleep(0.01)
        answers = [await client.response() for _ in range(3)]
        assert {answer.status for answer in answers} == {Status.OK}

    world.run(body)


def test_a_peer_that_closes_lets_go_of_everything(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        client.send(adds(1, range(100)))
        client.transport.abort()
        await asyncio.sleep(1)
        assert server._reception.intake.connections() == []
        assert server._reception.intake.adds_size == 0
        assert server._reception.budget.size == 0

    world.run(body)


def test_a_peer_that_takes_no_answers_is_not_read_from_and_then_given_up(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        writer = await world.connect(server)
        for first in range(0, 100, 10):
            await writer.add(adds(1, range(first, first + 10), size=10_000))
        slow = await world.connect(server)
        slow.transport.pause_reading()
        for txn_id in range(20):
            slow.send(BatchReadRequest(2, txn_id, 1, 0, 1000, 1 << 20))
        await asyncio.sleep(1)
        assert UNSENT_SIZE_MIN < server._reception.budget.size < 1 << 20, "one answer, and the next ones wait"
        slow.send(adds(2, [0]))
        await asyncio.sleep(1)
        assert (await writer.ask(ReadRequest(2, 0, 2, 0))).status is Status.NO_LEDGER, "not even read"
        await asyncio.sleep(STALL_S)
        assert server._reception.budget.size == 0
        assert len(server._reception.intake.connections()) == 1
        slow.transport.abort()

    world.run(body)
    assert "connection.stalled" in caplog.text


def test_peers_that_take_no_answers_do_not_keep_others_waiting_for_long(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start(reads_in_progress_size_max=1 << 20)
        writer = await world.connect(server)
        for first in range(0, 100, 10):
            await writer.add(adds(1, range(first, first + 10), size=10_000))
        for _ in range(3):
            greedy = await world.connect(server)
            greedy.transport.pause_reading()
            for txn_id in range(100):
                greedy.send(BatchReadRequest(2, txn_id, 1, 0, 1000, 1 << 20))
        await asyncio.sleep(0.5)
        assert server._reception.budget.waiting > 0
        begin = asyncio.get_running_loop().time()
        assert (await writer.ask(BatchReadRequest(2, 1, 1, 0, 1000, 1 << 20))).status is Status.OK
        # One after the other gets to the memory and is given up.
        assert asyncio.get_running_loop().time() - begin < 3 * (STALL_PRESSED_S + 2 * STALL_CHECK_S)
        assert server._reception.budget.size <= 1 << 20

    world.run(body)


@pytest.mark.parametrize("has_taken", [False, True], ids=["newcomers", "some who took answers before"])
def test_peers_that_take_no_answers_hold_up_nobody_who_does(world: World, has_taken: bool) -> None:
    """Large entries, of which nobody knows the size before: what they take of memory has its bound, too."""
    limit = 16 << 20

    async def body(world: World) -> None:
        server = await world.start(reads_in_progress_size_max=limit, write_cache_size=1 << 20)
        good = await world.connect(server)
        for entry_id in range(12):
            await good.add(adds(1, [entry_id], size=1_000_000))
        assert (await good.ask(ReadRequest(2, 0, 1, 0))).status is Status.OK
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, server._reception.budget.size)
                await asyncio.sleep(0.0001)

        watcher = asyncio.create_task(watch())
        greedy = [await world.connect(server) for _ in range(3 if has_taken else 50)]
        for client in greedy:
            if has_taken:
                assert (await client.ask(ReadRequest(2, 0, 1, 0))).status is Status.OK
            client.transport.pause_reading()
            client.send(*[ReadRequest(2, 0, 1, number % 12) for number in range(100)])
        await asyncio.sleep(0.2)
        clock = asyncio.get_running_loop()
        for entry_id in range(12):
            begin = clock.time()
            assert (await good.ask(ReadRequest(2, 0, 1, entry_id))).status is Status.OK
            assert clock.time() - begin < STALL_CHECK_S / 2
        watcher.cancel()
        assert len(server._reception.intake.connections()) == len(greedy) + 1, "nobody had to be given up for that"
        assert limit // 4 < most <= limit
        for client in greedy:
            client.transport.abort()

    world.run(body)


def test_a_peer_that_takes_little_by_little_is_not_given_up(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start(reads_in_progress_size_max=1 << 20)
        client = await world.connect(server)
        for first in range(0, 100, 10):
            await client.add(adds(1, range(first, first + 10), size=10_000))
        for txn_id in range(10):
            client.send(BatchReadRequest(2, txn_id, 1, 0, 1000, 1 << 20))
        client.transport.pause_reading()
        for _ in range(150):
            await asyncio.sleep(STALL_PRESSED_S / 2)
            client.transport.resume_reading()
            await asyncio.sleep(0.0001)
            client.transport.pause_reading()
        client.transport.resume_reading()
        assert {(await client.response()).status for _ in range(10)} == {Status.OK}

    world.run(body)


def test_a_slow_peer_that_takes_its_answers_gets_all_of_them(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        for first in range(0, 100, 10):
            await client.add(adds(1, range(first, first + 10), size=10_000))
        for txn_id in range(8):
            client.send(BatchReadRequest(2, txn_id, 1, 0, 1000, 1 << 20))
        client.send(adds(2, [0]))
        for _ in range(40):
            client.transport.pause_reading()
            await asyncio.sleep(0.5)
            client.transport.resume_reading()
            await asyncio.sleep(0.001)
        found = [await client.response() for _ in range(9)]
        assert {each.status for each in found} == {Status.OK}
        assert len([each for each in found if isinstance(each, AddResponses)]) == 1

    world.run(body)


def test_adds_beyond_the_limit_are_left_in_the_sender_s_socket(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start(adds_in_progress_size_max=4 << 20)
        world.workers.slowness = 1000.0
        clients = [await world.connect(server) for _ in range(4)]
        for index, client in enumerate(clients):
            for first in range(0, 300, 10):
                client.send(adds(index, range(first, first + 10), size=10_000))
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, server._reception.intake.adds_size)
                await asyncio.sleep(0.001)

        watcher = asyncio.create_task(watch())
        for client in clients:
            answers = [await client.response() for _ in range(300)]
            assert {answer.status for answer in answers} == {Status.OK}
        watcher.cancel()
        assert 4 << 20 < most < (4 << 20) + 4 * (512 << 10)
        assert server._reception.intake.adds_size == 0

    world.run(body)


def test_what_was_read_with_a_large_request_is_served(world: World) -> None:
    """One request is several times what a bookie of this size has in hand; what came behind it is not refused."""

    async def body(world: World) -> None:
        server = await world.start(adds_in_progress_size_max=1 << 20, write_cache_size=1 << 20)
        world.workers.slowness = 1000.0
        client = await world.connect(server)
        client.send(adds(1, [0], size=8 << 20), *[adds(ledger_id, [0]) for ledger_id in range(2, 30)])
        answers = [await client.response() for _ in range(29)]
        assert {answer.status for answer in answers} == {Status.OK}
        await asyncio.sleep(60)  # virtual seconds: what the cache had no room for is flushed
        assert not server._reception.intake.is_paused

    world.run(body)


def test_a_closed_connection_lingers_until_its_answers_are_fetched(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        await client.add(adds(1, [0]))
        client.transport.pause_reading()
        client.transport.write(READ + bytes(4))
        await asyncio.sleep(LINGER_S / 2)
        client.transport.resume_reading()
        await client.closed()
        silent = await world.connect(server)
        silent.transport.write(bytes(4))
        await asyncio.sleep(LINGER_S + 1)
        assert server._reception.intake.connections() == []

    world.run(body)


def test_a_bug_in_a_handler_costs_one_connection(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        good, unlucky = await world.connect(server), await world.connect(server)

        def fail(*arguments: Any, **options: Any) -> None:
            raise KeyError("a bug")

        server.store.add, add = fail, server.store.add  # type: ignore[method-assign]
        unlucky.send(adds(1, [0]))
        await unlucky.closed()
        server.store.add = add  # type: ignore[method-assign]
        assert (await good.add(adds(1, [0])))[0].status is Status.OK

    world.run(body)
    assert "request.broken" in caplog.text
    assert "a bug" in caplog.text


def test_reads_that_wait_are_bounded_even_if_they_come_at_once(world: World) -> None:
    """Each is a task, and what one connection sends at once is looked at before any of them runs."""

    async def body(world: World) -> None:
        server = await world.start(reads_in_progress_size_max=1 << 20)
        good = await world.connect(server)
        await good.add(adds(1, [0], size=400_000))
        greedy = [await world.connect(server) for _ in range(30)]
        for client in greedy:
            client.transport.pause_reading()
            client.send(*[ReadRequest(2, 0, 1, 0) for _ in range(1000)])
            await asyncio.sleep(0.1)
        assert READS_WAITING_MAX <= server._reception.budget.waiting < READS_WAITING_MAX + 2000
        for client in greedy:
            client.transport.abort()
        await asyncio.sleep(0.2)
        assert server._reception.budget.waiting == server._reception.budget.size == 0
        assert (await good.ask(ReadRequest(2, 0, 1, 0))).status is Status.OK

    world.run(body)
