"""The file format of `removedLedgers`: ledgers in quarantine, pinned by an operator, or deleted.

Every ledger directory has a copy. The copy with the greatest sequence number counts. A copy that is cut off or changed,
or of another bookie, does not count. Source: storage 7.2.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Mapping

from msgspec import Struct

from bookies.errors import CorruptRecord
from bookies.kernels import crc32c

FILE_NAME = "removedLedgers"
MAGIC = b"BKRL"
VERSION = 2  # includes the identity of the bookie; version 1 does not
IDENTITY_SIZE = 16

_HEAD = struct.Struct(">4sIQI")
_RECORD = struct.Struct(">qqB")
_DIGEST = struct.Struct(">I")


class QuarantineState(enum.IntEnum):
    """The state of a ledger's removal. A surplus ledger exists, but none of its ensembles contains this bookie."""

    QUARANTINED = 1
    SURPLUS = 2  # also in quarantine
    PINNED = 3  # an operator brought it back: it is never collected
    DELETED = 4


class QuarantineRecord(Struct, frozen=True):
    """The state of one ledger. `since_ms`: wall-clock time at which the ledger entered this state, milliseconds."""

    state: QuarantineState
    since_ms: int

    @property
    def is_quarantined(self) -> bool:
        return self.state in (QuarantineState.QUARANTINED, QuarantineState.SURPLUS)


def identity_of(bookie: str, instance_id: str | None) -> bytes:
    """Return bytes that identify one bookie of one cluster."""
    return hashlib.sha256(f"{bookie}\0{instance_id}".encode()).digest()[:IDENTITY_SIZE]


def pack(sequence: int, removals: Mapping[int, QuarantineRecord], identity: bytes = b"") -> bytes:
    """Return the whole file with the removals in the given order. Without an identity it has version 1."""
    parts = [_HEAD.pack(MAGIC, VERSION if identity else 1, sequence, len(removals)), identity]
    parts += [_RECORD.pack(ledger_id, record.since_ms, record.state) for ledger_id, record in removals.items()]
    data = b"".join(parts)
    return data + _DIGEST.pack(crc32c(data))


def parse(data: bytes, *, path: str = FILE_NAME, identity: bytes = b"") -> tuple[int, dict[int, QuarantineRecord]]:
    """Return (sequence number, removals by ledger id). Raises CorruptRecord, also for a file of another bookie.

    The identities are compared only if both the file and the caller have one.
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
    file_identity = data[_HEAD.size : start]
    if identity and file_identity and file_identity != identity:
        raise CorruptRecord("the list of another bookie, or of another cluster", path=path, offset=_HEAD.size)
    try:
        removals = {
            ledger_id: QuarantineRecord(QuarantineState(state), since_ms)
            for ledger_id, since_ms, state in _RECORD.iter_unpack(data[start:end])
        }
    except ValueError as error:
        raise CorruptRecord(str(error), path=path, offset=start) from error
    return sequence, removals
