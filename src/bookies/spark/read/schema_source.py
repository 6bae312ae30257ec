"""Schema of the payloads that a query reads: from a file, a registry, the log itself, or a sample of its rows.

It is decided once, when a query is planned.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from bookies.errors import InvalidArgument, SchemaNotFound
from bookies.formats import json_rows
from bookies.formats.columns import parse_ddl, plain
from bookies.formats.payloads import Payloads
from bookies.protocol.payloads.schemas import ARROW, AVRO, PROTOBUF, SCHEMA_FORMATS, LogSchemas
from bookies.spark.base import runtime
from bookies.spark.base.options import CLIENT_OPTIONS, names_of
from bookies.spark.base.payload_options import registry_of, schema_text
from bookies.spark.base.plan import Part
from bookies.spark.base.settings import ReadOptions, SelectionOptions, Settings, settings
from bookies.spark.read import planning
from bookies.spark.read.payload_schema import PayloadSchema, schemas_of_log, texts_of
from bookies.spark.read.read import RowReader

SAMPLED_MAX, ASKED_MAX = 8, 64  # logs of which rows are sampled, and which are asked for schemas
SAMPLE_SIZE_MAX = 64 << 20  # bytes of a sample, apart from the last batch of each partition
VALUE = pa.schema([pa.field("value", pa.binary())])


def opened(options: Mapping[str, str], chosen: ReadOptions) -> PayloadSchema | None:
    """Return the schema of a query; None: the options name the columns, or the payload has none.

    options: as from `settings.checked`. Raises `SchemaNotFound`, `InvalidArgument`, and the errors of reading.
    """
    _check(chosen)
    if chosen.value_format not in SCHEMA_FORMATS or chosen.value_schema is not None:
        return None
    selecting = (*names_of(SelectionOptions), *CLIENT_OPTIONS, "recordFormat")
    own = {name: text for name, text in options.items() if name in selecting or name.startswith("bookkeeper.")}
    source = settings({**own, "failOnDataLoss": "false"}, is_stream=False)
    log, kept = _first_kept(source, chosen.value_format)
    latest = kept.latest
    if chosen.value_format in (AVRO, PROTOBUF):
        payloads = _payloads(chosen, source, log, kept)
        return PayloadSchema(pa.schema(payloads.fields), payloads, source, {log: texts_of(kept)})
    if latest is not None:
        return PayloadSchema(parse_ddl(latest.text), None, source)
    if not (sample := _sample(source, chosen.sample)):
        _check_existence(source)
    columns = _arrow_columns(sample) if chosen.value_format == ARROW else json_rows.columns_of(sample)
    return PayloadSchema(columns, None, source)


def _check(chosen: ReadOptions) -> None:
    with_schema = (AVRO, PROTOBUF)
    for name, value in (("valueSchemaFile", chosen.schema_file), ("schemaRegistry", chosen.registry)):
        if value is not None and chosen.value_format not in with_schema:
            raise InvalidArgument(f"option {name} is for valueFormat=avro or protobuf, not for {chosen.value_format}")


def _payloads(chosen: ReadOptions, source: Settings, log: str, kept: LogSchemas) -> Payloads:
    """Return the decoder of Avro or Protobuf. `kept`: the schemas of log `log`."""
    registry, latest = registry_of(chosen), kept.latest
    text, message = "", chosen.message or ""
    writers: Mapping[int, str] = {}
    if chosen.schema_file is not None:
        text = schema_text(chosen.value_format, chosen.schema_file)
    elif registry is not None:
        subject = chosen.subject or f"{log}-value"
        if not (chosen.subject or log):
            raise InvalidArgument("option schemaRegistry.subject is missing: the query reads no log that names it")
        registered = registry.latest(subject, chosen.value_format)
        if registered is None:
            raise SchemaNotFound(f"schema registry {registry.url} has no subject {subject}: set schemaRegistry.subject")
        text = registered.text
        writers = {registered.id: text}
    elif latest is not None:
        text, message = latest.text, message or latest.message
    else:
        _check_existence(source)
        raise SchemaNotFound(
            f"valueFormat={chosen.value_format} needs a schema, and log {log or 'of the query'} has none of that "
            "format: set option valueSchemaFile or schemaRegistry"
        )
    framing = chosen.framing or ("confluent" if registry is not None or latest is not None else "bare")
    return Payloads(chosen.value_format, text, message, framing == "confluent", 0, writers, registry)


def _first_kept(source: Settings, value_format: str) -> tuple[str, LogSchemas]:
    """Return the first log that keeps schemas of this format, and those; else the first log and none."""

    async def find() -> tuple[str, LogSchemas]:
        catalog, _ = await planning.opened(source)
        try:
            logs = sorted(key for key in await catalog.keys(source.selection) if isinstance(key, str))
        finally:
            await catalog.close()
        for log in logs[:ASKED_MAX] if source.namespace is None else ():
            kept = await schemas_of_log(source, log)
            if kept.format == value_format:
                return log, kept
        return (logs[0] if logs else ""), LogSchemas()

    return runtime.worker().run(planning.persistently(source, find))


def _check_existence(source: Settings) -> None:
    """Raise `LogNotFound` or `LedgerNotFound` if something is named that does not exist: that is why there is none."""
    runtime.worker().run(planning.persistently(source, lambda: planning.resolved_parts(source)))


def _sample(source: Settings, count: int) -> list[bytes | None]:
    """Return payloads from the beginning and the end of what the query selects, about `count`."""

    async def plan() -> list[Part]:
        catalog, addresses = await planning.opened(source)
        try:
            keys = (await catalog.keys(source.selection))[:SAMPLED_MAX]
            every = list((await catalog.extents(keys, skips_missing=True)).values())
            parts = []
            for extents in every:
                half = max(1, count // (2 * len(every)))
                begin, middle = extents.beginning, extents.after(extents.beginning, half)
                tail = max(middle, extents.at_row(max(extents.rows_truncated, extents.rows - half)))
                parts += [(extents, begin, middle), (extents, tail, extents.end)]
            return await planning.partitions(catalog, source, parts, addresses)
        finally:
            await catalog.close()

    reader = RowReader(source, VALUE, None)
    payloads: list[bytes | None] = []
    planned = runtime.worker().run(planning.persistently(source, plan))
    for part in planned:
        size = 0
        for batch in reader.read(part):
            payloads += batch.column(0).to_pylist()
            size += batch.nbytes
            if size > SAMPLE_SIZE_MAX // len(planned):
                break
    return payloads


def _arrow_columns(sample: list[bytes | None]) -> pa.Schema:
    """Return the columns of IPC streams: those of the newest one, and those that only earlier ones have."""
    fields: dict[str, pa.Field] = {}
    for payload in sample[::-1]:
        try:
            schema = pa.ipc.open_stream(payload or b"").schema
        except (pa.ArrowException, OSError):
            continue
        fields = {**{field.name: pa.field(field.name, plain(field.type)) for field in schema}, **fields}
    if not fields:
        raise InvalidArgument("the sample has no Arrow stream: give the columns with option valueSchema")
    return pa.schema(list(fields.values()))
