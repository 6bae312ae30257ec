"""Reading with Spark: partitions, rows, streams, tables."""
