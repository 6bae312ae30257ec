"""The source over logs and ledgers of a real cluster, called as Spark calls it, without the time that Spark takes."""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
import pathlib
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from tests.fakes.spark_query import ALL, Stream, append, batch, make, numbers, refusal, rows_of, save, schema_of, source
from tests.live.command import bk as bk_command
from tests.live.spark_marks import SMALL_BOOKIES
from tests.live.test_gateway import Gateway

import bookies as bk
from bookies.admin.cluster import LocalCluster
from bookies.distributedlog import blocking as distributedlog
from bookies.errors import BookKeeperError
from bookies.protocol.log import Position

pytestmark = [
    pytest.mark.live,
    # The workers of Spark go away without a word, so what the source caches in a process is never closed.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("source") / "bk-data"
    with LocalCluster(directory, 3, settings=SMALL_BOOKIES) as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def numbered(store: Any) -> Any:
    """Log "numbered" with ten and five rows in two ledgers."""
    return make(store, "numbered", 10, 0, 5)


@pytest.fixture
def uri(cluster: LocalCluster) -> dict[str, Any]:
    return {"bookkeeper.metadataServiceUri": cluster.metadata_uri, "bookkeeper.connectTimeoutMs": 2000}


# -- batches ---------------------------------------------------------------------------------------------------------


def test_a_log_is_rows_with_numbers(numbered: Any, uri: dict[str, Any]) -> None:
    log = numbered
    rows = batch(uri | {"subscribe": "numbered"})
    assert numbers(rows) == list(range(15))
    assert [row["offset"] for row in rows] == list(range(15))
    assert {row["log"] for row in rows} == {"numbered"}
    first = log.manifest().extents[0]
    log.truncate(Position(first.ledger_id, 7))
    again = batch(uri | {"subscribe": "numbered"})
    assert [row["offset"] for row in again] == numbers(again) == list(range(7, 15))
    log.truncate(log.manifest().find(Position(first.ledger_id, 0)) and Position(log.manifest().extents[2].ledger_id, 2))
    append(log, 15, 3, 4)
    again = batch(uri | {"subscribe": "numbered", "minPartitions": 3})
    assert sorted(row["offset"] for row in again) == sorted(numbers(again)) == list(range(12, 22))


def test_several_logs_patterns_and_ranges(store: Any, uri: dict[str, Any]) -> None:
    make(store, "web.a", 4, 3)
    make(store, "web.b", 2)
    make(store, "web-other", 1)
    counts = {}
    for row in batch(uri | {"subscribePattern": r"web\..*"}):
        counts[row["log"]] = counts.get(row["log"], 0) + 1
    assert counts == {"web.a": 7, "web.b": 2}
    rows = batch(uri | {"subscribe": "web.b, web-other", "columns": "log,offset"})
    assert rows == [{"log": "web.b", "offset": 0}, {"log": "web.b", "offset": 1}, {"log": "web-other", "offset": 0}]
    ledger = store.log("web.a").manifest().extents[1].ledger_id
    chosen = {"logs": {"web.a": [3, 5], "web.b": None}, "ledgers": {str(ledger): [1, None]}}
    rows = batch(uri | {"assign": json.dumps(chosen)})
    assert [(row["log"], row["offset"], int(row["value"])) for row in rows] == [
        ("web.a", 3, 3), ("web.a", 4, 4), ("web.a", 5, 5), ("web.b", 0, 0), ("web.b", 1, 1),
        (None, None, 5), (None, None, 6),
    ]  # fmt: skip
    assert batch(uri | {"subscribePattern": "nobody"}) == []


def test_where_to_begin_and_to_end(store: Any, uri: dict[str, Any]) -> None:
    log = make(store, "ends", 5, 5, 5)
    extents = log.manifest().extents

    def between(start: Any, end: Any) -> list[int]:
        text = [each if isinstance(each, str) else json.dumps(each) for each in (start, end)]
        return numbers(batch(uri | {"subscribe": "ends", "startingOffsets": text[0], "endingOffsets": text[1]}))

    assert between("earliest", "latest") == list(range(15))
    assert between({"ends": 3}, {"ends": 7}) == [3, 4, 5, 6]
    assert between({"logs": {"ends": [1, 2]}, "v": 1}, {"ends": "latest"}) == list(range(7, 15))
    assert between({"ends": f"{extents[2].ledger_id}:1"}, {"ends": -1}) == list(range(11, 15))
    assert between({"ends": -2}, {"logs": {"ends": [0, 5]}}) == [0, 1, 2, 3, 4]
    base = uri | {"subscribe": "ends"}
    assert "has 15 rows so far: there is no row 16" in refusal(base | {"startingOffsets": '{"ends": 16}'})
    assert "is not a position" in refusal(base | {"startingOffsets": '{"ends": [1]}'})
    assert "is given None" in refusal(base | {"startingOffsets": '{"logs": {}, "v": 1}'})
    assert "option startingOffsets names other, which is not read" in refusal(
        base | {"startingOffsets": '{"ends": 1, "other": 1}'}
    )
    assert "option endingOffsets: log ends would end at [0, 3], before it begins at [1, 2]" in refusal(
        base | {"startingOffsets": '{"ends": 7}', "endingOffsets": '{"ends": 3}'}
    )
    assert between({"ends": 3}, {"ends": 3}) == []
    assert "is for streams" in refusal(base | {"startingOffsets": "latest"})
    assert "contradict" in refusal(base | {"startingOffsets": "earliest", "startingTimestamp": "1"})
    assert "was truncated, or is of another log" in refusal(base | {"startingOffsets": '{"ends": "99999:0"}'})


def test_by_time(store: Any, uri: dict[str, Any]) -> None:
    log = make(store, "timed", 2)
    begun = store.metadata(log.manifest().ledger_ids[0]).ctime_ms
    base = uri | {"subscribe": "timed"}
    assert numbers(batch(base | {"startingOffsetsByTimestamp": json.dumps({"timed": 1})})) == [0, 1]
    assert batch(base | {"endingOffsetsByTimestamp": json.dumps({"timed": begun - 1})}) == []
    future = base | {"startingTimestamp": int(time.time() * 1000) + 3_600_000}
    assert "choose an earlier time, or option startingOffsetsByTimestampStrategy=latest" in refusal(future)
    assert batch(future | {"startingOffsetsByTimestampStrategy": "latest"}) == []
    assert "milliseconds since 1970 are missing" in refusal(base | {"startingOffsetsByTimestamp": "{}"})
    assert "names another, which is not read" in refusal(base | {"startingOffsetsByTimestamp": '{"another": 1}'})
    ledger = uri | {"ledger": log.manifest().ledger_ids[0]}
    assert numbers(batch(ledger | {"startingTimestamp": begun + 1, "endingTimestamp": begun + 1})) == [0, 1]
    assert batch(ledger | {"endingTimestamp": begun}) == []


@pytest.fixture(scope="module")
def gateway(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    gateway = Gateway(cluster, tmp_path_factory.mktemp("gateway"))
    yield gateway
    gateway.stop()
    gateway.kill()


@pytest.mark.parametrize("record_format", ["raw", "envelope", "sets"])
def test_all_ways_to_ask_for_a_time_agree(
    store: Any, uri: dict[str, Any], gateway: Gateway, record_format: str
) -> None:
    """The client, `bk`, the gateway and Spark; the records have the times of old events, which do not count."""
    log = store.log(f"asked-{record_format}")
    compaction = {"compaction": "key"} if record_format == "envelope" else {}
    log.create(ensemble=1, record_format=record_format, **compaction)
    times_ms = [int(time.time() * 1000)]
    for part in range(3):
        with log.lead() as writer:
            for number in range(3):
                value = b"%d" % (3 * part + number)
                is_raw = record_format == "raw"
                writer.append(value if is_raw else bk.Record(value, b"%d" % number, timestamp_us=1_000_000 * number))
                writer.roll()
        while (now_ms := int(time.time() * 1000)) <= times_ms[-1] + 1:
            time.sleep(0.001)  # The next part is to be a later one.
        times_ms.append(now_ms)
    whole = list(range(9))
    for is_compacted in (False, True) if compaction else (False,):
        if is_compacted:
            assert log.compact().removed == 6
            whole = [6, 7, 8]
        answers = [_agreed(log, uri, gateway, time_ms) for time_ms in (1000, *times_ms)]
        assert answers == [(whole, []), *(
            ([number for number in whole if number >= 3 * part], [number for number in whole if number < 3 * part])
            for part in range(4)
        )]  # fmt: skip
    assert log.roll_up().left <= 2  # The extents share a ledger from now on.
    assert _agreed(log, uri, gateway, times_ms[1]) == answers[2]


def _agreed(log: Any, uri: dict[str, Any], gateway: Gateway, time_ms: int) -> tuple[list[int], list[int]]:
    """The numbers that are read with a time as start, and as end."""
    start, end = log.at(time_ms / 1000), log.at(time_ms / 1000, is_end=True)
    with log.open() as reader:
        positions = [(int(record.value), record.position) for record in reader.read().records()]
        since = [int(record.value) for record in reader.read(start).records()]
        left = {int(record.value) for record in reader.read(end).records()}
    until = [number for number, _ in positions if number not in left]
    text = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).isoformat()
    for words, expected in ((("--since", text), since), (("--until", text), until)):
        shown = bk_command("log", "read", log.name, *words, metadata=uri["bookkeeper.metadataServiceUri"]).out
        assert [int(line) for line in shown.split()] == expected
    query = urllib.parse.urlencode({"since": text})
    page = json.loads(gateway.call("GET", f"/api/v1/logs/{log.name}/entries?{query}")[2])
    assert [int(row["text"]) for row in page["entries"]] == since
    base = uri | {"subscribe": log.name}
    assert numbers(batch(base | {"startingTimestamp": time_ms})) == since
    assert numbers(batch(base | {"endingTimestamp": time_ms})) == until
    return since, until


def lose(partition: Any) -> None:
    """Let the plan name a bookie that is down, because bookies keep deleted entries for a while."""
    partition.part.addresses.clear()
    for index, each in enumerate(partition.part.ranges):
        ensembles = ((0, ("nobody",) * each.metadata.ensemble_size),)
        partition.part.ranges[index] = replace(each, metadata=each.metadata.replace(ensembles=ensembles))


def test_a_compaction_between_two_batches_and_before_a_task_and_a_roll_up(store: Any, uri: dict[str, Any]) -> None:
    """Positions and numbers of rows stay; a plan that names the replaced ledgers goes on in the others."""
    log = store.log("keyed")
    log.create(ensemble=2, record_format="envelope", compaction="key")
    keys = [b"own%d" % number if number in (3, 31, 34) else b"k%d" % (number % 4) for number in range(40)]
    with log.lead() as writer:
        for first in range(0, 40, 10):
            writer.append_many([bk.Record(b"%d" % number, keys[number]) for number in range(first, first + 10)])
            writer.roll()
        writer.append(bk.Record(b"40", b"k0"))
        writer.roll()
    ledgers = log.manifest().ledger_ids
    options = uri | {"subscribe": "keyed"}
    whole = batch(options)
    planned, late = source(options), source(options | {"maxRecordsPerPartition": 4})
    planned.schema()
    late.schema()
    stream = Stream(options | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 15})
    assert numbers(stream.trigger()) == list(range(15))
    assert log.compact().removed == 34
    left = [whole[number] for number in (3, 31, 34, 37, 38, 39, 40)]
    assert batch(options) == left
    assert [(row["ledger_id"], row["entry_id"]) for row in left] == [
        (ledgers[0], 3), *((ledgers[3], number) for number in (1, 4, 7, 8, 9)), (ledgers[4], 0),
    ]  # fmt: skip
    assert batch(options | {"startingOffsets": '{"keyed": 32}'}) == left[2:]
    assert batch(options | {"endingOffsets": '{"keyed": 39}', "minPartitions": 3}) == left[:5]
    assert batch(uri | {"assign": '{"logs": {"keyed": [34, 38]}}'}) == left[2:5]
    assert [numbers(rows) for rows in stream.drain()] == [[], [31, 34, 37, 38, 39, 40]]
    assert stream.position["logs"]["keyed"] == [6, 0]
    by_bytes = Stream(options | {"startingOffsets": "earliest", "maxBytesPerTrigger": 20})
    found = by_bytes.drain()
    assert [row for rows in found for row in rows] == left
    assert len(found) > 1
    for each in (planned, late):
        reader = each.reader(schema_of(options))
        for partition in reader.partitions():
            lose(partition)
        assert sorted(rows_of(reader, reader.partitions()), key=lambda row: row["offset"]) == left
        log.roll_up()
        assert batch(options) == left
    log.truncate(bk.Position(ledgers[3], 8))
    with pytest.raises(BookKeeperError, match="entries 0 to 2 of ledger"):
        rows_of(reader, reader.partitions())
    how = reader._row_reader
    reader._row_reader = replace(how, settings=dataclasses.replace(how.settings, fails_on_loss=False))
    found = sorted(rows_of(reader, reader.partitions()), key=lambda row: row["offset"])
    assert [(row["offset"], row["value"]) for row in found][-4:] == [(36, None), (38, b"38"), (39, b"39"), (40, b"40")]


