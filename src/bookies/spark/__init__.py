"""Spark: ledgers as DataFrames.

import bookies.spark
bookies.spark.register(spark)
spark.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", "file:./bk-data/metadata").load("17")
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("bookkeeper")` known to a session."""
    from bookies.spark.source import BookKeeperDataSource

    context = spark.sparkContext
    if (context.master or "").startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        # Spark would start whatever `python3` is on the path, which need not be the one that has this package.
        context.pythonExec = sys.executable
    spark.dataSource.register(BookKeeperDataSource)
