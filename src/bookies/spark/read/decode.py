"""Payloads as columns: UTF-8 text, one JSON object per entry, or an Arrow IPC stream of rows per entry.

Whole batches are decoded at once by Arrow; only a batch with something in it that does not decode is looked at entry by
entry. What becomes of such an entry is the option `mode`, with the words of Spark's own readers: PERMISSIVE (null, and
the payload in the column `_corrupt_record` if the schema has one), DROPMALFORMED, FAILFAST. Source: spark 3.2.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from bookies.errors import InvalidArgument, MetadataCorrupt
from bookies.spark.base import envelope
from bookies.spark.base.arrow import Stretch

CORRUPT = "_corrupt_record"
SIFTED_MAX = 256  # entries that are looked at one by one rather than halved again
DIGITS_MAX = 20  # of a whole number that may be one of 64 bits
# Bytes that an object may begin with: white space and a brace, or the mark or the zero bytes of UTF-8, 16 and 32.
_MAY_BE_OBJECT = r"\A[\x09-\x0D ]*[{\x00\xEF\xFE\xFF]"
# What the readers and the conversions raise for a payload that is not what the schema says.
UNDECODABLE = (ValueError, TypeError, KeyError, ArithmeticError, RecursionError, OSError, pa.ArrowException)


class Unsuitable(ValueError):
    """JSON that is of another kind than the schema says."""


class Malformed(InvalidArgument):
    """An entry that does not decode, under mode FAILFAST."""


@dataclass(frozen=True)
class Decoded:
    """Columns by name. `taken`: for each row the index of its entry in the batch; None: one row each, in order."""

    columns: dict[str, pa.Array]
    taken: pa.Array | None = None


def opened(stretch: Stretch, entries: pa.Array, names: Sequence[str], mode: str) -> Decoded:
    """The columns of records with key, headers and timestamp. Raises `Malformed`."""
    try:
        return Decoded(envelope.decode(entries, names))
    except MetadataCorrupt:
        bad = envelope.malformed(entries, names)
    if mode == "FAILFAST":
        raise Malformed(
            "the entry is no record with key and headers: choose recordFormat=raw, mode=PERMISSIVE or "
            "mode=DROPMALFORMED",
            ledger_id=stretch.ledger_id,
            entry_id=stretch.first_entry_id + bad[0],
        )
    dropped = set(bad)
    if mode == "DROPMALFORMED":
        kept = pa.array([index for index in range(len(entries)) if index not in dropped], pa.int64())
        return Decoded(envelope.decode(entries.take(kept), names), kept)
    is_good = pa.array([index not in dropped for index in range(len(entries))], pa.bool_())
    [nothing] = envelope.encode(pa.nulls(1, pa.binary()))
    return Decoded(envelope.decode(_one(pc.if_else(is_good, entries, nothing)), names))


@dataclass(frozen=True)
class Decoder:
    """`fields`: the columns that come out of the payload, `_corrupt_record` among them if it is wanted."""

    format: str
    fields: tuple[pa.Field, ...]
    mode: str

    def decode(self, stretch: Stretch, values: pa.Array) -> Decoded:
        """Raises `Malformed`."""
        if self.format == "utf8":
            return self._text(stretch, values)
        if self.format == "json":
            return self._json(stretch, values)
        return self._arrow(stretch, values)

    @property
    def _wanted(self) -> list[pa.Field]:
        return [field for field in self.fields if field.name != CORRUPT]

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
                pass  # One of them at least is no such object: find out which.
        return self._salvaged(stretch, values)

    def _salvaged(self, stretch: Stretch, values: pa.Array) -> Decoded:
        """What is refused is halved until what is bad stands alone: an entry decodes in company if it does by itself.

        A few that are refused are looked at one by one, which tells at once what never can be decoded. What does not
        even begin like an object is sorted out of the whole batch before.
        """
        pieces: list[pa.Table] = []
        found: list[int] = []  # the rows of `values` that are in `pieces`
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
                    found += rows
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
        for index, row in enumerate(found):
            order[row] = index
        whole = pa.concat_tables([*pieces, pa.schema(self._wanted).empty_table()]).combine_chunks()
        return self._without_bad(self._columns(whole.take(pa.array(order, pa.int64()))), values, sorted(bad))

    def _columns(self, table: pa.Table) -> dict[str, pa.Array]:
        return {field.name: _one(table[field.name]) for field in self._wanted}

    def _objects(self, values: pa.Array) -> pa.Table:
        """One row for each of the payloads, none of them null. Raises `UNDECODABLE` if any is no such object."""
        if any(_has_map(field.type) for field in self._wanted):  # Arrow's reader knows none.
            return self._read(pa.array(map(self._respelled, values.to_pylist()), pa.string()))
        return self._read(values.cast(pa.string()))  # That reader takes bytes that are no UTF-8, the cast does not.

    def _sifted(self, values: pa.Array, rows: Sequence[int]) -> tuple[dict[int, str], dict[int, str]]:
        """Of the rows, how they are respelled if they can be, and which are surely refused, and why."""
        texts: dict[int, str] = {}
        hopeless: dict[int, str] = {}
        for row in rows:
            payload = values[row].as_py()
            try:
                texts[row] = self._respelled(payload)
            except (Unsuitable, json.JSONDecodeError, UnicodeDecodeError) as error:
                if b"Inf" not in payload:  # Arrow's reader knows more names of that number.
                    hopeless[row] = _reason(error)
            except UNDECODABLE:
                pass  # What Python's reader finds too deep the other one may pass over.
        return texts, hopeless

    def _respelled(self, payload: bytes) -> str:
        """The wanted columns of an object that Python's reader takes and Arrow's does not, in words that both do: a key
        that is there twice (the last one counts), another encoding, whole numbers such as 1.0, maps.

        Raises `UNDECODABLE`.
        """
        return _spelled(json.loads(payload, parse_float=Decimal, parse_int=Decimal), pa.struct(self._wanted))

    def _read(self, texts: pa.Array) -> pa.Table:
        if not _has_braces(texts) and not _has_braces(pc.ascii_trim_whitespace(texts)):
            raise ValueError("not a JSON object")
        lines = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
        text = pc.binary_join(lines, "\n")[0].as_buffer()
        table = pyarrow.json.read_json(
            pa.BufferReader(text),
            pyarrow.json.ReadOptions(use_threads=False, block_size=max(1 << 12, 2 * len(text))),
            pyarrow.json.ParseOptions(
                explicit_schema=pa.schema([pa.field(field.name, _plain(field.type)) for field in self._wanted]),
                unexpected_field_behavior="ignore",
            ),
        )
        # Each is a row at least, so as many rows as payloads means one each: between a brace that ends a payload and
        # one that begins the next is the end of a line, which is in no string, so both are at the outermost level.
        if table.num_rows != len(texts):
            raise ValueError("more than one JSON object")
        columns = [_typed(_one(table[field.name]), field.type) for field in self._wanted]
        return pa.Table.from_arrays(columns, schema=pa.schema(self._wanted))

    # -- Arrow ---------------------------------------------------------------------------------------------------
    def _arrow(self, stretch: Stretch, values: pa.Array) -> Decoded:
        tables: list[pa.Table] = []
        taken: list[int] = []
        bad: list[int] = []
        names = [field.name for field in self._wanted]
        schema = pa.schema(self._wanted)
        for index in range(len(values)):
            if not values[index].is_valid:
                continue  # A record without a value has no rows.
            try:
                table = pa.ipc.open_stream(values[index].as_buffer()).read_all()
                table.validate(full=True)  # Offsets that lead out of the buffers would end the process.
                present = [
                    table[name].cast(schema.field(name).type)
                    if name in table.column_names
                    else pa.nulls(table.num_rows, schema.field(name).type)
                    for name in names
                ]
                table = pa.Table.from_arrays(present, schema=schema)
            except UNDECODABLE as error:
                self._refuse(stretch, index, _reason(error))
                if self.mode == "DROPMALFORMED":
                    continue
                table = pa.Table.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
                bad.append(len(taken))
            tables.append(table)
            taken += [index] * table.num_rows
        whole = pa.concat_tables(tables).combine_chunks() if tables else schema.empty_table()
        columns = {name: _one(whole[name]) for name in names}
        indices = pa.array(taken, pa.int64())
        return Decoded(self._with_corrupt(columns, values.take(indices), bad).columns, indices)

    # -- what does not decode ------------------------------------------------------------------------------------
    def _refuse(self, stretch: Stretch, index: int, reason: str) -> None:
        if self.mode == "FAILFAST":
            raise Malformed(
                f"the payload is not what valueFormat={self.format} and the schema say ({reason}): "
                "correct them, or choose mode=PERMISSIVE or mode=DROPMALFORMED",
                ledger_id=stretch.ledger_id,
                entry_id=stretch.first_entry_id + index,
            )

    def _without_bad(self, columns: dict[str, pa.Array], values: pa.Array, bad: Sequence[int]) -> Decoded:
        if self.mode != "DROPMALFORMED" or not bad:
            return self._with_corrupt(columns, values, bad)
        dropped = set(bad)
        kept = pa.array([index for index in range(len(values)) if index not in dropped], pa.int64())
        columns = {name: each.take(kept) for name, each in columns.items()}
        return Decoded(self._with_corrupt(columns, values.take(kept), []).columns, kept)

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
        return Decoded(columns)


def _texts(texts: Mapping[int, str], rows: Sequence[int]) -> pa.Array:
    """Raises `ValueError` if one of them could not be respelled."""
    if not all(row in texts for row in rows):
        raise ValueError("a JSON object that is nested too deep")
    return pa.array([texts[row] for row in rows], pa.string())


def _reason(error: Exception) -> str:
    """In one line."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _has_braces(texts: pa.Array) -> bool:
    """Whether each begins with one and ends with one."""
    return bool(pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py())


