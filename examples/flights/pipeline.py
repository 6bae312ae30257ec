"""The flights of a year as a stream, hourly statistics of delays exactly once in a second log, checked and drawn.

    python pipeline.py [--seconds 50] [--days 365] [--output flights.svg] [--keep DIR]

See ../README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from plot import draw
from writer import DAYS, data_file, lines

import bookies as bk
import bookies.spark
from bookies.admin.cluster import LocalCluster
from bookies.admin.shared import Progress
from bookies.admin.shared.common import interruptible
from bookies.spark.base.session import session

FLIGHTS, DELAYS = "flights", "delays"
SCHEMA = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, "
    "distance INT, hour INT, minute INT, time_hour STRING"
)
RESULT = "hour TIMESTAMP, origin STRING, flights BIGINT, cancelled BIGINT, late BIGINT, delay BIGINT"
LATE_MINUTES = 15
WATERMARK = "24 hours"  # The latest flight of the year departed 21 hours and 41 minutes late.
PATIENCE_S = 600


# -- what there is to copy -------------------------------------------------------------------------------------------


def flights_of(spark: Any, uri: str) -> Any:
    """The log as a stream of rows."""
    from pyspark.sql import functions as f

    entries = (
        spark.readStream.format("bookkeeper")
        .option("bookkeeper.metadataServiceUri", uri)
        .option("subscribe", FLIGHTS)
        .option("startingOffsets", "earliest")
        .load()
    )
    return entries.select(f.from_csv(f.col("value").cast("string"), SCHEMA, {"nullValue": "NA"}).alias("f")).select(
        "f.*"
    )


def hourly(flights: Any) -> Any:
    """Flights, cancelled ones, late ones, and minutes of delay in all, by airport and scheduled hour."""
    from pyspark.sql import functions as f

    scheduled = f.make_timestamp("year", "month", "day", "hour", f.lit(0), f.lit(0))
    return (
        flights.withColumn("scheduled", scheduled)
        .withWatermark("scheduled", WATERMARK)
        .groupBy(f.window("scheduled", "1 hour"), "origin")
        .agg(
            f.count("*").alias("flights"),
            f.count_if(f.isnull("dep_time")).alias("cancelled"),
            f.count_if(f.col("dep_delay") > LATE_MINUTES).alias("late"),
            f.coalesce(f.sum("dep_delay"), f.lit(0)).cast("bigint").alias("delay"),
        )
        .select(f.col("window.start").alias("hour"), "origin", "flights", "cancelled", "late", "delay")
    )


def started(statistics: Any, uri: str, checkpoint: str) -> Any:
    """The query: hours that are complete become entries of the other log, each once, whatever fails."""
    from pyspark.sql import functions as f

    return (
        statistics.select(f.to_json(f.struct("*")).alias("value"))
        .writeStream.format("bookkeeper")
        .option("bookkeeper.metadataServiceUri", uri)
        .option("log", DELAYS)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .start()
    )


def check(spark: Any, uri: str, file: str) -> tuple[int, int, int]:
    """(hours in the log, those that are there twice, those that differ from the whole year computed directly)."""
    from pyspark.sql import functions as f

    entries = bookies.spark.read_log(spark, uri, DELAYS)
    found = entries.select(f.from_json(f.col("value").cast("string"), RESULT).alias("h")).select("h.*").cache()
    direct = hourly(spark.read.csv(file, schema=SCHEMA, nullValue="NA")).cache()
    twice = found.groupBy("hour", "origin").count().filter("count > 1").count()
    different = found.exceptAll(direct).count() + direct.exceptAll(found).count()
    return found.count(), twice, different


# -- the run ---------------------------------------------------------------------------------------------------------


class Writer:
    """The other process, and what it last said."""

    def __init__(self, uri: str, seconds: float, days: int) -> None:
        program = str(pathlib.Path(__file__).with_name("writer.py"))
        words = [sys.executable, program, "--metadata", uri, "--log", FLIGHTS]
        words += ["--seconds", str(seconds), "--days", str(days)]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.seconds, self.flights, self.day = seconds, 0, ""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            self.flights, self.day = said["flights"], said["day"]

    def has_ended(self) -> bool:
        status = self._process.poll()
        if status:
            raise SystemExit(f"the writer failed with status {status}; what it said is above")
        return status is not None

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._listener.join()


def stream(spark: Any, store: bk.blocking.Client, uri: str, checkpoint: str, writer: Writer, total: int) -> None:
    """Until the writer has ended and everything that it wrote has been processed; with a stop in the middle."""
    progress = Progress("flights", total)
    query = started(hourly(flights_of(spark, uri)), uri, checkpoint)
    has_stopped, deadline = False, time.monotonic() + writer.seconds + PATIENCE_S
    try:
        while not (writer.has_ended() and has_read(query)):
            if not query.isActive:
                raise SystemExit(f"the query failed: {query.exception()}")
            if time.monotonic() > deadline:
                raise SystemExit(f"not done {PATIENCE_S} seconds after the year was over")
            if not has_stopped and writer.flights > total // 2:
                query.stop()
                progress.note(f"   {writer.day}: the query is stopped, and started again from its checkpoint")
                query = started(hourly(flights_of(spark, uri)), uri, checkpoint)
                has_stopped = True
            progress.update(writer.flights, f"{writer.day}, {hours_in(store):,} hours complete")
            query.awaitTermination(1)
        query.processAllAvailable()
    finally:
        query.stop()
        writer.end()
        progress.clear()


def has_read(query: Any) -> bool:
    """Whether the query was at the end of the log when it last looked."""
    last = query.lastProgress
    if last is None or not last["sources"]:
        return False
    source = last["sources"][0]
    end, latest = source["endOffset"], source["latestOffset"]
    # The first offset of a query also says where it began.
    return bool(end and latest) and json.loads(end)["logs"] == json.loads(latest)["logs"]


def hours_in(store: bk.blocking.Client) -> int:
    return sum(extent.rows or 0 for extent in store.log(DELAYS).manifest().extents)


@contextlib.contextmanager
def quiet_session(directory: str) -> Iterator[Any]:
    """Java, and Python processes that are stopped, say on standard error what nobody can use: it goes to a file."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with open(os.path.join(directory, "spark.log"), "wb") as file, contextlib.ExitStack() as stack:
        os.dup2(file.fileno(), 2)
        try:
            spark = stack.enter_context(session("flights"))
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
        yield spark


