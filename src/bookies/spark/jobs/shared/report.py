"""Final report of a job: text for a terminal, or one self-contained HTML file.

The file has no scripts and makes no network requests; plots are SVG drawn here. Colours follow the reader's light or
dark mode, and every plot is also a table, for readers who cannot see it. Source: spark 7.3.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ROWS_MAX = 1000  # rows of a table in a report; the rest is in the Parquet files


@dataclass(frozen=True)
class Table:
    """A table. `right`: indexes of columns of numbers."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Any]]
    right: Sequence[int] = ()


@dataclass(frozen=True)
class Bars:
    """Horizontal bars: label, value, text of the value. `limit`: value and label of a line across them."""

    rows: Sequence[tuple[str, float, str]]
    limit: tuple[float, str] | None = None


@dataclass(frozen=True)
class Curve:
    """A line through points (x, y), both 0 to 1. `diagonal`: with the line of equality, as for a Lorenz curve."""

    points: Sequence[tuple[float, float]]
    x_label: str
    y_label: str
    diagonal: bool = False


@dataclass(frozen=True)
class Section:
    title: str
    text: str = ""
    table: Table | None = None
    plot: Bars | Curve | None = None


@dataclass(frozen=True)
class Report:
    """Report of a job. `lead`: the result in one sentence. `is_good`: no action is needed."""

    title: str
    lead: str
    is_good: bool
    parameters: Mapping[str, Any] = field(default_factory=dict)
    sections: Sequence[Section] = ()


