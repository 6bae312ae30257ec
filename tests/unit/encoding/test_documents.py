"""JSON and TOML of others: what is malformed in any way is a ValueError."""

from __future__ import annotations

import pytest

from bookies.encoding.documents import parse_json, parse_toml


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "1e999", "[-Infinity]", "NaN", '"\\ud800"', "\ufeff{}", "", "{} {}"]
)
def test_malformed_json(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)
    with pytest.raises(ValueError):
        parse_json(text.encode())


def test_json_that_is_no_utf8() -> None:
    with pytest.raises(ValueError):
        parse_json(b'"\xff"')


def test_json() -> None:
    assert parse_json('{"a": [1, 2.5, "\\ud83d\\ude00", null]}') == {"a": [1, 2.5, "\N{GRINNING FACE}", None]}
    assert parse_json(b'"\\\\ud800"') == "\\ud800"


def test_toml() -> None:
    assert parse_toml(b"[a]\nb = 1") == {"a": {"b": 1}}
    for malformed in (b"a = " + b"[" * 100_000, b"\xff", b"a"):
        with pytest.raises(ValueError):
            parse_toml(malformed)
