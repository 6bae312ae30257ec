"""Reading and tailing against fake bookies on virtual time: bounds, replicas, damage, ensemble changes, the seal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.examples import scaled
from tests.fakes.world import World, in_world, play

from bookies.client.base import Entry
from bookies.client.client import Client
from bookies.client.read import LedgerReader
from bookies.client.write import LedgerWriter
from bookies.errors import (
    BookieTimeout,
    BookieUnreachable,
    DigestMismatch,
    EntryNotFound,
    InvalidArgument,
    LedgerClosed,
    LedgerNotFound,
    LedgerUnknownToBookie,
    NotConfirmed,
    ReadFailed,
    Status,
    Unauthorized,
)
from bookies.model import BookieId
from bookies.wire.messages import (
    BatchReadRequest,
    BatchReadResponse,
    ReadLacRequest,
    ReadRequest,
    Request,
    Response,
)


def payload(number: int) -> bytes:
    return b"payload %d " % number + b"x" * (number % 50)


async def write(store: Client, count: int, *, seal: bool = True, **options: Any) -> LedgerWriter:
    writer = await store.create(**{"ensemble": 3, "password": b"secret", **options})
    step = 100 if seal else 1  # An entry confirms those that were confirmed when it was sent.
    for start in range(0, count, step):
        await writer.append_many([payload(number) for number in range(start, min(start + step, count))])
    if seal:
        await writer.seal()
    return writer


async def reopen(store: Client, writer: LedgerWriter) -> LedgerReader:
    return await store.open(writer.ledger_id, password=b"secret")


def check(entries: Sequence[Entry], first: int, last: int) -> None:
    assert [entry.id for entry in entries] == list(range(first, last + 1))
    assert [entry.payload for entry in entries] == [payload(number) for number in range(first, last + 1)]


def silence(request: Request) -> Sequence[Response]:
    return []


# -- ranges --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize(("ensemble", "write_quorum", "ack_quorum"), [(3, 3, 2), (3, 2, 2), (1, 1, 1), (5, 3, 2)])
@in_world(5)
async def test_reads_what_was_written(
    world: World, ensemble: int, write_quorum: int, ack_quorum: int, wire: str
) -> None:
    store = await world.client(wire=wire)
    writer = await write(store, 500, ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
    ledger = await reopen(store, writer)
    check([entry async for entry in ledger.read()], 0, 499)
    check([entry async for entry in ledger.read(17, 333)], 17, 333)
    check([entry async for entry in ledger.read(499)], 499, 499)
    check([await ledger.read_last(), await ledger.read_entry(3)][::-1][:1], 3, 3)
    lengths = [entry.length async for entry in ledger.read(0, 2)]
    assert lengths == [10, 10 + 11, 10 + 11 + 12]
    assert {entry.ledger_id async for entry in ledger.read()} == {writer.ledger_id}


@in_world()
async def test_batches_go_to_all_replicas_and_are_requested_ahead(world: World) -> None:
    store = await world.client(read_ahead_size=64 * 1024)
    writer = await store.create()
    await writer.append_many([b"z" * 1000] * 1000)
    await writer.seal()
    ledger = await store.open(writer.ledger_id)
    batches = ledger.read_batches()
    first = await anext(batches)
    assert first.payloads() == [b"z" * 1000] * len(first)
    asked = {name: sum(isinstance(each, BatchReadRequest) for each in b.requests) for name, b in world.bookies.items()}
    assert sum(asked.values()) >= 2
    total = len(first) + sum([len(batch) async for batch in batches])
    assert total == 1000
    served = [sum(isinstance(each, BatchReadRequest) for each in bookie.requests) for bookie in world.bookies.values()]
    assert min(served) > 5
    assert max(served) - min(served) <= 1
    requests = [each for bookie in world.bookies.values() for each in bookie.requests]
    assert max(each.size_max for each in requests if isinstance(each, BatchReadRequest)) <= 33 * 1024


@in_world()
async def test_bounds(world: World) -> None:
    store = await world.client()
    ledger = await reopen(store, await write(store, 10))
    with pytest.raises(InvalidArgument):
        ledger.read(-1)
    with pytest.raises(InvalidArgument):
        ledger.read(5, 4)
    with pytest.raises(InvalidArgument):
        ledger.tail(-1)
    with pytest.raises(NotConfirmed, match="the last entry is 9") as beyond:
        [entry async for entry in ledger.read(0, 10)]
    assert not beyond.value.retriable
    assert beyond.value.last_add_confirmed == 9
    assert [entry async for entry in ledger.read(10)] == []
    empty = await reopen(store, await write(store, 0))
    assert [entry async for entry in empty.read()] == []
    assert empty.last_add_confirmed == -1
    with pytest.raises(EntryNotFound):
        await empty.read_last()
    await ledger.close()
    with pytest.raises(LedgerClosed):
        [entry async for entry in ledger.read()]


@in_world()
async def test_a_sealed_ledger_ends_where_its_metadata_says(world: World) -> None:
    """Bookies may hold entries behind the end and report a later LAC: never shown (D-6, D-8)."""
    store = await world.client()
    writer = await write(store, 20)
    longer = await write(store, 40)
    for bookie in world.bookies.values():
        for entry_id in range(20, 40):
            bookie.ledgers[writer.ledger_id].entries[entry_id] = bookie.ledgers[longer.ledger_id].entries[entry_id]
        bookie.ledgers[writer.ledger_id].last_add_confirmed = 39
    for bookie in world.bookies.values():
        bookie.requests.clear()
    ledger = await reopen(store, writer)
    assert await ledger.read_last_add_confirmed() == 19
    check([entry async for entry in ledger.read()], 0, 19)
    check([entry async for entry in ledger.tail(15)], 15, 19)
    for bookie in world.bookies.values():
        for request in bookie.requests:
            assert isinstance(request, BatchReadRequest)
            assert request.entry_id + request.count_max <= 20


@in_world(4)
async def test_reads_do_not_cross_fragments(world: World) -> None:
    store = await world.client(add_timeout_ms=300)
    writer = await write(store, 50, seal=False)
    victim = writer.metadata.last_ensemble[0]
    await world.take_down(victim)
    await writer.append_many([payload(number) for number in range(50, 100)])
    await writer.seal()
    assert len(writer.metadata.ensembles) == 2
    ledger = await reopen(store, writer)
    check([entry async for entry in ledger.read()], 0, 99)
    check([entry async for entry in ledger.read(49, 50)], 49, 50)


@in_world()
async def test_more_than_one_answer_for_a_range_when_entries_grow(world: World) -> None:
    store = await world.client(read_ahead_size=64 * 1024)
    writer = await store.create()
    sizes = [10] * 300 + [20_000] * 30 + [70_000] * 3 + [10] * 300
    await writer.append_many([bytes([size % 251]) * size for size in sizes])
    await writer.seal()
    ledger = await store.open(writer.ledger_id)
    assert [len(entry.payload) async for entry in ledger.read()] == sizes


# -- replicas ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("write_quorum", [3, 2])
@in_world()
async def test_damage_is_read_from_another_replica(world: World, wire: str, write_quorum: int) -> None:
    store = await world.client(wire=wire)
    writer = await write(store, 120, write_quorum=write_quorum, ack_quorum=2)
    ensemble = writer.metadata.last_ensemble
    for entry_id in (0, 7, 50, 119):
        world.bookies[ensemble[entry_id % 3]].corrupt(writer.ledger_id, entry_id)
    for bookie in world.bookies.values():
        bookie.ledgers[writer.ledger_id].entries.pop(33, None) if bookie is world.bookies[ensemble[0]] else None
    ledger = await reopen(store, writer)
    check([entry async for entry in ledger.read()], 0, 119)


@in_world()
async def test_damage_everywhere_is_reported_with_every_replicas_answer(world: World) -> None:
    store = await world.client()
    writer = await write(store, 10)
    for bookie in world.bookies.values():
        bookie.corrupt(writer.ledger_id, 4)
    ledger = await reopen(store, writer)
    entries = ledger.read()
    check([await anext(entries) for _ in range(4)], 0, 3)
    with pytest.raises(DigestMismatch, match="no replica could deliver: b") as raised:
        await anext(entries)
    assert (raised.value.ledger_id, raised.value.entry_id) == (writer.ledger_id, 4)
    assert all(name in str(raised.value) for name in world.bookies)


@in_world()
async def test_a_missing_entry_is_missing_only_if_all_say_so(world: World) -> None:
    store = await world.client()
    writer = await write(store, 10)
    for bookie in world.bookies.values():
        del bookie.ledgers[writer.ledger_id].entries[4]
    ledger = await reopen(store, writer)
    with pytest.raises(EntryNotFound):
        await ledger.read_entry(4)
    await world.take_down(BookieId("b2"))
    with pytest.raises(BookieUnreachable):
        await ledger.read_entry(4)
    check([await ledger.read_entry(5)], 5, 5)


@in_world()
async def test_dead_and_silent_bookies_are_passed_over_and_then_avoided(world: World) -> None:
    store = await world.client(read_timeout_ms=1000, read_ahead_size=64 * 1024)
    writer = await write(store, 3000)
    await world.take_down(BookieId("b1"))
    world.bookies[BookieId("b2")].intercept = silence
    ledger = await reopen(store, writer)
    begun = world.loop.time()
    check([entry async for entry in ledger.read()], 0, 2999)
    # One timeout for the requests that were in flight, not one for each request.
    assert world.loop.time() - begun < 3.0


@in_world()
async def test_wrong_records_from_a_bookie_do_not_get_through(world: World) -> None:
    store = await world.client()
    writer, other = await write(store, 30), await write(store, 30)
    bad = world.bookies[BookieId("b3")]

    def lie(request: Request) -> Sequence[Response] | None:
        if isinstance(request, BatchReadRequest):
            foreign = BatchReadRequest(2, request.txn_id, other.ledger_id, request.entry_id, 5, request.size_max)
            answer = bad.answer(foreign)
            assert isinstance(answer, BatchReadResponse)
            records = b"" if request.entry_id % 2 else answer.records
            return [BatchReadResponse(2, request.txn_id, Status.OK, request.ledger_id, request.entry_id, records)]
        return None

    bad.intercept = lie
    ledger = await reopen(store, writer)
    for first in range(30):
        check([entry async for entry in ledger.read(first)], first, 29)


@in_world()
async def test_bookies_without_batch_reads_are_read_entry_by_entry(world: World) -> None:
    """Before 4.17 a bookie closes the connection when it meets one."""
    store = await world.client()
    writer = await write(store, 700)

    def old(name: BookieId) -> None:
        def close(request: Request) -> Sequence[Response] | None:
            if isinstance(request, BatchReadRequest):
                world.bookies[name].drop_connections()
                return []
            return None

        world.bookies[name].intercept = close

    for name in world.bookies:
        old(name)
    ledger = await reopen(store, writer)
    check([entry async for entry in ledger.read()], 0, 699)


@in_world(4)
async def test_replaced_replicas_are_found_by_reading_the_metadata_again(world: World) -> None:
    store = await world.client(read_timeout_ms=500)
    writer = await write(store, 30, ensemble=2)
    ledger = await reopen(store, writer)
    record = await store._driver.read_ledger(writer.ledger_id)
    old = record.metadata.last_ensemble
    new = tuple(name for name in world.bookies if name not in old)
    for source, target in zip(old, new, strict=True):
        world.bookies[target].ledgers[writer.ledger_id] = world.bookies[source].ledgers[writer.ledger_id]
        await world.take_down(source)
    await store._driver.write_ledger(record.metadata.replace(ensembles=((0, new),)), record.version)
    check([entry async for entry in ledger.read()], 0, 29)


@in_world()
async def test_an_iteration_dropped_half_way_leaves_nothing_behind(world: World) -> None:
    store = await world.client(read_ahead_size=64 * 1024)
    ledger = await reopen(store, await write(store, 3000))
    async for entry in ledger.read():
        if entry.id == 5:
            break
    iterator = ledger.read()
    check([await anext(iterator)], 0, 0)
    await ledger.close()
    await asyncio.sleep(30)


@in_world()
async def test_a_cancelled_step_can_be_repeated(world: World) -> None:
    store = await world.client()
    ledger = await reopen(store, await write(store, 100))
    entries = ledger.read()
    for bookie in world.bookies.values():
        bookie.intercept = silence
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await anext(entries)
    for bookie in world.bookies.values():
        bookie.intercept = lambda request: None
    check([entry async for entry in entries], 0, 99)


@pytest.mark.parametrize("wire", ["v2", "v3"])
@in_world()
async def test_entries_of_the_largest_and_the_smallest_size(world: World, wire: str) -> None:
    """The answers to batch reads and long polls are longer than the add was that just fitted."""
    store = await world.client(wire=wire, frame_size_max=100_000, read_ahead_size=64 * 1024)
    writer = await store.create()
    reader = await store.open(writer.ledger_id)
    tail = asyncio.ensure_future(collect(reader, 0))
    largest = bytes(writer._payload_size_max)
    written = [b"", largest, b"", largest, largest, b"x"]
    for each in written:
        await writer.append(each)
        await asyncio.sleep(0.01)
    with pytest.raises(InvalidArgument):
        await writer.append(largest + b"!")
    await writer.seal()
    assert [entry.payload for entry in await tail] == written
    assert [entry.payload async for entry in reader.read()] == written
    assert all(bookie.connection_count <= 4 for bookie in world.bookies.values())


@scaled(40)
@given(
    ensemble=st.integers(1, 5),
    quorums=st.tuples(st.integers(1, 5), st.integers(0, 4)),
    damage=st.lists(st.tuples(st.integers(0, 99), st.sampled_from(["flip", "lose", "cut"])), max_size=60),
    read_ahead=st.sampled_from([64 * 1024, 1 << 20]),
)
def test_one_good_replica_of_each_entry_is_enough(
    ensemble: int, quorums: tuple[int, int], damage: list[tuple[int, str]], read_ahead: int
) -> None:
    async def act(world: World) -> None:
        write_quorum = min(quorums[0], ensemble)
        store = await world.client(read_ahead_size=read_ahead)
        writer = await write(store, 100, ensemble=ensemble, write_quorum=write_quorum, ack_quorum=write_quorum)
        for entry_id, kind in damage:
            for replica in range(write_quorum):
                if replica == quorums[1] % write_quorum:
                    continue  # The good one.
                name = writer.metadata.last_ensemble[(entry_id + replica) % ensemble]
                entries = world.bookies[name].ledgers[writer.ledger_id].entries
                if kind == "lose":
                    entries.pop(entry_id, None)
                elif entry_id in entries:
                    body = entries[entry_id]
                    entries[entry_id] = body[:30] if kind == "cut" else body[:-1] + bytes([body[-1] ^ 4])
        ledger = await reopen(store, writer)
        check([entry async for entry in ledger.read()], 0, 99)

    play(act, ensemble)


# -- opening, last add confirmed -----------------------------------------------------------------------------------


@in_world()
async def test_opening_checks_the_password_here_and_asks_no_bookie_about_a_sealed_ledger(world: World) -> None:
    store = await world.client()
    writer = await write(store, 3)
    for bookie in world.bookies.values():
        bookie.requests.clear()
    with pytest.raises(Unauthorized, match="wrong password"):
        await store.open(writer.ledger_id)
    await reopen(store, writer)
    assert not any(bookie.requests for bookie in world.bookies.values())
    with pytest.raises(LedgerNotFound):
        await store.open(99)
    with pytest.raises(LedgerNotFound):
        await store.open(-1)


@in_world()
async def test_an_open_ledger_is_readable_up_to_its_last_add_confirmed(world: World) -> None:
    store = await world.client()
    writer = await write(store, 10, seal=False)
    ledger = await reopen(store, writer)
    confirmed = ledger.last_add_confirmed
    assert 0 <= confirmed <= 9
    assert repr(ledger).startswith(f"<LedgerReader 0 open E3/Qw3/Qa2 last_add_confirmed={confirmed} ensemble=[b")
    check([entry async for entry in ledger.read()], 0, confirmed)
    with pytest.raises(ReadFailed, match="tail"):
        [entry async for entry in ledger.read(0, 100)]
    await writer.append(payload(10))
    await writer.append(payload(11))
    assert ledger.last_add_confirmed == confirmed
    assert await ledger.read_last_add_confirmed() >= 10
    assert not any(bookie.ledgers[0].is_fenced for bookie in world.bookies.values())
    await writer.close()


@in_world()
async def test_the_last_add_confirmed_needs_answers_that_cover_the_ensemble(world: World) -> None:
    store = await world.client(read_timeout_ms=500)
    writer = await write(store, 10, seal=False)
    await world.take_down(BookieId("b1"))
    ledger = await reopen(store, writer)
    assert ledger.last_add_confirmed >= 0
    await world.take_down(BookieId("b2"))
    with pytest.raises(ReadFailed, match="cannot learn the last add confirmed"):
        await reopen(store, writer)
    world.bookies[BookieId("b3")].intercept = silence
    with pytest.raises((ReadFailed, BookieTimeout)):
        await reopen(store, writer)
    await writer.close()


@in_world()
async def test_a_corrupt_answer_about_the_last_add_confirmed_counts_as_unknown(world: World) -> None:
    store = await world.client()
    writer = await write(store, 10, seal=False)
    for name in ("b1", "b2"):
        world.bookies[BookieId(name)].corrupt(writer.ledger_id, 9)
    with pytest.raises(ReadFailed, match="does not match"):
        await reopen(store, writer)
    await writer.close()


# -- tailing -------------------------------------------------------------------------------------------------------


async def collect(ledger: LedgerReader, first: int = 0) -> list[Entry]:
    return [entry async for entry in ledger.tail(first)]


@in_world()
async def test_tail_delivers_everything_and_ends_with_the_seal(world: World) -> None:
    store = await world.client()
    writer = await write(store, 0, seal=False)
    ledger = await reopen(store, writer)
    tail = asyncio.ensure_future(collect(ledger))
    for number in range(60):
        await writer.append(payload(number))
        await asyncio.sleep(0.01 * (number % 7))
    await asyncio.sleep(20)
    assert not tail.done()
    await writer.append_many([payload(number) for number in range(60, 300)])
    await writer.seal()
    check(await tail, 0, 299)
    assert ledger.is_sealed
    assert await collect(ledger, 300) == []


@in_world()
async def test_tail_is_prompt(world: World) -> None:
    store = await world.client()
    writer = await write(store, 2, seal=False)
    ledger = await reopen(store, writer)
    entries = ledger.tail(0)
    await anext(entries)
    for number in range(2, 10):
        waiting = asyncio.ensure_future(anext(entries))
        await asyncio.sleep(1.0)
        begun = world.loop.time()
        await writer.append(payload(number))  # Its header confirms the entry before it.
        assert (await waiting).id == number - 1
        assert world.loop.time() - begun < 0.05
    await writer.seal()


@in_world()
async def test_tail_is_not_held_up_by_a_silent_bookie(world: World) -> None:
    store = await world.client()
    writer = await write(store, 2, seal=False)
    ledger = await reopen(store, writer)
    entries = ledger.tail(0)
    await anext(entries)
    world.bookies[BookieId("b1")].intercept = lambda request: [] if isinstance(request, ReadRequest) else None
    for number in range(2, 12):
        waiting = asyncio.ensure_future(anext(entries))
        await writer.append(payload(number))
        begun = world.loop.time()
        assert (await waiting).id == number - 1
        assert world.loop.time() - begun < 0.4
    await writer.seal()


@in_world()
async def test_tail_starts_behind_what_is_confirmed_unless_told(world: World) -> None:
    store = await world.client()
    writer = await write(store, 10, seal=False)
    ledger = await reopen(store, writer)
    confirmed = ledger.last_add_confirmed
    tail = asyncio.ensure_future(anext(ledger.tail()))
    await asyncio.sleep(0.1)
    await writer.append(payload(10))
    assert (await tail).id == confirmed + 1
    await writer.close()


@pytest.mark.parametrize("write_quorum", [3, 2])
@in_world(5)
async def test_tail_survives_bookies_that_come_and_go(world: World, write_quorum: int) -> None:
    store = await world.client(read_timeout_ms=500, add_timeout_ms=500)
    writer = await write(store, 0, seal=False, write_quorum=write_quorum, ack_quorum=2)
    reader = await world.client(read_timeout_ms=500)
    tail = asyncio.ensure_future(collect(await reopen(reader, writer)))
    for number in range(40):
        name = BookieId(f"b{number // 10 % 3 + 1}")
        if number % 10 == 3:
            await world.take_down(name)
        elif number % 10 == 8:
            await world.listen(name)
        await writer.append(payload(number))
        await asyncio.sleep(0.3)
    await writer.seal()
    check(await tail, 0, 39)


@in_world()
async def test_tail_of_a_silent_cluster_gives_up_after_its_patience(world: World) -> None:
    store = await world.client(read_timeout_ms=500)
    writer = await write(store, 5, seal=False)
    ledger = await reopen(store, writer)
    for name in world.bookies:
        await world.take_down(name)
    begun = world.loop.time()
    with pytest.raises(BookieUnreachable):
        await collect(ledger, ledger.last_add_confirmed + 1)
    assert 30 <= world.loop.time() - begun < 60
    await writer.close()


@in_world()
async def test_tail_of_a_ledger_without_entries_waits_for_ever_and_ends_when_it_is_deleted(world: World) -> None:
    store = await world.client()
    writer = await write(store, 0, seal=False)
    ledger = await reopen(store, writer)
    tail = asyncio.ensure_future(collect(ledger))
    await asyncio.sleep(120)
    assert not tail.done()
    await store.delete(writer.ledger_id)
    with pytest.raises(LedgerNotFound):
        await tail
    await writer.close()


@in_world()
async def test_tail_of_a_ledger_without_entries_is_patient_again_after_delayed_answers(world: World) -> None:
    """Failures at its beginning do not count together with one that comes minutes of good answers later."""
    store = await world.client()
    writer = await write(store, 0, seal=False)
    ledger = await reopen(store, writer)
    for name in world.bookies:
        await world.take_down(name)
    tail = asyncio.ensure_future(collect(ledger))
    await asyncio.sleep(0.2)
    for name, bookie in world.bookies.items():
        bookie.delay_s = lambda request: 2.0
        await world.listen(name)
    await asyncio.sleep(60)
    for name in world.bookies:
        await world.take_down(name)
    await asyncio.sleep(5)
    assert not tail.done()
    for name, bookie in world.bookies.items():
        bookie.delay_s = lambda request: 0.0
        await world.listen(name)
    await writer.append_many([payload(number) for number in range(3)])
    await writer.seal()
    check(await tail, 0, 2)


@in_world()
async def test_tail_ends_when_the_handle_is_closed(world: World) -> None:
    store = await world.client()
    writer = await write(store, 3, seal=False)
    ledger = await reopen(store, writer)
    tail = asyncio.ensure_future(collect(ledger))
    await asyncio.sleep(1)
    await ledger.close()
    with pytest.raises(LedgerClosed):
        await tail
    await writer.close()


@in_world()
async def test_in_recovery_what_bookies_say_does_not_raise_the_end(world: World) -> None:
    """Another implementation's recovery may write provisional values (client-protocol 3.6)."""
    store = await world.client()
    writer = await write(store, 10, seal=False)
    ledger = await reopen(store, writer)
    before = ledger.last_add_confirmed
    driver = store._driver
    record = await driver.read_ledger(writer.ledger_id)
    from bookies.protocol.ledger.ledger import in_recovery

    await driver.write_ledger(in_recovery(record.metadata), record.version)
    for bookie in world.bookies.values():
        bookie.ledgers[writer.ledger_id].last_add_confirmed = 9
    tail = asyncio.ensure_future(collect(ledger, before + 1))
    await asyncio.sleep(10)
    assert not tail.done()
    assert await ledger.read_last_add_confirmed() == before
    recovered = await store.recover(writer.ledger_id, password=b"secret")
    assert [entry.id for entry in await tail] == list(range(before + 1, recovered.last_add_confirmed + 1))
    await writer.close()


