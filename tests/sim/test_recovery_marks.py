"""Marks on virtual time: what a mark may stand for is looked at completely before the mark goes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.sim.recovery_world import World, run
from tests.sim.test_by_hand import look, repair
from tests.sim.test_drain import drain_of, drained
from tests.sim.test_recovery import RACKS

from bookies.client.write import LedgerWriter
from bookies.model import BookieId
from bookies.protocol.pacing import RateLimit
from bookies.protocol.repair.fragments import ReplicaState
from bookies.protocol.repair.repair_work import Cause, RepairState


async def lose_the_middle(world: World, ledger_id: int, name: BookieId) -> None:
    """The bookie has the first and the last of its ten entries, and no other."""
    await world.forget(name, ledger_id)
    renewed = await world.act(world.admin.renew_entries(ledger_id, name, [range(1), range(9, 10)]))
    assert renewed == 2
    assert await world.act(world.admin.missing_entries(name, ledger_id)) == [range(1, 9)]


async def damage(world: World, ledger_id: int, name: BookieId, entry_id: int, *, count: int = 10) -> None:
    """The bookie has the entry, and not as it was written."""

    async def overwrite() -> None:
        replicas = world.admin.access.replicas(world.record(ledger_id))
        [body] = await replicas.read(name, [entry_id])
        await replicas.write([(name, [entry_id])], [entry_id], [body[:-1] + bytes([body[-1] ^ 1])])

    await world.act(overwrite())
    scan = await world.act(world.admin.scan_replica(world.record(ledger_id), name, range(count)))
    assert [(bad.first, bad.last) for bad in scan.bad] == [(entry_id, entry_id)]


async def mark(world: World, ledger_id: int, *names: BookieId) -> None:
    await world.act(world.user.driver.recovery.mark(ledger_id, names, world.user.runtime.clock.wall_ms()))


def test_entries_missing_in_the_middle_are_found_and_made_good() -> None:
    """By the check that asks for lists: the mark does not go before they are there."""

    async def scenario(world: World) -> None:
        ledger_id = await world.write(count=10)
        name = world.record(ledger_id).last_ensemble[1]
        await lose_the_middle(world, ledger_id, name)
        await world.heal(audit_replicas_interval_s=2)
        await world.until_whole([ledger_id], 20)
        assert world.copied() == 8

    run(scenario)


@pytest.mark.parametrize("harm", [lose_the_middle, damage])
def test_a_mark_that_names_a_bookie_that_is_there_stands_for_any_of_its_entries(harm: object) -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write(count=10)
        name = world.record(ledger_id).last_ensemble[1]
        if harm is damage:
            await damage(world, ledger_id, name, 5)
        else:
            await lose_the_middle(world, ledger_id, name)
        await world.heal()
        await mark(world, ledger_id, name)
        await world.until_whole([ledger_id], 20)
        assert world.copied() == (1 if harm is damage else 8)

    run(scenario)


def test_a_mark_made_while_its_bookie_was_away_costs_a_list_and_not_its_entries() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write((3, 3, 2), count=50)
        name = world.record(ledger_id).last_ensemble[0]
        healer = await world.heal()
        world.kill(*(each for each in world.cluster.bookies if each not in world.record(ledger_id).last_ensemble))
        await asyncio.sleep(5)
        world.user.runtime.clock.skew_ms = healer.client.runtime.clock.skew_ms
        world.kill(name)
        await asyncio.sleep(20)
        await mark(world, ledger_id, name)
        await asyncio.sleep(5)
        reads: list[int] = []
        pool = healer.client.client._pool
        read_entry, read_batch = pool.read_entry, pool.read_batch

        async def counted(bookie: BookieId, ledger: int, entry_id: int, *rest: Any, **options: Any) -> Any:
            reads.extend([entry_id] if bookie == name else [])
            return await read_entry(bookie, ledger, entry_id, *rest, **options)

        async def batch_counted(bookie: BookieId, ledger: int, first: int, count: int, size: int) -> Any:
            reads.extend(range(first, first + count) if bookie == name else [])
            return await read_batch(bookie, ledger, first, count, size)

        pool.read_entry, pool.read_batch = counted, batch_counted  # type: ignore[method-assign]
        await world.start(name)

        async def unmarked() -> bool:
            return not await world.marked()

        await world.until(unmarked)
        assert sorted(set(reads)) == [0, 49]

    run(scenario)


def test_by_hand_a_mark_is_looked_at_as_closely() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write(count=10)
        name = world.record(ledger_id).last_ensemble[1]
        await lose_the_middle(world, ledger_id, name)
        assert (await look(world, ledger_id)).depth == "the first and the last entry of each replica"
        await mark(world, ledger_id, name)
        standing = await look(world, ledger_id)
        assert standing.assessment.state is RepairState.REPAIRABLE
        assert standing.depth.endswith(f"the list of all that {name} has, which the mark names")
        [bad] = [each for each in standing.verdicts[0].replicas if each.state is not ReplicaState.OK]
        assert (bad.bookie, bad.state, bad.entry_id) == (name, ReplicaState.MISSING, 1)
        outcome, totals = await repair(world, ledger_id)
        assert (outcome.state, totals.renewed) == (RepairState.HEALTHY, 8)
        assert await world.marked() == []
        assert await world.is_whole(ledger_id)

    run(scenario)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_the_mark_of_an_open_ledger_stays_for_as_long_as_it_is_true(is_damaged: bool) -> None:
    """What is confirmed is looked at; what is wrong with it is mended when the ledger is sealed."""

    async def scenario(world: World) -> None:
        async def write() -> LedgerWriter:
            ledger = await world.user.client.create(ensemble=3, write_quorum=3, ack_quorum=3)
            await ledger.append_many([b"%d" % number for number in range(10)])
            return ledger

        ledger = await world.act(write())
        ledger_id, name = ledger.ledger_id, ledger.metadata.last_ensemble[1]
        await asyncio.sleep(5)  # It tells its bookies what is confirmed.
        if is_damaged:
            await damage(world, ledger_id, name, 5)
        await mark(world, ledger_id, name)
        standing = await look(world, ledger_id)
        assert standing.listed == (name,)
        outcome, _ = await repair(world, ledger_id)
        if is_damaged:
            [wait] = outcome.waits
            assert (wait.cause, wait.bookie) == (Cause.WRITER, name)
            assert "its entry 5 does not verify" in wait.reason
            assert await world.marked() == [ledger_id]
            await world.act(ledger.seal())
            outcome, totals = await repair(world, ledger_id)
            assert totals.renewed == 1
        assert outcome.state is RepairState.HEALTHY
        assert await world.marked() == []
        assert await world.is_whole(ledger_id)

    run(scenario)


def test_a_bookie_that_was_away_when_a_mark_grew_may_have_been_named_for_something_else() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write(count=10)
        first, second, _ = world.record(ledger_id).last_ensemble
        await damage(world, ledger_id, first, 5)
        healer = await world.heal(recovery_ledgers_at_once=1)
        await world.act(world.user.driver.recovery.disable())
        await mark(world, ledger_id, first)
        await asyncio.sleep(3)
        world.kill(first)

        async def away() -> bool:
            return first not in await world.act(world.user.driver.modes())

        await world.until(away)
        await asyncio.sleep(1)
        now_ms = healer.client.runtime.clock.wall_ms()  # Other clocks may be wrong, which only costs a closer look.
        await world.act(world.user.driver.recovery.mark(ledger_id, [second], now_ms))
        await asyncio.sleep(1)
        await world.start(first)
        await world.act(world.user.driver.recovery.enable())
        await world.until_whole([ledger_id], 60)
        assert healer.recovery.worker.totals.renewed == 1

    run(scenario)


def test_a_mark_that_names_nobody_is_for_the_placement() -> None:
    async def scenario(world: World) -> None:
        world.kill("b4", "b5")
        await asyncio.sleep(3)
        ledger_id = await world.write((2, 2, 2), count=20)
        await world.start("b4", "b5")
        await mark(world, ledger_id)
        world.user = world.cluster.new_client("in racks", RACKS)
        await world.user.participant.create_task(world.cluster.open_client(world.user))
        outcome, totals = await repair(world, ledger_id)
        assert (outcome.state, totals.entries) == (RepairState.HEALTHY, 20)
        assert len({name in ("b4", "b5") for name in world.record(ledger_id).last_ensemble}) == 2
        assert await world.marked() == []

    run(scenario)


def test_a_drain_leaves_no_hole_behind_a_mark_that_it_deletes() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write(count=10)
        emptied, name, _ = world.record(ledger_id).last_ensemble
        await lose_the_middle(world, ledger_id, name)
        await mark(world, ledger_id, name)
        result = await drained(world, drain_of(world, emptied))
        assert result.is_empty
        assert await world.marked() == []
        assert await world.is_whole(ledger_id)

    run(scenario)


def test_by_hand_a_mark_that_grows_meanwhile_is_looked_at_again() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write(count=10)
        first, second, _ = world.record(ledger_id).last_ensemble
        await lose_the_middle(world, ledger_id, second)
        world.kill(first)

        async def away() -> bool:
            return first not in await world.act(world.user.driver.modes())

        await world.until(away)
        await mark(world, ledger_id, first)
        repairing = asyncio.create_task(repair(world, ledger_id))
        await asyncio.sleep(2)  # It waits for the bookie to stay away.
        other = world.cluster.new_client("writer2")
        await other.participant.create_task(world.cluster.open_client(other))
        await other.participant.create_task(other.driver.recovery.mark(ledger_id, [second], 0))
        outcome, totals = await repairing
        assert (outcome.state, totals.renewed) == (RepairState.HEALTHY, 8)
        assert await world.marked() == []
        assert await world.is_whole(ledger_id)

    run(scenario)


def test_by_hand_a_mark_that_comes_meanwhile_is_looked_at_too() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write(count=100)
        first, second, _ = world.record(ledger_id).last_ensemble
        world.kill(first)

        async def away() -> bool:
            return first not in await world.act(world.user.driver.modes())

        await world.until(away)
        repairing = asyncio.create_task(repair(world, ledger_id, lost=[first], pace=RateLimit(2_000)))
        await asyncio.sleep(2)
        await damage(world, ledger_id, second, 5, count=100)
        assert not repairing.done()
        await report_damage(world, ledger_id, second)
        outcome, totals = await repairing
        assert (outcome.state, totals.renewed) == (RepairState.HEALTHY, 1)
        assert await world.marked() == []
        assert await world.is_whole(ledger_id)

    run(scenario)


def test_a_drain_names_nobody_who_has_only_just_gone() -> None:
    """A worker that sees such a mark first would take the bookie for lost."""

    async def scenario(world: World) -> None:
        ledger_id = await world.write()
        emptied, gone, _ = world.record(ledger_id).last_ensemble
        world.kill(gone)

        async def away() -> bool:
            return gone not in await world.act(world.user.driver.modes())

        await world.until(away)
        result = await drained(world, drain_of(world, emptied))
        assert (result.is_empty, result.marked) == (True, [ledger_id])
        found = await world.act(world.user.driver.recovery.mark_of(ledger_id))
        assert found.replicas == ()

    run(scenario)


@pytest.mark.parametrize("lost", [("b1",), ("b1", "b2")])
def test_a_bookie_that_came_and_went_while_the_auditor_was_off_is_audited_again(lost: tuple[str, ...]) -> None:
    """Alone it is lost; two that the delay still protects endanger a ledger."""

    async def scenario(world: World) -> None:
        healer = await world.heal(lost_bookie_delay_s=5 if len(lost) == 1 else 1_000)
        store, check = world.user.driver.recovery, "lost bookies" if len(lost) == 1 else "endangered ledgers"
        await asyncio.sleep(1)
        world.kill(*lost)

        async def is_audited() -> bool:
            report = healer.recovery.auditor.last.get(check)
            return report is not None and report.ended_ms is not None and (len(lost) > 1 or bool(report.facts["lost"]))

        await world.until(is_audited)
        assert await world.act(store.disable())
        await asyncio.sleep(70)  # The process reads the switch.
        await world.start(*lost)
        ledger_id = await world.write((5, 3, 3))
        world.kill(*lost)
        await asyncio.sleep(20)
        assert await world.marked() == []
        assert await world.act(store.enable())

        async def is_marked() -> bool:
            return await world.marked() == [ledger_id]

        await world.until(is_marked, 30)

    run(scenario)


def test_a_bookie_that_returns_while_its_loss_is_found_again_ends_the_loss() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write((3, 1, 1))
        name, other, third = world.record(ledger_id).last_ensemble
        healer = await world.heal({"read_timeout_ms": 60_000})
        worker, network = healer.recovery.worker, world.cluster.network
        world.kill(name)

        async def is_lost() -> bool:
            report = worker.reports.get(ledger_id)
            return report is not None and report.state is RepairState.LOST

        async def is_busy() -> bool:
            return ledger_id in worker.busy

        await world.until(is_lost)
        network.block(other, healer.client.name)
        await mark(world, ledger_id, third)
        await world.until(is_busy)
        await world.start(name)
        assert await is_busy()
        network.unblock(other, healer.client.name)
        await world.until_whole([ledger_id], 30)
        assert worker.reports == {}

    run(scenario)


def test_a_bookie_that_is_lost_after_it_was_checked_keeps_the_mark_that_names_it() -> None:
    """The auditor's mark names it already, so it does not grow while the check of the other bookie goes on."""

    async def scenario(world: World) -> None:
        ledger_id = await world.write((3, 3, 3))
        name, late, _ = world.record(ledger_id).last_ensemble
        healer = await world.heal({"read_timeout_ms": 600_000})
        recovery, network = healer.recovery, world.cluster.network
        await asyncio.sleep(1)
        network.block(late, healer.client.name)
        await mark(world, ledger_id, name, late)

        async def is_busy() -> bool:
            return ledger_id in recovery.worker.busy

        async def is_audited() -> bool:
            report = recovery.auditor.last["lost bookies"]
            return report.ended_ms is not None and report.facts["lost"] == [name]

        await world.until(is_busy)
        await asyncio.sleep(1)
        world.kill(name)
        await world.until(is_audited)
        assert await is_busy()
        network.unblock(late, healer.client.name)
        await world.until_whole([ledger_id], 30)

    run(scenario)