def _plain(kind: pa.DataType) -> pa.DataType:
    """As which JSON is read first: what Arrow's reader does not read as JSON writes it."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _plain(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.list_(pa.struct([("key", _plain(kind.key_type)), ("value", _plain(kind.item_type))]))
    if pa.types.is_duration(kind):
        return pa.int64()
    return pa.string() if pa.types.is_date(kind) or pa.types.is_binary(kind) else kind


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of the type `_plain(kind)`, which is no slice, as `kind`. Raises `ArrowInvalid`, `ValueError`."""
    if column.type == kind:
        return column
    if pa.types.is_struct(kind):
        children = [_typed(column.field(index), field.type) for index, field in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())
    if pa.types.is_list(kind):
        elements = _typed(column.values, kind.value_type)
        return pa.ListArray.from_arrays(column.offsets, elements, type=kind, mask=column.is_null())
    if pa.types.is_map(kind):
        keys, items = (_typed(column.values.field(index), each) for index, each in enumerate(_types_of(kind)))
        return pa.MapArray.from_arrays(column.offsets, keys, items, type=kind, mask=column.is_null())
    if pa.types.is_binary(kind):
        texts = column.to_pylist()
        return pa.array([None if text is None else base64.b64decode(text, validate=True) for text in texts], kind)
    return column.cast(kind)


