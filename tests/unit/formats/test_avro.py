"""Payloads of Avro against fastavro: every type, resolution, and what becomes of damaged payloads."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import InvalidArgument, SchemaIncompatible
from bookies.formats import avro

UTC = datetime.UTC
TIME = datetime.datetime(2020, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)
INNER = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": ["null", "int"]}]}
# Type, value, and the value as Arrow has it if that is another one.
FAST: list[tuple[Any, ...]] = [
    ("null", None),
    ("boolean", True),
    ("int", -(1 << 31)),
    ("long", (1 << 63) - 1),
    ("float", 0.5),
    ("double", 1e300),
    ("string", "é"),
    (["null", "string"], None),
    (["string", "null"], "x"),
    ({"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "B"),
    ({"type": "array", "items": ["null", "long"]}, [1, None]),
    (
        ["null", {"type": "map", "values": INNER}],
        {"a": {"x": 1}, "b": {"x": None}},
        [("a", {"x": 1}), ("b", {"x": None})],
    ),
    ({"type": "record", "name": "Outer", "fields": [{"name": "y", "type": ["null", INNER]}]}, {"y": {"x": 3}}),
    ({"type": "array", "items": {"type": "map", "values": "int"}}, [{"a": 1}, {}], [[("a", 1)], []]),
    ({"type": "int", "logicalType": "date"}, datetime.date(2020, 2, 29)),
    ({"type": "long", "logicalType": "timestamp-millis"}, TIME),
    (["null", {"type": "long", "logicalType": "timestamp-micros"}], TIME),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, TIME.replace(tzinfo=None)),
    ({"type": "int", "logicalType": "time-millis"}, datetime.time(0, 0, 1), 1000),
    ({"type": "string", "logicalType": "something"}, "x"),
]
SLOW: list[tuple[Any, ...]] = [
    ("bytes", b"\xff"),
    ({"type": "fixed", "name": "Three", "size": 3}, b"abc"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("-12.34")),
    (["null", {"type": "fixed", "name": "D", "size": 5, "logicalType": "decimal", "precision": 9, "scale": 2}], None),
    ({"type": "map", "values": "bytes"}, {"k": b""}, [("k", b"")]),
]

MILLIS, MICROS = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
DAYS = {"type": "int", "logicalType": "date"}


def record(*fields: Any, name: str = "R") -> str:
    return json.dumps({"type": "record", "name": name, "namespace": "a.b", "fields": list(fields)})


def packed(schema: str, *rows: Any) -> pa.Array:
    payloads = []
    for row in rows:
        data = io.BytesIO()
        fastavro.schemaless_writer(data, fastavro.parse_schema(json.loads(schema)), row)
        payloads.append(data.getvalue())
    return pa.array(payloads, pa.binary())


@pytest.mark.parametrize("case", [*FAST, *SLOW], ids=lambda case: json.dumps(case[0])[:60])
def test_every_type(case: tuple[Any, ...]) -> None:
    kind, value, *shown = case
    schema = record({"name": "a", "type": kind}, {"name": "after", "type": "long"})
    assert (avro._plan(schema, schema, False)._type is not None) is (case in SLOW)
    bodies = packed(schema, {"a": value, "after": 7}, {"a": value, "after": 8})
    rows, bad = avro.decode(schema, schema, bodies)
    assert not bad
    assert rows.to_pylist() == [{"a": [*shown, value][0], "after": after} for after in (7, 8)]
    if not shown or isinstance(shown[0], list):
        assert avro.encode(schema, rows).to_pylist() == bodies.to_pylist()


WIDE = record(*({"name": f"f{index}", "type": ["null", case[0]]} for index, case in enumerate(FAST[1:7])))
VALUES = st.tuples(
    *(
        st.none() | strategy
        for strategy in (
            st.booleans(),
            st.integers(-(1 << 31), (1 << 31) - 1),
            st.integers(-(1 << 63), (1 << 63) - 1),
            st.floats(width=32, allow_nan=False),
            st.floats(allow_nan=False),
            st.text(max_size=5),
        )
    )
)


@given(st.lists(VALUES, max_size=5), st.data())
def test_rows_and_damage_beside_fastavro(values: list[Any], data: st.DataObject) -> None:
    """A payload decodes if and only if fastavro decodes it to its end; the others of the batch are as they were."""
    rows = [{f"f{index}": value for index, value in enumerate(row)} for row in values]
    bodies = packed(WIDE, *rows).to_pylist()
    damaged = data.draw(st.sets(st.integers(0, max(0, len(rows) - 1)))) if rows else set()
    for row in damaged:
        bodies[row] = data.draw(st.binary(max_size=12) | st.just(bodies[row] + b"\0") | st.just(bodies[row][:-1]))
    decoded, bad = avro.decode(WIDE, WIDE, pa.array(bodies, pa.binary()))
    expected = []
    for body in bodies:
        stream = io.BytesIO(body)
        try:
            row = fastavro.schemaless_reader(stream, fastavro.parse_schema(json.loads(WIDE)), None)
        except Exception:  # noqa: BLE001 - fastavro raises what Python raises
            row = None
        expected.append(row if stream.tell() == len(body) else None)
    nan = [row for row, one in enumerate(expected) if one is not None and any(item != item for item in one.values())]
    shown = decoded.to_pylist()
    assert [one for row, one in enumerate(shown) if row not in nan] == [
        one for row, one in enumerate(expected) if row not in nan
    ]
    assert sorted(bad) == [row for row, one in enumerate(expected) if one is None]


@pytest.mark.parametrize("kind", ["string", "bytes"])
def test_damage_in_a_large_batch(kind: str) -> None:
    schema = record({"name": "a", "type": "long"}, {"name": "b", "type": kind})
    value: Any = "text" if kind == "string" else b"text"
    bodies = packed(schema, *({"a": number, "b": value} for number in range(500))).to_pylist()
    # Cut, longer, negative length, a length beyond any memory, empty, a varint without end.
    damage = {
        3: bodies[3][:-1],
        99: bodies[99] + b"x",
        100: b"\x02\x01",
        101: b"\x02" + b"\xfe" * 8 + b"\x01",
        102: b"",
    }
    damage[499] = b"\x80" * 12
    for row, body in damage.items():
        bodies[row] = body
    rows, bad = avro.decode(schema, schema, pa.array(bodies, pa.binary()))
    assert sorted(bad) == sorted(damage)
    assert all("does not match the schema it was written with" in reason for reason in bad.values())
    assert [row and row["a"] for row in rows.to_pylist()] == [None if row in damage else row for row in range(500)]


def test_values_out_of_the_range_of_their_logical_type() -> None:
    fields = [
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "k", "type": {"type": "enum", "name": "K", "symbols": ["A"]}},
    ]
    plain = record({"name": "t", "type": "long"}, {"name": "k", "type": "int"})
    schema = record(*fields)
    bodies = packed(plain, {"t": 0, "k": 0}, {"t": 1 << 62, "k": 0}, {"t": 0, "k": 1}, {"t": 0, "k": -1})
    rows, bad = avro.decode(schema, schema, bodies)
    assert sorted(bad) == [1, 2, 3]
    assert rows.to_pylist()[0] == {"t": datetime.datetime(1970, 1, 1, tzinfo=UTC), "k": "A"}


def test_resolution() -> None:
    writer = record(
        {"name": "n", "type": "int"},
        {"name": "old", "type": "string"},
        {"name": "gone", "type": "double"},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
        {"name": "list", "type": {"type": "array", "items": "int"}},
        {"name": "nothing", "type": "null"},
        {"name": "text", "type": "bytes"},
        {"name": "in", "type": {"type": "record", "name": "In", "fields": [{"name": "x", "type": "float"}]}},
    )
    inner = {"type": "record", "name": "In", "fields": [{"name": "y", "type": "long", "default": 5}]}
    inner["fields"].append({"name": "x", "type": "double"})  # type: ignore[attr-defined]
    reader = record(
        {"name": "in", "type": ["null", inner]},
        {"name": "new", "type": "string", "aliases": ["old"]},
        {"name": "n", "type": "double"},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "OTHER"], "default": "OTHER"}},
        {"name": "list", "type": {"type": "array", "items": "long"}},
        {"name": "nothing", "type": ["null", "long"]},
        {"name": "text", "type": "string"},
        {"name": "d", "type": {"type": "map", "values": "long"}, "default": {"a": 1}},
        {"name": "b", "type": ["bytes", "null"], "default": "\u00ff"},
        {"name": "r", "type": "In", "default": {"x": 1.5}},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 1},
        {"name": "o", "type": ["null", "string"], "default": None},
        {"name": "l", "type": {"type": "array", "items": "string"}, "default": ["x"]},
        {
            "name": "p",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1},
            "default": "\u00ff",
        },
    )
    row = {"n": 1, "old": "o", "gone": 0.5, "kind": "B", "list": [1], "nothing": None, "text": b"t", "in": {"x": 0.5}}
    rows, bad = avro.decode(writer, reader, packed(writer, row, row))
    assert not bad
    assert rows.to_pylist()[1] == {
        "in": {"y": 5, "x": 0.5},
        "new": "o",
        "n": 1.0,
        "kind": "OTHER",
        "list": [1],
        "nothing": None,
        "text": "t",
        "d": [("a", 1)],
        "b": b"\xff",
        "r": {"y": 5, "x": 1.5},
        "t": datetime.datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC),
        "o": None,
        "l": ["x"],
        "p": Decimal("-0.1"),
    }


@pytest.mark.parametrize(
    ("written", "read", "number", "expected"),
    [
        ("long", "double", (1 << 60) + 1, float(1 << 60)),
        ("int", "float", (1 << 24) + 1, float(1 << 24)),
        ("long", MILLIS, 1000, datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        (MILLIS, "long", 1000, 1000),
        (MILLIS, MICROS, 1000, datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("int", MICROS, 7, datetime.datetime(1970, 1, 1, 0, 0, 0, 7, tzinfo=UTC)),
        (DAYS, "long", 3, 3),
        (DAYS, "double", 3, 3.0),
        ("int", DAYS, 3, datetime.date(1970, 1, 4)),
    ],
)
def test_numbers_keep_their_value_where_the_type_changes(written: Any, read: Any, number: int, expected: Any) -> None:
    writer, reader = (record({"name": "a", "type": kind}) for kind in (written, read))
    rows, bad = avro.decode(writer, reader, packed(writer, {"a": number}))
    assert (rows.to_pylist(), bad) == ([{"a": expected}], {})


def test_a_schema_that_cannot_read_another_one() -> None:
    writer, reader = record({"name": "a", "type": "string"}), record({"name": "a", "type": "long"})
    with pytest.raises(SchemaIncompatible, match="a is string where it was written, and long where it is read"):
        avro.decode(writer, reader, packed(writer, {"a": "x"}))


def test_a_row_that_does_not_fit_the_schema() -> None:
    rows = pa.array([{"a": 1}, {"a": None}], pa.struct([("a", pa.int64())]))
    with pytest.raises(InvalidArgument, match="row 1 of a batch does not match the Avro schema"):
        avro.encode(record({"name": "a", "type": "long"}), rows)
