"""`make spark-chaos`: a stream into a log while its processes are killed, again and again; each row once, every time.

Each run is a stream of text files into a log of its own. Python workers, the driver's JVM and bookies are killed at
random moments, and at every step of a batch in turn: in a task, before the commit takes effect, after it. A driver that
died is started again on its checkpoint, and so is a query that failed, until the stream has come to its end; a driver
that lives goes on with the next run's stream. Then the log must hold each row once, in order: its digest is compared
with that of the input. The reaper runs, and no ledger may be left that the log does not list. A second stream follows
the log into a table of Delta Lake or, in the next run, of Iceberg, with the same faults around the table's commit.

    python tests/chaos/spark_chaos.py --runs 20 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent))  # for `tests`

from tests.live.spark_faults import Marks, faulty_source
from tests.live.spark_session import spark_session

import bookies as bk
import bookies.spark
from bookies.admin.cluster import LocalCluster

STEPS = (
    "task raises",
    "task dies",
    "every task raises",
    "commit raises before",
    "commit raises after",
    "commit dies before",
    "commit dies after",
    "abort leaves a zombie",
    "answer is lost",
    "JVM dies in a task",
    "JVM dies before the swap",
    "JVM dies after the swap",
)
TABLE_STEPS = ("driver raises before", "driver dies before", "driver raises after", "driver dies after")
TABLES = ("delta", "iceberg")
VICTIMS = ("worker", "JVM", "bookie")
BATCHES, ROWS = 4, 500
BOOKIES = 4
DRIVER_LIVES_MAX = 60
DRIVER_TIMEOUT_S = 600
QUERIES_MAX = 60  # of one stream, in one life of the driver
KILLS_S = (0.2, 5)  # from a batch's commit to a kill, at random
REAP_S = 20  # for tasks of queries that failed to come to their end


@dataclass
class Run:
    """What happened, for the table."""

    number: int
    lives: int = 0
    queries: int = 0
    steps: int = 0
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VICTIMS, 0))
    rows: int = 0
    ledgers: int = 0
    reaped: int = 0
    seconds: float = 0.0
    table: str = ""
    problem: str = ""


# -- the driver, a process of its own --------------------------------------------------------------------------------


def drive(uri: str, directory: pathlib.Path) -> int:
    """Run the streams that the standard input names, each to its end, over failed queries; a dead JVM ends this."""
    from pyspark.errors import PySparkException

    spark = spark_session(directory / "spark")
    for line in sys.stdin:
        order = json.loads(line)
        run = pathlib.Path(order["directory"])
        for _ in range(QUERIES_MAX):
            with open(run / "queries", "a") as queries:
                queries.write("begun\n")
            writer = (into_log if order["table"] is None else into_table)(spark, uri, run, order)
            writer = writer.trigger(availableNow=True).option("checkpointLocation", str(run / "checkpoint"))
            try:
                writer.start().awaitTermination()
            except PySparkException as error:
                print(" ".join(str(error).split())[:300], file=sys.stderr, flush=True)
            else:
                (run / "done").touch()
                break
        else:
            return 1
    return 0


def into_log(spark: Any, uri: str, run: pathlib.Path, order: dict[str, Any]) -> Any:
    spark.dataSource.register(faulty_source(str(run / "marks")))
    frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(run / "in"))
    # One task reads a file, so that each part keeps its order.
    writer = frame.repartitionByRange(2, "value").writeStream.format("bookkeeper-faulty")
    return writer.option("bookkeeper.metadataServiceUri", uri).option("log", order["log"])


def into_table(spark: Any, uri: str, run: pathlib.Path, order: dict[str, Any]) -> Any:
    """The rows of the log, in a table whose commits have faults before and after them."""
    bookies.spark.register(spark)
    frame = spark.readStream.format("bookkeeper").option("bookkeeper.metadataServiceUri", uri)
    frame = frame.option("subscribe", order["log"]).option("startingOffsets", "earliest")
    frame = frame.option("maxOffsetsPerTrigger", ROWS).load().select("offset", "value")
    if order["table"] == "delta":
        sink = bookies.spark.delta_sink(str(run / "table"))
    else:
        sink = bookies.spark.iceberg_sink("chaos.rows", catalog=catalog_of(run), key=["offset"])

    def fail(batch: int, when: str) -> None:
        for how in ("raises", "dies"):
            mark = run / "marks" / f"{batch}-driver {how} {when}"
            if mark.exists():
                mark.unlink()
                if how == "dies":
                    kill(os.getpid())
                raise OSError(f"the driver fails {when} the commit of the table")

    def write(rows: Any, batch: int) -> None:
        fail(batch, "before")
        sink(rows, batch)
        fail(batch, "after")

    return frame.writeStream.foreachBatch(write)


def catalog_of(run: pathlib.Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{run}/catalog.db", "warehouse": f"file://{run}"}


def table_digest(kind: str, run: pathlib.Path) -> bytes:
    """Digest of the table's rows in the order of the log."""
    if kind == "delta":
        import deltalake

        rows = deltalake.DeltaTable(str(run / "table")).to_pyarrow_table()
    else:
        import pyiceberg.catalog

        rows = pyiceberg.catalog.load_catalog("default", **catalog_of(run)).load_table("chaos.rows").scan().to_arrow()
    values = rows.sort_by("offset")["value"].to_pylist()
    return hashlib.sha256(b"".join(value + b"\n" for value in values)).digest()


