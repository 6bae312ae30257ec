"""Apache BookKeeper and ours, side by side on one machine: their runs alternate, the table shows medians and ratios.

    python benchmarks/compare.py [--runs 3] [--seconds 8] [--warmup 8] [--case TEXT] [--json FILE]

Both clusters are up all the time (three bookies each, E3/Qw3/Qa2, CRC32C, protocol v2), one of them works. A ratio
above 1 means ours is better, whatever the figure.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from apache_cluster import ApacheCluster, java

from bookies.admin.bench_drive import cpu_seconds, rss_mb
from bookies.admin.local_cluster import LocalCluster

# (name, kind, size, window)
CASES = (
    ("add, 100 B, 1,000 in flight", "add", 100, 1000),
    ("add, 1 KiB, 1,000 in flight", "add", 1024, 1000),
    ("add, 16 KiB, 1,000 in flight", "add", 16384, 1000),
    ("add, 1 KiB, one in flight", "add", 1024, 1),
    ("sequential read, 1 KiB", "read", 1024, 0),
)


def measure_apache(
    cluster: ApacheCluster, arguments: argparse.Namespace, kind: str, size: int, window: int
) -> dict[str, Any]:
    """One run with Apache's client. Its client is a new JVM, so it gets `--apache-warmup` seconds."""
    words = [kind, "--metadata", cluster.metadata_uri, "--size", str(size), "--seconds", str(int(arguments.seconds))]
    words += ["--window", str(window), "--warmup", str(int(arguments.apache_warmup))]
    before = [cpu_seconds(pid) for pid in cluster.bookie_pids()]
    process = subprocess.run(java("Drive", *words, heap=("1g", "1g")), capture_output=True, text=True, check=False)
    spent = sum(cpu_seconds(pid) for pid in cluster.bookie_pids()) - sum(before)
    lines = [line for line in process.stdout.splitlines() if line.startswith("RESULT")]
    if not lines:
        return {"errors": 1, "failure": process.stderr[-500:]}
    count, elapsed, cpu, errors, p50, p99 = map(float, lines[-1].split()[1:])
    # The bookies' time covers the warm-up too, at the same rate of work to a first approximation.
    share = elapsed / (elapsed + arguments.apache_warmup)
    return {
        "entries_per_s": count / elapsed,
        "p50_us": p50,
        "p99_us": p99,
        "cpu_us_per_entry": 1e6 * (cpu + share * spent) / max(1, count),
        "server_rss_mb": max(rss_mb(pid) for pid in cluster.bookie_pids()),
        "errors": int(errors),
    }


def measure_ours(
    cluster: LocalCluster, arguments: argparse.Namespace, kind: str, size: int, window: int
) -> dict[str, Any]:
    words = ["--state", cluster.directory, "--size", str(size), "--json"]
    words += ["--seconds", str(arguments.seconds), "--warmup", str(arguments.warmup)]
    if kind == "add":
        words += ["--window", str(window)]
    command = [sys.executable, "-m", "bookies.admin.cli", "bench", "append" if kind == "add" else "read", *words]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if not process.stdout.strip():
        return {"errors": 1, "failure": process.stderr[-500:]}
    found = json.loads(process.stdout)
    return {
        "entries_per_s": found["entries_per_s"],
        "p50_us": found["p50_us"],
        "p99_us": found["p99_us"],
        "cpu_us_per_entry": found["client_cpu_us_per_entry"] + found["server_cpu_us_per_entry"],
        "server_rss_mb": max(found["server_rss_mb"]),
        "errors": found["errors"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--warmup", type=float, default=3, help="ours, seconds")
    parser.add_argument("--apache-warmup", type=float, default=15, help="Apache's (compilation takes long), seconds")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--json", metavar="FILE", help="every run, one JSON document")
    parser.add_argument("--directory", default=None, help="where both keep their data")
    arguments = parser.parse_args()
    cases = [case for case in CASES if arguments.case in case[0]]
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bk-compare-", dir=arguments.directory) as directory:
        ours = LocalCluster(os.path.join(directory, "ours"), bookies=3)
        with ApacheCluster(os.path.join(directory, "apache")) as apache:
            try:
                ours.start()
                for number in range(arguments.runs):
                    for name, kind, size, window in cases:
                        for system in ("apache", "ours") if number % 2 == 0 else ("ours", "apache"):
                            if system == "apache":
                                found = measure_apache(apache, arguments, kind, size, window)
                            else:
                                found = measure_ours(ours, arguments, kind, size, window)
                            runs.append({"case": name, "system": system, "run": number, **found})
                            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
            finally:
                ours.stop()
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(runs, indent=1))
    print_table(runs, [case[0] for case in cases])
    return 0


def print_table(runs: list[dict[str, Any]], names: list[str]) -> None:
    """Medians of the runs without errors, and how many had some."""
    print("| case | figure | Apache | ours | ratio | failed runs |\n|---|---|---:|---:|---:|---|")
    for name in names:
        figures = (
            ("p50_us", "p99_us") if "one in flight" in name else ("entries_per_s", "cpu_us_per_entry", "server_rss_mb")
        )
        for figure in figures:
            values: dict[str, list[float]] = {"apache": [], "ours": []}
            failed = {"apache": 0, "ours": 0}
            for run in runs:
                if run["case"] == name and run["errors"]:
                    failed[run["system"]] += 1
                elif run["case"] == name:
                    values[run["system"]].append(run[figure])
            medians = {system: statistics.median(found) if found else float("nan") for system, found in values.items()}
            ratio = (
                medians["ours"] / medians["apache"]
                if figure == "entries_per_s"
                else medians["apache"] / medians["ours"]
            )
            print(
                f"| {name} | {figure} | {medians['apache']:,.1f} | {medians['ours']:,.1f} | {ratio:.2f} | "
                f"{failed['apache']} / {failed['ours']} |"
            )


if __name__ == "__main__":
    sys.exit(main())
