"""Spark over a store with many ledgers: the plan of a read of one log, and the jobs `usage` and `reconcile`.

The records are made up in the embedded store of a cluster with three bookies, which hold nothing of them: nine of ten
ledgers are in logs of a thousand, the others in no log. Each case is a process of its own, so that the memory is its.
`make bench-spark-metadata ARGS='--ledgers 10000,100000,1000000'` prints the table.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.spark_usage import Usage, peak_mb

from bookies.admin.cluster.local_cluster import LocalCluster
from bookies.client.base.segments import LOGS
from bookies.metadata.embedded.embedded import FILE_NAME
from bookies.metadata.embedded.sqlite import SqliteStore
from bookies.metadata.formats.serde import pack_ledger
from bookies.metadata.interface.driver import GivenIds
from bookies.metadata.shared.nodes import Key, Put, Table
from bookies.model import BookieId, DigestType, LedgerMetadata, LedgerState
from bookies.protocol.log.log_model import Extent, Manifest
from bookies.protocol.log.log_segments import stored
from bookies.spark.jobs.shared.common import JobConfig

CASES = ("plan", "usage", "reconcile")
LEDGERS_PER_LOG, ENTRIES, ENTRY_SIZE = 1000, 500, 1000
AT_ONCE = 2000  # records of a transaction
DAY_MS = 86_400_000


def made_up(store: SqliteStore, bookies: list[BookieId], count: int) -> str:
    """Write the records of `count` ledgers and of their logs; return the name of one log."""
    now_ms = int(time.time() * 1000)
    last, length = ENTRIES - 1, ENTRIES * ENTRY_SIZE

    def record(ledger_id: int) -> Put:
        ensemble = tuple(bookies[(ledger_id + place) % len(bookies)] for place in range(3))
        metadata = LedgerMetadata(
            ledger_id, 3, 3, 2, ((0, ensemble),), LedgerState.CLOSED, last, length,
            custom_metadata={"application": b"%d" % (ledger_id % 20)},
        )  # fmt: skip
        return Put(
            Key(Table.LEDGERS, ledger_id), pack_ledger(metadata), ctime_ms=now_ms - DAY_MS * (2 + ledger_id % 90)
        )

    def log(number: int) -> Iterator[Put]:
        ids = range(number * LEDGERS_PER_LOG, (number + 1) * LEDGERS_PER_LOG)
        extents = tuple(Extent(seq, each, 0, last, ENTRIES, length) for seq, each in enumerate(ids))
        manifest = Manifest(f"{number:016x}", now_ms, 3, 3, 2, DigestType.CRC32C, next_seq=len(ids), extents=extents)
        layout = stored(f"log-{number:04}", manifest)
        for name, (content, _) in layout.new.items():
            yield Put(Key(Table.RECORDS, name), content)
        yield Put(Key(Table.RECORDS, f"{LOGS}log-{number:04}"), layout.head)

    for start in range(0, count, AT_ONCE):
        store.commit([], [record(ledger_id) for ledger_id in range(start, min(count, start + AT_ONCE))])
    for number in range(count * 9 // 10 // LEDGERS_PER_LOG):
        store.commit([], list(log(number)))
    store.restore_ids(GivenIds(count))
    return "log-0000"


def planned(spark: Any, uri: str, log: str) -> str:
    import bookies.spark

    frame = bookies.spark.read_log(spark, uri, log)
    return f"{frame.rdd.getNumPartitions()} tasks"


def job(name: str) -> Callable[[Any, str, str], str]:
    def run(spark: Any, uri: str, _: str) -> str:
        from bookies.spark.jobs import reconcile, usage

        complete = {"usage": usage, "reconcile": reconcile}[name].complete(spark, JobConfig(uri, is_quiet=True))
        return complete.report.lead

    return run


def measure(case: str, uri: str, log: str) -> dict[str, Any]:
    """Run one case in this process. Megabytes are the most that a process had resident."""
    from bookies.spark.base.session import session
    from bookies.spark.jobs.shared.common import prepare

    with session("benchmark") as spark:
        prepare(spark)
        spark.range(10).mapInArrow(lambda batches: batches, "id long").count()  # starts Python's workers
        usage = Usage(spark, list)
        usage.begin()
        started, own = time.monotonic(), time.process_time()
        found = (planned if case == "plan" else job(case))(spark, uri, log)
        seconds, own = time.monotonic() - started, time.process_time() - own
        spent = usage.end(1)
        cpu = own + ((spent["jvm_us"] or 0.0) + (spent["python_us"] or 0.0)) / 1e6
        jvm = spark.sparkContext._gateway.proc.pid
        return {
            "seconds": round(seconds, 1),
            "cpu_s": round(cpu, 1),
            "driver_mb": round(peak_mb("self")),
            "jvm_mb": round(peak_mb(jvm)),
            "worker_mb": round(usage.worker_peak_mb()),
            "found": found,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ledgers", default="10000,100000,1000000", help="numbers of ledgers, separated by commas")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.measure:
        print(json.dumps(measure(*words.measure)))
        return
    print("| case | ledgers | seconds | processor seconds | driver, MB | JVM, MB | worker, MB | found |", flush=True)
    print("|---|---:|---:|---:|---:|---:|---:|---|", flush=True)
    for count in map(int, words.ledgers.split(",")):
        with tempfile.TemporaryDirectory() as folder, LocalCluster(pathlib.Path(folder) / "bk-data", 3) as cluster:
            directory = pathlib.Path(cluster.metadata_uri.removeprefix("file:"))
            store = SqliteStore(str(directory / FILE_NAME), lambda: int(time.time() * 1000))
            store.open()
            log = made_up(store, sorted(BookieId(item[0]) for item in store.list(Table.COOKIES).items), count)
            store.close()
            for case in words.cases.split(","):
                command = [sys.executable, "-m", __spec__.name, "--measure", case, cluster.metadata_uri, log]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                row = json.loads(done.stdout.splitlines()[-1])
                cells = (case, f"{count:,}", *(f"{row[name]:,}" for name in row if name != "found"), row["found"])
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
