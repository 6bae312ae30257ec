"""The data pipeline on Spark, measured: batches and streams from and to logs, everything on this machine.

    python benchmarks/spark.py [--quick] [--runs 3] [--case TEXT] [--profile] [--json FILE] [--directory DIR]

Three bookies, one `local[2]` session, JVM and Python workers on the same processors. Every case runs twice to warm up
and then `--runs` times; cases that differ only in the replicas follow each other, in turn first. The tables show
medians: rows a second beside those of Spark's Kafka source on such a machine, and what a row costs the JVM, the Python
workers and the bookies in microseconds of processor time. `--quick`: a tenth of the rows, one run after a warm-up of a
few rows, the two sizes that are compared; `--profile`: where the time of a reading worker goes, and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from spark_profile import profile
from spark_usage import Usage

import bookies as bk
import bookies.spark
from bookies.admin.cluster import LocalCluster
from bookies.admin.shared.common import print_table
from bookies.spark.base import java

SHAPES = {"E1/Qw1/Qa1": (1, 1, 1), "E3/Qw3/Qa2": (3, 3, 2)}
# Enough that the second which a query takes to be planned, whatever it reads, is a small part of a run.
ROWS = {100: 8_000_000, 1 << 10: 2_000_000, 16 << 10: 100_000, 1 << 20: 1500}
WARM_UPS = 2  # before the first run that counts: of a short one the compiler of the JVM would be the largest part
MEMORY_SIZES = (64 << 10, 4 << 20)
MEMORY_BYTES = 256 << 20
FILL_BYTES = 1 << 20  # of one append while data are made
# What was written is deleted after each run, and given back before the next ones need the room.
SPACE = {"gc_interval_ms": 30_000, "gc_quarantine_ms": 0, "gc_share_max": 100}
SESSION_MEMORY = "2g"
# Rows a second of Spark's Kafka source and sink on a machine of two cores, and how much of that is asked of ours.
REFERENCE = {
    ("sum of lengths", 1 << 10): (313_000, 1.5),
    ("sum of lengths", 100): (913_000, 1.2),
    ("mapInArrow", 1 << 10): (287_000, 1.5),
    ("mapInArrow", 100): (716_000, 1.2),
    ("write", 1 << 10): (114_000, 1.0),
    ("write", 100): (706_000, 1.0),
    ("stream", 1 << 10): (332_000, 1.2),
    ("stream", 100): (766_000, 1.2),
}
WHAT = ("sum of lengths", "only column value", "mapInArrow", "write", "stream")


@dataclass(frozen=True)
class Case:
    what: str
    size: int
    shape: str
    rows: int

    @property
    def name(self) -> str:
        return f"{self.what}, {size_name(self.size)}, {self.shape}"


def size_name(size: int) -> str:
    return f"{size} B" if size < 1024 else f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"


def cases(arguments: argparse.Namespace) -> list[Case]:
    sizes = [size for size in ROWS if not arguments.quick or size <= 1 << 10]
    made = [
        Case(what, size, shape, max(1, ROWS[size] // (10 if arguments.quick else 1)))
        for what in WHAT
        for size in sizes
        for shape in SHAPES
    ]
    return [case for case in made if is_wanted(case.name, arguments)]


# -- the session -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def session(directory: str) -> Iterator[Any]:
    """A session as a user has it: Java's own choices, workers of its own."""
    java.use()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"pyspark\.")  # of pandas' next version
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": SESSION_MEMORY,
        "spark.local.dir": os.path.join(directory, "spark"),
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.master("local[2]").appName("benchmark")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    bookies.spark.register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def end_java() -> None:
    """The JVM outlives its sessions."""
    from pyspark import SparkContext

    if (gateway := SparkContext._gateway) is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)


# -- what is measured ------------------------------------------------------------------------------------------------


