"""Requests and answers at one bookie, with its real storage, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from bookies.bookie.server import BookieServer
from bookies.errors import ReadFailed, Status, StorageError
from bookies.kernels import Records
from bookies.model import DigestType
from bookies.protocol.pacing.read_rates import WINDOW_S, ReadLoad, parse_load
from bookies.wire import digest
from bookies.wire.availability import parse_availability
from bookies.wire.messages import (
    AddResponses,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    WriteLacRequest,
    WriteLacResponse,
)

from .conftest import KEY, World, adds, package

OTHER_KEY = digest.master_key(b"other")


def long_poll(ledger_id: int, previous_lac: int, timeout_ms: int | None = 1000, **fields: Any) -> ReadRequest:
    settings = {"entry_id": -1, "wants_piggyback": True} | fields
    return ReadRequest(3, 77, ledger_id, previous_lac=previous_lac, timeout_ms=timeout_ms, **settings)


def fencing_read(ledger_id: int, *, version: int = 2, key: bytes | None = KEY, entry_id: int = -1) -> ReadRequest:
    return ReadRequest(version, 5, ledger_id, entry_id, key, is_fencing=True)


def write_lac(ledger_id: int, lac: int, *, asks_readers: bool = False) -> WriteLacRequest:
    body = digest.package_lac(DigestType.CRC32C, b"", ledger_id, lac)
    return WriteLacRequest(3, 9, ledger_id, lac, KEY, body, asks_readers)


@pytest.mark.parametrize("version", [2, 3])
def test_a_batch_is_stored_answered_once_and_read_back(world: World, version: int) -> None:
    async def body(world: World) -> None:
        client = await world.connect(await world.start())
        batch = adds(7, range(100), version=version)
        answers = await client.add(batch)
        assert [answer.entry_ids[0] for answer in answers] == list(range(100))
        assert {answer.status for answer in answers} == {Status.OK}
        for entry_id in (0, 42, 99, -1):
            answer = await client.ask(ReadRequest(version, 3, 7, entry_id))
            assert answer.status is Status.OK
            assert answer.entry_id == entry_id
            assert answer.body == batch.adds.records.body(entry_id % 100)
            assert answer.max_lac == (98 if version == 3 else None)

    world.run(body)


def test_answers_of_one_turn_are_one_write(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        (connection,) = server._reception.intake.connections()
        writes: list[int] = []
        transport = connection._transport  # type: ignore[attr-defined]
        write = transport.write

        def counting_write(data: bytes) -> None:
            writes.append(len(data))
            write(data)

        transport.write = counting_write
        client.send(adds(1, range(50)), adds(2, range(50)), adds(1, range(50, 60)))
        for _ in range(110):
            assert (await client.response()).status is Status.OK
        assert sum(writes) == 110 * 28
        assert len(writes) <= 4

    world.run(body)


def test_what_is_refused_is_refused_alone(world: World) -> None:
    async def body(world: World) -> None:
        client = await world.connect(await world.start())
        await client.add(adds(1, [0]))
        client.send(adds(1, [1], key=OTHER_KEY), adds(1, [2]), adds(2, [0], key=OTHER_KEY))
        found = {}
        for _ in range(3):
            answer = await client.response()
            assert isinstance(answer, AddResponses)
            found[answer.ledger_id, answer.entry_ids[0]] = answer.status
        assert found == {(1, 1): Status.UNAUTHORIZED, (1, 2): Status.OK, (2, 0): Status.OK}
        assert (await client.ask(ReadRequest(2, 0, 1, 1))).status is Status.NO_ENTRY
        assert (await client.ask(ReadRequest(2, 0, 3, 0))).status is Status.NO_LEDGER

    world.run(body)


def test_an_add_that_breaks_the_storage_is_not_counted_for_ever(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        server = await world.start()

        def fail(*arguments: object, **options: object) -> None:
            raise KeyError("a bug")

        add, server.store.add = server.store.add, fail  # type: ignore[method-assign]
        client = await world.connect(server)
        client.send(adds(1, range(10)))
        await client.closed()
        assert server._reception.intake.adds_size == 0
        server.store.add = add  # type: ignore[method-assign]
        client = await world.connect(server)
        assert {answer.status for answer in await client.add(adds(1, range(10)))} == {Status.OK}

    world.run(body)
    assert "request.broken" in caplog.text


def test_fence_refuses_later_adds_but_not_recovery(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        client.send(adds(1, range(3)), fencing_read(1), adds(1, [3]), adds(1, [4], is_recovery=True))
        answers = [await client.response() for _ in range(6)]
        read = next(answer for answer in answers if isinstance(answer, ReadResponse))
        assert read.status is Status.OK
        assert read.body is not None
        last = int.from_bytes(read.body[8:16], "big")
        assert last in (2, 4), "an add accepted before the fence is seen by it"
        found = {answer.entry_ids[0]: answer.status for answer in answers if isinstance(answer, AddResponses)}
        assert found == {0: Status.OK, 1: Status.OK, 2: Status.OK, 3: Status.FENCED, 4: Status.OK}
        assert (await client.ask(fencing_read(1, key=OTHER_KEY))).status is Status.UNAUTHORIZED
        assert (await client.ask(fencing_read(1, version=1, key=None))).status is Status.UNAUTHORIZED
        unknown = await (await world.connect(server)).ask(fencing_read(9, version=3))
        assert unknown.status in (Status.NO_ENTRY, Status.NO_LEDGER)
        assert [each.status for each in await client.add(adds(9, [0]))] == [Status.FENCED]

    world.run(body)


def hold_fences(server: BookieServer) -> list[Any]:
    """Keep the storage from reporting fences as durable; the reports, to be made by hand."""
    held: list[Any] = []
    fence = server.store.fence
    server.store.fence = lambda ledger_id, key, done: fence(  # type: ignore[method-assign]
        ledger_id, key, lambda error: held.append((done, error))
    )
    return held


@pytest.mark.parametrize("stored", [0, 3])
@pytest.mark.parametrize("error", [None, StorageError("the journal is gone")])
@pytest.mark.parametrize("is_batch", [False, True])
def test_a_fencing_answer_waits_until_the_fence_is_durable(
    world: World, stored: int, error: Exception | None, is_batch: bool
) -> None:
    """Also when there is no entry: clients take NO_ENTRY for the fence's acknowledgement (F-42)."""

    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        if stored:
            await client.add(adds(1, range(stored)))
        held = hold_fences(server)
        if is_batch:
            client.send(BatchReadRequest(2, 4, 1, 0, 10, 1000, KEY, is_fencing=True))
        else:
            client.send(fencing_read(1))
        await asyncio.sleep(10)
        assert not client.frames
        done, durable = held.pop()
        assert durable is None
        done(error)
        answer = await client.response()
        if error is not None:
            assert answer.status is Status.IO_ERROR
        else:
            assert answer.status is (Status.OK if stored else Status.NO_ENTRY)

    world.run(body)


