"""Records with key, headers and timestamp: columns to entries and back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import MetadataCorrupt
from bookies.spark.base.envelope import COLUMNS, HEADER_SIZE, decode, encode, malformed

HEADERS = st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=4), "value": st.none() | st.binary(max_size=4)}), max_size=3
)
RECORDS = st.fixed_dictionaries(
    {
        "key": st.none() | st.binary(max_size=6),
        "value": st.none() | st.binary(max_size=9),
        "headers": st.none() | HEADERS,
        "timestamp": st.none() | st.datetimes(timezones=st.just(UTC)),
    }
)


def columns_of(records: list[dict[str, Any]]) -> dict[str, pa.Array]:
    return {name: pa.array([record[name] for record in records], kind) for name, kind in COLUMNS.items()}


@given(st.lists(RECORDS, max_size=20), st.integers(0, 3))
def test_what_goes_in_comes_out(records: list[dict[str, Any]], skip: int) -> None:
    columns = {name: column[skip:] for name, column in columns_of(records).items()}
    entries = encode(**columns)
    assert entries.type == pa.binary()
    entries.validate(full=True)
    found = decode(entries)
    for name, kind in COLUMNS.items():
        found[name].validate(full=True)
        assert found[name].type == kind
        assert found[name].to_pylist() == columns[name].to_pylist()
    assert malformed(entries) == []
    again = decode(entries[1:], ["value", "key"])
    assert list(again) == ["value", "key"]
    assert again["key"].to_pylist() == columns["key"].to_pylist()[1:]


def test_the_worked_example() -> None:
    """The bytes of docs/reference/formats/envelope.md."""
    entries = encode(
        pa.array([b"hello"]),
        pa.array([b"k"]),
        pa.array([[{"key": "a", "value": b"1"}, {"key": "b", "value": None}]], COLUMNS["headers"]),
        pa.array([datetime(2026, 1, 2, 3, 4, 5, 6, UTC)], COLUMNS["timestamp"]),
    )
    assert entries[0].as_py().hex(" ", -2) == (
        "010f 0006 475e f64c f346 0000 0001 0000 0013 6b00 0000 0161 0000 0001 3100 0000 0162 ffff ffff 6865 6c6c 6f"
    )
    assert encode(pa.array([b"v"]))[0].as_py().hex() == "0108" + "00" * 16 + b"v".hex()


def test_what_is_no_record_is_found() -> None:
    good = encode(pa.array([b"hello"]), pa.array([b"k"]))[0].as_py()
    wrong = [
        b"",
        b"raw",
        good[:HEADER_SIZE],
        b"\x02" + good[1:],
        b"\x01\x10" + good[2:],
        good[:10] + b"\xff" * 4 + good[14:],
    ]
    entries = pa.array([good, *wrong, good], pa.binary())
    assert malformed(entries) == [1, 2, 3, 4, 5, 6]
    with pytest.raises(MetadataCorrupt, match="row 1 of 8 is no record"):
        decode(entries)
    headers = encode(pa.array([b""]), None, pa.array([[{"key": "a", "value": b"1"}]], COLUMNS["headers"]))[0].as_py()
    with pytest.raises(MetadataCorrupt, match="headers of a record"):
        decode(pa.array([headers[:18] + b"\xff" + headers[19:]], pa.binary()))
