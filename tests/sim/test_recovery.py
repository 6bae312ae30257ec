"""Auto-recovery on virtual time: what it repairs, what it waits for, what it leaves alone, and what it says."""

from __future__ import annotations

import asyncio

import pytest
from tests.sim.recovery_world import World, run

from bookies.client.repair.replica_tools import ReplicaTools
from bookies.errors import LedgerFenced, ReplicationFailed, StorageError
from bookies.kernels import Adds
from bookies.lab.sim.world.disk import PROCESS_DIES
from bookies.model import BookieId, BookieMode, LedgerState
from bookies.protocol.repair.repair_work import Cause, RepairState
from bookies.replication.operator.status import read_status, reports_on
from bookies.storage.engine.store_writes import RefusedAdds

B1, B2 = BookieId("b1"), BookieId("b2")
QUORUMS = ((3, 3, 2), (4, 3, 2), (3, 2, 2), (2, 2, 2), (5, 3, 2))


def needed(world: World, ledger_ids: list[int], bookie: str) -> int:
    """Entries that this bookie must hold of sealed ledgers."""
    count = 0
    for ledger_id in ledger_ids:
        record = world.record(ledger_id)
        [(_, ensemble)] = record.ensembles
        if bookie in ensemble:
            position, size = ensemble.index(BookieId(bookie)), len(ensemble)
            count += sum((position - each) % size < record.write_quorum for each in range(record.last_entry_id + 1))
    return count


@pytest.mark.parametrize("healers", [1, 3])
def test_what_a_lost_bookie_held_is_copied_once_and_nothing_else(healers: int) -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write(QUORUMS[number % 5]) for number in range(15)]
        for _ in range(healers):
            await world.heal()
        await asyncio.sleep(1)
        world.kill("b1")
        must = needed(world, ledgers, "b1")
        assert must > 0
        took_s = await world.until_whole(ledgers)
        assert 5 < took_s < 20  # the lease, the delay, the copies
        assert world.copied() == must  # the factor is 1
        assert not any(world.record(each).names("b1") for each in ledgers)

    run(scenario, bookies=6)


def test_a_bookie_that_comes_and_goes_costs_nothing() -> None:
    async def scenario(world: World) -> None:
        await world.write()
        healer = await world.heal()
        for _ in range(100):
            world.cluster.expire_session("b1")
            await asyncio.sleep(0.3)
        for _ in range(5):
            world.kill("b1")
            await asyncio.sleep(3.5)
            await world.start("b1")
            await asyncio.sleep(1)
        assert await world.marked() == []
        assert world.copied() == 0
        assert healer.recovery.auditor.last["lost bookies"].marked == 0

    run(scenario)


def test_marks_go_when_the_bookie_is_back() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write((5, 5, 3)) for _ in range(4)]  # there is no other bookie to copy to
        await world.until_whole(ledgers)  # The ack quorum is 3, so b1 may be late.
        await world.heal()
        world.kill("b1")

        async def marked() -> bool:
            return len(await world.marked()) == 4

        async def reported() -> bool:
            return all([await world.has_reported(each) for each in ledgers])

        await world.until(marked)
        await world.until(reported)
        [report] = [world.healers[0].recovery.worker.reports[ledgers[0]]]
        assert report.state is RepairState.WAITING
        assert [wait.cause for wait in report.waits] == [Cause.TARGET]
        await world.start("b1")
        await world.until_whole(ledgers)
        assert world.copied() == 0
        assert world.healers[0].recovery.worker.reports == {}

    run(scenario)


def test_a_target_that_appears_is_used() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write((5, 5, 3)) for _ in range(3)]
        await world.heal(recovery_backoff_ms=1_000_000, recovery_backoff_max_ms=1_000_000)
        world.kill("b1")

        async def reported() -> bool:
            return all([await world.has_reported(each) for each in ledgers])

        await world.until(reported)
        world.cluster.add_bookie("b6")
        await world.start("b6")
        assert await world.until_whole(ledgers) < 10

    run(scenario)


