"""Decoding of payloads to columns: UTF-8 text, one JSON object per entry, or an Arrow IPC stream of rows per entry.

Arrow decodes whole batches at once; only a batch with a malformed entry is checked entry by entry. Option `mode`
decides about such an entry, as in Spark's own readers: PERMISSIVE (null, and the payload in the column
`_corrupt_record` if the schema has one), DROPMALFORMED, FAILFAST. Source: spark 3.2.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from msgspec import Struct

from bookies.errors import InvalidArgument, MetadataCorrupt
from bookies.spark.base import envelope
from bookies.spark.base.arrow import Stretch

if TYPE_CHECKING:
    from bookies.spark.read.payload_schema import PayloadSchema

CORRUPT = "_corrupt_record"
SIFTED_MAX = 256  # entries that are checked one by one instead of halved again
DIGITS_MAX = 20  # digits of a whole number that may have 64 bits
# First bytes of an object: white space and a brace, or the byte order mark or zero bytes of UTF-8, 16 and 32.
_MAY_BE_OBJECT = r"\A[\x09-\x0D ]*[{\x00\xEF\xFE\xFF]"
# Errors of the readers and conversions for a payload that does not match the schema.
UNDECODABLE = (ValueError, TypeError, KeyError, ArithmeticError, RecursionError, OSError, pa.ArrowException)


class Unsuitable(ValueError):
    """JSON value of another type than the schema has."""


class Malformed(InvalidArgument):
    """Entry that does not decode, in mode FAILFAST."""


class Decoded(Struct, frozen=True):
    """Columns by name. `taken`: for each row the index of its entry in the batch; None: one row per entry, in order.

    `malformed`: number of entries that did not decode.
    """

    columns: dict[str, pa.Array]
    taken: pa.Array | None = None
    malformed: int = 0


def opened(stretch: Stretch, entries: pa.Array, names: Sequence[str], mode: str) -> Decoded:
    """Return the columns of records with key, headers and timestamp. Raises `Malformed`."""
    try:
        return Decoded(envelope.decode(entries, names))
    except MetadataCorrupt:
        bad = envelope.malformed(entries, names)
    if mode == "FAILFAST":
        raise Malformed(
            "the entry is no record with key and headers: choose recordFormat=raw, mode=PERMISSIVE or "
            "mode=DROPMALFORMED",
            ledger_id=stretch.ledger_id,
            entry_id=stretch.entry_of(bad[0]),
        )
    dropped = set(bad)
    if mode == "DROPMALFORMED":
        kept = pa.array([index for index in range(len(entries)) if index not in dropped], pa.int64())
        return Decoded(envelope.decode(entries.take(kept), names), kept, len(bad))
    is_good = pa.array([index not in dropped for index in range(len(entries))], pa.bool_())
    [empty_entry] = envelope.encode(pa.nulls(1, pa.binary()))
    return Decoded(envelope.decode(_one(pc.if_else(is_good, entries, empty_entry)), names), None, len(bad))


class Decoder(Struct, frozen=True):
    """Decoder of payloads. `fields`: the columns inside the payload, and `_corrupt_record` if the schema has it.

    payload: the schema of Avro's and Protobuf's payloads. names: fields of other payloads by column; the others have
    the column's name.
    """

    format: str
    fields: tuple[pa.Field, ...]
    mode: str
    payload: PayloadSchema | None = None
    names: Mapping[str, str] = {}

    def decode(self, stretch: Stretch, values: pa.Array) -> Decoded:
        """Decode payloads to columns. Raises `Malformed`."""
        if self.format == "utf8":
            return self._text(stretch, values)
        if self.format == "json":
            return self._json(stretch, values)
        if self.payload is not None:
            columns, malformed = self.payload.decode(stretch, values, self._payload_fields)
            for index in sorted(malformed):
                self._refuse(stretch, index, malformed[index])
            return self._without_bad(columns, values, sorted(malformed))
        return self._arrow(stretch, values)

    @property
    def _payload_fields(self) -> list[pa.Field]:
        """The fields, under their names in the payload."""
        return [one.with_name(self._inner(one.name)) for one in self.fields if one.name != CORRUPT]

    def _inner(self, column: str) -> str:
        return self.names.get(column, column)

    # -- text ----------------------------------------------------------------------------------------------------
    def _text(self, stretch: Stretch, values: pa.Array) -> Decoded:
        try:
            return self._with_corrupt({"value": values.cast(pa.string())}, values, [])
        except pa.ArrowInvalid:
            payloads = values.to_pylist()
        rows: list[str | None] = []
        bad = []
        for index, payload in enumerate(payloads):
            try:
                rows.append(None if payload is None else payload.decode())
            except UnicodeDecodeError as error:
                self._refuse(stretch, index, _reason(error))
                bad.append(index)
                rows.append(None)
        return self._without_bad({"value": pa.array(rows, pa.string())}, values, bad)

    # -- JSON ----------------------------------------------------------------------------------------------------
    def _json(self, stretch: Stretch, values: pa.Array) -> Decoded:
        if not values.null_count:
            try:
                return self._with_corrupt(self._columns(self._objects(values)), values, [])
            except UNDECODABLE:
                pass  # At least one payload is malformed: find out which.
        return self._salvaged(stretch, values)

    def _salvaged(self, stretch: Stretch, values: pa.Array) -> Decoded:
        """Halve what does not decode until the malformed entries are isolated.

        An entry that decodes alone also decodes in a batch. Up to `SIFTED_MAX` entries are checked one by one, which
        finds those that can never decode. Payloads that do not begin like an object are removed first.
        """
        pieces: list[pa.Table] = []
        rows_found: list[int] = []  # the rows of `values` that are in `pieces`
        may_be = pc.match_substring_regex(values, _MAY_BE_OBJECT)
        bad = dict.fromkeys(pc.indices_nonzero(pc.invert(may_be)).to_pylist(), "not a JSON object")
        waiting = [pc.indices_nonzero(may_be).to_pylist()]
        while waiting:
            rows = waiting.pop()
            texts: dict[int, str] | None = None
            while rows:
                try:
                    of_rows = values.take(pa.array(rows, pa.int64()))
                    pieces.append(self._objects(of_rows) if texts is None else self._read(_texts(texts, rows)))
                    rows_found += rows
                    break
                except UNDECODABLE as error:
                    if len(rows) <= SIFTED_MAX and texts is None:
                        texts, hopeless = self._sifted(values, rows)
                        bad |= hopeless
                        rows = [row for row in rows if row not in hopeless]
                        continue
                    if len(rows) == 1:
                        bad[rows[0]] = _reason(error)
                    else:
                        waiting += [rows[len(rows) // 2 :], rows[: len(rows) // 2]]
                    break
        for row in sorted(bad):
            self._refuse(stretch, row, bad[row])
        order: list[int | None] = [None] * len(values)
        for index, row in enumerate(rows_found):
            order[row] = index
        table = pa.concat_tables([*pieces, pa.schema(self._payload_fields).empty_table()]).combine_chunks()
        return self._without_bad(self._columns(table.take(pa.array(order, pa.int64()))), values, sorted(bad))

    def _columns(self, table: pa.Table) -> dict[str, pa.Array]:
        return {one.name: _one(table[self._inner(one.name)]) for one in self.fields if one.name != CORRUPT}

    def _objects(self, values: pa.Array) -> pa.Table:
        """Return one row for each payload, none of them null. Raises `UNDECODABLE` if any is no such object."""
        if any(_has_map(field.type) for field in self._payload_fields):  # Arrow's reader does not support maps.
            return self._read(pa.array(map(self._respelled, values.to_pylist()), pa.string()))
        # The reader accepts bytes that are not UTF-8, the cast refuses them.
        return self._read(values.cast(pa.string()))

    def _sifted(self, values: pa.Array, rows: Sequence[int]) -> tuple[dict[int, str], dict[int, str]]:
        """Return the new text of each row that can be respelled, and the reason for each row that cannot decode."""
        texts: dict[int, str] = {}
        hopeless: dict[int, str] = {}
        for row in rows:
            payload = values[row].as_py()
            try:
                texts[row] = self._respelled(payload)
            except (Unsuitable, json.JSONDecodeError, UnicodeDecodeError) as error:
                if b"Inf" not in payload:  # Arrow's reader accepts more spellings of infinity.
                    hopeless[row] = _reason(error)
            except UNDECODABLE:
                pass  # Arrow's reader may skip values that are too deep for Python's.
        return texts, hopeless

    def _respelled(self, payload: bytes) -> str:
        """Rewrite an object's selected columns so that Arrow's reader accepts them as Python's does.

        The cases: a repeated key (the last one counts), another encoding, whole numbers such as 1.0, maps.
        Raises `UNDECODABLE`.
        """
        return _spelled(json.loads(payload, parse_float=Decimal, parse_int=Decimal), pa.struct(self._payload_fields))

    def _read(self, texts: pa.Array) -> pa.Table:
        if not _has_braces(texts) and not _has_braces(pc.ascii_trim_whitespace(texts)):
            raise ValueError("not a JSON object")
        lines = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
        text = pc.binary_join(lines, "\n")[0].as_buffer()
        table = pyarrow.json.read_json(
            pa.BufferReader(text),
            pyarrow.json.ReadOptions(use_threads=False, block_size=max(1 << 12, 2 * len(text))),
            pyarrow.json.ParseOptions(
                explicit_schema=pa.schema([pa.field(field.name, _plain(field.type)) for field in self._payload_fields]),
                unexpected_field_behavior="ignore",
            ),
        )
        # Each payload is at least one row, so equal counts mean one row each. The line end between the closing brace
        # of a payload and the opening brace of the next is in no string, so both braces are at the outermost level.
        if table.num_rows != len(texts):
            raise ValueError("more than one JSON object")
        columns = [_typed(_one(table[field.name]), field.type) for field in self._payload_fields]
        return pa.Table.from_arrays(columns, schema=pa.schema(self._payload_fields))

    # -- Arrow ---------------------------------------------------------------------------------------------------
    def _arrow(self, stretch: Stretch, values: pa.Array) -> Decoded:
        tables: list[pa.Table] = []
        taken: list[int] = []
        bad: list[int] = []
        malformed = 0
        names = [field.name for field in self._payload_fields]
        schema = pa.schema(self._payload_fields)
        for index in range(len(values)):
            if not values[index].is_valid:
                continue  # A record without a value has no rows.
            try:
                table = pa.ipc.open_stream(values[index].as_buffer()).read_all()
                table.validate(full=True)  # Offsets outside the buffers would crash the process.
                present = [
                    table[name].cast(schema.field(name).type)
                    if name in table.column_names
                    else pa.nulls(table.num_rows, schema.field(name).type)
                    for name in names
                ]
                table = pa.Table.from_arrays(present, schema=schema)
            except UNDECODABLE as error:
                self._refuse(stretch, index, _reason(error))
                malformed += 1
                if self.mode == "DROPMALFORMED":
                    continue
                table = pa.Table.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
                bad.append(len(taken))
            tables.append(table)
            taken += [index] * table.num_rows
        joined = pa.concat_tables(tables).combine_chunks() if tables else schema.empty_table()
        columns = self._columns(joined)
        indices = pa.array(taken, pa.int64())
        return Decoded(self._with_corrupt(columns, values.take(indices), bad).columns, indices, malformed)

    # -- malformed entries ---------------------------------------------------------------------------------------
    def _refuse(self, stretch: Stretch, index: int, reason: str) -> None:
        if self.mode == "FAILFAST":
            log = "" if stretch.origin.log is None else f"log {stretch.origin.log}: "
            raise Malformed(
                f"{log}the payload does not match valueFormat={self.format} and the schema ({reason}): "
                "correct them, or choose mode=PERMISSIVE or mode=DROPMALFORMED",
                ledger_id=stretch.ledger_id,
                entry_id=stretch.entry_of(index),
            )

    def _without_bad(self, columns: dict[str, pa.Array], values: pa.Array, bad: Sequence[int]) -> Decoded:
        if self.mode != "DROPMALFORMED" or not bad:
            return self._with_corrupt(columns, values, bad)
        dropped = set(bad)
        kept = pa.array([index for index in range(len(values)) if index not in dropped], pa.int64())
        columns = {name: column.take(kept) for name, column in columns.items()}
        return Decoded(self._with_corrupt(columns, values.take(kept), []).columns, kept, len(bad))

    def _with_corrupt(self, columns: dict[str, pa.Array], values: pa.Array, bad: Sequence[int]) -> Decoded:
        for field in self.fields:
            if field.name == CORRUPT:
                if not bad:
                    columns[CORRUPT] = pa.nulls(len(values), field.type)
                    continue
                rows: list[bytes | None] = [None] * len(values)
                for index in bad:
                    rows[index] = values[index].as_py()
                texts = [None if row is None else row.decode("utf-8", "replace") for row in rows]
                columns[CORRUPT] = pa.array(rows if pa.types.is_binary(field.type) else texts, field.type)
        return Decoded(columns, None, len(bad))


def _texts(texts: Mapping[int, str], rows: Sequence[int]) -> pa.Array:
    """Return the new texts of the rows. Raises `ValueError` if one of them could not be respelled."""
    if not all(row in texts for row in rows):
        raise ValueError("the JSON object is nested too deeply")
    return pa.array([texts[row] for row in rows], pa.string())


def _reason(error: Exception) -> str:
    """Return the error in one line."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _has_braces(texts: pa.Array) -> bool:
    """Report whether each text begins and ends with a brace."""
    return bool(pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py())


