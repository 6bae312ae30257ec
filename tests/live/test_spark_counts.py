"""What is known without reading: tables of counts and of lag. Called as Spark calls the source, over a real cluster."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from tests.fakes.spark_query import Row, Stream, append, batch, make, numbers, rows_of, source
from tests.live.spark_marks import SMALL_BOOKIES

import bookies as bk
from bookies.admin.cluster import LocalCluster
from bookies.errors import BookKeeperError
from bookies.spark.base.arrow import schema_of_ddl

pytestmark = [
    pytest.mark.live,
    # The workers of Spark go away without a word, so what the source caches in a process is never closed.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("counts") / "bk-data"
    with LocalCluster(directory, 1, settings=SMALL_BOOKIES) as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def numbered(store: Any) -> Any:
    """Log "numbered" with ten and five rows in two ledgers."""
    return make(store, "numbered", 10, 0, 5)


@pytest.fixture
def uri(cluster: LocalCluster) -> dict[str, Any]:
    return {"bookkeeper.metadataServiceUri": cluster.metadata_uri}


def table(options: dict[str, Any]) -> list[Row]:
    """The rows of one of the tables."""
    made = source(options)
    reader = made.reader(schema=from_arrow_schema(schema_of_ddl(made.schema())))
    return rows_of(reader, reader.partitions())


def test_counts_are_those_of_a_query_with_the_same_options(store: Any, numbered: Any, uri: dict[str, Any]) -> None:
    with store.create(ensemble=1) as ledger:
        ledger.append_many([b"x"] * 7)
    for options in (
        {"subscribe": "numbered", "startingOffsets": '{"numbered": 3}', "endingOffsets": '{"numbered": 12}'},
        {"subscribe": "numbered", "limit": 12},
        {"ledger": ledger.ledger_id},
        {"assign": json.dumps({"logs": {"numbered": [8, 11]}, "ledgers": {str(ledger.ledger_id): [2, 4]}})},
    ):
        rows = batch(uri | options)
        told = table(uri | options | {"table": "summary"})
        assert sum(row["rows"] for row in told) == len(rows) > 0
        for row in told:
            own = [one for one in rows if one["log"] == row["log"]]
            assert (own[0]["offset"], own[-1]["offset"]) == (row["min_offset"], row["max_offset"])
            assert (own[0]["entry_id"], own[-1]["entry_id"]) == (row["first_entry_id"], row["last_entry_id"])
            assert {row["min_ledger_id"], row["max_ledger_id"]} <= {one["ledger_id"] for one in own}
    assert numbers(batch(uri | {"subscribe": "numbered", "limit": 12})) == list(range(12))


def test_a_table_of_counts_has_the_options_of_a_batch_query(uri: dict[str, Any]) -> None:
    for options, reason in (
        ({"subscribe": "numbered", "cursor": "c"}, "option cursor is for streams: use readStream"),
        ({"subscribe": "numbered", "ledgersPerPartition": 1}, "unknown option 'ledgersperpartition'"),
        ({}, "choose what to read with exactly one of"),
        ({"subscribe": "nowhere"}, "nowhere"),
    ):
        with pytest.raises(BookKeeperError, match=reason):
            table(uri | options | {"table": "summary"})


# -- lag -------------------------------------------------------------------------------------------------------------


def test_the_lag_of_cursors(store: Any, uri: dict[str, Any]) -> None:
    log = make(store, "lag-orders", 10, 5)
    make(store, "lag-idle", 1)
    first, second = log.manifest().ledger_ids[:2]
    log.move_cursor("billing", bk.Position(first, 4))
    log.move_cursor("audit", bk.Position(second, 5))
    options = uri | {"table": "lag"}
    rows = table(options | {"subscribePattern": "lag-.*"})
    assert [(row["log"], row["cursor"], row["position"], row["rows"], row["seconds"]) for row in rows] == [
        ("lag-orders", "audit", f"{second}:5", 0, 0.0),
        ("lag-orders", "billing", f"{first}:4", 11, None),
    ]
    lag = log.lag(bk.Position(first, 4))
    assert (rows[1]["bytes"], rows[1]["rows"], rows[1]["ledger_id"]) == (lag.bytes, lag.rows, None)
    assert 6 + 5 < lag.bytes <= 6 + 10
    assert [row["cursor"] for row in table(options | {"subscribe": "lag-orders"})] == ["audit", "billing"]
    assert {row["log"] for row in table(options)} >= {"lag-orders"}


def checkpoint_of(directory: pathlib.Path, ends: list[str], committed: int) -> str:
    """The files that Spark writes: the end of each batch, and a mark of each batch that is done."""
    for name, count in (("offsets", len(ends)), ("commits", committed)):
        (directory / name).mkdir(parents=True)
        for number in range(count):
            lines = (
                ["v1", '{"batchWatermarkMs":0}', ends[number], '{"topic": {"0": 5}}'] if name == "offsets" else ["v1"]
            )
            (directory / name / str(number)).write_text("\n".join(lines))
            (directory / name / f".{number}.crc").write_bytes(b"?")
    return f"file:{directory}"


def test_the_lag_of_a_query_by_its_checkpoint(store: Any, uri: dict[str, Any], tmp_path: pathlib.Path) -> None:
    log = make(store, "followed", 10, 5)
    with store.create(ensemble=1) as ledger:
        ledger.append_many([b"x"] * 7)
    both = {"assign": json.dumps({"logs": {"followed": [2, None]}, "ledgers": {str(ledger.ledger_id): None}})}
    query = Stream(uri | both | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 10})
    query.trigger()
    query.trigger()
    append(log, 15, 3)

    def lag(name: str, committed: int) -> list[tuple[Any, ...]]:
        checkpoint = checkpoint_of(tmp_path / name, query.checkpoint, committed)
        rows = table(uri | {"table": "lag", "checkpoint": checkpoint})
        return sorted(((row["log"] or str(row["ledger_id"])), row["rows"]) for row in rows)

    names = str(ledger.ledger_id), "followed"
    assert lag("done", 2) == [*zip(names, (0, 3), strict=True)]
    assert lag("begun", 0) == [*zip(names, (7, 16), strict=True)]
    [(_, left), (_, rest)] = lag("half", 1)
    assert (left + rest, left > 0, rest > 3) == (13, True, True)
    log.delete()
    make(store, "followed", 1)
    assert lag("recreated", 2) == [*zip(names, (0, None), strict=True)]
    log.delete()
    assert lag("deleted", 2)[-1] == ("followed", None)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"subscribe": "nowhere"}, "nowhere"),
        ({"checkpoint": "/nowhere"}, "option checkpoint: /nowhere has no offsets of a streaming query"),
        ({"checkpoint": "/nowhere", "subscribe": "numbered"}, "option subscribe: the checkpoint tells"),
        ({"startingOffsets": "earliest"}, "unknown option 'startingoffsets'"),
    ],
)
def test_a_table_of_lag_that_is_refused(uri: dict[str, Any], options: dict[str, str], reason: str) -> None:
    with pytest.raises(BookKeeperError, match=reason):
        table(uri | options | {"table": "lag"})


def test_a_checkpoint_of_other_sources_is_refused(uri: dict[str, Any], tmp_path: pathlib.Path) -> None:
    checkpoint = checkpoint_of(tmp_path, ['{"topic": {"0": 7}}'], 1)
    with pytest.raises(BookKeeperError, match="does not read the format bookkeeper"):
        table(uri | {"table": "lag", "checkpoint": checkpoint})
    (tmp_path / "commits" / "3").write_text("v1")
    with pytest.raises(BookKeeperError, match="has no offsets of batch 3"):
        table(uri | {"table": "lag", "checkpoint": checkpoint})


def test_a_query_reports_what_it_leaves(store: Any, uri: dict[str, Any]) -> None:
    """In its progress, as part of the newest offset."""
    log = make(store, "reported", 10, 5)
    query = Stream(uri | {"subscribe": "reported", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 4})
    assert query.reader.reportLatestOffset() is None
    query.trigger()
    told = query.reader.reportLatestOffset()
    assert told["logs"] == {"reported": [2, 0]}
    assert (told["lag"]["rows"], 11 < told["lag"]["bytes"] <= 22, told["lag"]["seconds"] >= 0) == (11, True, True)
    query.drain()
    assert query.reader.reportLatestOffset()["lag"] == {"rows": 0, "bytes": 0, "seconds": 0.0}
    with log.lead() as writer:
        writer.append_many([b"12345"] * 40)
        query.trigger()
        told = query.reader.reportLatestOffset()["lag"]  # of a ledger that is open
        assert 0 < told["rows"] <= 36
        assert 4 * told["rows"] <= told["bytes"] <= 6 * told["rows"]