# -- processes -------------------------------------------------------------------------------------------------------


def descendants(pid: int) -> list[tuple[int, str]]:
    """(pid, name) of the processes below one, that process included."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for path in pathlib.Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            name, rest = (path / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue  # It has ended meanwhile.
        names[int(path.name)] = name
        children.setdefault(int(rest.split()[1]), []).append(int(path.name))
    found, queue = [], [pid]
    while queue:
        each = queue.pop()
        if each in names:
            found.append((each, names[each]))
            queue += children.get(each, [])
    return found


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # It has ended by itself.


class Driver:
    """A driver and all its processes, from its start until something kills it; it runs one stream after the other."""

    def __init__(self, directory: pathlib.Path, uri: str) -> None:
        words = [sys.executable, __file__, "--driver", str(directory), "--uri", uri]
        with open(directory / "driver.txt", "ab") as out:
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=out, stderr=out)
        self._known: dict[int, str] = {}

    def run(self, directory: pathlib.Path, log: str, table: str | None) -> None:
        """Have it run this stream, as soon as it can; the file `done` says that the stream has come to its end."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(
                json.dumps({"directory": str(directory), "log": log, "table": table}).encode() + b"\n"
            )
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # It has died, which `is_running` will say.

    def is_running(self) -> bool:
        if self.process.poll() is None:
            self._known.update(descendants(self.process.pid))
            return True
        return False

    def kill_one(self, kind: str, chance: random.Random) -> bool:
        """SIGKILL to a Python worker or to the JVM."""
        below = [(pid, name) for pid, name in descendants(self.process.pid) if pid != self.process.pid]
        wanted = [pid for pid, name in below if (name == "java") == (kind == "JVM")]
        if wanted:
            kill(chance.choice(wanted))
        return bool(wanted)

    def end(self) -> None:
        """Nothing of it may be left: its workers may outlive it for a while."""
        for pid, name in {**self._known, **dict(descendants(self.process.pid))}.items():
            if pid != self.process.pid and dict(descendants(pid)).get(pid) == name:
                kill(pid)
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()


# -- one run ---------------------------------------------------------------------------------------------------------


