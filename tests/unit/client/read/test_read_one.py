"""Entries read by themselves: whom they are asked of, and what happens when the short way does not lead there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from tests.fakes.world import World, in_world
from tests.unit.client.read.test_fetch import check, forget_requests, old, payload, reads_of, slow_reads, write

from bookies.client.base import Entry
from bookies.client.client import Client
from bookies.client.read.fetch import RangeFetch
from bookies.errors import BookieUnreachable, DigestMismatch
from bookies.model import BookieId
from bookies.wire.messages import ReadRequest, Request, Response


def asked(world: World) -> dict[BookieId, list[int]]:
    """The entries that each bookie was asked for since this was called last."""
    found = {name: [request.entry_id for request in reads_of(bookie)] for name, bookie in world.bookies.items()}
    forget_requests(world)
    return {name: entry_ids for name, entry_ids in found.items() if entry_ids}


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize(("ensemble", "write_quorum"), [(3, 3), (3, 2), (1, 1)])
@in_world()
async def test_single_reads_are_spread_over_the_ensemble(
    world: World, wire: str, ensemble: int, write_quorum: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is one small request, of the same bookie every time, and nothing is planned for it."""
    store = await world.client(wire=wire)
    writer = await write(store, 30, ensemble=ensemble, write_quorum=write_quorum, ack_quorum=write_quorum)
    names = writer.metadata.last_ensemble
    ledger = await store.open(writer.ledger_id)
    forget_requests(world)
    monkeypatch.delattr(RangeFetch, "next_batch")
    entry_ids = [7, 3, 29, 0, 7, 13, 14, 15, 16]
    for entry_id in entry_ids:
        check([await ledger.read_entry(entry_id)], entry_id, entry_id)
    assert all(isinstance(read, ReadRequest) for bookie in world.bookies.values() for read in reads_of(bookie))
    expected: dict[BookieId, list[int]] = {}
    for entry_id in entry_ids:
        expected.setdefault(names[entry_id % ensemble], []).append(entry_id)
    assert asked(world) == expected


@in_world()
async def test_short_ranges_are_spread_over_the_ensemble(world: World) -> None:
    store = await world.client()
    writer = await write(store, 30)
    ledger = await store.open(writer.ledger_id)
    forget_requests(world)
    for first in (0, 4, 8):
        check([entry async for entry in ledger.read(first, first + 1)], first, first + 1)
    assert asked(world) == dict(zip(writer.metadata.last_ensemble, ([0], [4], [8]), strict=True))


@in_world()
async def test_a_sticky_reader_reads_single_entries_from_its_bookie(world: World) -> None:
    store = await world.client(sticky_reads=True)
    writer = await write(store, 30)
    ledger = await store.open(writer.ledger_id)
    forget_requests(world)
    for entry_id in range(9):
        await ledger.read_entry(entry_id)
    ((preferred, entry_ids),) = asked(world).items()
    assert entry_ids == list(range(9))
    await world.take_down(preferred)
    for entry_id in range(9):
        check([await ledger.read_entry(entry_id)], entry_id, entry_id)
    (following,) = {*asked(world)} - {preferred}
    names = writer.metadata.last_ensemble
    assert following == names[(names.index(preferred) + 1) % 3]


@in_world()
async def test_a_bookie_that_has_failed_lately_is_passed_over(world: World) -> None:
    store = await world.client()
    writer = await write(store, 30)
    ledger = await store.open(writer.ledger_id)
    forget_requests(world)
    names = writer.metadata.last_ensemble
    store._pool.suspect(names[1])
    check([await ledger.read_entry(4)], 4, 4)
    assert asked(world).keys() <= {names[0], names[2]}


@pytest.mark.parametrize("wire", ["v2", "v3"])
@in_world()
async def test_a_late_bookie_gets_company_after_its_time_and_once(world: World, wire: str) -> None:
    store = await world.client(wire=wire, hedge_delay_min_ms=20, hedge_delay_max_ms=20)
    writer = await write(store, 30)
    ledger = await store.open(writer.ledger_id)
    names = writer.metadata.last_ensemble
    world.bookies[names[1]].delay_s = slow_reads(2.0)
    forget_requests(world)
    begun = world.loop.time()
    check([await ledger.read_entry(4)], 4, 4)
    assert 0.02 <= world.loop.time() - begun < 0.05
    assert asked(world) == {names[1]: [4], names[2]: [4]}


@in_world()
async def test_without_hedging_the_first_bookie_is_waited_for(world: World) -> None:
    store = await world.client(hedged_reads=False)
    writer = await write(store, 30)
    ledger = await store.open(writer.ledger_id)
    names = writer.metadata.last_ensemble
    world.bookies[names[1]].delay_s = slow_reads(2.0)
    forget_requests(world)
    begun = world.loop.time()
    check([await ledger.read_entry(4)], 4, 4)
    assert 2.0 <= world.loop.time() - begun < 2.1
    assert asked(world) == {names[1]: [4]}


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("trouble", ["damaged", "missing", "gone"])
@pytest.mark.parametrize("write_quorum", [3, 2])
@in_world()
async def test_what_the_first_replica_cannot_give_comes_from_the_next(
    world: World, wire: str, trouble: str, write_quorum: int
) -> None:
    """Each replica is asked once; when all are as bad, the error is that of an ordinary read."""
    store = await world.client(wire=wire)
    writer = await write(store, 30, write_quorum=write_quorum, ack_quorum=2)
    ledger = await store.open(writer.ledger_id)
    names = [writer.metadata.last_ensemble[(4 + offset) % 3] for offset in range(write_quorum)]
    forget_requests(world)
    for bad in names[:-1]:
        if trouble == "damaged":
            world.bookies[bad].corrupt(writer.ledger_id, 4)
        elif trouble == "missing":
            del world.bookies[bad].ledgers[writer.ledger_id].entries[4]
        else:
            await world.take_down(bad)
    check([await ledger.read_entry(4)], 4, 4)
    counts = Counter({name: len(entry_ids) for name, entry_ids in asked(world).items()})
    assert counts[names[-1]] == 1
    assert max(counts.values()) == 1
    if trouble == "damaged":
        world.bookies[names[-1]].corrupt(writer.ledger_id, 4)
        with pytest.raises(DigestMismatch):
            await ledger.read_entry(4)
        assert asked(world) == {name: [4] for name in names}


