"""Schema of the rows: the source's own columns, and those decoded from the payload. Source: spark 3.2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bookies.errors import InvalidArgument
from bookies.spark.base import arrow
from bookies.spark.base.settings import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from bookies.spark.read.decode import Decoder
    from bookies.spark.read.payload_schema import PayloadSchema


def ddl_of(options: ReadOptions, payload: PayloadSchema | None) -> str:
    """Return the default schema as Spark's DDL. `payload`: None if the options name the columns, or it has none."""
    columns = arrow.columns_of(options)
    if options.value_format not in ("raw", "utf8"):
        own = arrow.spark_schema([name for name in columns if name != "value"])
        inside = options.value_schema if payload is None else payload.ddl
        return ", ".join(part for part in (own, inside) if part)
    if options.value_format == "utf8":
        return ", ".join("value STRING" if name == "value" else arrow.spark_schema([name]) for name in columns)
    return arrow.spark_schema(columns)


def arrow_schema_of(options: ReadOptions, schema: Any) -> pa.Schema:
    """Return the schema of the record batches. `schema`: Spark's StructType, from the user or `ddl_of`.

    Raises `InvalidArgument`.
    """
    import pyarrow as pa

    value_format, known = options.value_format, arrow.known_columns(options)
    fields = []
    spark_arrow_schema = None
    for index, name in enumerate(schema.names):
        if name in known and not (name == "value" and value_format != "raw"):
            fields.append(pa.field(name, known[name][1], nullable=True))
            continue
        if value_format == "raw" or (value_format == "utf8" and name not in ("value", "_corrupt_record")):
            raise InvalidArgument(f"no column {name!r}; there are {', '.join(known)}")
        if spark_arrow_schema is None:
            spark_arrow_schema = arrow.schema_of_spark(schema).remove_metadata()
        field = spark_arrow_schema.field(index)
        if value_format == "utf8" and name == "value" and not pa.types.is_string(field.type):
            raise InvalidArgument("option valueFormat=utf8: the schema must have value as STRING")
        fields.append(pa.field(name, field.type, nullable=True))
    return pa.schema(fields)


def batch_schema_of(options: ReadOptions, payload: pa.Schema | None) -> pa.Schema:
    """Return the default schema of the record batches, without Spark. `payload`: the columns inside the payload; None:
    it has none of its own.

    Raises `InvalidArgument`.
    """
    import pyarrow as pa

    own = arrow.arrow_schema(arrow.columns_of(options))
    value_format, index = options.value_format, own.get_field_index("value")
    if value_format in ("raw", "utf8"):
        if payload is not None:
            raise InvalidArgument(f"schema: valueFormat={value_format} has the column value; leave it out")
        return own if value_format == "raw" or index < 0 else own.set(index, pa.field("value", pa.string()))
    assert payload is not None, "other formats have columns"
    fields = [*(own if index < 0 else own.remove(index)), *(field.with_nullable(True) for field in payload)]
    check_names([field.name for field in fields])
    return pa.schema(fields)


def check_names(names: Sequence[str]) -> None:
    """Check that no name is there twice. Raises `InvalidArgument`."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidArgument(
            f"option valueSchema: the source itself has a column {repeated[0]!r}: leave it out with option columns"
        )


def decoder_of(options: ReadOptions, schema: pa.Schema, payload: PayloadSchema | None = None) -> Decoder | None:
    """Return the decoder of the columns inside the payload; None if the payload is delivered as it is.

    Raises `InvalidArgument` for a column that is not in the payload's schema.
    """
    if options.value_format == "raw":
        return None
    from bookies.spark.read.decode import CORRUPT, Decoder

    known = arrow.known_columns(options)
    fields = tuple(field for field in schema if field.name not in known or field.name == "value")
    names: dict[str, str] = {}
    if payload is not None and payload.payloads is None:
        names, payload = {name: field.name for name, field in payload.fields.items()}, None
    if payload is not None:
        payload.check([field for field in fields if field.name != CORRUPT])
    return Decoder(options.value_format, fields, options.mode, payload, names) if fields else None