def _plain(data_type: pa.DataType) -> pa.DataType:
    """Return the type as which JSON is read first: Arrow's reader cannot read the others from JSON."""
    if pa.types.is_struct(data_type):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in data_type])
    if pa.types.is_list(data_type):
        return pa.list_(pa.field(data_type.value_field.name, _plain(data_type.value_type)))
    if pa.types.is_map(data_type):
        return pa.list_(pa.struct([("key", _plain(data_type.key_type)), ("value", _plain(data_type.item_type))]))
    if pa.types.is_duration(data_type):
        return pa.int64()
    return pa.string() if pa.types.is_date(data_type) or pa.types.is_binary(data_type) else data_type


def _typed(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Convert a column of the type `_plain(data_type)`, which is not a slice. Raises `ArrowInvalid`, `ValueError`."""
    if column.type == data_type:
        return column
    if pa.types.is_struct(data_type):
        children = [_typed(column.field(index), field.type) for index, field in enumerate(data_type)]
        return pa.StructArray.from_arrays(children, fields=list(data_type), mask=column.is_null())
    if pa.types.is_list(data_type):
        elements = _typed(column.values, data_type.value_type)
        return pa.ListArray.from_arrays(column.offsets, elements, type=data_type, mask=column.is_null())
    if pa.types.is_map(data_type):
        keys, items = (
            _typed(column.values.field(index), item_type) for index, item_type in enumerate(_types_of(data_type))
        )
        return pa.MapArray.from_arrays(column.offsets, keys, items, type=data_type, mask=column.is_null())
    if pa.types.is_binary(data_type):
        texts = column.to_pylist()
        return pa.array([None if text is None else base64.b64decode(text, validate=True) for text in texts], data_type)
    return column.cast(data_type)


def _types_of(data_type: pa.DataType) -> list[pa.DataType]:
    """Return the element types of a nested type."""
    if pa.types.is_map(data_type):
        return [data_type.key_type, data_type.item_type]
    if pa.types.is_list(data_type):
        return [data_type.value_type]
    return [field.type for field in data_type] if pa.types.is_struct(data_type) else []


def _has_map(data_type: pa.DataType) -> bool:
    return pa.types.is_map(data_type) or any(_has_map(inner) for inner in _types_of(data_type))


def _spelled(value: object, data_type: pa.DataType) -> str:
    """Return a value as JSON: of objects the fields of the type, a map as a list of its pairs. Raises `Unsuitable`."""
    if value is None:
        return "null"
    if pa.types.is_struct(data_type) and isinstance(value, dict):
        fields = (f"{json.dumps(field.name)}: {_spelled(value.get(field.name), field.type)}" for field in data_type)
        return "{" + ", ".join(fields) + "}"
    if pa.types.is_map(data_type) and isinstance(value, dict):
        key, item = _types_of(data_type)
        pairs = (
            f'{{"key": {_spelled(map_key, key)}, "value": {_spelled(map_item, item)}}}'
            for map_key, map_item in value.items()
        )
        return "[" + ", ".join(pairs) + "]"
    if pa.types.is_list(data_type) and isinstance(value, list):
        return "[" + ", ".join(_spelled(element, data_type.value_type) for element in value) + "]"
    if pa.types.is_integer(data_type) or pa.types.is_duration(data_type):
        if isinstance(value, Decimal) and value.adjusted() < DIGITS_MAX and value == value.to_integral_value():
            return str(int(value))
    elif isinstance(value, _python_types_of(data_type)) and _is_readable(value, data_type):
        return str(value) if isinstance(value, Decimal) else json.dumps(value)
    raise Unsuitable(f"{type(value).__name__} for {data_type}")


def _python_types_of(data_type: pa.DataType) -> tuple[type, ...]:
    """Return the types in which Python's reader delivers values of this type, which is not a nested one."""
    if pa.types.is_boolean(data_type):
        return (bool,)
    if pa.types.is_floating(data_type):
        return Decimal, float  # Infinity and NaN are floats.
    if pa.types.is_decimal(data_type):
        return Decimal, str
    return () if pa.types.is_nested(data_type) else (str,)


def _is_readable(value: object, data_type: pa.DataType) -> bool:
    """Return False only if the text certainly does not match the type."""
    # Of timestamps: with and without a time zone.
    candidates = [data_type, pa.timestamp("us")] if pa.types.is_timestamp(data_type) else [data_type]
    for candidate in candidates:
        try:
            if pa.types.is_binary(data_type):
                base64.b64decode(str(value), validate=True)
            elif pa.types.is_temporal(data_type):
                pa.scalar(value, pa.string()).cast(candidate)
            return True
        except ValueError:
            pass
    return False


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the column as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks)
        if column.num_chunks
        else pa.array([], column.type)
    )