def test_what_is_gone_fails_the_query_or_is_a_row(store: Any, uri: dict[str, Any]) -> None:
    log = make(store, "gaps", 5, 5, 5)
    log.truncate(Position(log.manifest().extents[1].ledger_id, 2))
    base = uri | {"subscribe": "gaps", "startingOffsets": '{"logs": {"gaps": [1, 1]}}'}
    sentence = refusal(base)
    assert (
        "log gaps: 1 rows from [1, 1] on were truncated before they were read; the log now begins at [1, 2] (row 7)"
        in sentence
    )
    assert "failOnDataLoss=false" in sentence
    rows = batch(base | {"failOnDataLoss": "false"})
    assert rows[0]["value"] is None
    assert (rows[0]["log"], rows[0]["offset"]) == ("gaps", 6)
    assert rows[0]["gap"] == {
        "from_seq": 1, "from_entry": 1, "until_seq": 1, "until_entry": 2, "rows": 1,
        "reason": "truncated before it was read",
    }  # fmt: skip
    assert all(row["gap"] is None for row in rows[1:])
    assert numbers(rows[1:]) == list(range(7, 15))
    rows = batch(uri | {"subscribe": "gaps", "failOnDataLoss": "false", "startingOffsets": '{"gaps": 0}'})
    assert rows[0]["gap"]["rows"] is None


