"""Emptying a bookie on virtual time: what is copied, what stands in the way, who may interrupt and go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.sim.recovery_world import World, run

from bookies.client.repair.ledger_repair import Outcome
from bookies.errors import BookKeeperError, LedgerFenced, LedgerUnknownToBookie, MetadataError, ReplicationFailed
from bookies.lab.sim.world.sim_metadata import StoreFaults
from bookies.metadata.interface.driver import Versioned
from bookies.model import BookieId
from bookies.protocol.pacing import RateLimit
from bookies.protocol.repair.fragments import fragments_to_check
from bookies.protocol.repair.repair_work import Cause, RepairState, Wait
from bookies.replication.base.store_outage import AWAY_S
from bookies.replication.operator import Drain, Operator
from bookies.replication.operator.drain import DrainPlan, DrainResult
from bookies.replication.operator.drain_work import DrainProgress

B1 = BookieId("b1")
QUORUMS = ((3, 3, 2), (4, 3, 2), (3, 2, 2), (2, 2, 2), (5, 3, 2))


def drain_of(world: World, bookie: BookieId = B1, **options: Any) -> Drain:
    user = world.user
    return Drain(Operator(user.runtime, user.client, user.driver, user.name), bookie, **options)


async def drained(world: World, drain: Drain, *, waits: bool = False, begins: bool = True) -> DrainResult:
    """All of it, as the user."""

    async def act() -> DrainResult:
        await drain.start()
        try:
            if begins:
                await drain.begin()
            return await drain.run(await drain.plan(), waits=waits)
        finally:
            drain.stop()

    result = await world.act(act())
    assert isinstance(result, DrainResult)
    return result


async def planned(world: World, drain: Drain) -> DrainPlan:
    async def act() -> DrainPlan:
        await drain.start()
        try:
            return await drain.plan()
        finally:
            drain.stop()

    plan = await world.act(act())
    assert isinstance(plan, DrainPlan)
    return plan


def names(world: World, ledger_ids: list[int]) -> int:
    return sum(world.record(each).names(B1) for each in ledger_ids)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_bookie_is_emptied_and_forgotten(is_stopped: bool) -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write(QUORUMS[number % 5]) for number in range(15)]
        held = names(world, ledgers)
        assert held > 0
        if is_stopped:
            world.kill("b1")
            await asyncio.sleep(15)
        drain = drain_of(world)
        plan = await planned(world, drain)
        assert (len(plan.portions), plan.blocked) == (held, [])
        assert plan.mode == ("down" if is_stopped else "writable")
        assert sum(plan.targets.values()) == pytest.approx(plan.size, rel=0.01)
        assert B1 not in plan.targets
        result = await drained(world, drain_of(world))
        assert result.is_empty
        assert (result.blocked, result.marked) == ([], [])
        assert (result.entries, names(world, ledgers)) == (plan.entries, 0)
        assert result.size == pytest.approx(plan.size, rel=0.01)
        assert all([await world.is_whole(each) for each in ledgers])
        assert B1 in (await world.act(world.notes.read())).draining
        if not is_stopped:
            with pytest.raises(BookKeeperError, match="stop it first"):
                await world.act(drain_of(world).remove())
            world.kill("b1")
            await asyncio.sleep(15)
        await world.act(drain_of(world).remove())
        assert B1 not in (await world.act(world.user.driver.all_bookies())).bookies
        assert not (await world.act(world.notes.read())).draining

    run(scenario, bookies=6)


class SlowListing:
    """A driver whose listing of the ledgers takes long enough for something to happen."""

    def __init__(self, driver: Any, happens: Callable[[], Awaitable[None]]) -> None:
        self._driver, self._happens = driver, happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def ledger_ids(self) -> AsyncIterator[Sequence[int]]:
        await self._happens()
        async for ids in self._driver.ledger_ids():
            yield ids


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_bookie_that_is_to_serve_again_keeps_its_cookie(is_cancelled: bool) -> None:
    """It is started while its removal reads the records, or the drain is cancelled before that."""

    async def scenario(world: World) -> None:
        await world.write()
        assert (await drained(world, drain_of(world))).is_empty
        world.kill("b1")
        await asyncio.sleep(15)
        user = world.user
        if is_cancelled:
            await world.act(world.notes.end_draining(B1))
        driver: Any = SlowListing(user.driver, lambda: world.start("b1"))
        drain = Drain(Operator(user.runtime, user.client, driver, user.name), B1)
        with pytest.raises(BookKeeperError, match="its drain was cancelled" if is_cancelled else "stop it first"):
            await world.act(drain.remove())
        assert B1 in (await world.act(user.driver.all_bookies())).bookies

    run(scenario, bookies=6)


@pytest.mark.parametrize("way", ["auto-recovery", "drain", "recover", "decommission"])
def test_no_record_names_a_bookie_that_is_gone_without_entries_either(way: str) -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write(quorums, count) for quorums in QUORUMS for count in (0, 1)]
        ledgers.append(await world.write((3, 3, 2), 10))
        record = world.record(ledgers[-1])
        others = tuple(BookieId(f"b{number}") for number in range(1, 7) if f"b{number}" not in record.bookies)
        ensembles = (*record.ensembles, (10, (B1, *others[-2:])))
        found = await world.act(world.user.driver.read_ledger(record.ledger_id))
        await world.act(world.user.driver.write_ledger(record.replace(ensembles=ensembles), found.version))
        assert names(world, ledgers) > 3
        fragments = [each for ledger in ledgers for each in fragments_to_check(world.record(ledger), -1)]
        held = sum(len(each.stored(each.ensemble.index(B1))) for each in fragments if B1 in each.ensemble)
        if way == "drain":
            result = await drained(world, drain_of(world))
            assert (result.is_empty, result.blocked) == (True, [])
            world.kill("b1")
        else:
            world.kill("b1")
            await asyncio.sleep(15)
        if way == "auto-recovery":
            healer = await world.heal()
            await world.until(lambda: _is(names(world, ledgers) == 0))
            await world.until(lambda: _none(world))
            assert healer.recovery.worker.totals.entries == held, "nothing else is copied"
        elif way == "recover":
            report = await world.act(world.admin.recover_bookies([B1], dry_run=True))
            await world.act(world.admin.recover_bookies([B1]))
            assert len(report.moves) >= 5
        elif way == "decommission":
            await world.act(world.admin.decommission(B1))
        assert names(world, ledgers) == 0
        assert all([await world.is_whole(each) for each in ledgers])
        await world.end()

    run(scenario, bookies=6)


async def _none(world: World) -> bool:
    return not await world.marked()


def test_an_interrupted_one_goes_on_where_it_was() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write(count=40) for _ in range(20)]
        held = names(world, ledgers)
        slow = asyncio.create_task(drained(world, drain_of(world, pace=RateLimit(20_000))))
        await world.until(lambda: _is(names(world, ledgers) <= held - 2))
        slow.cancel()
        await asyncio.wait((slow,))
        left = names(world, ledgers)
        assert 0 < left < held
        said = (await world.act(world.notes.read())).draining[B1].state
        assert said.startswith(f"{world.user.name} has stopped: {held - left} of {held} ledgers")
        assert "left" not in said
        world.kill("b1")
        await asyncio.sleep(15)
        assert await world.act(world.user.driver.recovery.locks()) == {}
        with pytest.raises(BookKeeperError, match=f"{left} ledgers name it"):
            await world.act(drain_of(world).remove())
        result = await drained(world, drain_of(world))
        assert result.is_empty
        assert names(world, ledgers) == 0

    run(scenario)


async def _is(value: bool) -> bool:
    return value


@pytest.mark.parametrize("away_s", [30, 300])
def test_a_store_that_is_away_for_a_while_does_not_end_it(away_s: int) -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write(count=40) for _ in range(20)]
        held = names(world, ledgers)
        drain, news = drain_of(world, pace=RateLimit(10_000)), list[DrainProgress]()

        async def act() -> DrainResult:
            await drain.start()
            try:
                await drain.begin()
                return await drain.run(await drain.plan(), news.append)
            finally:
                drain.stop()

        loop = asyncio.get_running_loop()
        task = asyncio.create_task(world.act(act()))
        await world.until(lambda: _is(names(world, ledgers) <= held - 2))
        begun = loop.time()
        world.cut_off(is_cut=True)
        await asyncio.wait((task,), timeout=away_s)
        assert task.done() is (away_s > AWAY_S)
        assert news[-1].trouble is not None
        world.cut_off(is_cut=False)
        if task.done():
            assert isinstance(task.exception(), MetadataError)
            assert loop.time() - begun >= AWAY_S
            assert B1 in (await world.act(world.notes.read())).draining
            result = await drained(world, drain_of(world))
        else:
            result = await task
            assert news[-1].trouble is None
        assert result.is_empty
        assert names(world, ledgers) == 0

    run(scenario)


def test_who_goes_on_when_it_is_interrupted_is_known() -> None:
    async def scenario(world: World) -> None:
        assert (await planned(world, drain_of(world))).helpers == []
        healer = await world.heal()
        await asyncio.sleep(2)
        assert (await planned(world, drain_of(world))).helpers == [healer.client.name]
        await world.act(world.user.driver.recovery.disable())
        assert (await planned(world, drain_of(world))).helpers == []

    run(scenario)


def test_somebody_else_may_cancel_it() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write(count=40) for _ in range(40)]
        slow = asyncio.create_task(drained(world, drain_of(world, pace=RateLimit(5_000))))
        await asyncio.sleep(2)
        assert await world.act(drain_of(world).cancel())
        assert not await world.act(drain_of(world).cancel())
        result = await slow
        assert result.is_cancelled
        assert not result.is_empty
        assert names(world, ledgers) > 0
        assert not (await world.act(world.notes.read())).draining

    run(scenario)


def test_writers_avoid_it_while_there_are_others() -> None:
    async def scenario(world: World) -> None:
        await world.act(drain_of(world).begin())
        await asyncio.sleep(1)
        ledgers = [await world.write() for _ in range(10)]
        assert names(world, ledgers) == 0
        assert await world.act(drain_of(world).cancel())
        await asyncio.sleep(1)
        assert names(world, [await world.write() for _ in range(10)]) > 0

    run(scenario)


def test_what_stands_in_the_way_is_named() -> None:
    """Five bookies that are all in the ensemble: there is nobody to copy to. One more: there is."""

    async def scenario(world: World) -> None:
        ledger = await world.write((5, 3, 2))
        drain = drain_of(world)
        plan = await planned(world, drain)
        [blocked] = plan.blocked
        assert (blocked.ledger_id, blocked.cause) == (ledger, Cause.TARGET.value)
        result = await drained(world, drain_of(world))
        assert not result.is_empty
        [blocked] = result.blocked
        assert (blocked.ledger_id, blocked.first, blocked.last) == (ledger, 0, 29)
        assert blocked.cause == Cause.TARGET.value
        waiting = asyncio.create_task(drained(world, drain_of(world), waits=True))
        await asyncio.sleep(7)
        world.cluster.add_bookie("b6")
        await world.start("b6")
        assert (await waiting).is_empty

    run(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_marks_stay_while_there_is_nobody_to_copy_to(seed: int) -> None:
    """Workers that see the mark before they see the note must not take the ledger for well."""

    async def scenario(world: World) -> None:
        count = len(world.cluster.bookies)
        ledgers = [await world.write((count, 3, 2)) for _ in range(20)]
        for _ in range(3):
            await world.heal()
        await asyncio.sleep(1)
        assert await world.marked() == []
        drain = drain_of(world)

        async def begin() -> None:
            await drain.start()
            await drain.begin()
            drain.stop()

        await world.act(begin())

        async def are_marked() -> bool:
            return await world.marked() == ledgers

        await world.until(are_marked, 10)
        await asyncio.sleep(30)
        assert await are_marked()
        world.cluster.add_bookie(f"b{count + 1}")
        await world.start(f"b{count + 1}")

        async def is_empty() -> bool:
            return names(world, ledgers) == 0 and await world.marked() == []

        await world.until(is_empty)

    run(scenario, seed, bookies=3)


def test_an_open_ledger_waits_for_its_writer_or_is_sealed() -> None:
    async def scenario(world: World) -> None:
        async def open_one() -> Any:
            writer = await world.user.client.create(ensemble=5, write_quorum=3, ack_quorum=2)
            await writer.append_many([b"%d" % number for number in range(20)])
            return writer

        writer = await world.act(open_one())
        assert world.record(writer.ledger_id).names(B1)
        world.cluster.add_bookie("b6")
        await world.start("b6")
        plan = await planned(world, drain_of(world))
        [blocked] = plan.blocked
        assert (blocked.cause, blocked.can_be_sealed) == (Cause.WRITER.value, True)
        result = await drained(world, drain_of(world))
        [blocked] = result.blocked
        assert (blocked.ledger_id, blocked.cause, blocked.can_be_sealed) == (writer.ledger_id, Cause.WRITER.value, True)
        await world.act(writer.append(b"its writer goes on"))
        assert (await planned(world, drain_of(world, seals=True))).blocked == []
        result = await drained(world, drain_of(world, seals=True))
        assert result.is_empty
        assert world.record(writer.ledger_id).last_entry_id == 20
        with pytest.raises(LedgerFenced):
            await world.act(writer.append(b"too late"))
        await world.act(writer.close())

    run(scenario)


def test_what_is_lost_is_said() -> None:
    """The only replica was on a bookie that is gone."""

    async def scenario(world: World) -> None:
        ledger = -1
        while ledger < 0 or not world.record(ledger).names(B1):
            ledger = await world.write((1, 1, 1))
        world.kill("b1")
        await asyncio.sleep(15)
        drain = drain_of(world)
        assert (await planned(world, drain)).blocked[0].cause == Cause.BOOKIE.value
        result = await drained(world, drain_of(world))
        [blocked] = result.blocked
        assert (blocked.ledger_id, blocked.cause) == (ledger, "lost")
        assert "b1" in blocked.reason

    run(scenario)


def test_workers_and_the_drain_share_the_work() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write(count=40) for _ in range(20)]
        plan = await planned(world, drain_of(world))
        await world.heal()
        result = await drained(world, drain_of(world, pace=RateLimit(50_000)))
        assert result.is_empty
        assert names(world, ledgers) == 0
        assert result.entries + world.copied() == plan.entries, "nothing is copied twice"
        await world.until_whole(ledgers)

    run(scenario, bookies=6)


def test_the_forecast_is_right_when_a_killed_one_has_left_its_lock() -> None:
    """The lock ends with the session; until then nothing is forecast, and the time of waiting is none of copying."""

    async def scenario(world: World) -> None:
        ledger = -1
        while ledger < 0 or not world.record(ledger).names(B1):
            ledger = await world.write((3, 3, 2), 400, size=1000)
        other = world.cluster.new_client("writer2")
        await other.participant.create_task(world.cluster.open_client(other))
        holding = other.driver.recovery.lock(ledger, "a drain that was killed", needs_mark=False)
        assert await other.participant.create_task(holding)
        loop, seen = asyncio.get_running_loop(), list[DrainProgress]()
        drain = drain_of(world, pace=RateLimit(20_000))

        async def act() -> DrainResult:
            await drain.start()
            try:
                await drain.begin()
                loop.call_later(8, other.driver.expire)
                return await drain.run(await drain.plan(), seen.append)
            finally:
                drain.stop()

        result = await world.act(act())
        assert result.is_empty
        assert seen[0].remaining_s is None
        assert result.predicted_s is not None
        assert 0.7 < result.predicted_s / result.took_s < 1.3

    run(scenario, bookies=6)


def test_nothing_is_in_the_way_twice() -> None:
    """A lost bookie in the last fragment, and an entry on its way: both are waited for, and both are the writer's."""

    async def scenario(world: World) -> None:
        drain = drain_of(world)
        waits = [Wait(Cause.WRITER, 0, 9, B1, "it lacks entry 3"), Wait(Cause.GRACE, 0, -1, None, "for 9 s")]
        ledger = await world.write((3, 3, 2))
        found = Versioned(world.record(ledger), 1)
        [blocked] = drain._reasons(found, Outcome(RepairState.WAITING, waits))
        assert (blocked.cause, blocked.can_be_sealed) == (Cause.WRITER.value, True)

    run(scenario)


