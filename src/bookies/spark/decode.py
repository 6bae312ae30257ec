"""Payloads as columns: UTF-8 text, one JSON object per entry, or an Arrow IPC stream of rows per entry.

Whole batches are decoded at once by Arrow; only a batch with something in it that does not decode is looked at entry by
entry. What becomes of such an entry is the option `mode`, with the words of Spark's own readers: PERMISSIVE (null, and
the payload in the column `_corrupt_record` if the schema has one), DROPMALFORMED, FAILFAST. Source: spark 3.2.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from bookies.errors import InvalidArgument
from bookies.spark import envelope
from bookies.spark.arrow import Stretch

CORRUPT = "_corrupt_record"


class Malformed(InvalidArgument):
    """An entry that does not decode, under mode FAILFAST."""


@dataclass(frozen=True)
class Decoded:
    """Columns by name. `taken`: for each row the index of its entry in the batch; None: one row each, in order."""

    columns: dict[str, pa.Array]
    taken: pa.Array | None = None


def opened(stretch: Stretch, entries: pa.Array, names: Sequence[str], mode: str) -> Decoded:
    """The columns of records with key, headers and timestamp. Raises `Malformed`."""
    bad = envelope.malformed(entries)
    if not bad:
        return Decoded(envelope.decode(entries, names))
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
                self._refuse(stretch, index, error)
                bad.append(index)
                rows.append(None)
        return self._without_bad({"value": pa.array(rows, pa.string())}, values, bad)

    # -- JSON ----------------------------------------------------------------------------------------------------
    def _json(self, stretch: Stretch, values: pa.Array) -> Decoded:
        payloads = values.to_pylist()
        schema = pa.schema([pa.field(field.name, _plain(field.type)) for field in self._wanted])
        # Each is a row at least, so as many rows as payloads means one each.
        if all(payload and payload[0] == 123 and payload[-1] == 125 and b"\n" not in payload for payload in payloads):
            try:
                table = pyarrow.json.read_json(
                    BytesIO(b"\n".join(payloads)),
                    pyarrow.json.ReadOptions(use_threads=False, block_size=max(1 << 20, 2 * values.nbytes)),
                    pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
                )
                if table.num_rows == len(payloads):
                    columns = {field.name: _typed(table[field.name], field.type) for field in self._wanted}
                    return self._with_corrupt(columns, values, [])
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                pass  # One of them at least is no such object: find out which.
        rows: list[dict[str, object] | None] = []
        bad = []
        for index, payload in enumerate(payloads):
            try:
                rows.append(None if payload is None else self._object(payload))
            except (ValueError, TypeError, pa.ArrowException) as error:
                self._refuse(stretch, index, error)
                bad.append(index)
                rows.append(None)
        columns = {
            field.name: pa.array([None if row is None else row[field.name] for row in rows], field.type)
            for field in self._wanted
        }
        return self._without_bad(columns, values, bad)

    def _object(self, payload: bytes) -> dict[str, object]:
        """The values of the wanted columns as Python has them. Raises `ValueError` and others."""
        content = json.loads(payload)
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        found = {}
        for field in self._wanted:
            value = pa.array([content.get(field.name)], _plain(field.type))
            found[field.name] = _typed(value, field.type)[0].as_py()
        return found

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
                present = [
                    table[name].cast(schema.field(name).type)
                    if name in table.column_names
                    else pa.nulls(table.num_rows, schema.field(name).type)
                    for name in names
                ]
                table = pa.Table.from_arrays(present, schema=schema)
            except (pa.ArrowException, OSError) as error:
                self._refuse(stretch, index, error)
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
    def _refuse(self, stretch: Stretch, index: int, error: Exception) -> None:
        if self.mode == "FAILFAST":
            raise Malformed(
                f"the payload is not what valueFormat={self.format} and the schema say ({str(error).splitlines()[0]}): "
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
                rows: list[bytes | None] = [None] * len(values)
                for index in bad:
                    rows[index] = values[index].as_py()
                texts = [None if row is None else row.decode("utf-8", "replace") for row in rows]
                columns[CORRUPT] = pa.array(rows if pa.types.is_binary(field.type) else texts, field.type)
        return Decoded(columns)


def _plain(kind: pa.DataType) -> pa.DataType:
    """As which JSON is read first: what it writes as a string is read as one."""
    is_text = pa.types.is_temporal(kind) or pa.types.is_decimal(kind) or pa.types.is_binary(kind)
    return pa.string() if is_text else kind


def _typed(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Raises `ArrowInvalid`, `ValueError`."""
    if pa.types.is_binary(kind):
        texts = column.to_pylist()
        return pa.array([None if text is None else base64.b64decode(text, validate=True) for text in texts], kind)
    if pa.types.is_timestamp(kind):
        # With a zone or without one, which then is UTC; both spellings may be in one column.
        texts = pc.replace_substring_regex(column, "(?i)z$", "+00:00")
        texts = pc.if_else(
            pc.match_substring_regex(texts, "[+-][0-9]{2}:?[0-9]{2}$"),
            texts,
            pc.binary_join_element_wise(texts, "+00:00", ""),
        )
        return _one(texts.cast(kind))
    return _one(column if column.type == kind else column.cast(kind))


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
