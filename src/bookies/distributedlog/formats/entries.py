"""Records, record sets, and the envelope of the entry that holds them. Source: distributedlog 3.

An entry is one entry of a ledger. `kernels.EntryBuilder` collects its records. `parse_entry` returns them, those of a
record set one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from bookies.distributedlog.formats.compression import NONE, compress, decompress
from bookies.errors import InvalidArgument, LogRecordCorrupt
from bookies.kernels import EntryBuilder, SlotAppend, dlog_entries, placed

CONTROL, END_OF_STREAM, SET = dlog_entries.CONTROL, dlog_entries.END_OF_STREAM, dlog_entries.SET  # flags
TXID_MAX, PAYLOAD_MAX, RECORD = dlog_entries.TXID_MAX, dlog_entries.PAYLOAD_MAX, dlog_entries.RECORD
RECORD_HEADER_SIZE = RECORD.size
ENTRY_SIZE_MAX = (1 << 20) - (4 << 10)  # bytes of an entry with its envelope, before compression
_ENVELOPE = struct.Struct(">BIII")  # version, flags, size, stored size
_SET = struct.Struct(">IIII")  # version and codec, records, size, stored size
_LENGTH = struct.Struct(">i")
ENVELOPE_SIZE, SET_HEADER_SIZE = _ENVELOPE.size, _SET.size
_VERSION, _CODEC_MASK = 1, 3
_SET_VERSION, _SET_VERSION_MASK = 0x1000, 0xF000
_new = tuple.__new__  # costs half of a call of the class


class SlotRecord(NamedTuple):
    """A record as an entry holds it. `position`: its ordinal in the segment, from 1; `flags`: `CONTROL` and so on."""

    slot: int
    txid: int
    position: int
    flags: int
    payload: bytes


def check_record_size(size: int) -> None:
    """Check the size of a payload in bytes. Raises `InvalidArgument`."""
    if size > PAYLOAD_MAX:
        raise InvalidArgument(f"a record of {size:,} bytes exceeds DistributedLog's limit of {PAYLOAD_MAX:,}; split it")


def pack_entry(body: bytes, written: int, codec: int = NONE) -> bytes:
    """Return the entry. `body`: its records, whose positions count from 1; `written`: user records of the segment
    before it."""
    if codec == NONE:
        return placed(_ENVELOPE.pack(_VERSION, NONE, len(body), len(body)), body, written)
    stored = compress(placed(b"", body, written), codec)
    return _ENVELOPE.pack(_VERSION, codec, len(body), len(stored)) + stored


def pack_values(values: Sequence[bytes], txid: int, written: int, entry_size: int) -> list[bytes]:
    """Return entries with a record for each value, of one transaction id, uncompressed.

    `written`: user records of the segment before them. `entry_size`: bytes of records that share an entry.
    """
    entries: list[bytes] = []
    builder = EntryBuilder(SlotAppend, entry_size, txid)
    builder.begin(entries)
    for value in values:
        if builder.add(value, txid, 0, 1) is None:
            _, body, count, _, _ = builder.take()
            entries.append(pack_entry(body, written))
            written += count
            builder.begin(entries)
            builder.add(value, txid, 0, 1)
    if builder:
        entries.append(pack_entry(builder.take()[1], written))
    return entries


def pack_set(payloads: Sequence[bytes], codec: int = NONE) -> bytes:
    """Return the payload of a record set. Raises `InvalidArgument` for an empty or too large one."""
    if not payloads:
        raise InvalidArgument("a record set needs at least one record")
    for payload in payloads:
        check_record_size(len(payload))
    body = b"".join(piece for payload in payloads for piece in (_LENGTH.pack(len(payload)), payload))
    stored = compress(body, codec)
    packed = _SET.pack(_SET_VERSION | codec, len(payloads), len(body), len(stored)) + stored
    if len(body) + SET_HEADER_SIZE > ENTRY_SIZE_MAX:
        raise InvalidArgument(f"the record set has {len(body):,} bytes; it may have {ENTRY_SIZE_MAX:,} with its header")
    check_record_size(len(packed))
    return packed


def parse_entry(entry: bytes, *, is_enveloped: bool = True) -> list[SlotRecord]:
    """Return the records, those of record sets one by one. `is_enveloped`: the segment's version is 4 or more.

    Raises `LogRecordCorrupt`.
    """
    body, at, end = body_of(entry, 0, len(entry)) if is_enveloped else (entry, 0, len(entry))
    records: list[SlotRecord] = []
    slot = 0
    unpack, header = RECORD.unpack_from, RECORD_HEADER_SIZE
    while at < end:
        if at + header > end:
            raise LogRecordCorrupt(f"the entry ends within the header of record {slot}")
        word, txid, size = unpack(body, at)
        at += header
        if size < 0 or at + size > end:
            raise LogRecordCorrupt(f"record {slot} claims {size:,} bytes; {end - at:,} are left in the entry")
        payload = body[at : at + size]
        at += size
        position, flags = (word >> 16) & 0xFFFFFFFF, word & 0xFFFF
        if flags & SET:
            inner = parse_set(payload)
            records += [_new(SlotRecord, (slot + i, txid, position + i, 0, value)) for i, value in enumerate(inner)]
            slot += len(inner)
        else:
            records.append(_new(SlotRecord, (slot, txid, position, flags, payload)))
            slot += 1
    return records


def body_of(data: bytes, start: int, end: int) -> tuple[bytes, int, int]:
    """Return where the body of the enveloped entry data[start:end] is: in these bytes, from one offset to another.

    Bytes after it are ignored, as Apache's readers do. Raises `LogRecordCorrupt`.
    """
    room = end - start - ENVELOPE_SIZE
    if room < 0:
        raise LogRecordCorrupt(f"the entry has {end - start} bytes, its envelope alone has {ENVELOPE_SIZE}")
    version, flags, size, stored_size = _ENVELOPE.unpack_from(data, start)
    if version != _VERSION:
        raise LogRecordCorrupt(f"the envelope of the entry has version {version}, expected {_VERSION}")
    if stored_size > room:
        raise LogRecordCorrupt(f"the envelope claims {stored_size:,} bytes, {room:,} follow")
    start += ENVELOPE_SIZE
    if flags & _CODEC_MASK == NONE and size == stored_size:
        return data, start, start + size
    return decompress(data[start : start + stored_size], flags & _CODEC_MASK, size), 0, size


def parse_set(payload: bytes) -> list[bytes]:
    """Return the payloads of a record set. Raises `LogRecordCorrupt`."""
    if len(payload) < SET_HEADER_SIZE:
        raise LogRecordCorrupt(f"a record set has {len(payload)} bytes, its header alone has {SET_HEADER_SIZE}")
    word, count, size, stored_size = _SET.unpack_from(payload)
    if word & _SET_VERSION_MASK != _SET_VERSION:
        raise LogRecordCorrupt(f"a record set has version {word & _SET_VERSION_MASK:#x}, expected {_SET_VERSION:#x}")
    if stored_size > len(payload) - SET_HEADER_SIZE:
        raise LogRecordCorrupt(f"a record set claims {stored_size:,} bytes, {len(payload) - SET_HEADER_SIZE:,} follow")
    body = decompress(payload[SET_HEADER_SIZE : SET_HEADER_SIZE + stored_size], word & _CODEC_MASK, size)
    payloads: list[bytes] = []
    at = 0
    for _ in range(count):
        length = _LENGTH.unpack_from(body, at)[0] if at + 4 <= size else -1
        if length < 0 or at + 4 + length > size:
            raise LogRecordCorrupt(f"record {len(payloads)} of {count} leaves its record set")
        payloads.append(body[at + 4 : at + 4 + length])
        at += 4 + length
    return payloads


def pack_lone(txid: int, flags: int, payload: bytes) -> bytes:
    """Return a body with one record that does not count. It repeats the number of those that do."""
    return RECORD.pack(flags, txid, len(payload)) + payload
