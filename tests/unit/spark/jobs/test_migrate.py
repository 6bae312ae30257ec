"""How the list of a migrated log is swapped in the target: fake stores, no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace
from tests.fakes.world import World, play

from bookies.client.client import Client
from bookies.errors import BookieUnreachable, BookKeeperError, LedgerNotFound, NotEnoughBookies, ReplicationFailed
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.interface.driver import Step
from bookies.model import DigestType
from bookies.protocol.log import Manifest, log_segments, migration
from bookies.protocol.log.log_model import Extent
from bookies.protocol.log.migration import moved_to, origin_of
from bookies.spark.jobs.migrate import _naming, _swapped

CLUSTER, HERE = "old", "file:/new"


async def copies(target: Client, count: int) -> tuple[Manifest, dict[int, int]]:
    """A log of the source, and its ledgers' copies in the target: number there -> number here."""
    ids = {}
    for number in range(500, 500 + count):
        labels = {"migrated.from": origin_of(CLUSTER, number), "sink.log": "orders", "sink.created": "1"}
        async with target.create(ensemble=1, write_quorum=1, ack_quorum=1, labels=labels) as writer:
            await writer.append(b"%d" % number)
        ids[number] = writer.ledger_id
    extents = tuple(Extent(seq, ledger_id, 0, 0, 1, 3) for seq, ledger_id in enumerate(ids))
    return Manifest("tok", 1, 1, 1, 1, DigestType.CRC32C, next_seq=count, extents=extents), ids


async def follow(target: Client, source: Manifest, ids: Mapping[int, int], *, is_cut_over: bool = False) -> Manifest:
    made = await _swapped(target, CLUSTER, "orders", (source, source), ids, HERE if is_cut_over else None)
    assert made == await target.log("orders").manifest()
    return made


async def read(target: Client) -> list[bytes]:
    async with target.log("orders").open() as reader:
        return [entry.payload async for entry in reader.read()]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_list_never_names_a_copy_that_was_deleted(is_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`is_late`: it is deleted between the look at its record and the swap."""

    async def main(world: World) -> None:
        target = await world.client()
        source, ids = await copies(target, 3)
        held = replace(source, extra={"held": moved_to(HERE)})
        await follow(target, replace(source, extents=source.extents[:1]), ids)
        transact = MemoryDriver.transact

        async def slow(driver: MemoryDriver, steps: Sequence[Step]) -> int:
            monkeypatch.setattr(MemoryDriver, "transact", transact)
            await target.delete(ids[501])
            return await transact(driver, steps)

        if is_late:
            monkeypatch.setattr(MemoryDriver, "transact", slow)
        else:
            await target.delete(ids[501])
        with pytest.raises(LedgerNotFound, match=f"ledger {ids[501]}"):
            await follow(target, held, ids, is_cut_over=True)
        assert await read(target) == [b"500"]
        assert (await target.log("orders").manifest()).held  # nobody appends behind the gap

    play(main, bookie_count=1)


def test_the_reaper_leaves_copies_to_the_migration() -> None:
    async def main(world: World) -> None:
        target = await world.client()
        source, ids = await copies(target, 2)
        reaped = [each async for each in target.log("orders").reap(orphan_grace=0, replay_grace=0)]
        assert [(each.ledger_id, each.outcome) for each in reaped] == [(each, "migrated") for each in ids.values()]
        await follow(target, source, ids)
        assert await read(target) == [b"500", b"501"]

    play(main, bookie_count=1)


def test_what_a_later_run_could_not_read_stays_listed_and_is_never_deleted() -> None:
    async def main(world: World) -> None:
        target = await world.client()
        source, ids = await copies(target, 3)
        source = replace(source, retention={"age_ms": 1})
        await follow(target, source, ids)
        for failed in (500, 501, 502):
            await follow(target, source, {number: copy for number, copy in ids.items() if number != failed})
        assert (await follow(target, source, {})).deleting == ()
        await target.log("orders").apply_retention()
        assert await read(target) == [b"500", b"501", b"502"]
        truncated = replace(source, extents=source.extents[1:], rows_truncated=1)
        assert (await follow(target, truncated, {})).deleting == (ids[500],)
        assert await read(target) == [b"501", b"502"]

    play(main, bookie_count=1)


def test_a_long_list_comes_in_parts_with_segments_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "SWAP_MAX", 4)
    monkeypatch.setattr(log_segments, "HEAD_EXTENTS_MAX", 6)
    monkeypatch.setattr(log_segments, "HEAD_EXTENTS_KEPT", 3)

    async def main(world: World) -> None:
        target = await world.client()
        source, ids = await copies(target, 25)
        stored = log_segments.stored("orders", source).manifest  # its segments are in the source's store
        assert stored.segments
        made = await follow(target, replace(stored, extents=stored.extents[:20]), ids)
        assert made.segments
        assert await read(target) == [b"%d" % number for number in range(500, 520)]
        held = replace(stored, extra={"held": moved_to(HERE)})
        assert not (await follow(target, held, ids, is_cut_over=True)).held
        assert await read(target) == [b"%d" % number for number in range(500, 525)]

    play(main, bookie_count=1)


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (NotEnoughBookies("needs 3"), "target cluster: needs 3"),
        (BookieUnreachable("is down", bookie="b1"), "target cluster: is down (bookie b1)"),
        (ReplicationFailed("the source's entries differ"), "the source's entries differ"),
        (ReplicationFailed("ledger 7 of the target has 3 entries"), "ledger 7 of the target has 3 entries"),
        (LedgerNotFound("it was deleted"), "it was deleted"),
    ],
)
def test_errors_of_bookies_name_the_cluster_once(error: BookKeeperError, named: str) -> None:
    with pytest.raises(type(error)) as caught, _naming("target"):
        raise error
    assert str(caught.value) == named
    with pytest.raises(BookieUnreachable, match="source cluster: is down"), _naming("target"), _naming("source"):
        raise BookieUnreachable("is down")
