"""`Dlsn`: the address of a record in a log, and its two binary forms. Source: distributedlog 1.3, 1.4."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from typing import NamedTuple

from bookies.errors import InvalidArgument

_LONGS = struct.Struct(">qqq")
_SIZES = {0: 200, 1: 25}  # bytes by version; version 0 is padded, because Apache computed its length in bits
_TEXT = re.compile(r"(\d{1,19}):(-?\d{1,19}):(-?\d{1,19})")
NUMBER_MAX = (1 << 63) - 1


class Dlsn(NamedTuple):
    """The segment's sequence number, the entry in the segment, the slot in the entry. Ordered as records are."""

    segment: int
    entry: int
    slot: int

    @property
    def next(self) -> Dlsn:
        """The least address after this one. A record may or may not be there."""
        return Dlsn(self.segment, self.entry, self.slot + 1)

    def __str__(self) -> str:
        return f"{self.segment}:{self.entry}:{self.slot}"

    def pack(self, version: int = 1) -> bytes:
        """Return the binary form. `version`: 1, or 0 for readers of the first releases."""
        return (bytes([version]) + _LONGS.pack(*self)).ljust(_SIZES[version], b"\0")

    def base64(self) -> str:
        """Return the text that subscriptions hold, and that Apache's tools print."""
        return base64.b64encode(self.pack()).decode()


FIRST = Dlsn(1, 0, 0)
BEFORE_FIRST = Dlsn(1, 0, -1)  # the position of a subscriber that has committed none
INVALID = Dlsn(0, -1, -1)


def dlsn_of(name: str, value: object) -> Dlsn:
    """Return an argument as an address: a `Dlsn`, or three numbers. Raises `InvalidArgument`."""
    if isinstance(value, tuple | list) and len(value) == 3 and all(type(number) is int for number in value):
        return Dlsn(*value)
    raise InvalidArgument(f"{name}={value!r}: must be a Dlsn: segment, entry, slot; `parse_dlsn` reads text")


def unpack_dlsn(data: bytes) -> Dlsn:
    """Return the address. Raises `InvalidArgument` for another version or length, or a negative segment."""
    if not data or _SIZES.get(data[0]) != len(data):
        version = data[0] if data else "none"
        raise InvalidArgument(f"not a DLSN: version {version}, {len(data)} bytes; expected 1 with 25, or 0 with 200")
    position = Dlsn(*_LONGS.unpack_from(data, 1))
    if position.segment < 0:
        raise InvalidArgument(f"not a DLSN: there is no segment {position.segment}")
    return position


def parse_dlsn(text: str) -> Dlsn:
    """Return the address from `SEGMENT:ENTRY:SLOT` or from base64. Raises `InvalidArgument`."""
    if match := _TEXT.fullmatch(text):
        numbers = [int(number) for number in match.groups()]
        if max(numbers) <= NUMBER_MAX and min(numbers) >= -NUMBER_MAX - 1:
            return Dlsn(*numbers)
    else:
        try:
            return unpack_dlsn(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            pass
    raise InvalidArgument(f"{text!r} is not a position: expected SEGMENT:ENTRY:SLOT, or its base64 form")
