"""Java's DistributedLog and ours in turn, on the same bookies: records are written, caught up with, and read.

    python -m benchmarks.dlogs [--pairs 3] [--count 200000] [--bookies ours|apache] [--json FILE]

Three bookies, E3/Qw3/Qa2, entries of up to 64 KiB, a record waits 5 ms for others at most, 10,000 records in flight.
*Catch up*: a reader begins at the first record while the writer has its segment open. *Read*: the log is complete.
Each process warms up with half of the records. Prints medians of the pairs, and the load of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from benchmarks.suite import ending, java
from benchmarks.suite.servers import ApacheCluster, Cluster, OurCluster
from tests.apache.apache import VERSION, jars

from bookies.distributedlog import bind

HERE = pathlib.Path(__file__).parent / "dlog"
POM = pathlib.Path(__file__).parent.parent / "tests" / "distributedlog" / "pom.xml"
SIZES = (100, 1024)
PHASES = ("write", "catch-up", "read")
CLIENTS = ("java", "ours")
WINDOW, DELAY_MS = 10_000, 5
RUN_S = 600.0
Runs = dict[tuple[int, str, str], list[float]]  # records a second, by size, phase, client


def java_command(folder: pathlib.Path) -> list[str]:
    """`java` with the driver, compiled into a folder once."""
    library, classes = jars(VERSION, "distributedlog-core", POM), folder / "classes"
    if not classes.exists():
        command = ["javac", "-nowarn", "-d", str(classes), "-cp", f"{library}/*", str(HERE / "Dlogs.java")]
        subprocess.run(command, check=True)
    command = java.java("Dlogs")
    command[command.index("-cp") + 1] = f"{classes}:{library}/*"
    return command


def measure(command: list[str], uri: str, log: str, size: int, count: int, errors: pathlib.Path) -> dict[str, float]:
    """Run one client; return records a second by phase."""
    words = [uri, log, str(size), str(count), str(WINDOW), str(DELAY_MS)]
    with open(errors, "ab") as file:
        done = subprocess.run([*command, *words], stdout=subprocess.PIPE, stderr=file, text=True, timeout=RUN_S)
    seconds = dict(line.split() for line in done.stdout.splitlines() if line.split()[0] in PHASES)
    if done.returncode or len(seconds) < len(PHASES):
        raise RuntimeError(f"{command[0]} has failed: {errors.read_text()[-2000:]}")
    return {phase: count / float(seconds[phase]) for phase in PHASES}


def run_all(arguments: argparse.Namespace, directory: pathlib.Path) -> Runs:
    cluster: Cluster = (ApacheCluster if arguments.bookies == "apache" else OurCluster)(directory / "cluster")
    commands = {"java": java_command(directory), "ours": [sys.executable, str(HERE / "drive.py")]}
    runs: Runs = {}
    try:
        cluster.start()
        host = cluster.metadata_uri.partition("://")[2].partition("/")[0]
        uri = f"distributedlog://{host}/logs"
        asyncio.run(bind(uri, f"zk://{host}/ledgers"))
        for size in SIZES:
            for pair in range(arguments.pairs):
                for client in CLIENTS if pair % 2 == 0 else reversed(CLIENTS):
                    log = f"{client}-{size}-{pair}"
                    found = measure(commands[client], uri, log, size, arguments.count, directory / f"{client}.log")
                    for phase, rate in found.items():
                        runs.setdefault((size, phase, client), []).append(rate)
                    print(log, {phase: round(rate) for phase, rate in found.items()}, file=sys.stderr, flush=True)
    finally:
        cluster.stop()
    return runs


def print_table(runs: Runs) -> None:
    """Medians of records a second, and the median of the ratios of pairs."""
    print("| case | Java's, records/s | ours, records/s | ours / Java's |\n|---|---:|---:|---:|")
    for size in SIZES:
        for phase in PHASES:
            javas, ours = (runs[size, phase, client] for client in CLIENTS)
            ratio = statistics.median(mine / theirs for theirs, mine in zip(javas, ours, strict=True))
            medians = statistics.median(javas), statistics.median(ours)
            print(f"| {phase}, {size} B | {medians[0]:,.0f} | {medians[1]:,.0f} | {ratio:.2f} |")
    print(f"\nload of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--count", type=int, default=200_000, help="records of each run")
    parser.add_argument("--bookies", choices=("ours", "apache"), default="ours")
    parser.add_argument("--json", metavar="FILE", help="every run, one JSON document")
    arguments = parser.parse_args(words)
    if arguments.pairs < 1 or arguments.count < 2:
        parser.error("--pairs must be 1 or more, --count 2 or more")
    return ending.orderly(lambda: report(arguments))


def report(arguments: argparse.Namespace) -> int:
    os.environ.setdefault("BOOKIES_APACHE_CACHE", str(java.cache()))
    java.prepare()
    with tempfile.TemporaryDirectory(prefix="bk-dlogs-", ignore_cleanup_errors=True) as directory:
        runs = run_all(arguments, pathlib.Path(directory))
    print_table(runs)
    if arguments.json:
        document = {f"{size} {phase} {client}": rates for (size, phase, client), rates in runs.items()}
        pathlib.Path(arguments.json).write_text(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
