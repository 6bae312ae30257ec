"""Each exhibit is detected with its mistake and passes without it, at the recorded place. `run.py` searches on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.museum import run as museum

EXHIBITS = museum.exhibits.EXHIBITS
SHORT_S = 1.0  # virtual seconds of the run without the mistake


@pytest.mark.parametrize("each", EXHIBITS, ids=[each.name for each in EXHIBITS])
def test_exhibit(each: Any) -> None:
    where = each.where
    seen = museum.look_with(each, getattr(where, "first", 1))
    assert seen.number is not None, "the mistake was not detected"
    again = range(seen.number, seen.number + 1)
    if isinstance(where, museum.exhibits.Hunt):
        without = museum.hunt(where.profile, again, duration_s=SHORT_S)
    elif isinstance(where, museum.exhibits.CrashSweep):
        without = museum.sweep(where, again)
    elif isinstance(where, museum.exhibits.Reclaim):
        without = museum.sweep_space(where, again)
    else:
        without = museum.look(where)
    assert without.number is None, without.failure


def test_the_page_shows_every_exhibit() -> None:
    text = museum.PAGE.read_text()
    for each in (*EXHIBITS, *museum.rows.NOT_MADE):
        assert each.title in text, f"run `make museum`: {each.title!r} is missing"
    assert "**not found**" not in text


def test_every_row_says_where_it_is_or_why_it_is_not() -> None:
    names = [each.name for each in EXHIBITS]
    shown = []
    for _, _, listed in museum.rows.LISTS:
        for row in listed:
            assert row.exhibits or row.why_not, row.label
            shown += row.exhibits
    assert sorted({*shown}) == sorted(names), "each exhibit belongs to a row, and each name is one of an exhibit"