# -- damage of a bookie that the mark names already --------------------------------------------------------------------


async def report_damage(world: World, ledger_id: int, name: BookieId) -> None:
    now_ms = world.user.runtime.clock.wall_ms()
    assert await world.act(world.user.driver.recovery.mark(ledger_id, [name], now_ms, is_damage=True))


async def version_of(world: World, ledger_id: int) -> int:
    found = await world.act(world.user.driver.recovery.mark_of(ledger_id))
    return int(found.version)


def test_damage_of_a_bookie_that_a_repair_has_just_checked_is_not_forgotten() -> None:
    """The repair copies what another bookie had, and does not read the first one again at its end."""

    async def scenario(world: World) -> None:
        ledger_id = await world.write(count=100)
        name, dead, _ = world.record(ledger_id).last_ensemble
        healer = await world.heal(recovery_rate_size=2_000)
        world.kill(dead)
        await mark(world, ledger_id, name, dead)

        async def is_copying() -> bool:
            return healer.recovery.worker.totals.entries > 0

        await world.until(is_copying)
        await damage(world, ledger_id, name, 5, count=100)
        await report_damage(world, ledger_id, name)
        assert ledger_id in healer.recovery.worker.busy
        await world.until_whole([ledger_id], 600)
        assert healer.recovery.worker.totals.renewed == 1

    run(scenario)


