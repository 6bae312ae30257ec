"""The part of Protocol Buffers (proto2) that the v3 protocol uses: messages as dicts, described by tables.

Rules kept: required fields, closed enums (an unknown number counts as an absent field), unknown fields skipped, fields
in any order, the last of several scalars wins, several occurrences of a message are merged, negative numbers are
varints of ten bytes. Fields are packed in ascending order. Source: wire-protocol 3.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from bookies.errors import RemoteProtocolError
from bookies.wire.messages import Buffer

Values = dict[str, Any]

_VARINT, _FIXED64, _BYTES, _GROUP_START, _GROUP_END, _FIXED32 = range(6)
_FIELD_NUMBER_MAX = (1 << 29) - 1
_REPEATED_MAX = 64  # messages kept of a repeated field; a sender could make each of two bytes
_COPY_SIZE_MAX = 4096  # bytes; longer values stay buffers of their own


class Kind(enum.IntEnum):
    INT64 = 0
    UINT64 = 1
    INT32 = 2
    UINT32 = 3
    ENUM = 4
    BYTES = 5
    STRING = 6
    MESSAGE = 7
    REPEATED_MESSAGE = 8


_INT64, _UINT64, _ENUM, _PLAIN_BYTES = Kind.INT64, Kind.UINT64, Kind.ENUM, Kind.BYTES


class Field:
    """One field. `of`: the message, or the known numbers of an enum."""

    def __init__(
        self, number: int, name: str, kind: Kind, of: Message | frozenset[int] | None = None, *, required: bool = False
    ) -> None:
        self.name = name
        self.kind = kind
        self.of = of
        self.required = required
        self.tag = number << 3 | (_BYTES if kind >= Kind.BYTES else _VARINT)
        self.packed_tag = pack_varint(self.tag)


class Message:
    """The fields of one message, in ascending order of their numbers."""

    def __init__(self, *fields: Field) -> None:
        self.fields = fields
        self.by_tag: Mapping[int, tuple[str, Kind, Any]] = {
            field.tag: (field.name, field.kind, field.of) for field in fields
        }
        self.required = tuple(field.name for field in fields if field.required)
        self.nested = tuple((field.name, field.of) for field in fields if isinstance(field.of, Message))

    def parse(self, buffer: bytes, at: int, end: int) -> Values:
        """The message in [at, end) as name -> value; absent fields are absent.

        Raises RemoteProtocolError when it is malformed or a required field is missing, in nested messages too.
        """
        values: Values = {}
        try:
            _merge(self.by_tag, values, buffer, at, end)
        except IndexError:
            raise RemoteProtocolError("message is cut off") from None
        self._check(values)
        return values

    def pack(self, values: Values) -> list[Buffer]:
        """The message as pieces in order; long byte strings are the very buffers given. None counts as absent."""
        pieces: list[Buffer] = []
        for field in self.fields:
            value = values.get(field.name)
            if value is None:
                continue
            if field.kind < Kind.BYTES:
                pieces.append(field.packed_tag + (_SMALL[value] if 0 <= value < 0x80 else pack_varint(value)))
            elif field.kind is Kind.REPEATED_MESSAGE:
                for item in value:
                    _append_message(pieces, field, item)
            elif field.kind is Kind.MESSAGE:
                _append_message(pieces, field, value)
            else:
                data = value.encode("utf-8", "surrogateescape") if field.kind is Kind.STRING else value
                size = len(data)
                pieces.append(field.packed_tag + (_SMALL[size] if size < 0x80 else pack_varint(size)))
                pieces.append(data)
        return pieces

    def _check(self, values: Values) -> None:
        for name in self.required:
            if name not in values:
                raise RemoteProtocolError(f"message without its required field {name}")
        for name, of in self.nested:
            inner = values.get(name)
            for one in inner if isinstance(inner, list) else () if inner is None else (inner,):
                of._check(one)


def pack_varint(value: int) -> bytes:
    """Base 128, least significant group first; a negative number as its 64-bit two's complement."""
    if 0 <= value < 0x80:
        return _SMALL[value]
    if 0 <= value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if 0 <= value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if value < 0:
        value += 1 << 64
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


_SMALL: Sequence[bytes] = [bytes((value,)) for value in range(0x80)]


