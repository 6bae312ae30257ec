"""Results of commands: one value for `--json` and for the terminal, and the function that prints it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from bookies.admin.shared.common import print_json, print_table


class Table(NamedTuple):
    """Aligned columns. `right`: indexes of right-aligned columns."""

    headers: Sequence[str]
    rows: Iterable[Sequence[object]]
    right: Sequence[int] = ()


class Report(NamedTuple):
    """Result of a command.

    `facts`: the JSON document. `text`: the same for people: lines and tables; evaluated only without `--json`.
    `remarks`: lines for stderr, printed in both cases. `status`: the exit status.
    """

    facts: object
    text: Iterable[str | Table] = ()
    status: int = 0
    remarks: Iterable[str] = ()


class Finding(Struct, frozen=True):
    """Result of one check. `level`: ok, warn or bad. `about`: its subject, such as `bookie b3` or `ledger 17`."""

    level: str
    what: str
    remedy: str = ""
    about: str = ""


def finding_text(finding: Finding) -> str:
    """Return a finding as one line, and its remedy as a second one."""
    mark = {"ok": "  ok ", "warn": " warn", "bad": "  BAD"}[finding.level]
    return f"{mark}  {finding.what}" + (f"\n       -> {finding.remedy}" if finding.remedy else "")


def print_report(report: Report, *, as_json: bool) -> int:
    """Print the report. Return its exit status."""
    if as_json:
        print_json(report.facts)
    else:
        print_text(report.text)
    sys.stdout.flush()  # Remarks follow the text also where both go into one file.
    for remark in report.remarks:
        print(remark, file=sys.stderr)
    return report.status


def print_text(text: Iterable[str | Table]) -> None:
    """Print lines and tables to stdout."""
    for part in text:
        if isinstance(part, Table):
            print_table(list(part.rows), part.headers, right=part.right)
        else:
            print(part)
