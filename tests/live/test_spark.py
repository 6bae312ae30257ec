"""The data source in a real Spark session, over real bookies."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.live.spark_marks import SMALL_BOOKIES, SPARK_MARKS, needs_spark

import bookies as bk
import bookies.spark
from bookies.admin.cluster import LocalCluster

pytestmark = SPARK_MARKS

COLUMNS = ["log", "ledger_id", "entry_id", "offset", "timestamp", "key", "value"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("spark-bookies") / "bk-data"
    with LocalCluster(directory, 4, lease_ms=2000, settings=SMALL_BOOKIES) as cluster:
        yield cluster


@pytest.fixture
def load(spark: Any, cluster: LocalCluster) -> Any:
    """A DataFrame of the cluster's ledgers with these options; `path`: argument of `load`."""

    def load(path: object = None, **options: object) -> Any:
        reader = spark.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", cluster.metadata_uri)
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), value)
        return reader.load() if path is None else reader.load(path)

    return load


def payloads(count: int, start: int = 0) -> list[bytes]:
    return [b"entry %d" % number * (number % 7) for number in range(start, start + count)]


def written(store: bk.blocking.Client, count: int, **options: Any) -> int:
    """A sealed ledger of `payloads`; its id."""
    with store.create(**options) as ledger:
        if count:
            ledger.append_many(payloads(count))
    return ledger.ledger_id