@pytest.mark.parametrize("rate", [10_000, 30_000])
def test_the_forecast_is_right_within_thirty_percent(rate: int) -> None:
    async def scenario(world: World) -> None:
        sizes = (10, 2_000, 100, 300, 30)
        for number in range(40):
            await world.write(QUORUMS[number % 5], 20 + number * 7 % 40, size=sizes[number % 5])
        seen: list[DrainProgress] = []
        drain = drain_of(world, pace=RateLimit(rate))

        async def act() -> DrainResult:
            await drain.start()
            try:
                await drain.begin()
                return await drain.run(await drain.plan(), seen.append)
            finally:
                drain.stop()

        result = await world.act(act())
        assert result.is_empty
        assert result.predicted_s is not None
        assert 0.7 < result.predicted_s / result.took_s < 1.3
        assert result.predicted_after_s < 0.3 * result.took_s
        assert [each.size_done for each in seen] == sorted(each.size_done for each in seen)

    run(scenario, bookies=6)


@pytest.mark.parametrize("seed", [1, 5, 12])
def test_listings_of_a_server_that_lags_behind_start_no_storm(seed: int) -> None:
    """Such a server names the bookie in records from which it is gone: every round finds work that is done already,
    and some records of closed ledgers look open."""

    async def scenario(world: World) -> None:
        for _ in range(10):
            await world.write((3, 3, 2))
        requests: list[str] = []
        world.cluster.store.on_request = requests.append
        world.cluster.store.faults = StoreFaults(stale_read=0.5)
        draining = asyncio.create_task(drained(world, drain_of(world)))
        await asyncio.sleep(3)
        count = requests.count(world.user.name)
        world.cluster.store.heal()
        assert (await draining).is_empty
        assert count < 300

    run(scenario, seed, bookies=6)