def test_a_ledger_that_is_deleted_under_the_query(store: Any, uri: dict[str, Any]) -> None:
    """The plan was made; the tasks find nothing anywhere, look the ledger up, and say so."""
    with store.create(ensemble=1) as ledger:
        ledger.append_many([b"%d" % number for number in range(100)])
    options = uri | {"ledger": ledger.ledger_id}
    from bookies.spark.base.settings import checked, settings
    from bookies.spark.read import read

    made = source(options)
    made.schema()
    assert made._planned is not None
    [partition] = made._planned
    lose(partition)
    store.delete(ledger.ledger_id)
    how = settings(checked(made.options), is_stream=False)
    from bookies.spark.base import arrow

    rows = read.RowReader(how, arrow.arrow_schema(["ledger_id", "value", "gap"]), None)
    with pytest.raises(BookKeeperError, match=r"entries 0 to 99 of ledger .* no longer exist: the ledger was deleted"):
        list(rows.read(partition.part))
    kept = replace(rows, settings=dataclasses.replace(how, fails_on_loss=False))
    [told] = [row for found in kept.read(partition.part) for row in found.to_pylist()]
    assert (told["ledger_id"], told["gap"]["rows"]) == (ledger.ledger_id, 100)


def test_replicas_that_moved_after_the_plan_was_made(store: Any, uri: dict[str, Any]) -> None:
    from bookies.spark.base import arrow
    from bookies.spark.base.settings import checked, settings
    from bookies.spark.read import read

    with store.create(ensemble=1) as ledger:
        ledger.append_many([b"%d" % number for number in range(10)])
    made = source(uri | {"ledger": ledger.ledger_id})
    made.schema()
    assert made._planned is not None
    [partition] = made._planned
    [each] = partition.part.ranges
    partition.part.ranges[0] = replace(each, metadata=each.metadata.replace(ensembles=((0, ("nobody",)),)))
    partition.part.addresses.clear()
    how = settings(checked(made.options), is_stream=False)
    rows = read.RowReader(how, arrow.arrow_schema(["value"]), None)
    assert [int(row["value"]) for found in rows.read(partition.part) for row in found.to_pylist()] == list(range(10))


