"""Lets Spark find the data source by itself: it looks for modules named `pyspark_*` and their `DefaultSource`."""

from bookies.spark.source import BookKeeperDataSource as DefaultSource

__all__ = ["DefaultSource"]
