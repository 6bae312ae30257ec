"""What the interop suite found, as a table."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import textwrap

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "reference" / "compatibility.md"
BEGIN, END = "<!-- begin: made by make interop ARGS=--write -->", "<!-- end -->"


@dataclasses.dataclass
class Result:
    """Of one cell; `missing`: why there is nothing to be tried."""

    layout: str
    version: str
    kind: str
    cell: str
    writer: str
    passes: int = 0
    failures: int = 0
    missing: str = ""
    reason: str = ""


def read(path: pathlib.Path | None) -> list[Result]:
    """The results of earlier runs; none without a file."""
    if path is None or not path.exists():
        return []
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()]


def append(path: pathlib.Path | None, result: Result) -> None:
    if path is not None:
        with open(path, "a") as file:
            file.write(json.dumps(dataclasses.asdict(result)) + "\n")


def text(results: list[Result]) -> str:
    """A table for each layout and version: rows are what was done, columns whose client and whose bookies."""
    lines: list[str] = []
    for layout, version in dict.fromkeys((each.layout, each.version) for each in results):
        here = [each for each in results if (each.layout, each.version) == (layout, version)]
        columns = list(dict.fromkeys((each.kind, each.writer) for each in here))
        lines += [f"### {layout}, Apache {version}", ""]
        lines.append("| | " + " | ".join(f"{writer} on {kind}" for kind, writer in columns) + " |")
        lines.append("|---|" + "---|" * len(columns))
        for cell in dict.fromkeys(each.cell for each in here):
            row = [_count([r for r in here if (r.cell, r.kind, r.writer) == (cell, *column)]) for column in columns]
            lines.append(f"| {cell.replace('_', ' ')} | " + " | ".join(row) + " |")
        lines.append("")
    failed = [each for each in results if each.failures]
    passes = sum(each.passes for each in results)
    lines.append(f"{passes} runs passed, {sum(each.failures for each in failed)} failed.")
    for each in failed:
        text = f"* {each.layout} {each.version} {each.kind} {each.cell} {each.writer}: {each.reason}"
        lines += textwrap.wrap(text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def _count(found: list[Result]) -> str:
    passes, failures = sum(each.passes for each in found), sum(each.failures for each in found)
    if failures:
        return f"**{failures} of {passes + failures} failed**"
    return str(passes) if passes else "-"


def write(content: str) -> None:
    """Into the page, between its marks."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{content}\n\n{END}{after}")