def test_a_bookie_that_comes_is_used_at_once_for_the_end_of_a_ledger() -> None:
    """One that cannot be sealed, because nobody can take the place of the lost bookie, waits for a target."""

    async def scenario(world: World) -> None:
        await world.heal(recovery_backoff_ms=1_000_000, recovery_backoff_max_ms=1_000_000)
        other = world.cluster.new_client("writer2")
        await other.participant.create_task(world.cluster.open_client(other))

        async def write() -> int:
            ledger = await other.client.create(ensemble=5, write_quorum=5, ack_quorum=5)
            await ledger.append(b"one")
            return int(ledger.ledger_id)

        ledger_id = await other.participant.create_task(write())
        world.cluster.kill_client(other.name)
        world.kill("b1")
        worker = world.healers[0].recovery.worker

        async def reported() -> bool:
            report = worker.reports.get(ledger_id)
            return report is not None and all(wait.cause is not Cause.GRACE for wait in report.waits)

        await world.until(reported)
        waits = worker.reports[ledger_id].waits
        assert [wait.cause for wait in waits] == [Cause.TARGET], waits
        world.cluster.add_bookie("b6")
        await world.start("b6")
        assert await world.until_whole([ledger_id]) < 10

    run(scenario)


@pytest.mark.parametrize("comes", ["the note goes", "the disk grows"])
def test_bookies_that_were_not_thought_of_are_named_and_used_as_soon_as_they_can_be(comes: str) -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write((3, 3, 2))
        await world.heal(recovery_backoff_ms=1_000_000, recovery_backoff_max_ms=1_000_000)
        members = world.record(ledger_id).last_ensemble
        draining, full = (each for each in map(BookieId, ("b1", "b2", "b3", "b4", "b5")) if each not in members)
        await world.act(world.notes.begin_draining(draining, "ann"))
        disk = world.cluster.bookies[full].disk
        disk.capacity = disk.used()

        async def is_full() -> bool:
            return (await world.act(world.user.driver.modes())).get(full) is BookieMode.READ_ONLY

        await world.until(is_full)
        world.kill(members[0])

        async def reported() -> bool:
            return await world.has_reported(ledger_id)

        await world.until(reported)
        [wait] = world.healers[0].recovery.worker.reports[ledger_id].waits
        assert wait.cause is Cause.TARGET
        assert f"{draining} (it is to be emptied)" in wait.reason
        assert f"{full} (read-only: " in wait.reason
        assert not any(f"{each} (" in wait.reason for each in members)
        if comes == "the note goes":
            await world.act(world.notes.end_draining(draining))
        else:
            disk.grow(64 << 20)
        assert await world.until_whole([ledger_id]) < 10

    run(scenario)


def test_ledgers_with_one_replica_left_do_not_wait_for_the_delay() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write((3, 3, 2)) for _ in range(30)]
        endangered = [each for each in ledgers if world.record(each).names("b1") and world.record(each).names("b2")]
        single = [each for each in ledgers if world.record(each).names("b1") != world.record(each).names("b2")]
        assert endangered
        assert single
        await world.heal(lost_bookie_delay_s=1_000)
        await asyncio.sleep(1)
        world.kill("b1", "b2")
        await world.until_whole(endangered, 60)
        assert all([not await world.is_whole(each) for each in single])
        await asyncio.sleep(60)
        assert await world.marked() == []
        assert all([not await world.is_whole(each) for each in single])
        await world.start("b1", "b2")
        await asyncio.sleep(1)
        assert all([await world.is_whole(each) for each in ledgers])
        more = [await world.write((3, 3, 2)) for _ in range(30)]
        again = [each for each in more if world.record(each).names("b1") and world.record(each).names("b2")]
        assert again
        world.kill("b1", "b2")
        await world.until_whole(again, 60)

    run(scenario, bookies=7)


def test_when_most_bookies_are_away_nothing_is_marked_for_a_while() -> None:
    async def scenario(world: World) -> None:
        await world.write()
        await world.heal(lost_bookie_delay_s=0)
        await asyncio.sleep(1)
        world.kill("b1", "b2", "b3")
        await asyncio.sleep(25)
        assert await world.marked() == []
        await world.start("b1", "b2", "b3")
        await asyncio.sleep(40)
        assert await world.marked() == []
        assert world.copied() == 0

    run(scenario)


