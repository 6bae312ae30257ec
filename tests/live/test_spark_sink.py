"""The sink in a real Spark session, over real bookies: what is written, once, and what is refused."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.live.spark_faults import Marks, faulty_source
from tests.live.spark_marks import SMALL_BOOKIES, SPARK_MARKS, needs_spark

import bookies as bk
import bookies.spark
from bookies.admin.cluster import LocalCluster
from bookies.spark.base import envelope

pytestmark = SPARK_MARKS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("sink-bookies") / "bk-data"
    with LocalCluster(directory, 3, settings=SMALL_BOOKIES) as cluster:
        yield cluster


@pytest.fixture
def log(store: bk.blocking.Client, request: pytest.FixtureRequest) -> Any:
    """A log of this test's own, with one replica of each entry."""
    name = request.node.name.replace("[", ".").replace("]", "").replace(" ", "-")[:60]
    made = store.log(name)
    made.create(ensemble=1)
    return made


@pytest.fixture
def save(spark: Any, cluster: LocalCluster) -> Callable[..., None]:
    def save(frame: Any, mode: str = "append", **options: object) -> None:
        writer = frame.write.format("bookkeeper").mode(mode)
        for name, value in ({"bookkeeper__metadataServiceUri": cluster.metadata_uri} | options).items():
            writer = writer.option(name.replace("__", "."), value)
        writer.save()

    return save


def frame_of(spark: Any, values: list[bytes], partitions: int = 2) -> Any:
    """A DataFrame with these values, in this order, in consecutive partitions."""
    rows = [(number, bytearray(value)) for number, value in enumerate(values)]
    return (
        spark.createDataFrame(rows, "n INT, value BINARY")
        .repartitionByRange(partitions, "n")
        .sortWithinPartitions("n")
        .select("value")
    )


def entries(log: Any) -> list[bytes]:
    with log.open() as reader:
        return [entry.payload for entry in reader.read()]


def payloads(count: int) -> list[bytes]:
    return [b"entry %d" % number * (number % 5) for number in range(count)]


def assert_clean(store: bk.blocking.Client, log: Any) -> None:
    """The reaper leaves no ledger of the log that the log does not list."""
    assert all(each.outcome == "deleted" for each in log.reap(orphan_grace=0, replay_grace=0))
    left = [each.ledger_id for each in store.ledgers(("sink.log", log.name))]
    assert set(left) <= set(log.manifest().ledger_ids)


# -- batches -------------------------------------------------------------------------------------------------------


def test_rows_become_entries_in_the_order_of_partitions(spark: Any, log: Any, save: Any, store: Any) -> None:
    bookies.spark.register(spark)
    save(frame_of(spark, payloads(5000), 3), log=log.name)
    assert entries(log) == payloads(5000)
    assert len(log.manifest().extents) == 3
    assert log.manifest().txns == {}
    save(frame_of(spark, [b"more"], 1).selectExpr("CAST(value AS STRING) value"), topic=log.name)
    assert entries(log) == [*payloads(5000), b"more"]
    save(spark.range(0).selectExpr("CAST(id AS STRING) value"), path=log.name)
    assert entries(log) == [*payloads(5000), b"more"]
    assert_clean(store, log)


def test_ledgers_are_rolled_by_size_and_shaped_by_options(spark: Any, log: Any, save: Any, store: Any) -> None:
    values = [bytes([number]) * 1000 for number in range(200)]
    save(
        frame_of(spark, values, 1).repartition(1), log=log.name, maxLedgerBytes="50k", ensembleSize=3, writeQuorum=2,
        ackQuorum=1, digestType="hmac",
    )  # fmt: skip
    assert sorted(entries(log)) == sorted(values)
    ledger = store.metadata(log.manifest().ledger_ids[0])
    assert (ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum) == (3, 2, 1)
    assert ledger.digest_type is bk.DigestType.HMAC
    assert ledger.custom_metadata["sink.log"] == log.name.encode()


