"""Offsets: one text for one position; and what each log may have of a limit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import InvalidArgument
from bookies.spark.base.offsets import Offset, parse, shares, symbol, symbolic

NAMES = st.text("abcxyz.-", min_size=1, max_size=5)
AT = st.tuples(st.integers(0, 99), st.integers(0, 9999))
POSITIONS = st.dictionaries(NAMES, AT, max_size=6)


@given(POSITIONS, POSITIONS, st.randoms(use_true_random=False))
def test_the_text_does_not_depend_on_the_order(positions: Any, origin: Any, random: Any) -> None:
    shuffled = list(positions.items())
    random.shuffle(shuffled)
    text = json.dumps(Offset(positions, origin).to_json())
    assert json.dumps(Offset(dict(shuffled), dict(reversed(list(origin.items())))).to_json()) == text
    assert parse(json.loads(text)) == Offset(positions, origin)
    assert json.dumps(parse(json.loads(text)).to_json()) == text
    assert json.dumps(json.loads(text), sort_keys=True) == text


@given(st.dictionaries(st.integers(0, 1 << 62), st.integers(0, 1 << 62), min_size=1, max_size=6))
def test_ledgers(positions: dict[int, int]) -> None:
    offset = Offset({ledger: (0, entry) for ledger, entry in positions.items()})
    text = json.dumps(offset.to_json())
    assert parse(json.loads(text)) == offset
    assert json.dumps(json.loads(text), sort_keys=True) == text


def test_the_spelling() -> None:
    offset = Offset({"returns": (0, 0), "orders": (12, 3400)}, {"returns": (0, 0)})
    assert json.dumps(offset.to_json()) == (
        '{"from": {"logs": {"returns": [0, 0]}}, "logs": {"orders": [12, 3400], "returns": [0, 0]}, "v": 1}'
    )
    assert json.dumps(Offset({17: (0, 250)}).to_json()) == '{"ledgers": {"17": 250}, "v": 1}'
    told = Offset({"a": (1, 0)}, {"a": (0, 0)}, {"a": "beef"}, {17: (0, 9), "b": (2, 0)})
    assert json.dumps(told.to_json()) == (
        '{"from": {"logs": {"a": [0, 0]}}, "gone": {"ledgers": {"17": 9}, "logs": {"b": [2, 0]}}, '
        '"logs": {"a": [1, 0]}, "tokens": {"a": "beef"}, "v": 1}'
    )
    assert parse(told.to_json()) == told
    assert json.dumps(Offset({}).to_json()) == '{"logs": {}, "v": 1}'
    assert symbolic("latest") == {"at": "latest", "v": 1}
    assert symbol(symbolic("timestamp:17")) == "timestamp:17"
    assert symbol(offset.to_json()) is None


@pytest.mark.parametrize(
    "data",
    [
        {"v": 2, "logs": {}},
        {"logs": {"a": [0, 0]}},
        {"v": 1, "logs": {"a": [0]}},
        {"v": 1, "logs": {"a": [0, -1]}},
        {"v": 1, "logs": {"a": "x"}},
        {"v": 1, "ledgers": {"a": 1}},
        {"v": 1, "ledgers": {"1": 1.5}},
        {"v": 1, "logs": []},
        {"v": 1, "logs": {}, "tokens": ["a"]},
    ],
)
def test_what_is_no_offset(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="offset "):
        parse(data)


@given(st.dictionaries(NAMES, st.integers(0, 10_000), max_size=8), st.integers(1, 5_000))
def test_shares(backlogs: dict[Any, int], limit: int) -> None:
    found = shares(backlogs, limit)
    having = {key: backlog for key, backlog in backlogs.items() if backlog}
    assert found.keys() == having.keys()
    assert all(1 <= share <= having[key] for key, share in found.items())
    assert sum(found.values()) == min(sum(having.values()), max(limit, len(having)))


def test_shares_are_in_proportion() -> None:
    assert shares({"a": 900, "b": 100, "c": 0}, 100) == {"a": 90, "b": 10}
    assert shares({"a": 1_000_000, "b": 1}, 10) == {"a": 9, "b": 1}
