"""Copying a ledger's entries to other bookies under its lock, over fake bookies that speak the wire protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.fakes.world import World, in_world
from tests.unit.client.repair.test_administration import assert_replicated, remove, written

from bookies.client.client import Client
from bookies.client.repair import Administration
from bookies.client.repair.replication import CopyProgress, Move, OnProgress
from bookies.errors import LedgerLocked, ReplicationFailed, SessionExpired
from bookies.model import BookieId, LedgerMetadata


def moving(
    lost: BookieId, ledger_id: int, progress: OnProgress | None = None
) -> dict[str, Callable[[Administration], Coroutine[Any, Any, Any]]]:
    """All that copies to bookies that the record does not name yet, slowly."""

    async def fragment(administration: Administration) -> None:
        found = (await administration.check_ledger(ledger_id)).fragments[0].fragment
        await administration.replicate_fragment(
            found, [found.ensemble.index(lost)], bytes_per_s=100_000, progress=progress
        )

    return {
        "fragment": fragment,
        "ledger": lambda administration: administration.repair_ledger(
            ledger_id, lost=[lost], bytes_per_s=100_000, progress=progress
        ),
        "bookie": lambda administration: administration.recover_bookies([lost], bytes_per_s=100_000, progress=progress),
        "decommission": lambda administration: administration.decommission(
            lost, bytes_per_s=100_000, progress=progress
        ),
    }


async def bereft(world: World) -> tuple[Client, LedgerMetadata, BookieId]:
    """A new client, the record of a ledger, and a bookie of it that is gone for good."""
    store = await world.client()
    record = await store.metadata(await written(store, 200, size=1000))
    lost = record.last_ensemble[0]
    await remove(world, lost)
    return await world.client(), record, lost


@pytest.mark.parametrize("kind", ["fragment", "ledger", "bookie", "decommission"])
@in_world(5)
async def test_a_copy_is_made_under_the_ledgers_lock(world: World, kind: str) -> None:
    """A bookie deletes copies that no record names under this lock: without it, it deletes them before the swap."""
    store, record, lost = await bereft(world)
    ledger_id = record.ledger_id
    collector = world._drivers[0].recovery
    copied = asyncio.Event()
    operation = moving(lost, ledger_id, lambda news: copied.set() if news.entries else None)[kind]
    task = asyncio.create_task(operation(store.administration(owner="someone")))
    await copied.wait()
    assert await collector.lock(ledger_id, "b9", needs_mark=False) is None
    assert await collector.locks() == {ledger_id: "someone"}
    assert await store.metadata(ledger_id) == record, "nothing is changed yet"
    await task
    assert_replicated(world, await store.metadata(ledger_id), 199)
    lock = await collector.lock(ledger_id, "b9", needs_mark=False)
    assert lock is not None, "it is given back"
    found = (await store.administration().check_ledger(ledger_id)).fragments[0].fragment
    with pytest.raises(LedgerLocked, match="b9 has its lock") as caught:
        await store.administration().replicate_fragment(found, [0])
    assert (caught.value.ledger_id, caught.value.owner, caught.value.retriable) == (ledger_id, "b9", True)
    await collector.unlock(lock)


@pytest.mark.parametrize("kind", ["fragment", "ledger", "bookie"])
@in_world(5)
async def test_a_lock_that_is_lost_ends_the_copy(world: World, kind: str) -> None:
    """Somebody else may have the ledger's lock by now, and may have deleted what was copied."""
    store, record, lost = await bereft(world)
    ledger_id = record.ledger_id
    copied = asyncio.Event()
    operation = moving(lost, ledger_id, lambda news: copied.set() if news.entries else None)[kind]
    task = asyncio.create_task(operation(store.administration()))
    await copied.wait()
    store._driver.expire()  # type: ignore[attr-defined]
    with pytest.raises((SessionExpired, ReplicationFailed), match="the ledger's lock with it"):
        await task
    assert await store.metadata(ledger_id) == record
    await moving(lost, ledger_id)[kind](store.administration())
    assert_replicated(world, await store.metadata(ledger_id), 199)


