"""Payloads that the sink makes of columns: their schema, which is kept before any task starts, and their encoding.

The log keeps the schema, or a registry does. Either refuses one that its rule of compatibility does not allow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from msgspec.structs import replace as struct_replace

from bookies.errors import InvalidArgument
from bookies.formats import avro, json_rows, protobuf
from bookies.formats.avro_schema import NO_DEFAULT, schema_of_columns, with_columns
from bookies.formats.columns import ddl_of, is_wider, merged, parse_ddl, type_name
from bookies.formats.payloads import Payloads, checked_by
from bookies.protocol.payloads.schemas import ARROW, AVRO, JSON, PROTOBUF, LogSchema, LogSchemas
from bookies.spark.base.payload_options import registry_of, schema_text
from bookies.spark.write.write_settings import Settings

if TYPE_CHECKING:
    from bookies.client.log import Log

T = TypeVar("T")
WithLog = Callable[[Callable[["Log"], Awaitable[T]]], T]  # runs a coroutine function with the log


def with_schema_kept(settings: Settings, with_log: WithLog[Any]) -> Settings:
    """Return the settings with the encoder of payloads, after its schema was kept.

    Raises `SchemaIncompatible`, `InvalidArgument`, `SchemaRegistryFailed`, `LogNotFound`.
    """
    if settings.payload is None or settings.log is None:
        return settings
    while (kept := _kept(settings, settings.payload, with_log)) is None:
        pass  # Another writer was faster. Its columns belong into this schema too.
    return replace(settings, payloads=kept)


def _kept(settings: Settings, columns: pa.Schema, with_log: WithLog[Any]) -> Payloads | None:
    """Return the encoder of payloads, after its schema was kept; None: the log has got another newest one meanwhile."""
    kind, registry = settings.value_format, registry_of(settings)
    subject = settings.subject or f"{settings.log}-value"
    if registry is None:
        latest: LogSchema | None = with_log(lambda log: log.schemas()).latest
    else:
        registered = registry.latest(subject, kind)
        latest = None if registered is None else LogSchema(registered.id, registered.text)
    text, message = _schema(settings, columns, latest)
    payloads = Payloads(kind, text, message, kind in (AVRO, PROTOBUF))
    _check_columns(columns, payloads)
    if registry is not None:
        text = protobuf.file_alone(text) if kind == PROTOBUF else text
        is_newest = latest is not None and latest.text == text
        number = latest.id if is_newest and latest is not None else registry.register(subject, kind, text)
        return struct_replace(payloads, id=number)
    check_rule, rule = checked_by(kind, text, message), settings.compatibility

    def check(known: LogSchemas) -> None:
        if known.latest != latest:
            raise _Overtaken
        check_rule(known)

    try:
        kept = with_log(lambda log: log.add_schema(kind, text, check, message=message, compatibility=rule))
    except _Overtaken:
        return None
    return struct_replace(payloads, id=kept.id)


class _Overtaken(Exception):
    """The log has got another newest schema."""


def payloads_of(settings: Settings, batch: pa.RecordBatch) -> pa.Array:
    """Return the payloads of rows. Raises `InvalidArgument` for a row that the schema does not allow."""
    assert settings.payloads is not None
    assert settings.payload is not None
    columns = [batch.column(field.name).cast(field.type) for field in settings.payload]
    return settings.payloads.encode(pa.StructArray.from_arrays(columns, fields=list(settings.payload)))


def _schema(settings: Settings, columns: pa.Schema, latest: LogSchema | None) -> tuple[str, str]:
    """Return the schema to write with, and the name of Protobuf's message.

    Without a file it is the latest one with the columns that it lacks, so columns never get lost by a write of fewer.
    """
    kind, log = settings.value_format, str(settings.log)
    if settings.schema_file is not None:
        return schema_text(kind, settings.schema_file), settings.message or ""
    if kind in (JSON, ARROW):
        known = pa.struct([]) if latest is None else pa.struct(list(parse_ddl(latest.text)))
        return ddl_of(merged(known, pa.struct(list(columns)))), ""
    if kind == AVRO:
        name = "".join(letter if letter.isalnum() else "_" for letter in log)
        name = name if name[:1].isalpha() else f"log_{name}"
        return (schema_of_columns(columns, name) if latest is None else with_columns(latest.text, columns, name)), ""
    if latest is None:
        raise InvalidArgument(
            "valueFormat=protobuf needs descriptors for the first write: option valueSchemaFile, a file that `protoc "
            "--include_imports --descriptor_set_out=FILE` writes"
        )
    return latest.text, settings.message or latest.message


def _check_columns(columns: pa.Schema, payloads: Payloads) -> None:
    """Check that the schema has each column, with a type that holds its values, and needs no other one."""
    fields = {field.name: field for field in payloads.fields}
    for column in columns:
        if alike := [name for name in fields if name.lower() == column.name.lower() and name != column.name]:
            raise InvalidArgument(
                f"column {column.name!r} and {alike[0]!r} of the schema differ in case only, and Spark could read "
                f"neither of them: rename it to {alike[0]!r}"
            )
        if column.name not in fields:
            raise InvalidArgument(
                f"column {column.name!r} is not in the schema, which has {', '.join(fields)}: drop it, rename it, or "
                "give another schema"
            )
        wanted = fields[column.name].type
        if not is_wider(wanted, column.type, is_whole=True):
            raise InvalidArgument(
                f"column {column.name!r} is {type_name(column.type)}, and the schema has {type_name(wanted)}: cast it"
            )
    if payloads.format == JSON:
        json_rows.check_keys(pa.struct(list(columns)))
    if payloads.format == AVRO:
        for one in avro.parsed(payloads.schema).fields:
            if one.name not in columns.names and one.default is NO_DEFAULT:
                raise InvalidArgument(f"the schema needs column {one.name!r}, which has no default: add it")