def parse_varint(buffer: bytes, at: int) -> tuple[int, int]:
    """(unsigned 64-bit value, offset behind it). Raises IndexError at the end of the buffer."""
    value = buffer[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    shift = 7
    while True:
        group = buffer[at]
        at += 1
        if group < 0x80:
            return (value | group << shift) & 0xFFFF_FFFF_FFFF_FFFF, at
        value |= (group & 0x7F) << shift
        shift += 7
        if shift == 70:
            raise RemoteProtocolError("varint of more than ten bytes")


def frame(pieces: Sequence[Buffer]) -> list[Buffer]:
    """Put the length word in front; short pieces are joined, long ones passed through."""
    size = sum(map(len, pieces))
    frames: list[Buffer] = []
    short: list[Buffer] = [size.to_bytes(4, "big")]
    for piece in pieces:
        if len(piece) > _COPY_SIZE_MAX:
            frames.append(b"".join(short))
            frames.append(piece)
            short = []
        else:
            short.append(piece)
    if short:
        frames.append(b"".join(short))
    return frames


def _append_message(pieces: list[Buffer], field: Field, values: Values) -> None:
    assert isinstance(field.of, Message)
    inner = field.of.pack(values)
    size = sum(map(len, inner))
    pieces.append(field.packed_tag + (_SMALL[size] if size < 0x80 else pack_varint(size)))
    pieces.extend(inner)


def _merge(by_tag: Mapping[int, tuple[str, Kind, Any]], values: Values, buffer: bytes, at: int, end: int) -> None:
    """Read the fields in [at, end) into `values`. The depth of recursion is that of the schema, not of the bytes."""
    while at < end:
        tag = buffer[at]
        at += 1
        if tag >= 0x80:
            tag, at = parse_varint(buffer, at - 1)
        field = by_tag.get(tag)
        wire_type = tag & 7
        if wire_type == _VARINT:
            value = buffer[at]
            at += 1
            if value >= 0x80:
                value, at = parse_varint(buffer, at - 1)
            if field is not None:
                name, kind, of = field
                if value >= 1 << 31:
                    value = _number(kind, value)
                if kind is not _ENUM or value in of:
                    values[name] = value
            elif tag >> 3 == 0:
                raise RemoteProtocolError("field number 0")
        elif wire_type == _BYTES:
            size = buffer[at]
            at += 1
            if size >= 0x80:
                size, at = parse_varint(buffer, at - 1)
            stop = at + size
            if stop > end:
                raise RemoteProtocolError("field is cut off")
            if field is not None:
                name, kind, of = field
                if kind is _PLAIN_BYTES:
                    values[name] = buffer[at:stop]
                elif kind is Kind.MESSAGE:
                    _merge(of.by_tag, values.setdefault(name, {}), buffer, at, stop)
                elif kind is Kind.STRING:
                    values[name] = buffer[at:stop].decode("utf-8", "surrogateescape")
                elif len(items := values.setdefault(name, [])) < _REPEATED_MAX:
                    inner: Values = {}
                    _merge(of.by_tag, inner, buffer, at, stop)
                    items.append(inner)
            elif tag >> 3 == 0:
                raise RemoteProtocolError("field number 0")
            at = stop
        else:
            at = _skip(buffer, at, end, tag)
    if at > end:
        raise RemoteProtocolError("field is cut off")


def _number(kind: Kind, value: int) -> int:
    """The number that a varint stands for; one below `1 << 31` stands for itself."""
    if kind is _INT64:
        return value if value < 1 << 63 else value - (1 << 64)
    if kind is _UINT64:
        return value
    value &= 0xFFFF_FFFF  # as the reference does: the upper half of 32-bit kinds is dropped
    return value if kind is Kind.UINT32 or value < 1 << 31 else value - (1 << 32)


def _skip(buffer: bytes, at: int, end: int, tag: int) -> int:
    """The offset behind an unknown field that is neither varint nor bytes; groups nest without recursion."""
    open_groups: list[int] = []
    while True:
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number <= _FIELD_NUMBER_MAX:
            raise RemoteProtocolError(f"field number {number}")
        if wire_type == _VARINT:
            _, at = parse_varint(buffer, at)
        elif wire_type == _FIXED64:
            at += 8
        elif wire_type == _FIXED32:
            at += 4
        elif wire_type == _BYTES:
            size, at = parse_varint(buffer, at)
            at += size
        elif wire_type == _GROUP_START:
            open_groups.append(number)
        elif wire_type == _GROUP_END and open_groups and open_groups.pop() == number:
            pass
        else:
            raise RemoteProtocolError(f"field {number} has the unexpected wire type {wire_type}")
        if at > end:
            raise RemoteProtocolError("field is cut off")
        if not open_groups:
            return at
        tag, at = parse_varint(buffer, at)
