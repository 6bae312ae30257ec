"""Which requests a range of entries becomes: late replicas, old bookies, striped ledgers, sticky readers, limits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.fakes.bookie import FakeBookie
from tests.fakes.world import World, in_world, play

from bookies.client.base import Entry
from bookies.client.base.keys import keys_of
from bookies.client.client import Client
from bookies.client.read import LedgerReader
from bookies.client.read.context import FetchCounts, ReadContext
from bookies.client.read.fetch import FetchWindow, RangeFetch
from bookies.client.write import LedgerWriter
from bookies.errors import (
    BookieTimeout,
    BookieUnreachable,
    ClientClosed,
    DigestMismatch,
    EntryNotFound,
    InvalidArgument,
    LedgerClosed,
    ReadFailed,
    Status,
)
from bookies.kernels import Records
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.wire.messages import BatchReadRequest, BatchReadResponse, ReadRequest, Request, Response

READS = ReadRequest | BatchReadRequest


def payload(number: int) -> bytes:
    return b"payload %d " % number + b"x" * (number % 50)


async def write(store: Client, count: int, **options: Any) -> LedgerWriter:
    """A sealed ledger."""
    writer = await store.create(**{"ensemble": 3, **options})
    await writer.append_many([payload(number) for number in range(count)])
    await writer.seal()
    return writer


def check(entries: Sequence[Entry], first: int, last: int) -> None:
    assert [entry.id for entry in entries] == list(range(first, last + 1))
    assert [entry.payload for entry in entries] == [payload(number) for number in range(first, last + 1)]


def reads_of(bookie: FakeBookie) -> list[ReadRequest | BatchReadRequest]:
    return [request for request in bookie.requests if isinstance(request, READS)]


def forget_requests(world: World) -> None:
    for bookie in world.bookies.values():
        bookie.requests.clear()


def slow_reads(seconds: float) -> Callable[[Request], float]:
    return lambda request: seconds if isinstance(request, READS) else 0.0


def old(bookie: FakeBookie) -> None:
    """Before 4.17: a batch read costs the connection."""

    def close(request: Request) -> Sequence[Response] | None:
        if isinstance(request, BatchReadRequest):
            bookie.drop_connections()
            return []
        return None

    bookie.intercept = close


# -- late replicas -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["v2", "v3"])
@in_world()
async def test_a_slow_bookie_does_not_slow_the_reader(world: World, wire: str) -> None:
    """What is late by a bookie's own standard is asked of another; how late, bookies teach by their answers."""
    store = await world.client(wire=wire, hedge_delay_max_ms=50, read_ahead_size=64 * 1024)
    writer = await write(store, 2000)
    ledger = await store.open(writer.ledger_id)
    check([entry async for entry in ledger.read()], 0, 1999)
    begun = world.loop.time()
    check([entry async for entry in ledger.read()], 0, 1999)
    usual = world.loop.time() - begun
    world.bookies[BookieId("b2")].delay_s = slow_reads(2.0)
    begun = world.loop.time()
    check([entry async for entry in ledger.read()], 0, 1999)
    assert world.loop.time() - begun < usual + 0.3
    assert not store._pool.is_suspect(BookieId("b2"))


@in_world()
async def test_without_hedging_a_slow_bookie_is_waited_for(world: World) -> None:
    store = await world.client(hedged_reads=False)
    ledger = await store.open((await write(store, 10)).ledger_id)
    for bookie in world.bookies.values():
        bookie.delay_s = slow_reads(2.0)
    begun = world.loop.time()
    check([entry async for entry in ledger.read()], 0, 9)
    assert 2.0 <= world.loop.time() - begun < 2.1
    assert sum(len(reads_of(bookie)) for bookie in world.bookies.values()) == 1


