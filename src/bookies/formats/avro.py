"""Payloads of Avro to columns, and back.

`pyruhvro` decodes a column of payloads in Rust. It does not read bytes, fixed and decimals, so `fastavro` decodes
payloads that have them. `pyruhvro` ignores what follows a record. So each payload is followed by a *fence* here, a
number that is decoded as one more field: it is as expected only if the record ended where it should.

The libraries see a schema of physical types. Logical types, symbols, maps and the resolution to another schema are made
on whole columns here. `fastavro` encodes.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace as struct_replace

from bookies.errors import InvalidArgument, NotSupported, SchemaIncompatible
from bookies.formats.avro_schema import (
    NO_DEFAULT,
    PLAIN,
    AvroType,
    arrow_fields,
    arrow_type,
    parse_avro,
    unreadable,
    written_as,
)

SIFTED_MAX = 64  # payloads that are decoded one by one instead of halved again
FENCE = struct.pack("<d", 1.2345678901234567e-89)  # all of its bytes differ
MISMATCH = "it does not match the schema it was written with"
FENCE_FIELD = "fence"
NEEDED = "payloads of Avro need the extra avro: pip install 'bookies[avro]'"
HEADER = ({"name": "magic", "type": "boolean"}, {"name": "id", "type": "float"})
_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}

# Errors of the library and of conversions for a payload that does not match its schema.
UNDECODABLE = (ValueError, TypeError, OverflowError, IndexError, pa.ArrowException)

parsed = functools.lru_cache(maxsize=256)(parse_avro)


def decode(
    writer: str, reader: str, values: pa.Array, *, is_framed: bool = False
) -> tuple[pa.StructArray, dict[int, str]]:
    """Return the columns that `reader` asks for, and the reason for each row that does not decode, which is null.

    writer, reader: texts of schemas. values: payloads, none of them null. is_framed: each has a header.
    Raises `InvalidArgument` if the reader's schema cannot read what the writer's wrote, `NotSupported`.
    """
    plan = _plan(writer, reader, is_framed)
    try:
        return plan.decoded(values), {}
    except UNDECODABLE:
        pass  # At least one payload is malformed: find out which.
    pieces: list[pa.Array] = []
    rows_decoded: list[int] = []
    bad: dict[int, str] = {}
    waiting = [list(range(len(values)))]
    while waiting:
        rows = waiting.pop()
        if 1 < len(rows) <= SIFTED_MAX:  # Most damage shows in the library, without the conversion of columns.
            reasons = {row: reason for row in rows if (reason := plan.reason(values[row].as_py()))}
            bad |= reasons
            rows = [row for row in rows if row not in reasons]
        try:
            pieces.append(plan.decoded(values.take(pa.array(rows, pa.int64()))))
            rows_decoded += rows
        except UNDECODABLE as error:
            if len(rows) == 1:
                bad[rows[0]] = f"{MISMATCH}: {error}"
                continue
            size = 1 if len(rows) <= SIFTED_MAX else len(rows) // 2
            waiting += [rows[start : start + size] for start in range(0, len(rows), size)]
    order: list[int | None] = [None] * len(values)
    for index, row in enumerate(rows_decoded):
        order[row] = index
    joined = pa.concat_arrays([*pieces, pa.nulls(0, arrow_type(plan.reader))])
    return joined.take(pa.array(order, pa.int64())), bad


def encode(schema: str, rows: pa.StructArray) -> pa.Array:
    """Return one payload per row, without headers. Raises `InvalidArgument` for a row that does not fit the schema."""
    fastavro = _fastavro()
    writer = _of_fastavro(schema)
    payloads = []
    for index, row in enumerate(rows.to_pylist(maps_as_pydicts="strict")):
        data = io.BytesIO()
        try:
            fastavro.schemaless_writer(data, writer, row)
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
            raise InvalidArgument(f"row {index} of a batch does not match the Avro schema: {error}") from error
        payloads.append(data.getvalue())
    return pa.array(payloads, pa.binary())


class _Plan:
    """How payloads of one schema become columns of another one."""

    def __init__(self, writer: str, reader: str, is_framed: bool) -> None:
        self.writer, self.reader = parsed(writer), parsed(reader)
        if reason := unreadable(self.writer, self.reader):
            raise SchemaIncompatible(
                f"the Avro schema of the query cannot read what was written with another one: {reason}. Read with a "
                "newer schema, or with one that has a default for the field"
            )
        schema = _physical(self.writer, itertools.count())
        fields = schema["fields"]
        # The header of a payload is decoded as fields too, of one and four bytes, instead of being cut off.
        schema["fields"] = [*(HEADER if is_framed else ()), *fields, _field(FENCE_FIELD, "double")]
        self._count = len(fields)
        self._schema = json.dumps(schema)
        self._type = None  # of the physical columns, for the slow reader
        if _has_bytes(self.writer):
            self._type = _physical_type(self.writer)

    def decoded(self, values: pa.Array) -> pa.StructArray:
        """Decode payloads. Raises `UNDECODABLE` if any is malformed."""
        columns = self._read(values.to_pylist())[-self._count :]
        rows = pa.StructArray.from_arrays(columns, names=[f"f{index}" for index in range(self._count)])
        return _converted(self.writer, self.reader, rows)

    def reason(self, payload: bytes) -> str:
        """Return why a payload has no physical columns; empty if it has."""
        try:
            self._read([payload])
        except UNDECODABLE as error:
            return f"{MISMATCH}: {error}"
        return ""

    def _read(self, payloads: list[bytes]) -> list[pa.Array]:
        """Return the physical columns. Raises `UNDECODABLE`."""
        *columns, fences = self._read_fenced([payload + FENCE for payload in payloads])
        if pc.any(pc.not_equal(fences, struct.unpack("<d", FENCE)[0])).as_py():
            raise ValueError("bytes are left after the record")
        return columns

    def _read_fenced(self, payloads: list[bytes]) -> list[pa.Array]:
        """Return the physical columns and the fences."""
        if self._type is None:
            columns: list[pa.Array] = _ruhvro().deserialize_array(payloads, self._schema).columns
            return columns
        read, schema = _fastavro().schemaless_reader, _of_fastavro(self._schema)
        try:
            rows = [read(io.BytesIO(payload), schema, None) for payload in payloads]
        except EOFError as error:
            raise ValueError(str(error)) from error
        fences = pa.array([row[FENCE_FIELD] for row in rows], pa.float64())
        return [*pa.array(rows, self._type).flatten(), fences]


_plan = functools.lru_cache(maxsize=64)(_Plan)


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


def _physical(schema: AvroType, numbers: Iterator[int]) -> Any:
    """Return a schema whose payloads have the same bytes, of few types and of names that every reader accepts."""
    kind: Any = schema.kind
    if kind == "record":
        fields = [_field(f"f{index}", _physical(one.type, numbers)) for index, one in enumerate(schema.fields)]
        kind = {"type": "record", "name": f"r{next(numbers)}", "fields": fields}
    elif kind == "enum":
        kind = "int"
    elif kind == "fixed":
        kind = {"type": "fixed", "name": f"r{next(numbers)}", "size": schema.size}
    elif schema.items is not None:
        inner = _physical(schema.items, numbers)
        if kind == "map":
            inner = {
                "type": "record",
                "name": f"r{next(numbers)}",
                "fields": [_field("key", "string"), _field("value", inner)],
            }
        kind = {"type": "array", "items": inner}
    if schema.logical == "decimal":
        kind = kind if schema.kind == "fixed" else {"type": "bytes"}
        kind |= {"logicalType": "decimal", "precision": schema.precision, "scale": schema.scale}
    if schema.null_at is None:
        return kind
    return ["null", kind] if schema.null_at == 0 else [kind, "null"]


def _has_bytes(schema: AvroType) -> bool:
    """Report whether there is a type that `pyruhvro` does not read."""
    inner = [one.type for one in schema.fields] + ([schema.items] if schema.items is not None else [])
    return schema.kind in ("bytes", "fixed") or any(map(_has_bytes, inner))


def _physical_type(schema: AvroType) -> pa.DataType:
    """Return the type of the physical column."""
    if schema.kind == "record":
        return pa.struct([pa.field(f"f{index}", _physical_type(one.type)) for index, one in enumerate(schema.fields)])
    if schema.items is not None:
        inner = _physical_type(schema.items)
        if schema.kind == "map":
            inner = pa.struct([pa.field("key", pa.string()), pa.field("value", inner)])
        return pa.list_(inner)
    if schema.kind in ("enum", "null"):
        return pa.int32() if schema.kind == "enum" else pa.null()
    return arrow_type(schema if schema.logical == "decimal" else struct_replace(schema, logical=""))


# -- from physical columns to those of the reader's schema -----------------------------------------------------------


def _converted(writer: AvroType, reader: AvroType, column: pa.Array) -> pa.Array:
    """Return a column of the writer's physical type as one of the reader's type. Raises `UNDECODABLE`."""
    target = arrow_type(reader)
    if writer.kind == "null":
        return pa.nulls(len(column), target)
    mask = column.is_null() if column.null_count else None
    if writer.kind == "record":
        children = column.flatten()
        parts = []
        for one in reader.fields:
            written = written_as(writer, one)
            if written is None:
                value = default_of(one.type, one.default)
                parts.append(pa.array([value] * len(column), arrow_type(one.type)))
            else:
                parts.append(_converted(written.type, one.type, children[writer.fields.index(written)]))
        return pa.StructArray.from_arrays(parts, fields=arrow_fields(reader), mask=mask)
    if writer.items is not None and reader.items is not None:
        if column.offset:
            column = column.take(pa.array(range(len(column)), pa.int64()))
        offsets, values = column.offsets, column.values
        if writer.kind == "map":
            items = _converted(writer.items, reader.items, values.field("value"))
            return pa.MapArray.from_arrays(offsets, values.field("key"), items, type=target, mask=mask)
        return pa.ListArray.from_arrays(offsets, _converted(writer.items, reader.items, values), type=target, mask=mask)
    return _symbols(writer, reader, column) if writer.kind == "enum" else _scalars(writer, reader, column)


def _symbols(writer: AvroType, reader: AvroType, column: pa.Array) -> pa.Array:
    """Return the symbols of their numbers. Raises `ArrowIndexError` for a number without one."""
    symbols = [symbol if symbol in reader.symbols else reader.default for symbol in writer.symbols]
    return pa.array(symbols, pa.string()).take(column)


def _scalars(writer: AvroType, reader: AvroType, column: pa.Array) -> pa.Array:
    """Return a column as the reader's type. Raises `ArrowInvalid` for a value out of its range."""
    target = arrow_type(reader)
    if writer.logical == "decimal":
        column.validate(full=True)  # The type has fewer digits than the bytes can hold.
        return column.cast(target)
    if not (writer.logical and reader.logical):
        # A logical type that only one of them has does not change the number. Avro allows rounding to a fraction.
        column = column.cast(PLAIN[reader.kind], safe=reader.kind not in ("float", "double"))
        writer = reader
    if "timestamp" in writer.logical:
        unit = _UNITS[writer.logical.rpartition("-")[2]]
        instant = arrow_type(writer)
        column = column.cast(pa.timestamp(unit, tz=instant.tz)).cast(instant, safe=unit != "ns")
    return column.cast(arrow_type(writer)).cast(target)


