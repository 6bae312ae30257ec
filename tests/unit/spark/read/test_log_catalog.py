"""Logs as extents: those of DistributedLog while they grow, are cut, and lose their writer; ours when rewritten."""

from __future__ import annotations

import pytest
from tests.fakes.distributedlog import Place, in_namespace
from tests.fakes.logs import in_log
from tests.fakes.world import World

from bookies.client.client import Client
from bookies.client.log import Log
from bookies.distributedlog import Dlog, Namespace
from bookies.distributedlog.model.segment_list import started
from bookies.distributedlog.parts import recover
from bookies.distributedlog.store import Ownership
from bookies.encoding.envelope import Record
from bookies.errors import ReadFailed
from bookies.spark.base import plan
from bookies.spark.base.extents import Extents
from bookies.spark.base.selection import Selection
from bookies.spark.read.log_catalog import LogCatalog, cost_of


async def catalog_of(place: Place) -> tuple[LogCatalog, Namespace]:
    namespace = await place.namespace()
    return LogCatalog(namespace.client, b"", namespace=namespace), namespace


async def extents_of(catalog: LogCatalog) -> Extents:
    return (await catalog.extents(["orders"]))["orders"]


def test_segments_are_extents_under_their_numbers() -> None:
    async def act(place: Place) -> None:
        catalog, namespace = await catalog_of(place)
        log = namespace.log("orders")
        await log.create()
        empty = await extents_of(catalog)
        assert (empty.pieces, empty.beginning, empty.end) == ((), (1, 0), (1, 0))
        async with log.lead() as writer:
            await writer.append(b"a")
            await writer.roll()
            await writer.append_many([b"b", b"c"])
            await writer.flush()
            growing = await extents_of(catalog)
            assert [(piece.seq, piece.is_complete) for piece in growing.pieces] == [(1, True), (2, False)]
            assert (growing.beginning, growing.end[0], growing.has_numbers) == ((1, 0), 2, False)
            assert growing.missing(empty.end, growing.end) is None
        ended = await extents_of(catalog)
        assert [piece.is_complete for piece in ended.pieces] == [True, True]
        assert ended.end == (3, 0)
        ranges = await catalog.ranges(ended, ended.pieces, await catalog.sizes(ended.pieces), 1 << 20)
        assert [(one.log, one.seq, one.row, one.segment and one.segment.lssn) for one in ranges] == [
            ("orders", 1, None, 1),
            ("orders", 2, None, 2),
        ]
        assert await catalog.keys(Selection(pattern="ord.*")) == ["orders"]
        await catalog.close()

    in_namespace(act, has_zookeeper=False)


def test_truncated_segments_are_left_out() -> None:
    async def act(place: Place) -> None:
        catalog, namespace = await catalog_of(place)
        log = namespace.log("orders")
        async with log.lead() as writer:
            await writer.append(b"a")
            await writer.roll()
            await writer.append(b"b")
            await writer.flush()
            position = await writer.append(b"c")
        before = await extents_of(catalog)
        await log.truncate(position)
        after = await extents_of(catalog)
        assert [(piece.seq, piece.first) for piece in after.pieces] == [(2, position.entry)]
        missing = after.missing(before.beginning, before.end)
        assert missing is not None
        assert (missing.until, missing.rows) == ((2, position.entry), None)
        await catalog.close()

    in_namespace(act)


async def _abandoned(place: Place, log: Dlog) -> int:
    """Start a segment as a writer does that dies before its first record."""
    ownership = Ownership(log._parts.runtime, log._parts.store)
    await ownership.load()
    ledger = await log._parts.client.create(ensemble=3, digest="crc32")
    await ownership.reserve(ledger.ledger_id)
    await ownership.start(started(await log.segments(), ownership.highest, 1, ledger.ledger_id, 1))
    await ledger.close()
    return ledger.ledger_id


def test_the_number_of_a_segment_that_stayed_empty_is_read_again() -> None:
    """It gets another ledger: a stream that went past it would lose its records."""

    async def act(place: Place) -> None:
        catalog, namespace = await catalog_of(place)
        log = namespace.log("orders")
        await log.create()
        ledger_id = await _abandoned(place, log)
        waiting = await extents_of(catalog)
        assert (waiting.end, [piece.is_complete for piece in waiting.pieces]) == ((1, 0), [False])
        await (await namespace.client.recover(ledger_id)).close()  # sealed, and still listed
        sealed = await extents_of(catalog)
        assert (sealed.end, [piece.is_complete for piece in sealed.pieces]) == ((1, 0), [False])
        await namespace.client.delete(ledger_id)
        deleted = await extents_of(catalog)
        assert deleted.end == (1, 0)
        ownership = Ownership(log._parts.runtime, log._parts.store)
        await ownership.load()
        await recover(log._parts, ownership)
        async with log.lead() as writer:
            await writer.append(b"first")
        again = await extents_of(catalog)
        assert again.missing(waiting.end, again.end) is None
        assert again.count(waiting.end, again.end) > 0
        await catalog.close()

    in_namespace(act, has_zookeeper=False)


