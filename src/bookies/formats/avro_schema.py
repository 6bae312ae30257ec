"""Schemas of Avro: parsed, as columns of Arrow, and which of them can read what another one wrote.

The rules are those of Avro's specification, "Schema Resolution". Refused are schemas without a counterpart in columns:
recursive ones, and unions other than of null and one type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec import Struct, field

from bookies.encoding.documents import parse_json
from bookies.errors import InvalidArgument
from bookies.formats.columns import DECIMAL_DIGITS_MAX, TIMESTAMP, TIMESTAMP_NTZ, list_of, merged, type_name

NO_DEFAULT: Any = object()
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "null": pa.string(),  # Spark has a type of nulls that its readers do not accept.
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "timestamp-nanos"): TIMESTAMP,
    ("long", "local-timestamp-millis"): TIMESTAMP_NTZ,
    ("long", "local-timestamp-micros"): TIMESTAMP_NTZ,
    ("long", "local-timestamp-nanos"): TIMESTAMP_NTZ,
}
# What a reader of the type accepts beside its own.
_PROMOTED = {"long": ("int",), "float": ("int", "long"), "double": ("int", "long", "float")} | {
    "string": ("bytes",),
    "bytes": ("string",),
}


class AvroField(Struct, frozen=True):
    """Field of a record. `default`: as JSON; `NO_DEFAULT`: none."""

    name: str
    type: AvroType
    default: Any = NO_DEFAULT
    aliases: tuple[str, ...] = ()


class AvroType(Struct, frozen=True):
    """One type. `null_at`: the place of null in a union of null and this type; None: it is no union.

    items: of an array or a map. size: of a fixed. default: of an enum.
    """

    kind: str
    name: str = ""
    logical: str = ""
    precision: int = 0
    scale: int = 0
    null_at: int | None = None
    fields: tuple[AvroField, ...] = ()
    items: AvroType | None = None
    symbols: tuple[str, ...] = ()
    size: int = 0
    default: str | None = None
    aliases: tuple[str, ...] = field(default_factory=tuple)


def parse_avro(text: str) -> AvroType:
    """Parse the schema of a record. Raises `InvalidArgument`."""
    try:
        schema = _Parser().parse(parse_json(text), "", "the schema")
    except InvalidArgument:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidArgument(f"the text is no Avro schema: {error!r}") from error
    if schema.kind != "record" or schema.null_at is not None:
        raise InvalidArgument(f"the Avro schema is of a {schema.kind}: only a record has columns")
    return schema


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, AvroType | None] = {}  # None: its fields are being parsed

    def parse(self, node: Any, namespace: str, path: str) -> AvroType:
        if isinstance(node, list):
            return self._union(node, namespace, path)
        if isinstance(node, str):
            if node in PRIMITIVES:
                return AvroType(node)
            full = node if "." in node or not namespace else f"{namespace}.{node}"
            full = full if full in self._named else node
            if full not in self._named:
                raise InvalidArgument(f"the Avro schema has no type {node!r}, which {path} names")
            named = self._named[full]
            if named is None:
                raise InvalidArgument(f"the Avro schema is recursive at {path}: read the payload as raw")
            return named
        kind = node["type"]
        if isinstance(kind, dict | list):
            return self.parse(kind, namespace, path)
        if kind in ("array", "map"):
            inner = self.parse(node["items" if kind == "array" else "values"], namespace, path)
            if kind == "array" and _is_empty(inner):
                # A damaged payload of a few bytes could have any number of them.
                raise InvalidArgument(f"{path} is an array of elements without bytes: read the payload as raw")
            return AvroType(kind, items=inner)
        if kind in ("record", "error", "enum", "fixed"):
            return self._named_type(node, "record" if kind == "error" else kind, namespace, path)
        parsed = self.parse(kind, namespace, path)
        return _with_logical(parsed, node) if parsed.kind in PRIMITIVES else parsed

    def _union(self, node: Sequence[Any], namespace: str, path: str) -> AvroType:
        branches = [self.parse(branch, namespace, path) for branch in node]
        others = [branch for branch in branches if branch.kind != "null"]
        if len(branches) != 2 or len(others) != 1:
            raise InvalidArgument(
                f"{path} is a union of {', '.join(branch.kind for branch in branches)}: only a union of null and one "
                "type is a column; read the payload as raw"
            )
        from msgspec.structs import replace

        return replace(others[0], null_at=0 if branches[0].kind == "null" else 1)

    def _named_type(self, node: Mapping[str, Any], kind: str, namespace: str, path: str) -> AvroType:
        name = str(node["name"])
        if "." in name:
            namespace = name.rpartition(".")[0]
        else:
            namespace = str(node.get("namespace", namespace))
            name = f"{namespace}.{name}" if namespace else name
        if name in self._named:
            raise InvalidArgument(f"the Avro schema defines {name} twice")
        aliases = tuple(map(str, node.get("aliases", ())))
        if kind == "enum":
            parsed = AvroType(kind, name, symbols=tuple(node["symbols"]), default=node.get("default"), aliases=aliases)
        elif kind == "fixed":
            parsed = _with_logical(AvroType(kind, name, size=int(node["size"]), aliases=aliases), node)
        else:
            self._named[name] = None
            fields = [
                AvroField(
                    str(one["name"]),
                    self.parse(one["type"], namespace, f"{path}.{one['name']}"),
                    one.get("default", NO_DEFAULT),
                    tuple(one.get("aliases", ())),
                )
                for one in node["fields"]
            ]
            if not fields or len({one.name for one in fields}) < len(fields):
                raise InvalidArgument(f"record {name} of the Avro schema has no fields, or one of them twice")
            parsed = AvroType(kind, name, fields=tuple(fields), aliases=aliases)
        self._named[name] = parsed
        return parsed


def _is_empty(schema: AvroType) -> bool:
    """Report whether values of the type have no bytes."""
    if schema.kind == "record" and schema.null_at is None:
        return all(_is_empty(one.type) for one in schema.fields)
    return schema.kind == "null" or (schema.kind == "fixed" and not schema.size and schema.null_at is None)


def _with_logical(parsed: AvroType, node: Mapping[str, Any]) -> AvroType:
    """Return the type with its logical type. Those that are unknown or wrong are ignored, as Avro asks."""
    from msgspec.structs import replace

    logical = str(node.get("logicalType", ""))
    if (parsed.kind, logical) in _LOGICAL:
        return replace(parsed, logical=logical)
    precision, scale = node.get("precision", 0), node.get("scale", 0)
    is_decimal = logical == "decimal" and parsed.kind in ("bytes", "fixed")
    if is_decimal and 0 <= scale <= precision <= DECIMAL_DIGITS_MAX and precision and parsed.size <= 16:
        return replace(parsed, logical=logical, precision=precision, scale=scale)
    return parsed


def arrow_type(schema: AvroType) -> pa.DataType:
    """Return the type of the column."""
    if schema.kind == "record":
        return pa.struct(arrow_fields(schema))
    if schema.items is not None:
        inner = arrow_type(schema.items)
        return list_of(inner) if schema.kind == "array" else pa.map_(pa.string(), inner)
    if schema.logical == "decimal":
        return pa.decimal128(schema.precision, schema.scale)
    return _LOGICAL.get((schema.kind, schema.logical), PLAIN[schema.kind])


def arrow_fields(schema: AvroType) -> list[pa.Field]:
    """Return the columns of a record."""
    return [pa.field(one.name, arrow_type(one.type)) for one in schema.fields]


# -- resolution ------------------------------------------------------------------------------------------------------


def unreadable(writer: AvroType, reader: AvroType, path: str = "") -> str:
    """Return why `reader` cannot read what `writer` wrote; empty if it can."""
    where = path or "the record"
    if writer.null_at is not None and reader.null_at is None and writer.kind != "null" and reader.kind != "null":
        return f"{where} may be null where it was written, and may not be null where it is read"
    if writer.kind != reader.kind:
        if writer.kind in _PROMOTED.get(reader.kind, ()) or (writer.kind == "null" and reader.null_at is not None):
            return ""
        return f"{where} is {writer.kind} where it was written, and {reader.kind} where it is read"
    if reader.kind == "record":
        return _unreadable_record(writer, reader, path)
    if reader.items is not None and writer.items is not None:
        return unreadable(writer.items, reader.items, f"{where}[]")
    if reader.kind == "enum" and reader.default is None:
        unknown = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
        return f"{where} has the symbol {unknown[0]}, which is unknown where it is read" if unknown else ""
    if reader.kind == "fixed" and writer.size != reader.size:
        return f"{where} has {writer.size} bytes where it was written, and {reader.size} where it is read"
    if (writer.logical, writer.scale) != (reader.logical, reader.scale) and "decimal" in (
        writer.logical,
        reader.logical,
    ):
        return f"{where} is a decimal of another scale, or none, where it is read"
    return ""


def _unreadable_record(writer: AvroType, reader: AvroType, path: str) -> str:
    for one in reader.fields:
        where = f"{path}.{one.name}" if path else one.name
        written = written_as(writer, one)
        if written is None:
            if one.default is NO_DEFAULT:
                return f"{where} was not written, and has no default where it is read"
        elif reason := unreadable(written.type, one.type, where):
            return reason
    return ""


def written_as(writer: AvroType, wanted: AvroField) -> AvroField | None:
    """Return the writer's field for a field of the reader, by name or alias; None: there is none."""
    by_name = {one.name: one for one in writer.fields}
    return next((by_name[name] for name in (wanted.name, *wanted.aliases) if name in by_name), None)


