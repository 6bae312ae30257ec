"""Payloads of JSON: columns of a sample of objects, and rows as objects."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from bookies.encoding.documents import parse_json
from bookies.errors import InvalidArgument
from bookies.formats.columns import list_of, type_name

LONG_MAX = 1 << 63


def columns_of(payloads: Iterable[bytes | None]) -> pa.Schema:
    """Return the columns of objects, in the order in which they first appear. Payloads that are no object are ignored.

    Whole numbers are BIGINT, and DOUBLE if another object has a fraction. A field that is always null is a STRING. One
    that is always an object without fields, or a list of these, is no column.
    Raises `InvalidArgument` if there is no object with a field, or objects disagree about a type.
    """
    fields: dict[str, pa.DataType] = {}
    for payload in payloads:
        try:
            row = parse_json(payload or b"")
        except ValueError:
            continue
        if isinstance(row, dict):
            for name, value in row.items():
                fields[name] = _merged(fields.get(name, pa.null()), _type_of(value, name), name)
    columns = _settled(pa.struct(list(fields.items())))
    if not columns.num_fields:
        raise InvalidArgument(
            "the sample has no JSON object, so the columns are unknown: give them with option valueSchema, such as 'id "
            "BIGINT, name STRING'"
        )
    return pa.schema(list(columns))


def _type_of(value: Any, path: str) -> pa.DataType:
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if -LONG_MAX <= value < LONG_MAX else pa.float64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, list):
        inner = pa.null()
        for element in value:
            inner = _merged(inner, _type_of(element, f"{path}[]"), f"{path}[]")
        return pa.list_(inner)
    return pa.struct([pa.field(name, _type_of(inner, f"{path}.{name}")) for name, inner in value.items()])


def _merged(one: pa.DataType, two: pa.DataType, path: str) -> pa.DataType:
    if one == two or pa.types.is_null(two):
        return one
    if pa.types.is_null(one):
        return two
    if pa.types.is_struct(one) and pa.types.is_struct(two):
        fields = {field.name: field.type for field in one}
        for field in two:
            fields[field.name] = _merged(fields.get(field.name, pa.null()), field.type, f"{path}.{field.name}")
        return pa.struct([pa.field(name, data_type) for name, data_type in fields.items()])
    if pa.types.is_list(one) and pa.types.is_list(two):
        return pa.list_(_merged(one.value_type, two.value_type, f"{path}[]"))
    if {one, two} == {pa.int64(), pa.float64()}:
        return pa.float64()
    kinds = " and ".join(type_name(_settled(data_type)) for data_type in (one, two))
    raise InvalidArgument(
        f"objects of the sample disagree about {path}: {kinds}. Give the columns with option valueSchema"
    )


def _settled(data_type: pa.DataType) -> pa.DataType:
    """Return the type of a column whose every value is known. Nulls are strings. Objects without fields are left out of
    others: no type of Spark accepts them.
    """
    if pa.types.is_struct(data_type):
        fields = [(field.name, _settled(field.type)) for field in data_type]
        return pa.struct([(name, settled) for name, settled in fields if not _is_empty(settled)])
    if pa.types.is_list(data_type):
        return list_of(_settled(data_type.value_type))
    return pa.string() if pa.types.is_null(data_type) else data_type


def _is_empty(data_type: pa.DataType) -> bool:
    """Report whether it is an object without fields, or a list of these."""
    while pa.types.is_list(data_type):
        data_type = data_type.value_type
    return pa.types.is_struct(data_type) and not data_type.num_fields


def encode(rows: pa.StructArray) -> pa.Array:
    """Return each row as one object, in the notation of docs/reference/spark.md."""
    check_keys(rows.type)
    texts = [
        json.dumps(row, default=_text, ensure_ascii=False, separators=(",", ":")).encode()
        for row in rows.to_pylist(maps_as_pydicts="strict")
    ]
    return pa.array(texts, pa.binary())


def check_keys(data_type: pa.DataType) -> None:
    """Check that every map inside a type can be an object. Raises `InvalidArgument`."""
    if pa.types.is_map(data_type) and not pa.types.is_string(data_type.key_type):
        raise InvalidArgument(f"a map with keys of {type_name(data_type.key_type)} is no JSON object: use STRING")
    for index in range(data_type.num_fields):
        check_keys(data_type.field(index).type)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    assert isinstance(value, datetime.date)
    return value.isoformat()
