"""Auto-recovery and writers on virtual time: who may be fenced, when, and who never."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.sim.recovery_world import World, run
from tests.sim.test_by_hand import look, repair

from bookies.client.write import LedgerWriter
from bookies.errors import BookKeeperError, LedgerFenced
from bookies.model import BookieId, BookieMode, LedgerState
from bookies.protocol.repair.repair_work import Cause, RepairState
from bookies.replication.auditor import Auditor


async def idle_writer(
    world: World, ack_quorum: int, then: Callable[[LedgerWriter], Awaitable[None]], *, count: int = 3
) -> None:
    """A writer that has written some entries is silent while `then` happens, and must be able to go on."""

    async def write() -> None:
        async with world.user.client.create(ensemble=3, write_quorum=3, ack_quorum=ack_quorum) as ledger:
            for number in range(count):
                await ledger.append(b"%d" % number)
            await then(ledger)
            assert world.record(ledger.ledger_id).state is LedgerState.OPEN
            await ledger.append(b"and on")

    await world.act(write())


def waits_of(world: World, ledger_id: int) -> list[tuple[Cause, BookieId | None]]:
    report = world.healers[0].recovery.worker.reports[ledger_id]
    return [(wait.cause, wait.bookie) for wait in report.waits]


def test_a_bookie_that_the_writer_has_replaced_ends_no_writer_though_another_does_not_answer() -> None:
    """With the other one in maintenance nobody can learn the last add confirmed, so no fragment is finished."""

    async def scenario(world: World) -> None:
        healer = await world.heal(recovery_open_ledger_grace_ms=3_000)
        world.user.runtime.clock.skew_ms = healer.client.runtime.clock.skew_ms

        async def then(ledger: LedgerWriter) -> None:
            gone, absent, _ = world.record(ledger.ledger_id).last_ensemble
            world.kill(gone)
            while len(ledger.metadata.ensembles) == 1:
                await ledger.append(b"more")
                await asyncio.sleep(0.1)
            assert absent in ledger.metadata.last_ensemble
            until_ms = healer.client.runtime.clock.wall_ms() + 600_000
            await world.notes.begin_maintenance(absent, until_ms, "ann")
            world.kill(absent)
            await asyncio.sleep(120)
            waits = waits_of(world, ledger.ledger_id)
            assert (Cause.WRITER, gone) in waits
            assert (Cause.MAINTENANCE, absent) in waits
            await world.start(absent)
            await asyncio.sleep(5)

        await idle_writer(world, 1, then)

    run(scenario)


def test_a_bookie_to_be_emptied_that_is_started_again_ends_no_writer() -> None:
    """The mark names it, and it has been away for longer than a copy would wait: the delay decides all the same."""

    async def scenario(world: World) -> None:
        await world.heal(lost_bookie_delay_s=3_600, recovery_open_ledger_grace_ms=3_000)

        async def then(ledger: LedgerWriter) -> None:
            name = world.record(ledger.ledger_id).last_ensemble[0]
            await world.notes.begin_draining(name, "ann")

            async def marked() -> bool:
                return await world.has_reported(ledger.ledger_id)

            await world.until(marked)
            world.kill(name)
            await asyncio.sleep(300)
            assert (Cause.BOOKIE, name) in waits_of(world, ledger.ledger_id)
            await world.start(name)

        await idle_writer(world, 2, then)

    run(scenario)


def test_a_mark_ends_no_writer_whenever_it_was_made() -> None:
    """One that the worker sees first when the bookie is away already: it cannot say why it names it."""

    async def scenario(world: World) -> None:
        await world.heal(lost_bookie_delay_s=3_600, recovery_open_ledger_grace_ms=3_000)

        async def then(ledger: LedgerWriter) -> None:
            name = world.record(ledger.ledger_id).last_ensemble[0]
            world.kill(name)
            await asyncio.sleep(10)
            await world.user.driver.recovery.mark(ledger.ledger_id, [name], 0)
            await asyncio.sleep(300)
            assert (Cause.BOOKIE, name) in waits_of(world, ledger.ledger_id)
            await world.start(name)

        await idle_writer(world, 2, then)

    run(scenario)


def test_a_bookie_without_cookie_that_a_mark_names_ends_a_silent_writer_after_the_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the auditor is one of Apache's, no process of ours reads the records."""

    async def is_idle(auditor: Auditor) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Auditor, "run", is_idle)

    async def scenario(world: World) -> None:
        await world.heal(lost_bookie_delay_s=20, recovery_open_ledger_grace_ms=3_000)

        async def write() -> LedgerWriter:
            ledger = await world.user.client.create(ensemble=3, write_quorum=3, ack_quorum=2)
            await ledger.append(b"the last word")
            return ledger

        ledger = await world.act(write())
        name = world.record(ledger.ledger_id).last_ensemble[0]
        world.kill(name)
        driver = world.user.driver
        _, version = await world.act(driver.read_cookie(name))
        await world.act(driver.delete_cookie(name, version))
        await asyncio.sleep(10)
        await world.act(driver.recovery.mark(ledger.ledger_id, [name], 0))

        async def sealed() -> bool:
            return world.record(ledger.ledger_id).is_closed

        assert await world.until(sealed, 40) > 18, "the delay, from when it was seen to be unavailable"
        await world.until_whole([ledger.ledger_id])
        assert not world.record(ledger.ledger_id).names(name)
        with pytest.raises(LedgerFenced):
            await world.act(ledger.append(b"and on"))

    run(scenario)


