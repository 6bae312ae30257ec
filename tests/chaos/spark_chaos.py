"""`make spark-chaos`: a stream into a log while its processes are killed, again and again; each row once, every time.

Each run is a stream of text files into a log of its own. Python workers, the driver's JVM and bookies are killed at
random moments, and at every step of a batch in turn: in a task, before the commit takes effect, after it. A driver
that died is started again on its checkpoint, until the stream has come to its end. Then the log must hold each row
once, in order: its digest is compared with that of the input. The reaper runs, and no ledger may be left that the log
does not list.

    python tests/chaos/spark_chaos.py --runs 20 --seed 1
"""

from __future__ import annotations

import argparse
import hashlib
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

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent))  # for `tests`

from tests.live.spark_faults import Marks, faulty_source

import bookies as bk
from bookies.admin.local_cluster import LocalCluster

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
VICTIMS = ("worker", "JVM", "bookie")
BATCHES, ROWS = 8, 500
BOOKIES = 4
DRIVER_LIVES_MAX = 60
DRIVER_TIMEOUT_S = 600


@dataclass
class Run:
    """What happened, for the table."""

    number: int
    lives: int = 0
    steps: int = 0
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VICTIMS, 0))
    rows: int = 0
    ledgers: int = 0
    reaped: int = 0
    seconds: float = 0.0
    problem: str = ""


# -- the driver, a process of its own --------------------------------------------------------------------------------


def drive(directory: pathlib.Path, uri: str, log: str) -> int:
    """Run the stream to its end; whatever fails ends this process."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from bookies.admin.demo_spark import JAVA_OPTIONS
    from bookies.spark import java

    java.use()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.local.dir", str(directory / "spark"))
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(faulty_source(str(directory / "marks")))
    frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(directory / "in"))
    # One task reads a file, so that each part keeps its order.
    writer = frame.repartitionByRange(2, "value").writeStream.format("bookkeeper-faulty")
    writer = writer.option("bookkeeper.metadataServiceUri", uri).option("log", log)
    try:
        query = writer.trigger(availableNow=True).option("checkpointLocation", str(directory / "checkpoint")).start()
        query.awaitTermination()
    except PySparkException as error:
        print(" ".join(str(error).split())[:300], file=sys.stderr)
        return 1
    return 0


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
    """One life of the driver and all its processes."""

    def __init__(self, directory: pathlib.Path, uri: str, log: str) -> None:
        words = [sys.executable, __file__, "--driver", str(directory), "--uri", uri, "--log", log]
        with open(directory / "driver.txt", "ab") as out:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self._known: dict[int, str] = {}

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


# -- one run ---------------------------------------------------------------------------------------------------------


def run_once(run: Run, cluster: LocalCluster, store: bk.blocking.Client, directory: pathlib.Path, seed: int) -> None:
    chance = random.Random(f"{seed}/{run.number}")
    log = store.log(f"chaos-{run.number}")
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
    for batch in range(BATCHES):  # Every step comes up within two runs.
        marks.set(batch, STEPS[(run.number * BATCHES + batch) % len(STEPS)])
    stream(run, cluster, Driver, (directory, cluster.metadata_uri, log.name), chance)
    run.steps = BATCHES - len(marks.left())
    run.reaped = sum(each.outcome == "deleted" for each in log.reap(orphan_grace=0, replay_grace=0))
    with log.open() as reader:
        found = hashlib.sha256()
        for entry in reader.read():
            found.update(entry.payload + b"\n")
            run.rows += 1
    listed = log.manifest().ledger_ids
    run.ledgers = len(listed)
    stray = [each.ledger_id for each in store.ledgers(("sink.log", log.name)) if each.ledger_id not in listed]
    if found.digest() != expected.digest():
        run.problem = "the log is not what was written"
    elif stray:
        run.problem = f"ledgers nobody refers to: {stray}"
    elif marks.left():
        run.problem = f"did not happen: {marks.left()}"


def stream(
    run: Run,
    cluster: LocalCluster,
    start: type[Driver],
    arguments: tuple[pathlib.Path, str, str],
    chance: random.Random,
) -> None:
    """Lives of the driver until one comes to the end of the stream."""
    down: int | None = None
    while run.lives < DRIVER_LIVES_MAX:
        run.lives += 1
        driver = start(*arguments)
        until = time.monotonic() + DRIVER_TIMEOUT_S
        next_kill = time.monotonic() + chance.uniform(8, 30)
        try:
            while driver.is_running() and time.monotonic() < until:
                time.sleep(0.2)
                if time.monotonic() < next_kill:
                    continue
                next_kill = time.monotonic() + chance.uniform(3, 20)
                kind = chance.choices(VICTIMS, (4, 1, 2))[0]
                if kind != "bookie":
                    run.kills[kind] += driver.kill_one(kind, chance)
                elif down is not None:
                    cluster.restart(down)
                    down = None
                else:
                    down = chance.randrange(BOOKIES)
                    cluster.kill(down)
                    run.kills[kind] += 1
            is_done = driver.process.poll() == 0
        finally:
            driver.end()
        if is_done:
            break
    if down is not None:
        cluster.restart(down)
    if not is_done:
        run.problem = f"no end after {run.lives} lives of the driver"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the directory of the runs")
    for name in ("--driver", "--uri", "--log"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.driver:
        return drive(pathlib.Path(arguments.driver), arguments.uri, arguments.log)
    base = pathlib.Path(tempfile.mkdtemp(prefix="spark-chaos-"))
    failed = 0
    print(f"{'run':>4} {'lives':>6} {'steps':>6} {'workers':>8} {'JVMs':>5} {'bookies':>8} "
          f"{'rows':>6} {'ledgers':>8} {'reaped':>7} {'seconds':>8}  outcome", flush=True)  # fmt: skip
    try:
        settings = {"journal_preallocate_size": 1 << 20, "index_cache_size": 1 << 20}
        with (
            LocalCluster(base / "bk-data", BOOKIES, lease_ms=2000, settings=settings) as cluster,
            bk.blocking.connect(cluster.metadata_uri) as store,
        ):
            for number in range(arguments.runs):
                run, began = Run(number), time.monotonic()
                directory = base / f"run-{number}"
                directory.mkdir()
                run_once(run, cluster, store, directory, arguments.seed)
                run.seconds = time.monotonic() - began
                failed += bool(run.problem)
                print(f"{run.number:>4} {run.lives:>6} {run.steps:>6} {run.kills['worker']:>8} {run.kills['JVM']:>5} "
                      f"{run.kills['bookie']:>8} {run.rows:>6} {run.ledgers:>8} {run.reaped:>7} {run.seconds:>8.0f}  "
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
