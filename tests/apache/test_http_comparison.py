"""Apache's HTTP server and ours answer alike, except where the table of differences says why."""

from __future__ import annotations

import pathlib

import pytest
from tests.apache.http_comparison import PAGE, compare, differs, page

pytestmark = pytest.mark.apache


def test_answers_differ_only_where_a_reason_is_given(tmp_path: pathlib.Path) -> None:
    compared = compare(tmp_path)
    unexplained = [row for row in compared if differs(*row) and not row[0].why]
    assert not unexplained, "\n".join(map(str, unexplained))
    needless = [row[0].name for row in compared if row[0].why and not differs(*row)]
    assert not needless, needless
    assert page(compared) == PAGE.read_text()
