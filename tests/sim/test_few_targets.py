"""More replicas to make again than bookies to put them on: as many are made as can be, the most urgent ones first."""

from __future__ import annotations

import pytest
from tests.sim.recovery_world import World, run
from tests.sim.test_by_hand import repair, until_away
from tests.sim.test_drain import drain_of, drained

from bookies.client.repair.replication import RecoveryReport
from bookies.errors import NotEnoughBookies, ReplicationFailed
from bookies.model import BookieId
from bookies.protocol.repair.repair_work import Cause, RepairState

B1, B2 = BookieId("b1"), BookieId("b2")
QUORUMS = (4, 4, 2)  # of five bookies


async def without_two(world: World) -> tuple[int, BookieId, BookieId]:
    """A ledger on four of five bookies of which two are lost, for good."""
    ledger_id = await world.write(QUORUMS)
    first, second, *_ = world.record(ledger_id).last_ensemble
    world.kill(first, second)
    for name in (first, second):
        await until_away(world, name)
    return ledger_id, first, second


def test_auto_recovery_makes_one_of_two_lost_replicas_where_there_is_room_for_one() -> None:
    async def scenario(world: World) -> None:
        await world.heal()
        ledger_id, first, second = await without_two(world)

        async def reported() -> bool:
            return await world.has_reported(ledger_id) and not world.record(ledger_id).names(first)

        await world.until(reported)
        assert world.record(ledger_id).names(second)
        assert world.copied() == 30
        [wait] = world.healers[0].recovery.worker.reports[ledger_id].waits
        assert wait.cause is Cause.TARGET
        assert f"the place of {second} in" in wait.reason
        world.cluster.add_bookie("b6")
        await world.start("b6")
        await world.until_whole([ledger_id])
        assert world.copied() == 60

    run(scenario)


def test_a_repair_by_hand_does_what_it_can_and_names_the_rest() -> None:
    async def scenario(world: World) -> None:
        ledger_id, first, second = await without_two(world)
        outcome, totals = await repair(world, ledger_id, lost=[first, second])
        assert (outcome.state, totals.entries, outcome.fewest) == (RepairState.WAITING, 30, 3)
        assert [each.cause for each in outcome.waits] == [Cause.TARGET]
        assert not world.record(ledger_id).names(first)

    run(scenario)


def test_two_bookies_are_recovered_as_far_as_there_is_room() -> None:
    async def scenario(world: World) -> None:
        ledger_id, first, second = await without_two(world)
        plan = await world.act(world.admin.recover_bookies([first, second], dry_run=True))
        assert isinstance(plan, RecoveryReport)
        assert [each.old for move in plan.moves for each in move.replacements] == [first]
        assert [f"the place of {second} in" in str(each.error) for each in plan.obstacles] == [True]
        with pytest.raises(ReplicationFailed, match=f"the place of {second} in"):
            await world.act(world.admin.recover_bookies([first, second]))
        assert [world.record(ledger_id).names(each) for each in (first, second)] == [False, True]

    run(scenario)


def test_a_ledger_is_repaired_as_far_as_there_is_room() -> None:
    async def scenario(world: World) -> None:
        ledger_id, first, second = await without_two(world)
        with pytest.raises(ReplicationFailed, match=f"the place of {second} in"):
            await world.act(world.admin.repair_ledger(ledger_id, lost=[first, second]))
        assert [world.record(ledger_id).names(each) for each in (first, second)] == [False, True]
        [verdict] = (await world.act(world.admin.check_ledger(ledger_id))).fragments
        with pytest.raises(NotEnoughBookies):
            await world.act(world.admin.replicate_fragment(verdict.fragment, verdict.bad_positions))

    run(scenario)


def test_a_lost_replica_comes_before_one_of_a_bookie_that_is_to_be_emptied() -> None:
    """Whichever of them comes first in the record."""

    async def scenario(world: World) -> None:
        ledgers = [await world.write(QUORUMS) for _ in range(8)]
        both = [each for each in ledgers if {B1, B2} <= {*world.record(each).last_ensemble}]
        orders = {
            ensemble.index(B1) < ensemble.index(B2) for each in both for ensemble in [world.record(each).last_ensemble]
        }
        assert len(orders) == 2
        await world.act(world.notes.begin_draining(B1, "ann"))
        world.kill(B2)
        await until_away(world, B2)
        for each in both:
            outcome, _ = await repair(world, each, lost=[B2])
            assert [wait.cause for wait in outcome.waits] == [Cause.TARGET]
            assert [world.record(each).names(bookie) for bookie in (B1, B2)] == [True, False]

    run(scenario)


def test_of_two_bookies_that_are_to_be_emptied_each_begins_with_its_own() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write(QUORUMS) for _ in range(8)]
        both = [each for each in ledgers if {B1, B2} <= {*world.record(each).last_ensemble}]
        assert both
        await world.act(world.notes.begin_draining(B1, "ann"))
        result = await drained(world, drain_of(world, B2))
        assert not any(world.record(each).names(B2) for each in both)
        assert all(world.record(each).names(B1) for each in both)
        assert not {each.ledger_id for each in result.blocked} & {*both}

    run(scenario)
