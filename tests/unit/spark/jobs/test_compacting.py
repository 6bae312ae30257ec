"""Tasks and the swap of the job that compacts a log, over fake bookies on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from tests.fakes.logs import payloads
from tests.fakes.world import World, play

from bookies.client.log import Log
from bookies.client.log.log import compactor_of
from bookies.encoding.envelope import Record, parse_record
from bookies.errors import LogInUse
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.compaction import Rewritten
from bookies.protocol.log.kept import pack_kept
from bookies.protocol.log.log_model import Extent
from bookies.spark.jobs import compacting
from bookies.spark.jobs.compacting import Rewrite, is_written, outcomes_of
from bookies.spark.jobs.shared import common
from bookies.spark.jobs.shared.common import JobConfig, Outcome, Tools
from bookies.spark.jobs.shared.packing import Item


def work_on(extent: Extent, *goes: int) -> Item:
    return compacting.item_of(extent, len(goes), pack_kept(goes))


async def written(log: Log) -> list[Extent]:
    """Append to three ledgers, each with the key k and one of its own; return the closed extents."""
    await log.create(record_format="envelope", compaction="key")
    async with log.lead() as writer:
        for number in range(3):
            await writer.append_many([Record(b"%d" % number, b"k"), Record(b"own", b"own%d" % number)])
            await writer.roll()
    return [*(await (await compactor_of(log)).basis()).extents][:3]


def test_extents_are_written_without_what_goes_and_swapped_in() -> None:
    async def main(world: World) -> None:
        client = await world.client()
        log = client.log("orders", password=b"secret")
        extents = await written(log)
        tools, by_number = Tools(client, {}, None), {extent.seq: extent for extent in extents}
        items = [work_on(extent, 0) for extent in extents[:2]]
        dry = await Rewrite("orders", by_number, is_dry=True).carry_out(tools, items[0])
        assert dry == Outcome(common.DONE, {"removed": 1, "entries": 1})
        results = {item.name: await Rewrite("orders", by_number, is_dry=False).carry_out(tools, item) for item in items}
        rows, rewritten = outcomes_of(items, by_number, results)
        assert [row[:4] for row in rows] == [(extent.seq, extent.ledger_id, common.DONE, 1) for extent in extents[:2]]
        before = await payloads(log)
        await compacting._swap(client, "orders", rewritten)
        assert await payloads(log) == [before[1], before[3], *before[4:]]
        assert [extent.kept for extent in (await log.manifest()).extents[:3]] == [1, 1, None]
        late = await Rewrite("orders", by_number, is_dry=False).carry_out(tools, items[0])
        assert late == Outcome(common.FAILED, {"error": "it was truncated or compacted meanwhile: repeat the run"})
        assert late.outcome in common.UNFINISHED

    play(main, 3)


def test_a_repeated_run_swaps_in_only_ledgers_that_it_has_written() -> None:
    """In a cluster that was restored, the id may be of another ledger, or of one that was restored in part."""

    async def main(world: World) -> None:
        client = await world.client()
        extent, other, _ = await written(client.log("orders"))
        work = Rewrite("orders", {extent.seq: extent, other.seq: other}, is_dry=False)
        first, second = [
            (await work.carry_out(Tools(client, {}, None), work_on(one, 0))).detail for one in (extent, other)
        ]
        assert await is_written(client, "orders", first)
        assert await is_written(client, "orders", second)
        foreign = [
            first | {"ledger": second["ledger"]},
            first | {"ledger": extent.ledger_id},
            first | {"ledger": 12345},
            first | {"last": first["last"] + 1},
            first | {"length": first["length"] + 1},
            {name: first[name] for name in ("ledger", "entries", "bytes", "removed")},  # of an earlier version
            {"removed": 1, "entries": 1},  # of a dry run
        ]
        assert not any([await is_written(client, "orders", detail) for detail in foreign])
        assert not await is_written(client, "returns", first)

    play(main, 3)


def test_a_compacted_extent_that_was_truncated_in_part_is_compacted_again() -> None:
    async def main(world: World) -> None:
        client = await world.client()
        log = client.log("orders")
        await log.create(record_format="envelope", compaction="key")
        async with log.lead() as writer:
            await writer.append_many([Record(b"%d" % number, b"k%d" % (number % 5)) for number in range(6)])
            await writer.roll()
            await writer.append(Record(b"new", b"k4"))
        await log.compact()
        ledger_id = (await log.manifest()).extents[0].ledger_id
        await log.truncate(Position(ledger_id, 3))
        [extent, *_] = (await (await compactor_of(log)).basis()).extents
        assert (extent.first, extent.last, extent.kept) == (3, 5, 4)
        before = await payloads(log)
        item = work_on(extent, 3)
        result = await Rewrite("orders", {extent.seq: extent}, is_dry=False).carry_out(Tools(client, {}, None), item)
        _, rewritten = outcomes_of([item], {extent.seq: extent}, {item.name: result})
        await compacting._swap(client, "orders", rewritten)
        assert await payloads(log) == before[1:]

    play(main, 3)


def test_a_ledger_that_a_repeated_run_lists_is_not_deleted_by_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was taken for dead goes on while its repetition uses the ledgers that it has written."""

    async def main(world: World) -> None:
        client = await world.client()
        log = client.log("orders")
        extents = await written(log)
        tools, by_number = Tools(client, {}, None), {extent.seq: extent for extent in extents}
        item = work_on(extents[0], 0)
        result = await Rewrite("orders", by_number, is_dry=False).carry_out(tools, item)
        _, rewritten = outcomes_of([item], by_number, {item.name: result})
        first, again = await compactor_of(log), await compactor_of(log)
        before = await payloads(log)

        async def overtaken(_: Sequence[Rewritten]) -> Manifest:
            seen = first._parts.records.current
            await again.swap(rewritten)
            return seen

        monkeypatch.setattr(first, "_swap", overtaken)
        with pytest.raises(LogInUse):
            await first.swap(rewritten)
        assert await payloads(log) == before[1:]

    play(main, 3)


