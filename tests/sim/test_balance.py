"""Replicas move to bookies that hold less than their share, on virtual time; interrupted, they go on."""

from __future__ import annotations

import asyncio

from tests.sim.recovery_world import World, run

from bookies.model import BookieId
from bookies.protocol.pacing import RateLimit
from bookies.protocol.repair.balance import BalancePlan
from bookies.protocol.repair.owed import OwedTotals
from bookies.replication.operator import Operator
from bookies.replication.repair.balance import Balance, Slack

SLACK = Slack(0.1, 0.1)


def balance_of(world: World, pace: RateLimit | None = None) -> Balance:
    user = world.user
    return Balance(Operator(user.runtime, user.client, user.driver, user.name), pace)


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


def test_what_is_announced_after_the_plan_gets_nothing_more() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write() for _ in range(40)]
        for name in ("b6", "b7"):
            world.cluster.add_bookie(name)
            await world.start(name)
        await asyncio.sleep(1)
        plan = await planned(world)
        running = asyncio.create_task(world.act(balance_of(world, RateLimit(20_000)).run(plan)))
        await asyncio.sleep(1)
        await world.act(world.notes.begin_draining("b7", "somebody"))
        await asyncio.sleep(2)  # Copies that had begun come to their end.
        named = [each for each in ledgers if world.record(each).names("b7")]
        result = await running
        assert [each for each in ledgers if world.record(each).names("b7")] == named
        assert {(move.target, why) for move, why in result.refused} == {
            ("b7", "b7 gets no more data since the plan was made: it is to be emptied")
        }
        assert result.moves + len(result.refused) == len(plan.moves)

    run(scenario)


def test_a_replica_goes_to_the_planned_bookie_or_to_none() -> None:
    """The planned ones have become read-only, and another bookie is new since the plan."""

    async def scenario(world: World) -> None:
        ledgers = await with_new_bookies(world, 30)
        await asyncio.sleep(1)
        plan = await planned(world)
        assert {move.target for move in plan.moves} <= {"b6", "b7"}
        world.cluster.add_bookie("b8")
        await world.start("b8")
        for name in ("b6", "b7"):
            server = world.cluster.bookies[name].server
            assert server is not None
            await world.cluster.bookies[name].participant.create_task(server.hold_read_only(True))
        await asyncio.sleep(2)
        result = await world.act(balance_of(world).run(plan))
        assert (result.moves, len(result.refused)) == (0, len(plan.moves))
        assert not any(world.record(ledger_id).names(BookieId("b8")) for ledger_id in ledgers)

    run(scenario)


AUTOMATIC = {"balance_interval_s": 10, "balance_excess_size": 1_000, "balance_rate_size": 0}


async def shares_hold(world: World, tolerance: float = 0.1) -> bool:
    plan = await planned(world)
    assert plan.moves == [] or plan.imbalance > 0
    return plan.imbalance <= tolerance


async def with_new_bookies(world: World, count: int = 90) -> list[int]:
    ledgers = [await world.write(((3, 3, 2), (4, 3, 2), (2, 2, 2))[number % 3]) for number in range(count)]
    for name in ("b6", "b7"):
        world.cluster.add_bookie(name)
        await world.start(name)
    return ledgers


def test_the_auditor_fills_new_bookies_and_then_rests() -> None:
    async def scenario(world: World) -> None:
        ledgers = await with_new_bookies(world)
        healers = [await world.heal(**AUTOMATIC) for _ in range(2)]
        await world.until(lambda: shares_hold(world))
        await asyncio.sleep(20)
        moved = [healer.recovery.auditor.balance.moved.replicas for healer in healers]
        assert sorted(map(bool, moved)) == [False, True], "only the elected auditor balances"
        await asyncio.sleep(100)
        assert moved == [healer.recovery.auditor.balance.moved.replicas for healer in healers]
        elected = healers[moved.index(max(moved))].recovery
        report = elected.auditor.last["balance"]
        assert report.facts["replicas moved"] == 0
        assert float(str(report.facts["largest deviation in percent"])) < 10
        assert elected.auditor.balance.moved.size > 0
        assert all([await world.is_whole(each) for each in ledgers])

    run(scenario)