# -- payloads --------------------------------------------------------------------------------------------------------


def test_payloads_as_columns(store: Any, uri: dict[str, Any]) -> None:
    with store.create(ensemble=1) as ledger:
        ledger.append_many([b'{"id": 1, "name": "a"}', b"nonsense", b'{"id": 3}'])
    fields = [pa.field("id", pa.int64()), pa.field("name", pa.string())]
    options = uri | {"ledger": ledger.ledger_id, "valueFormat": "json", "valueSchema": "id BIGINT, name STRING"}
    rows = batch(options, fields)
    assert [(row["entry_id"], row["id"], row["name"]) for row in rows] == [(0, 1, "a"), (1, None, None), (2, 3, None)]
    rows = batch(options | {"mode": "DROPMALFORMED"}, fields)
    assert [(row["entry_id"], row["id"]) for row in rows] == [(0, 1), (2, 3)]
    with pytest.raises(BookKeeperError, match=r"valueFormat=json .* \(ledger \d+, entry 1\)"):
        batch(options | {"mode": "FAILFAST"}, fields)
    sampled = source(uri | {"ledger": ledger.ledger_id, "valueFormat": "json"}).schema()
    assert sampled.endswith(", key BINARY, id BIGINT, name STRING")
    with pytest.raises(BookKeeperError, match="the source itself has a column 'offset'"):
        batch(options, [pa.field("offset", pa.int64())])


def test_rows_of_rows(store: Any, uri: dict[str, Any]) -> None:
    table = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "more": ["x", "y", "z"]})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with store.create(ensemble=1) as ledger:
        ledger.append_many([sink.getvalue(), sink.getvalue()])
    options = uri | {"ledger": ledger.ledger_id, "valueFormat": "arrow", "valueSchema": "id BIGINT"}
    rows = batch(options, [pa.field("id", pa.int64())])
    assert [(row["entry_id"], row["id"]) for row in rows] == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]