def test_a_compacted_extent_is_planned_by_what_is_left_of_it() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            for first in (0, 100, 200):
                await writer.append_many([Record(b"v" * 100, b"%d" % (n % 25)) for n in range(first, first + 100)])
                await writer.append(Record(b"v" * 100, b"own%d" % first))
                await writer.roll()
        catalog = LogCatalog(client, b"")
        before = await extents_of(catalog)
        assert (await log.compact()).removed == 275
        runs = list(before.runs(before.beginning, before.end))
        with pytest.raises(ReadFailed, match="log orders was truncated or compacted while the query was planned"):
            await catalog.ranges(before, runs, await catalog.sizes(runs), 1 << 20)
        after = await extents_of(catalog)
        assert (after.beginning, after.end, after.rows) == (before.beginning, before.end, 303)
        runs = list(after.runs((0, 50), after.end))
        curves = await catalog.sizes(runs)
        ranges = await catalog.ranges(after, runs, curves, 1 << 20)
        assert [(one.ledger_id, one.metadata.ledger_id, one.first, one.last, one.kept, one.row) for one in ranges] == [
            (piece.ledger_id, piece.storage, first, 100, kept, row)
            for piece, first, kept, row in zip(after.pieces, (50, 0, 0), (1, 1, 26), (50, 101, 202), strict=False)
        ]
        costs = [cost_of(run, curve) for run, curve in zip(runs, curves, strict=True)]
        assert costs == [one.size for one in ranges]
        assert 26 * 100 < costs[2] < 26 * (100 + 30 + plan.ENTRY_OVERHEAD)
        parts = await catalog.ranges(after, runs[2:], curves[2:], costs[2] // 3)
        assert len(parts) == 4
        assert [one.last + 1 for one in parts[:-1]] == [one.first for one in parts[1:]]
        last = await catalog.entry_within(runs[2], curves[2][-1][1] // 2)
        assert 45 <= last <= 55
        await catalog.close()

    in_log(act, "envelope", compaction="key")


@pytest.mark.parametrize("is_compacted", [False, True])
def test_extents_that_share_a_ledger_are_planned_by_their_part_of_it(is_compacted: bool) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            for first in (0, 30, 60):
                await writer.append_many([Record(b"%d" % n, b"%d" % (n % 20)) for n in range(first, first + 30)])
                await writer.roll()
        if is_compacted:
            await log.compact()
        catalog = LogCatalog(client, b"")
        before = await extents_of(catalog)
        snapshot = before.snapshot()
        runs = list(before.runs((0, 25), before.end))
        held = [(await catalog.held(run))[1] for run in runs]
        entries = [[await catalog.payload(run, one) for one in (await catalog.held(run))[0]] for run in runs]
        counts = [await catalog.count(run) for run in runs]
        await log.roll_up()
        after = await extents_of(catalog)
        assert after.within(snapshot) == (before.beginning, before.end)
        assert (after.beginning, after.end, after.rows) == (before.beginning, before.end, before.rows)
        runs = list(after.runs((0, 25), after.end))
        assert len({run.storage for run in runs}) == 1
        assert [list((await catalog.held(run))[1]) for run in runs] == [list(ids) for ids in held]
        assert [[await catalog.payload(run, one) for one in (await catalog.held(run))[0]] for run in runs] == entries
        assert [await catalog.count(run) for run in runs] == counts
        ranges = await catalog.ranges(after, runs, await catalog.sizes(runs), 1 << 20)
        shifts = [extent.shift for extent in (await log.manifest()).extents if extent.kept != 0][: len(ranges)]
        assert [one.shift for one in ranges] == shifts
        if not is_compacted:
            assert [(one.ledger_id, one.first, one.last, one.shift) for one in ranges] == [
                (piece.ledger_id, first, 29, shift)
                for piece, first, shift in zip(after.pieces, (25, 0, 0), (0, 30, 60), strict=False)
            ]
        await catalog.close()

    in_log(act, "envelope", compaction="key")