def test_the_auditor_reports_damage_to_a_repair_in_progress() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write(count=10)
        name, store = world.record(ledger_id).last_ensemble[1], world.user.driver.recovery
        await mark(world, ledger_id, name)
        lock = await world.act(store.lock(ledger_id, "another process", needs_mark=True))
        await lose_the_middle(world, ledger_id, name)
        await world.heal(audit_replicas_interval_s=5)
        await asyncio.sleep(4)
        assert not await world.act(store.done(lock))
        await world.until_whole([ledger_id], 20)

    run(scenario)


def test_damage_that_stays_costs_a_write_a_day() -> None:
    """Except while the ledger is locked: then each report is for a repair that may have passed the damage."""

    async def scenario(world: World) -> None:
        ledger_id = await world.write((3, 1, 1), count=30)
        name, store = world.record(ledger_id).last_ensemble[1], world.user.driver.recovery
        await world.forget(name, ledger_id)
        healer = await world.heal(audit_replicas_interval_s=2)
        worker, clock = healer.recovery.worker, healer.client.runtime.clock

        async def is_lost() -> bool:
            return ledger_id in worker.reports and worker.reports[ledger_id].state is RepairState.LOST

        await world.until(is_lost)
        await asyncio.sleep(10)
        version, tries = await version_of(world, ledger_id), worker.reports[ledger_id].tries
        await asyncio.sleep(60)
        assert (await version_of(world, ledger_id), worker.reports[ledger_id].tries) == (version, tries)
        lock = await world.act(store.lock(ledger_id, "another process", needs_mark=True))
        await asyncio.sleep(10)
        assert await version_of(world, ledger_id) > version
        await world.act(store.unlock(lock))
        await asyncio.sleep(10)
        version, tries = await version_of(world, ledger_id), worker.reports[ledger_id].tries
        clock.skew_ms += 86_500_000
        await asyncio.sleep(70)  # The worker lists the marks within a minute.
        assert await version_of(world, ledger_id) > version
        assert worker.reports[ledger_id].tries == tries + 1

    run(scenario)