def test_a_lagging_server_does_not_hide_what_has_begun_to_name_the_bookie() -> None:
    """The last look sees a record that a writer without another choice changed just before it."""

    async def scenario(world: World) -> None:
        drain, other = drain_of(world), world.cluster.new_client("other")
        await other.participant.create_task(world.cluster.open_client(other))

        async def begun() -> DrainPlan:
            await drain.start()
            await drain.begin()
            return await drain.plan()

        async def opened() -> Any:
            writer = await other.client.create(ensemble=3, write_quorum=3, ack_quorum=2)
            await writer.append(b"before")
            return writer

        plan = await world.act(begun())
        await asyncio.sleep(1)
        writer = await other.participant.create_task(opened())
        assert not world.record(writer.ledger_id).names(B1)
        world.cluster.store.lag(world.user.name)
        used = world.record(writer.ledger_id).last_ensemble
        world.kill(*(each for each in world.cluster.bookies if each not in (B1, *used[1:])))

        async def names_it() -> bool:
            await other.participant.create_task(writer.append(b"after"))
            return world.record(writer.ledger_id).names(B1)

        await world.until(names_it)
        result = await world.act(drain.run(plan))
        drain.stop()
        assert not result.is_empty
        assert {each.ledger_id for each in result.blocked} == {writer.ledger_id}
        await other.participant.create_task(writer.close())

    run(scenario)