def test_maintenance_is_left_in_peace_until_it_ends() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write() for _ in range(6)]
        healer = await world.heal()
        until_ms = healer.client.runtime.clock.wall_ms() + 60_000
        world.user.runtime.clock.skew_ms = healer.client.runtime.clock.skew_ms
        await world.act(world.notes.begin_maintenance(B1, until_ms, "an operator"))
        world.kill("b1")
        await asyncio.sleep(50)
        assert await world.marked() == []
        await asyncio.sleep(12)
        await world.until_whole(ledgers)
        assert world.copied() > 0

    run(scenario)


def test_a_bookie_that_is_to_be_emptied_is_replaced_while_it_serves() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write() for _ in range(6)]
        await world.heal()
        await world.act(world.notes.begin_draining(B1, "an operator"))

        async def emptied() -> bool:
            return not any(world.record(each).names("b1") for each in ledgers)

        await world.until(emptied)
        await world.until_whole(ledgers)

    run(scenario)


# -- replicas ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", ["audit_ledgers_interval_s", "audit_replicas_interval_s"])
def test_a_bookie_that_has_lost_a_ledger_gets_it_again_in_place(check: str) -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write((5, 5, 3), count=50) for _ in range(3)]
        await world.heal(**{check: 2})
        await world.forget("b2", ledgers[1])
        before = world.record(ledgers[1])
        await world.until_whole(ledgers)
        assert world.record(ledgers[1]) == before
        assert world.copied() == 50

    run(scenario)


def test_a_bookie_that_has_lost_a_ledger_and_is_full_is_replaced() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write((3, 3, 2), count=50)
        name = world.record(ledger_id).last_ensemble[0]
        await world.heal(audit_ledgers_interval_s=2)
        await world.forget(name, ledger_id)
        store = world.cluster.bookies[name].server
        assert store is not None

        def refuse(adds: Adds, *arguments: object, **flags: object) -> list[RefusedAdds]:
            return [(adds, StorageError("the disk is full"))]

        store.store.add = refuse  # type: ignore[method-assign]
        await world.until_whole([ledger_id])
        assert not world.record(ledger_id).names(name)

    run(scenario)


def test_a_bookie_that_is_named_by_an_old_mark_and_starts_again_just_now_is_not_replaced() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write((3, 3, 2))
        name = world.record(ledger_id).last_ensemble[0]
        await world.heal(lost_bookie_delay_s=1_000)
        await asyncio.sleep(1)
        world.kill(name)
        await asyncio.sleep(3)
        await world.act(world.user.driver.recovery.mark(ledger_id, [BookieId(name)], 0))

        async def reported() -> bool:
            return await world.has_reported(ledger_id)

        await world.until(reported)
        await world.start(name)
        await world.until_whole([ledger_id])
        assert world.copied() == 0

    run(scenario)


def test_a_bookie_that_cannot_say_is_waited_for() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write()
        name = world.record(ledger_id).last_ensemble[0]
        faults = world.cluster.bookies[name].storage_faults
        faults.is_in_limbo = True
        await world.heal(audit_ledgers_interval_s=2)
        await asyncio.sleep(30)
        assert await world.marked() == []
        await world.act(world.user.driver.recovery.mark(ledger_id, [BookieId(name)], 0))

        async def reported() -> bool:
            return await world.has_reported(ledger_id)

        await world.until(reported)
        report = world.healers[0].recovery.worker.reports[ledger_id]
        assert report.state is RepairState.WAITING
        assert [(wait.cause, wait.bookie) for wait in report.waits] == [(Cause.ANSWER, name)]
        faults.is_in_limbo = False
        await world.until_whole([ledger_id])
        assert world.copied() == 0

    run(scenario)


