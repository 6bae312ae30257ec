"""Rows of a query counted from the metadata, and queries that plan their first entries only."""

from __future__ import annotations

import pytest
from tests.fakes.logs import fill, in_log
from tests.fakes.world import World

from bookies.client.client import Client
from bookies.client.log import Log
from bookies.encoding.envelope import Record
from bookies.errors import InvalidArgument, LogTruncated
from bookies.protocol.log import Position
from bookies.spark.base.settings import Settings, checked, settings
from bookies.spark.read import counts, planning
from bookies.spark.read.log_catalog import LogCatalog

Row = dict[str, object]


def chosen(**options: object) -> Settings:
    named = {"bookkeeper.metadataServiceUri": "memory:", "subscribe": "orders", **options}
    return settings(checked({name: str(value) for name, value in named.items()}), is_stream=False)


async def summary(client: Client, **options: object) -> Row:
    """The row about the log."""
    catalog, asked = LogCatalog(client, b""), chosen(**options)
    [stretch] = await planning.selected(catalog, asked)
    row = await counts.summary(catalog, asked, stretch)
    await catalog.close()
    return row


async def planned(client: Client, **options: object) -> list[tuple[int | None, int]]:
    """Number of the first row, and entries, of each range that a query reads."""
    catalog, asked = LogCatalog(client, b""), chosen(**options)
    parts = await planning.partitions(catalog, asked, await planning.selected(catalog, asked), {})
    await catalog.close()
    return [(one.row, one.count) for part in parts for one in part.ranges]


def test_rows_are_counted_over_ledgers_within_bounds() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 3, 0, 4)
        first, last = positions[0].ledger_id, positions[-1].ledger_id
        assert await summary(client) == {
            "log": "orders", "ledger_id": None, "rows": 7, "gaps": 0, "min_offset": 0, "max_offset": 6,
            "min_ledger_id": first, "max_ledger_id": last, "first_entry_id": 0, "last_entry_id": 3,
            "first_timestamp": None, "last_timestamp": None,
        }  # fmt: skip
        part = await summary(client, startingOffsets='{"orders": 2}', endingOffsets='{"orders": 4}')
        assert [part[name] for name in ("rows", "min_offset", "max_offset")] == [2, 2, 3]
        assert [part[name] for name in ("min_ledger_id", "max_ledger_id", "last_entry_id")] == [first, last, 0]
        none = await summary(client, startingOffsets='{"orders": 7}')
        assert (none["rows"], none["min_offset"], none["max_ledger_id"]) == (0, None, None)

    in_log(act)


def test_truncated_rows_are_a_gap_or_an_error() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 5)
        await log.truncate(positions[2])
        assert (await summary(client))["min_offset"] == 2
        with pytest.raises(LogTruncated, match="2 rows from"):
            await summary(client, startingOffsets='{"orders": 0}')
        row = await summary(client, startingOffsets='{"orders": 0}', failOnDataLoss="false")
        assert (row["rows"], row["gaps"], row["min_offset"]) == (3, 1, 2)

    in_log(act)


def test_of_a_compacted_log_what_is_left_is_counted() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            for first in (0, 100):
                records = [
                    Record(b"v", b"%d" % (n % 25), timestamp_us=1_000_000 * n) for n in range(first, first + 100)
                ]
                await writer.append_many([*records, Record(b"v", b"own%d" % first, timestamp_us=7)])
                await writer.roll()
        await log.compact()
        whole = await summary(client)
        assert [whole[name] for name in ("rows", "min_offset", "max_offset")] == [27, 100, 201]
        assert (whole["first_timestamp"], whole["last_timestamp"]) == (7, 7)
        part = await summary(client, startingOffsets='{"orders": 180}')
        assert [part[name] for name in ("rows", "min_offset", "first_timestamp")] == [22, 180, 179_000_000]
        assert (await summary(client, endingOffsets='{"orders": 90}'))["rows"] == 0
        assert (await summary(client, recordFormat="raw"))["first_timestamp"] is None
        manifest = await log.manifest()
        await log.truncate(Position(manifest.extents[1].ledger_id, 90))
        assert [(await summary(client))[name] for name in ("rows", "min_offset")] == [11, 191]
        assert await planned(client, limit=4) == [(191, 4)]

    in_log(act, "envelope", compaction="key")


def test_a_limit_plans_the_first_entries_only() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        await fill(log, 3, 4)
        assert await planned(client, limit=2) == [(0, 2)]
        assert await planned(client, limit=3) == [(0, 3)]
        assert await planned(client, limit=5, startingOffsets='{"orders": 1}') == [(1, 2), (3, 3)]
        assert await planned(client, limit=100) == [(0, 3), (3, 4)]
        other = client.log("returns")
        await other.create()
        await fill(other, 5)
        assert await planned(client, subscribe="returns,orders", limit=6) == [(0, 5), (0, 1)]
        assert await planned(client, subscribe="returns,orders", limit=5) == [(0, 5)]

    in_log(act)


@pytest.mark.parametrize(
    ("record_format", "options", "reason"),
    [
        ("sets", {}, "log orders: an entry holds several records"),
        ("raw", {"valueFormat": "arrow"}, "option valueFormat=arrow: an entry holds any number of rows"),
        ("raw", {"valueFormat": "utf8", "mode": "DROPMALFORMED"}, "option mode=DROPMALFORMED: only reading tells"),
    ],
)
def test_what_only_reading_tells_is_refused(record_format: str, options: dict[str, object], reason: str) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        catalog, asked = LogCatalog(client, b""), chosen(**options)
        [(extents, _, _)] = await planning.selected(catalog, asked)
        with pytest.raises(InvalidArgument, match=reason):
            counts.check(asked, extents)
        counts.check(chosen(recordFormat="raw"), extents)
        await catalog.close()

    in_log(act, record_format)