def test_records_with_key_headers_and_timestamp(store: Any, uri: dict[str, Any]) -> None:
    from bookies.spark.base import envelope

    log = store.log("records")
    log.create(ensemble=1, record_format="envelope")
    at = pa.array([1_000_000, None], pa.timestamp("us", tz="UTC"))
    headers = pa.array([[{"key": "h", "value": b"x"}], None], envelope.HEADERS_TYPE)
    entries = envelope.encode(pa.array([b'{"id": 1}', b'{"id": 2}']), pa.array([b"k", None]), headers, at)
    with log.lead() as writer:
        writer.append_entries(entries.to_pylist())
    rows = batch(uri | {"subscribe": "records", "includeHeaders": "true"})
    assert [(row["key"], row["value"], row["headers"]) for row in rows] == [
        (b"k", b'{"id": 1}', [{"key": "h", "value": b"x"}]), (None, b'{"id": 2}', None),
    ]  # fmt: skip
    assert rows[0]["timestamp"].timestamp() == 1
    assert rows[0]["offset"] == 0
    options = uri | {"subscribe": "records", "valueFormat": "json", "valueSchema": "id INT", "columns": "key,value"}
    assert batch(options, [pa.field("id", pa.int32())]) == [{"key": b"k", "id": 1}, {"key": None, "id": 2}]
    raw = batch(uri | {"subscribe": "records", "recordFormat": "raw"})
    assert [row["value"] for row in raw] == entries.to_pylist()
    assert batch(uri | {"subscribe": "numbered", "recordFormat": "envelope"})[0]["value"] is None
    assert "no record with key and headers" in refusal(
        uri | {"subscribe": "numbered", "recordFormat": "envelope", "mode": "FAILFAST"}
    )


# -- streams ---------------------------------------------------------------------------------------------------------


def test_a_stream_from_the_beginning(store: Any, uri: dict[str, Any]) -> None:
    log = make(store, "stream", 5)
    query = Stream(uri | {"subscribe": "stream", "startingOffsets": "earliest", "tailWaitMs": 10})
    assert numbers(query.trigger()) == list(range(5))
    tokens = f'"tokens": {{"stream": "{log.manifest().token}"}}, "v": 1}}'
    assert query.checkpoint == ['{"from": {"logs": {"stream": [0, 0]}}, "logs": {"stream": [1, 0]}, ' + tokens]
    assert query.trigger() is None
    append(log, 5, 3, 4)
    assert numbers(query.trigger()) == list(range(5, 12))
    assert query.checkpoint[-1] == '{"logs": {"stream": [3, 0]}, ' + tokens
    assert query.reader.reportLatestOffset() == query.position | {"lag": {"rows": 0, "bytes": 0, "seconds": 0.0}}
    assert query.trigger() is None


def test_a_restart_in_the_first_batch_reads_the_same(store: Any, uri: dict[str, Any]) -> None:
    """Spark does not keep the first offset: `latest` must not mean something later after the restart."""
    log = make(store, "first", 5)
    options = uri | {"subscribe": "first", "tailWaitMs": 10}
    query = Stream(options)
    assert query.trigger() == []  # The first batch pins the position.
    append(log, 5, 3)
    assert numbers(query.trigger()) == [5, 6, 7]
    restarted = Stream(options, query.checkpoint[:1])
    assert restarted.trigger() == []
    assert numbers(restarted.trigger()) == [5, 6, 7]
    earliest = options | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 4}
    query = Stream(earliest)
    planned = numbers(query.trigger())
    assert planned == [0, 1, 2, 3]
    append(log, 8, 3)
    again = Stream(earliest, query.checkpoint[:1])
    assert numbers(again.trigger()) == planned
    assert [numbers(rows) for rows in again.drain()] == [[4, 5, 6, 7], [8, 9, 10]]


def test_limits(store: Any, uri: dict[str, Any]) -> None:
    make(store, "limit.a", 30, 10)
    make(store, "limit.b", 8)
    base = uri | {"subscribePattern": r"limit\..", "startingOffsets": "earliest", "tailWaitMs": 0}
    batches = Stream(base | {"maxOffsetsPerTrigger": 12}).drain()
    assert [len(rows) for rows in batches] == [12, 12, 12, 12]
    assert sorted(row["offset"] for rows in batches for row in rows if row["log"] == "limit.a") == list(range(40))
    assert {row["log"] for row in batches[0]} == {"limit.a", "limit.b"}  # in proportion
    assert len(Stream(base | {"maxOffsetsPerTrigger": 12}).trigger(ALL) or []) == 48  # a run with trigger `once`
    with_bytes = Stream(base | {"maxBytesPerTrigger": 20, "maxEntriesPerTrigger": 1000})
    batches = with_bytes.drain()
    sizes = [sum(len(row["value"]) for row in rows) for rows in batches]
    assert sum(map(len, batches)) == 48
    assert all(0 < size <= 22 for size in sizes), sizes  # one entry at least of each log, however small its share
    one = Stream(uri | {"subscribe": "limit.a", "startingOffsets": "earliest", "maxBytesPerTrigger": 1})
    assert len(one.trigger() or []) == 1


