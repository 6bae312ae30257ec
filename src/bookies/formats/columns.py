"""Columns of decoded payloads: Arrow's types, and their names in Spark's DDL, such as `id BIGINT, tags ARRAY<STRING>`.

Every column may be null. The types are those that Spark accepts from Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pyarrow as pa

from bookies.errors import InvalidArgument

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")
_NAMES: Mapping[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP_NTZ": TIMESTAMP_NTZ,
}
_SYNONYMS = {"BYTE": "TINYINT", "SHORT": "SMALLINT", "INTEGER": "INT", "LONG": "BIGINT", "REAL": "FLOAT"} | {
    "TIMESTAMP_LTZ": "TIMESTAMP",
    "NUMERIC": "DECIMAL",
    "DEC": "DECIMAL",
}
_TYPES = {data_type: name for name, data_type in _NAMES.items()}
_WIDER = ("TINYINT", "SMALLINT", "INT", "BIGINT"), ("FLOAT", "DOUBLE"), ("INT", "DOUBLE")
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\w+|[<>(),:])")
DECIMAL_DIGITS_MAX = 38


def list_of(data_type: pa.DataType) -> pa.DataType:
    """Return the type of lists, with Spark's name of their elements."""
    return pa.list_(pa.field("element", data_type))


def ddl_of(schema: pa.Schema | pa.StructType) -> str:
    """Return the columns as DDL. Raises `InvalidArgument` for a type that Spark does not have."""
    return ", ".join(f"{_quoted(field.name)} {type_name(field.type)}" for field in schema)


def type_name(data_type: pa.DataType) -> str:
    """Return the name of a type in DDL. Raises `InvalidArgument`."""
    if data_type in _TYPES:
        return _TYPES[data_type]
    if pa.types.is_decimal(data_type):
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    if pa.types.is_list(data_type):
        return f"ARRAY<{type_name(data_type.value_type)}>"
    if pa.types.is_map(data_type):
        return f"MAP<{type_name(data_type.key_type)}, {type_name(data_type.item_type)}>"
    if pa.types.is_struct(data_type):
        fields = (f"{_quoted(field.name)}: {type_name(field.type)}" for field in data_type)
        return f"STRUCT<{', '.join(fields)}>"
    raise InvalidArgument(f"type {data_type} is no type of Spark: convert the column, or leave it out")


def plain(data_type: pa.DataType) -> pa.DataType:
    """Return the type of Spark that holds every value of an Arrow type. Raises `InvalidArgument` if there is none."""
    types = pa.types
    if types.is_unsigned_integer(data_type):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}[data_type.bit_width]
    if types.is_large_string(data_type) or types.is_string_view(data_type):
        return pa.string()
    if types.is_large_binary(data_type) or types.is_fixed_size_binary(data_type) or types.is_binary_view(data_type):
        return pa.binary()
    if types.is_timestamp(data_type):
        return TIMESTAMP_NTZ if data_type.tz is None else TIMESTAMP
    if types.is_dictionary(data_type):
        return plain(data_type.value_type)
    if types.is_time(data_type) or types.is_duration(data_type):
        return pa.int64()
    if types.is_list(data_type) or types.is_large_list(data_type):
        return list_of(plain(data_type.value_type))
    if types.is_map(data_type):
        return pa.map_(plain(data_type.key_type), plain(data_type.item_type))
    if types.is_struct(data_type):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in data_type])
    if types.is_decimal(data_type):
        return pa.decimal128(min(data_type.precision, DECIMAL_DIGITS_MAX), data_type.scale)
    type_name(data_type)
    return data_type


def parse_ddl(text: str) -> pa.Schema:
    """Parse columns in DDL. `NOT NULL` and comments are ignored. Raises `InvalidArgument`."""
    tokens = _Tokens(text)
    fields = list(tokens.fields(""))
    if len({field.name for field in fields}) < len(fields):
        raise InvalidArgument(f"{text!r}: a column is repeated")
    return pa.schema(fields)


