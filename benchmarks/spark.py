"""The data pipeline on Spark, measured: batches and streams from and to logs, everything on this machine.

    python -m benchmarks.spark [--kafka] [--quick] [--runs 3] [--case TEXT] [--profile] [--json FILE] [--directory DIR]

Three bookies, one `local[2]` session, JVM and Python workers on the same processors. Every case runs twice to warm up
and then `--runs` times; cases that differ only in the store follow each other, in turn first. The tables show medians:
rows a second, and what a row costs the JVM, the Python workers and the store in microseconds of processor time.
`--kafka`: the same cases with Spark's Kafka source and sink on a broker of this machine, run by run in turn, on the
newest Spark whose connector is published; the ratio is the median of the runs' ratios. `--quick`: a tenth of the rows,
one run after a warm-up of a few rows, the two sizes that are compared; `--profile`: where the time of a reading worker
goes, and nothing else.
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
from typing import Any

from benchmarks.kafka.broker import SPARK_VERSION, broker, connector_path
from benchmarks.spark_profile import profile
from benchmarks.spark_stores import KAFKA, SCHEMA, SHAPES, TASKS, Case, Logs, Store, Topics, size_name
from benchmarks.spark_usage import Usage
from tests.live.spark_versions import environment

import bookies as bk
import bookies.spark
from bookies.admin.cluster import LocalCluster
from bookies.admin.shared.common import print_table
from bookies.spark.base import java

# Enough that the second which a query takes to be planned, whatever it reads, is a small part of a run.
ROWS = {100: 8_000_000, 1 << 10: 2_000_000, 16 << 10: 100_000, 1 << 20: 1500}
WARM_UPS = 2  # before the first run that counts: of a short one the compiler of the JVM would be the largest part
MEMORY_SIZES = (64 << 10, 4 << 20)
MEMORY_BYTES = 256 << 20
# What was written is deleted after each run, and given back before the next ones need the room.
SPACE = {"gc_interval_ms": 30_000, "gc_quarantine_ms": 0, "gc_share_max": 100}
SESSION_MEMORY = "2g"
# How much of the rate of Spark's Kafka source and sink is asked of ours, with one replica as there.
ASKED = {
    ("sum of lengths", 1 << 10): 1.5,
    ("sum of lengths", 100): 1.2,
    ("mapInArrow", 1 << 10): 1.5,
    ("mapInArrow", 100): 1.2,
    ("write", 1 << 10): 1.0,
    ("write", 100): 1.0,
    ("stream", 1 << 10): 1.2,
    ("stream", 100): 1.2,
}
WHAT = ("sum of lengths", "only column value", "avro", "mapInArrow", "write", "stream")
ONLY_OURS = ("only column value",)  # Kafka's source has no choice of columns.
AVRO_SIZES = (100, 1 << 10)


def cases(arguments: argparse.Namespace) -> list[Case]:
    sizes = [size for size in ROWS if not arguments.quick or size <= 1 << 10]
    made = [
        Case(what, size, shape, max(1, ROWS[size] // (10 if arguments.quick else 1)))
        for what in WHAT
        for size in (AVRO_SIZES if what == "avro" else sizes)
        for shape in (*SHAPES, KAFKA)
        if shape != KAFKA or (arguments.kafka and what not in ONLY_OURS)
    ]
    return [case for case in made if is_wanted(case.name, arguments)]


# -- the session -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def session(directory: str, class_path: str = "") -> Iterator[Any]:
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
    if class_path:
        settings["spark.driver.extraClassPath"] = class_path
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
    """What is done with the stores. `class_path`: what the driver needs beside Spark's own jars."""

    def __init__(self, directory: str, logs: Logs, topics: Topics | None) -> None:
        self.directory, self.logs, self.topics = directory, logs, topics
        self.class_path = connector_path() if topics is not None else ""

    def store(self, case: Case) -> Store:
        if case.shape != KAFKA:
            return self.logs
        assert self.topics is not None, "no case is Kafka's without a broker"
        return self.topics

    def run(self, spark: Any, case: Case) -> dict[str, float | None]:
        """One run. Raises `RuntimeError` when not every row came."""
        body = {"write": self._write, "stream": self._stream}.get(case.what, self._read)
        if case.what != "write":
            self.store(case).source(spark, case)
        usage = Usage(spark, self.store(case).pids)
        usage.begin()
        seconds, rows = body(spark, case)
        found = usage.end(case.rows)
        if rows != case.rows:
            raise RuntimeError(f"{case.name}: {rows} rows instead of {case.rows}")
        return {"rows_per_s": case.rows / seconds, "mb_per_s": case.rows * case.size / seconds / 1e6, **found}

    def _read(self, spark: Any, case: Case) -> tuple[float, int]:
        from pyspark.sql import functions as f

        store = self.store(case)
        options = store.source(spark, case)
        if case.what == "only column value":
            options["columns"] = "value"
        began = time.monotonic()
        frame = spark.read.format(store.format).options(**options).load()
        if case.what == "mapInArrow":
            frame = frame.select("value").mapInArrow(count_and_size, "n BIGINT, size BIGINT")
            row = frame.agg(f.sum("n").alias("n"), f.sum("size").alias("size")).first()
        elif case.is_avro:
            row = sum_of_orders(frame, is_decoded=store is self.logs)
        else:
            row = frame.agg(f.count("*").alias("n"), f.sum(f.length("value")).alias("size")).first()
        seconds = time.monotonic() - began
        return seconds, row["n"] if case.is_avro or row["size"] == case.rows * case.size else -1

    def _write(self, spark: Any, case: Case) -> tuple[float, int]:
        from pyspark.sql import functions as f

        store = self.store(case)
        target = store.target(spark, case)
        frame = spark.range(0, case.rows, 1, TASKS).select(f.lit(os.urandom(case.size)).alias("value"))
        began = time.monotonic()
        frame.write.format(store.format).mode("append").options(**target.options).save()
        seconds = time.monotonic() - began
        return seconds, target.end()

    def _stream(self, spark: Any, case: Case) -> tuple[float, int]:
        """From nothing to the end of the data, into a sink that takes every row and does nothing with it.

        The time is that of the triggers, without the start of the query, which is some seconds whatever it reads.
        """
        store = self.store(case)
        options = store.source(spark, case) | {"startingOffsets": "earliest"}
        with tempfile.TemporaryDirectory(dir=self.directory) as checkpoint:
            query = (
                spark.readStream.format(store.format)
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

    def latency(self, spark: Any, store: Store, count: int) -> list[float]:
        """Seconds from the append of an entry to its arrival in the sink of a query that tails, each; sorted."""
        found: list[float] = []

        def arrived(frame: Any, _batch: int) -> None:
            values = [bytes(row.value) for row in frame.select("value").collect()]
            now = time.time()
            found.extend(now - float(value) for value in values)

        with tempfile.TemporaryDirectory(dir=self.directory) as checkpoint, store.tail(spark) as tail:
            options = tail.options | {"startingOffsets": "earliest"}
            stream = spark.readStream.format(store.format).options(**options).load().writeStream
            query = stream.foreachBatch(arrived).option("checkpointLocation", checkpoint).start()
            try:
                pause = threading.Event()
                for number in range(count + 20):
                    tail.append(b"%.6f" % time.time())
                    pause.wait(0.05)
                    if number == 19:  # So far it was the start of the query that was measured.
                        query.processAllAvailable()
                        found.clear()
                query.processAllAvailable()
            finally:
                query.stop()
        return sorted(found)


def sum_of_orders(frame: Any, *, is_decoded: bool) -> Any:
    """Use all seven columns of the payload, which Spark's own function decodes unless the source has."""
    from pyspark.sql import functions as f

    if not is_decoded:
        from pyspark.sql.avro.functions import from_avro

        frame = frame.select(from_avro("value", SCHEMA).alias("order")).select("order.*")
    sums = [f.sum("id"), f.sum("price"), f.sum(f.length("customer")), f.sum(f.length("note")), f.sum(f.size("tags"))]
    return frame.agg(f.count("id").alias("n"), f.max("placed"), f.max("state"), *sums).first()


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
    with session(bench.directory, bench.class_path) as spark:
        for case in chosen:
            if case.what != "write":
                say(f"  making {case.rows:,} rows: {case.name}")
                bench.store(case).source(spark, case)
        if arguments.quick:
            for case in {(case.what, case.shape == KAFKA): case for case in chosen}.values():
                tried(bench, spark, Case(case.what, 1 << 10, case.shape, 1000))
        for number in range(0 if arguments.quick else -WARM_UPS, arguments.runs):
            say("warm-up" if number < 0 else f"run {number + 1} of {arguments.runs}")
            for _, group in itertools.groupby(chosen, lambda case: (case.what, case.size)):
                for case in group if number % 2 else reversed(list(group)):
                    found = tried(bench, spark, case)
                    if number >= 0:
                        runs.append({"case": case.name, "run": number, **found})
        if is_wanted("latency", arguments):
            count = 40 if arguments.quick else 300
            for store in filter(None, (bench.logs, bench.topics)):
                runs.append({"case": "latency", "store": store.format, **latency(bench, spark, store, count)})
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


def latency(bench: Bench, spark: Any, store: Store, count: int) -> dict[str, Any]:
    """Milliseconds."""
    from pyspark.errors import PySparkException

    try:
        times = bench.latency(spark, store, count)
    except (PySparkException, bk.BookKeeperError) as error:
        say(f"  latency: failed: {str(error).splitlines()[0]}")
        return {"failure": str(error)}
    return {f"p{at}": 1000 * at_rank(times, at) for at in (50, 95, 99)}


def memory(bench: Bench, size: int, what: str) -> float:
    """The most that a worker had resident, MB: in a session of its own, or it would be what was before."""
    rows = MEMORY_BYTES // size
    with session(bench.directory) as spark:
        found = tried(bench, spark, Case(what, size, "E1/Qw1/Qa1", rows))
        return math.nan if "failure" in found else Usage(spark, bench.logs.pids).worker_peak_mb()


def at_rank(ordered: Sequence[float], percent: int) -> float:
    return ordered[int(percent / 100 * (len(ordered) - 1))]


def is_wanted(name: str, arguments: argparse.Namespace) -> bool:
    return not arguments.case or any(part in name for part in arguments.case)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# -- tables ----------------------------------------------------------------------------------------------------------


def print_tables(runs: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> None:
    rows = [row_of(case, runs) for case in cases(arguments)]
    headers = ("case", "rows/s", "least", "most", "MB/s", "ratio", "asked", "JVM us", "Python us", "store us", "failed")
    print_table(rows, headers, right=range(1, len(headers)))
    for run in runs:
        if run["case"] == "latency" and "failure" not in run:
            times = ", ".join(f"p{at} {run[f'p{at}']:.0f}" for at in (50, 95, 99))
            print(f"\nappend to sink, tailing, {run['store']}: {times} ms")
        elif run["case"] == "memory":
            print(f"most memory of a Python worker, {run['what']}, {size_name(run['size'])}: {run['mb']:.0f} MB")


def row_of(case: Case, runs: Sequence[dict[str, Any]]) -> tuple[object, ...]:
    tries = [run for run in runs if run["case"] == case.name]
    found = [run for run in tries if "failure" not in run]
    if not found:
        return (case.name, *("",) * 9, f"{len(tries)} of {len(tries)}")

    def median(figure: str) -> float:
        return statistics.median(run[figure] for run in found)

    def cost(figure: str) -> str:
        known = [run[figure] for run in found if run[figure] is not None]
        return f"{statistics.median(known):.2f}" if known else "?"

    speeds = [run["rows_per_s"] for run in found]
    ratio = ratio_to_kafka(case, found, runs)
    asked = ASKED.get((case.what, case.size)) if ratio is not None and case.shape[:2] == "E1" else None
    return (
        case.name,
        f"{median('rows_per_s'):,.0f}",
        f"{min(speeds):,.0f}",
        f"{max(speeds):,.0f}",
        f"{median('mb_per_s'):,.0f}",
        "" if ratio is None else f"{ratio:.2f}",
        "" if asked is None else f"{asked:.1f}",
        *(cost(figure) for figure in ("jvm_us", "python_us", "bookies_us")),
        f"{len(tries) - len(found)} of {len(tries)}",
    )


def ratio_to_kafka(case: Case, found: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]) -> float | None:
    """The median of the runs' ratios; None for Kafka's own rows, and without any run of both."""
    other = Case(case.what, case.size, KAFKA, case.rows).name
    speeds = {run["run"]: run["rows_per_s"] for run in runs if run["case"] == other and "failure" not in run}
    ratios = [run["rows_per_s"] / speeds[run["run"]] for run in found if run["run"] in speeds]
    return statistics.median(ratios) if ratios and case.shape != KAFKA else None


def take_version_of_kafka() -> None:
    """Begin again with the Spark that Kafka's connector is made for."""
    import pyspark

    minor = SPARK_VERSION.rpartition(".")[0]
    if not pyspark.__version__.startswith(f"{minor}."):
        python = str(environment(minor))
        os.execv(python, [python, "-m", "benchmarks.spark", *sys.argv[1:]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", action="store_true", help="beside a broker of Kafka, on PySpark " + SPARK_VERSION)
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
    if arguments.kafka:
        take_version_of_kafka()
    runs: list[dict[str, Any]] = []
    if arguments.directory is not None:
        os.makedirs(arguments.directory, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bk-spark-", dir=arguments.directory) as directory,
        LocalCluster(os.path.join(directory, "bookies"), 3, settings=SPACE) as cluster,
        bk.blocking.connect(cluster.metadata_uri) as store,
        broker(pathlib.Path(directory, "kafka"), TASKS) if arguments.kafka else contextlib.nullcontext() as kafka,
    ):
        logs = Logs(cluster, store, directory)
        bench = Bench(directory, logs, None if kafka is None else Topics(kafka))
        if arguments.profile:
            divisor = 10 if arguments.quick else 2
            for size in (100, 1 << 10):
                case = Case("profile", size, "E1/Qw1/Qa1", ROWS[size] // divisor)
                profile(logs.source(None, case), size_name(size))
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
