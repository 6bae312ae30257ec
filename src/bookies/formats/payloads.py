"""Payloads with a schema, as columns, and back. Needs PyArrow, not Spark.

    from bookies.formats import Payloads

    orders = Payloads("avro", open("order.avsc").read())
    rows, malformed = orders.decode([b"...", b"..."])
    payloads = orders.encode(rows)

Source: docs/howto/formats.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from bookies.errors import NotSupported, SchemaIncompatible, SchemaNotFound
from bookies.formats import avro, framing, json_rows, protobuf
from bookies.formats.avro_schema import arrow_fields, unreadable
from bookies.formats.columns import is_wider, parse_ddl, type_name
from bookies.formats.registry import Registry
from bookies.protocol.payloads.schemas import (
    ARROW,
    AVRO,
    BACKWARD,
    FORWARD,
    FULL,
    PROTOBUF,
    Check,
    LogSchema,
    LogSchemas,
)

Find = Callable[[int], str]  # returns the schema with an id. Raises `SchemaNotFound`
ARROW_ROWS = 4096  # in one payload of Arrow


class DecodedPayloads(NamedTuple):
    """Rows, one for each payload. `malformed`: the reason for each row that does not decode, which is null."""

    rows: pa.StructArray
    malformed: Mapping[int, str]


class Payloads(Struct, frozen=True):
    """Decoder of Avro and Protobuf, and encoder of all formats.

    format: "avro", "protobuf", "json" or "arrow".
    schema: of the rows: Avro's JSON; Protobuf's descriptors in base64; of the others, columns as Spark's DDL.
    message: full name of Protobuf's message; empty: the first one.
    is_framed: payloads begin with the id of their schema.
    id: of the schema, in payloads that are written.
    writers: schemas by id, of payloads that are read.
    registry: that has the other ones; None: there is none.
    """

    format: str
    schema: str
    message: str = ""
    is_framed: bool = False
    id: int = 0
    writers: Mapping[int, str] = field(default_factory=dict)
    registry: Registry | None = None

    @property
    def fields(self) -> list[pa.Field]:
        """The columns. Raises `InvalidArgument` if the schema is none, `NotSupported` without the extra."""
        if self.format == AVRO:
            return arrow_fields(avro.parsed(self.schema))
        if self.format == PROTOBUF:
            return protobuf.message(self.schema, self.message).columns
        return list(parse_ddl(self.schema))

    def decode(self, payloads: pa.Array | Sequence[bytes | None], find: Find | None = None) -> DecodedPayloads:
        """Return a row for each payload. A null payload is a null row.

        find: for ids that neither `writers` nor the registry has.

        Raises `SchemaIncompatible` if this schema cannot read what a payload was written with, and
        `SchemaRegistryFailed`. An unknown id makes its payload malformed.
        """
        values = payloads if isinstance(payloads, pa.Array) else pa.array(payloads, pa.binary())
        malformed: dict[int, str] = {}
        parts: list[pa.Array] = []
        order: list[int | None] = [None] * len(values)
        done = 0
        for schema_id, rows in self._groups(values):
            bodies = values if len(rows) == len(values) else values.take(pa.array(rows, pa.int64()))
            try:
                part, bad = self._decoded(schema_id, bodies, find)
            except SchemaNotFound as error:
                malformed |= dict.fromkeys(rows, error.message)
                continue
            if len(rows) == len(values):
                return DecodedPayloads(part, bad)
            malformed |= {rows[index]: reason for index, reason in bad.items()}
            for index, row in enumerate(rows, done):
                order[row] = index
            done += len(rows)
            parts.append(part)
        joined = pa.concat_arrays([*parts, pa.array([], pa.struct(self.fields))])
        return DecodedPayloads(joined.take(pa.array(order, pa.int64())), malformed)

    def encode(self, rows: pa.StructArray | pa.RecordBatch | pa.Table) -> pa.Array:
        """Return one payload for each row; of Arrow, one for `ARROW_ROWS` rows. Raises `InvalidArgument`."""
        if isinstance(rows, pa.Table):
            rows = rows.combine_chunks().to_batches()[0] if len(rows) else pa.RecordBatch.from_pylist([], rows.schema)
        if isinstance(rows, pa.RecordBatch):
            rows = rows.to_struct_array()
        if self.format == AVRO:
            bodies = avro.encode(self.schema, rows)
            return framing.framed(self.id, bodies) if self.is_framed else bodies
        if self.format == PROTOBUF:
            message = protobuf.message(self.schema, self.message)
            bodies = message.encode(rows)
            return framing.framed(self.id, bodies, message.place) if self.is_framed else bodies
        return _arrow_streams(rows) if self.format == ARROW else json_rows.encode(rows)

    def _groups(self, values: pa.Array) -> Iterator[tuple[int | None, Sequence[int]]]:
        """Yield the rows of each schema. None: they have no id."""
        if not self.is_framed:
            is_whole = not values.null_count
            yield None, range(len(values)) if is_whole else pc.indices_nonzero(values.is_valid()).to_pylist()
            return
        if (schema_id := framing.only_id(values)) is not None:
            yield schema_id, range(len(values))
            return
        rows_by_id: dict[int | None, list[int]] = {}
        is_valid = values.is_valid().to_pylist()
        for row, schema_id in enumerate(framing.ids_of(values)):
            if is_valid[row]:
                rows_by_id.setdefault(schema_id, []).append(row)
        yield from rows_by_id.items()

    def _decoded(
        self, schema_id: int | None, values: pa.Array, find: Find | None
    ) -> tuple[pa.StructArray, Mapping[int, str]]:
        if self.format not in (AVRO, PROTOBUF):
            raise NotSupported(f"payloads of {self.format} are decoded by pyarrow.json, pyarrow.ipc, or Spark's source")
        if self.is_framed and schema_id is None:
            raise SchemaNotFound("it does not begin with the id of a schema: if no payload does, set valueFraming=bare")
        if self.format == AVRO:
            writer = self.schema if schema_id is None else self._writer(schema_id, find)
            return avro.decode(writer, self.schema, values, is_framed=self.is_framed)
        message = protobuf.message(self.schema, self.message)
        if not self.is_framed:
            return message.decode(values)
        bodies = framing.body_of(values)
        # What does not begin with the place of a message becomes a text that is no message.
        return message.decode(framing.without_place(bodies).fill_null(b"\xff"))

    def _writer(self, schema_id: int, find: Find | None) -> str:
        if schema_id in self.writers:
            return self.writers[schema_id]
        if self.registry is not None:
            return self.registry.schema(schema_id, self.format).text
        if find is None:
            raise SchemaNotFound(f"schema {schema_id} is unknown")
        return find(schema_id)


# -- compatibility ---------------------------------------------------------------------------------------------------


def checked_by(schema_format: str, text: str, message: str = "") -> Check:
    """Return the check of a new schema for `Log.add_schema`: by the log's rule, against all schemas of the log."""

    def check(known: LogSchemas) -> None:
        new = LogSchema(0, text, message)
        for old in known.versions:
            for rule, writer, reader in ((BACKWARD, old, new), (FORWARD, new, old)):
                reason = _unreadable(schema_format, writer, reader) if known.compatibility in (rule, FULL) else ""
                if reason:
                    sides = ("the new schema", f"version {old.id}")
                    able, of = sides if rule == BACKWARD else sides[::-1]
                    raise SchemaIncompatible(
                        f"{able} cannot read rows of {of}: {reason}. The log's compatibility is {known.compatibility}: "
                        "write columns that fit, write another log, or set option compatibility"
                    )

    return check


def _unreadable(schema_format: str, writer: LogSchema, reader: LogSchema) -> str:
    """Return why rows of one schema cannot be read with another one; empty if they can."""
    if schema_format == AVRO:
        return unreadable(avro.parsed(writer.text), avro.parsed(reader.text))
    if schema_format == PROTOBUF:
        messages = (protobuf.message(one.text, one.message).descriptor for one in (writer, reader))
        return protobuf.unreadable(*messages)
    written = {column.name: column.type for column in parse_ddl(writer.text)}
    for column in parse_ddl(reader.text):
        if column.name in written and not is_wider(column.type, written[column.name]):
            kinds = type_name(written[column.name]), type_name(column.type)
            return f"{column.name} is {kinds[0]} where it was written, and {kinds[1]} where it is read"
    return ""


def _arrow_streams(rows: pa.StructArray) -> pa.Array:
    streams = []
    batch = pa.RecordBatch.from_struct_array(rows)
    for start in range(0, len(batch), ARROW_ROWS):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch.slice(start, ARROW_ROWS))
        streams.append(sink.getvalue().to_pybytes())
    return pa.array(streams, pa.binary())