def _types_of(kind: pa.DataType) -> list[pa.DataType]:
    """Those that a nested type consists of."""
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    if pa.types.is_list(kind):
        return [kind.value_type]
    return [field.type for field in kind] if pa.types.is_struct(kind) else []


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(each) for each in _types_of(kind))


def _spelled(value: object, kind: pa.DataType) -> str:
    """A value as JSON, of objects what the type names, a map as a list of its pairs. Raises `Unsuitable`."""
    if value is None:
        return "null"
    if pa.types.is_struct(kind) and isinstance(value, dict):
        fields = (f"{json.dumps(field.name)}: {_spelled(value.get(field.name), field.type)}" for field in kind)
        return "{" + ", ".join(fields) + "}"
    if pa.types.is_map(kind) and isinstance(value, dict):
        key, item = _types_of(kind)
        pairs = (f'{{"key": {_spelled(each, key)}, "value": {_spelled(of, item)}}}' for each, of in value.items())
        return "[" + ", ".join(pairs) + "]"
    if pa.types.is_list(kind) and isinstance(value, list):
        return "[" + ", ".join(_spelled(each, kind.value_type) for each in value) + "]"
    if pa.types.is_integer(kind) or pa.types.is_duration(kind):
        if isinstance(value, Decimal) and value.adjusted() < DIGITS_MAX and value == value.to_integral_value():
            return str(int(value))
    elif isinstance(value, _kinds_of(kind)) and _is_readable(value, kind):
        return str(value) if isinstance(value, Decimal) else json.dumps(value)
    raise Unsuitable(f"{type(value).__name__} for {kind}")


def _kinds_of(kind: pa.DataType) -> tuple[type, ...]:
    """As what Python's reader delivers values that may be of this type, which is no nested one."""
    if pa.types.is_boolean(kind):
        return (bool,)
    if pa.types.is_floating(kind):
        return Decimal, float  # Infinity and NaN are the latter.
    if pa.types.is_decimal(kind):
        return Decimal, str
    return () if pa.types.is_nested(kind) else (str,)


def _is_readable(value: object, kind: pa.DataType) -> bool:
    """False only of a text that surely is not what the type says."""
    kinds = [kind, pa.timestamp("us")] if pa.types.is_timestamp(kind) else [kind]  # with a zone, and without one
    for each in kinds:
        try:
            if pa.types.is_binary(kind):
                base64.b64decode(str(value), validate=True)
            elif pa.types.is_temporal(kind):
                pa.scalar(value, pa.string()).cast(each)
            return True
        except ValueError:
            pass
    return False


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """In one piece."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks)
        if column.num_chunks
        else pa.array([], column.type)
    )
