"""Records without entries, on virtual time: found, marked, deleted after a wait."""

from __future__ import annotations

import asyncio

from tests.sim.recovery_world import World, run

from bookies.replication.operator import Operator
from bookies.replication.operator.orphans import FORMAT, NAME, Orphans, OrphanSearch

WAIT_MS = 10_000


def search_of(world: World) -> OrphanSearch:
    user = world.user
    return OrphanSearch(Operator(user.runtime, user.client, user.driver, user.name))


async def found_by(world: World) -> Orphans:
    result = await world.act(search_of(world).find())
    assert isinstance(result, Orphans)
    return result


async def lose(world: World, ledger_id: int) -> None:
    for bookie in world.record(ledger_id).bookies:
        await world.forget(bookie, ledger_id)


def test_a_record_without_entries_is_deleted_after_mark_and_wait() -> None:
    async def scenario(world: World) -> None:
        search = search_of(world)
        kept, orphan, empty = [await world.write(count=count) for count in (10, 10, 0)]
        await lose(world, orphan)
        found = await found_by(world)
        assert (list(found.records), found.unknown, found.coverage.ledgers) == ([orphan], {}, 3)
        assert search.due(found, await world.act(search.marks()), 0) == []  # never without a mark
        marks = await world.act(search.mark(found))
        assert search.due(found, marks, WAIT_MS) == []
        await asyncio.sleep(WAIT_MS / 1000)
        assert await world.act(search.mark(await found_by(world))) == marks  # a second mark does not prolong the wait
        assert search.due(found, marks, WAIT_MS) == [orphan]
        assert await world.act(search.delete(found, orphan))
        assert await world.act(search.marks()) == {}
        assert (await found_by(world)).coverage.ledgers == 2
        assert world.record(kept).is_closed
        assert world.record(empty).is_closed

    run(scenario)


def test_a_record_that_changed_since_the_mark_waits_again() -> None:
    async def scenario(world: World) -> None:
        search = search_of(world)
        orphan = await world.write(count=10)
        await lose(world, orphan)
        found = await found_by(world)
        marks = await world.act(search.mark(found))
        await world.act(
            world.admin.change_record(
                orphan, lambda record: record.replace(ctime_ms=5) if record.ctime_ms != 5 else None
            )
        )
        assert not await world.act(search.delete(found, orphan))
        later = await found_by(world)
        assert search.due(later, marks, 0) == []
        again = await world.act(search.mark(later))
        assert again[orphan].version == later.records[orphan].version
        # A ledger whose bookies do not answer keeps its mark, one that is found again loses it.
        unknown = Orphans(unknown={orphan: "no answer"})
        assert await world.act(search.mark(unknown)) == again
        assert await world.act(search.mark(Orphans())) == {}

    run(scenario)


def test_a_bookie_that_may_hold_the_entries_keeps_the_record() -> None:
    async def scenario(world: World) -> None:
        orphan = await world.write(count=10)
        named = world.record(orphan).bookies
        last, others = named[-1], named[:-1]
        for bookie in others:
            await world.forget(bookie, orphan)
        assert (await found_by(world)).records == {}  # one has them
        world.kill(last)
        await asyncio.sleep(15)
        found = await found_by(world)
        assert (found.records, list(found.unknown)) == ({}, [orphan])

    run(scenario)


def test_marks_that_cannot_be_read_prolong_the_wait() -> None:
    async def scenario(world: World) -> None:
        search, driver = search_of(world), world.user.driver
        orphan = await world.write(count=10)
        await lose(world, orphan)
        await world.act(driver.create_record(NAME, b"{"))
        assert await world.act(search.marks()) == {}
        marks = await world.act(search.mark(await found_by(world)))
        assert list(marks) == [orphan]
        assert f'"format": {FORMAT}'.encode() in (await world.act(driver.read_record(NAME)))[0]

    run(scenario)