@in_world()
async def test_the_ordinary_reader_sends_nothing_that_fences(world: World) -> None:
    store = await world.client()
    writer = await write(store, 10, seal=False)
    ledger = await reopen(store, writer)
    tail = asyncio.ensure_future(collect(ledger))
    await asyncio.sleep(3)
    await writer.seal()
    check(await tail, 0, 9)
    for bookie in world.bookies.values():
        for request in bookie.requests:
            if isinstance(request, ReadRequest | BatchReadRequest):
                assert not request.is_fencing
                assert request.master_key is None
    assert any(isinstance(each, ReadLacRequest) for bookie in world.bookies.values() for each in bookie.requests)


# -- arrow ---------------------------------------------------------------------------------------------------------


def test_arrow_table() -> None:
    pyarrow = pytest.importorskip("pyarrow")

    async def act(world: World) -> None:
        store = await world.client(read_ahead_size=64 * 1024)
        writer = await write(store, 2000)
        ledger = await reopen(store, writer)
        table = await ledger.read_arrow(10, 1999)
        assert table.schema.names == ["ledger_id", "entry_id", "value"]
        assert table.schema.types == [pyarrow.int64(), pyarrow.int64(), pyarrow.binary()]
        assert table.column("entry_id").to_pylist() == list(range(10, 2000))
        assert table.column("value").to_pylist() == [payload(number) for number in range(10, 2000)]
        assert table.column("value").num_chunks > 1
        table.validate(full=True)
        empty = await reopen(store, await write(store, 0))
        assert (await empty.read_arrow()).num_rows == 0

    play(act)


@in_world()
async def test_bookies_have_no_news_of_a_ledger_that_nobody_has_written_to(world: World) -> None:
    """They do not know it. A tail waits for them to."""
    store = await world.client()
    async with store.create() as writer, store.open(writer.ledger_id) as reader:
        for parallel in (False, True):
            with pytest.raises(LedgerUnknownToBookie):
                await reader.read_last_add_confirmed_and_entry(0, wait=0.5, parallel=parallel)
        with pytest.raises(TimeoutError, match="next step of an iteration"):
            await anext(reader.tail(0, timeout=0.5))