def test_a_failed_read_is_never_a_negative_answer(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        for error in (ReadFailed("log 3 is damaged"), KeyError("a bug"), OSError(5, "Input/output error")):

            async def fail(*arguments: object, error: Exception = error) -> Any:
                raise error

            server.store.read = server.store.read_batch = server.store.read_lac = fail  # type: ignore[method-assign]
            server.store.list_entries = fail  # type: ignore[method-assign]
            for request in (
                ReadRequest(3, 1, 1, 0),
                BatchReadRequest(2, 1, 1, 0, 10, 1000),
                ReadLacRequest(3, 1, 1),
                ListEntriesRequest(3, 1, 1),
            ):
                client = await world.connect(server)
                assert (await client.ask(request)).status is Status.IO_ERROR
        assert server._reception.budget.size == 0

    world.run(body)
    assert "read.failed" in caplog.text


@pytest.mark.parametrize("is_woken_by", ["add", "explicit lac"])
def test_long_poll_brings_the_next_entry_when_the_lac_moves(world: World, is_woken_by: str) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        reader, writer, lac_writer = [await world.connect(server) for _ in range(3)]
        await writer.add(adds(1, [0]))
        reader.send(long_poll(1, -1, 60_000))
        await asyncio.sleep(1)
        await writer.add(adds(1, [3], lac=-1))
        await asyncio.sleep(1)
        assert not reader.frames, "an add that moves no LAC wakes nobody"
        if is_woken_by == "add":
            await writer.add(adds(1, [1]))
        else:
            await lac_writer.ask(write_lac(1, 0))
        answer = await reader.response("v3")
        assert isinstance(answer, ReadResponse)
        assert (answer.status, answer.entry_id, answer.max_lac) == (Status.OK, 0, 0)
        assert answer.body == package(1, 0, b"1/0 " * 12)
        assert answer.lac_update_ms is not None

    world.run(body)


def test_the_answer_to_an_explicit_lac_says_whether_readers_wait(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        *readers, adder, writer = [await world.connect(server) for _ in range(4)]
        await adder.add(adds(1, [0]))

        async def announced(lac: int, ledger_id: int = 1, *, asks_readers: bool = True) -> bool | None:
            answer = await writer.ask(write_lac(ledger_id, lac, asks_readers=asks_readers))
            assert isinstance(answer, WriteLacResponse)
            return answer.has_readers

        assert await announced(0) is False
        for reader in readers:
            reader.send(long_poll(1, 0, 60_000))
        await asyncio.sleep(1)
        assert await announced(0) is True, "they go on waiting for entry 1"
        assert await announced(0, asks_readers=False) is None, "Apache's writers get Apache's answer"
        assert await announced(0, ledger_id=2) is False
        assert await announced(1) is True
        for reader in readers:
            await reader.response("v3")
        assert await announced(2) is False

    world.run(body)


def test_long_poll_ends_with_its_time_the_fence_or_at_once(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        reader, writer = await world.connect(server), await world.connect(server)
        await writer.add(adds(1, [0]))
        loop = asyncio.get_running_loop()

        began = loop.time()
        answer = await reader.ask(long_poll(1, -1, 300))
        assert 0.3 <= loop.time() - began < 0.4
        assert (answer.status, answer.entry_id, answer.max_lac, answer.body) == (Status.OK, -1, -1, None)
        assert answer.lac_update_ms is None

        reader.send(long_poll(1, -1, 60_000))
        await asyncio.sleep(0.1)
        await writer.ask(fencing_read(1))
        answer = await reader.response("v3")
        assert (answer.status, answer.entry_id, answer.max_lac) == (Status.OK, -1, -1)
        assert answer.lac_update_ms is None
        assert loop.time() - began < 10

        began = loop.time()
        for timeout_ms in (None, 0, -5):
            answer = await reader.ask(long_poll(1, -1, timeout_ms))
            assert (answer.status, answer.entry_id) == (Status.OK, -1)
        for timeout_ms in (None, 0):
            assert (await reader.ask(long_poll(8, -1, timeout_ms))).status is Status.NO_LEDGER
        assert (await reader.ask(long_poll(8, -2, 60_000))).status is Status.NO_LEDGER
        assert (await reader.ask(long_poll(1, -1, entry_id=0))).status is Status.BAD_REQUEST
        plain = await reader.ask(long_poll(1, -2, entry_id=0, wants_piggyback=False))
        assert (plain.status, plain.entry_id) == (Status.OK, 0)
        assert loop.time() - began < 1

    world.run(body)


def test_long_poll_waits_for_a_ledger_to_become_known(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        reader, adder, writer = [await world.connect(server) for _ in range(3)]
        began = asyncio.get_running_loop().time()
        assert (await reader.ask(long_poll(1, -1, 300))).status is Status.NO_LEDGER
        assert 0.3 <= asyncio.get_running_loop().time() - began < 0.4
        reader.send(long_poll(1, -1, 60_000))
        await asyncio.sleep(1)
        await adder.add(adds(1, [0]))
        await asyncio.sleep(1)
        assert not reader.frames, "entry 0 is not confirmed"
        await writer.ask(write_lac(1, 0))
        answer = await reader.response("v3")
        assert isinstance(answer, ReadResponse)
        assert (answer.status, answer.entry_id, answer.max_lac) == (Status.OK, 0, 0)

    world.run(body)


def test_long_poll_without_the_entry_says_the_lac(world: World) -> None:
    """Striped ledgers: the next entry is on another bookie."""

    async def body(world: World) -> None:
        client = await world.connect(await world.start())
        await client.add(adds(1, [2], lac=1, version=3))
        answer = await client.ask(long_poll(1, 0))
        assert (answer.status, answer.entry_id, answer.max_lac, answer.body) == (Status.OK, -1, 1, None)

    world.run(body)


def test_a_client_that_leaves_takes_its_long_poll_along(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        await client.add(adds(1, [0], version=3))
        (connection,) = server._reception.intake.connections()
        client.send(long_poll(1, -1, 60_000))
        await asyncio.sleep(0.1)
        assert "1 requests waiting" in repr(connection)
        client.transport.close()
        await asyncio.sleep(0.1)
        assert "closed, 0 requests waiting" in repr(connection)
        assert server._reception.budget.size == 0

    world.run(body)


def test_batch_reads_stay_within_their_limits(world: World) -> None:
    async def body(world: World) -> None:
        client = await world.connect(await world.start())
        await client.add(adds(1, range(20)))
        body_size = len(package(1, 0, b"1/0 " * 12))

        async def ask(first: int, count: int, size: int) -> BatchReadResponse:
            answer = await client.ask(BatchReadRequest(2, 8, 1, first, count, size))
            assert isinstance(answer, BatchReadResponse)
            return answer

        def count_of(answer: BatchReadResponse) -> int:
            assert answer.status is Status.OK
            data, count = bytes(answer.records), 0
            while data:
                data = data[4 + int.from_bytes(data[:4], "big") :]
                count += 1
            return count

        assert count_of(await ask(0, 5, 10_000)) == 5
        assert count_of(await ask(18, 5, 10_000)) == 2
        assert count_of(await ask(0, 0, 10_000)) == 20
        assert count_of(await ask(0, 9, 36 + 2 * (4 + body_size))) == 2
        assert count_of(await ask(0, 9, 36 + 2 * (4 + body_size) - 1)) == 1
        assert count_of(await ask(0, 9, 0)) == 1
        assert (await ask(20, 5, 1000)).status is Status.NO_ENTRY
        assert (await ask(-1, 5, 1000)).status is Status.BAD_REQUEST
        assert (await client.ask(BatchReadRequest(2, 8, 2, 0, 5, 1000))).status is Status.NO_LEDGER

    world.run(body)


def test_reads_wait_for_memory_instead_of_being_refused(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start(reads_in_progress_size_max=1 << 20, batch_read_size_max=1 << 20)
        client = await world.connect(server)
        for first in range(0, 400, 100):
            await client.add(adds(1, range(first, first + 100), size=5000))
        readers = [await world.connect(server) for _ in range(5)]
        for reader in readers:
            for txn_id in range(3):
                reader.send(BatchReadRequest(2, txn_id, 1, 0, 1000, 1 << 20))
        for reader in readers:
            for _ in range(3):
                answer = await reader.response()
                assert isinstance(answer, BatchReadResponse)
                assert answer.status is Status.OK
                assert len(answer.records) > 900_000
        assert server._reception.budget.size == 0

    world.run(body)


def test_lacs_force_info_and_lists(world: World) -> None:
    async def body(world: World) -> None:
        client = await world.connect(await world.start())
        assert (await client.ask(ReadLacRequest(3, 1, 1))).status is Status.NO_ENTRY
        assert (await client.ask(ForceLedgerRequest(3, 1, 1))).status is Status.OK
        assert (await client.ask(write_lac(1, 4))).status is Status.OK
        alone = await client.ask(ReadLacRequest(3, 1, 1))
        assert isinstance(alone, ReadLacResponse)
        assert (alone.status, alone.last_entry_body) == (Status.OK, None)
        assert alone.lac_body == digest.package_lac(DigestType.CRC32C, b"", 1, 4)
        assert (await client.ask(ListEntriesRequest(3, 1, 1))).availability == bytes(64)
        await client.add(adds(1, [0, 1, 2, 9], version=3))
        both = await client.ask(ReadLacRequest(3, 1, 1))
        assert (both.lac_body, both.last_entry_body) == (alone.lac_body, package(1, 9, b"1/9 " * 12))
        listed = await client.ask(ListEntriesRequest(3, 1, 1))
        assert parse_availability(listed.availability) == [range(3), range(9, 10)]
        assert (await client.ask(ListEntriesRequest(3, 1, 2))).status is Status.NO_LEDGER
        info = await client.ask(GetBookieInfoRequest(3, 1, 3))
        assert info.total_disk_capacity >= info.free_disk_space > 0
        assert (info.read_rate, info.read_ledgers) == (None, None), "Apache's clients get what they know"
        negative = WriteLacRequest(3, 9, -5, 1, KEY, digest.package_lac(DigestType.CRC32C, b"", -5, 1))
        assert (await client.ask(negative)).status is Status.BAD_REQUEST

    world.run(body)


def test_what_clients_read_is_reported(world: World) -> None:
    async def body(world: World) -> None:
        client = await world.connect(await world.start())
        await client.add(adds(1, [0, 1], version=3))
        client2 = await world.connect(world.servers[-1])
        for request in (ReadRequest(2, 0, 1, 1), BatchReadRequest(2, 0, 1, 0, 2, 1 << 20)):
            assert (await client2.ask(request)).status is Status.OK
        assert (await client.ask(ReadRequest(3, 1, 1, 0))).status is Status.OK
        info = await client.ask(GetBookieInfoRequest(3, 1, 4))
        assert (info.total_disk_capacity, info.read_rate, info.read_ledgers) == (None, 0, b"")
        await asyncio.sleep(WINDOW_S)
        info = await client.ask(GetBookieInfoRequest(3, 1, 4))
        load = parse_load(info.read_rate, info.read_ledgers)
        assert load.rate * WINDOW_S >= 4 * len(package(1, 0, b"1/0 " * 12)) - WINDOW_S
        assert load == ReadLoad(load.rate, {1: load.rate})
        assert info.owed_entries is None
        world.servers[-1].owed.is_known = False
        assert (await client.ask(GetBookieInfoRequest(3, 1, 4))).owed_entries == 1

    world.run(body)


def test_deferred_sync_and_force(world: World) -> None:
    async def body(world: World) -> None:
        client = await world.connect(await world.start())
        batch = adds(1, range(5), version=3, is_deferred_sync=True)
        assert {answer.status for answer in await client.add(batch)} == {Status.OK}
        assert (await client.ask(ForceLedgerRequest(3, 1, 1))).status is Status.OK
        assert (await client.ask(ReadRequest(3, 1, 1, 4))).status is Status.OK

    world.run(body)


def test_a_read_only_bookie(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        modern = await world.connect(server)
        await client.add(adds(1, [0]))
        server.state.hold_read_only(True)
        found = [
            (await client.add(adds(1, [1])))[0].status,
            (await client.add(adds(1, [1], is_recovery=True)))[0].status,
            (await client.add(adds(1, [2], is_recovery=True, is_high_priority=True)))[0].status,
            (await modern.ask(write_lac(1, 0))).status,
            (await client.ask(ReadRequest(2, 0, 1, 0))).status,
            (await client.ask(fencing_read(1))).status,
            (await modern.ask(ForceLedgerRequest(3, 1, 1))).status,
        ]
        read_only, ok = Status.READ_ONLY, Status.OK
        assert found == [read_only, read_only, ok, read_only, ok, ok, ok]

    world.run(body)


def test_records_share_the_connection_s_buffer_until_they_are_stored(world: World) -> None:
    """Bodies of every size come back as they went in, also when a frame spans many reads."""

    async def body(world: World) -> None:
        client = await world.connect(await world.start())
        sizes = [0, 1, 63, 64, 65, 4095, 100_000, 1_000_000]
        bodies = [package(1, index, bytes([index]) * size) for index, size in enumerate(sizes)]
        batch = adds(1, range(len(sizes)))
        batch = replace(batch, adds=replace(batch.adds, records=Records.of(bodies)))
        await client.add(batch)
        for index, expected in enumerate(bodies):
            assert (await client.ask(ReadRequest(2, 0, 1, index))).body == expected

    world.run(body)
