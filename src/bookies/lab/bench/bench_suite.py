"""Table of `bk bench suite`: the medians of several runs of each case."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

from bookies.admin.shared.report import Report, Table

# (name, verb, options that differ from the defaults)
CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("add 100 B, 1,000 in flight", "append", {"size": 100, "window": 1000}),
    ("add 1 KiB, 1,000 in flight", "append", {"size": 1024, "window": 1000}),
    ("add 1 KiB, 1,000 in flight, batches", "append", {"size": 1024, "window": 1000, "api": "many"}),
    ("add 16 KiB, 1,000 in flight", "append", {"size": 16384, "window": 1000}),
    ("add 1 KiB, one in flight", "append", {"size": 1024, "window": 1}),
    ("add 1 KiB, 1,000 in flight, 10 ledgers", "append", {"size": 1024, "window": 1000, "ledgers": 10}),
    ("add 1 KiB, 1,000 in flight, 1,000 ledgers", "append", {"size": 1024, "window": 1000, "ledgers": 1000}),
    ("read 1 KiB, entries", "read", {"size": 1024, "api": "entries"}),
    ("read 1 KiB, Arrow", "read", {"size": 1024, "api": "arrow"}),
)
COLUMNS = (
    "entries_per_s",
    "mb_per_s",
    "p50_us",
    "p99_us",
    "client_cpu_us_per_entry",
    "server_cpu_us_per_entry",
    "server_rss_mb",
)


def run(arguments: argparse.Namespace, measure: Callable[[argparse.Namespace], dict[str, Any]]) -> Report:
    """Run every case `--runs` times, round after round. Return one row per case."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name, _, _ in CASES}
    defaults = {"window": 1000, "ledgers": 1, "api": "single", "entries": 200_000, "ledger": None}
    for round_number in range(arguments.runs):
        for name, verb, changes in CASES:
            case = argparse.Namespace(**{**vars(arguments), **defaults, **changes, "verb": verb})
            print(f"  round {round_number + 1} of {arguments.runs}: {name}", file=sys.stderr, flush=True)
            results[name].append(measure(case))
    rows = [{"case": name, **_median(runs)} for name, runs in results.items()]
    cells = [(row["case"], *(f"{row[column]:,}" for column in COLUMNS), row["errors"]) for row in rows]
    table = Table(("case", *COLUMNS, "errors"), cells, range(1, len(COLUMNS) + 2))
    return Report(rows, [table], int(any(row["errors"] for row in rows)))


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    def figure(result: dict[str, Any], column: str) -> float:
        value = result[column]
        return max(value, default=0) if isinstance(value, list) else value

    row: dict[str, Any] = {
        column: round(statistics.median(figure(run, column) for run in runs), 1) for column in COLUMNS
    }
    row["errors"] = sum(run["errors"] for run in runs)
    return row
