"""The batch functions in Python: the definition of correct, and fast where the work is uniform.

All integers on the wire and on disk are big-endian. A `buffer` argument is `bytes` unless said otherwise, because
slices of it are hashed and joined. Offsets are bytes from the start of the buffer. Numbers that a function returns as
a `Sequence[int]` are a `range` where they are equally spaced and a list or array otherwise.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import sys
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c

DIGEST_CRC32, DIGEST_HMAC, DIGEST_CRC32C, DIGEST_DUMMY = 1, 2, 3, 4
DIGEST_SIZES = {DIGEST_CRC32: 8, DIGEST_HMAC: 20, DIGEST_CRC32C: 4, DIGEST_DUMMY: 0}

_U32 = struct.Struct(">I")
_I64 = struct.Struct(">q")
_HEADER = struct.Struct(">qqqq")  # ledger, entry, last add confirmed, accumulated length
_IDS = struct.Struct(">qqq")
_ADD_FRAME = struct.Struct(">I24sqqqq")
_ADD_RESPONSE = struct.Struct(">IIiqq")


@dataclass(frozen=True, slots=True)
class Records:
    """Entry bodies one after the other, each behind its uint32 length.

    `starts`: offsets in `data` of the length words, ascending, and the end of the last record: count + 1 numbers, a
    `range` when all records have one size. The records are contiguous: record i ends where record i + 1 starts.
    """

    data: bytes
    starts: Sequence[int]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def size(self) -> int:
        """Bytes, length words included."""
        return self.starts[-1] - self.starts[0]

    def body(self, index: int) -> bytes:
        """The entry body of record `index`."""
        return self.data[self.starts[index] + 4 : self.starts[index + 1]]

    def slice(self, first: int, last: int) -> Records:
        """Records first..last-1, sharing the data."""
        return Records(self.data, self.starts[first : last + 1])

    def tobytes(self) -> bytes:
        """Exactly the records' bytes; `data` itself when nothing else is in it."""
        if self.starts[0] == 0 and self.starts[-1] == len(self.data):
            return self.data
        return self.data[self.starts[0] : self.starts[-1]]

    @staticmethod
    def of(bodies: Sequence[bytes]) -> Records:
        """Frame bodies that exist one by one (v3 requests, replay, tests)."""
        parts: list[bytes] = []
        starts = [0]
        for body in bodies:
            parts.append(_U32.pack(len(body)))
            parts.append(body)
            starts.append(starts[-1] + 4 + len(body))
        return Records(b"".join(parts), starts)


def crc32c(data: bytes, value: int = 0) -> int:
    """CRC-32C of `data`, continuing from the finished CRC `value`."""
    return google_crc32c.extend(value, bytes(data))


def scan_frames(buffer: bytes, start: int, frame_size_max: int) -> tuple[Sequence[int], int]:
    """Find the complete frames from `start` on: (offsets of their length words and the end of the last one, need).

    With no complete frame the offsets are `[start]`. `need`: bytes the frame at the end must have in all, its length
    word included; 0 when not even the length word is there; -1 when its length is 0 or makes the frame exceed
    `frame_size_max` (length word included). Raises ValueError when that is the first frame. Source: wire-protocol 1.2.
    """
    end = len(buffer)
    starts = [start]
    while end - start >= 4:
        size = _U32.unpack_from(buffer, start)[0] + 4
        if size == 4 or size > frame_size_max:
            if len(starts) > 1:
                return starts, -1
            raise ValueError(f"frame of {size - 4:,} bytes")
        if end - start < size:
            return starts, size
        start += size
        starts.append(start)
    return starts, 0