def test_a_repair_renews_what_the_record_names_that_it_has_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write((3, 3, 2))
        [name, *_] = world.record(ledger_id).last_ensemble
        await world.forget(name, ledger_id)
        await world.until(lambda: lacks(world, ledger_id))
        lagging = world.record(ledger_id), []

        async def fragments(self: ReplicaTools, ledger_id: int) -> object:
            return lagging  # as of a server that does not know yet that the ledger has entries

        with monkeypatch.context() as patch:
            patch.setattr(ReplicaTools, "fragments", fragments)
            await world.act(world.admin.repair_ledger(ledger_id, percentage=100))
        assert await world.is_whole(ledger_id)

    async def lacks(world: World, ledger_id: int) -> bool:
        return not await world.is_whole(ledger_id)

    run(scenario)


def test_a_repair_by_hand_that_finds_a_loss_leaves_a_mark() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write((1, 1, 1))
        [name] = world.record(ledger_id).last_ensemble
        world.kill(name)
        await asyncio.sleep(10)  # Its registration ends.
        for is_dry in (True, False):
            with pytest.raises(ReplicationFailed):
                await world.act(world.admin.repair_ledger(ledger_id, lost=[BookieId(name)], dry_run=is_dry))
            assert await world.marked() == ([] if is_dry else [ledger_id])
        healer = await world.heal()

        async def is_lost() -> bool:
            report = healer.recovery.worker.reports.get(ledger_id)
            return report is not None and report.state is RepairState.LOST

        await world.until(is_lost)

    run(scenario)


def test_entries_that_are_nowhere_are_said_and_not_looked_for_again_and_again() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write((1, 1, 1))
        other = await world.write((2, 2, 2))
        [name] = world.record(ledger_id).last_ensemble
        healer = await world.heal()
        world.kill(name)

        async def reported() -> bool:
            return await world.has_reported(ledger_id)

        await world.until(reported)
        worker = healer.recovery.worker
        report = worker.reports[ledger_id]
        assert (report.state, report.next_ms, report.tries) == (RepairState.LOST, None, 1)
        assert [(loss.first, loss.last) for loss in report.losses] == [(0, 29)]
        assert report.losses[0].evidence[0][0] == name
        await asyncio.sleep(600)
        assert worker.reports[ledger_id].tries == 1
        assert await world.marked() == [ledger_id]
        found = await world.act(reports_on(world.user.driver, ledger_id))
        assert [(each["state"], each["losses"][0]["first"]) for _, each in found] == [("lost", 0)]
        await world.start(name)
        await world.until_whole([ledger_id, other], 20)
        assert worker.reports == {}

    run(scenario)


@pytest.mark.parametrize("forgets", [False, True])
def test_only_the_entries_that_are_nowhere_are_lost_and_others_are_copied(forgets: bool) -> None:
    """Every entry is on two neighbours of five bookies. The first two and the fourth are gone; or the first one is
    there, and has forgotten everything."""

    async def scenario(world: World) -> None:
        ledger_id = await world.write((5, 2, 2), count=50)
        first, second, third, fourth, fifth = world.record(ledger_id).last_ensemble
        healer = await world.heal(audit_ledgers_interval_s=2)
        if forgets:
            await world.forget(first, ledger_id)
            world.kill(second, fourth)
        else:
            world.kill(first, second, fourth)
        worker = healer.recovery.worker

        async def is_said() -> bool:
            report = worker.reports.get(ledger_id)
            return (
                report is not None
                and report.state is RepairState.LOST
                and fourth not in world.record(ledger_id).last_ensemble
            )

        await world.until(is_said)
        await asyncio.sleep(100)
        losses = worker.reports[ledger_id].losses
        lost = sorted(each for loss in losses for each in range(loss.first, loss.last + 1, loss.step))
        assert lost == list(range(0, 50, 5))
        record = world.record(ledger_id)
        [now] = [ensemble for _, ensemble in record.ensembles]
        assert (now[0], now[1], now[2], now[4]) == (first, second, third, fifth)
        assert now[3] != fourth
        asked = world.admin.ask_holders
        registered = healer.recovery.membership.registered
        for entry_id in range(50):
            answers = await world.act(asked(record, entry_id, registered))
            good = [bookie for bookie, error in answers if error is None]
            expected = {0: 0, 1: 1, 2: 2, 3: 2, 4: 2 if forgets else 1}[entry_id % 5]
            assert len(good) == expected, (entry_id, answers)
        await world.start(*([second] if forgets else [first, second]))
        await world.until_whole([ledger_id])
        assert {first, second} <= {*world.record(ledger_id).last_ensemble}

    run(scenario, bookies=8)