def is_wider(new: pa.DataType, old: pa.DataType, *, is_whole: bool = False) -> bool:
    """Report whether a column of the new type holds every value of the old one.

    is_whole: of structs all fields of the old one, otherwise those that both have.
    """
    if new == old:
        return True
    if pa.types.is_struct(new) and pa.types.is_struct(old):
        names = {field.name for field in new}
        if is_whole and not all(field.name in names for field in old):
            return False
        common = [field for field in old if field.name in names]
        return all(is_wider(new.field(field.name).type, field.type, is_whole=is_whole) for field in common)
    if pa.types.is_list(new) and pa.types.is_list(old):
        return is_wider(new.value_type, old.value_type, is_whole=is_whole)
    if pa.types.is_map(new) and pa.types.is_map(old):
        pairs = ((new.key_type, old.key_type), (new.item_type, old.item_type))
        return all(is_wider(*pair, is_whole=is_whole) for pair in pairs)
    if pa.types.is_decimal(new) and pa.types.is_decimal(old):
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    narrow, wide = _TYPES.get(old, ""), _TYPES.get(new, "")
    return any(narrow in row and wide in row and row.index(narrow) < row.index(wide) for row in _WIDER)


def merged(known: pa.DataType, new: pa.DataType) -> pa.DataType:
    """Return the known type with the fields that only the new one has; the new one where it is another type."""
    if is_wider(known, new, is_whole=True):
        return known
    if pa.types.is_struct(known) and pa.types.is_struct(new):
        types = {field.name: field.type for field in known}
        for field in new:
            types[field.name] = merged(types[field.name], field.type) if field.name in types else field.type
        return pa.struct(list(types.items()))
    if pa.types.is_list(known) and pa.types.is_list(new):
        return list_of(merged(known.value_type, new.value_type))
    if pa.types.is_map(known) and pa.types.is_map(new):
        return pa.map_(merged(known.key_type, new.key_type), merged(known.item_type, new.item_type))
    return new


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else "`" + name.replace("`", "``") + "`"


class _Tokens:
    """Reader of DDL, token by token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._left: list[str] = []
        at = 0
        stripped = text.rstrip()
        while at < len(stripped):
            token = _TOKEN.match(stripped, at)
            if token is None:
                raise self._error(stripped[at])
            self._left.append(token[1])
            at = token.end()
        self._left.reverse()

    def fields(self, end: str) -> Iterator[pa.Field]:
        """Yield fields up to `end`; empty: the end of the text."""
        while True:
            name = self._next()
            if not re.match(r"[\w`]", name):
                raise self._error(name)
            if self._peek() == ":":
                self._next()
            yield pa.field(name[1:-1].replace("``", "`") if name[0] == "`" else name, self._type())
            if self._peek().upper() == "NOT":
                self._next()
                self._expect("NULL")
            if self._peek().upper() == "COMMENT":
                self._next()
                self._next()
            if self._peek() == end:
                return
            self._expect(",")

    def _type(self) -> pa.DataType:
        token = self._next()
        name = _SYNONYMS.get(token.upper(), token.upper())
        if name in _NAMES:
            return _NAMES[name]
        if name == "DECIMAL":
            return self._decimal()
        if name not in ("ARRAY", "MAP", "STRUCT"):
            raise self._error(token)
        self._expect("<")
        if name == "STRUCT":
            data_type = pa.struct(list(self.fields(">")))
        elif name == "ARRAY":
            data_type = list_of(self._type())
        else:
            key = self._type()
            self._expect(",")
            data_type = pa.map_(key, self._type())
        self._expect(">")
        return data_type

    def _decimal(self) -> pa.DataType:
        numbers = [10, 0]
        if self._peek() == "(":
            self._next()
            numbers[0] = self._number()
            if self._peek() == ",":
                self._next()
                numbers[1] = self._number()
            self._expect(")")
        if not 0 <= numbers[1] <= numbers[0] <= DECIMAL_DIGITS_MAX or not numbers[0]:
            raise self._error(f"DECIMAL({numbers[0]},{numbers[1]})")
        return pa.decimal128(*numbers)

    def _number(self) -> int:
        token = self._next()
        if not (token.isascii() and token.isdigit()):
            raise self._error(token)
        return int(token)

    def _peek(self) -> str:
        return self._left[-1] if self._left else ""

    def _next(self) -> str:
        if not self._left:
            raise self._error("the end")
        return self._left.pop()

    def _expect(self, token: str) -> None:
        following = self._next()
        if following.upper() != token:
            raise self._error(following)

    def _error(self, token: str) -> InvalidArgument:
        return InvalidArgument(
            f"{self._text!r} is no list of columns, at {token!r}: give name and type of each, such as "
            "'id BIGINT, tags ARRAY<STRING>'"
        )