def scan_records(buffer: bytes, start: int, end: int, size_max: int) -> tuple[Sequence[int], str]:
    """Find the complete records in [start, end): (their starts and the end of the last, why it stopped).

    Reasons: "end" (exactly at `end`), "short" (a record is cut off by `end`), "zero", "negative" (length word with
    the top bit set), "large" (above `size_max`). Records are not looked into.
    """
    starts = [start]
    while end - start >= 4:
        size = _U32.unpack_from(buffer, start)[0]
        if size == 0:
            return starts, "zero"
        if size >= 1 << 31:
            return starts, "negative"
        if size > size_max:
            return starts, "large"
        if start + 4 + size > end:
            return starts, "short"
        start += 4 + size
        starts.append(start)
    return starts, "end" if start == end else "short"


def gather_adds(buffer: bytes, starts: Sequence[int], index: int) -> tuple[int, int, Sequence[int], Records, int]:
    """Gather the v2 ADD frames from frame `index` on that share header, key and ledger.

    `starts`: as from `scan_frames`. The caller has checked that frame `index` is an ADD with a body of at least 24
    bytes. Returns (index of the first frame not taken, ledger id, entry ids, records, greatest LAC).
    """
    at = starts[index]
    head = buffer[at + 4 : at + 36]  # header, key, ledger id
    ledger_id = _I64.unpack_from(buffer, at + 28)[0]
    entry_ids: list[int] = []
    parts: list[bytes] = []
    offsets = [0]
    lac = -(1 << 63)
    count = len(starts) - 1
    while index < count:
        at, end = starts[index], starts[index + 1]
        if end - at < 52 or buffer[at + 4 : at + 36] != head:
            break
        _, entry_id, entry_lac = _IDS.unpack_from(buffer, at + 28)
        entry_ids.append(entry_id)
        if entry_lac > lac:
            lac = entry_lac
        size = end - at - 28
        parts.append(_U32.pack(size))
        parts.append(buffer[at + 28 : end])
        offsets.append(offsets[-1] + 4 + size)
        index += 1
    return index, ledger_id, _as_range(entry_ids), Records(b"".join(parts), _as_range(offsets)), lac


def pack_add_frames(
    head: bytes,
    ledger_id: int,
    first_entry_id: int,
    last_add_confirmed: int,
    length: int,
    payloads: Sequence[bytes],
    digest_type: int,
    mac_key: bytes,
) -> tuple[bytes, Sequence[int], int]:
    """Package consecutive entries as v2 ADD frames: (frames, their starts and the end, ledger length after them).

    `head`: packet header and master key, 24 bytes. `length`: payload bytes of the ledger before the first of these.
    Source: wire-protocol 2.3, 4.1 to 4.3.
    """
    parts: list[bytes] = []
    starts = [0]
    overhead = 60 + DIGEST_SIZES[digest_type]
    entry_id = first_entry_id
    for payload in payloads:
        length += len(payload)
        header = _HEADER.pack(ledger_id, entry_id, last_add_confirmed, length)
        size = overhead + len(payload)
        parts.append(_U32.pack(size - 4))
        parts.append(head)
        parts.append(header)
        parts.append(digest(digest_type, mac_key, header, payload))
        parts.append(payload)
        starts.append(starts[-1] + size)
        entry_id += 1
    return b"".join(parts), _as_range(starts), length


def pack_add_responses(version: int, status: int, ledger_id: int, entry_ids: Sequence[int]) -> bytes:
    """v2 ADD responses with their length words. `version` 0 uses its own header form. Source: wire-protocol 2.4."""
    header = 1 if version == 0 else version << 24 | 1 << 16
    pack = _ADD_RESPONSE.pack
    return b"".join([pack(24, header, status, ledger_id, entry_id) for entry_id in entry_ids])


def scan_add_responses(buffer: bytes, starts: Sequence[int], index: int) -> tuple[int, int, int, Sequence[int]]:
    """Take the v2 ADD responses from frame `index` on that share ledger and status.

    The caller has checked that frame `index` is an ADD response. Returns (index of the first frame not taken, error
    code, ledger id, entry ids).
    """
    at = starts[index]
    same = buffer[at : at + 20]
    _, _, code, ledger_id, _ = _ADD_RESPONSE.unpack_from(buffer, at)
    entry_ids: list[int] = []
    count = len(starts) - 1
    while index < count:
        at = starts[index]
        if buffer[at : at + 20] != same:
            break
        entry_ids.append(_I64.unpack_from(buffer, at + 20)[0])
        index += 1
    return index, code, ledger_id, _as_range(entry_ids)


