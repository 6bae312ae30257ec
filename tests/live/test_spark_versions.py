"""What every version of PySpark does, and the sentence about what an older one lacks."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.spark_marks import PANDAS_MARKS, SMALL_BOOKIES, installed, persistently

import bookies.spark
from bookies.admin.cluster import LocalCluster
from bookies.spark.jobs import scrub
from bookies.spark.jobs.shared.common import JobConfig

pytestmark = [*PANDAS_MARKS, pytest.mark.versions]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("versions") / "bk-data", 1, settings=SMALL_BOOKIES) as cluster:
        yield cluster


def test_batches_jobs_and_what_is_lacking(
    spark: Any, store: Any, cluster: LocalCluster, tmp_path: pathlib.Path
) -> None:
    store.log("orders").create(ensemble=1)
    rows = spark.createDataFrame([(str(number),) for number in range(20)], "value STRING").coalesce(1)
    for _ in range(2):  # The second one was committed before.
        bookies.spark.write_log(rows, cluster.metadata_uri, "orders", txnAppId="app", txnVersion=1)
    assert bookies.spark.read_log(spark, cluster.metadata_uri, "orders").count() == 20
    complete = scrub.complete(spark, JobConfig(cluster.metadata_uri, is_quiet=True))
    assert complete.report.is_good
    assert "no findings" in complete.report.lead
    address = {"bookkeeper.metadataServiceUri": cluster.metadata_uri}
    stream = spark.readStream.format("bookkeeper").options(**address, subscribe="orders")
    if installed() < (4, 2):
        with pytest.raises(Exception, match=r"4\.2 is needed to read a log as a stream"):
            persistently(lambda: started(stream.load().writeStream.format("noop"), tmp_path / "read"))
    if installed() < (4, 1):
        sink = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING)").writeStream
        writer = sink.format("bookkeeper").options(**address, log="orders")
        with pytest.raises(Exception, match=r"4\.1 is needed to write a stream.*foreachBatch"):
            persistently(lambda: started(writer, tmp_path / "written"))


def started(writer: Any, checkpoint: pathlib.Path) -> None:
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