def rows(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Sorted rows; without `columns` (ledger, entry, value)."""
    return sorted(
        tuple(bytes(cell) if isinstance(cell, bytearray) else cell for cell in row)
        for row in frame.select(*(columns or ("ledger_id", "entry_id", "value"))).collect()
    )


def expected(ledger_id: int, values: list[bytes], start: int = 0) -> list[tuple[int, int, bytes]]:
    return [(ledger_id, entry_id, value) for entry_id, value in enumerate(values, start)]


def partition_sizes(frame: Any) -> list[int]:
    """Rows of each partition."""
    return [len(part) for part in frame.select("entry_id").rdd.glom().collect()]


# -- which ledgers -------------------------------------------------------------------------------------------------


def test_one_ledger_is_found_without_being_registered(store: Any, load: Any) -> None:
    ledger_id = written(store, 5000)
    frame = load(str(ledger_id))
    assert frame.columns == COLUMNS
    assert rows(frame) == expected(ledger_id, payloads(5000))
    assert rows(load(ledger=ledger_id), "log", "offset", "timestamp", "key")[0] == (None, None, None, None)


def test_ledgers_by_list_path_list_label_and_ranges(spark: Any, store: Any, load: Any) -> None:
    bookies.spark.register(spark)
    first, second = written(store, 30, labels={"app": "x"}), written(store, 40, labels={"app": "x", "more": "y"})
    written(store, 10, labels={"app": "other"})
    both = expected(first, payloads(30)) + expected(second, payloads(40))
    assert rows(load(ledgers=f"{second},{first}")) == both
    assert rows(load([str(first), str(second)])) == both
    assert rows(load(label="app=x")) == both
    ranges = {"ledgers": {str(first): [10, 12], str(second): [38, None]}}
    found = rows(load(assign=json.dumps(ranges)))
    assert found == expected(first, payloads(3, 10), 10) + expected(second, payloads(2, 38), 38)
    assert load(label="app=nobody").count() == 0


def test_an_empty_ledger_has_no_rows(store: Any, load: Any) -> None:
    ledger_id = written(store, 0)
    assert rows(load(ledger=ledger_id)) == []
    assert load(ledger=ledger_id, includeMetadata=True).columns == [*COLUMNS, "length", "lac", "crc32c"]


def test_views_and_tables(spark: Any, store: Any, cluster: LocalCluster) -> None:
    """A view keeps its options; a table loses them, which is said. Source: spark 1.1."""
    bookies.spark.register(spark)
    ledger_id = written(store, 20)
    options = f"OPTIONS (`bookkeeper.metadataServiceUri` '{cluster.metadata_uri}', ledger '{ledger_id}')"
    spark.sql(f"CREATE TEMPORARY VIEW twenty USING bookkeeper {options}")
    assert spark.sql("SELECT max(entry_id) FROM twenty").first()[0] == 19
    spark.catalog.dropTempView("twenty")
    way_out = "use bookies.spark.register_logs, or CREATE TEMPORARY VIEW name USING bookkeeper OPTIONS (...)"
    assert way_out in said(lambda: spark.sql(f"CREATE TABLE derived USING bookkeeper {options}"))
    spark.sql(f"CREATE TABLE declared (value BINARY) USING bookkeeper {options}")  # The source is not asked.
    assert way_out in said(lambda: spark.table("declared").count())
    spark.sql("DROP TABLE declared")


def test_what_spark_refuses_by_itself(spark: Any, cluster: LocalCluster) -> None:
    """Should one of these work some day, docs/reference/spark-writing.md can be shorter. Source: spark 1.1."""
    bookies.spark.register(spark)
    writer = spark.sql("SELECT 'v' AS value").write.format("bookkeeper").option("log", "nowhere")
    writer = writer.option("bookkeeper.metadataServiceUri", cluster.metadata_uri)
    for mode in ("error", "ignore"):
        assert 'Please use either the "Append" or "Overwrite" mode' in said(writer.mode(mode).save)
    assert "partitioning" in said(lambda: writer.mode("append").partitionBy("value").save())


# -- columns -------------------------------------------------------------------------------------------------------


def test_metadata_columns_say_what_the_entry_says(store: Any, load: Any) -> None:
    from bookies.kernels import crc32c

    ledger_id = written(store, 300)
    frame = load(ledger=ledger_id, includeMetadata=True)
    found = rows(frame, "entry_id", "length", "lac", "crc32c", "value")
    with store.open(ledger_id) as reader:
        assert [row[1] for row in found] == [entry.length for entry in reader.read()]
    for entry_id, length, lac, checksum, value in found:
        assert -1 <= lac < entry_id
        header = b"".join(number.to_bytes(8, "big", signed=True) for number in (ledger_id, entry_id, lac, length))
        assert checksum & 0xFFFFFFFF == crc32c(header + value)
    other = written(store, 3, digest="hmac")
    assert rows(load(ledger=other, includeMetadata=True), "crc32c", "length") == [(None, 0), (None, 7), (None, 21)]


def test_the_payload_can_be_left_out(store: Any, load: Any) -> None:
    ledger_id = written(store, 300)
    frame = load(ledger=ledger_id, includeValue=False)
    assert frame.columns == COLUMNS[:-1]
    assert frame.count() == 300
    assert load(ledger=ledger_id, columns="value, ledger_id").columns == ["ledger_id", "value"]


def test_the_schema_is_what_spark_derives(load: Any, store: Any) -> None:
    """A record batch that differs in anything is refused by Spark, or worse."""
    from bookies.spark.base import arrow

    frame = load(ledger=written(store, 1), includeMetadata=True, includeHeaders=True, failOnDataLoss=False)
    assert frame.columns == list(arrow.COLUMNS)
    assert all(field.nullable for field in frame.schema)
    derived = arrow.schema_of_spark(frame.schema)
    assert derived.remove_metadata() == arrow.arrow_schema(frame.columns)


def test_a_schema_given_by_the_user_chooses_columns(spark: Any, store: Any, cluster: LocalCluster) -> None:
    ledger_id = written(store, 10)
    reader = spark.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", cluster.metadata_uri)
    frame = reader.option("ledger", ledger_id).schema("value BINARY, entry_id BIGINT").load()
    assert rows(frame, "entry_id", "value") == [(number, value) for number, value in enumerate(payloads(10))]


# -- partitions ----------------------------------------------------------------------------------------------------


def test_ranges_are_split_by_entries_tasks_and_bytes(store: Any, load: Any) -> None:
    ledger_id = written(store, 1000)
    assert partition_sizes(load(ledger=ledger_id)) == [1000]
    assert sum(partition_sizes(load(ledger=ledger_id, minPartitions=4))) == 1000
    assert len(partition_sizes(load(ledger=ledger_id, minPartitions=4))) >= 4
    by_count = partition_sizes(load(ledger=ledger_id, maxRecordsPerPartition=300))
    assert sum(by_count) == 1000
    assert max(by_count) <= 300
    by_size = load(ledger=ledger_id, maxBytesPerPartition="16k")
    assert len(partition_sizes(by_size)) > 4
    assert rows(by_size) == expected(ledger_id, payloads(1000))


def test_a_limit_ends_early_and_the_next_query_works(store: Any, load: Any) -> None:
    ledger_id = written(store, 20_000)
    frame = load(ledger=ledger_id, minPartitions=2)
    assert len(frame.limit(5).collect()) == 5
    assert frame.count() == 20_000


def test_entries_of_a_mebibyte(store: Any, load: Any) -> None:
    values = [bytes([number]) * (1 << 20) for number in range(40)]
    with store.create() as ledger:
        for value in values:
            ledger.append(value)
    assert rows(load(ledger=ledger.ledger_id, minPartitions=2)) == expected(ledger.ledger_id, values)


@needs_spark(4, 1)
def test_each_task_says_what_it_did(spark: Any, store: Any, load: Any) -> None:
    """Source: spark 7.3."""
    ledger_id = written(store, 5000)
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    frame = load(ledger=ledger_id, minPartitions=2)
    logs: list[Any] = []
    try:
        assert frame.count() == 5000
        # Another thread of Spark collects the lines from the workers' output, and may do so after the tasks' end.
        deadline_s = time.monotonic() + 30
        while len(logs) < frame.rdd.getNumPartitions() and time.monotonic() < deadline_s:
            written_by_tasks = spark.tvf.python_worker_logs().filter("logger = 'bookies.spark.tasks'")
            logs = written_by_tasks.select("level", "msg").collect()
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    told = [json.loads(line.msg) for line in logs]
    assert {line.level for line in logs} == {"INFO"}
    assert {line["event"] for line in told} == {"read"}
    assert sorted(line["partition"] for line in told) == list(range(frame.rdd.getNumPartitions()))
    assert sum(line["entries"] for line in told) == 5000
    for line in told:
        assert (line["ranges"], line["gaps"], line["failures"], line["digest_failures"]) == (1, 0, 0, 0)
        assert line["requests"] >= line["batches"] >= 1
        assert line["bytes"] > line["entries"]
        assert line["wait_ms"] >= 0


# -- ledgers that change, bookies that do not answer ---------------------------------------------------------------


def test_a_ledger_being_written_is_read_up_to_its_last_add_confirmed(store: Any, load: Any) -> None:
    writer = store.create()
    writer.append_many(payloads(500))
    writer.append(b"tells the bookies that those before it are confirmed")
    confirmed = rows(load(ledger=writer.ledger_id))
    assert confirmed[:500] == expected(writer.ledger_id, payloads(500))
    assert len(confirmed) <= 501  # a writer that is idle for a moment tells the bookies about its last entry, too
    assert writer.append(b"the writer goes on") == 501
    assert writer.seal() == 501
    assert load(ledger=writer.ledger_id).count() == 502


def test_a_frame_is_a_snapshot(store: Any, load: Any) -> None:
    writer = store.create(labels={"app": "snapshot"})
    writer.append_many(payloads(100))
    writer.append_many(payloads(100))
    frame = load(label="app=snapshot")
    count = frame.count()
    assert 100 <= count <= 200
    writer.append_many(payloads(300))
    written(store, 50, labels={"app": "snapshot"})
    assert frame.count() == count
    assert frame.union(frame).count() == 2 * count
    assert frame.filter("entry_id >= 0").count() == count
    writer.seal()
    assert frame.count() == count
    assert load(label="app=snapshot").count() == 550


@pytest.mark.parametrize("write_quorum", [3, 2])
def test_an_ensemble_that_changed_and_a_dead_bookie(
    cluster: LocalCluster, store: Any, load: Any, write_quorum: int
) -> None:
    with store.create(ensemble=3, write_quorum=write_quorum, ack_quorum=2) as ledger:
        ledger.append_many(payloads(400))
        victim = ledger.metadata.last_ensemble[1]
        cluster.kill(victim)
        try:
            count = 400
            while len(ledger.metadata.ensembles) == 1:  # a failure behind the ack quorum shows with a later append
                ledger.append_many(payloads(100, count))
                count += 100
            ledger.seal()
            frame = load(ledger=ledger.ledger_id, minPartitions=3)
            assert rows(frame) == expected(ledger.ledger_id, payloads(count))
        finally:
            cluster.restart(victim)


def test_a_striped_ledger(store: Any, load: Any) -> None:
    ledger_id = written(store, 2000, ensemble=3, write_quorum=2)
    assert rows(load(ledger=ledger_id)) == expected(ledger_id, payloads(2000))


# -- mistakes ------------------------------------------------------------------------------------------------------


def refusal(load: Any, *path: object, **options: object) -> str:
    """What the user of these options is told, in one line."""
    return said(lambda: load(*path, **options).collect())


def said(action: Callable[[], object]) -> str:
    """What the user is told who does this, in one line."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        action()
    return " ".join(str(caught.value).split())


def test_passwords_are_given_by_reference(store: Any, load: Any, tmp_path: pathlib.Path) -> None:
    ledger_id = written(store, 10, password=b"secret", digest="hmac")
    (tmp_path / "right").write_text("secret\n")
    (tmp_path / "wrong").write_text("guess")
    frame = load(ledger=ledger_id, bookkeeper__passwordFile=str(tmp_path / "right"))
    assert rows(frame) == expected(ledger_id, payloads(10))
    assert "secret" not in frame._jdf.queryExecution().toString()
    for options in ({}, {"bookkeeper__passwordFile": str(tmp_path / "wrong")}):
        assert f"wrong password: pass the one the ledger was created with (ledger {ledger_id})" in refusal(
            load, ledger=ledger_id, **options
        )
    said = refusal(load, ledger=ledger_id, bookkeeper__passwordFile=str(tmp_path / "absent"))
    assert "option bookkeeper.passwordFile: " in said
    assert "no variable NOWHERE" in refusal(load, ledger=ledger_id, bookkeeper__passwordEnv="NOWHERE")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ledger": 424242}, "(ledger 424242)"),
        ({"ledgr": 1}, "unknown option 'ledgr'; did you mean ledger?"),
        ({"assign": '{"ledgers": {"0": [0, 999999]}}'}, "option assign asks for 999999"),
    ],
)
def test_mistakes_are_said_in_a_sentence(store: Any, load: Any, options: dict[str, object], sentence: str) -> None:
    """By the process that plans, and by the one that knows the options. More of them: `test_spark_source.py`."""
    assert sentence in refusal(load, **options)


def test_damage_on_every_replica_fails_the_query_and_names_the_entry(
    cluster: LocalCluster, store: Any, load: Any
) -> None:
    with store.create(ensemble=1) as ledger:
        ledger.append_many([b"first", b"a payload to be damaged", b"last"])
    [bookie_id] = ledger.metadata.last_ensemble
    cluster.stop()
    for path in pathlib.Path(cluster.directory, bookie_id, "ledgers", "current").glob("*.log"):
        path.write_bytes(path.read_bytes().replace(b"a payload to be damaged", b"A payload to be damaged"))
    cluster.start()
    sentence = refusal(load, ledger=ledger.ledger_id)
    assert "entry does not verify (digest)" in sentence
    assert f"(ledger {ledger.ledger_id}, entry 1, bookie {bookie_id})" in sentence
    assert rows(load(assign=json.dumps({"ledgers": {str(ledger.ledger_id): [2, 2]}}))) == [
        (ledger.ledger_id, 2, b"last")
    ]