@pytest.mark.parametrize("at", [[99, 0], [0, 5000], "LEDGER:5000", 5000])
def test_nobody_begins_or_ends_behind_the_end(store: Any, uri: dict[str, Any], at: Any) -> None:
    name = f"behind-{len(str(at))}"
    log = make(store, name, 5, 5)
    at = at.replace("LEDGER", str(log.manifest().ledger_ids[0])) if isinstance(at, str) else at
    ledger = log.manifest().ledger_ids[1]
    for key, chosen in ((name, uri | {"subscribe": name}), (ledger, uri | {"ledger": ledger})):
        if key == ledger:
            at = 5000
        for side in ("starting", "ending"):
            assert "to begin or end with" in refusal(chosen | {f"{side}Offsets": json.dumps({key: at})})
        query = Stream(chosen | {"startingOffsets": json.dumps({key: at}), "tailWaitMs": 0})
        with pytest.raises(BookKeeperError, match="to begin or end with"):
            query.trigger()


def test_a_fuller_batch_is_waited_for(store: Any, uri: dict[str, Any]) -> None:
    log = make(store, "fuller", 0)
    options = uri | {"subscribe": "fuller", "startingOffsets": "earliest", "tailWaitMs": 0, "minOffsetsPerTrigger": 5}
    query = Stream(options)
    assert query.trigger() == []
    append(log, 0, 3)
    assert query.trigger() is None
    append(log, 3, 3)
    assert numbers(query.trigger()) == list(range(6))
    append(log, 6, 1)
    assert query.trigger() is None
    impatient = Stream(options | {"maxTriggerDelay": "0s"}, query.checkpoint, committed=query.committed)
    assert numbers(impatient.trigger()) == [6]
    append(log, 7, 1)
    now = Stream(options, query.checkpoint, committed=len(query.checkpoint))
    now.prepare()
    assert numbers(now.trigger()) == [7]


def test_available_now_ends_at_its_target(store: Any, uri: dict[str, Any]) -> None:
    log = make(store, "now", 6)
    options = uri | {"subscribe": "now", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 4}
    query = Stream(options)
    query.prepare()
    assert numbers(query.trigger()) == [0, 1, 2, 3]
    append(log, 6, 5)
    assert numbers(query.trigger()) == [4, 5]
    assert query.trigger() is None
    later = Stream(options, query.checkpoint, committed=query.committed)
    later.prepare()
    assert [numbers(rows) for rows in later.drain()] == [[6, 7, 8, 9], [10]]


def test_an_open_ledger_is_followed(store: Any, uri: dict[str, Any]) -> None:
    log = make(store, "open", 1)
    query = Stream(uri | {"subscribe": "open", "startingOffsets": "earliest", "tailWaitMs": 5000})
    with log.lead() as writer:
        writer.append_many([b"1", b"2"])
        writer.append(b"3")
        seen = [number for rows in (query.trigger(ALL) for _ in range(2)) for number in numbers(rows or [])]
        writer.append(b"4")
        began = time.monotonic()
        while len(seen) < 4:
            seen += numbers(query.trigger() or [])
        assert time.monotonic() - began < 60
        assert seen == list(range(len(seen)))
    seen += [number for rows in query.drain() for number in numbers(rows)]
    assert seen == [0, 1, 2, 3, 4]


def test_new_logs_of_a_pattern_begin_at_their_beginning(store: Any, uri: dict[str, Any]) -> None:
    make(store, "pat.a", 2)
    query = Stream(uri | {"subscribePattern": r"pat\..*", "tailWaitMs": 0})
    assert query.trigger() == []
    make(store, "pat.b", 3)
    rows = query.trigger()
    assert numbers(rows) == [0, 1, 2]
    assert query.position["from"] == {"logs": {"pat.b": [0, 0]}}
    assert query.trigger() is None


def test_ledgers_as_a_stream(store: Any, uri: dict[str, Any]) -> None:
    writer = store.create(ensemble=1)
    writer.append_many([b"%d" % number for number in range(10)])
    writer.append(b"10")
    query = Stream(uri | {"ledger": writer.ledger_id, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 4})
    assert numbers(query.trigger()) == [0, 1, 2, 3]
    assert query.position["ledgers"] == {str(writer.ledger_id): 4}
    writer.seal()
    assert [numbers(rows) for rows in query.drain()] == [[4, 5, 6, 7], [8, 9, 10]]
    assert query.trigger() is None


def test_an_idle_query_costs_little(store: Any, uri: dict[str, Any]) -> None:
    make(store, "idle", 3)
    query = Stream(uri | {"subscribe": "idle", "startingOffsets": "earliest", "tailWaitMs": 200})
    query.trigger()
    began = time.monotonic()
    assert query.trigger() is None
    assert time.monotonic() - began >= 0.2