@pytest.mark.parametrize("late_answer", ["error", "corrupt", "good", "duplicate"])
@in_world()
async def test_late_answers_have_no_effect(world: World, late_answer: str) -> None:
    """One completion, whatever arrives later (X-57)."""
    store = await world.client(hedge_delay_max_ms=20)
    writer = await write(store, 10)
    ledger = await store.open(writer.ledger_id)
    for bookie in world.bookies.values():
        bookie.delay_s = slow_reads(0.5)
    forget_requests(world)
    reading = asyncio.ensure_future(ledger.read_entry(3))
    await asyncio.sleep(0.01)
    (slow,) = [bookie for bookie in world.bookies.values() if reads_of(bookie)]
    for bookie in world.bookies.values():
        if bookie is not slow:
            bookie.delay_s = lambda request: 0.0
    await asyncio.sleep(0.1)
    assert reading.done(), "the second replica has answered"
    if late_answer == "error":
        slow.drop_connections()
    elif late_answer == "corrupt":
        slow.corrupt(writer.ledger_id, 3)
    elif late_answer == "duplicate":
        slow.connections[-1].send(slow.answer(reads_of(slow)[0]))
    await asyncio.sleep(1)
    check([await reading], 3, 3)
    reads = [len(reads_of(bookie)) for bookie in world.bookies.values()]
    assert sorted(reads) == [0, 1, 1]
    check([entry async for entry in ledger.read()], 0, 9)


@in_world()
async def test_a_late_replica_that_fails_does_not_end_the_read_of_the_others(world: World) -> None:
    store = await world.client(hedge_delay_max_ms=20)
    writer = await write(store, 10)
    ledger = await store.open(writer.ledger_id)
    names = list(writer.metadata.last_ensemble)
    for name, delay in zip(names, (0.3, 0.1, 0.6), strict=True):
        world.bookies[name].delay_s = slow_reads(delay)
    for name in names[:2]:
        world.bookies[name].corrupt(writer.ledger_id, 0)
    begun = world.loop.time()
    check([await ledger.read_entry(0)], 0, 0)
    assert 0.6 <= world.loop.time() - begun < 0.8


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("write_quorum", [3, 2])
@in_world()
async def test_a_parallel_read_takes_the_first_good_answer(world: World, wire: str, write_quorum: int) -> None:
    store = await world.client(wire=wire, hedged_reads=False)
    writer = await write(store, 10, write_quorum=write_quorum, ack_quorum=2)
    ledger = await store.open(writer.ledger_id)
    replicas = [writer.metadata.last_ensemble[(4 + offset) % 3] for offset in range(write_quorum)]
    for good in replicas:
        for name in replicas:
            world.bookies[name].delay_s = slow_reads(0.2 if name == good else 0.1)
            if name != good:
                world.bookies[name].corrupt(writer.ledger_id, 4)
        forget_requests(world)
        begun = world.loop.time()
        check([await ledger.read_entry(4, parallel=True)], 4, 4)
        assert 0.2 <= world.loop.time() - begun < 0.3
        assert [name for name, bookie in world.bookies.items() if reads_of(bookie)] == sorted(replicas)
        for name in replicas:
            if name != good:
                world.bookies[name].corrupt(writer.ledger_id, 4)  # Flips it back.
    for name in replicas:
        del world.bookies[name].ledgers[writer.ledger_id].entries[4]
    with pytest.raises(EntryNotFound):
        await ledger.read_entry(4, parallel=True)
    with pytest.raises(InvalidArgument):
        await ledger.read_entry(-1)


@in_world()
async def test_one_negative_one_unreachable_one_silent_is_not_a_missing_entry(world: World) -> None:
    """X-58, I-32."""
    store = await world.client(read_timeout_ms=500)
    writer = await write(store, 10)
    for order in itertools.permutations(world.bookies):
        missing, silent = world.bookies[order[0]], world.bookies[order[2]]
        body = missing.ledgers[writer.ledger_id].entries.pop(4)
        await world.take_down(order[1])
        silent.intercept = lambda request: []
        ledger = await store.open(writer.ledger_id)
        with pytest.raises((BookieTimeout, BookieUnreachable), match="can be reached") as raised:
            await ledger.read_entry(4)
        assert raised.value.entry_id == 4
        missing.ledgers[writer.ledger_id].entries[4] = body
        silent.intercept = lambda request: None
        await world.listen(order[1])
        check([await ledger.read_entry(4)], 4, 4)


@in_world()
async def test_a_read_step_has_a_time_out_and_may_be_continued(world: World) -> None:
    store = await world.client()
    writer = await write(store, 10)
    ledger = await store.open(writer.ledger_id)
    for bookie in world.bookies.values():
        bookie.delay_s = slow_reads(1.5)
    entries = ledger.read(timeout=1)
    with pytest.raises(TimeoutError):
        await anext(entries)
    with pytest.raises(TimeoutError):
        await ledger.read_entry(3, timeout=0.2)
    for bookie in world.bookies.values():
        bookie.delay_s = lambda request: 0.0
    check([entry async for entry in entries], 0, 9)