def test_ledgers_after_one_that_was_not_written_are_not_swapped_in() -> None:
    extents = {seq: Extent(seq, 10 + seq, last=9, rows=10, bytes=100) for seq in range(3)}
    items = [work_on(extent, 4, 5) for extent in extents.values()]
    done = Outcome(common.DONE, {"ledger": 20, "entries": 8, "bytes": 80, "removed": 2})
    results = {items[0].name: done, items[1].name: Outcome(common.FAILED, {"error": "full"}), items[2].name: done}
    rows, rewritten = outcomes_of(items, extents, results)
    assert [(row[2], row[6]) for row in rows] == [
        (common.DONE, ""),
        (common.FAILED, "full"),
        (common.WAITING, "an older ledger was not rewritten: repeat the run"),
    ]
    report = compacting._report(JobConfig("", "may", common.DRY_RUN), rows, [*extents.values()])
    assert report.lead == "would remove 2 of 30 entries, in 1 of 3 ledgers; a dry run, nothing was changed"
    assert not report.is_good
    # A repeated run writes an extent again if other entries go.
    assert len({work_on(extents[0], *goes).name for goes in ((4, 5), (4, 6), (4,), (4, 5))}) == 3
    assert [(change.basis.seq, change.ledger_id, change.kept, change.size) for change in rewritten] == [(0, 20, 8, 80)]


def test_a_rate_limits_reading_and_writing() -> None:
    async def main(world: World) -> None:
        client = await world.client()
        log = client.log("orders")
        [extent, *_] = await written(log)
        times = []
        for rate in (None, 20.0):
            begun = asyncio.get_running_loop().time()
            work = Rewrite("orders", {extent.seq: extent}, is_dry=False)
            await work.carry_out(Tools(client, {}, rate), work_on(extent, 0))
            times.append(asyncio.get_running_loop().time() - begun)
        size = extent.bytes or 0
        # Three bookies share what is read; each gets a copy of what is written, about half of it.
        assert times[1] - times[0] >= (size / 3 + size / 2) / 20.0 - 1
        assert times[0] < 1

    play(main, 3)


def test_records_that_a_scan_returns() -> None:
    async def main(world: World) -> None:
        client = await world.client()
        log = client.log("orders")
        await log.create(record_format="envelope", compaction="key")
        async with log.lead() as writer:
            await writer.append(Record(None, b"k"))
            await writer.append(Record(b"", None))
            await writer.append(Record(b"v", None), producer="p", sequence=1)
        async with log.open() as reader:
            [batch] = [batch async for batch in reader.read().batches()]
        assert [*map(parse_record, batch.payloads())]
        extent = Extent(7, batch.ledger_id)
        assert compacting._columns(extent, 100, batch).to_pylist() == [
            {"extent": 7, "entry": 0, "ordinal": 100, "key": b"k", "is_tombstone": True, "writer": None},
            {"extent": 7, "entry": 2, "ordinal": 102, "key": None, "is_tombstone": False, "writer": "p"},
        ]
        copied = compacting._columns(replace(extent, txn="load:1"), 100, batch)
        assert copied.column("entry").to_pylist() == [0], "a number that was copied from another log keeps no entry"
        damaged = batch.slice(1, 1)
        assert compacting._columns(extent, 100, damaged).num_rows == 0

    play(main, 3)