class Bench:
    """The cluster, the store, and what is done with them. `log_of`: logs with data, made once a size and shape."""

    def __init__(self, cluster: LocalCluster, store: bk.blocking.Client, directory: str) -> None:
        self.cluster, self.store, self.directory = cluster, store, directory
        self._numbers = itertools.count()
        self._made: set[str] = set()

    def log_of(self, size: int, shape: str, rows: int) -> str:
        name = f"data-{size}-{shape[:2]}-{rows}"
        if name in self._made:
            return name
        say(f"  making {rows:,} entries of {size_name(size)}, {shape}")
        ensemble, write_quorum, ack_quorum = SHAPES[shape]
        log = self.store.log(name)
        log.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
        text = os.urandom(FILL_BYTES + size)
        count = max(1, FILL_BYTES // size)
        payloads = [text[at : at + size] for at in range(count)]
        with log.lead() as writer:
            for start in range(0, rows, count):
                writer.append_many(payloads[: rows - start])
        self._made.add(name)
        return name

    def options(self, **more: object) -> dict[str, object]:
        return {"bookkeeper.metadataServiceUri": self.cluster.metadata_uri} | more

    def run(self, spark: Any, case: Case) -> dict[str, float | None]:
        """One run. Raises `RuntimeError` when not every row came."""
        body = {"write": self._write, "stream": self._stream}.get(case.what, self._read)
        if case.what != "write":
            self.log_of(case.size, case.shape, case.rows)
        usage = Usage(spark, self.cluster.pids)
        usage.begin()
        seconds, rows = body(spark, case)
        found = usage.end(case.rows)
        if rows != case.rows:
            raise RuntimeError(f"{case.name}: {rows} rows instead of {case.rows}")
        return {"rows_per_s": case.rows / seconds, "mb_per_s": case.rows * case.size / seconds / 1e6, **found}

    def _read(self, spark: Any, case: Case) -> tuple[float, int]:
        from pyspark.sql import functions as f

        options = self.options(subscribe=self.log_of(case.size, case.shape, case.rows), minPartitions=2)
        if case.what == "only column value":
            options["columns"] = "value"
        began = time.monotonic()
        frame = spark.read.format("bookkeeper").options(**options).load()
        if case.what == "mapInArrow":
            frame = frame.select("value").mapInArrow(count_and_size, "n BIGINT, size BIGINT")
            row = frame.agg(f.sum("n").alias("n"), f.sum("size").alias("size")).first()
        else:
            row = frame.agg(f.count("*").alias("n"), f.sum(f.length("value")).alias("size")).first()
        seconds = time.monotonic() - began
        return seconds, row["n"] if row["size"] == case.rows * case.size else -1

    def _write(self, spark: Any, case: Case) -> tuple[float, int]:
        from pyspark.sql import functions as f

        ensemble, write_quorum, ack_quorum = SHAPES[case.shape]
        log = self.store.log(f"write-{next(self._numbers)}")
        log.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
        frame = spark.range(0, case.rows, 1, 2).select(f.lit(os.urandom(case.size)).alias("value"))
        began = time.monotonic()
        frame.write.format("bookkeeper").mode("append").options(**self.options(log=log.name)).save()
        seconds = time.monotonic() - began
        rows = sum(extent.rows or 0 for extent in log.manifest().extents)
        log.delete()
        return seconds, rows

    def _stream(self, spark: Any, case: Case) -> tuple[float, int]:
        """From nothing to the end of the log, into a sink that takes every row and does nothing with it.

        The time is that of the triggers, without the start of the query, which is some seconds whatever it reads.
        """
        log = self.log_of(case.size, case.shape, case.rows)
        options = self.options(subscribe=log, minPartitions=2, startingOffsets="earliest")
        with tempfile.TemporaryDirectory(dir=self.directory) as checkpoint:
            query = (
                spark.readStream.format("bookkeeper")
                .options(**options)
                .load()
                .writeStream.format("noop")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            done = query.recentProgress
        seconds = sum(each["durationMs"]["triggerExecution"] for each in done) / 1000
        return seconds, sum(each["numInputRows"] for each in done)

    def latency(self, spark: Any, count: int) -> list[float]:
        """Seconds from the append of an entry to its arrival in the sink of a query that tails, each; sorted."""
        log = self.store.log(f"tail-{next(self._numbers)}")
        log.create(ensemble=3, write_quorum=3, ack_quorum=2)
        found: list[float] = []

        def arrived(frame: Any, _batch: int) -> None:
            values = [bytes(row.value) for row in frame.select("value").collect()]
            now = time.time()
            found.extend(now - float(value) for value in values)

        options = self.options(subscribe=log.name, startingOffsets="earliest")
        with tempfile.TemporaryDirectory(dir=self.directory) as checkpoint, log.lead() as writer:
            stream = spark.readStream.format("bookkeeper").options(**options).load().writeStream
            query = stream.foreachBatch(arrived).option("checkpointLocation", checkpoint).start()
            try:
                pause = threading.Event()
                for number in range(count + 20):
                    writer.append(b"%.6f" % time.time())
                    pause.wait(0.05)
                    if number == 19:  # So far it was the start of the query that was measured.
                        query.processAllAvailable()
                        found.clear()
                query.processAllAvailable()
            finally:
                query.stop()
        log.delete()
        return sorted(found)


def count_and_size(batches: Iterator[Any]) -> Iterator[Any]:
    """What a task of the case `mapInArrow` does: look at every batch in Python."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = size = 0
    for batch in batches:
        rows += batch.num_rows
        size += pc.sum(pc.binary_length(batch.column("value"))).as_py() or 0
    yield pa.RecordBatch.from_pydict({"n": [rows], "size": [size]})


# -- rounds ----------------------------------------------------------------------------------------------------------


def measure(bench: Bench, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    chosen = cases(arguments)
    runs: list[dict[str, Any]] = []
    for case in chosen:
        if case.what != "write":
            bench.log_of(case.size, case.shape, case.rows)
    with session(bench.directory) as spark:
        if arguments.quick:
            for what in {case.what: None for case in chosen}:
                tried(bench, spark, Case(what, 1 << 10, "E1/Qw1/Qa1", 1000))
        for number in range(0 if arguments.quick else -WARM_UPS, arguments.runs):
            say("warm-up" if number < 0 else f"run {number + 1} of {arguments.runs}")
            for pair in pairs(chosen):
                for case in pair if number % 2 else reversed(pair):
                    found = tried(bench, spark, case)
                    if number >= 0:
                        runs.append({"case": case.name, "run": number, **found})
        if is_wanted("latency", arguments):
            runs.append({"case": "latency", **latency(bench, spark, 40 if arguments.quick else 300)})
    return runs


def tried(bench: Bench, spark: Any, case: Case) -> dict[str, Any]:
    """A failure is one figure less, and not the end: Spark gives a new Python process ten seconds to say something."""
    from pyspark.errors import PySparkException

    try:
        found = bench.run(spark, case)
    except (PySparkException, bk.BookKeeperError, RuntimeError) as error:
        say(f"  {case.name}: failed: {str(error).splitlines()[0]}")
        return {"failure": str(error)}
    say(f"  {case.name}: {found['rows_per_s']:,.0f} rows/s")
    return found


def latency(bench: Bench, spark: Any, count: int) -> dict[str, Any]:
    """Milliseconds."""
    from pyspark.errors import PySparkException

    try:
        times = bench.latency(spark, count)
    except (PySparkException, bk.BookKeeperError) as error:
        say(f"  latency: failed: {str(error).splitlines()[0]}")
        return {"failure": str(error)}
    return {f"p{at}": 1000 * at_rank(times, at) for at in (50, 95, 99)}


def pairs(found: Sequence[Case]) -> Iterator[tuple[Case, ...]]:
    for start in range(0, len(found), 2):
        yield tuple(found[start : start + 2])


def memory(bench: Bench, size: int, what: str) -> float:
    """The most that a worker had resident, MB: in a session of its own, or it would be what was before."""
    rows = MEMORY_BYTES // size
    with session(bench.directory) as spark:
        found = tried(bench, spark, Case(what, size, "E1/Qw1/Qa1", rows))
        return math.nan if "failure" in found else Usage(spark, bench.cluster.pids).worker_peak_mb()


def at_rank(ordered: Sequence[float], percent: int) -> float:
    return ordered[int(percent / 100 * (len(ordered) - 1))]


def is_wanted(name: str, arguments: argparse.Namespace) -> bool:
    return not arguments.case or any(part in name for part in arguments.case)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# -- tables ----------------------------------------------------------------------------------------------------------


def print_tables(runs: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> None:
    rows = [row_of(case, runs) for case in cases(arguments)]
    headers = (
        "case",
        "rows/s",
        "least",
        "most",
        "MB/s",
        "Kafka's",
        "asked",
        "ratio",
        "JVM us",
        "Python us",
        "bookies us",
        "failed",
    )
    print_table(rows, headers, right=range(1, len(headers)))
    for run in runs:
        if run["case"] == "latency" and "failure" not in run:
            print(f"\nappend to sink, tailing: p50 {run['p50']:.0f}, p95 {run['p95']:.0f}, p99 {run['p99']:.0f} ms")
        elif run["case"] == "memory":
            print(f"most memory of a Python worker, {run['what']}, {size_name(run['size'])}: {run['mb']:.0f} MB")


def row_of(case: Case, runs: Sequence[dict[str, Any]]) -> tuple[object, ...]:
    tries = [run for run in runs if run["case"] == case.name]
    found = [run for run in tries if "failure" not in run]
    if not found:
        return (case.name, *("",) * 10, f"{len(tries)} of {len(tries)}")

    def median(figure: str) -> float:
        return statistics.median(run[figure] for run in found)

    def cost(figure: str) -> str:
        known = [run[figure] for run in found if run[figure] is not None]
        return f"{statistics.median(known):.2f}" if known else "?"

    speeds = [run["rows_per_s"] for run in found]
    reference, factor = REFERENCE.get((case.what, case.size), (None, None)) if case.shape[:2] == "E1" else (None, None)
    return (
        case.name,
        f"{median('rows_per_s'):,.0f}",
        f"{min(speeds):,.0f}",
        f"{max(speeds):,.0f}",
        f"{median('mb_per_s'):,.0f}",
        "" if reference is None else f"{reference:,}",
        "" if factor is None else f"{factor:.1f}",
        "" if reference is None else f"{median('rows_per_s') / reference:.2f}",
        *(cost(figure) for figure in ("jvm_us", "python_us", "bookies_us")),
        f"{len(tries) - len(found)} of {len(tries)}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one run, 100 B and 1 KiB")
    parser.add_argument("--runs", type=int, default=None, help="of every case (default 3)")
    parser.add_argument(
        "--case",
        action="append",
        help="only cases whose name contains this (may be given again); `latency` and `memory` are names too",
    )
    parser.add_argument("--profile", action="store_true", help="only this: where a reading worker's time goes")
    parser.add_argument("--json", metavar="FILE", help="every run, one JSON document")
    parser.add_argument("--directory", default=None, help="where the bookies keep their data (up to 30 GB)")
    arguments = parser.parse_args()
    arguments.runs = arguments.runs or (1 if arguments.quick else 3)
    runs: list[dict[str, Any]] = []
    if arguments.directory is not None:
        os.makedirs(arguments.directory, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bk-spark-", dir=arguments.directory) as directory,
        LocalCluster(os.path.join(directory, "bookies"), 3, settings=SPACE) as cluster,
        bk.blocking.connect(cluster.metadata_uri) as store,
    ):
        bench = Bench(cluster, store, directory)
        if arguments.profile:
            divisor = 10 if arguments.quick else 2
            for size in (100, 1 << 10):
                rows = ROWS[size] // divisor
                profile(bench.options(subscribe=bench.log_of(size, "E1/Qw1/Qa1", rows)), size_name(size))
            return 0
        try:
            runs += measure(bench, arguments)
            if is_wanted("memory", arguments):
                runs += memories(bench)
        finally:
            end_java()
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(runs, indent=1))
    print_tables(runs, arguments)
    return 0


def memories(bench: Bench) -> list[dict[str, Any]]:
    found = []
    for size in MEMORY_SIZES:
        for what in ("sum of lengths", "write"):
            found.append({"case": "memory", "what": what, "size": size, "mb": memory(bench, size, what)})
    return found


if __name__ == "__main__":
    sys.exit(main())