def test_a_named_batch_is_written_once(spark: Any, log: Any, save: Any, store: Any) -> None:
    for _ in range(2):
        save(frame_of(spark, payloads(100)), log=log.name, txnAppId="nightly", txnVersion=7)
    assert entries(log) == payloads(100)
    save(frame_of(spark, [b"later"]), log=log.name, txnAppId="nightly", txnVersion=8)
    assert entries(log) == [*payloads(100), b"later"]
    assert_clean(store, log)


def test_overwriting_replaces_everything(spark: Any, log: Any, save: Any, store: Any) -> None:
    for values in (payloads(100), payloads(10), []):
        save(frame_of(spark, values), "overwrite", log=log.name)
        assert entries(log) == values
    assert_clean(store, log)


def test_a_log_is_made_when_that_is_asked_for(spark: Any, store: Any, save: Any) -> None:
    frame = spark.sql("SELECT 'v' AS value, CAST('k' AS BINARY) AS key")
    save(frame, log="made", createLog=True, ensembleSize=1)
    save(frame, log="made", createLog=True, ensembleSize=1)
    assert store.log("made").manifest().record_format == "envelope"
    assert len(entries(store.log("made"))) == 2


def test_records_with_key_headers_and_timestamp(spark: Any, store: Any, save: Any) -> None:
    import pyarrow as pa

    log = store.log("records")
    log.create(ensemble=1, record_format="envelope")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = [
        (b"v0", "k0", datetime(2026, 1, 2, 3, 4, 5, 6), [("a", b"1"), ("b", None)]),
        (None, None, None, None),
        (b"v2", "", datetime(1969, 1, 1), []),
    ]
    schema = "value BINARY, key STRING, timestamp TIMESTAMP, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    save(spark.createDataFrame(rows, schema).coalesce(1), log="records")
    found = envelope.decode(pa.array(entries(log), pa.binary()))
    assert found["value"].to_pylist() == [b"v0", None, b"v2"]
    assert found["key"].to_pylist() == [b"k0", None, b""]
    assert found["headers"].to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None, [],
    ]  # fmt: skip
    assert found["timestamp"].to_pylist() == [
        datetime(2026, 1, 2, 3, 4, 5, 6, UTC), None, datetime(1969, 1, 1, tzinfo=UTC),
    ]  # fmt: skip


def test_records_in_sets_are_written_and_read(spark: Any, store: Any, save: Any, cluster: LocalCluster) -> None:
    rows = [(b"%d" % at, b"k" if at % 2 else None, datetime(2026, 1, 2, 3, 4, at)) for at in range(50)]
    frame = spark.createDataFrame(rows, "value BINARY, key BINARY, timestamp TIMESTAMP").coalesce(1)
    save(frame, log="sets", createLog=True, recordFormat="sets", compression="zstd", ensembleSize=1)
    log = store.log("sets")
    assert (log.manifest().record_format, log.manifest().compression) == ("sets", "zstd")
    with log.open() as reader:
        found = [(record.value, record.key) for record in reader.read().records()]
    assert found == [row[:2] for row in rows]
    reader = (
        spark.read.format("bookkeeper")
        .option("bookkeeper.metadataServiceUri", cluster.metadata_uri)
        .option("subscribe", "sets")
    )
    source = reader.option("columns", "value,timestamp").load()
    assert sorted((bytes(row.value), row.timestamp) for row in source.collect()) == sorted(
        (value, moment) for value, _, moment in rows
    )


def test_rows_go_to_several_logs_at_one_moment(spark: Any, store: Any, save: Any) -> None:
    for number in range(3):
        store.log(f"route-{number}").create(ensemble=1, exist_ok=True)
    frame = spark.range(300).selectExpr("CONCAT('route-', id % 3) AS log", "CAST(id AS STRING) AS value")
    save(frame.coalesce(1), txnAppId="router", txnVersion=0)
    for number in range(3):
        log = store.log(f"route-{number}")
        assert entries(log) == [b"%d" % each for each in range(number, 300, 3)]
        assert log.manifest().txns["router"]["version"] == 0
    with store.log("route-2").lead() as writer:
        writer.append(b"led")
        assert "is being written by a leader" in refusal(save, frame.coalesce(1))
        assert len(entries(store.log("route-0"))) == 100
        save(frame.coalesce(1), onOpenTail="fence")
        with pytest.raises(bk.LogFenced):
            writer.append(b"too late")
        writer.abandon()
    assert len(entries(store.log("route-2"))) == 201


