"""Reader process of the demo: reads all records of the run with Spark, their digest, and a small analysis.

The digest depends on every row's place and content, not on the order in which Spark delivers rows: it is the sum of the
first 60 bits of md5("place:content") of each row. Prints one JSON document.

Its parameters are one JSON object: `metadata`, `ledgers` (pairs of ledger id and place of its first line), `flights`:
the input is flights.csv, so delays are computed by carrier.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import threading
import time
from importlib.util import find_spec
from typing import Any

from bookies.errors import ConfigError

# For a job of seconds the optimising compiler and parallel garbage collection cost more time than they save.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CARRIER, ARRIVAL_DELAY, DEPARTURE_DELAY = 9, 8, 5  # columns of flights.csv


def line_digest(place: int, line: bytes) -> int:
    """Return one line's summand of the digest. `_read` computes the same in Spark."""
    return int(hashlib.md5(b"%d:%s" % (place, line), usedforsecurity=False).hexdigest()[:15], 16)


def require_packages(what: str, extra: str) -> None:
    """Raise `ConfigError` unless Spark's packages are installed. `what`: needs them; `extra`: of ours, has them."""
    if missing := [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]:
        raise ConfigError(f"{what} needs {' and '.join(missing)}: pip install 'bookies[{extra}]'")


def main() -> int:
    arguments = argparse.Namespace(**json.loads(sys.argv[1]))
    threading.Thread(target=end_with_owner, daemon=True).start()
    from bookies.spark.base import java

    java.use()
    import bookies.spark

    begin = time.monotonic()
    spark = session("bookies demo")
    bookies.spark.register(spark)
    try:
        started = time.monotonic()
        result = _read(spark, arguments)
        result |= {"session_s": started - begin, "read_s": time.monotonic() - started}
    finally:
        spark.stop()
    print(json.dumps(result))
    return 0


def end_with_owner() -> None:
    """Kill this process group, Java included, when standard input ends: the parent process has ended."""
    if os.getpgrp() == os.getpid() and not os.read(0, 1):
        os.killpg(0, signal.SIGKILL)


def session(name: str) -> Any:
    """Start a Spark session in this process, for a job of little data."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def _read(spark: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    from pyspark.sql import functions as f

    places = {int(ledger): int(place) for ledger, place in arguments.ledgers}
    entries = (
        spark.read.format("bookkeeper")
        .option("bookkeeper.metadataServiceUri", arguments.metadata)
        .option("ledgers", ",".join(map(str, places)))
        .load()
    )
    first = f.create_map(*[f.lit(number) for pair in places.items() for number in pair])
    place = f.element_at(first, f.col("ledger_id")) + f.col("entry_id")
    # Cached, because the table is a second pass over the same rows.
    lines = entries.select(place.alias("place"), "value").cache()
    content = f.md5(f.concat(f.col("place").cast("string").cast("binary"), f.lit(b":"), f.col("value")))
    row = lines.agg(
        f.count("*").alias("rows"),
        f.countDistinct("place").alias("places"),
        f.sum(f.length("value")).alias("size"),
        f.sum(f.conv(f.substring(content, 1, 15), 16, 10).cast("decimal(38,0)")).alias("digest"),
    ).first()
    return {
        "rows": row["rows"],
        "places": row["places"],
        "size": row["size"] or 0,
        "digest": str(row["digest"] or 0),
        "table": _delays(lines) if arguments.flights else _lengths(lines),
    }


def _delays(lines: Any) -> list[list[object]]:
    """Return number of flights and mean delays in minutes by carrier, the latest arrivals first.

    The means omit flights without a figure.
    """
    from pyspark.sql import functions as f

    columns = f.split(f.col("value").cast("string"), ",")
    flights = lines.select(
        columns[CARRIER].alias("carrier"),
        columns[DEPARTURE_DELAY].try_cast("double").alias("departure"),
        columns[ARRIVAL_DELAY].try_cast("double").alias("arrival"),
    )
    table = flights.groupBy("carrier").agg(
        f.count("*").alias("flights"),
        f.round(f.avg("departure"), 1).alias("departure"),
        f.round(f.avg("arrival"), 1).alias("arrival"),
    )
    return [list(row) for row in table.orderBy(f.desc("arrival")).collect()]


def _lengths(lines: Any) -> list[list[object]]:
    """Return the number and size of lines by length, in powers of two. For input other than the flights."""
    from pyspark.sql import functions as f

    size = f.length("value")
    bucket = f.when(size == 0, 0).otherwise(f.pow(2, f.floor(f.log2(size))).cast("bigint"))
    table = lines.groupBy(bucket.alias("from")).agg(f.count("*").alias("lines"), f.sum(size).alias("size"))
    return [list(row) for row in table.orderBy("from").collect()]


if __name__ == "__main__":
    sys.exit(main())