def verify_records(
    buffer: bytes,
    start: int,
    end: int,
    ledger_id: int,
    first_entry_id: int,
    count_max: int,
    digest_type: int,
    mac_key: bytes,
) -> tuple[Sequence[int], str]:
    """Verify consecutive entries of a ledger: (starts of the good records and the end of the last, problem).

    Stops without a problem at `end` or after `count_max` records. Problems: "" none, "short", "size" (too small for
    header and digest), "digest", "ids". Order of checks as in wire-protocol 4.4.
    """
    starts = [start]
    digest_size = DIGEST_SIZES[digest_type]
    entry_id = first_entry_id
    while start < end and len(starts) <= count_max:
        if end - start < 4:
            return starts, "short"
        stop = start + 4 + _U32.unpack_from(buffer, start)[0]
        if stop > end:
            return starts, "short"
        header_end = start + 36
        payload_start = header_end + digest_size
        if payload_start > stop:
            return starts, "size"
        expected = digest(digest_type, mac_key, buffer[start + 4 : header_end], buffer[payload_start:stop])
        if buffer[header_end:payload_start] != expected:
            return starts, "digest"
        if _IDS.unpack_from(buffer, start + 4)[:2] != (ledger_id, entry_id):
            return starts, "ids"
        start = stop
        starts.append(start)
        entry_id += 1
    return _as_range(starts), ""


def gather_payloads(buffer: bytes, starts: Sequence[int], header_size: int) -> tuple[bytes, array[int]]:
    """Join the payloads of records: (payloads, int32 offsets in native order, count + 1).

    `header_size`: bytes of a body before its payload (32 plus the digest). Raises OverflowError at 2 GiB.
    """
    skip = 4 + header_size
    data = b"".join([buffer[at + skip : end] for at, end in zip(starts, starts[1:], strict=False)])
    offsets = array("i", [0])
    total = 0
    for at, end in zip(starts, starts[1:], strict=False):
        total += end - at - skip
        offsets.append(total)
    return data, offsets


def pack_locations(log_id: int, position: int, starts: Sequence[int]) -> bytes:
    """Index slots, int64 big-endian, of records written to entry log `log_id` from file offset `position` on.

    A location is `log_id << 32 | offset of the body`, four bytes behind the length word. Source: storage 3.2.
    """
    base = (log_id << 32) + position + 4 - starts[0]
    locations = array("q", [base + start for start in starts[:-1]])
    if sys.byteorder == "little":
        locations.byteswap()
    return locations.tobytes()


def digest(digest_type: int, mac_key: bytes, header: bytes, payload: bytes) -> bytes:
    """The digest bytes over header and payload. Source: wire-protocol 4.2 and 4.3."""
    if digest_type == DIGEST_CRC32C:
        return _U32.pack(google_crc32c.extend(google_crc32c.value(header), payload))
    if digest_type == DIGEST_CRC32:
        return _I64.pack(zlib.crc32(payload, zlib.crc32(header)))
    if digest_type == DIGEST_HMAC:
        return hmac.new(mac_key, header + payload, hashlib.sha1).digest()
    return b""


def _as_range(numbers: list[int]) -> Sequence[int]:
    """The same numbers as a range when they are equally spaced."""
    if len(numbers) < 2:
        return numbers
    step = numbers[1] - numbers[0]
    if step and numbers[-1] - numbers[0] == step * (len(numbers) - 1):
        candidate = range(numbers[0], numbers[-1] + (1 if step > 0 else -1), step)
        if list(candidate) == numbers:
            return candidate
    return numbers