# -- from columns ----------------------------------------------------------------------------------------------------


def schema_of_columns(columns: pa.Schema, name: str) -> str:
    """Return the schema of a record with these columns, each of which may be null. Raises `InvalidArgument`."""
    return json.dumps(_record_of(columns, name))


def with_columns(text: str, columns: pa.Schema, name: str) -> str:
    """Return a schema with these columns too: new ones, which may be null, and those whose type it cannot hold.

    It is the same text if the schema holds the columns already. Raises `InvalidArgument`.
    """
    schema = parse_avro(text)
    known = {column.name: column.type for column in arrow_fields(schema)}
    content = parse_json(text)
    changed = {column.name: merged(known.get(column.name, column.type), column.type) for column in columns}
    changed = {field: kind for field, kind in changed.items() if known.get(field) != kind}
    if not changed:
        return text
    added = _record_of(pa.schema(list(changed.items())), name)["fields"]
    content["fields"] = [one for one in content["fields"] if one["name"] not in changed] + added
    return json.dumps(content)


def _record_of(columns: pa.Schema | pa.StructType, name: str) -> dict[str, Any]:
    fields = []
    for column in columns:
        if not (column.name.isascii() and column.name.isidentifier()):
            raise InvalidArgument(f"column {column.name!r}: a name in Avro has letters, digits and _ only; rename it")
        inner = _avro_of(column.type, f"{name}_{column.name}")
        fields.append({"name": column.name, "type": ["null", inner], "default": None})
    return {"type": "record", "name": name, "fields": fields}