@in_world(5)
async def test_ledgers_that_are_locked_are_taken_up_again_at_the_end(world: World) -> None:
    store = await world.client()
    ledgers: list[int] = []
    while len(ledgers) < 3:
        ledger_id = await written(store, 20)
        if "b1" in (await store.metadata(ledger_id)).last_ensemble:
            ledgers.append(ledger_id)
    await remove(world, BookieId("b1"))
    other = world._drivers[0].recovery
    held = [await other.lock(each, f"worker {each}", needs_mark=False) for each in ledgers[:2]]
    reports: list[CopyProgress] = []
    administration = store.administration()
    waits = asyncio.Event()

    def note(news: CopyProgress) -> None:
        reports.append(news)
        if news.ledgers_done == 1 and len(news.locked) == 2:
            waits.set()

    task = asyncio.create_task(administration.recover_bookies([BookieId("b1")], progress=note))
    await waits.wait()
    assert reports[-1].locked == {each: f"worker {each}" for each in ledgers[:2]}
    assert held[0] is not None
    await other.unlock(held[0])
    with pytest.raises(ReplicationFailed, match="2 fragments of b1 were copied and 1 could not be") as caught:
        await task
    assert f"worker {ledgers[1]} has its lock" in str(caught.value)
    assert [type(each) for each in caught.value.causes] == [LedgerLocked]
    assert reports[-1].ledgers_done == 3
    for ledger_id in (ledgers[0], ledgers[2]):
        assert_replicated(world, await store.metadata(ledger_id), 19)
    assert "b1" in (await store.metadata(ledgers[1])).last_ensemble
    # A dry run needs no lock.
    assert len((await administration.recover_bookies([BookieId("b1")], dry_run=True)).moves) == 1


@in_world(5)
async def test_what_is_unknown_is_not_taken_for_lost(world: World) -> None:
    """A bookie that does not answer, or is not registered just now, may have all it ever had."""
    store = await world.client(read_timeout_ms=500, add_timeout_ms=500)
    administration = store.administration()
    ledger_id = await written(store, 30)
    record = await store.metadata(ledger_id)
    silent, lacking, _ = record.last_ensemble
    await world.take_down(silent)  # It stays registered, as one that hangs does.
    with pytest.raises(ReplicationFailed, match=f"what {silent} has .* is unknown .*--lost {silent}") as caught:
        await administration.repair_ledger(ledger_id)
    assert caught.value.moves == ()
    assert await store.metadata(ledger_id) == record
    with pytest.raises(ReplicationFailed, match=f"what {silent} has"):
        await administration.repair_ledger(ledger_id, lost=[silent])
    assert await store.metadata(ledger_id) == record
    # What is known to be missing is made good all the same.
    del world.bookies[lacking].ledgers[ledger_id].entries[0]
    with pytest.raises(ReplicationFailed, match="1 fragments would be repaired and 1 could not") as caught:
        await administration.repair_ledger(ledger_id, dry_run=True)
    assert 0 not in world.bookies[lacking].ledgers[ledger_id].entries
    with pytest.raises(ReplicationFailed, match="1 fragments were repaired and 1 could not be") as caught:
        await administration.repair_ledger(ledger_id)
    [move] = caught.value.moves
    assert isinstance(move, Move)
    assert [(each.old, each.new) for each in move.replacements] == [(lacking, lacking)]
    assert await store.metadata(ledger_id) == record
    # Away is not lost either; only if somebody says so.
    await remove(world, silent)
    with pytest.raises(ReplicationFailed, match="it is not registered"):
        await administration.repair_ledger(ledger_id)
    assert await store.metadata(ledger_id) == record
    [planned] = await administration.repair_ledger(ledger_id, lost=[silent], dry_run=True)
    assert await store.metadata(ledger_id) == record
    [move] = await administration.repair_ledger(ledger_id, lost=[silent])
    assert [each.old for each in move.replacements] == [each.old for each in planned.replacements] == [silent]
    assert_replicated(world, await store.metadata(ledger_id), 29)
