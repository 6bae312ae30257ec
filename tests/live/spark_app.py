"""A program for spark-submit: from one log to another, with a task that waits when it is told to.

    spark_app.py METADATA FROM TO [DIRECTORY FIRST]

With DIRECTORY the first attempts of the partitions below FIRST say in its FIFO `began` where they run, after some
batches, and go on when there is something for them in its FIFO `go`. The result is one line of JSON on stdout.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

BATCHES = 4  # Spark keeps one or two for itself before the sink has the first


def main(uri: str, source: str, target: str, *waiting: str) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    import bookies.spark

    bookies.spark.register(spark)
    entries = bookies.spark.read_log(spark, uri, source, minPartitions=4, readBatchBytes=20000)
    rows = entries.select("value")
    if waiting:
        rows = rows.mapInArrow(waiter(waiting[0], int(waiting[1])), "value BINARY")
    bookies.spark.write_log(rows, uri, target, txnAppId="app", txnVersion=1)
    found: dict[str, Any] = {
        "partitions": entries.rdd.getNumPartitions(),
        "places": sorted({row.place for row in spark.range(0, 4, 1, 4).mapInArrow(place, "place STRING").collect()}),
        "driver": str(bookies.__file__),
    }
    if not waiting:
        found["streamed"] = streamed(spark, uri, target)
    spark.stop()
    print(json.dumps(found), flush=True)


def streamed(spark: Any, uri: str, log: str) -> int:
    """How many rows a stream delivers."""
    import tempfile

    with tempfile.TemporaryDirectory() as checkpoint:
        stream = spark.readStream.format("bookkeeper").option("bookkeeper.metadataServiceUri", uri)
        query = (
            stream.option("subscribe", log)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(int(progress["numInputRows"]) for progress in query.recentProgress)


def place(batches: Iterator[Any]) -> Iterator[Any]:
    """Where a worker has the package from."""
    import pyarrow as pa

    import bookies

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"place": [str(bookies.__file__)]})


def waiter(directory: str, first: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        for number, batch in enumerate(batches):
            if number == BATCHES and partition < first and is_first(os.path.join(directory, f"partition-{partition}")):
                with open(f"/proc/{os.getppid()}/stat") as file:  # the daemon's, whose parent is the executor
                    executor = file.read().rpartition(")")[2].split()[1]
                with open(os.path.join(directory, "began"), "w") as began:
                    began.write(f"{executor}\n")
                with open(os.path.join(directory, "go"), "rb", buffering=0) as go:
                    go.read(1)
            yield batch

    return wait


def is_first(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
