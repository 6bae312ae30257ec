"""Spark: ledgers as DataFrames.

import bookies.spark
bookies.spark.register(spark)
spark.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", "file:./bk-data/metadata").load("17")
"""

from __future__ import annotations

from bookies.spark.frames import prepare_for_log, read_log, register, register_metrics, summarize_log, write_log

__all__ = ["prepare_for_log", "read_log", "register", "register_metrics", "summarize_log", "write_log"]