def test_a_bookie_that_is_read_much_gives_what_is_read() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write((1, 1, 1)) for _ in range(60)]
        crowded = max(
            world.cluster.bookies, key=lambda name: sum(name in world.record(number).bookies for number in ledgers)
        )
        there = [ledger_id for ledger_id in ledgers if crowded in world.record(ledger_id).bookies]
        slack = Slack(1.0, 1.0, rate_min=0)

        async def read(count: int) -> None:
            for ledger_id in there * count:
                async with await world.user.client.open(ledger_id) as reader:
                    assert len([entry async for entry in reader.read()]) == 30

        async def plan_after_a_minute() -> BalancePlan:
            await asyncio.sleep(60)
            plan = await world.act(balance_of(world).plan(slack))
            assert isinstance(plan, BalancePlan)
            return plan

        await plan_after_a_minute()
        await world.act(read(5))
        plan = await plan_after_a_minute()
        assert plan.relieves
        assert {move.source for move in plan.moves} == {crowded}
        assert 0 < len(plan.moves) < len(there)
        assert {move.ledger_id for move in plan.moves} <= set(there)
        assert "because clients read much from it" in plan.reasons()[BookieId(crowded)]
        await world.act(balance_of(world).run(plan))
        await plan_after_a_minute()  # Copies are reads too, of the window before.
        await world.act(read(5))
        after = await plan_after_a_minute()
        assert after.moves == []
        assert max(after.read_rates.values()) < max(plan.read_rates.values())
        assert all([await world.is_whole(each) for each in ledgers])

    run(scenario)


def test_nothing_moves_while_something_else_has_to_be_done() -> None:
    async def scenario(world: World) -> None:
        await with_new_bookies(world)
        store = world.user.driver.recovery
        healer = await world.heal(**AUTOMATIC, lost_bookie_delay_s=200)
        balance = healer.recovery.auditor.balance

        async def stands_still(expected: str) -> None:
            async def says() -> bool:
                report = healer.recovery.auditor.last.get("balance")
                return report is not None and expected in str(report.facts.get("stopped by"))

            await world.until(says)
            assert balance.moved.replicas == 0

        await world.act(store.disable())
        await asyncio.sleep(15)
        assert balance.moved.replicas == 0
        world.kill("b1")
        await world.act(store.enable())
        await stands_still("ledgers lack replicas: b1 not registered")
        await world.start("b1")
        now_ms = world.user.runtime.clock.wall_ms()
        await world.act(world.notes.begin_maintenance(BookieId("b2"), now_ms + 300_000, "somebody"))
        await stands_still("b2: it is in maintenance")
        server = world.cluster.bookies["b2"].server
        assert server is not None
        counts = server.owed
        counts.left = OwedTotals(ledgers=1, entries=3)
        await world.act(world.notes.end_maintenance(BookieId("b2")))
        await stands_still("ledgers lack replicas: b2 has lost entries")
        counts.left = OwedTotals()
        assert server.store.parts is not None
        failed = server.store.parts.health.failed
        failed["/elsewhere"] = "a write has failed"
        await asyncio.sleep(12)
        await stands_still("`bk bookie disks --bookie b2` whether a directory has failed")
        failed.clear()
        await world.until(lambda: shares_hold(world))
        assert balance.moved.replicas > 0

    run(scenario)


def test_a_balance_stops_after_a_directory_has_failed() -> None:
    async def scenario(world: World) -> None:
        await with_new_bookies(world)
        healer = await world.heal(**(AUTOMATIC | {"balance_rate_size": 5_000}))
        balance = healer.recovery.auditor.balance

        async def has_begun() -> bool:
            return balance.moved.replicas > 3

        await world.until(has_begun)
        server = world.cluster.bookies["b1"].server
        assert server is not None
        assert server.store.parts is not None
        server.store.parts.health.failed["/elsewhere"] = "a write has failed"

        async def has_stopped() -> bool:
            return "b1 has lost entries" in str(healer.recovery.auditor.last["balance"].facts.get("stopped by"))

        await world.until(has_stopped, 30)

    run(scenario)


def test_a_balance_stops_in_the_middle_of_a_copy() -> None:
    async def scenario(world: World) -> None:
        ledgers = await with_new_bookies(world)
        healer = await world.heal(**(AUTOMATIC | {"balance_rate_size": 20_000}))
        balance = healer.recovery.auditor.balance

        async def has_begun() -> bool:
            return balance.moved.replicas > 3

        await world.until(has_begun)
        world.kill("b1")

        async def has_stopped() -> bool:
            return "stopped by" in healer.recovery.auditor.last["balance"].facts

        await world.until(has_stopped)
        moved = balance.moved.replicas
        assert "b1 not registered" in str(healer.recovery.auditor.last["balance"].facts["stopped by"])
        await world.until_whole(ledgers)
        assert balance.moved.replicas == moved
        await world.until(lambda: shares_hold(world), 600)

    run(scenario)
