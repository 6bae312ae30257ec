"""A report is printed as text or as one JSON document; remarks go to stderr in both cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bookies.admin.shared.report import Report, Table, print_report


def test_text_and_remarks(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(("ledger", "state"), iter([(7, "OPEN"), (12, "CLOSED")]), (0,))
    report = Report({"ledgers": 2}, ["two ledgers", table], 1, ["one is old"])
    assert print_report(report, as_json=False) == 1
    shown = capsys.readouterr()
    assert shown.out == "two ledgers\nledger  state\n     7  OPEN\n    12  CLOSED\n"
    assert shown.err == "one is old\n"


def test_json_evaluates_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    def lines() -> Iterator[str]:
        raise AssertionError
        yield ""

    rows = ({"id": number} for number in (1, 2))
    assert print_report(Report({"rows": rows, "raw": b"x", "ids": range(2)}, lines(), 0, ["done"]), as_json=True) == 0
    shown = capsys.readouterr()
    assert shown.out == '{"rows": [{"id": 1}, {"id": 2}], "raw": "x", "ids": [0, 1]}\n'
    assert shown.err == "done\n"