def test_a_bookie_that_was_there_when_it_was_marked_is_copied_from_elsewhere_only_after_the_delay() -> None:
    async def scenario(world: World) -> None:
        await world.heal(lost_bookie_delay_s=60)
        ledger_id = await world.write((3, 3, 2))
        name = world.record(ledger_id).last_ensemble[0]
        world.cluster.bookies[name].storage_faults.is_in_limbo = True  # So that the mark stays.
        await world.act(world.user.driver.recovery.mark(ledger_id, [BookieId(name)], 0))

        async def reported() -> bool:
            return await world.has_reported(ledger_id)

        await world.until(reported)
        world.kill(name)
        await asyncio.sleep(30)
        assert world.copied() == 0
        assert name in world.record(ledger_id).last_ensemble
        await world.until_whole([ledger_id])
        assert world.copied() == 30

    run(scenario)


def test_the_grace_of_a_writer_begins_anew_with_every_loss() -> None:
    """A bookie that was lost comes back, another one is lost much later: nobody was in the way in between."""

    async def scenario(world: World) -> None:
        await world.heal(recovery_open_ledger_grace_ms=30_000)

        async def then(ledger: LedgerWriter) -> None:
            first, second, third = world.record(ledger.ledger_id).last_ensemble
            world.cluster.bookies[third].storage_faults.is_in_limbo = True  # So that the ledger stays on the agenda.
            world.kill(first)
            await asyncio.sleep(20)
            assert Cause.GRACE in [cause for cause, _ in waits_of(world, ledger.ledger_id)]
            await world.start(first)
            await asyncio.sleep(60)
            assert ledger.ledger_id in await world_marked()
            world.kill(second)
            await asyncio.sleep(25)
            assert Cause.GRACE in [cause for cause, _ in waits_of(world, ledger.ledger_id)]
            world.cluster.bookies[third].storage_faults.is_in_limbo = False
            await world.start(second)
            await asyncio.sleep(1)

        async def world_marked() -> list[int]:
            return [each async for ids in world.user.driver.recovery.marked_ids() for each in ids]

        await idle_writer(world, 2, then)

    run(scenario)


def test_when_an_audit_is_asked_for_silent_writers_end_without_the_delay() -> None:
    """Whomever their ledgers belong to: what the auditor alone knows need not wait for the other workers."""

    async def scenario(world: World) -> None:
        for _ in range(3):
            await world.heal(lost_bookie_delay_s=3_600, recovery_open_ledger_grace_ms=3_000)

        async def write() -> int:
            ledger = await world.user.client.create(ensemble=3, write_quorum=3, ack_quorum=2)
            await ledger.append(b"one")
            return int(ledger.ledger_id)

        ledgers = [await world.act(write()) for _ in range(6)]
        name = world.record(ledgers[0]).last_ensemble[0]
        mine = [each for each in ledgers if name in world.record(each).last_ensemble]
        world.kill(name)

        async def away() -> bool:
            return name not in (await world.act(world.user.driver.bookies(BookieMode.WRITABLE))).bookies

        await world.until(away)
        await asyncio.sleep(5)
        store = world.user.driver.recovery
        await world.act(store.set_lost_bookie_delay_s(await world.act(store.lost_bookie_delay_s())))

        async def sealed() -> bool:
            return all(world.record(each).is_closed for each in mine)

        assert await world.until(sealed, 60) < 40

    run(scenario)


