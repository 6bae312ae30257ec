"""Looking at single ledgers and repairing them on virtual time: what counts as lost for somebody who has just come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.sim.recovery_world import World, run
from tests.sim.test_drain import drain_of, drained, planned

from bookies.client.repair.ledger_repair import Outcome
from bookies.client.repair.replication import CopyProgress, Totals
from bookies.config import RecoveryConfig
from bookies.errors import MetadataError, ReplicationFailed
from bookies.model import BookieId
from bookies.protocol.pacing import RateLimit
from bookies.protocol.repair.absence import HURRY_S
from bookies.protocol.repair.repair_work import Cause, RepairState
from bookies.replication.base import Membership
from bookies.replication.operator import ManualRepair
from bookies.replication.operator.manual_repair import UNSEEN, LedgerDiagnosis
from bookies.replication.operator.status import read_status, witnesses
from bookies.runtime.events import Events


async def by_hand(
    world: World,
    ask: Callable[[ManualRepair], Awaitable[Any]],
    on_trouble: Callable[[MetadataError], None] | None = None,
) -> Any:
    """As the user, who begins to watch the bookies now."""
    user = world.user
    events = Events("recovery", user.runtime.clock)

    async def act() -> Any:
        membership = Membership(user.driver, user.runtime.clock, RecoveryConfig(), events, writes_delay=False)
        await membership.start()
        try:
            return await ask(ManualRepair(user.driver, user.client.administration(), membership, on_trouble))
        finally:
            membership.stop()

    return await world.act(act())


async def look(world: World, ledger_id: int, lost: Sequence[BookieId] = ()) -> LedgerDiagnosis:
    standing = await by_hand(world, lambda hand: hand.diagnose(ledger_id, lost=lost))
    assert isinstance(standing, LedgerDiagnosis)
    return standing


async def repair(world: World, ledger_id: int, **options: Any) -> tuple[Outcome, Totals]:
    outcome, totals = await by_hand(world, lambda hand: hand.repair(ledger_id, "ann", **options))
    assert isinstance(outcome, Outcome)
    return outcome, totals


async def until_away(world: World, name: str) -> None:
    async def away() -> bool:
        return BookieId(name) not in await world.act(world.user.driver.modes())

    await world.until(away)


async def marked_and_away(world: World) -> tuple[int, BookieId]:
    """A ledger whose mark names a bookie, and that bookie, which has just been killed."""
    ledger_id = await world.write()
    name = BookieId(world.record(ledger_id).last_ensemble[0])
    await world.act(world.user.driver.recovery.mark(ledger_id, [name], 0))
    world.kill(name)
    await until_away(world, name)
    return ledger_id, name


def test_a_marked_bookie_that_is_just_starting_is_not_copied_from_elsewhere() -> None:
    async def scenario(world: World) -> None:
        ledger_id, name = await marked_and_away(world)
        repairing = asyncio.create_task(repair(world, ledger_id))
        await asyncio.sleep(HURRY_S / 2)
        await world.start(name)
        outcome, totals = await repairing
        assert (outcome.state, totals.entries) == (RepairState.HEALTHY, 0)
        assert world.record(ledger_id).names(name)
        assert await world.marked() == []

    run(scenario)


def test_a_marked_bookie_that_stays_away_is_replaced_after_some_seconds() -> None:
    async def scenario(world: World) -> None:
        ledger_id, name = await marked_and_away(world)
        standing = await look(world, ledger_id)
        assert standing.circumstances.lost == (name,)
        assert standing.assessment.state is RepairState.REPAIRABLE
        begun = asyncio.get_running_loop().time()
        outcome, totals = await repair(world, ledger_id)
        assert HURRY_S <= asyncio.get_running_loop().time() - begun < 2 * HURRY_S
        assert (outcome.state, totals.entries) == (RepairState.HEALTHY, 30)
        assert not world.record(ledger_id).names(name)

    run(scenario)


async def lost_one(world: World) -> tuple[int, BookieId]:
    """A ledger, and one of its bookies, which is away for good, though nobody has marked that."""
    ledger_id = await world.write()
    name = BookieId(world.record(ledger_id).last_ensemble[0])
    world.kill(name)
    await until_away(world, name)
    return ledger_id, name


def test_a_bookie_that_somebody_declares_lost_is_not_waited_for() -> None:
    async def scenario(world: World) -> None:
        ledger_id, name = await marked_and_away(world)
        begun = asyncio.get_running_loop().time()
        outcome, _ = await repair(world, ledger_id, lost=[name])
        assert outcome.state is RepairState.HEALTHY
        assert asyncio.get_running_loop().time() - begun < HURRY_S / 2

    run(scenario)


def test_those_who_take_part_know_what_is_lost_though_they_are_switched_off() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write((4, 4, 2)) for _ in range(12)]
        first, second = world.record(ledgers[0]).last_ensemble[:2]
        await world.heal(lost_bookie_delay_s=60)
        await asyncio.sleep(2)
        await world.act(world.user.driver.recovery.disable())
        world.kill(first)
        await asyncio.sleep(120)
        assert await world.marked() == []
        standing = await look(world, ledgers[0])
        assert standing.circumstances.lost == (first,)
        assert not standing.is_enabled
        assert standing.assessment.state is RepairState.REPAIRABLE
        outcome, totals = await repair(world, ledgers[0])
        assert (outcome.state, totals.entries) == (RepairState.HEALTHY, 30)

        # Who empties another one makes that good by the way, and leaves nothing of it to others.
        shared = [each for each in ledgers if {first, second} <= {*world.record(each).last_ensemble}]
        assert shared
        result = await drained(world, drain_of(world, second))
        assert result.is_empty
        assert result.marked == []
        assert not any(world.record(each).names(first) for each in shared)

    run(scenario, bookies=7)


def test_without_anybody_who_takes_part_nobody_knows_for_how_long() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write()
        name = BookieId(world.record(ledger_id).last_ensemble[0])
        world.kill(name)
        await until_away(world, name)
        await asyncio.sleep(600)
        standing = await look(world, ledger_id)
        [wait] = standing.assessment.waits
        assert (wait.cause, wait.bookie, standing.circumstances.lost) == (Cause.BOOKIE, name, ())
        assert wait.reason.startswith(UNSEEN)
        assert f"--lost {name}" in wait.reason
        outcome, _ = await repair(world, ledger_id)
        assert [each.reason for each in outcome.waits] == [wait.reason]

    run(scenario)


def test_who_died_is_no_witness_and_said_to_be_gone() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write()
        name = BookieId(world.record(ledger_id).last_ensemble[0])
        dead, alive = await world.heal(lost_bookie_delay_s=2), await world.heal(lost_bookie_delay_s=2)
        await world.act(world.user.driver.recovery.disable())
        world.kill(name)
        await asyncio.sleep(30)
        assert len(await world.act(witnesses(world.user.driver))) == 2
        world.cluster.kill_client(dead.client.name)
        await asyncio.sleep(30)
        [witness] = await world.act(witnesses(world.user.driver))
        assert (witness.name, witness.lost) == (alive.client.name, (name,))
        now_ms = world.user.runtime.clock.wall_ms()
        status = await world.act(read_status(world.user.driver, now_ms))
        assert [each.name for each in status.processes] == [dead.client.name, alive.client.name]
        assert status.gone == [dead.client.name]

    run(scenario)


def test_a_store_that_goes_away_during_a_copy_is_said_soon_and_not_asked_for_minutes() -> None:
    async def scenario(world: World) -> None:
        ledger_id, name = await lost_one(world)
        clock = asyncio.get_running_loop().time
        told: list[float] = []
        work = by_hand(
            world,
            lambda hand: hand.repair(ledger_id, "ann", lost=[name], pace=RateLimit(2000)),
            lambda error: told.append(clock()),
        )
        task = asyncio.create_task(work)
        await asyncio.sleep(0.5)
        begun = clock()
        world.cut_off(is_cut=True)
        outcome, totals = await task
        assert totals.entries == 30
        assert outcome.state is RepairState.WAITING
        assert [wait.cause for wait in outcome.waits] == [Cause.STORE]
        assert world.record(ledger_id).names(name)
        assert len(told) == 1
        assert told[0] < begun + 12
        assert clock() < begun + 40
        world.cut_off(is_cut=False)
        await asyncio.sleep(30)  # until the old session, and the lock with it, have ended
        outcome, _ = await repair(world, ledger_id, lost=[name])
        assert outcome.state is RepairState.HEALTHY

    run(scenario)


async def in_maintenance(world: World) -> tuple[int, BookieId]:
    """A ledger, and one of its bookies, which is away and expected back in an hour."""
    ledger_id, name = await lost_one(world)
    until_ms = world.user.runtime.clock.wall_ms() + 3_600_000
    await world.act(world.notes.begin_maintenance(name, until_ms, "ann"))
    return ledger_id, name


def test_who_says_that_a_bookie_is_lost_overrules_its_maintenance() -> None:
    async def scenario(world: World) -> None:
        ledger_id, name = await in_maintenance(world)
        await world.act(world.user.driver.recovery.mark(ledger_id, [name], 0))  # So somebody else has said so, too.
        outcome, totals = await repair(world, ledger_id)
        assert totals.entries == 0
        [wait] = outcome.waits
        assert wait.cause is Cause.MAINTENANCE
        assert f"bk recovery repair {ledger_id} --lost {name}" in wait.reason
        standing = await look(world, ledger_id, [name])
        assert (standing.circumstances.lost, standing.circumstances.excused) == ((name,), ())
        assert standing.assessment.state is RepairState.REPAIRABLE
        outcome, totals = await repair(world, ledger_id, lost=[name])
        assert (outcome.state, totals.entries) == (RepairState.HEALTHY, 30)

    run(scenario)


def test_who_empties_a_stopped_bookie_overrules_its_maintenance_and_no_others() -> None:
    async def scenario(world: World) -> None:
        ledger_id, name = await in_maintenance(world)
        plan = await planned(world, drain_of(world, name))
        assert not plan.blocked
        second = BookieId(next(each for each in world.record(ledger_id).last_ensemble if each != name))
        await world.act(world.notes.begin_maintenance(second, world.user.runtime.clock.wall_ms() + 3_600_000, "ann"))
        world.kill(second)
        await until_away(world, second)
        result = await drained(world, drain_of(world, name))
        assert result.is_empty
        assert [world.record(ledger_id).names(each) for each in (name, second)] == [False, True]

    run(scenario)


def test_who_recovers_a_bookie_hears_that_the_store_is_away() -> None:
    async def scenario(world: World) -> None:
        ledger_id, name = await lost_one(world)
        news: list[CopyProgress] = []
        work = world.admin.recover_bookies([name], bytes_per_s=2000, progress=news.append)
        task = asyncio.create_task(world.act(work))
        await asyncio.sleep(0.5)
        begun = asyncio.get_running_loop().time()
        world.cut_off(is_cut=True)
        with pytest.raises(ReplicationFailed):
            await task
        assert asyncio.get_running_loop().time() < begun + 40
        assert any(each.trouble is not None for each in news)
        world.cut_off(is_cut=False)
        assert world.record(ledger_id).names(name)
        await asyncio.sleep(30)  # until the old session has ended
        await world.act(world.admin.recover_bookies([name]))
        assert not world.record(ledger_id).names(name)

    run(scenario)