# -- health --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("write_quorum", [3, 2])
@in_world()
async def test_unhealthy_bookies_are_asked_last(world: World, wire: str, write_quorum: int) -> None:
    store = await world.client(wire=wire)
    writer = await write(store, 200, write_quorum=write_quorum, ack_quorum=2)
    ledger = await store.open(writer.ledger_id)
    forget_requests(world)
    store._pool.suspect(BookieId("b1"))
    check([entry async for entry in ledger.read()], 0, 199)
    assert not reads_of(world.bookies[BookieId("b1")])


@in_world()
async def test_a_sticky_reader_stays_with_one_bookie_until_it_fails(world: World) -> None:
    store = await world.client(sticky_reads=True, read_ahead_size=64 * 1024)
    writer = await write(store, 2000)
    ledger = await store.open(writer.ledger_id)
    forget_requests(world)
    check([entry async for entry in ledger.read()], 0, 1999)
    check([entry async for entry in ledger.read(500)], 500, 1999)
    (first,) = [name for name, bookie in world.bookies.items() if reads_of(bookie)]
    await world.take_down(first)
    check([entry async for entry in ledger.read()], 0, 1999)
    check([entry async for entry in ledger.read()], 0, 1999)
    ensemble = writer.metadata.last_ensemble
    following = ensemble[(ensemble.index(first) + 1) % 3]
    assert [name for name, bookie in world.bookies.items() if reads_of(bookie) and name != first] == [following]


@in_world()
async def test_striped_ledgers_are_not_read_stickily(world: World) -> None:
    store = await world.client(sticky_reads=True)
    writer = await write(store, 100, write_quorum=2, ack_quorum=2)
    ledger = await store.open(writer.ledger_id)
    check([entry async for entry in ledger.read()], 0, 99)


# -- requests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ensemble", "write_quorum"), [(3, 2), (5, 3), (4, 2), (6, 3)])
def test_striped_ledgers_are_read_in_runs_from_all_bookies(ensemble: int, write_quorum: int) -> None:
    async def act(world: World) -> None:
        store = await world.client()
        writer = await write(store, 3000, ensemble=ensemble, write_quorum=write_quorum, ack_quorum=2)
        ledger = await store.open(writer.ledger_id)
        forget_requests(world)
        check([entry async for entry in ledger.read()], 0, 2999)
        counts = [len(reads_of(bookie)) for bookie in world.bookies.values()]
        assert sum(counts) < 3000 / write_quorum * 1.1
        assert min(counts) > sum(counts) / ensemble / 2
        for bookie in world.bookies.values():
            for request in reads_of(bookie):
                assert isinstance(request, BatchReadRequest)
                assert request.count_max <= write_quorum

    play(act, ensemble)


@pytest.mark.parametrize(("ensemble", "write_quorum"), [(3, 3), (3, 2)])
def test_requests_in_flight_are_bounded(ensemble: int, write_quorum: int) -> None:
    async def act(world: World) -> None:
        store = await world.client(wire="v3")
        writer = await write(store, 3000, ensemble=ensemble, write_quorum=write_quorum, ack_quorum=2)
        ledger = await store.open(writer.ledger_id)
        forget_requests(world)
        batches = ledger.read_batches()
        await anext(batches)
        # Few at first, as nothing is known of the size of the entries; more, but not any number, later.
        assert sum(len(reads_of(bookie)) for bookie in world.bookies.values()) <= 32 + 128
        for _ in range(8):
            await anext(batches)
        forget_requests(world)
        for bookie in world.bookies.values():
            bookie.delay_s = slow_reads(0.01)
        await anext(batches)
        assert sum(len(reads_of(bookie)) for bookie in world.bookies.values()) <= 512 + 128

    play(act, ensemble)


@in_world()
async def test_old_bookies_are_remembered_by_the_client(world: World) -> None:
    """X-63: the same result, and a connection or two lost, not one for each read."""
    store = await world.client()
    writer = await write(store, 300)
    for bookie in world.bookies.values():
        old(bookie)
    ledger = await store.open(writer.ledger_id)
    check([entry async for entry in ledger.read()], 0, 299)
    forget_requests(world)
    for _ in range(3):
        check([entry async for entry in (await store.open(writer.ledger_id)).read()], 0, 299)
    requests = [request for bookie in world.bookies.values() for request in reads_of(bookie)]
    assert sum(isinstance(request, BatchReadRequest) for request in requests) <= 2
    assert all(bookie.connection_count <= 5 for bookie in world.bookies.values())