# -- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "nosuch"}, "there is no log nosuch"),
        ({"subscribe": "a/b"}, "'a/b' is no name of a log"),
        ({"subscribe": "numbered", "ledger": 1}, "got subscribe and ledger"),
        ({"subscribePattern": "("}, "is not a regular expression"),
        ({"assign": '{"log": {"numbered": [0, 1]}}'}, "option assign="),
        ({"assign": '{"logs": {"numbered": [5, 2]}}'}, "rows 5 to 2 of log numbered are not a range"),
        ({"subscribe": "numbered", "startingOfsets": "earliest"}, "did you mean startingOffsets?"),
        ({"subscribe": "numbered", "startingOffsets": "soon"}, "option startingOffsets='soon': expected JSON"),
        ({"subscribe": "numbered", "maxOffsetsPerTrigger": 5}, "option maxOffsetsPerTrigger is for streams"),
        ({"subscribe": "numbered", "valueFormat": "xml"}, "expected raw, utf8, json, arrow"),
        ({"subscribe": "numbered", "valueSchema": "id INT"}, "option valueSchema is for valueFormat=json or arrow"),
        ({"subscribe": "numbered", "readTier": "offloaded"}, "it is not offloaded"),
        ({"subscribe": "numbered", "verifyDigest": "false"}, "digests are always verified"),
        ({"subscribe": "numbered", "bookkeeper.readTimoutMs": "5"}, "did you mean bookkeeper.readTimeoutMs?"),
        ({"subscribe": "numbered", "bookkeeper.readTimeoutMs": "x"}, "expected a whole number"),
        ({"subscribe": "numbered", "columns": "value,nonsense"}, "no column 'nonsense'"),
        ({}, "choose what to read with exactly one of subscribe"),
        ({"ledger": 1, "label": "a=b"}, "got ledger and label"),
        ({"ledger": "seven"}, "ledgers are named by number"),
        ({"assign": '{"ledgers": {"1": 5}}'}, "option assign="),
        ({"assign": '{"ledgers": [1]}'}, "option assign="),
        ({"assign": '{"ledgers": {"0": [5, 2]}}'}, "entries 5 to 2 of ledger 0 are not a range"),
        ({"ledger": 0, "columns": "value,nonsense"}, "no column 'nonsense'"),
        ({"ledger": 0, "includeValue": "maybe"}, "expected true or false"),
        ({"ledger": 0, "minPartitions": 0}, "expected a whole number above 0"),
        ({"ledger": 0, "bookkeeper.metadataServiceUri": "file:/nowhere"}, "no metadata store at /nowhere"),
        ({"ledger": 0, "bookkeeper.metadataServiceUri": "nonsense"}, "is not a metadata URI"),
    ],
)
def test_mistakes_are_said_in_a_sentence(uri: dict[str, Any], options: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(uri | options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets is for batch queries, not for streams"),
        ({"minOffsetsPerTrigger": 5, "maxOffsetsPerTrigger": 2}, "is more than maxOffsetsPerTrigger=2"),
        ({"maxEntriesPerTrigger": 5, "maxOffsetsPerTrigger": 2}, "mean the same: give one of them"),
        ({"tailWaitMs": 60000}, "more would delay stop()"),
        ({"maxTriggerDelay": "soon"}, "expected a duration such as 90s"),
        ({"cursor": "a b"}, "is no name of a log"),
        ({"table": "ledgers"}, "only entries can be read as a stream"),
    ],
)
def test_mistakes_of_streams(uri: dict[str, Any], options: dict[str, Any], sentence: str) -> None:
    made = source(uri | {"subscribe": "numbered"} | options)
    with pytest.raises(BookKeeperError) as caught:
        made.streamReader(schema=None)
    assert sentence in str(caught.value)


def test_passwords(store: Any, uri: dict[str, Any], tmp_path: pathlib.Path) -> None:
    log = store.log("secret", password=b"secret")
    log.create(ensemble=1, digest="hmac")
    append(log, 0, 3)
    path = tmp_path / "password"
    path.write_text("secret\n")
    options = uri | {"subscribe": "secret", "bookkeeper.passwordFile": path}
    assert numbers(batch(options)) == [0, 1, 2]
    assert numbers(Stream(options | {"startingOffsets": "earliest"}).trigger()) == [0, 1, 2]
    path.write_text("guess")
    assert "wrong password: pass the one the ledger was created with" in refusal(options)


# -- writing ---------------------------------------------------------------------------------------------------------

