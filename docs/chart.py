"""Draws docs/images/benchmarks.svg from the table "Against Apache BookKeeper" in docs/internals/benchmarks.md.

`python docs/chart.py` writes the chart. `python docs/chart.py --check` only reports whether it is current.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import re
import sys
from dataclasses import dataclass
from html import escape

HERE = pathlib.Path(__file__).parent
PAGE = HERE / "internals" / "benchmarks.md"
CHART = HERE / "images" / "benchmarks.svg"
SECTION = "## Against Apache BookKeeper"

# Label in the chart, case and figure in the table, unit. Where the table has several settings of Apache's bookie for
# a figure, this is the row with the best of them.
SELECTION = [
    ("add 100 B, ten ledgers", "add 100 B, ten ledgers, 5,000 in flight", "entries/s", "entries/s"),
    ("add 1 KiB, ten ledgers", "add 1 KiB, ten ledgers, 5,000 in flight", "entries/s", "entries/s"),
    ("add 16 KiB", "the same, 2 of 4 pairs; the others failed", "", "entries/s"),
    (
        "add 1 KiB, 10,000 ledgers",
        "add 1 KiB, 10,000 ledgers, 10,000 in flight; three pairs",
        "entries/s",
        "entries/s",
    ),
    ("add 1 KiB, one in flight, p50", "the same, Apache at low latency", "p50, ms", "ms"),
    ("add 1 KiB, one in flight, p99", "the same, Apache at low latency", "p99, ms", "ms"),
    ("read 100 B in order", "read 100 B in order, `read()`", "entries/s", "entries/s"),
    ("read 1 KiB in order", "read 1 KiB in order, `read()`", "entries/s", "entries/s"),
    ("read 1 KiB in order, cold", "read 1 KiB in order, cold, `read()`; three pairs", "entries/s", "entries/s"),
    ("read 1 KiB at random, warm", "read 1 KiB at random, warm, 16 in flight", "entries/s", "entries/s"),
    ("read 1 KiB at random, cold", "the same, cold", "entries/s", "entries/s"),
    ("tail 1,000 entries/s, p50", "tail, 1 KiB, 1,000 entries/s", "p50, ms", "ms"),
    ("tail 1,000 entries/s, p99", "tail, 1 KiB, 1,000 entries/s", "p99, ms", "ms"),
    ("recovery, idle writer, p50", "recovery, writer idle", "p50, ms", "ms"),
    ("recovery, 1,000 in flight, p50", "recovery, 1,000 entries in flight", "p50, ms", "ms"),
    ("create and close, one at a time", "ledgers created and closed, one at a time", "ledgers/s", "ledgers/s"),
    ("create and close, 16 at a time", "16 at a time", "ledgers/s", "ledgers/s"),
    ("start of a new bookie", "a new bookie's start", "ms", "ms"),
    ("restart, 570 MB of journal", "restart with 570 MB of journal", "ms", "ms"),
    ("memory of a bookie, 1 KiB adds", "the same, `append_many`", "memory of a bookie under load, MB", "MB"),
]

WIDTH, MARGIN, ROW, TOP, BOTTOM = 900, 20, 25, 104, 58
APACHE_X, OURS_X, UNIT_X = 350, 430, 440  # right edges of two columns of numbers; left edge of the units
AXIS_LEFT, AXIS_RIGHT = 540, 850
RATIO_MIN, RATIO_MAX = 1 / 4, 16.0
TICKS = [0.25, 0.5, 1, 2, 4, 8, 16]
BAR = 13
TIMES = "\N{MULTIPLICATION SIGN}"

STYLE = """
text { font: 13px -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 }
.small { font-size: 12px; fill: #59636e }
.value { font-size: 12px; paint-order: stroke; stroke: #ffffff; stroke-width: 4px }
.number { text-anchor: end; font-variant-numeric: tabular-nums }
.middle { text-anchor: middle }
.card { fill: #ffffff; stroke: #d1d9e0 }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.one { stroke: #59636e; stroke-width: 1.5 }
.ours { fill: #0969da }
.apache { fill: #bc4c00 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .small { fill: #9198a1 }
  .value { stroke: #0d1117 }
  .card { fill: #0d1117; stroke: #3d444d }
  .grid { stroke: #3d444d }
  .one { stroke: #9198a1 }
  .ours { fill: #4493f8 }
  .apache { fill: #db6d28 }
}
"""


@dataclass(frozen=True)
class Row:
    """One comparison. `ratio` above 1: ours is better, whether more or less of the unit is better."""

    label: str
    apache: str
    ours: str
    unit: str
    ratio_text: str

    @property
    def ratio(self) -> float:
        return float(self.ratio_text)


def table(text: str) -> dict[tuple[str, str], list[str]]:
    """The rows of the section's first table, by case and figure. An empty case is the case of the row before."""
    _, _, section = text.partition(f"\n{SECTION}\n")
    rows: dict[tuple[str, str], list[str]] = {}
    case = ""
    for line in section.splitlines():
        if not line.startswith("|"):
            if rows:
                break
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        case = cells[0] or case
        rows[case, cells[1]] = cells
    return rows


def rows_of(text: str) -> list[Row]:
    """The selected rows, the highest ratio first. Raises ValueError for one that the table does not have."""
    found = table(text)
    rows = []
    for label, case, figure, unit in SELECTION:
        if (case, figure) not in found:
            raise ValueError(f"{PAGE.name} has no row {case!r}, {figure!r}: change SELECTION in docs/chart.py")
        _, _, apache, ours, ratio, *_ = found[case, figure]
        rows.append(Row(label, _number(apache), _number(ours), unit, ratio))
    return sorted(rows, key=lambda row: -row.ratio)


def _number(cell: str) -> str:
    match = re.match(r"[\d,.]*\d", cell)
    if match is None:
        raise ValueError(f"no number in {cell!r}")
    return match[0]


def _x(ratio: float) -> float:
    share = math.log(ratio / RATIO_MIN) / math.log(RATIO_MAX / RATIO_MIN)
    return AXIS_LEFT + share * (AXIS_RIGHT - AXIS_LEFT)


def draw(rows: list[Row]) -> str:
    """The chart: numbers, and bars to the right where ours is better, to the left where Apache's is."""
    height = TOP + len(rows) * ROW + BOTTOM
    bottom = TOP + len(rows) * ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title description">',
        '<title id="title">bookies beside Apache BookKeeper</title>',
        f'<desc id="description">{escape(_description(rows))}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        _text(MARGIN, 30, "bookies beside Apache BookKeeper 4.17.3", "title"),
        _text(
            MARGIN,
            50,
            "Medians of alternating runs on one machine with two processors: three bookies, three replicas, "
            "ack quorum 2, synced.",
            "small",
        ),
        _text(APACHE_X, TOP - 12, "Apache", "number small"),
        _text(OURS_X, TOP - 12, "bookies", "number small"),
        _text(_x(1) - 8, TOP - 28, "← Apache is better", "number small"),
        _text(_x(1) + 8, TOP - 28, "bookies is better →", "small"),
    ]
    for tick in TICKS:
        x = _x(tick)
        name = f"1/{round(1 / tick)}" if tick < 1 else f"{tick:g}"
        parts.append(
            f'<line class="{"one" if tick == 1 else "grid"}" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}"/>'
        )
        parts.append(_text(x, TOP - 12, f"{name}{TIMES}", "middle small"))
    for number, row in enumerate(rows):
        parts += _bar(row, TOP + number * ROW)
    note = "Bars: median of the ratios of pairs, against the best of Apache's settings for each figure; logarithmic."
    parts.append(_text(MARGIN, bottom + 24, note, "small"))
    parts.append(
        _text(MARGIN, bottom + 42, f"All cases, settings and spreads: {PAGE.relative_to(HERE.parent)}", "small")
    )
    return "\n".join([*parts, "</svg>", ""])


def _bar(row: Row, top: float) -> list[str]:
    base = top + ROW / 2 + 4.5
    left, right = sorted((_x(1), _x(row.ratio)))
    is_ours = row.ratio >= 1
    bar = (
        f'<rect class="{"ours" if is_ours else "apache"}" x="{left:.1f}" y="{top + (ROW - BAR) / 2:.1f}" '
        f'width="{max(right - left, 1):.1f}" height="{BAR}" rx="2"/>'
    )
    label = f"{row.ratio_text}{TIMES}"
    beside = _text(right + 5, base, label, "value") if is_ours else _text(left - 5, base, label, "number value")
    return [
        _text(MARGIN, base, row.label, ""),
        _text(APACHE_X, base, row.apache, "number"),
        _text(OURS_X, base, row.ours, "number"),
        _text(UNIT_X, base, row.unit, "small"),
        bar,
        beside,
    ]


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _description(rows: list[Row]) -> str:
    return "; ".join(f"{row.label}: Apache {row.apache}, bookies {row.ours} {row.unit}" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="report whether the chart is current, and write nothing")
    arguments = parser.parse_args()
    chart = draw(rows_of(PAGE.read_text(encoding="utf-8")))
    if arguments.check:
        is_current = CHART.exists() and CHART.read_text(encoding="utf-8") == chart
        print(f"{CHART.name} is current" if is_current else f"{CHART.name} is not current: python docs/chart.py")
        return 0 if is_current else 1
    CHART.parent.mkdir(exist_ok=True)
    CHART.write_text(chart, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
