"""The sink on logs of DistributedLog, in a real Spark session: what is written, once, and what is refused."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.spark_faults import Marks, faulty_source
from tests.live.spark_marks import SMALL_BOOKIES, SPARK_MARKS
from tests.live.test_spark_sink import Stream, frame_of, payloads, run_through_faults

import bookies as bk
import bookies.spark
from bookies import distributedlog
from bookies.admin.cluster import LocalCluster

pytestmark = SPARK_MARKS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("dlog-sink") / "bk-data"
    with LocalCluster(directory, 3, settings=SMALL_BOOKIES) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def namespace(cluster: LocalCluster) -> Iterator[Any]:
    with distributedlog.blocking.open_namespace(f"{cluster.metadata_uri}#apps") as namespace:
        yield namespace


@pytest.fixture
def options(spark: Any, cluster: LocalCluster, request: pytest.FixtureRequest) -> dict[str, str]:
    """Options of a log of this test's own."""
    bookies.spark.register(spark)
    return {"namespace": f"{cluster.metadata_uri}#apps", "log": f"sink/{request.node.name}", "ensembleSize": "1"}


def save(frame: Any, options: dict[str, str], mode: str = "append", **more: object) -> None:
    writer = frame.write.format("bookkeeper").mode(mode).options(**options)
    for name, value in more.items():
        writer = writer.option(name, value)
    writer.save()


def refusal(frame: Any, options: dict[str, str], mode: str = "append", **more: object) -> str:
    with pytest.raises(Exception) as caught:
        save(frame, options, mode, **more)
    return " ".join(str(caught.value).split())


def entries(log: Any) -> list[bytes]:
    with log.open() as reader:
        return [record.payload for record in reader.read()]


def test_rows_become_records_in_the_order_of_partitions(spark: Any, options: dict[str, str], namespace: Any) -> None:
    log = namespace.log(options["log"])
    save(frame_of(spark, payloads(5000), 3), options, createLog=True, maxLedgerBytes="20k")
    assert entries(log) == payloads(5000)
    assert log.count() == 5000
    with log.lead(ensemble=1) as writer:
        writer.append(b"by a leader")
    save(frame_of(spark, [b"more"], 1).selectExpr("CAST(value AS STRING) value"), options)
    assert entries(log)[5000:] == [b"by a leader", b"more"]
    rows = spark.read.format("bookkeeper").option("namespace", options["namespace"]).option("subscribe", log.name)
    assert [row.txid for row in rows.load().sort("txid").collect()][-3:] == [1, 2, 3]


def test_a_named_batch_is_written_once(
    spark: Any, options: dict[str, str], namespace: Any, store: bk.blocking.Client
) -> None:
    log = namespace.log(options["log"])
    for _ in range(2):
        save(frame_of(spark, payloads(100)), options, createLog=True, txnAppId="nightly", txnVersion=7)
    save(frame_of(spark, [b"later"]), options, txnAppId="nightly", txnVersion=8)
    assert entries(log) == [*payloads(100), b"later"]
    listed = {segment.ledger_id for segment in log.segments()}
    assert {each.ledger_id for each in store.ledgers(("dlog.app", "nightly"))} == listed


@pytest.mark.parametrize(
    ("query", "mode", "more", "sentence"),
    [
        ("'a' AS value", "append", {}, "there is no log"),
        ("'a' AS value", "overwrite", {"createLog": True}, "can only be appended to; use mode append"),
        ("'a' AS value, 'k' AS key", "append", {}, "column 'key': a record of DistributedLog is a value alone"),
        ("'a' AS value", "append", {"recordFormat": "raw"}, "option recordFormat has no meaning"),
        ("CAST(NULL AS STRING) AS value", "append", {"createLog": True}, "null in 1 of 1 rows"),
    ],
)
def test_mistakes_are_said_in_a_sentence(
    spark: Any, options: dict[str, str], query: str, mode: str, more: dict[str, object], sentence: str
) -> None:
    assert sentence in refusal(spark.sql(f"SELECT {query}"), options | {"log": f"refused{len(sentence)}"}, mode, **more)


def test_a_leader_that_writes_the_log_is_refused_or_stopped(
    spark: Any, options: dict[str, str], namespace: Any
) -> None:
    log = namespace.log(options["log"])
    writer = log.lead(ensemble=1)
    writer.append(b"0")
    frame = frame_of(spark, [b"1"], 1)
    assert "end it with onOpenTail=fence" in refusal(frame, options)
    writer.append(b"0b")
    save(frame, options, onOpenTail="fence")
    with pytest.raises(bk.LogFenced):
        writer.append(b"2")
    writer.abandon()
    assert entries(log) == [b"0", b"0b", b"1"]


@pytest.mark.long
def test_every_failure_leaves_each_batch_once(
    spark: Any, options: dict[str, str], namespace: Any, tmp_path: pathlib.Path, store: bk.blocking.Client
) -> None:
    """One-shot faults at every step that a running driver survives."""
    log = namespace.log(options["log"])
    log.create()
    marks = Marks(tmp_path / "marks")
    spark.dataSource.register(faulty_source(marks.directory))
    stream = Stream(spark, log, tmp_path, options)
    stream.source = "bookkeeper-faulty"
    run_through_faults(stream, marks)
    assert entries(log) == stream.values
    again = stream.run("another checkpoint")
    assert again  # Without txnAppId it is another application: it writes all rows again.
    assert entries(log) == stream.values * 2
