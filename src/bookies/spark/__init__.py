"""Spark: ledgers as DataFrames.

import bookies.spark
bookies.spark.register(spark)
spark.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", "file:./bk-data/metadata").load("17")
"""

from __future__ import annotations

from bookies.spark.frames import (
    delta_sink,
    iceberg_sink,
    prepare_for_log,
    read_log,
    register,
    register_logs,
    register_metrics,
    snapshot_logs,
    summarize_log,
    write_log,
)

__all__ = [
    "delta_sink",
    "iceberg_sink",
    "prepare_for_log",
    "read_log",
    "register",
    "register_logs",
    "register_metrics",
    "snapshot_logs",
    "summarize_log",
    "write_log",
]