def number_text(value: Any) -> str:
    """Format a value: numbers with separators, None as an empty text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def text(report: Report) -> str:
    """Return the report for a terminal."""
    parts = [report.lead]
    for section in report.sections:
        if section.table is None or not section.table.rows:
            continue
        parts += ["", section.title]
        table = section.table
        cells = [[number_text(cell) for cell in row] for row in table.rows[:ROWS_MAX]]
        widths = [max(map(len, column)) for column in zip(table.headers, *cells, strict=True)]
        for line in [list(table.headers), *cells]:
            aligned = [
                cell.rjust(width) if index in table.right else cell.ljust(width)
                for index, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            parts.append("  " + "  ".join(aligned).rstrip())
        if len(table.rows) > ROWS_MAX:
            parts.append(f"  ... and {len(table.rows) - ROWS_MAX:,} more")
    return "\n".join(parts)


def page(report: Report) -> str:
    """Return the report as one HTML file."""
    body = [
        f"<h1>{_escaped(report.title)}</h1>",
        f'<p class="lead {"good" if report.is_good else "bad"}">{_escaped(report.lead)}</p>',
        *(_section(section) for section in report.sections),
        "<h2>Parameters</h2>",
        _table(Table(("parameter", "value"), list(report.parameters.items()))),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_escaped(report.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    parts = [f"<section><h2>{_escaped(section.title)}</h2>"]
    if section.text:
        parts.append("<p>" + _CODE.sub(r"<code>\1</code>", _escaped(section.text)) + "</p>")
    if isinstance(section.plot, Bars) and section.plot.rows:
        parts.append(_bars(section.title, section.plot))
    if isinstance(section.plot, Curve):
        parts.append(_curve(section.title, section.plot))
    if section.table is not None:
        parts.append(_table(section.table) if section.table.rows else '<p class="none">none</p>')
    return "\n".join([*parts, "</section>"])


def _table(table: Table) -> str:
    def line(tag: str, cells: Sequence[Any]) -> str:
        written = (
            f"<{tag}{' class=number' if index in table.right else ''}>{_escaped(number_text(cell))}</{tag}>"
            for index, cell in enumerate(cells)
        )
        return f"<tr>{''.join(written)}</tr>"

    rows = [line("td", row) for row in table.rows[:ROWS_MAX]]
    more = len(table.rows) - ROWS_MAX
    if more > 0:
        rows.append(f'<tr><td colspan="{len(table.headers)}">and {more:,} more, in the Parquet files</td></tr>')
    head = line("th", table.headers)
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'


_WIDTH, _ROW, _LABEL, _RIGHT = 720, 22, 180, 90
_LABEL_MAX = 22  # letters that fit
# Attributes of shapes and text: a class for the style sheet, and colours for programs without one, such as mail.
_BAR = 'class="bar" fill="#2f6fb3"'
_LIMIT = 'class="limit" stroke="#b3541e" stroke-dasharray="4 3"'
_FRAME = 'class="frame" fill="none" stroke="#d5dae1"'
_CURVE = 'class="curve" fill="none" stroke="#2f6fb3" stroke-width="2"'
_TEXT = 'font-size="12" fill="#1c2430"'
_VALUE = 'class="value" font-size="12" fill="#5b6675"'


def _bars(title: str, bars: Bars) -> str:
    bar_space = _WIDTH - _LABEL - _RIGHT
    largest = max([value for _, value, _ in bars.rows] + ([bars.limit[0]] if bars.limit else [])) or 1
    height = _ROW * len(bars.rows) + (26 if bars.limit else 6)
    shapes, texts = [], []
    for index, (label, value, value_text) in enumerate(bars.rows):
        y, width = index * _ROW, max(1.0, bar_space * value / largest) if value > 0 else 0
        hover = f"<title>{_escaped(label)}: {_escaped(value_text)}</title>"
        shapes.append(
            f'<rect {_BAR} x="{_LABEL}" y="{y + 4}" width="{width:.1f}" height="{_ROW - 8}" rx="2">{hover}</rect>'
        )
        texts.append(
            f'<text {_TEXT} x="{_LABEL - 8}" y="{y + 15}" text-anchor="end">{hover}{_escaped(_short(label))}</text>'
            f'<text {_VALUE} x="{_LABEL + width + 6:.1f}" y="{y + 15}">{_escaped(value_text)}</text>'
        )
    if bars.limit:
        at, end = _LABEL + bar_space * bars.limit[0] / largest, _ROW * len(bars.rows)
        shapes.append(f'<line {_LIMIT} x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{end + 4}"/>')
        texts.append(
            f'<text {_VALUE} x="{at:.1f}" y="{end + 18}" text-anchor="middle">{_escaped(bars.limit[1])}</text>'
        )
    head = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{_escaped(title)}">'
    return "".join([head, *shapes, *texts, "</svg>"])


def _curve(title: str, curve: Curve) -> str:
    side, left, top = 240, 60, 10
    points = " ".join(f"{left + side * x:.1f},{top + side * (1 - y):.1f}" for x, y in curve.points)
    parts = [
        f'<svg class="small" viewBox="0 0 {left + side + 20} {top + side + 46}" role="img" '
        f'aria-label="{_escaped(title)}">',
        f'<rect {_FRAME} x="{left}" y="{top}" width="{side}" height="{side}"/>',
    ]
    if curve.diagonal:
        parts.append(f'<line {_LIMIT} x1="{left}" y1="{top + side}" x2="{left + side}" y2="{top}"/>')
    parts.append(f'<polyline {_CURVE} points="{points}"/>')
    for share in (0, 0.5, 1):
        at = left + side * share
        parts.append(f'<text {_VALUE} x="{at}" y="{top + side + 16}" text-anchor="middle">{share:.0%}</text>')
        y = top + side * (1 - share) + 4
        parts.append(f'<text {_VALUE} x="{left - 6}" y="{y}" text-anchor="end">{share:.0%}</text>')
    across, middle = left + side / 2, top + side / 2
    parts.append(
        f'<text {_TEXT} x="{across}" y="{top + side + 36}" text-anchor="middle">{_escaped(curve.x_label)}</text>'
    )
    parts.append(
        f'<text {_TEXT} x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">'
        f"{_escaped(curve.y_label)}</text>"
    )
    return "".join([*parts, "</svg>"])


_CODE = re.compile("`([^`]+)`")  # commands and names of columns in a text


def _short(label: str) -> str:
    """Shorten a label in the middle: names of machines differ at either end."""
    if len(label) <= _LABEL_MAX:
        return label
    half = _LABEL_MAX // 2
    return f"{label[:half]}…{label[half + 1 - _LABEL_MAX :]}"


def _escaped(value: Any) -> str:
    return html.escape(str(value))


_STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1c2430; --faint: #5b6675; --line: #d5dae1;
  --bar: #2f6fb3; --limit: #b3541e; --good: #1d7a3e; --bad: #b3261e; --stripe: #f5f7f9; }
@media (prefers-color-scheme: dark) { :root { --back: #14181d; --text: #e3e8ee; --faint: #98a4b3; --line: #343c47;
  --bar: #6aa7e8; --limit: #e0905a; --good: #6fcf8f; --bad: #f28b82; --stripe: #1b2027; } }
body { background: var(--back); color: var(--text); margin: 0; font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.lead { font-size: 1.05rem; border-left: 4px solid; padding-left: .75rem; }
.good { border-color: var(--good); } .bad { border-color: var(--bad); } .none { color: var(--faint); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .75rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--faint); font-weight: 600; } .number { text-align: right; }
tbody tr:nth-child(even) { background: var(--stripe); }
svg { width: 100%; max-width: 720px; height: auto; display: block; margin: .5rem 0 1rem; }
svg.small { max-width: 340px; }
svg text { font-size: 12px; fill: var(--text); }
svg text.value { fill: var(--faint); }
.bar { fill: var(--bar); } .limit { stroke: var(--limit); stroke-dasharray: 4 3; }
.frame { fill: none; stroke: var(--line); }
.curve { fill: none; stroke: var(--bar); stroke-width: 2; }
"""
