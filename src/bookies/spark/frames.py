"""Registration of the data source and of metrics; tables of logs; functions that append to a log and read one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bookies.spark.catalog import TableChange
    from bookies.spark.streams import StreamMetrics
    from bookies.spark.write.lake import TableSink


def register(spark: SparkSession) -> None:
    """Register `format("bookkeeper")` in a session."""
    from pyspark.errors import AnalysisException

    from bookies.spark.source import BookKeeperDataSource

    context = getattr(spark, "sparkContext", None)  # Sessions of Spark Connect have none.
    if context is not None and (context.master or "").startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        # Spark would start `python3` from the path, which may lack this package.
        context.pythonExec = sys.executable
    try:
        spark.dataSource.register(BookKeeperDataSource)
    except AnalysisException as error:
        # Spark 4.0 discovers the source through `pyspark_bookkeeper`, and then refuses to register it.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def register_logs(
    spark: SparkSession,
    database: str,
    uri: str,
    *,
    tables: Mapping[str, str] | None = None,
    dry_run: bool = False,
    **options: object,
) -> list[TableChange]:
    """Make a database with a table for each log of a cluster. Return what was done, sorted by table.

    * `tables`: names of tables, by log. Default: the log's name in lower case, with `_` for `-` and `.`.
    * `dry_run`: only return what would be done.
    * `options`: of the source and of the sink, for all tables. `subscribePattern` chooses the logs.

    A repeated call adds tables of new logs, replaces tables whose columns have changed, and drops tables of logs that
    do not exist or are not chosen. It does not touch other tables. A new session needs the call before it uses tables
    that an earlier one made. A log without a readable schema is skipped, with the reason in the result.

    Raises `InvalidArgument` for unknown options, two logs with one table name, and a name that another table has.
    """
    from bookies.spark.catalog import keep_tables

    register(spark)
    given = {name: str(value) for name, value in options.items()}
    return keep_tables(spark, database, uri, tables=tables or {}, options=given, dry_run=dry_run)


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


def delta_sink(
    path: str,
    *,
    key: Sequence[str] = (),
    order: str = "offset",
    tombstone: str | None = None,
    storage_options: dict[str, str] | None = None,
) -> TableSink:
    """Return the function for `writeStream.foreachBatch` that keeps a table of Delta Lake, each batch exactly once.

    * `path`: path or URL of the table. The first batch creates it.
    * `key`: columns that identify a row. Then the last row of a key replaces the earlier one. Default: rows are
      appended.
    * `order`: column by which the last row of a key is found.
    * `tombstone`: column that is null in a row that deletes its key.
    * `storage_options`: of the package `deltalake`.

    Raises `ConfigError` without the package (extra `delta`).
    """
    from bookies.spark.write.delta import DeltaStore
    from bookies.spark.write.lake import TableSink

    return TableSink(DeltaStore(path, storage_options), key, order, tombstone)


def iceberg_sink(
    table: str,
    *,
    catalog: str | dict[str, str] = "default",
    key: Sequence[str] = (),
    order: str = "offset",
    tombstone: str | None = None,
) -> TableSink:
    """Return the function for `writeStream.foreachBatch` that keeps a table of Iceberg, each batch exactly once.

    * `table`: `NAMESPACE.NAME`. The first batch creates it.
    * `catalog`: name in the configuration of `pyiceberg`, or the properties of a catalog.
    * `key`, `order`, `tombstone`: as for `delta_sink`.

    Raises `ConfigError` without the package (extra `iceberg`).
    """
    from bookies.spark.write.iceberg import IcebergStore
    from bookies.spark.write.lake import TableSink

    return TableSink(IcebergStore(table, catalog), key, order, tombstone)


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


def snapshot_logs(uri: str, *logs: str, **options: object) -> str:
    """Return a text for option `snapshot`, with which a later query reads exactly the rows that the logs have now.

    `options`: of the source, for the connection. Raises `LogNotFound`.
    """
    from bookies.spark.base import runtime
    from bookies.spark.base.options import URI
    from bookies.spark.base.settings import checked, settings
    from bookies.spark.read import planning

    given = {URI: uri, "subscribe": ",".join(logs), **{name: str(value) for name, value in options.items()}}
    chosen = settings(checked(given), is_stream=False)
    return runtime.worker().run(planning.persistently(chosen, lambda: planning.snapshot(chosen)))


def _loaded(spark: SparkSession, uri: str, options: Mapping[str, object]) -> DataFrame:
    register(spark)
    reader = spark.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", uri)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()
