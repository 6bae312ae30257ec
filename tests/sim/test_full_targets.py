"""Bookies that fill up while ledgers are copied to them: as many as fit are completed, the rest is said, and goes."""

from __future__ import annotations

import dataclasses

import pytest
from tests.sim.recovery_world import World, run
from tests.sim.test_by_hand import until_away

from bookies.client.repair.replication import RecoveryReport
from bookies.errors import ReplicationFailed
from bookies.model import BookieId, BookieMode

QUORUMS = (3, 3, 2)
ENTRIES, SIZE = 40, 100_000  # four times as many bytes as are copied at a time


async def big_ledgers(world: World, count: int) -> tuple[BookieId, list[int]]:
    """Ledgers on b1, b2 and b3 only, and which of those is lost then."""
    for name in ("b4", "b5"):
        world.kill(name)
        await until_away(world, name)
    for bookie in world.cluster.bookies.values():
        bookie.disk.grow(1 << 30)
    ledgers = [await world.write(QUORUMS, ENTRIES, size=SIZE) for _ in range(count)]
    lost = BookieId("b1")
    world.kill(lost)
    await until_away(world, lost)
    return lost, ledgers


async def gc(world: World, name: str, *, with_surplus: bool) -> None:
    bookie = world.cluster.bookies[name]
    assert bookie.participant is not None
    assert bookie.server is not None
    collector = bookie.server.store.collector
    assert collector is not None
    await bookie.participant.create_task(collector.collect(is_forced=False, is_awaited=True, with_surplus=with_surplus))


async def small_target(world: World, name: str) -> BookieId:
    """A bookie that becomes read-only with less than half of what is copied, and takes copies for a while then."""
    bookie = world.cluster.bookies[name]
    bookie.config = dataclasses.replace(
        bookie.config,
        gc_interval_ms=3_600_000,
        disk_check_interval_ms=100,
        disk_usage_warn_threshold=30,
        disk_usage_lwm_threshold=30,
        disk_usage_threshold=40,
        disk_usage_priority_threshold=90,
    )
    bookie.disk.capacity = bookie.disk.used() + 39_000_000
    await world.start(name)
    return BookieId(name)


def test_as_many_as_fit_are_copied_and_what_has_broken_off_is_given_back() -> None:
    async def scenario(world: World) -> None:
        lost, ledgers = await big_ledgers(world, 8)
        target = await small_target(world, "b4")
        with pytest.raises(ReplicationFailed) as failed:
            await world.act(world.admin.recover_bookies([lost], bytes_per_s=4_000_000))
        copied = [each for each in ledgers if world.record(each).names(target)]
        assert 2 <= len(copied) == len(failed.value.moves)
        assert len(failed.value.causes) == len(ledgers) - len(copied)
        for error in failed.value.causes:
            assert f"not used: {target} (read-only: " in str(error)
            assert "bk bookie gc --surplus" in str(error)

        server = world.cluster.bookies[target].server
        assert server is not None
        store = server.store
        begun = [each for each in store.ledger_ids() if each not in copied]
        assert len(begun) == 1, "not one of each that there was no room for"
        await gc(world, target, with_surplus=False)
        assert {*store.ledger_ids()} == {*copied, *begun}, "nobody has asked for more"
        await gc(world, target, with_surplus=True)
        assert {*store.ledger_ids()} == {*copied}
        for each in copied:
            assert await world.is_whole(each)

    run(scenario)


def test_what_is_left_out_is_said_by_a_dry_run_and_by_a_repair() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write((4, 4, 2))
        lost = world.record(ledger_id).last_ensemble[0]
        [full] = (each for each in world.cluster.bookies if not world.record(ledger_id).names(BookieId(each)))
        disk = world.cluster.bookies[full].disk
        disk.capacity = disk.used()

        async def is_full() -> bool:
            return (await world.act(world.user.driver.modes())).get(BookieId(full)) is BookieMode.READ_ONLY

        await world.until(is_full)
        world.kill(lost)
        await until_away(world, lost)
        plan = await world.act(world.admin.recover_bookies([lost], dry_run=True))
        assert isinstance(plan, RecoveryReport)
        with pytest.raises(ReplicationFailed) as failed:
            await world.act(world.admin.repair_ledger(ledger_id, lost=[lost]))
        for text in (str(plan.obstacles[0].error), str(failed.value)):
            assert f"not used: {full} (read-only: " in text
        disk.grow(64 << 20)

    run(scenario)
