"""Replicas move to bookies that hold less than their share, on virtual time; interrupted, they go on."""

from __future__ import annotations

import asyncio

from tests.sim.recovery_world import World, run

from bookies.protocol.pacing import RateLimit
from bookies.protocol.repair.balance import BalancePlan
from bookies.replication.repair.balance import Balance, Slack

SLACK = Slack(0.1, 0.1)


def balance_of(world: World, pace: RateLimit | None = None) -> Balance:
    user = world.user
    return Balance(user.runtime, user.client, user.driver, user.name, pace)


async def planned(world: World) -> BalancePlan:
    plan = await world.act(balance_of(world).plan(SLACK))
    assert isinstance(plan, BalancePlan)
    return plan


def test_new_bookies_get_their_share_and_nothing_is_copied_in_vain() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write(((3, 3, 2), (4, 3, 2), (2, 2, 2))[number % 3]) for number in range(60)]
        for name in ("b6", "b7"):
            world.cluster.add_bookie(name)
            await world.start(name)
        await asyncio.sleep(1)
        plan = await planned(world)
        assert plan.before["b6"] == plan.before["b7"] == 0
        broken_off = asyncio.create_task(world.act(balance_of(world, RateLimit(20_000)).run(plan)))
        await asyncio.sleep(2)
        broken_off.cancel()
        await asyncio.wait((broken_off,))
        rest = await planned(world)
        assert 0 < len(rest.moves) < len(plan.moves)
        result = await world.act(balance_of(world).run(rest))
        assert (result.moves, result.refused) == (len(rest.moves), [])
        assert result.size == rest.size
        done = await planned(world)
        assert done.moves == []
        # A replica has a size, so a bookie may stay above its share by one.
        assert all(size < 1.1 * done.shares[bookie] + 5_000 for bookie, size in done.before.items())
        assert all([await world.is_whole(each) for each in ledgers])
        assert await world.act(world.user.driver.recovery.locks()) == {}

    run(scenario)


def test_who_is_announced_neither_gives_nor_takes() -> None:
    async def scenario(world: World) -> None:
        for _ in range(20):
            await world.write()
        for name in ("b6", "b7"):
            world.cluster.add_bookie(name)
            await world.start(name)
        await asyncio.sleep(1)
        await world.act(world.notes.begin_draining("b7", "somebody"))
        plan = await planned(world)
        assert sorted(plan.before) == ["b1", "b2", "b3", "b4", "b5", "b6"]

    run(scenario)
