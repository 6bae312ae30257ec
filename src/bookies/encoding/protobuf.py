"""Protobuf messages by a schema, binary or text: the subset that records in files and in metadata stores need.

A message is a list of (field name, value) pairs in the order of the bytes, as in `encoding.textproto`; a repeated
field is several pairs. Values are `int` (also for enums), `bytes` (strings undecoded) and nested messages. Source:
metadata 0.1, 4.3 and 6.2; the encoding is Protocol Buffers' public one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Union

from bookies.encoding import textproto

Value = Union[int, bytes, "Message"]
Message = list[tuple[str, Value]]
Kind = Union[Literal["int", "bytes"], type[enum.IntEnum], "Schema"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types; groups (3 and 4) occur in no record
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class Schema:
    """Field names with their number and kind. Integers are int32 or int64: signed, plain varints."""

    def __init__(self, fields: Mapping[str, tuple[int, Kind]]) -> None:
        self.by_name = dict(fields)
        self.by_number = {number: (name, kind) for name, (number, kind) in fields.items()}
        self.tags = {
            name: pack_varint(number << 3 | (_VARINT if _is_number(kind) else _BYTES))
            for name, (number, kind) in fields.items()
        }


# Packed tags, most sizes and small numbers, and -1, which stands for "none" in many records.
_SMALL = {**{value: bytes([value]) for value in range(0x80)}, -1: b"\xff" * 9 + b"\1"}


# -- binary -----------------------------------------------------------------------------------------------------------


def pack(schema: Schema, message: Sequence[tuple[str, Value]]) -> bytes:
    """Pack the fields in the order given, which has to be that of their numbers. A nested message may be packed
    already. Raises ValueError for a huge integer.
    """
    parts = []
    tags = schema.tags
    for name, value in message:
        if isinstance(value, int):
            parts.append(tags[name] + (_SMALL.get(value) or pack_varint(_checked(name, value))))
            continue
        if isinstance(value, list):
            kind = schema.by_name[name][1]
            assert isinstance(kind, Schema)
            value = pack(kind, value)
        parts.append(tags[name] + pack_varint(len(value)) + value)
    return b"".join(parts)


def pack_varint(value: int) -> bytes:
    """Pack a number in base 128, low digits first; a negative int64 takes ten bytes."""
    if (small := _SMALL.get(value)) is not None:
        return small
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def parse(schema: Schema, data: bytes) -> Message:
    """Parse a whole message; fields that the schema does not have are skipped. Raises ValueError."""
    message: Message = []
    offset = 0
    while offset < len(data):
        tag, offset = parse_varint(data, offset)
        value, offset = _parse_value(data, offset, tag & 7)
        if tag >> 3 == 0:
            raise ValueError(f"byte {offset}: field number 0")
        known = schema.by_number.get(tag >> 3)
        if known is None:
            continue
        name, kind = known
        if tag & 7 != (_VARINT if _is_number(kind) else _BYTES):
            raise ValueError(f"{name} has wire type {tag & 7}")
        if isinstance(kind, Schema):
            assert isinstance(value, bytes)
            message.append((name, parse(kind, value)))
        else:
            message.append((name, value))
    return message


def _checked(name: str, value: int) -> int:
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise ValueError(f"{name} does not fit into 64 bits")
    return value


def _is_number(kind: Kind) -> bool:
    return kind != "bytes" and not isinstance(kind, Schema)


def _parse_value(data: bytes, offset: int, wire_type: int) -> tuple[int | bytes, int]:
    if wire_type == _VARINT:
        value, offset = parse_varint(data, offset)
        return (value if value <= _INT64_MAX else value - (1 << 64)), offset
    if wire_type == _BYTES:
        size, offset = parse_varint(data, offset)
    elif wire_type in (_FIXED32, _FIXED64):
        size = 4 if wire_type == _FIXED32 else 8
    else:
        raise ValueError(f"byte {offset}: wire type {wire_type}")
    end = offset + size
    if end > len(data):
        raise ValueError(f"byte {offset}: {size} bytes announced, {len(data) - offset} there")
    return data[offset:end], end


def parse_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return (value, offset after it), unsigned, at most ten bytes. Raises ValueError."""
    if offset < len(data) and data[offset] < 0x80:  # most of them
        return data[offset], offset + 1
    value = 0
    for index in range(10):
        if offset + index >= len(data):
            raise ValueError(f"byte {offset}: number ends too early")
        byte = data[offset + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & ((1 << 64) - 1), offset + index + 1
    raise ValueError(f"byte {offset}: number longer than ten bytes")


# -- text -------------------------------------------------------------------------------------------------------------


def pack_text(schema: Schema, message: Sequence[tuple[str, Value]]) -> bytes:
    """Return the canonical text form."""
    return textproto.pack(_to_text(schema, message))


def _to_text(schema: Schema, message: Sequence[tuple[str, Value]]) -> list[tuple[str, object]]:
    fields: list[tuple[str, object]] = []
    for name, value in message:
        _, kind = schema.by_name[name]
        if isinstance(kind, Schema):
            assert isinstance(value, list)
            fields.append((name, _to_text(kind, value)))
        elif isinstance(kind, type):
            assert isinstance(value, int)
            fields.append((name, textproto.Symbol(kind(value).name)))
        else:
            fields.append((name, value))
    return fields


def parse_text(schema: Schema, text: bytes) -> Message:
    """Parse any spelling of the text form. An unknown field is an error, as it is to Apache. Raises ValueError."""
    return _from_text(schema, textproto.parse(text))


def _from_text(schema: Schema, fields: Iterable[tuple[str, object]]) -> Message:
    message: Message = []
    for name, value in fields:
        if name not in schema.by_name:
            raise ValueError(f"unknown field {name}")
        _, kind = schema.by_name[name]
        if isinstance(kind, Schema) and isinstance(value, list):
            message.append((name, _from_text(kind, value)))
        elif isinstance(kind, type) and isinstance(value, textproto.Symbol):
            if value not in kind.__members__:
                raise ValueError(f"{name} is {value}")
            message.append((name, int(kind[value])))
        elif _is_number(kind) and isinstance(value, int):
            number = _checked(name, value)
            message.append((name, int(kind(number)) if isinstance(kind, type) else number))
        elif kind == "bytes" and isinstance(value, bytes):
            message.append((name, value))
        else:
            raise ValueError(f"{name} cannot be {value!r:.40}")
    return message
