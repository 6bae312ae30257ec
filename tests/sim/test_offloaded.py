"""Ledgers that bookies were allowed to forget, on virtual time: to auto-recovery nothing of them is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.fakes.offloaded import GIVEN_UP, give_up
from tests.sim.recovery_world import World, run
from tests.sim.test_by_hand import look, repair
from tests.sim.test_drain import B1, drain_of, drained, planned
from tests.sim.test_recovery_marks import mark

from bookies.client.repair.replication import Totals
from bookies.metadata.interface.driver import Versioned
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.repair.repair_work import RepairState
from bookies.replication.auditor.checks import LostBookies

State = Callable[[LedgerMetadata], LedgerMetadata]
EVERYWHERE = (5, 3, 2)


async def forgotten_by_all(world: World, state: State) -> LedgerMetadata:
    """A ledger on all bookies, of which none has anything any more."""
    ledger_id = await world.write(EVERYWHERE)
    record: LedgerMetadata = await world.act(give_up(world.admin, ledger_id, state))
    for bookie in record.bookies:
        await world.forget(bookie, ledger_id)
    return record


@pytest.mark.parametrize("state", GIVEN_UP)
def test_auditor_and_workers_have_nothing_to_do_with_it_and_real_losses_stay_visible(state: State) -> None:
    async def scenario(world: World) -> None:
        record = await forgotten_by_all(world, state)
        real = await world.write((3, 3, 2))
        for bookie in world.record(real).bookies:
            await world.forget(bookie, real)
        await mark(world, record.ledger_id, *record.bookies)
        await world.heal(audit_replicas_interval_s=2, audit_ledgers_interval_s=2, audit_placement_interval_s=2)
        world.kill("b1")

        async def only_the_real_one() -> bool:
            return await world.marked() == [real] and await world.has_reported(real)

        await world.until(only_the_real_one)
        [healer] = world.healers
        auditor = healer.recovery.auditor

        async def was_looked_for() -> bool:
            report = auditor.last.get("lost bookies")
            return report is not None and report.facts.get("lost") == ["b1"] and report.ended_ms is not None

        await world.until(was_looked_for)
        assert auditor.last["lost bookies"].marked <= world.record(real).names(B1)
        assert await world.marked() == [real]
        assert list(healer.recovery.worker.reports) == [real]
        assert healer.recovery.worker.reports[real].state is RepairState.LOST
        assert world.record(record.ledger_id) == record

    run(scenario)


@pytest.mark.parametrize("state", GIVEN_UP)
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_bookie_that_such_records_name_can_be_emptied(state: State, is_stopped: bool) -> None:
    async def scenario(world: World) -> None:
        record = await forgotten_by_all(world, state)
        assert record.names(B1)
        others = [await world.write((3, 3, 2)) for _ in range(4)]
        if is_stopped:
            world.kill("b1")
            await world.until(lambda: _is_gone(world, B1))
        plan = await planned(world, drain_of(world))
        assert [each.ledger_id for each in plan.portions] == [each for each in others if world.record(each).names(B1)]
        assert not plan.blocked
        result = await drained(world, drain_of(world))
        assert result.is_empty
        assert world.record(record.ledger_id) == record

    run(scenario)


@pytest.mark.parametrize("state", GIVEN_UP)
def test_who_looks_or_repairs_by_hand_finds_it_healthy(state: State) -> None:
    async def scenario(world: World) -> None:
        record = await forgotten_by_all(world, state)
        world.kill("b1")
        await world.until(lambda: _is_gone(world, B1))
        assert (await look(world, record.ledger_id, [B1])).assessment.state is RepairState.HEALTHY
        await mark(world, record.ledger_id, B1)
        outcome, totals = await repair(world, record.ledger_id, lost=[B1])
        assert outcome.state is RepairState.HEALTHY
        assert totals == Totals()
        assert await world.marked() == []
        assert await world.act(world.admin.repair_ledger(record.ledger_id, lost=[B1], percentage=100)) == ()
        assert (await world.act(world.admin.recover_bookies([B1]))).moves == ()
        assert (await world.act(world.admin.decommission(B1))).moves == ()
        assert await world.act(world.admin.missing_entries(BookieId("b2"), record.ledger_id)) == []
        assert world.record(record.ledger_id) == record

    run(scenario)


async def _is_gone(world: World, bookie: BookieId) -> bool:
    return bookie not in await world.act(world.user.driver.modes())


@pytest.mark.parametrize("state", GIVEN_UP)
def test_nobody_has_to_come_back_for_what_is_in_files(state: State) -> None:
    """A bookie that was emptied and has gone is not looked for because such a record names it."""

    async def scenario(world: World) -> None:
        ledger_id = await world.write((3, 3, 2))
        check = LostBookies([])
        await check.inspect(Versioned(world.record(ledger_id), 1))
        assert list(check.named) == world.record(ledger_id).bookies
        check = LostBookies([])
        await check.inspect(Versioned(state(world.record(ledger_id)), 1))
        assert not check.named

    run(scenario)
