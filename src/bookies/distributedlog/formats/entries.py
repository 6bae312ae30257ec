"""Records, record sets, and the envelope of the entry that holds them. Source: distributedlog 3.

An entry is one entry of a ledger. `pack_entry` and `parse_entry` are inverse, except that a record set is parsed into
the records in it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from bookies.distributedlog.formats.compression import NONE, compress, decompress
from bookies.errors import InvalidArgument, LogRecordCorrupt

CONTROL, END_OF_STREAM, SET = 1, 2, 4  # flags
_UNCOUNTED = CONTROL | END_OF_STREAM
TXID_MAX = (1 << 63) - 1  # the transaction id of the end-of-stream record, and of no other
RECORD_SIZE_MAX = (1 << 20) - (8 << 10)  # bytes of a record with its header
ENTRY_SIZE_MAX = (1 << 20) - (4 << 10)  # bytes of an entry with its envelope, before compression
_ENVELOPE = struct.Struct(">BIII")  # version, flags, size, stored size
_RECORD = struct.Struct(">Qqi")  # position and flags, transaction id, payload size
_SET = struct.Struct(">IIII")  # version and codec, records, size, stored size
_LENGTH = struct.Struct(">i")
RECORD_HEADER_SIZE, ENVELOPE_SIZE, SET_HEADER_SIZE = _RECORD.size, _ENVELOPE.size, _SET.size
_VERSION, _CODEC_MASK = 1, 3
_SET_VERSION, _SET_VERSION_MASK = 0x1000, 0xF000
_RECORD_MAX = RECORD_SIZE_MAX - RECORD_HEADER_SIZE
_new = tuple.__new__  # costs half of a call of the class


class SlotRecord(NamedTuple):
    """A record as an entry holds it. `position`: its ordinal in the segment, from 1; `flags`: `CONTROL` and so on."""

    slot: int
    txid: int
    position: int
    flags: int
    payload: bytes


class NewRecord(NamedTuple):
    """A record to be written. `records`: those in it, if it is a record set."""

    txid: int
    flags: int
    payload: bytes
    records: int = 1

    @property
    def size(self) -> int:
        """Bytes in an entry."""
        return RECORD_HEADER_SIZE + len(self.payload)

    @property
    def user_count(self) -> int:
        """Records that count: control and end-of-stream records do not."""
        return 0 if self.flags & _UNCOUNTED else self.records


def check_record_size(size: int) -> None:
    """Check the size of a payload in bytes. Raises `InvalidArgument`."""
    if size > _RECORD_MAX:
        raise InvalidArgument(f"a record of {size:,} bytes exceeds DistributedLog's limit of {_RECORD_MAX:,}; split it")


def pack_entry(records: Sequence[NewRecord], written: int, codec: int = NONE) -> bytes:
    """Return the entry. `written`: user records of the segment before it. A record that does not count repeats the
    number of those that do."""
    pieces: list[bytes] = []
    header = _RECORD.pack
    for txid, flags, payload, count in records:
        if flags & _UNCOUNTED:
            pieces += (header(written << 16 | flags, txid, len(payload)), payload)
        else:
            pieces += (header((written + 1) << 16 | flags, txid, len(payload)), payload)
            written += count
    body = b"".join(pieces)
    stored = compress(body, codec)
    return _ENVELOPE.pack(_VERSION, codec, len(body), len(stored)) + stored


def pack_values(values: Sequence[bytes], txid: int, written: int, entry_size: int) -> list[bytes]:
    """Return entries with a record for each value, of one transaction id, uncompressed.

    `written`: user records of the segment before them. `entry_size`: bytes of records that share an entry.
    """
    entries: list[bytes] = []
    pieces: list[bytes] = []
    size = 0
    for value in values:
        length = RECORD_HEADER_SIZE + len(value)
        if pieces and size + length > entry_size:
            entries.append(_ENVELOPE.pack(_VERSION, NONE, size, size) + b"".join(pieces))
            pieces, size = [], 0
        written += 1
        pieces += (_RECORD.pack(written << 16, txid, len(value)), value)
        size += length
    if pieces:
        entries.append(_ENVELOPE.pack(_VERSION, NONE, size, size) + b"".join(pieces))
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
    body = _opened(entry) if is_enveloped else entry
    records: list[SlotRecord] = []
    end, at, slot = len(body), 0, 0
    unpack, header = _RECORD.unpack_from, RECORD_HEADER_SIZE
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


def _opened(entry: bytes) -> bytes:
    """Return what is in the envelope. Bytes after it are ignored, as Apache's readers do."""
    if len(entry) < ENVELOPE_SIZE:
        raise LogRecordCorrupt(f"the entry has {len(entry)} bytes, its envelope alone has {ENVELOPE_SIZE}")
    version, flags, size, stored_size = _ENVELOPE.unpack_from(entry)
    if version != _VERSION:
        raise LogRecordCorrupt(f"the envelope of the entry has version {version}, expected {_VERSION}")
    if stored_size > len(entry) - ENVELOPE_SIZE:
        raise LogRecordCorrupt(f"the envelope claims {stored_size:,} bytes, {len(entry) - ENVELOPE_SIZE:,} follow")
    return decompress(entry[ENVELOPE_SIZE : ENVELOPE_SIZE + stored_size], flags & _CODEC_MASK, size)


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


def control_record(txid: int) -> NewRecord:
    """Return the record that makes earlier ones visible. `txid`: of the last user record."""
    return NewRecord(txid, CONTROL, b"control")


def end_of_stream_record() -> NewRecord:
    """Return the record that ends a log."""
    return NewRecord(TXID_MAX, END_OF_STREAM, b"endOfStream")
