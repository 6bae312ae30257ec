"""Records with key, headers and timestamp as entries of a log: conversion from Arrow columns and back, in batches.

An entry is a fixed header, then key, headers and value; docs/reference/formats/envelope.md has the layout. Both
directions work on whole columns. Only the headers of rows that have any are read row by row.

Source: spark 3.2, 4.1.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from bookies.encoding.envelope import (
    FLAGS,
    HAS_HEADERS,
    HAS_KEY,
    HAS_TIMESTAMP,
    HAS_VALUE,
    HEADER_SIZE,
    NULL_SIZE,
    VERSION,
    parse_headers,
)
from bookies.errors import MetadataCorrupt

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")
COLUMNS = {"key": pa.binary(), "value": pa.binary(), "headers": HEADERS_TYPE, "timestamp": TIMESTAMP_TYPE}
_EMPTY = pa.scalar(b"", pa.binary())


# -- columns to entries ----------------------------------------------------------------------------------------------


def encode(
    value: pa.Array,
    key: pa.Array | None = None,
    headers: pa.Array | None = None,
    timestamp: pa.Array | None = None,
) -> pa.Array:
    """Return one entry per row as a `binary` column. Columns: `COLUMNS`; None: null in every row."""
    count = len(value)
    key = pa.nulls(count, pa.binary()) if key is None else key
    timestamp = pa.nulls(count, TIMESTAMP_TYPE) if timestamp is None else timestamp
    blobs = pa.nulls(count, pa.binary()) if headers is None else _pack_headers(headers)
    bits = ((key, HAS_KEY), (timestamp, HAS_TIMESTAMP), (blobs, HAS_HEADERS), (value, HAS_VALUE))
    front = bytearray(HEADER_SIZE * count)
    front[0::HEADER_SIZE] = bytes([VERSION]) * count
    front[1::HEADER_SIZE] = _flags(bits)
    _set_field(front, 2, 8, array("q", _raw(timestamp.cast(pa.int64()).fill_null(0), 8)))
    _set_field(front, 10, 4, array("I", _raw(pc.binary_length(key).fill_null(0), 4)))
    _set_field(front, 14, 4, array("I", _raw(pc.binary_length(blobs).fill_null(0), 4)))
    prefix = pa.Array.from_buffers(pa.binary(HEADER_SIZE), count, [None, pa.py_buffer(front)]).cast(pa.binary())
    filled = [column.fill_null(_EMPTY) for column in (key, blobs, value)]
    return pc.binary_join_element_wise(prefix, *filled, _EMPTY)


def _flags(bits: Sequence[tuple[pa.Array, int]]) -> bytes:
    """Return a byte per row: the bits of the columns that are not null in it."""
    flags = pa.nulls(len(bits[0][0]), pa.uint8()).fill_null(0)
    for column, bit in bits:
        flags = pc.add(flags, pc.multiply(column.is_valid().cast(pa.uint8()), pa.scalar(bit, pa.uint8())))
    return _raw(flags, 1)


def _pack_headers(headers: pa.Array) -> pa.Array:
    """Return the headers of each row as bytes. Each: key length u32, key, value length u32 or `NULL_SIZE`, value."""
    pairs = headers.flatten()  # Leaves out those of null rows: a null row may still have elements.
    keys, values = pairs.field("key").cast(pa.binary()).fill_null(_EMPTY), pairs.field("value")
    packed = pc.binary_join_element_wise(
        _sizes(pc.binary_length(keys)),
        keys,
        _sizes(pc.binary_length(values).cast(pa.int64()).fill_null(NULL_SIZE)),
        values.fill_null(_EMPTY),
        _EMPTY,
    )
    counts = pc.list_value_length(headers).fill_null(0)
    bounds = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(counts.cast(pa.int64()))])
    offsets = pa.Array.from_buffers(pa.int32(), len(pairs) + 1, [None, packed.buffers()[1]]).take(bounds)
    blobs = pa.Array.from_buffers(pa.binary(), len(headers), [None, offsets.buffers()[1], packed.buffers()[2]])
    return pc.if_else(headers.is_valid(), blobs, pa.scalar(None, pa.binary()))


def _sizes(numbers: pa.Array) -> pa.Array:
    """Return each number as four big-endian bytes."""
    packed = array("I", _raw(numbers.cast(pa.uint32()), 4))
    if sys.byteorder == "little":
        packed.byteswap()
    return pa.Array.from_buffers(pa.binary(4), len(numbers), [None, pa.py_buffer(packed)]).cast(pa.binary())


def _set_field(front: bytearray, at: int, width: int, numbers: array[int]) -> None:
    """Write a number of `width` bytes into every header, `at` bytes from its start."""
    if sys.byteorder == "little":
        numbers.byteswap()
    raw = numbers.tobytes()
    for lane in range(width):
        front[at + lane :: HEADER_SIZE] = raw[lane::width]


def _raw(numbers: pa.Array, width: int) -> bytes:
    """Return the bytes of a column of numbers without nulls, in native order."""
    buffer = numbers.buffers()[1]
    data = b"" if buffer is None else buffer.to_pybytes()
    return data[numbers.offset * width : (numbers.offset + len(numbers)) * width]


# -- entries to columns ----------------------------------------------------------------------------------------------


def malformed(entries: pa.Array, names: Sequence[str] = tuple(COLUMNS)) -> list[int]:
    """Return the rows of a `binary` column without nulls that are no valid records of this version.

    Headers are checked only if `names` has them.
    """
    wrong = [row for row, is_wrong in enumerate(_malformed(entries, _Front(entries)).to_pylist()) if is_wrong]
    if "headers" not in names:
        return wrong
    left = set(range(len(entries))) - set(wrong)
    return sorted({*wrong, *(row for row in left if not _has_good_headers(entries.slice(row, 1)))})


def _has_good_headers(record: pa.Array) -> bool:
    try:
        decode(record, ("headers",))
    except MetadataCorrupt:
        return False
    return True


def decode(entries: pa.Array, names: Sequence[str] = tuple(COLUMNS)) -> dict[str, pa.Array]:
    """Return the columns of a `binary` column of entries without nulls. Raises `MetadataCorrupt`: see `malformed`."""
    front = _Front(entries)
    wrong = _malformed(entries, front)
    if pc.any(wrong).as_py():
        row = wrong.index(True).as_py()
        raise MetadataCorrupt(f"row {row} of {len(entries)} is no record with key and headers (version {VERSION})")
    count = len(entries)
    starts = _offsets(entries)
    after_key = pc.add(front.key_sizes, HEADER_SIZE)
    after_headers = pc.add(after_key, front.headers_sizes)
    bounds = array("i", bytes(4 * (4 * count + 1)))
    bounds[0 : 4 * count : 4] = starts[:-1]
    base = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(starts)]).cast(pa.int64())
    for at, ahead in ((1, pa.scalar(HEADER_SIZE, pa.int64())), (2, after_key), (3, after_headers)):
        bounds[at : 4 * count : 4] = array("i", _raw(pc.add(base, ahead).cast(pa.int32()), 4))
    bounds[4 * count] = starts[-1]
    pieces = pa.Array.from_buffers(pa.binary(), 4 * count, [None, pa.py_buffer(bounds), entries.buffers()[2]])
    columns = {}
    for name, at, bit in (("key", 1, HAS_KEY), ("headers", 2, HAS_HEADERS), ("value", 3, HAS_VALUE)):
        if name in names:
            rows = array("q", range(at, 4 * count, 4))
            piece = pieces.take(pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(rows)]))
            piece = pc.if_else(front.has(bit), piece, pa.scalar(None, pa.binary()))
            columns[name] = _unpack_headers(piece) if name == "headers" else piece
    if "timestamp" in names:
        columns["timestamp"] = pc.if_else(
            front.has(HAS_TIMESTAMP), front.timestamps.cast(TIMESTAMP_TYPE), pa.scalar(None, TIMESTAMP_TYPE)
        )
    return {name: columns[name] for name in names}


class _Front:
    """The header fields of all entries. Entries shorter than a header have zeros."""

    def __init__(self, entries: pa.Array) -> None:
        self.count = len(entries)
        fronts = pc.binary_slice(entries, 0, HEADER_SIZE)
        sizes = pc.binary_length(fronts)
        if self.count and pc.min(sizes).as_py() < HEADER_SIZE:
            fronts = pc.if_else(pc.equal(sizes, HEADER_SIZE), fronts, pa.scalar(bytes(HEADER_SIZE), pa.binary()))
        data = fronts.buffers()[2]
        first = _offsets(fronts)[0] if self.count else 0
        self._raw = b"" if data is None else data.to_pybytes()[first : first + HEADER_SIZE * self.count]
        self.versions = self._bytes(0)
        self.flags = self._bytes(1)
        self.timestamps = self._field(2, 8, "q", pa.int64())
        self.key_sizes = self._field(10, 4, "I", pa.uint32()).cast(pa.int64())
        self.headers_sizes = self._field(14, 4, "I", pa.uint32()).cast(pa.int64())

    def has(self, bit: int) -> pa.Array:
        return pc.not_equal(pc.bit_wise_and(self.flags, pa.scalar(bit, pa.uint8())), pa.scalar(0, pa.uint8()))

    def _bytes(self, at: int) -> pa.Array:
        return pa.Array.from_buffers(pa.uint8(), self.count, [None, pa.py_buffer(self._raw[at::HEADER_SIZE])])

    def _field(self, at: int, width: int, code: str, data_type: pa.DataType) -> pa.Array:
        lanes = bytearray(width * self.count)
        for lane in range(width):
            lanes[lane::width] = self._raw[at + lane :: HEADER_SIZE]
        numbers = array(code, bytes(lanes))
        if sys.byteorder == "little":
            numbers.byteswap()
        return pa.Array.from_buffers(data_type, self.count, [None, pa.py_buffer(numbers)])


def _malformed(entries: pa.Array, front: _Front) -> pa.Array:
    """Report for each row whether it is too short, of another version, or claims more bytes than it has."""
    needed = pc.add(pc.add(front.key_sizes, front.headers_sizes), HEADER_SIZE)
    is_wrong = pc.greater(needed, pc.binary_length(entries).cast(pa.int64()))
    is_wrong = pc.or_(is_wrong, pc.not_equal(front.versions, pa.scalar(VERSION, pa.uint8())))
    return pc.or_(is_wrong, pc.greater(front.flags, pa.scalar(FLAGS, pa.uint8())))


def _offsets(column: pa.Array) -> array[int]:
    """Return the int32 offsets of a `binary` column, one more than rows."""
    raw = column.buffers()[1].to_pybytes()
    return array("i", raw[4 * column.offset : 4 * (column.offset + len(column) + 1)])


def _unpack_headers(blobs: pa.Array) -> pa.Array:
    rows = [
        None if blob is None else [{"key": key, "value": value} for key, value in parse_headers(blob)]
        for blob in blobs.to_pylist()
    ]
    return pa.array(rows, HEADERS_TYPE)