def test_a_recovery_that_began_before_copies_no_more_to_the_bookie() -> None:
    """Not even if there is no other one: it says so."""

    async def scenario(world: World) -> None:
        ledgers, lost = [await world.write() for _ in range(40)], [B1, BookieId("b4")]
        world.kill(*lost)
        await asyncio.sleep(15)
        recovering = asyncio.create_task(world.act(world.admin.recover_bookies(lost, bytes_per_s=20_000)))
        await asyncio.sleep(1)
        await world.act(world.notes.begin_draining("b5", "somebody"))
        await asyncio.sleep(2)  # Copies that had begun come to their end.
        named = [each for each in ledgers if world.record(each).names("b5")]
        assert len(named) < len(ledgers)
        assert not recovering.done()
        with pytest.raises(ReplicationFailed, match=r"not used: b5 \(it is to be emptied\)"):
            await recovering
        assert [each for each in ledgers if world.record(each).names("b5")] == named

    run(scenario)


def test_a_copy_that_began_before_goes_elsewhere() -> None:
    """Its record is changed at its end, when the drain may have found the bookie empty."""

    async def scenario(world: World) -> None:
        ledger_id = await world.write(count=100)
        lost, *_ = world.record(ledger_id).last_ensemble
        targets = [BookieId(each) for each in world.cluster.bookies if not world.record(ledger_id).names(each)]
        world.kill(lost)
        await asyncio.sleep(15)
        recovering = asyncio.create_task(world.act(world.admin.recover_bookies([lost], bytes_per_s=2_000)))

        async def target() -> BookieId | None:
            for each in targets:
                try:
                    await world.act(world.admin.list_entries(each, ledger_id))
                    return each
                except LedgerUnknownToBookie:
                    continue
            return None

        await world.until(lambda: _is_there(target()))
        emptied = await target()
        assert emptied is not None
        assert (await drained(world, drain_of(world, emptied))).is_empty
        assert not recovering.done()
        await recovering
        assert not world.record(ledger_id).names(emptied)
        assert await world.is_whole(ledger_id)

    run(scenario)


