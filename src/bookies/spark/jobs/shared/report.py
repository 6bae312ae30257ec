"""Final report of a job: text for a terminal, or one self-contained HTML file.

The file has no scripts and makes no network requests; plots are bars in the rows of tables. Colours follow the reader's
light or dark mode. The same report is also a JSON document, for programs. Source: spark 7.3.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any

from msgspec import Struct, field, json
from msgspec.structs import replace

ROWS_MAX = 1000  # rows of a table in a report; the rest is in the Parquet files


class Table(Struct, frozen=True):
    """A table. `right`: indexes of columns of numbers. `bars`: a value of each row, drawn beside it in HTML."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Any]]
    right: Sequence[int] = ()
    bars: Sequence[float] = ()


class Section(Struct, frozen=True):
    """Part of a report. `text` is in the HTML file only; so is the table unless `is_printed`."""

    title: str
    text: str = ""
    table: Table | None = None
    is_printed: bool = True


class Report(Struct, frozen=True):
    """Report of a job. `lead`: the result in one sentence. `is_good`: no action is needed.

    `counters`: what the tasks have read and written; see `base/counters.py`.
    """

    title: str
    lead: str
    is_good: bool
    parameters: Mapping[str, Any] = field(default_factory=dict)
    sections: Sequence[Section] = ()
    counters: Mapping[str, int] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """Show the report as the result of a cell of a notebook. A frame keeps its style from the notebook's."""
        return f'<iframe srcdoc="{_escaped(page(self))}" style="width:100%; height:32em; border:0"></iframe>'


def number_text(value: Any) -> str:
    """Format a value: numbers with separators, None as an empty text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def counted(counts: Mapping[str, int], nothing: str) -> str:
    """Format counts by name: `3 done, 1 failed`; `nothing` if there are none."""
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items())) or nothing


def text(report: Report) -> str:
    """Return the report for a terminal."""
    parts = [report.lead]
    for section in report.sections:
        if section.table is None or not section.table.rows or not section.is_printed:
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


def document(report: Report) -> str:
    """Return the report as one JSON document, with at most `ROWS_MAX` rows of each table."""

    def shortened(section: Section) -> Section:
        table = section.table
        if table is None or len(table.rows) <= ROWS_MAX:
            return section
        return replace(section, table=replace(table, rows=table.rows[:ROWS_MAX], bars=table.bars[:ROWS_MAX]))

    short = replace(report, sections=[shortened(section) for section in report.sections])
    return json.encode(short, enc_hook=str).decode() + "\n"


def page(report: Report) -> str:
    """Return the report as one HTML file."""
    counters = Section("Read and written", _COUNTED, Table(("counter", "value"), list(report.counters.items()), (1,)))
    body = [
        f"<h1>{_escaped(report.title)}</h1>",
        f'<p class="lead {"good" if report.is_good else "bad"}">{_escaped(report.lead)}</p>',
        *(_section(section) for section in [*report.sections, *([counters] if report.counters else [])]),
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
    if section.table is not None:
        parts.append(_table(section.table) if section.table.rows else '<p class="none">none</p>')
    return "\n".join([*parts, "</section>"])


def _table(table: Table) -> str:
    def line(tag: str, cells: Sequence[Any]) -> str:
        written = (
            f"<{tag}{' class=number' if index in table.right else ''}>{_escaped(number_text(cell))}</{tag}>"
            for index, cell in enumerate(cells)
        )
        return "".join(written)

    largest = max(table.bars, default=0) or 1
    bars = [
        f'<td class=bars><span style="width:{100 * max(0, value) / largest:.1f}%"></span></td>' for value in table.bars
    ]
    lines = zip_longest(table.rows, bars, fillvalue="")
    rows = [f"<tr>{line('td', row)}{bar}</tr>" for row, bar in islice(lines, ROWS_MAX)]
    more = len(table.rows) - ROWS_MAX
    if more > 0:
        rows.append(f'<tr><td colspan="{len(table.headers)}">and {more:,} more, in the Parquet files</td></tr>')
    head = f"<tr>{line('th', table.headers)}</tr>"
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'


_COUNTED = "Work of the tasks with bookies in this attempt, including tasks that were repeated."
_CODE = re.compile("`([^`]+)`")  # commands and names of columns in a text


def _escaped(value: Any) -> str:
    return html.escape(str(value))


_STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1c2430; --faint: #5b6675; --line: #d5dae1;
  --bar: #2f6fb3; --good: #1d7a3e; --bad: #b3261e; --stripe: #f5f7f9; }
@media (prefers-color-scheme: dark) { :root { --back: #14181d; --text: #e3e8ee; --faint: #98a4b3; --line: #343c47;
  --bar: #6aa7e8; --good: #6fcf8f; --bad: #f28b82; --stripe: #1b2027; } }
body { background: var(--back); color: var(--text); margin: 0; font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.lead { font-size: 1.05rem; border-left: 4px solid; padding-left: .75rem; }
.good { border-color: var(--good); } .bad { border-color: var(--bad); } .none { color: var(--faint); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .75rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--faint); font-weight: 600; } .number { text-align: right; }
tbody tr:nth-child(even) { background: var(--stripe); }
.bars { width: 50%; } .bars span { display: block; height: .8rem; margin-top: .3rem; background: var(--bar); }
"""