@in_world()
async def test_one_old_bookie_among_newer_ones_is_not_asked_for_batches_again(world: World) -> None:
    store = await world.client(read_ahead_size=64 * 1024)
    writer = await write(store, 3000)
    old(world.bookies[BookieId("b2")])
    ledger = await store.open(writer.ledger_id)
    for _ in range(3):
        check([entry async for entry in ledger.read()], 0, 2999)
    assert not store._pool.batch_support.knows(BookieId("b2"))
    assert store._pool.batch_support.knows(BookieId("b1"))
    requests = [each for each in reads_of(world.bookies[BookieId("b2")]) if isinstance(each, BatchReadRequest)]
    assert len(requests) <= 4


@in_world()
async def test_a_restarted_bookie_still_knows_batch_reads(world: World) -> None:
    store = await world.client(read_timeout_ms=500)
    writer = await write(store, 300)
    ledger = await store.open(writer.ledger_id)
    check([entry async for entry in ledger.read()], 0, 299)
    known = [name for name, bookie in world.bookies.items() if reads_of(bookie)]  # They have answered a batch.
    for name in list(world.bookies):
        await world.take_down(name)
    with pytest.raises(BookieUnreachable):
        await ledger.read_entry(5)
    for name in list(world.bookies):
        await world.listen(name)
    check([entry async for entry in ledger.read()], 0, 299)
    assert known
    assert all(store._pool.batch_support.knows(name) for name in known)


@in_world()
async def test_what_is_sent_beyond_the_question_is_not_delivered(world: World) -> None:
    """Bookies that answer with more entries than they were asked for, good ones too."""
    store = await world.client()
    for options in ({}, {"write_quorum": 2, "ack_quorum": 2}):
        writer = await write(store, 60, **options)
        ledger = await store.open(writer.ledger_id)
        bodies: dict[int, bytes] = {}
        for bookie in world.bookies.values():
            bodies |= bookie.ledgers[writer.ledger_id].entries

        def more(request: Request, bodies: dict[int, bytes] = bodies) -> Sequence[Response] | None:
            if not isinstance(request, BatchReadRequest):
                return None
            entry_ids = range(request.entry_id, min(60, request.entry_id + request.count_max + 2))
            records = Records.of([bodies[entry_id] for entry_id in entry_ids]).data
            return [BatchReadResponse(2, request.txn_id, Status.OK, request.ledger_id, request.entry_id, records)]

        for bookie in world.bookies.values():
            bookie.intercept = more
        for first, last in ((0, 59), (3, 20), (7, 7)):
            check([entry async for entry in ledger.read(first, last)], first, last)
        for bookie in world.bookies.values():
            bookie.intercept = lambda request: None


# -- single batches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("write_quorum", [3, 2])
@in_world()
async def test_a_batch_is_bounded_by_count_size_and_last_add_confirmed(
    world: World, wire: str, write_quorum: int
) -> None:
    store = await world.client(wire=wire)
    writer = await write(store, 100, write_quorum=write_quorum, ack_quorum=2)
    ledger = await store.open(writer.ledger_id)
    for first in (0, 13, 99):
        batch = await ledger.read_batch(first, count_max=5)
        assert batch.first_entry_id == first
        assert 1 <= len(batch) <= 5
        check(list(batch.entries()), first, batch.last_entry_id)
        batch = await ledger.read_batch(first, size_max=300)
        assert batch.size <= 300
        check(list(batch.entries()), first, batch.last_entry_id)
        assert len(await ledger.read_batch(first, size_max=1)) == 1
        batch = await ledger.read_batch(first)
        assert batch.last_entry_id <= 99
        assert len(batch) >= min(30, 100 - first)
    for bad in ({"first": -1}, {"first": 0, "count_max": -1}, {"first": 0, "size_max": -1}):
        with pytest.raises(InvalidArgument):
            await ledger.read_batch(**bad)
    with pytest.raises(ReadFailed):
        await ledger.read_batch(100)
    with pytest.raises(EntryNotFound):
        await ledger.read_batch(100, unconfirmed=True)