def run(arguments: argparse.Namespace, directory: str) -> int:
    begin = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begin:5.0f} s  {text}", flush=True)

    year = lines(arguments.days)
    file = os.path.join(directory, "year.csv")
    pathlib.Path(file).write_bytes(b"\n".join(year))
    say(f"{len(year):,} flights from {os.path.basename(data_file())}; starting three bookies and Spark")
    with (
        LocalCluster(os.path.join(directory, "bk-data"), 3) as cluster,
        bk.blocking.connect(cluster.metadata_uri) as store,
        quiet_session(directory) as spark,
    ):
        uri = cluster.metadata_uri
        for name in (FLIGHTS, DELAYS):
            store.log(name).create(ensemble=3, write_quorum=2, ack_quorum=2)
        bookies.spark.register(spark)
        say(f"the year passes in {arguments.seconds:g} s")
        writer = Writer(uri, arguments.seconds, arguments.days)
        stream(spark, store, uri, os.path.join(directory, "checkpoint"), writer, len(year))
        batches = len(store.log(DELAYS).manifest().extents)
        say(f"{hours_in(store):,} hours of three airports are in log {DELAYS}, in {batches} ledgers; checking them")
        hours, twice, different = check(spark, uri, file)
        say(f"compared with the whole year computed directly: {twice} hours twice, {different} different")
        with store.log(DELAYS).open() as reader:
            rows = [json.loads(entry.payload) for entry in reader.read()]
        pathlib.Path(arguments.output).write_text(draw(rows))
        say(f"drawn: {arguments.output}")
    return 0 if hours and not twice and not different else 1


@contextlib.contextmanager
def place(keep: str | None) -> Iterator[str]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="bk-flights-") as directory:
            yield directory
    else:
        os.makedirs(keep)
        yield keep


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=50, help="in which the year passes (default 50)")
    parser.add_argument("--days", type=int, default=DAYS, help="only the first days of the year (default all)")
    parser.add_argument("--output", default="flights.svg", metavar="FILE", help="the plot (default flights.svg)")
    parser.add_argument("--keep", metavar="DIR", help="a new directory for the cluster's data; it stays")
    arguments = parser.parse_args()
    try:
        with interruptible(), place(arguments.keep) as directory:
            return run(arguments, directory)
    except FileExistsError:
        print(f"{arguments.keep} exists: name a new directory", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; everything is stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
