"""Entry point for Spark's automatic registration: Spark loads modules named `pyspark_*` and their `DefaultSource`."""

from bookies.spark.source import BookKeeperDataSource as DefaultSource

__all__ = ["DefaultSource"]