@in_world(4)
async def test_batches_stop_at_the_end_and_at_fragments_whatever_bookies_hold(world: World) -> None:
    """X-55 and X-56."""
    store = await world.client(add_timeout_ms=300)
    writer = await store.create(ensemble=3, ack_quorum=3)
    await writer.append_many([payload(number) for number in range(10)])
    victim = writer.metadata.last_ensemble[0]
    await world.take_down(victim)
    await writer.append_many([payload(number) for number in range(10, 20)])
    await writer.seal()
    await world.listen(victim)
    assert [first for first, _ in writer.metadata.ensembles] == [0, 10]
    longer = await write(store, 40)
    for bookie in world.bookies.values():
        kept = bookie.ledgers.get(longer.ledger_id)
        for entry_id, body in kept.entries.items() if kept else ():
            # Superseded or never confirmed: they must not even be looked at, and would not verify.
            bookie.ledgers[writer.ledger_id].entries.setdefault(entry_id, body)
    forget_requests(world)
    ledger = await store.open(writer.ledger_id)
    assert (await ledger.read_batch(8)).last_entry_id == 9
    assert (await ledger.read_batch(18)).last_entry_id == 19
    assert (await ledger.read_batch(18, unconfirmed=True)).last_entry_id == 19
    check([entry async for entry in ledger.read(8)], 8, 19)
    assert ledger.last_add_confirmed == 19
    for bookie in world.bookies.values():
        for request in reads_of(bookie):
            assert isinstance(request, BatchReadRequest)
            end = request.entry_id + request.count_max
            assert end <= (10 if request.entry_id < 10 else 20)


@in_world()
async def test_a_damaged_batch_gives_its_good_front_first(world: World) -> None:
    """X-48."""
    store = await world.client()
    writer = await write(store, 20)
    for bookie in world.bookies.values():
        bookie.corrupt(writer.ledger_id, 7)
    ledger = await store.open(writer.ledger_id)
    assert (await ledger.read_batch(3)).last_entry_id == 6
    with pytest.raises(DigestMismatch, match="bk ledger verify"):
        await ledger.read_batch(7)
    assert (await ledger.read_batch(8)).last_entry_id == 19


@in_world()
async def test_what_is_asked_and_what_goes_wrong_is_counted(world: World) -> None:
    store = await world.client(hedge_delay_max_ms=50)
    record = (await write(store, 40)).metadata

    async def counted() -> FetchCounts:
        async def refresh() -> LedgerMetadata:
            return record

        context = ReadContext(store._pool, store.config, keys_of(record, b""), refresh)
        fetch = RangeFetch(context, record, 0, 39, FetchWindow(context, 50))
        forget_requests(world)
        while await fetch.next_batch() is not None:
            pass
        assert context.counts.requests == sum(len(reads_of(bookie)) for bookie in world.bookies.values())
        return context.counts

    assert await counted() == FetchCounts(requests=1)
    first = record.last_ensemble[0]
    world.bookies[first].corrupt(record.ledger_id, 0)
    assert await counted() == FetchCounts(requests=2, failures=1, digest_failures=1)
    world.bookies[first].delay_s = slow_reads(2.0)
    assert await counted() == FetchCounts(requests=2, hedges=1)


# -- unconfirmed reads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("write_quorum", [3, 2])
@in_world()
async def test_unconfirmed_reads_see_what_bookies_hold(world: World, wire: str, write_quorum: int) -> None:
    store = await world.client(wire=wire, explicit_lac_interval_ms=0)
    writer = await store.create(ensemble=3, write_quorum=write_quorum, ack_quorum=2)
    await writer.append_many([payload(number) for number in range(10)])
    ledger = await store.open(writer.ledger_id)
    assert ledger.last_add_confirmed == -1
    check([entry async for entry in ledger.read_unconfirmed(2, 9)], 2, 9)
    batch = await ledger.read_batch(4, unconfirmed=True)
    check(list(batch.entries()), 4, batch.last_entry_id)
    entries = ledger.read_unconfirmed(8, 12)
    check([await anext(entries), await anext(entries)], 8, 9)
    with pytest.raises(EntryNotFound):
        await anext(entries)
    await writer.append(payload(10))
    check([await anext(entries)], 10, 10)
    for bad in ((-1, 3), (3, 2)):
        with pytest.raises(InvalidArgument):
            ledger.read_unconfirmed(*bad)
    await writer.seal()
    await ledger.close()
    with pytest.raises(LedgerClosed):
        await anext(ledger.read_unconfirmed(0, 1))


