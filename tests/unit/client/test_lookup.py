"""Entries read by themselves: whom they are asked of, and what happens when the short way does not lead there."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.fakes.world import World, play
from tests.unit.client.test_fetch import check, forget_requests, payload, reads_of, slow_reads, write

from bookies.client.fetch import RangeFetch
from bookies.errors import DigestMismatch
from bookies.model import BookieId
from bookies.wire.messages import ReadRequest


def asked(world: World) -> dict[BookieId, list[int]]:
    """The entries that each bookie was asked for since this was called last."""
    found = {name: [request.entry_id for request in reads_of(bookie)] for name, bookie in world.bookies.items()}
    forget_requests(world)
    return {name: entry_ids for name, entry_ids in found.items() if entry_ids}


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize(("ensemble", "write_quorum"), [(3, 3), (3, 2), (1, 1)])
def test_single_reads_are_spread_over_the_ensemble(
    wire: str, ensemble: int, write_quorum: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is one small request, of the same bookie every time, and nothing is planned for it."""

    async def act(world: World) -> None:
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

    play(act)


def test_short_ranges_are_spread_over_the_ensemble() -> None:
    async def act(world: World) -> None:
        store = await world.client()
        writer = await write(store, 30)
        ledger = await store.open(writer.ledger_id)
        forget_requests(world)
        for first in (0, 4, 8):
            check([entry async for entry in ledger.read(first, first + 1)], first, first + 1)
        assert asked(world) == dict(zip(writer.metadata.last_ensemble, ([0], [4], [8]), strict=True))

    play(act)


def test_a_sticky_reader_reads_single_entries_from_its_bookie() -> None:
    async def act(world: World) -> None:
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

    play(act)


def test_a_bookie_that_has_failed_lately_is_passed_over() -> None:
    async def act(world: World) -> None:
        store = await world.client()
        writer = await write(store, 30)
        ledger = await store.open(writer.ledger_id)
        forget_requests(world)
        names = writer.metadata.last_ensemble
        store._pool.suspect(names[1])
        check([await ledger.read_entry(4)], 4, 4)
        assert asked(world).keys() <= {names[0], names[2]}

    play(act)


@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_a_late_bookie_gets_company_after_its_time_and_once(wire: str) -> None:
    async def act(world: World) -> None:
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

    play(act)


def test_without_hedging_the_first_bookie_is_waited_for() -> None:
    async def act(world: World) -> None:
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

    play(act)


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("trouble", ["damaged", "missing", "gone"])
@pytest.mark.parametrize("write_quorum", [3, 2])
def test_what_the_first_replica_cannot_give_comes_from_the_next(wire: str, trouble: str, write_quorum: int) -> None:
    """Each replica is asked once; when all are as bad, the error is that of an ordinary read."""

    async def act(world: World) -> None:
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

    play(act)


def test_a_read_that_is_given_up_leaves_nothing_behind() -> None:
    async def act(world: World) -> None:
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

    play(act)