def refusal(save: Any, frame: Any, mode: str = "append", **options: object) -> str:
    """What the user is told, in one line."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        save(frame, mode, **options)
    return " ".join(str(caught.value).split())


@pytest.mark.parametrize(
    ("query", "options", "sentence"),
    [
        ("'v' AS value", {"log": "nowhere"}, "there is no log nowhere: create it with `bk log create nowhere`"),
        ("CAST(NULL AS STRING) AS value", {"log": "mistakes"}, "column 'value' is null in 1 of 1 rows"),
        ("'v' AS value", {"log": "mistakes", "maxLedgerByte": 1}, "unknown option"),
        ("'v' AS value", {"log": "mistakes", "onBatchGap": "accept"}, "option onBatchGap is for streams"),
    ],
)
def test_mistakes_are_said_in_a_sentence(
    spark: Any, store: Any, save: Any, query: str, options: dict[str, object], sentence: str
) -> None:
    """By the process that plans and by tasks. More of them: `test_spark_source.py`."""
    store.log("mistakes").create(ensemble=1, exist_ok=True)
    assert sentence in refusal(save, spark.sql(f"SELECT {query}"), **options)
    assert entries(store.log("mistakes")) == []
    assert_clean(store, store.log("mistakes"))


@needs_spark(4, 1)
def test_the_page_about_writing_does_what_it_says(
    spark: Any, cluster: LocalCluster, store: Any, tmp_path: pathlib.Path
) -> None:
    """Every snippet of docs/reference/spark-writing.md, in order."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\ntwo\n")
    page = (pathlib.Path(__file__).parent.parent.parent / "docs" / "reference" / "spark-writing.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {
        "spark": spark,
        "uri": cluster.metadata_uri,
        "directory": str(tmp_path / "in"),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    for snippet in snippets:
        exec(compile(snippet, "docs/reference/spark-writing.md", "exec"), names)
    orders = [b"order %d" % number for number in range(9)]
    assert sorted(entries(store.log("orders"))) == orders
    assert sorted(entries(store.log("lines"))) == [b"one", b"two"]
    assert store.log("records").manifest().record_format == "envelope"
    assert len(entries(store.log("customer-0"))) == 3
    assert sorted(entries(store.log("nightly"))) == orders
    by_customer = entries(store.log("by-customer"))
    customers = [int(value.split()[1]) % 3 for value in by_customer]
    assert [value for at, value in enumerate(by_customer) if customers[at] == 0] == orders[0::3]
    assert len([at for at in range(1, 9) if customers[at] != customers[at - 1]]) == 2


# -- streams -------------------------------------------------------------------------------------------------------


class Stream:
    """A query from a directory of text files, a file a batch, into a log. `source`: the format's name."""

    def __init__(self, spark: Any, log: Any, directory: pathlib.Path, options: dict[str, str]) -> None:
        self.spark = spark
        self.log = log
        self.directory = directory
        self.options = options
        self.source = "bookkeeper"
        self.condition = "true"  # of the rows
        self.values: list[bytes] = []
        self.failures: list[str] = []
        (directory / "in").mkdir()

    def add_batch(self, number: int, rows: int = 40) -> None:
        values = [f"{number}/{row:03d}" for row in range(rows)]
        self.values += [value.encode() for value in values]
        path = self.directory / "in" / f"{number:03d}.txt"
        path.write_text("\n".join(values) + "\n")
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark takes the oldest first.

    def frame(self) -> Any:
        reader = self.spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        frame = reader.load(str(self.directory / "in"))
        return frame.where(self.condition).repartitionByRange(
            2, "value"
        )  # One task reads a file, so that each part keeps its order.

    def run(self, checkpoint: str = "checkpoint") -> bool:
        """Everything that is there; whether the query came to its end."""
        from pyspark.errors import StreamingQueryException

        writer = self.frame().writeStream.format(self.source).outputMode("append").trigger(availableNow=True)
        # Spark passes the name and the checkpoint along as options.
        writer = writer.queryName("orders").option("checkpointLocation", str(self.directory / checkpoint))
        query = writer.options(**self.options).start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            self.failures.append(" ".join(str(error).split()))
            return False
        return True


@pytest.fixture
def stream(spark: Any, cluster: LocalCluster, log: Any, tmp_path: pathlib.Path) -> Stream:
    bookies.spark.register(spark)
    return Stream(spark, log, tmp_path, {"bookkeeper.metadataServiceUri": cluster.metadata_uri, "log": log.name})


@needs_spark(4, 1)
def test_a_stream_writes_each_batch_once_and_goes_on_where_it_was(stream: Stream, store: Any) -> None:
    for number in range(3):
        stream.add_batch(number)
        assert stream.run()
        assert entries(stream.log) == stream.values
    [(app, last)] = stream.log.manifest().txns.items()
    assert (last["query"], last["version"]) == (app, 2)
    assert stream.run()
    assert entries(stream.log) == stream.values
    assert_clean(store, stream.log)


@needs_spark(4, 1)
def test_a_new_checkpoint_under_an_old_name_is_refused(stream: Stream) -> None:
    stream.options["txnAppId"] = "orders-etl"
    stream.add_batch(0)
    assert stream.run()
    assert not stream.run("another checkpoint")
    assert "application 'orders-etl' committed version 0 to log" in stream.failures[-1]
    assert "Go on with the old checkpoint, or choose another txnAppId" in stream.failures[-1]
    assert entries(stream.log) == stream.values
    stream.options["txnVersion"] = "1"
    assert not stream.run("third")
    assert "option txnVersion is for batch writes" in stream.failures[-1]


@needs_spark(4, 1)
def test_a_stream_notices_that_its_log_lacks_batches(stream: Stream, store: Any) -> None:
    """It goes on as with a mirror that lacks the last ones: they are in another log. One without rows is not missed."""
    stream.condition = "not value like '1/%'"
    for number in range(2):
        stream.add_batch(number)
    assert stream.run()
    log, elsewhere = stream.log, store.log("elsewhere")
    [last] = log.manifest().txns.values()
    assert last["version"] == 1
    elsewhere.create(ensemble=1)
    stream.options["log"] = "elsewhere"
    stream.add_batch(2)
    assert stream.run()
    stream.options["log"] = log.name
    stream.add_batch(3)
    assert not stream.run()
    text = f"commits batch 3 to log {log.name}, whose last one is batch 1: the log lacks batch 2"
    assert f"query {last['query']}" in stream.failures[-1]
    assert text in stream.failures[-1]
    assert entries(log) == stream.values[:40]
    stream.options["onBatchGap"] = "accept"
    assert stream.run()
    assert entries(log) == [*stream.values[:40], *stream.values[120:]]
    assert_clean(store, log)


FAULTS = [
    (0, "task raises"),
    (1, "task dies"),
    (2, "commit raises before"),
    (3, "commit raises after"),
    (4, "commit dies before"),
    (5, "commit dies after"),
    (6, "abort leaves a zombie"),
    (7, "answer is lost"),
    (8, "every task raises"),
]


def run_through_faults(stream: Stream, marks: Marks) -> None:
    """Run a stream with a fault in each batch, until all batches are written."""
    for batch, fault in FAULTS:
        marks.set(batch, fault)
        stream.add_batch(batch)
    stream.add_batch(len(FAULTS))
    runs = 1
    while not stream.run():
        runs += 1
        assert runs < 15, stream.failures
    assert marks.left() == []
    assert runs > 5


@needs_spark(4, 1)
def test_every_failure_leaves_each_batch_once(
    spark: Any, cluster: LocalCluster, stream: Stream, store: Any, tmp_path: pathlib.Path
) -> None:
    """One-shot faults at every step of 4.4 that a running driver survives; the others are in the chaos run."""
    marks = Marks(tmp_path / "marks")
    spark.dataSource.register(faulty_source(marks.directory))
    stream.source = "bookkeeper-faulty"
    run_through_faults(stream, marks)
    assert entries(stream.log) == stream.values
    assert_clean(store, stream.log)