# -- recoveries without an end -------------------------------------------------------------------------------------


async def half_recovered(world: World) -> int:
    """A ledger without a writer, whose recovery could not be finished because two of its bookies were away."""
    other = world.cluster.new_client("writer2")
    await other.participant.create_task(world.cluster.open_client(other))

    async def write() -> int:
        ledger = await other.client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        for number in range(5):
            await ledger.append(b"%d" % number)
        await asyncio.sleep(1)  # All three have all.
        return int(ledger.ledger_id)

    ledger_id = await other.participant.create_task(write())
    world.cluster.kill_client(other.name)
    away = world.record(ledger_id).last_ensemble[:2]
    world.kill(*away)

    async def recover() -> None:
        with pytest.raises(BookKeeperError):
            await world.admin.recover(ledger_id)

    await world.act(recover())
    assert world.record(ledger_id).state is LedgerState.IN_RECOVERY
    await world.start(*away)
    return ledger_id


def test_a_recovery_that_nobody_finishes_is_gone_on_with_after_the_grace_period() -> None:
    async def scenario(world: World) -> None:
        await world.heal(recovery_open_ledger_grace_ms=20_000)
        ledger_id = await half_recovered(world)
        await world.act(world.user.driver.recovery.mark(ledger_id, [], 0))
        await asyncio.sleep(15)
        assert waits_of(world, ledger_id) == [(Cause.RECOVERY, None)]
        assert await world.marked() == [ledger_id]

        async def sealed() -> bool:
            return world.record(ledger_id).is_closed

        await world.until(sealed, 15)
        assert world.record(ledger_id).last_entry_id == 4
        await world.until_whole([ledger_id])

    run(scenario)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_recovery_that_nobody_finishes_is_found_without_a_mark(is_first: bool) -> None:
    """By the auditor's first check, or by a periodic one."""

    async def scenario(world: World) -> None:
        if not is_first:
            await world.heal(recovery_open_ledger_grace_ms=20_000, audit_bookies_interval_s=60)
            await asyncio.sleep(5)
        ledger_id = await half_recovered(world)
        assert await world.marked() == []
        if is_first:
            await world.heal(recovery_open_ledger_grace_ms=20_000)

        async def sealed() -> bool:
            return world.record(ledger_id).is_closed

        assert await world.until(sealed, 95) > 20, "its client might still finish it"
        await world.until_whole([ledger_id])
        assert world.healers[0].recovery.auditor.last["lost bookies"].facts["ledgers in recovery"] == 1

    run(scenario)


def test_a_recovery_that_nobody_finishes_waits_for_the_bookie_that_it_needs() -> None:
    """And is gone on with when it is back, however long it took."""

    async def scenario(world: World) -> None:
        await world.heal(
            lost_bookie_delay_s=3_600,
            recovery_open_ledger_grace_ms=3_000,
            recovery_backoff_ms=1_000_000,
            recovery_backoff_max_ms=1_000_000,
        )
        ledger_id = await half_recovered(world)
        needed = world.record(ledger_id).last_ensemble[:2]
        world.kill(*needed)
        await asyncio.sleep(5)
        await world.act(world.user.driver.recovery.mark(ledger_id, [], 0))
        await asyncio.sleep(100)
        assert world.record(ledger_id).state is LedgerState.IN_RECOVERY
        assert [cause for cause, _ in waits_of(world, ledger_id)] == [Cause.ANSWER]
        await world.start(*needed)
        await world.until_whole([ledger_id], 20)

    run(scenario)


def test_by_hand_an_unfinished_recovery_is_gone_on_with_at_once() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await half_recovered(world)
        standing = await look(world, ledger_id)
        assert standing.assessment.wants_sealing
        outcome, totals = await repair(world, ledger_id)
        assert (outcome.state, totals.sealed) == (RepairState.HEALTHY, 1)
        assert world.record(ledger_id).is_closed

    run(scenario)