def _avro_of(data_type: pa.DataType, name: str) -> Any:
    if pa.types.is_struct(data_type):
        return _record_of(data_type, name)
    if pa.types.is_list(data_type):
        return {"type": "array", "items": ["null", _avro_of(data_type.value_type, name)]}
    if pa.types.is_map(data_type):
        if not pa.types.is_string(data_type.key_type):
            raise InvalidArgument(f"{name}: a key of a map in Avro is a string, not {data_type.key_type}")
        return {"type": "map", "values": ["null", _avro_of(data_type.item_type, name)]}
    if pa.types.is_decimal(data_type):
        return {"type": "bytes", "logicalType": "decimal"} | {
            "precision": data_type.precision,
            "scale": data_type.scale,
        }
    names = {"TINYINT": "int", "SMALLINT": "int", "INT": "int", "BIGINT": "long", "FLOAT": "float"}
    names |= {"DOUBLE": "double", "BOOLEAN": "boolean", "STRING": "string", "BINARY": "bytes"}
    logical = {"DATE": ("int", "date"), "TIMESTAMP": ("long", "timestamp-micros")}
    logical |= {"TIMESTAMP_NTZ": ("long", "local-timestamp-micros")}
    spark_name = type_name(data_type)
    if spark_name in logical:
        kind, logical_type = logical[spark_name]
        return {"type": kind, "logicalType": logical_type}
    return names[spark_name]
