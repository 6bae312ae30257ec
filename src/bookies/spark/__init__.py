"""Spark: ledgers as DataFrames.

import bookies.spark
bookies.spark.register(spark)
spark.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", "file:./bk-data/metadata").load("17")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("bookkeeper")` known to a session."""
    from bookies.spark.source import BookKeeperDataSource

    spark.dataSource.register(BookKeeperDataSource)