@pytest.mark.parametrize("is_during_an_attempt", [False, True])
def test_new_damage_of_a_ledger_with_lost_entries_is_looked_for(is_during_an_attempt: bool) -> None:
    """It may be damage that can be repaired, and no bookie has to return for that."""

    async def scenario(world: World) -> None:
        ledger_id = await world.write((3, 1, 1), count=30)
        name, other, _ = world.record(ledger_id).last_ensemble
        await world.forget(name, ledger_id)
        healer = await world.heal({"read_timeout_ms": 600_000})
        worker, network = healer.recovery.worker, world.cluster.network
        await mark(world, ledger_id, name)

        async def is_lost() -> bool:
            return ledger_id in worker.reports and ledger_id not in worker.busy

        async def is_busy() -> bool:
            return ledger_id in worker.busy

        await world.until(is_lost)
        await asyncio.sleep(5)
        tries = worker.reports[ledger_id].tries
        if is_during_an_attempt:
            network.block(other, healer.client.name)
            await report_damage(world, ledger_id, name)
            await world.until(is_busy)
        await report_damage(world, ledger_id, name)
        await asyncio.sleep(5)
        network.unblock(other, healer.client.name)
        await asyncio.sleep(60)
        assert worker.reports[ledger_id].tries == tries + 1 + is_during_an_attempt

    run(scenario)