class Chaos:
    """What the runs share: bookies, a client, and a driver as long as it lives."""

    def __init__(self, cluster: LocalCluster, store: bk.blocking.Client, base: pathlib.Path, seed: int) -> None:
        self._cluster = cluster
        self._store = store
        self._base = base
        self._seed = seed
        self._driver: Driver | None = None
        self._down: int | None = None

    def run(self, run: Run) -> None:
        """A stream from its start to its end, and what became of it."""
        chance = random.Random(f"{self._seed}/{run.number}")
        directory = self._base / f"run-{run.number}"
        directory.mkdir()
        log = self._store.log(f"chaos-{run.number}")
        log.create(ensemble=3, write_quorum=2, ack_quorum=1)
        marks = Marks(directory / "marks")
        (directory / "in").mkdir()
        expected = hashlib.sha256()
        for batch in range(BATCHES):
            rows = [f"{run.number}/{batch}/{row:05d}" for row in range(ROWS)]
            path = directory / "in" / f"{batch:03d}.txt"
            path.write_text("\n".join(rows) + "\n")
            os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))  # Spark takes the oldest first.
            expected.update("\n".join([*rows, ""]).encode())
        for batch in range(BATCHES):  # Every step comes up within three runs.
            marks.set(batch, STEPS[(run.number * BATCHES + batch) % len(STEPS)])
        self._stream(run, directory, log.name, None, chance)
        run.queries = len((directory / "queries").read_text().splitlines())
        run.steps = BATCHES - len(marks.left())
        with log.open() as reader:
            found = hashlib.sha256()
            for entry in reader.read():
                found.update(entry.payload + b"\n")
                run.rows += 1
        run.ledgers = len(log.manifest().ledger_ids)
        stray = self._reap(run, log)
        if found.digest() != expected.digest():
            run.problem = "the log is not what was written"
        elif stray:
            run.problem = f"ledgers nobody refers to: {stray}"
        elif marks.left():
            run.problem = f"did not happen: {marks.left()}"
        else:
            self._follow(run, directory / "follow", log.name, expected.digest(), chance)

    def _follow(self, run: Run, directory: pathlib.Path, log: str, expected: bytes, chance: random.Random) -> None:
        """A stream from the log to a table, and what became of the table."""
        directory.mkdir()
        run.table = TABLES[run.number % len(TABLES)]
        marks = Marks(directory / "marks")
        for batch in range(BATCHES):
            marks.set(batch, TABLE_STEPS[(run.number // len(TABLES) + batch) % len(TABLE_STEPS)])
        self._stream(run, directory, log, run.table, chance)
        run.queries += len((directory / "queries").read_text().splitlines())
        run.steps += BATCHES - len(marks.left())
        if run.problem:
            return
        if table_digest(run.table, directory) != expected:
            run.problem = f"the table of {run.table} is not what was written"
        elif marks.left():
            run.problem = f"did not happen: {marks.left()}"

    def _reap(self, run: Run, log: bk.blocking.Log) -> list[int]:
        """Ledgers that are left although the log does not list them; tasks of queries that failed may still end."""
        until = time.monotonic() + REAP_S
        while True:
            run.reaped += sum(each.outcome == "deleted" for each in log.reap(orphan_grace=0, replay_grace=0))
            listed = log.manifest().ledger_ids
            written = self._store.ledgers(("sink.log", log.name))
            stray = [each.ledger_id for each in written if each.ledger_id not in listed]
            if not stray or time.monotonic() > until:
                return stray
            if self._down is not None and time.monotonic() > until - REAP_S / 2:
                # Without it the end of a ledger that a crashed task left open may be undecidable.
                self._cluster.restart(self._down)
                self._down = None
            time.sleep(0.5)

    def _stream(self, run: Run, directory: pathlib.Path, log: str, table: str | None, chance: random.Random) -> None:
        """Lives of drivers until one comes to the end of the stream."""
        # A kill at most for each batch that was committed, so that a slow machine comes to the end too.
        commits, seen, next_kill = directory / "checkpoint" / "commits", -1, math.inf
        for _ in range(DRIVER_LIVES_MAX):
            run.lives += 1
            if self._driver is None:
                self._driver = Driver(self._base, self._cluster.metadata_uri)
            self._driver.run(directory, log, table)
            until = time.monotonic() + DRIVER_TIMEOUT_S
            while self._driver.is_running() and time.monotonic() < until:
                time.sleep(0.1)
                if (directory / "done").exists():
                    return
                count = len(list(commits.glob("[0-9]*"))) if (directory / "queries").exists() else -1
                if count > seen:
                    seen, next_kill = count, time.monotonic() + chance.uniform(*KILLS_S)
                if time.monotonic() > next_kill:
                    next_kill = math.inf
                    self._kill(run, chance)
            self._driver.end()
            self._driver = None
        run.problem = f"no end after {run.lives} lives of the driver"

    def _kill(self, run: Run, chance: random.Random) -> None:
        kind = chance.choices(VICTIMS, (5, 1, 3))[0]
        if kind != "bookie":
            assert self._driver is not None
            run.kills[kind] += self._driver.kill_one(kind, chance)
        elif self._down is not None:
            self._cluster.restart(self._down)
            self._down = None
        else:
            self._down = chance.randrange(BOOKIES)
            self._cluster.kill(self._down)
            run.kills[kind] += 1

    def close(self) -> None:
        if self._driver is not None:
            self._driver.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the number of the first run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the directory of the runs")
    for name in ("--driver", "--uri"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.driver:
        return drive(arguments.uri, pathlib.Path(arguments.driver))
    base = pathlib.Path(tempfile.mkdtemp(prefix="spark-chaos-"))
    failed = 0
    print(f"{'run':>4} {'lives':>6} {'queries':>8} {'steps':>6} {'workers':>8} {'JVMs':>5} {'bookies':>8} "
          f"{'rows':>6} {'ledgers':>8} {'reaped':>7} {'seconds':>8} {'table':>8}  outcome", flush=True)  # fmt: skip
    try:
        settings = {"journal_preallocate_size": 1 << 20, "index_cache_size": 1 << 20}
        with (
            LocalCluster(base / "bk-data", BOOKIES, lease_ms=2000, settings=settings) as cluster,
            bk.blocking.connect(cluster.metadata_uri) as store,
            contextlib.ExitStack() as stack,
        ):
            chaos = Chaos(cluster, store, base, arguments.seed)
            stack.callback(chaos.close)
            for number in range(arguments.first, arguments.first + arguments.runs):
                run, began = Run(number), time.monotonic()
                chaos.run(run)
                run.seconds = time.monotonic() - began
                failed += bool(run.problem)
                print(f"{run.number:>4} {run.lives:>6} {run.queries:>8} {run.steps:>6} {run.kills['worker']:>8} "
                      f"{run.kills['JVM']:>5} {run.kills['bookie']:>8} {run.rows:>6} {run.ledgers:>8} "
                      f"{run.reaped:>7} {run.seconds:>8.0f} {run.table:>8}  "
                      f"{run.problem or 'each row once'}", flush=True)  # fmt: skip
    finally:
        if arguments.keep or failed:
            print(f"kept: {base}", file=sys.stderr)
        else:
            shutil.rmtree(base)
    print(f"{arguments.runs - failed} of {arguments.runs} runs as they should be (seed {arguments.seed})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