def default_of(schema: AvroType, value: Any) -> Any:
    """Return the default of a field, which a schema gives as JSON, as a value of its Arrow type."""
    if value is None or value is NO_DEFAULT:
        return None
    if schema.kind == "record":
        own = value if isinstance(value, dict) else {}
        return {one.name: default_of(one.type, own.get(one.name, one.default)) for one in schema.fields}
    if schema.items is not None:
        if schema.kind == "array":
            return [default_of(schema.items, one) for one in value]
        return [(key, default_of(schema.items, one)) for key, one in value.items()]
    if schema.kind in ("bytes", "fixed"):
        data = str(value).encode("latin-1")
        if schema.logical == "decimal":
            return Decimal(int.from_bytes(data, signed=True)).scaleb(-schema.scale)
        return data
    if schema.logical.endswith("-millis"):
        return value * 1000
    return value // 1000 if schema.logical.endswith("-nanos") else value


# -- libraries -------------------------------------------------------------------------------------------------------


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise NotSupported(NEEDED) from error
    return fastavro


def _ruhvro() -> Any:
    try:
        import pyruhvro
    except ImportError as error:
        raise NotSupported(NEEDED) from error
    return pyruhvro


@functools.lru_cache(maxsize=256)
def _of_fastavro(schema: str) -> Any:
    try:
        return _fastavro().parse_schema(json.loads(schema))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidArgument(f"the text is no Avro schema: {error!r}") from error
