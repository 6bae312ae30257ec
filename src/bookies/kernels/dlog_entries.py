"""Entries of DistributedLog in Python, the definition of correct: collecting records, and cutting entries.

A *body* is what the envelope of an entry holds: records, each `uint64 position << 16 | flags`, int64 transaction id,
int32 size, payload. Source: distributedlog 3.
"""

from __future__ import annotations

import struct
from typing import Any

CONTROL, END_OF_STREAM, SET = 1, 2, 4  # flags
UNCOUNTED = CONTROL | END_OF_STREAM
TXID_MAX = (1 << 63) - 1  # the transaction id of the end-of-stream record, and of no other
RECORD = struct.Struct(">Qqi")  # position and flags, transaction id, payload size
PAYLOAD_MAX = (1 << 20) - (8 << 10) - RECORD.size
SEQUENCE_MAX = 1 << 62  # of sequence ids that are computed here

Cut = tuple[list[Any], int, int]  # records, position and flags of the last one in the entry
Taken = tuple[Any, bytes, int, int, int]  # token, body, records, first and last transaction id


class SlotAppend:
    """Base class of the outcome of a record. `entry`: the token of its entry; `slot`: its last slot there."""

    __slots__ = ("entry", "slot")

    def __init__(self) -> None:
        self.entry: Any = None
        self.slot = 0


class EntryBuilder:
    """Records that will share an entry, as a body whose positions count from 1.

    `append_type`: a subclass of `SlotAppend` without attributes. `size_max`: bytes of a body with several records.
    `last_txid`: the greatest transaction id so far. `is_shut`: `add_next` adds nothing.
    """

    def __init__(self, append_type: type[SlotAppend], size_max: int, last_txid: int) -> None:
        self.last_txid = last_txid
        self.is_shut = False
        self._type = append_type
        self._size_max = size_max
        self._token: Any = None
        self._clear()

    def _clear(self) -> None:
        self._body = bytearray()
        self._count = 0
        self._first_txid = self._end_txid = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """Return the bytes of the open body."""
        return len(self._body)

    @property
    def first_txid(self) -> int:
        """Return the transaction id of the first record of the open body."""
        return self._first_txid

    def begin(self, token: object) -> None:
        """Open a body. `token`: `entry` of its records; not None."""
        self._clear()
        self._token = token

    def add_next(self, payload: object, txid: object) -> SlotAppend | None:
        """Add a record. `txid`: None: one more than the last.

        Returns None and adds nothing if it is not plain: the payload is not of type bytes or too large, the
        transaction id is not allowed, the builder is shut, no body is open, or it has no room.
        """
        if self.is_shut or type(payload) is not bytes or len(payload) > PAYLOAD_MAX:
            return None
        if txid is None:
            txid = max(self.last_txid, 0) + 1
        if type(txid) is not int or txid < max(self.last_txid, 0) or txid >= TXID_MAX:
            return None
        append = self.add(payload, txid, 0, 1)
        if append is not None:
            self.last_txid = txid
        return append

    def add(self, payload: bytes, txid: int, flags: int, count: int) -> SlotAppend | None:
        """Add a record, or a record set of `count` records. None: no body is open, or it has no room."""
        if self._token is None or (self._body and len(self._body) + RECORD.size + len(payload) > self._size_max):
            return None
        if not self._count:
            self._first_txid = txid
        self._body += RECORD.pack((self._count + 1) << 16 | flags, txid, len(payload))
        self._body += payload
        self._end_txid = txid
        self._count += count
        append = self._type()
        append.entry, append.slot = self._token, self._count - 1
        return append

    def take(self) -> Taken:
        """Close the body, which has a record, and return it."""
        taken = self._token, bytes(self._body), self._count, self._first_txid, self._end_txid
        self._clear()
        self._token = None
        return taken


def placed(head: bytes, body: bytes, written: int) -> bytes:
    """Return `head` and the body, each of whose positions is greater by `written`."""
    data, at = bytearray(head + body), len(head)
    while at + RECORD.size <= len(data):
        word, _, size = RECORD.unpack_from(data, at)
        struct.pack_into(">Q", data, at, (word + (written << 16)) & 0xFFFF_FFFF_FFFF_FFFF)
        at += RECORD.size + (size & 0xFFFF_FFFF)
    return bytes(data)


def cut_records(
    types: tuple[type[Any], type[Any]],
    body: tuple[bytes, int, int],
    entry: tuple[int, int],
    sequence: int,
    least_slot: int,
) -> Cut | None:
    """Return the records of a body that an application wrote, from slot `least_slot` on.

    `types`: a named tuple of payload, transaction id, place, sequence id; and one for its place: segment, entry, slot.
    `body`: bytes, where it starts in them, and where it ends. `entry`: its segment and its id. `sequence`: the sequence
    id of position 0. None: the body holds a record set, or is damaged.
    """
    (record_type, place_type), (data, start, end), (lssn, entry_id) = types, body, entry
    if start < 0 or end > len(data):
        raise IndexError("range outside the data")
    if not -(1 << 63) <= sequence < SEQUENCE_MAX:
        return None
    records: list[Any] = []
    at, slot, position, flags = start, 0, -1, 0
    while at < end:
        if end - at < RECORD.size:
            return None
        word, txid, size = RECORD.unpack_from(data, at)
        at += RECORD.size
        position, flags = (word >> 16) & 0xFFFFFFFF, word & 0xFFFF
        if flags & SET or size < 0 or size > end - at:
            return None
        if slot >= least_slot and not flags & UNCOUNTED:
            place = tuple.__new__(place_type, (lssn, entry_id, slot))
            records.append(tuple.__new__(record_type, (data[at : at + size], txid, place, sequence + position)))
        slot += 1
        at += size
    return records, position, flags
