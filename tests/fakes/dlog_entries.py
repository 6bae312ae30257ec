"""Entries of DistributedLog, record by record as the specification reads. Source: distributedlog 3."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from bookies.distributedlog.formats.compression import NONE
from bookies.distributedlog.formats.entries import CONTROL, END_OF_STREAM, TXID_MAX, pack_entry


class Row(NamedTuple):
    """A record to be packed. `records`: those in it, if it is a record set."""

    txid: int
    flags: int
    payload: bytes
    records: int = 1


def end_of_stream() -> Row:
    return Row(TXID_MAX, END_OF_STREAM, b"endOfStream")


def control(txid: int) -> Row:
    return Row(txid, CONTROL, b"control")


def body_of_rows(rows: Sequence[Row]) -> bytes:
    """The body, whose positions count from 1. A record that does not count repeats the number of those that do."""
    pieces, count = list[bytes](), 0
    for txid, flags, payload, records in rows:
        is_counted = not flags & (CONTROL | END_OF_STREAM)
        pieces += (struct.pack(">Qqi", (count + is_counted) << 16 | flags, txid, len(payload)), payload)
        count += records if is_counted else 0
    return b"".join(pieces)


def packed(rows: Sequence[Row], written: int = 0, codec: int = NONE) -> bytes:
    return pack_entry(body_of_rows(rows), written, codec)