async def _is_there(value: Awaitable[object]) -> bool:
    return await value is not None


@pytest.mark.parametrize("announces", ["maintenance", "drain"])
def test_a_long_drain_respects_what_is_announced_meanwhile(announces: str) -> None:
    """A bookie in maintenance is not lost, and a mark may stand for another one that is to be emptied by now."""

    async def scenario(world: World) -> None:
        ledgers = [await world.write(count=40, bookies=["b1", "b2", "b3"]) for _ in range(12)]
        draining = asyncio.create_task(drained(world, drain_of(world, pace=RateLimit(500))))
        await asyncio.sleep(5)
        begun = [each for each in ledgers if each in await world.act(world.user.driver.recovery.locks())]
        later = [each for each in ledgers if each not in begun and world.record(each).names("b1")]
        assert len(later) >= 2
        if announces == "maintenance":
            until_ms = world.user.runtime.clock.wall_ms() + 3_600_000
            await world.act(world.notes.begin_maintenance("b3", until_ms, "somebody"))
            world.kill("b3")
        else:
            await world.act(world.notes.begin_draining("b3", "somebody"))
            for each in later:
                await world.act(world.user.driver.recovery.mark(each, [BookieId("b3")], 0))
        assert (await draining).is_empty
        assert all(world.record(each).names("b3") is (announces == "maintenance") for each in later)

    run(scenario, bookies=6)
