"""Results as Markdown and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.suite.figures import Row, Run, Spread, spread
from benchmarks.suite.limits import Limits

NAMES = {
    "entries_per_s": "throughput",
    "p50_us": "p50",
    "p99_us": "p99",
    "cpu_us": "CPU for each entry",
    "client_cpu_us": "client's CPU for each entry",
    "bookies_cpu_us": "bookies' CPU for each entry",
    "bookie_mb": "memory of a bookie",
    "rest_mb": "memory of a bookie at rest",
    "start_ms": "until an entry is stored",
    "disk_share": "share of the disk's bandwidth",
    "written_per_payload": "bytes to disks for each of payload",
    "share": "what is left of the throughput",
}
NOTHING = "-"
COSTS = ("client_cpu_us", "bookies_cpu_us", "client_mb", "bookie_mb")


def markdown(rows: Sequence[Row], reference: str, found: str) -> str:
    """The main table. Medians, and smallest to largest of the runs; a ratio above 1: better than the reference."""
    lines = [
        f"| case | figure | {reference} | {found} | ratio | asked | met | what the machine allows | share of it |",
        "|---|---|---|---|---:|---|---|---|---:|",
    ]
    for row in rows:
        unit = row.figure.unit
        setting = f" ({row.setting})" if row.setting and row.setting != "default" else ""
        failed = row.failed[1] and f"; {row.failed[1]} of {row.runs[1]} failed"
        failed_reference = row.failed[0] and f"; {row.failed[0]} of {row.runs[0]} failed"
        met = "**no**" if row.verdict == "no" else row.verdict
        cells = (
            row.case,
            f"{NAMES.get(row.figure.key, row.figure.key)}, {unit}",
            f"{_spread(row.reference)}{setting}{failed_reference or ''}",
            f"{row.contestant}: {_spread(row.found)}{failed or ''}",
            NOTHING if row.ratio is None else f"{row.ratio:.2f}",
            row.asked,
            met,
            NOTHING if row.limit is None else f"{number(row.limit.value)} ({row.limit.cause})",
            NOTHING if row.share_of_limit is None else f"{100 * row.share_of_limit:.0f} %",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def costs(runs: Sequence[Run]) -> str:
    """CPU and memory of every contestant: medians."""
    lines = [
        "| case | contestant | client, CPU s for 1,000,000 entries | bookies, the same | client, MB | bookie, MB |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for key in dict.fromkeys((run.case, run.setting, run.contestant) for run in runs):
        mine = [run for run in runs if (run.case, run.setting, run.contestant) == key and COSTS[0] in run.values]
        if mine:
            middles = [spread([run.values[name] for run in mine]) for name in COSTS]
            name = f"{key[2]} ({key[1]})" if key[1] else key[2]
            values = " | ".join(NOTHING if each is None else number(each.median) for each in middles)
            lines.append(f"| {key[0]} | {name} | {values} |")
    return "\n".join(lines)


def document(rows: Sequence[Row], runs: Sequence[Run], limits: Limits) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "limits": asdict(limits),
        "runs": [asdict(run) for run in runs],
        "rows": [
            {
                "case": row.case,
                "figure": row.figure.key,
                "unit": row.figure.unit,
                "contestant": row.contestant,
                "setting": row.setting,
                "reference": row.reference and asdict(row.reference),
                "found": row.found and asdict(row.found),
                "ratio": row.ratio,
                "asked": row.asked,
                "pairs": row.pairs,
                "is_met": row.is_met,
                "verdict": row.verdict,
                "limit": row.limit and asdict(row.limit),
                "share_of_limit": row.share_of_limit,
                "failed": row.failed,
                "runs": row.runs,
            }
            for row in rows
        ],
    }


def number(value: float) -> str:
    """Three digits or more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _spread(found: Spread | None) -> str:
    if found is None:
        return NOTHING
    if found.low == found.high:
        return number(found.median)
    return f"{number(found.median)} ({number(found.low)} to {number(found.high)})"
