"""Which replica reads prefer: near ones, as long as they are quick; what that saves is counted."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from msgspec.structs import replace
from tests.fakes.world import World, in_world
from tests.unit.client.read.test_fetch import check, forget_requests, reads_of, slow_reads, write

from bookies.client.client import Client
from bookies.client.read import LedgerReader
from bookies.config import ClientConfig
from bookies.errors import NotEnoughBookies
from bookies.metadata.embedded import MemoryDriver
from bookies.model import BookieId
from bookies.protocol.ledger.slow_replicas import TRIAL_INTERVAL_S, TRIALS_WELL
from bookies.wire.messages import ReadRequest

B1, B2, B3 = BookieId("b1"), BookieId("b2"), BookieId("b3")
ZONES = "b1=/z1/r1, b2=/z2/r1, b3=/z3/r1, b4=/z1/r2, b5=/z2/r2, b6=/z3/r2"
NEAR = {"location": "/z1/r1", "fault_domains": ZONES}


def asked(world: World) -> Counter[BookieId]:
    """The reads that each bookie got since this was called last."""
    counts = Counter({name: len(reads) for name, bookie in world.bookies.items() if (reads := reads_of(bookie))})
    forget_requests(world)
    return counts


async def read_singly(ledger: LedgerReader, count: int) -> None:
    for entry_id in range(count):
        check([await ledger.read_entry(entry_id % 100)], entry_id % 100, entry_id % 100)


@pytest.mark.parametrize("wire", ["v2", "v3"])
@in_world()
async def test_reads_stay_in_the_zone_and_are_counted(world: World, wire: str) -> None:
    store = await world.client(wire=wire, **NEAR)
    writer = await write(store, 100)
    forget_requests(world)
    async with store.open(writer.ledger_id) as ledger:
        await read_singly(ledger, 20)
        check([entry async for entry in ledger.read()], 0, 99)
    assert asked(world).keys() == {B1}
    counts = store.usage().counts
    assert counts.reads_by_nearness.keys() == {"rack", "other"}
    assert counts.reads_by_nearness["rack"] >= 21
    assert counts.reads_by_nearness["other"] == 0
    received, sent = (counts.bytes_by_nearness["rack", direction] for direction in ("received", "sent"))
    assert received > 120 * 25
    assert counts.bytes_by_nearness["other", "sent"] > sent, "two replicas were written there"
    before = dict(counts.bytes_by_nearness)
    assert store.usage().counts.bytes_by_nearness == before


@in_world()
async def test_traffic_of_ended_connections_stays_counted(world: World) -> None:
    store = await world.client(**NEAR)
    await write(store, 100)
    before = store.usage().counts.bytes_by_nearness["rack", "sent"]
    world.bookies[B1].drop_connections()
    await asyncio.sleep(0.1)
    assert store.usage().counts.bytes_by_nearness["rack", "sent"] == before
    assert not store._pool._peers[B1].connections


@in_world()
async def test_without_the_setting_all_replicas_have_their_turn(world: World) -> None:
    store = await world.client(near_reads=False, **NEAR)
    writer = await write(store, 100)
    forget_requests(world)
    async with store.open(writer.ledger_id) as ledger:
        await read_singly(ledger, 30)
    assert asked(world) == {B1: 10, B2: 10, B3: 10}
    assert store.usage().counts.reads_by_nearness == {"rack": 10, "other": 20}, "counted all the same"


@in_world(bookie_count=6)
async def test_in_a_striped_ledger_each_entry_has_a_near_replica(world: World) -> None:
    store = await world.client(placement="region", **NEAR)
    writer = await store.create(bookies=["b1", "b2", "b3", "b4", "b5", "b6"], write_quorum=3)
    await writer.append_many([b"x" * 100] * 300)
    await writer.seal()
    forget_requests(world)
    async with store.open(writer.ledger_id) as ledger:
        assert len([entry async for entry in ledger.read()]) == 300
        for entry_id in range(30):
            await ledger.read_entry(entry_id)
    assert asked(world).keys() == {B1, BookieId("b4")}


@in_world(bookie_count=6)
async def test_a_late_near_replica_of_a_striped_ledger_gets_company_of_other_holders(world: World) -> None:
    store = await world.client(location="/z3/r1", fault_domains=ZONES, hedge_delay_max_ms=20)
    writer = await store.create(bookies=["b1", "b2", "b3", "b4", "b5", "b6"], write_quorum=3)
    await writer.append_many([b"x" * 100] * 60)
    await writer.seal()
    world.bookies[B3].delay_s = slow_reads(0.5)
    forget_requests(world)
    async with store.open(writer.ledger_id) as ledger:
        assert (await ledger.read_entry(6)).payload == b"x" * 100
    assert asked(world).keys() == {B3, B1}, "entry 6 is on b1, b2 and b3"


@in_world()
async def test_preferred_locations_follow_and_banned_ones_come_last(world: World) -> None:
    store = await world.client(fault_domains=ZONES, locations_preferred="/z3", locations_banned="/z1")
    writer = await (await world.client()).create(bookies=["b1", "b2", "b3"])
    await writer.append_many([b"x"] * 10)
    await writer.seal()
    forget_requests(world)
    async with store.open(writer.ledger_id) as ledger:
        await ledger.read_entry(0)
        assert asked(world) == {B3: 1}
        await world.take_down(B3)
        for entry_id in range(10):
            await ledger.read_entry(entry_id)
        assert asked(world).keys() == {B2}
        await world.take_down(B2)
        for entry_id in range(10):
            await ledger.read_entry(entry_id)
        assert asked(world).keys() == {B1}, "a ban excludes no replica that exists"
    with pytest.raises(NotEnoughBookies, match=r"locations_banned names their location: b1 \(/z1/r1\)"):
        await store.create(ensemble=3)


@in_world()
async def test_a_slow_near_replica_is_left_within_a_second_and_taken_again(world: World) -> None:
    store = await world.client(**NEAR)
    writer = await write(store, 100)
    async with store.open(writer.ledger_id) as ledger:
        await read_singly(ledger, 300)
        world.bookies[B1].delay_s = slow_reads(0.5)
        begun = world.loop.time()
        while B1 not in store._pool.health.slow:
            await ledger.read_entry(7)
        assert world.loop.time() - begun < 1.0
        assert store.usage().slow_bookies == 1
        asked(world)
        begun = world.loop.time()
        await read_singly(ledger, 100)
        check([entry async for entry in ledger.read()], 0, 99)
        assert world.loop.time() - begun < 0.2, "no read waits for it"
        assert asked(world).keys() == {B2, B3}
        world.bookies[B1].delay_s = lambda request: 0.0
        begun = world.loop.time()
        while B1 in store._pool.health.slow:
            await ledger.read_entry(7)
            await asyncio.sleep(0.01)
        assert world.loop.time() - begun < (TRIALS_WELL + 1) * TRIAL_INTERVAL_S + 1.0
        asked(world)
        await read_singly(ledger, 20)
        assert asked(world) == {B1: 20}


@in_world()
async def test_scans_leave_a_slow_replica_too_and_try_it(world: World) -> None:
    store = await world.client(read_ahead_size=64 * 1024, hedge_delay_max_ms=20, **NEAR)
    writer = await store.create()
    await writer.append_many([b"x" * 1000] * 2000)
    await writer.seal()
    world.bookies[B1].delay_s = slow_reads(0.5)
    async with store.open(writer.ledger_id) as ledger:
        assert len([entry async for entry in ledger.read()]) == 2000
        assert B1 in store._pool.health.slow
        asked(world)
        await asyncio.sleep(TRIAL_INTERVAL_S)
        assert len([entry async for entry in ledger.read()]) == 2000
        trials = [request for request in reads_of(world.bookies[B1]) if isinstance(request, ReadRequest)]
        assert len(trials) == len(reads_of(world.bookies[B1])) == 1


@in_world()
async def test_a_slow_near_replica_stays_the_first_while_the_others_are_slower(world: World) -> None:
    store = await world.client(**NEAR)
    writer = await write(store, 100)
    for bookie, delay_s in ((B1, 0.02), (B2, 0.2), (B3, 0.2)):
        world.bookies[bookie].delay_s = slow_reads(delay_s)
    async with store.open(writer.ledger_id) as ledger:
        await read_singly(ledger, 300)
    assert not store._pool.health.slow
    assert asked(world)[B1] == 300


@in_world()
async def test_a_trial_that_fails_keeps_the_replica_slow(world: World) -> None:
    store = await world.client(**NEAR)
    writer = await write(store, 100)
    store._pool.health.lost_race(B1, 1.0)
    await asyncio.sleep(TRIAL_INTERVAL_S)
    await world.take_down(B1)
    async with store.open(writer.ledger_id) as ledger:
        await read_singly(ledger, 5)
    assert B1 in store._pool.health.slow
    assert asked(world).keys() == {B2, B3}


@in_world()
async def test_hedges_to_farther_replicas_wait_twice_as_long(world: World) -> None:
    store = await world.client(hedge_delay_min_ms=10, hedge_delay_max_ms=30, **NEAR)
    health = store._pool.health
    assert health.hedge_delay_s(B1, other=B2) == 0.03, "not enough answers were timed"
    for bookie in (B1, B2):
        for _ in range(16):
            health.observe(bookie, "read", 0.001)
    assert health.hedge_delay_s(B1) == health.hedge_delay_s(B2, other=B1) == health.hedge_delay_s(B2, other=B3) == 0.01
    assert health.hedge_delay_s(B1, other=B2) == 0.02


@in_world()
async def test_recovery_and_copies_read_near_replicas(world: World) -> None:
    store = await world.client(**NEAR)
    writer = await (await world.client()).create(ack_quorum=3)
    await writer.append_many([b"x" * 100] * 50)
    forget_requests(world)
    async with store.recover(writer.ledger_id) as ledger:
        assert ledger.last_add_confirmed == 49
    tail = [name for name, bookie in world.bookies.items() for read in reads_of(bookie) if read.entry_id >= 0]
    assert set(tail) == {B1}, "one of three that lacks the entry after the last proves its end"
    forget_requests(world)
    stored = [body async for _, body in store.administration().read_stored(writer.ledger_id, 0, 9)]
    assert len(stored) == 10
    assert asked(world) == {B1: 10}


@in_world()
async def test_a_tail_polls_the_near_replica_of_its_entry(world: World) -> None:
    store = await world.client(**NEAR)
    async with store.create() as writer:
        await writer.append(b"first")
        async with store.open(writer.ledger_id) as ledger:
            forget_requests(world)
            tail = ledger.tail(1)
            follower = asyncio.ensure_future(anext(aiter(tail)))
            await asyncio.sleep(0.1)
            assert asked(world).keys() == {B1}
            await writer.append(b"second")
            assert (await follower).payload == b"second"


@in_world()
async def test_a_client_without_a_setting_finds_its_place_by_its_host(world: World) -> None:
    writer = await write(await world.client(), 100)
    runtime = replace(world.runtime("h9"), host_names=("10.0.0.9", "h9"))
    config = ClientConfig(fault_domains=f"{ZONES}, 10.0.0.9=/z2/r1")
    async with Client(runtime, MemoryDriver(world.store, runtime), config) as store:
        forget_requests(world)
        async with store.open(writer.ledger_id) as ledger:
            await read_singly(ledger, 10)
        assert asked(world) == {B2: 10}