ONE: dict[str, Any] = {"value": ["v"]}
NULL = pa.array([None], pa.string())


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        (ONE, {}, "choose the log to write: option log=NAME"),
        (ONE, {"log": "a", "topic": "b"}, "options log and topic both name the log"),
        (ONE, {"log": "../x"}, "is no name of a log"),
        (
            {"value": pa.array([1], pa.int32())},
            {"log": "mistakes"},
            "column 'value' is INT; a log accepts BINARY or STRING: cast it",
        ),
        ({"valeu": ["v"]}, {"log": "mistakes"}, "column 'valeu': a log accepts the columns value, key"),
        ({"key": ["v"]}, {"log": "mistakes"}, "column 'value', which holds the entry's payload, is missing"),
        ({"value": ["v"], "key": ["k"]}, {"log": "mistakes"}, "keeps raw values, without key: drop the column"),
        ({"value": ["v"], "log": NULL}, {}, "column 'log' is null in a row"),
        ({"value": ["v"], "log": ["nowhere"]}, {}, "there is no log nowhere"),
        (ONE, {"log": "mistakes", "txnAppId": "x"}, "options txnAppId and txnVersion belong together"),
        (ONE, {"log": "mistakes", "txnAppId": "x", "txnVersion": "-1"}, "expected a whole number of 0"),
        (ONE, {"log": "mistakes", "onOpenTail": "wait"}, "option onOpenTail='wait': expected fail or fence"),
        (ONE, {"log": "mistakes", "orphanGrace": "soon"}, "expected a whole number and s, m, h or d"),
        (ONE, {"log": "mistakes", "recordFormat": "avro"}, "expected one of raw, envelope"),
        (ONE, {"log": "mistakes", "recordFormat": "envelope"}, "has record format raw, not envelope"),
        (ONE, {"log": "mistakes", "ensembleSize": 9}, "9"),
    ],
)
def test_mistakes_of_writers(
    store: Any, uri: dict[str, Any], columns: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    log = store.log("mistakes")
    log.create(ensemble=1, exist_ok=True)
    with pytest.raises(BookKeeperError) as caught:
        save(uri | options, pa.table(columns))
    assert sentence in str(caught.value)
    with log.open() as reader:
        assert list(reader.read()) == []
    assert all(each.outcome == "deleted" for each in log.reap(orphan_grace=0, replay_grace=0))
    assert {each.ledger_id for each in store.ledgers(("sink.log", log.name))} <= set(log.manifest().ledger_ids)


# -- logs of DistributedLog ------------------------------------------------------------------------------------------


def test_records_of_distributedlog(cluster: LocalCluster) -> None:
    options = {"namespace": f"{cluster.metadata_uri}#apps", "subscribe": "web/orders"}
    with distributedlog.open_namespace(options["namespace"]) as namespace:
        log = namespace.log("web/orders")
        with log.lead(ensemble=1) as writer:
            writer.append_many([b"%d" % number for number in range(10)], txid=100)
            writer.roll()
            writer.append_set([b"10", b"11"], txid=200, compression="lz4")
            writer.flush()
            stream = Stream(options | {"startingOffsets": "earliest"})
            assert numbers(stream.trigger()) == list(range(12))
            writer.append(b"12")
        rows = batch(options)
        assert list(rows[0]) == ["log", "ledger_id", "entry_id", "value", "txid", "dlsn"]
        assert [(row["log"], row["txid"]) for row in rows] == [
            ("web/orders", txid) for txid in [*range(100, 110), 200, 200, 201]
        ]
        with log.open() as reader:
            expected = [(record.payload, str(record.position)) for record in reader.read()]
        assert [(row["value"], row["dlsn"]) for row in rows] == expected
        assert numbers(stream.trigger()) == [12]
        assert numbers(batch(options | {"startingOffsets": '{"web/orders": [2, 0]}'})) == [10, 11, 12]
        log.truncate(log.find(105))
        cut = batch(options | {"columns": "value,dlsn,txid"})
        assert numbers(cut) == list(range(5, 13))
    texts = batch(options | {"valueFormat": "utf8", "columns": "value"}, [pa.field("value", pa.string())])
    assert [row["value"] for row in texts] == [str(number) for number in range(5, 13)]


def test_what_has_no_meaning_in_a_namespace_is_refused(cluster: LocalCluster) -> None:
    options = {"namespace": cluster.metadata_uri, "subscribe": "orders"}
    assert "there is no log orders in namespace /default" in refusal(options)
    assert "name its logs with option subscribe" in refusal({"namespace": cluster.metadata_uri, "ledger": 1})
    assert "option recordFormat=envelope has no meaning" in refusal(options | {"recordFormat": "envelope"})
    uri = {"bookkeeper.metadataServiceUri": cluster.metadata_uri}
    assert "option bookkeeper.metadataServiceUri has no meaning" in refusal(options | uri)
    assert "no column 'dlsn'" in refusal(uri | {"subscribe": "numbered", "columns": "dlsn"})
