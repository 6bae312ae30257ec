"""A program of a Spark Connect client: from one log to two others.

    spark_connect_app.py PORT METADATA FROM TO STREAMED

A batch goes to the log TO, a stream to STREAMED. The result is one line of JSON on stdout.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any


def main(port: str, uri: str, source: str, target: str, streamed: str) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    options = {"bookkeeper.metadataServiceUri": uri}

    def reading(reader: Any) -> Any:
        return reader.format("bookkeeper").options(**options).option("subscribe", source)

    entries = reading(spark.read).load()
    found: dict[str, Any] = {"rows": entries.count(), "columns": entries.columns}
    entries.select("value").write.format("bookkeeper").mode("append").options(**options).save(target)
    with tempfile.TemporaryDirectory() as checkpoint:
        stream = reading(spark.readStream).option("startingOffsets", "earliest").load().select("value")
        query = (
            stream.writeStream.format("bookkeeper")
            .options(**options)
            .option("log", streamed)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        found["has_ended"] = query.awaitTermination(200)
    # All this the client's environment could do without the package; the short forms are in it.
    import bookies.spark

    found["read"] = bookies.spark.read_log(spark, uri, source).count()
    spark.stop()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
