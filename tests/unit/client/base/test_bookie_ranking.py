"""Which bookies a client prefers, what it learns from answers, and how a bookie comes back by a probe."""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes.world import World, in_world

from bookies.client.base.bookie_ranking import READ, READ_BATCH
from bookies.errors import BookieTimeout, BookieUnreachable, ClientClosed
from bookies.model import BookieId
from bookies.protocol.ledger.bookie_health import PAUSE_FIRST_S, Rank
from bookies.wire.messages import GetBookieInfoRequest

B1, B2, B3 = BookieId("b1"), BookieId("b2"), BookieId("b3")


def probes(world: World, bookie: BookieId) -> int:
    return sum(isinstance(request, GetBookieInfoRequest) for request in world.bookies[bookie].requests)


@in_world()
async def test_a_bookie_that_was_down_comes_back_by_one_probe(world: World) -> None:
    store = await world.client()
    health = store._pool.health
    await world.take_down(B1)
    with pytest.raises(BookieUnreachable):
        await store._pool.read_entry(B1, 7, 0)
    assert health.rank(B1) is Rank.OPEN
    assert health.order([B1, B2, B3]) == [B2, B3, B1]
    assert store._watcher.candidates()[-1] == B1
    await world.listen(B1)
    await asyncio.sleep(PAUSE_FIRST_S)
    assert probes(world, B1) == 0, "nobody wanted it"
    for _ in range(3):
        assert health.order([B1, B2, B3]) == [B2, B3, B1], "half-open: not yet trusted"
        assert store._watcher.candidates()[-1] == B1
    assert health.rank(B1) is Rank.SUSPECT
    await asyncio.sleep(0.1)
    assert probes(world, B1) == 1
    assert health.rank(B1) is Rank.HEALTHY
    assert health.order([B1, B2, B3]) == [B1, B2, B3]


@in_world()
async def test_a_failed_probe_doubles_the_pause(world: World) -> None:
    store = await world.client()
    health = store._pool.health
    await world.take_down(B1)
    with pytest.raises(BookieUnreachable):
        await store._pool.read_entry(B1, 7, 0)
    await asyncio.sleep(PAUSE_FIRST_S)
    assert health.rank(B1) is Rank.SUSPECT
    await asyncio.sleep(0.1)
    assert health.rank(B1) is Rank.OPEN
    await asyncio.sleep(2 * PAUSE_FIRST_S)
    assert health.rank(B1) is Rank.SUSPECT


@in_world()
async def test_a_silent_probe_fails_too(world: World) -> None:
    store = await world.client(read_timeout_ms=500)
    health = store._pool.health
    world.bookies[B1].intercept = lambda request: []
    with pytest.raises(BookieTimeout):
        await store._pool.read_entry(B1, 7, 0)
    await asyncio.sleep(PAUSE_FIRST_S)
    assert health.rank(B1) is Rank.SUSPECT
    await asyncio.sleep(1)
    assert health.rank(B1) is Rank.OPEN


@in_world()
async def test_with_every_bookie_down_all_are_still_there(world: World) -> None:
    store = await world.client()
    for bookie in (B1, B2, B3):
        store._pool.suspect(bookie)
    assert sorted(store._watcher.candidates()) == [B1, B2, B3]
    async with store.create(ensemble=3) as writer:
        await writer.append(b"still possible")


@in_world()
async def test_new_ledgers_prefer_healthy_bookies(world: World) -> None:
    store = await world.client()
    store._pool.suspect(B2)
    for _ in range(10):
        async with store.create(ensemble=2, write_quorum=2, ack_quorum=2) as writer:
            assert B2 not in writer.metadata.last_ensemble


@in_world()
async def test_answers_to_reads_are_timed_and_set_when_to_ask_another(world: World) -> None:
    store = await world.client(hedge_delay_min_ms=1, hedge_delay_max_ms=300)
    pool = store._pool
    async with store.create(ensemble=1) as writer:
        await writer.append_many([b"x"] * 300)
        bookie = writer.metadata.last_ensemble[0]
    assert pool.health.hedge_delay_s(bookie) == 0.3, "nothing known"
    for entry_id in range(128):
        await pool.read_entry(bookie, writer.ledger_id, entry_id)
    assert pool.health.hedge_delay_s(bookie, READ_BATCH) == 0.3
    for _ in range(16):
        await pool.read_batch(bookie, writer.ledger_id, 0, 10, 10_000)
    for kind in (READ, READ_BATCH):
        assert 0.001 <= pool.health.hedge_delay_s(bookie, kind) < 0.05
    failing = pool.start_read_batch(bookie, writer.ledger_id, 0, 10, 10_000)
    failing.cancel()
    await asyncio.sleep(0.1)


@in_world()
async def test_delays_stay_within_the_settings(world: World) -> None:
    store = await world.client(hedge_delay_min_ms=20, hedge_delay_max_ms=40)
    health = store._pool.health
    for _ in range(16):
        health.observe(B1, READ, 0.0001)
    assert health.hedge_delay_s(B1) == 0.02
    for _ in range(600):
        health.observe(B1, READ, 5.0)
    assert health.hedge_delay_s(B1) == 0.04


@in_world()
async def test_nobody_is_probed_after_the_end(world: World) -> None:
    store = await world.client()
    health = store._pool.health
    store._pool.suspect(B1)
    await asyncio.sleep(PAUSE_FIRST_S)
    await store.close()
    assert health.rank(B1) is Rank.SUSPECT
    with pytest.raises(ClientClosed):
        await store._pool.read_entry(B1, 7, 0)
    assert probes(world, B1) == 0


@in_world()
async def test_a_probe_that_the_end_of_the_client_cuts_off_says_nothing(world: World) -> None:
    store = await world.client()
    store._pool.suspect(B1)
    await asyncio.sleep(PAUSE_FIRST_S)
    assert store._pool.health.rank(B1) is Rank.SUSPECT
    await store.close()
    assert store._pool.health.rank(B1) is Rank.SUSPECT
