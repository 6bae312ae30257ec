"""Schemas of Avro: names, what has no columns, which can read which, and schemas of columns."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from bookies.errors import InvalidArgument
from bookies.formats.avro_schema import arrow_fields, parse_avro, schema_of_columns, unreadable, with_columns
from bookies.formats.columns import ddl_of, parse_ddl


def record(*fields: Any, **more: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)} | more)


def one(kind: Any, **more: Any) -> str:
    return record({"name": "a", "type": kind} | more)


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "K", "symbols": list(symbols)} | more


def test_names_are_of_the_surrounding_namespace() -> None:
    inner = {
        "type": "record",
        "name": "x.y.In",
        "fields": [{"name": "k", "type": enum("A")}, {"name": "l", "type": "K"}],
    }
    fields = [{"name": "a", "type": inner}, {"name": "b", "type": "x.y.In"}, {"name": "c", "type": "x.y.K"}]
    parsed = parse_avro(record(*fields, namespace="other"))
    assert ddl_of(pa.schema(arrow_fields(parsed))) == (
        "a STRUCT<k: STRING, l: STRING>, b STRUCT<k: STRING, l: STRING>, c STRING"
    )
    assert [field.type.name for field in parsed.fields] == ["x.y.In", "x.y.In", "x.y.K"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "no Avro schema"),
        ('"long"', "of a long: only a record has columns"),
        (json.dumps(["null", json.loads(one("int"))]), "only a record has columns"),
        (one("Nothing"), "no type 'Nothing', which the schema.a names"),
        (one(["null", "R"]), "recursive at the schema.a"),
        (one(["int", "string"]), "the schema.a is a union of int, string: only a union of null and one type"),
        (one(["string"]), "union of string"),
        (record(), "no fields"),
        (record({"name": "a", "type": "int"}, {"name": "a", "type": "int"}), "one of them twice"),
        (record({"name": "a", "type": enum("A")}, {"name": "b", "type": enum("B")}), "defines K twice"),
        (one({"type": "array"}), "no Avro schema"),
        (one(7), "no Avro schema"),
        (one({"type": "array", "items": "null"}), "the schema.a is an array of elements without bytes"),
        (
            one({"type": "array", "items": {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}}),
            "an array of elements without bytes",
        ),
        (one({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), "elements without bytes"),
    ],
)
def test_schemas_that_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_avro(text)
    assert reason in str(caught.value)


def test_wrong_logical_types_are_ignored() -> None:
    wrong = [{"logicalType": "decimal", "precision": 3, "scale": 4}, {"logicalType": "decimal", "precision": 39}, {}]
    for more in wrong:
        assert arrow_fields(parse_avro(one({"type": "bytes", **more})))[0].type == pa.binary()
    assert arrow_fields(parse_avro(one({"type": "string", "logicalType": "date"})))[0].type == pa.string()


ROWS: list[tuple[str, str, str]] = [
    (one("int"), one("long"), ""),
    (one("long"), one("int"), "a is long where it was written, and int where it is read"),
    (one("bytes"), one("string"), ""),
    (one("int"), one(["null", "int"]), ""),
    (one(["null", "int"]), one("int"), "a may be null where it was written"),
    (one("null"), one(["null", "int"]), ""),
    (one("null"), one("int"), "a is null where"),
    (one("int"), record({"name": "b", "type": "int"}), "b was not written, and has no default"),
    (one("int"), record({"name": "b", "type": "int", "default": 1}), ""),
    (one("int"), record({"name": "b", "type": "int", "aliases": ["a"]}), ""),
    (one(enum("A", "B")), one(enum("A")), "a has the symbol B"),
    (one(enum("A", "B")), one(enum("A", default="A")), ""),
    (one({"type": "array", "items": "string"}), one({"type": "array", "items": "int"}), "a[] is string"),
    (one({"type": "map", "values": "int"}), one({"type": "map", "values": "long"}), ""),
    (one({"type": "fixed", "name": "F", "size": 3}), one({"type": "fixed", "name": "F", "size": 4}), "a has 3 bytes"),
    (
        one({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        one({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}),
        "a is a decimal of another scale",
    ),
    (
        one({"type": "record", "name": "In", "fields": [{"name": "x", "type": "long"}]}),
        one({"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]}),
        "a.x is long",
    ),
]


@pytest.mark.parametrize(("writer", "reader", "reason"), ROWS)
def test_which_schema_reads_which(writer: str, reader: str, reason: str) -> None:
    found = unreadable(parse_avro(writer), parse_avro(reader))
    assert found.startswith(reason) if reason else not found


def test_columns_as_a_schema() -> None:
    ddl = (
        "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h STRING, i BINARY, j DATE, "
        "k TIMESTAMP, l TIMESTAMP_NTZ, m DECIMAL(12,3), n ARRAY<STRING>, o MAP<STRING, BIGINT>, "
        "p STRUCT<x: INT>, q STRUCT<x: DATE>"
    )
    text = schema_of_columns(parse_ddl(ddl), "orders")
    back = pa.schema(arrow_fields(parse_avro(text)))
    assert ddl_of(back) == ddl.replace("TINYINT", "INT").replace("SMALLINT", "INT")
    for wrong, reason in (("`a b` INT", "rename it"), ("a MAP<INT, INT>", "a key of a map in Avro is a string")):
        with pytest.raises(InvalidArgument, match=reason):
            schema_of_columns(parse_ddl(wrong), "orders")


def test_a_schema_with_more_columns() -> None:
    first = schema_of_columns(parse_ddl("id INT, name STRING, in STRUCT<x: INT>"), "orders")
    assert with_columns(first, parse_ddl("name STRING, id INT"), "orders") == first
    text = with_columns(first, parse_ddl("id BIGINT, more DATE, in STRUCT<y: INT>"), "orders")
    assert ddl_of(pa.schema(arrow_fields(parse_avro(text)))) == (
        "name STRING, id BIGINT, more DATE, in STRUCT<x: INT, y: INT>"
    )
    assert not unreadable(parse_avro(first), parse_avro(text))
