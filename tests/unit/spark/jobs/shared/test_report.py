"""A report is one file that needs nothing else, and says the same as a table and as a plot."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from bookies.spark.jobs.shared.report import ROWS_MAX, Bars, Curve, Report, Section, Table, number_text, page, text

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
            Table(("bookie", "findings"), [("b1", 12345), ("<b2>", 1)], (1,)),
            Bars(
                [("b1", 12345.0, "12,345"), ("a bookie with quite a long name", 1.0, "1"), ("none", 0, "0")],
                (6173, "mean"),
            ),
        ),
        Section("Evenness", plot=Curve([(0, 0), (0.5, 0.2), (1, 1)], "bookies", "bytes", diagonal=True)),
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


def test_long_names_are_cut_in_the_middle() -> None:
    name = "bookie-0001.eu-west.example.org:3181"
    found = page(Report("", "", True, sections=[Section("", plot=Bars([(name, 1.0, "1")]))]))
    assert f"<title>{name}: 1</title>" in found
    [label] = re.findall(r"</title>([^<]+)</text>", found)
    assert len(label) == 22
    assert label[:8] == name[:8]
    assert label[-4:] == name[-4:]


def test_what_is_drawn_stays_inside_its_picture() -> None:
    for drawing in re.findall(r"<svg.*?</svg>", page(REPORT), re.DOTALL):
        root = ElementTree.fromstring(drawing)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        assert root.attrib["aria-label"]
        for each in root.iter():
            for name, limit in (
                ("x", width),
                ("x1", width),
                ("x2", width),
                ("y", height),
                ("y1", height),
                ("y2", height),
            ):
                assert 0 <= float(each.attrib.get(name, 0)) <= limit, each.attrib
            if each.tag in ("rect", "line", "polyline", "text"):
                assert {"fill", "stroke"} & set(each.attrib), "black, for who does without the style sheet"
            if each.tag == "rect":
                assert float(each.attrib["x"]) + float(each.attrib["width"]) <= width
                assert float(each.attrib["y"]) + float(each.attrib["height"]) <= height


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
