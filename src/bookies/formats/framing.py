"""Header of a payload that names its schema, as Confluent's serializers write it: a zero byte, and an id of 4 bytes.

Protobuf's header also has the place of the message in its file, as a list of numbers. Both directions work on whole
columns.
"""

from __future__ import annotations

import struct
from array import array

import pyarrow as pa
import pyarrow.compute as pc

HEADER_SIZE = 5


def ids_of(values: pa.Array) -> list[int | None]:
    """Return the schema ids of payloads; None: the payload is null or has no header."""
    distinct = pc.dictionary_encode(pc.binary_slice(values, 0, HEADER_SIZE))
    numbers = [_id_of(header) for header in distinct.dictionary.to_pylist()]
    return [None if index is None else numbers[index] for index in distinct.indices.to_pylist()]


def only_id(values: pa.Array) -> int | None:
    """Return the schema id that all payloads have; None: they have different ones, or one has none or is null."""
    headers = pc.unique(pc.binary_slice(values, 0, HEADER_SIZE)).to_pylist()
    return _id_of(headers[0]) if len(headers) == 1 and headers[0] is not None else None


def _id_of(header: bytes) -> int | None:
    return int.from_bytes(header[1:]) if len(header) == HEADER_SIZE and header[0] == 0 else None


def header_of(schema_id: int) -> bytes:
    """Return the header of a payload."""
    return struct.pack(">bI", 0, schema_id)


def body_of(values: pa.Array, size: int = HEADER_SIZE) -> pa.Array:
    """Return payloads without their headers. `values`: `binary`, none of them null or shorter than a header."""
    # `binary_slice` without an end fails in PyArrow 26: "Negative buffer resize".
    count = len(values)
    offsets = pa.Array.from_buffers(pa.int32(), count + 1, [None, values.buffers()[1]], offset=values.offset)
    bounds = array("i", bytes(4 * (2 * count + 1)))
    bounds[0::2] = array("i", _raw(offsets))
    bounds[1::2] = array("i", _raw(pc.add(offsets.slice(0, count), pa.scalar(size, pa.int32()))))
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), values.buffers()[2]])
    return pieces.take(pa.array(range(1, 2 * count, 2), pa.int64()))


def _raw(numbers: pa.Array) -> bytes:
    """Return the bytes of an int32 column."""
    data: bytes = numbers.buffers()[1].to_pybytes()
    return data[4 * numbers.offset : 4 * (numbers.offset + len(numbers))]


def framed(schema_id: int, bodies: pa.Array, place: bytes = b"") -> pa.Array:
    """Return payloads with headers. `place`: of Protobuf's message, from `pack_place`."""
    header = pa.scalar(header_of(schema_id) + place, pa.binary())
    return pc.binary_join_element_wise(header, bodies, pa.scalar(b"", pa.binary()))


def pack_place(indexes: list[int]) -> bytes:
    """Return the place of a message in its file: its index at each level of nesting. The first message is one byte."""
    if indexes == [0]:
        return b"\0"
    return b"".join(varint(2 * number) for number in (len(indexes), *indexes))


def without_place(bodies: pa.Array) -> pa.Array:
    """Return payloads of Protobuf without the place of their message. Null: the payload does not begin with one."""
    if pc.all(pc.starts_with(bodies, b"\0")).as_py():
        return body_of(bodies, 1)
    return pa.array([_without_place(body) for body in bodies.to_pylist()], pa.binary())


def _without_place(body: bytes) -> bytes | None:
    try:
        count, at = _read(body, 0)
        for _ in range(count):
            _, at = _read(body, at)
    except ValueError:
        return None
    return body[at:]


def varint(number: int) -> bytes:
    """Return a number of 0 or more, seven bits in a byte, the lowest first."""
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(data) + bytes([number])


def _read(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in zigzag form that is 0 or more, and the offset after it. Raises `ValueError`."""
    number = shift = 0
    while at < len(data) and shift < 32:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return number >> 1, at
    raise ValueError("no number")