def test_a_ledger_whose_replicas_have_all_lost_an_entry_keeps_the_others() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write((3, 3, 2), count=20)
        members = world.record(ledger_id).last_ensemble
        for name in members:
            await world.forget(name, ledger_id)
        healer = await world.heal(audit_ledgers_interval_s=2)

        async def reported() -> bool:
            return await world.has_reported(ledger_id)

        await world.until(reported)
        report = healer.recovery.worker.reports[ledger_id]
        assert report.state is RepairState.LOST
        assert sorted(bookie for bookie, _ in report.losses[0].evidence) == sorted(members)

    run(scenario)


def test_a_copy_that_its_target_loses_before_the_record_names_it_is_noticed() -> None:
    """As when a lock was lost with its session, and the target takes its copy for a surplus one: the check after the
    swap sees it, and only then does the mark go."""

    async def scenario(world: World) -> None:
        ledger_id = await world.write((3, 3, 2), count=40)
        members = world.record(ledger_id).last_ensemble
        await world.heal()
        world.cluster.store.on_update = lambda host: (3.0 if host.startswith("replicator") else 0.0, 0.0)
        world.kill(members[0])
        others = [each for each in world.cluster.bookies.values() if each.name not in members]

        async def is_copied() -> bool:
            return any(each.server is not None and ledger_id in each.server.store.ledger_ids() for each in others)

        await world.until(is_copied)
        await asyncio.sleep(0.5)
        [target] = [each.name for each in others if each.server and ledger_id in each.server.store.ledger_ids()]
        assert not world.record(ledger_id).names(target)
        await world.forget(target, ledger_id)
        await world.until_whole([ledger_id])
        assert world.record(ledger_id).names(target)
        assert world.copied() == 80

    run(scenario)


def test_a_bookie_that_answers_late_is_not_copied_from_elsewhere() -> None:
    """Slow beyond every time-out, and registered: nothing is marked, and a mark of somebody else's changes nothing."""

    async def scenario(world: World) -> None:
        ledger_id = await world.write((3, 3, 2))
        name = world.record(ledger_id).last_ensemble[0]
        await world.heal({"read_timeout_ms": 200, "connect_timeout_ms": 200}, audit_ledgers_interval_s=2)
        network = world.cluster.network
        for host in ("replicator-healer1", "writer1"):
            network.block(name, host)
        await world.act(world.user.driver.recovery.mark(ledger_id, [], 0))
        await asyncio.sleep(60)
        report = world.healers[0].recovery.worker.reports[ledger_id]
        assert [(wait.cause, wait.bookie) for wait in report.waits] == [(Cause.ANSWER, name)]
        assert world.healers[0].recovery.auditor.last["replicas by reading"].marked == 0
        assert world.copied() == 0
        for host in ("replicator-healer1", "writer1"):
            network.unblock(name, host)
        await world.until_whole([ledger_id])
        assert world.copied() == 0

    run(scenario)


# -- unfinished ledgers --------------------------------------------------------------------------------------------


