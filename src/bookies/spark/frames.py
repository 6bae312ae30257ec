"""Registration of the data source and of metrics; functions that append DataFrames to a log and read one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bookies.spark.streams import StreamMetrics


def register(spark: SparkSession) -> None:
    """Register `format("bookkeeper")` in a session."""
    from bookies.spark.source import BookKeeperDataSource

    context = getattr(spark, "sparkContext", None)  # Sessions of Spark Connect have none.
    if context is not None and (context.master or "").startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        # Spark would start `python3` from the path, which may lack this package.
        context.pythonExec = sys.executable
    spark.dataSource.register(BookKeeperDataSource)


def register_metrics(
    spark: SparkSession, registry: Any = None, *, labels: dict[str, str] | None = None
) -> StreamMetrics:
    """Add the figures of a session's streaming queries to a registry of `prometheus_client`. Return the listener.

    * `registry`: a `CollectorRegistry`; None: the default one.
    * `labels`: added to every sample.

    Call it before the queries start. `spark.streams.removeListener(listener)` ends it.

    Raises `NotSupported` without the package `prometheus_client` (extra `prometheus`).
    """
    from bookies.metrics.prometheus import add_collector
    from bookies.metrics.stream_table import TABLE
    from bookies.spark.streams import StreamMetrics

    listener = StreamMetrics()
    add_collector(TABLE, "stream", listener.usage, registry, labels)
    spark.streams.addListener(listener)
    return listener


def prepare_for_log(df: DataFrame, n: int, key: str, *order: str) -> DataFrame:
    """Return the rows with each key in one partition of `n`, sorted by key and then by `order`.

    Partitions follow each other in the log, and the rows of a partition keep their order.
    """
    return df.repartition(n, key).sortWithinPartitions(key, *order)


def write_log(df: DataFrame, uri: str, log: str, *, mode: str = "append", **options: object) -> None:
    """Append the rows to a log, all or none; `mode="overwrite"` replaces its rows.

    `options`: docs/reference/spark-writing.md.
    """
    register(df.sparkSession)
    writer = df.write.format("bookkeeper").mode(mode).option("bookkeeper.metadataServiceUri", uri).option("log", log)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()


def read_log(spark: SparkSession, uri: str, log: str, **options: object) -> DataFrame:
    """Return the current rows of a log. `options`: docs/reference/spark.md."""
    return _loaded(spark, uri, {"subscribe": log, **options})


def summarize_log(spark: SparkSession, uri: str, log: str, **options: object) -> DataFrame:
    """Return one row about what `read_log` with these options returns: the number of rows, the first and the last.

    No entries are read but these two. The columns are those of the table `summary`: docs/reference/spark.md.
    """
    return _loaded(spark, uri, {"subscribe": log, "table": "summary", **options})


def _loaded(spark: SparkSession, uri: str, options: Mapping[str, object]) -> DataFrame:
    register(spark)
    reader = spark.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", uri)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()
