"""Columns in DDL, both ways, and which type holds the values of another one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from bookies.errors import InvalidArgument
from bookies.formats.columns import ddl_of, is_wider, merged, parse_ddl, plain

ALL = (
    "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h STRING, i BINARY, j DATE, k TIMESTAMP, "
    "l TIMESTAMP_NTZ, m DECIMAL(12,3), n ARRAY<STRING>, o MAP<STRING, BIGINT>, "
    "p STRUCT<x: INT, y: ARRAY<STRUCT<z: DATE>>>, `q r` INT, `s``t` INT"
)


def test_there_and_back() -> None:
    schema = parse_ddl(ALL)
    assert ddl_of(schema) == ALL
    assert schema.names[-2:] == ["q r", "s`t"]
    assert schema.field("p").type.field("y").type.value_type == pa.struct([("z", pa.date32())])


def test_other_spellings() -> None:
    text = "a integer NOT NULL COMMENT 'it\\'s', b decimal, c struct<x:long,y string>, d numeric(3), e timestamp_ltz"
    assert ddl_of(parse_ddl(text)) == (
        "a INT, b DECIMAL(10,0), c STRUCT<x: BIGINT, y: STRING>, d DECIMAL(3,0), e TIMESTAMP"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a INT, a INT",
        "a MAP<INT>",
        "a INT NOT",
        "a DECIMAL(2,3)",
        "a INT b INT",
        "a NOTHING",
        "a INT,",
        ", a INT",
        "a ARRAY<INT",
        "a DECIMAL(99)",
        "a DECIMAL(x)",
        "a %",
    ],
)
def test_texts_that_are_none(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_ddl(text)


def test_types_of_arrow_as_those_of_spark() -> None:
    pairs = {
        pa.uint8(): "SMALLINT",
        pa.uint64(): "DECIMAL(20,0)",
        pa.large_string(): "STRING",
        pa.string_view(): "STRING",
        pa.binary(3): "BINARY",
        pa.timestamp("ns"): "TIMESTAMP_NTZ",
        pa.timestamp("ms", tz="Europe/Paris"): "TIMESTAMP",
        pa.dictionary(pa.int8(), pa.string()): "STRING",
        pa.time64("us"): "BIGINT",
        pa.large_list(pa.struct([("x", pa.uint32())])): "ARRAY<STRUCT<x: BIGINT>>",
        pa.map_(pa.large_string(), pa.uint16()): "MAP<STRING, INT>",
        pa.decimal256(50, 3): "DECIMAL(38,3)",
        pa.int32(): "INT",
    }
    assert {kind: ddl_of(pa.schema([("a", plain(kind))]))[2:] for kind in pairs} == pairs
    with pytest.raises(InvalidArgument, match="no type of Spark"):
        plain(pa.month_day_nano_interval())


@pytest.mark.parametrize(
    ("new", "old", "is_wide"),
    [
        ("BIGINT", "INT", True),
        ("INT", "BIGINT", False),
        ("DOUBLE", "INT", True),
        ("DOUBLE", "BIGINT", False),
        ("DOUBLE", "FLOAT", True),
        ("STRING", "INT", False),
        ("DECIMAL(12,3)", "DECIMAL(10,2)", True),
        ("DECIMAL(12,3)", "DECIMAL(12,2)", False),
        ("ARRAY<BIGINT>", "ARRAY<INT>", True),
        ("ARRAY<INT>", "INT", False),
        ("MAP<STRING, BIGINT>", "MAP<STRING, INT>", True),
        ("MAP<STRING, INT>", "MAP<STRING, STRING>", False),
        ("STRUCT<a: BIGINT, c: INT>", "STRUCT<b: INT, a: INT>", True),
        ("STRUCT<a: INT>", "STRUCT<a: BIGINT>", False),
    ],
)
def test_wider_types(new: str, old: str, is_wide: bool) -> None:
    assert is_wider(*(parse_ddl(f"x {kind}").field(0).type for kind in (new, old))) is is_wide


def test_whole_types_and_merged_ones() -> None:
    def struct(text: str) -> pa.DataType:
        return pa.struct(list(parse_ddl(text)))

    narrow, wide = (
        struct("a INT, b ARRAY<STRUCT<x: INT>>"),
        struct("b ARRAY<STRUCT<y: INT, x: BIGINT>>, a BIGINT, c INT"),
    )
    assert is_wider(wide, narrow, is_whole=True)
    assert not is_wider(struct("a BIGINT"), narrow, is_whole=True)
    assert is_wider(struct("a BIGINT"), narrow)
    assert merged(wide, narrow) == wide
    assert merged(narrow, wide) == struct("a BIGINT, b ARRAY<STRUCT<x: BIGINT, y: INT>>, c INT")
    assert merged(struct("a STRING"), struct("a INT")) == struct("a INT")
    maps = struct("m MAP<STRING, STRUCT<x: INT>>"), struct("m MAP<STRING, STRUCT<y: INT>>")
    assert merged(*maps) == struct("m MAP<STRING, STRUCT<x: INT, y: INT>>")
