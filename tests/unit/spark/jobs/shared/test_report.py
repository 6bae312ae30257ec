"""A report is one file that needs nothing else, and says the same as a table and as a plot."""

from __future__ import annotations

import json
import re
from datetime import date
from html import unescape
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.shared.report import ROWS_MAX, Report, Section, Table, document, number_text, page, text

VOID = ("meta", "br")


class Balance(HTMLParser):
    """Every element that begins also ends, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


REPORT = Report(
    "Scrub <of> all",
    "2 findings & nothing else",
    False,
    {"run": "monday", "level": 3, "ledgers": None},
    [
        Section(
            "By bookie",
            "Said by <b1>.",
            Table(("bookie", "findings"), [("b1", 12345), ("<b2>", 1)], (1,), [12345, 1]),
        ),
        Section("Evenness", table=Table(("bookies", "bytes"), [("50%", "20%")], (0, 1), [0.2]), is_printed=False),
        Section("Failed", table=Table(("item", "why"), [])),
    ],
)


def test_the_page_is_well_formed_and_asks_nobody() -> None:
    found = page(REPORT)
    parser = Balance()
    parser.feed(found)
    assert parser.open == []
    assert not {"script", "link", "img", "iframe"} & set(parser.seen)
    assert "http" not in found
    assert "Scrub &lt;of&gt; all" in found
    assert "&lt;b2&gt;" in found
    assert "<td class=number>12,345</td>" in found
    assert "prefers-color-scheme: dark" in found


def test_commands_in_texts_are_set_as_code() -> None:
    said = page(Report("Scrub", "", True, {}, [Section("Plan", "What `bk spark repair <plan>` would do, a ` alone.")]))
    assert "<p>What <code>bk spark repair &lt;plan&gt;</code> would do, a ` alone.</p>" in said


def test_bars_are_as_long_as_their_values() -> None:
    bars = re.compile(r'<span style="width:([\d.]+)%"></span></td></tr>')
    assert bars.findall(page(REPORT)) == ["100.0", "0.0", "100.0"]
    table = Table(("bookie", "bytes"), [("b1", 4), ("b2", 3), ("b3", 0)], (1,), [4, 3, 0])
    assert bars.findall(page(Report("", "", True, sections=[Section("", table=table)]))) == ["100.0", "75.0", "0.0"]
    table = Table(("bookie", "bytes"), [("b1", 0)], (1,), [0])
    assert bars.findall(page(Report("", "", True, sections=[Section("", table=table)]))) == ["0.0"]


def test_the_text_is_aligned_and_leaves_out_what_is_empty() -> None:
    assert text(REPORT).splitlines() == [
        "2 findings & nothing else",
        "",
        "By bookie",
        "  bookie  findings",
        "  b1        12,345",
        "  <b2>           1",
    ]


def test_long_tables_are_cut() -> None:
    report = Report("t", "l", True, {}, [Section("s", table=Table(("n",), [(n,) for n in range(ROWS_MAX + 5)]))])
    assert text(report).endswith("... and 5 more")
    assert "and 5 more, in the Parquet files" in page(report)


@pytest.mark.parametrize(
    ("value", "said"), [(None, ""), (True, "yes"), (1234567, "1,234,567"), (1234.5, "1,234.50"), ("x", "x")]
)
def test_values_are_written_for_people(value: object, said: str) -> None:
    assert number_text(value) == said


def test_a_notebook_shows_the_page_in_a_frame() -> None:
    report = Report("Scrub", 'a "good" <run>', True)
    shown = report._repr_html_()
    frame = re.fullmatch(r'<iframe srcdoc="([^"]*)" style="[^"]*"></iframe>', shown)
    assert frame is not None
    assert unescape(frame[1]) == page(report)
    assert Complete(None, report)._repr_html_() == shown


def test_the_document_has_the_same_with_bounded_tables_and_counters() -> None:
    table = Table(("day", "bytes"), [(date(2026, 3, 1), number) for number in range(ROWS_MAX + 1)], (1,), [0.5] * 2000)
    counters = {"tasks": 3, "bytes_received": 12345}
    report = replace(REPORT, sections=[*REPORT.sections, Section("Days", table=table)], counters=counters)
    found = json.loads(document(report))
    assert (found["lead"], found["is_good"], found["counters"]) == (REPORT.lead, False, counters)
    assert [len(section["table"]["rows"]) for section in found["sections"]] == [2, 1, 0, ROWS_MAX]
    assert found["sections"][-1]["table"]["rows"][-1] == ["2026-03-01", ROWS_MAX - 1]
    assert len(found["sections"][-1]["table"]["bars"]) == ROWS_MAX
    assert "<td>bytes_received</td><td class=number>12,345</td>" in page(report)
    assert "Read and written" not in page(REPORT)