def test_a_writer_that_goes_on_is_never_disturbed() -> None:
    async def scenario(world: World) -> None:
        await world.heal(recovery_open_ledger_grace_ms=3_000)

        async def write() -> None:
            async with world.user.client.create(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
                name = world.record(ledger.ledger_id).last_ensemble[0]
                for number in range(120):
                    if number == 20:
                        world.kill(name)
                    await ledger.append(b"%d" % number)
                    await asyncio.sleep(0.25)
                assert len(ledger.metadata.ensembles) == 2
                ids.append(ledger.ledger_id)

        ids: list[int] = []
        await world.act(write())
        await world.until_whole(ids)

    run(scenario)


def test_a_writer_that_is_silent_loses_its_ledger_after_the_grace_period() -> None:
    async def scenario(world: World) -> None:
        await world.heal()

        async def write() -> float:
            ledger = await world.user.client.create(ensemble=3, write_quorum=3, ack_quorum=2)
            ids.append(ledger.ledger_id)
            await ledger.append(b"one")
            world.kill(world.record(ledger.ledger_id).last_ensemble[0])
            begun = asyncio.get_running_loop().time()

            async def sealed() -> bool:
                return world.record(ledger.ledger_id).is_closed

            await world.until(sealed)
            with pytest.raises(LedgerFenced):
                await ledger.append(b"two")
            return asyncio.get_running_loop().time() - begun

        ids: list[int] = []
        took_s = await world.act(write())
        assert 2 + 5 + 10 <= took_s < 30  # the lease, the delay, the grace period
        assert world.record(ids[0]).state is LedgerState.CLOSED
        await world.until_whole(ids)

    run(scenario)


# -- who does it ---------------------------------------------------------------------------------------------------


def test_another_auditor_and_other_workers_go_on_where_the_dead_ones_were() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write((3, 3, 2), count=300, size=2_000) for _ in range(10)]
        first = await world.heal(recovery_rate_size=1_000_000)
        await asyncio.sleep(1)
        world.kill("b1")

        async def copying() -> bool:
            return first.recovery.worker.totals.entries > 0

        await world.until(copying)
        assert await world.act(world.user.driver.recovery.auditor()) == first.client.name
        await world.heal()
        world.cluster.kill_client(first.client.name)
        await world.until_whole(ledgers)
        assert await world.act(world.user.driver.recovery.auditor()) == "replicator-healer2"

    run(scenario)


def test_a_lost_session_is_survived() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write((3, 3, 2), count=200, size=2_000) for _ in range(8)]
        healer = await world.heal(recovery_rate_size=1_000_000)
        world.kill("b1")

        async def copying() -> bool:
            return healer.recovery.worker.totals.entries > 0

        await world.until(copying)
        world.cluster.expire_session(healer.client.name)
        await world.until_whole(ledgers)

    run(scenario)


def test_switched_off_nothing_is_done() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write() for _ in range(5)]
        await world.heal()
        assert await world.act(world.user.driver.recovery.disable())
        world.kill("b1")
        await asyncio.sleep(60)
        assert await world.marked() == []
        assert await world.act(world.user.driver.recovery.enable())
        await world.until_whole(ledgers)

    run(scenario)


def test_switched_off_while_a_worker_chooses_no_repair_begins() -> None:
    """The rate of reads holds up its choice."""

    async def scenario(world: World) -> None:
        store = world.user.driver.recovery
        await world.act(store.disable())
        await world.heal(recovery_metadata_rate=1)
        ledgers = [await world.write() for _ in range(12)]
        for ledger_id in ledgers:
            await world.act(store.mark(ledger_id, [], 0))
        await world.act(store.enable())
        await asyncio.sleep(3)
        await world.act(store.disable())
        assert await world.marked() == ledgers
        await asyncio.sleep(30)
        assert await world.marked() == ledgers
        await world.act(store.enable())
        await world.until_whole(ledgers)

    run(scenario)


@pytest.mark.parametrize("is_marked", [False, True])
def test_switched_on_again_repairs_begin_at_once(is_marked: bool) -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write() for _ in range(5)]
        await world.heal(audit_bookies_interval_s=86_400)
        store = world.user.driver.recovery
        await asyncio.sleep(30)
        await world.act(store.disable())
        world.kill("b1")
        await asyncio.sleep(60)
        if is_marked:
            for each in ledgers:
                await world.act(store.mark(each, [BookieId("b1")], 0))
        assert await world.act(store.enable())
        assert await world.until_whole(ledgers) < 3

    run(scenario)


def test_an_audit_can_be_asked_for() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write() for _ in range(5)]
        await world.heal(lost_bookie_delay_s=3_600)
        await asyncio.sleep(1)
        world.kill("b1")
        await asyncio.sleep(30)
        assert await world.marked() == []
        store = world.user.driver.recovery
        await world.act(store.set_lost_bookie_delay_s(await world.act(store.lost_bookie_delay_s())))
        await world.until_whole(ledgers, 20)

    run(scenario)


