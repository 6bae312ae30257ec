"""Records with key, headers and timestamp, one at a time. `spark/base/envelope.py` converts whole columns.

docs/reference/formats/envelope.md has the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from bookies.errors import MetadataCorrupt

VERSION = 1
HEADER_SIZE = 18  # version u8, flags u8, timestamp i64, key length u32, headers length u32; all big-endian
HAS_KEY, HAS_TIMESTAMP, HAS_HEADERS, HAS_VALUE = 1, 2, 4, 8
FLAGS = HAS_KEY | HAS_TIMESTAMP | HAS_HEADERS | HAS_VALUE
NULL_SIZE = 0xFFFFFFFF  # value length of a header whose value is null
_u32 = struct.Struct(">I")
_front = struct.Struct(">BBqII")
_new = tuple.__new__  # A named tuple's own one takes twice as long.

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """Content of an entry. None: null. `timestamp_us`: microseconds since 1970."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] | None = None
    timestamp_us: int | None = None


def pack_record(record: Record) -> bytes:
    """Return the record as an entry."""
    return pack_fields(*record)


def pack_fields(
    value: bytes | None, key: bytes | None, headers: Sequence[Header] | None, timestamp: int | None
) -> bytes:
    """Return the record with these fields as an entry."""
    blob = pack_headers(headers) if headers else b""
    flags = (
        (key is not None) * HAS_KEY
        | (timestamp is not None) * HAS_TIMESTAMP
        | (headers is not None) * HAS_HEADERS
        | (value is not None) * HAS_VALUE
    )
    front = _front.pack(VERSION, flags, timestamp or 0, len(key or b""), len(blob))
    return b"".join((front, key or b"", blob, value or b""))


def pack_headers(headers: Sequence[Header]) -> bytes:
    """Return the headers of one record in the form that `parse_headers` reads."""
    return b"".join(map(_pack_header, headers))


def _pack_header(header: Header) -> bytes:
    name, value = header[0].encode(), header[1]
    size = NULL_SIZE if value is None else len(value)
    return b"".join((_u32.pack(len(name)), name, _u32.pack(size), value or b""))


def parse_record(entry: bytes) -> Record:
    """Return the record of an entry. Raises `MetadataCorrupt` if it is no record of this version."""
    if len(entry) < HEADER_SIZE:
        raise MetadataCorrupt(f"the entry ({len(entry)} bytes) is not an envelope record")
    version, flags, timestamp, key_size, headers_size = _front.unpack_from(entry)
    at = HEADER_SIZE + key_size
    if version != VERSION or flags > FLAGS or at + headers_size > len(entry):
        raise MetadataCorrupt(f"the entry ({len(entry)} bytes) is not an envelope record of version {VERSION}")
    fields = (
        entry[at + headers_size :] if flags & HAS_VALUE else None,
        entry[HEADER_SIZE:at] if flags & HAS_KEY else None,
        parse_headers(entry[at : at + headers_size]) if flags & HAS_HEADERS else None,
        timestamp if flags & HAS_TIMESTAMP else None,
    )
    return _new(Record, fields)


def parse_headers(blob: bytes) -> list[Header]:
    """Return the headers of one record. Raises `MetadataCorrupt`."""
    headers: list[Header] = []
    at = 0
    try:
        while at < len(blob):
            size = _u32.unpack_from(blob, at)[0]
            name = blob[at + 4 : at + 4 + size]
            at += 4 + size
            size = _u32.unpack_from(blob, at)[0]
            at += 4
            value = None if size == NULL_SIZE else blob[at : at + size]
            at += 0 if value is None else size
            headers.append((name.decode(), value))
        if at != len(blob):
            raise ValueError("the last header is cut off")
    except (struct.error, ValueError) as error:
        raise MetadataCorrupt(f"headers of a record cannot be read: {error}") from error
    return headers