@in_world()
async def test_a_read_that_is_given_up_leaves_nothing_behind(world: World) -> None:
    store = await world.client()
    writer = await write(store, 30)
    ledger = await store.open(writer.ledger_id)
    names = writer.metadata.last_ensemble
    world.bookies[names[1]].delay_s = slow_reads(0.05)
    for _ in range(3):
        with pytest.raises(TimeoutError, match=r"entry 4: not done within 0\.01 s"):
            await ledger.read_entry(4, timeout=0.01)
    check([await ledger.read_entry(4)], 4, 4)
    await asyncio.sleep(1)
    assert (await ledger.read_entry(4)).payload == payload(4)


# -- what happens meanwhile ----------------------------------------------------------------------------------------


async def move(world: World, store: Client, ledger_id: int, source: BookieId, target: BookieId) -> None:
    """What a repair does to a ledger of one bookie: its entries and its record are elsewhere."""
    world.bookies[target].ledgers[ledger_id] = world.bookies[source].ledgers.pop(ledger_id)
    found = await store._driver.read_ledger(ledger_id)
    await store._driver.write_ledger(found.metadata.replace(ensembles=((0, (target,)),)), found.version)


def late_for(entry_id: int) -> Callable[[Request], float]:
    return lambda request: 0.1 if isinstance(request, ReadRequest) and request.entry_id == entry_id else 0.0


@pytest.mark.parametrize("wire", ["v2", "v3"])
@in_world()
async def test_an_answer_of_a_former_replica_does_not_count_for_its_successor(world: World, wire: str) -> None:
    """Another read of the handle has had the record read anew while this one waited."""
    store = await world.client(wire=wire)
    writer = await write(store, 30, ensemble=1)
    (source,) = writer.metadata.last_ensemble
    target = next(name for name in world.bookies if name != source)
    ledger = await store.open(writer.ledger_id)
    await move(world, store, writer.ledger_id, source, target)
    world.bookies[source].delay_s = late_for(4)
    check(await asyncio.gather(ledger.read_entry(3), ledger.read_entry(4)), 3, 4)


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("ensemble", [1, 3])
@in_world()
async def test_connections_that_turn_out_to_be_dead_are_opened_again(world: World, wire: str, ensemble: int) -> None:
    store = await world.client(wire=wire)
    writer = await write(store, 30, ensemble=ensemble)
    ledger = await store.open(writer.ledger_id)
    dead = {*world.bookies}

    def interceptor(name: BookieId) -> Callable[[Request], Sequence[Response] | None]:
        def drop(request: Request) -> Sequence[Response] | None:
            if not isinstance(request, ReadRequest) or name not in dead:
                return None
            dead.discard(name)
            world.bookies[name].drop_connections()
            return []

        return drop

    for name, bookie in world.bookies.items():
        bookie.intercept = interceptor(name)
    check([await ledger.read_entry(4)], 4, 4)
    for name in writer.metadata.last_ensemble:
        await world.take_down(name)
    with pytest.raises(BookieUnreachable):
        await ledger.read_entry(4)


@pytest.mark.parametrize("ensemble", [1, 3])
@in_world()
async def test_single_reads_survive_a_batch_read_that_old_bookies_do_not_know(world: World, ensemble: int) -> None:
    store = await world.client()
    writer = await write(store, 30, ensemble=ensemble)
    for bookie in world.bookies.values():
        old(bookie)
        bookie.delay_s = slow_reads(0.01)
    ledger = await store.open(writer.ledger_id)

    async def scan() -> list[Entry]:
        return [entry async for entry in ledger.read()]

    single = asyncio.gather(*(ledger.read_entry(entry_id) for entry_id in range(30)))
    found, scanned = await asyncio.gather(single, scan())
    check(found, 0, 29)
    check(scanned, 0, 29)


@in_world()
async def test_who_gives_up_on_the_only_replica_may_ask_again_at_once(world: World) -> None:
    """The answer that nobody waits for is not held against the bookie, nor in the way of the next."""
    store = await world.client()
    writer = await write(store, 30, ensemble=1)
    (name,) = writer.metadata.last_ensemble
    ledger = await store.open(writer.ledger_id)
    silence = iter([True])
    world.bookies[name].intercept = lambda request: [] if next(silence, False) else None
    with pytest.raises(TimeoutError):
        await ledger.read_entry(4, timeout=0.01)
    check([await ledger.read_entry(4)], 4, 4)
    await asyncio.sleep(60)
    assert not store._pool.is_suspect(name)