def test_the_store_away_for_a_while_starts_no_storm() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write() for _ in range(5)]
        await world.heal(lost_bookie_delay_s=0)
        network = world.cluster.network
        hosts = [*world.cluster.bookies, world.healers[0].client.name]
        for host in hosts:
            network.block(host, "metadata")
            network.block("metadata", host)
        for name in world.cluster.bookies:
            world.cluster.expire_session(name)
        await asyncio.sleep(25)
        for host in hosts:
            network.unblock(host, "metadata")
            network.unblock("metadata", host)
        await asyncio.sleep(60)
        assert await world.marked() == []
        assert world.copied() == 0
        world.kill("b1")
        await world.until_whole(ledgers)

    run(scenario)


def test_a_full_target_is_passed_over() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write((3, 3, 2)) for _ in range(6)]
        await world.heal()
        for name in ("b2", "b3"):
            disk = world.cluster.bookies[name].disk
            disk.capacity = disk.used()
        world.cluster.lose_bookie("b1", PROCESS_DIES)
        await asyncio.sleep(60)
        for name in ("b2", "b3"):
            world.cluster.bookies[name].disk.grow(64 << 20)
        await world.until_whole(ledgers)

    run(scenario, bookies=6)


def test_what_everybody_does_can_be_read_from_the_store() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write((5, 5, 3))
        await world.heal()
        await world.heal()
        world.kill("b1")

        async def reported() -> bool:
            return await world.has_reported(ledger_id)

        await world.until(reported)
        await asyncio.sleep(5)
        now_ms = world.healers[0].client.runtime.clock.wall_ms()
        status = await world.act(read_status(world.user.driver, now_ms))
        assert status.is_enabled
        assert status.auditor in ("replicator-healer1", "replicator-healer2")
        assert (status.marked, status.lost_bookie_delay_s) == (1, 5)
        assert [each.name for each in status.processes] == ["replicator-healer1", "replicator-healer2"]
        assert [each["task"] for each in status.processes[0].tasks] == ["auditor", "worker", "status"]
        assert any(each.reports for each in status.processes)

    run(scenario)


# -- placement -----------------------------------------------------------------------------------------------------

RACKS = {"fault_domains": "b1=/x,b2=/x,b3=/x,b4=/y,b5=/y", "racks_min": 2}


def racks_of(world: World, ledger_id: int) -> int:
    return len({name in ("b4", "b5") for name in world.record(ledger_id).last_ensemble})


@pytest.mark.parametrize("repairs", [False, True])
def test_ledgers_in_one_rack_are_counted_and_moved_if_that_is_wanted(repairs: bool) -> None:
    async def scenario(world: World) -> None:
        world.kill("b4", "b5")
        await asyncio.sleep(3)
        ledgers = [await world.write((2, 2, 2), count=20) for _ in range(4)]
        await world.start("b4", "b5")
        healer = await world.heal(RACKS, audit_placement_interval_s=2, recovery_repairs_placement=repairs)
        await asyncio.sleep(20)
        assert [racks_of(world, each) for each in ledgers] == [2 if repairs else 1] * 4
        assert world.copied() == (80 if repairs else 0)  # one replica of each
        assert await world.marked() == []
        facts = healer.recovery.auditor.last["placement"].facts
        assert facts["not adhering"] == (0 if repairs else 4)

    run(scenario)


def test_what_no_choice_of_bookies_could_mend_says_why() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write((5, 5, 3))
        settings = {"fault_domains": "b1=/x,b2=/x,b3=/x,b4=/x,b5=/x", "racks_min": 2}
        healer = await world.heal(settings, audit_placement_interval_s=2, recovery_repairs_placement=True)

        async def reported() -> bool:
            return await world.has_reported(ledger_id)

        await world.until(reported)
        [wait] = healer.recovery.worker.reports[ledger_id].waits
        assert wait.cause is Cause.TARGET
        assert "rack" in wait.reason

    run(scenario)