@in_world()
async def test_unconfirmed_reads_end_with_the_ledger(world: World) -> None:
    """I-12: not even what bookies hold beyond an end that is known; no bookie is asked for it."""
    store = await world.client()
    writer = await store.create(ensemble=3)
    await writer.append_many([payload(number) for number in range(10)])
    ledger = await store.open(writer.ledger_id)
    entries = ledger.read_unconfirmed(0, 15)
    batches = ledger.read_unconfirmed(8, 15).batches()
    assert (await anext(batches)).last_entry_id == 9
    for bookie in world.bookies.values():
        held = bookie.ledgers[writer.ledger_id].entries
        held.update(dict.fromkeys(range(10, 16), held[9]))
    await writer.seal()
    await asyncio.sleep(10)
    forget_requests(world)
    with pytest.raises(EntryNotFound, match="last entry is 9"):
        await anext(batches)
    with pytest.raises(EntryNotFound, match="last entry is 9"):
        await anext(entries)
    with pytest.raises(EntryNotFound, match="last entry is 9"):
        await ledger.read_batch(10, unconfirmed=True)
    assert not any(reads_of(bookie) for bookie in world.bookies.values())
    check([entry async for entry in ledger.read_unconfirmed(7, 9)], 7, 9)


@in_world()
async def test_unconfirmed_entries_on_their_way_when_the_end_becomes_known_are_dropped(world: World) -> None:
    store = await world.client()
    writer = await store.create(ensemble=3)
    await writer.append_many([payload(number) for number in range(20)])
    ledger = await store.open(writer.ledger_id)
    record = await store._driver.read_ledger(writer.ledger_id)
    closed = record.metadata.replace(state=LedgerState.CLOSED, last_entry_id=11, length=0)
    batch = await ledger.read_batch(0, unconfirmed=True)
    assert batch.last_entry_id == 19
    await store._driver.write_ledger(closed, record.version)
    ledger._state.mark_stale()
    await ledger._state.follow_metadata()
    assert ledger._state.within_end(batch).last_entry_id == 11
    with pytest.raises(EntryNotFound, match="was sealed"):
        ledger._state.within_end(batch.slice(12, 15))
    await writer.close()


# -- last add confirmed --------------------------------------------------------------------------------------------


@in_world()
async def test_answers_over_v3_tell_the_last_add_confirmed(world: World) -> None:
    store = await world.client(wire="v3", explicit_lac_interval_ms=0)
    writer = await store.create(ensemble=3)
    for number in range(5):
        await writer.append(payload(number))
    ledger = await store.open(writer.ledger_id)
    assert ledger.last_add_confirmed == 3
    for number in range(5, 10):
        await writer.append(payload(number))
    check([await ledger.read_entry(2)], 2, 2)
    assert ledger.last_add_confirmed == 8
    await writer.seal()


@pytest.mark.parametrize("write_quorum", [3, 2])
@in_world()
async def test_reads_after_the_client_was_closed(world: World, write_quorum: int) -> None:
    store = await world.client(hedge_delay_max_ms=100)
    writer = await write(store, 10, write_quorum=write_quorum, ack_quorum=2)
    ledger: LedgerReader = await store.open(writer.ledger_id)
    for bookie in world.bookies.values():
        bookie.delay_s = slow_reads(1.0)
    readings = [asyncio.ensure_future(anext(ledger.read(first))) for first in (0, 9)]
    await asyncio.sleep(0.5)
    await store.close()
    for reading in readings:
        with pytest.raises(ClientClosed):
            await reading
    with pytest.raises(ClientClosed):
        await ledger.read_entry(3)


@in_world()
async def test_a_silent_bookie_is_found_out_although_nobody_waits_for_it(world: World) -> None:
    """What it was asked first goes on until its time-out; then it is asked last, without another delay."""
    store = await world.client(read_timeout_ms=1000, hedge_delay_max_ms=20)
    ledger = await store.open((await write(store, 10)).ledger_id)
    check([await ledger.read_entry(0)], 0, 0)
    name, silent = next(each for each in world.bookies.items() if reads_of(each[1]))  # It is asked first.
    silent.intercept = lambda request: []
    for entry_id in range(10):
        check([await ledger.read_entry(entry_id)], entry_id, entry_id)
    assert len(reads_of(silent)) >= 2
    await asyncio.sleep(1.5)
    assert store._pool.is_suspect(name)
