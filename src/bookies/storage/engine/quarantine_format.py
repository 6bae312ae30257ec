"""The file that remembers which ledgers are on their way out: in quarantine, kept by an operator, or deleted.

A copy is in every ledger directory; the one with the greatest sequence number counts, and a copy that is cut off or
changed, or of another bookie, does not. Source: storage 7.2.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from bookies.errors import CorruptRecord
from bookies.kernels import crc32c

FILE_NAME = "removedLedgers"
MAGIC = b"BKRL"
VERSION = 2  # with the bookie it belongs to; 1: without
IDENTITY_SIZE = 16

_HEAD = struct.Struct(">4sIQI")
_RECORD = struct.Struct(">qqB")
_DIGEST = struct.Struct(">I")


class QuarantineState(enum.IntEnum):
    """Where a ledger is on its way out. A surplus one exists, but no ensemble of it has this bookie any more."""

    QUARANTINED = 1
    SURPLUS = 2  # in quarantine likewise
    PINNED = 3  # an operator brought it back: collection leaves it alone
    DELETED = 4


@dataclass(frozen=True, slots=True)
class QuarantineRecord:
    """`since_ms`: wall clock at which the ledger came into this state."""

    state: QuarantineState
    since_ms: int

    @property
    def is_quarantined(self) -> bool:
        return self.state in (QuarantineState.QUARANTINED, QuarantineState.SURPLUS)


def identity_of(bookie: str, instance_id: str | None) -> bytes:
    """Stands for one bookie of one cluster."""
    return hashlib.sha256(f"{bookie}\0{instance_id}".encode()).digest()[:IDENTITY_SIZE]


def pack(sequence: int, removals: Mapping[int, QuarantineRecord], identity: bytes = b"") -> bytes:
    """The whole file; removals by ledger id, in this order. Without an identity it is of version 1."""
    parts = [_HEAD.pack(MAGIC, VERSION if identity else 1, sequence, len(removals)), identity]
    parts += [_RECORD.pack(ledger_id, each.since_ms, each.state) for ledger_id, each in removals.items()]
    data = b"".join(parts)
    return data + _DIGEST.pack(crc32c(data))


def parse(data: bytes, *, path: str = FILE_NAME, identity: bytes = b"") -> tuple[int, dict[int, QuarantineRecord]]:
    """(sequence number, removals by ledger id). Raises CorruptRecord, also for one of another bookie than `identity`.

    Where one of both is without an identity nothing is compared.
    """
    if len(data) < _HEAD.size + _DIGEST.size:
        raise CorruptRecord(f"{len(data)} bytes are less than an empty list", path=path, offset=len(data))
    magic, version, sequence, count = _HEAD.unpack_from(data)
    start = _HEAD.size + (IDENTITY_SIZE if version == VERSION else 0)
    end = len(data) - _DIGEST.size
    if magic != MAGIC or version not in (1, VERSION) or end != start + count * _RECORD.size:
        raise CorruptRecord("not a list of removed ledgers, or not all of it", path=path, offset=0)
    if _DIGEST.unpack_from(data, end)[0] != crc32c(data[:end]):
        raise CorruptRecord("the checksum does not match", path=path, offset=end)
    found = data[_HEAD.size : start]
    if identity and found and found != identity:
        raise CorruptRecord("it is the list of another bookie, or of another cluster", path=path, offset=_HEAD.size)
    try:
        removals = {
            ledger_id: QuarantineRecord(QuarantineState(state), since_ms)
            for ledger_id, since_ms, state in _RECORD.iter_unpack(data[start:end])
        }
    except ValueError as error:
        raise CorruptRecord(str(error), path=path, offset=start) from error
    return sequence, removals
