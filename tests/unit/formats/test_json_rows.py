"""Columns of a sample of objects, and rows as objects."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from bookies.errors import InvalidArgument
from bookies.formats import json_rows
from bookies.formats.columns import ddl_of


def test_columns_of_a_sample() -> None:
    sample = [
        b'{"id": 1, "tags": [], "in": {"x": null}, "nothing": null, "huge": 1, "empty": {}, "list": [{}]}',
        b"no object",
        b"[1]",
        None,
        b'{"id": 2.5, "tags": ["a", null], "in": {"x": true, "y": [{"z": 1}]}, "huge": 99999999999999999999}',
        b'{"later": "new"}',
    ]
    assert ddl_of(json_rows.columns_of(sample)) == (
        "id DOUBLE, tags ARRAY<STRING>, in STRUCT<x: BOOLEAN, y: ARRAY<STRUCT<z: BIGINT>>>, nothing STRING, "
        "huge DOUBLE, later STRING"
    )


def test_samples_without_columns() -> None:
    with pytest.raises(InvalidArgument, match="no JSON object"):
        json_rows.columns_of([b"x", b"{}", b'{"a": {"b": [{}]}}'])
    for objects, path in (
        ([b'{"a": 1}', b'{"a": "x"}'], "a"),
        ([b'{"a": [{"b": 1}]}', b'{"a": [{"b": {}}]}'], r"a\[\]\.b"),
    ):
        with pytest.raises(InvalidArgument, match=f"disagree about {path}"):
            json_rows.columns_of(objects)
    with pytest.raises(InvalidArgument, match=r"disagree about a\[\]: BIGINT and STRING"):
        json_rows.columns_of([b'{"a": [1, "x"]}'])


def test_rows_as_objects() -> None:
    kind = pa.struct(
        [
            ("d", pa.date32()),
            ("t", pa.timestamp("us", tz="UTC")),
            ("b", pa.binary()),
            ("n", pa.decimal128(5, 2)),
            ("m", pa.map_(pa.string(), pa.list_(pa.map_(pa.string(), pa.int64())))),
        ]
    )
    time = datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    row = {"d": time.date(), "t": time, "b": b"\xff", "n": Decimal("1.50"), "m": [("k", [[("i", 1)]])]}
    [payload, empty] = json_rows.encode(pa.array([row, None], kind)).to_pylist()
    assert json.loads(payload) == {
        "d": "2020-01-02",
        "t": "2020-01-02T03:04:05+00:00",
        "b": "/w==",
        "n": "1.50",
        "m": {"k": [{"i": 1}]},
    }
    assert empty == b"null"
    with pytest.raises(InvalidArgument, match="a map with keys of INT is no JSON object"):
        json_rows.encode(pa.array([], pa.struct([("a", pa.list_(pa.map_(pa.int32(), pa.int32())))])))
