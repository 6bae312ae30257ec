"""The batch functions in Python: the definition of correct, and fast where the work is uniform.

All integers on the wire and on disk are big-endian. A `buffer` argument is `bytes` unless documented otherwise,
because slices of it are hashed and joined. Offsets are bytes from the start of the buffer. Numbers that a function
returns as a `Sequence[int]` are a `range` where they are equally spaced and a list or array otherwise.
"""

from __future__ import annotations

import hmac
import itertools
import operator
import struct
import sys
import zlib
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Generic, TypeVar

import google_crc32c
from msgspec import Struct

DIGEST_CRC32, DIGEST_HMAC, DIGEST_CRC32C, DIGEST_DUMMY = 1, 2, 3, 4
DIGEST_SIZES = {DIGEST_CRC32: 8, DIGEST_HMAC: 20, DIGEST_CRC32C: 4, DIGEST_DUMMY: 0}

_U32 = struct.Struct(">I")
_I64 = struct.Struct(">q")
_HEADER = struct.Struct(">qqqq")  # ledger, entry, last add confirmed, accumulated length
_IDS = struct.Struct(">qqq")
_ADD_FRAME = struct.Struct(">I24sqqqq")
_ADD_RESPONSE = struct.Struct(">IIiqq")
_TWO_I64 = struct.Struct(">qq")
_UNIFORM_MIN = 8  # frames of one size; below this number a loop is as fast as work by columns
_COLUMNS_MIN = 48  # the same where many columns are read or written
# adds checked, and stretches of one ledger among them from which on they count as mixed
_MIXED_LOOK, _MIXED_MIN = 16, 8

_LENGTH_OFFSET = 4 + 24  # offset of the accumulated length, after the record's length word

T = TypeVar("T")

# Bound once; otherwise looked up per entry.
_u32, _u32_at, _i64_at, _two_i64_at = _U32.pack, _U32.unpack_from, _I64.unpack_from, _TWO_I64.unpack_from
_ids_at = _IDS.unpack_from


class Records(Struct, frozen=True):
    """Entry bodies one after the other, each after its uint32 length.

    `starts`: offsets in `data` of the length words, ascending, and the end of the last record: count + 1 numbers, a
    `range` when all records have one size. The records are contiguous: record i ends where record i + 1 starts.
    """

    data: bytes
    starts: Sequence[int]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def size(self) -> int:
        """Return the bytes, length words included."""
        return self.starts[-1] - self.starts[0]

    def body(self, index: int) -> bytes:
        """Return the entry body of record `index`."""
        return self.data[self.starts[index] + 4 : self.starts[index + 1]]

    def slice(self, first: int, last: int) -> Records:
        """Return records first..last-1, sharing the data."""
        return Records(self.data, self.starts[first : last + 1])

    def alone(self) -> Records:
        """Return the same records in a buffer of their own."""
        first, starts = self.starts[0], self.starts
        if isinstance(starts, range):
            return Records(self.tobytes(), range(0, starts.stop - first, starts.step))
        return Records(self.tobytes(), array("q", [at - first for at in starts]))

    def tobytes(self) -> bytes:
        """Return exactly the records' bytes; `data` itself when it contains nothing else."""
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
    """Return the CRC-32C of `data`, continuing from the finished CRC `value`."""
    return int(google_crc32c.extend(value, bytes(data)))


def scan_frames(buffer: bytes, start: int, frame_size_max: int) -> tuple[Sequence[int], int]:
    """Find the complete frames from `start` on: (offsets of their length words and the end of the last one, need).

    With no complete frame the offsets are `[start]`. `need`: bytes the frame at the end must have in all, its length
    word included; 0 when not even the length word is there; -1 when its length is 0 or makes the frame exceed
    `frame_size_max` (length word included). Raises ValueError when that is the first frame. Source: wire-protocol 1.2.
    """
    end = len(buffer)
    uniform = _uniform(buffer, start, end, frame_size_max)
    starts = list(uniform)
    at = starts[-1]
    while end - at >= 4:
        size = _u32_at(buffer, at)[0] + 4
        if size == 4 or size > frame_size_max:
            if at > start:
                return _shortest(uniform, starts), -1
            raise ValueError(f"frame of {size - 4:,} bytes")
        if end - at < size:
            return _shortest(uniform, starts), size
        at += size
        starts.append(at)
    return _shortest(uniform, starts), 0


def scan_records(buffer: bytes, start: int, end: int, size_max: int) -> tuple[Sequence[int], str]:
    """Find the complete records in [start, end): (their starts and the end of the last, why it stopped).

    Reasons: "end" (exactly at `end`), "short" (a record is cut off by `end`), "zero", "negative" (length word with
    the top bit set), "large" (above `size_max`). Records are not looked into.
    """
    uniform = _uniform(buffer, start, end, min(size_max, 0x7FFF_FFFF) + 4)
    starts = list(uniform)
    at = starts[-1]
    while end - at >= 4:
        size = _u32_at(buffer, at)[0]
        if size == 0:
            reason = "zero"
        elif size >= 1 << 31:
            reason = "negative"
        elif size > size_max:
            reason = "large"
        elif end - at < 4 + size:
            reason = "short"
        else:
            at += 4 + size
            starts.append(at)
            continue
        return _shortest(uniform, starts), reason
    return _shortest(uniform, starts), "end" if at == end else "short"


def gather_adds(
    buffer: bytes, starts: Sequence[int], index: int
) -> tuple[int, array[int], Sequence[int], Records, int]:
    """Gather the v2 ADD frames from frame `index` on that share header and key.

    `starts`: as from `scan_frames`. The caller has checked that frame `index` is an ADD with a body of at least 24
    bytes. Returns (index of the first frame not consumed, the table, entry ids and records of `Adds`, least of all
    ledger and entry ids).
    """
    first = starts[index]
    head = buffer[first + 4 : first + 28]
    starts_with = buffer.startswith
    ends: Sequence[int]
    if isinstance(starts, range):
        taken = len(starts) - 1 - index
        for count, at in enumerate(starts[index:-1]):
            if not starts_with(head, at + 4):
                taken = count
                break
        size = starts.step - 24
        frames = starts[index : index + taken]
        data = _U32.pack(size - 4).join([b"", *[buffer[at + 28 : at + starts.step] for at in frames]])
        ends = range(0, len(data) + 1, size)
        ledger_ids, entry_ids, lacs = (_column(data, offset, size, taken) for offset in (4, 12, 20))
    else:
        parts: list[bytes] = []
        ids: list[tuple[int, int, int]] = []
        for at, end in pairwise(starts[index:]):
            if end - at < 52 or not starts_with(head, at + 4):
                break
            ids.append(_ids_at(buffer, at + 28))
            parts += _u32(end - at - 28), buffer[at + 28 : end]
        data = b"".join(parts)
        taken = len(ids)
        ends = _as_range_or_array(list(accumulate([4 + len(body) for body in parts[1::2]], initial=0)))
        ledger_ids, entry_ids, lacs = map(list, zip(*ids, strict=True))
    table = array("q")
    start = 0
    while start < taken:
        ledger_id = ledger_ids[start]
        stop = start + 1
        while stop < taken and ledger_ids[stop] == ledger_id:
            stop += 1
        span = entry_ids[start:stop]
        table.extend((ledger_id, stop, max(lacs[start:stop]), span[0], _step_of(span), max(span)))
        start = stop
    first_id, step = table[3], table[4] if len(table) == 6 else 0
    all_ids = range(first_id, first_id + step * taken, step) if step else array("q", entry_ids)
    return index + taken, table, all_ids, Records(data, ends), min(min(ledger_ids), min(entry_ids))


def _step_of(numbers: list[int]) -> int:
    """Return the step of equally spaced numbers of one sign, 1 for a single one, 0 for others."""
    spaced = _as_range(numbers)
    return spaced.step if isinstance(spaced, range) and (spaced[0] < 0) == (spaced[-1] < 0) else 0


def _as_range_or_array(numbers: list[int]) -> Sequence[int]:
    spaced = _as_range(numbers)
    return spaced if isinstance(spaced, range) else array("q", numbers)


def find_ledger(runs: Sequence[array[int]], first: int, ledger_id: int) -> list[int]:
    """Find a ledger in runs of adds, from run number `first` on: `run << 32 | index`, in their order.

    `runs`: the ledger ids of each.
    """
    positions: list[int] = []
    for number in range(first, len(runs)):
        ledger_ids, index = runs[number], -1
        for _ in range(ledger_ids.count(ledger_id)):
            index = ledger_ids.index(ledger_id, index + 1)
            positions.append(number << 32 | index)
    return positions


class SortedEntries:
    """All entries of some runs of adds, ascending by ledger and entry; of several copies of an entry the last.

    `runs`: (ledger ids, entry ids, records) of each, arrays "q", with an array of starts, which must not change
    meanwhile. Raises ValueError where their lengths differ.
    """

    def __init__(self, runs: Sequence[tuple[array[int], array[int], Records]]) -> None:
        newest: dict[tuple[int, int], tuple[Records, int]] = {}
        for ledger_ids, entry_ids, records in runs:
            if not len(ledger_ids) == len(entry_ids) == len(records.starts) - 1:
                raise ValueError("a ledger id and an entry id for each record")
            for index, ids in enumerate(zip(ledger_ids, entry_ids, strict=True)):
                newest[ids] = records, index
        self._entries = sorted(newest.items(), key=operator.itemgetter(0))

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, first: int, size_max: int) -> tuple[Records, array[int], array[int]]:
        """Copy entries from entry number `first` on: (records, ledger ids, entry ids), arrays again.

        As many as fit into `size_max` bytes, at least one. Raises IndexError when there is none; ValueError for a
        record whose header names another entry.
        """
        if not 0 <= first < len(self._entries):
            raise IndexError("nothing is left")
        pieces: list[bytes] = []
        starts, size = array("q", [0]), 0
        for ids, (records, index) in itertools.islice(self._entries, first, None):
            at, end = records.starts[index], records.starts[index + 1]
            if pieces and size + end - at > size_max:
                break
            if not 0 <= at <= end - 20 <= len(records.data) - 20 or _two_i64_at(records.data, at + 4) != ids:
                raise ValueError("a record that is another entry")
            pieces.append(records.data[at:end])
            size += end - at
            starts.append(size)
        taken = self._entries[first : first + len(pieces)]
        ledger_ids, entry_ids = (array("q", [ids[column] for ids, _ in taken]) for column in (0, 1))
        return Records(b"".join(pieces), starts), ledger_ids, entry_ids


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
    overhead = 60 + DIGEST_SIZES[digest_type]
    sizes = list(map(len, payloads))
    count = len(sizes)
    if count >= _COLUMNS_MIN and sizes.count(sizes[0]) == count and digest_type in (DIGEST_CRC32, DIGEST_CRC32C):
        header = head, ledger_id, first_entry_id, last_add_confirmed, length
        frames = _pack_uniform_adds(header, payloads, sizes[0], digest_type)
        size = overhead + sizes[0]
        return frames, range(0, count * size + 1, size), length + count * sizes[0]
    parts: list[bytes] = []
    starts = [0]
    end = 0
    for entry_id, payload in enumerate(payloads, first_entry_id):
        length += len(payload)
        size = overhead + len(payload)
        front = _ADD_FRAME.pack(size - 4, head, ledger_id, entry_id, last_add_confirmed, length)
        parts += front, digest(digest_type, mac_key, front[28:], payload), payload
        end += size
        starts.append(end)
    return b"".join(parts), _as_range(starts), length


def _pack_uniform_adds(
    header: tuple[bytes, int, int, int, int], payloads: Sequence[bytes], payload_size: int, digest_type: int
) -> bytes:
    """Package frames of one size: one template between the payloads, then the columns that differ from entry to
    entry."""
    head, ledger_id, first_entry_id, last_add_confirmed, length = header
    count = len(payloads)
    entry_ids = array("q", range(first_entry_id, first_entry_id + count))
    if payload_size:
        lengths = array("q", range(length + payload_size, length + payload_size * count + 1, payload_size))
    else:
        lengths = array("q", [length]) * count
    headers = bytearray(_HEADER.pack(ledger_id, 0, last_add_confirmed, 0) * count)
    _set_column(headers, 8, 32, entry_ids)
    _set_column(headers, 24, 32, lengths)
    starts = range(0, 32 * count, 32)
    packed_headers = bytes(headers)
    crc = google_crc32c.value if digest_type == DIGEST_CRC32C else zlib.crc32
    digests = array("I", [crc(packed_headers[at : at + 32] + data) for at, data in zip(starts, payloads, strict=True)])
    gap = DIGEST_SIZES[digest_type]
    size = 60 + gap + payload_size
    template = _ADD_FRAME.pack(size - 4, head, ledger_id, 0, last_add_confirmed, 0) + bytes(gap)
    frames = bytearray(template.join([b"", *payloads]))
    _set_column(frames, 36, size, entry_ids)
    _set_column(frames, 52, size, lengths)
    _set_column(frames, 56 + gap, size, digests)
    return bytes(frames)


def pack_answers(version: int, status: int, table: array[int], entry_ids: Sequence[int]) -> bytes:
    """Return v2 ADD responses with their length words, one for each entry of a table of stretches (see `Adds`).

    `version` 0 uses its own header form. Source: wire-protocol 2.4.
    """
    header = 1 if version == 0 else version << 24 | 1 << 16
    frames: list[bytes] = []
    start = 0
    for at in range(0, len(table), 6):
        ledger_id, stop, _, first, step, _ = table[at : at + 6]
        if not start <= stop <= len(entry_ids):
            raise ValueError("stretches that do not cover the entries in order")
        ids = range(first, first + step * (stop - start), step) if step else entry_ids[start:stop]
        frames.append(_pack_stretch_answers(header, status, ledger_id, ids))
        start = stop
    return b"".join(frames)


def _pack_stretch_answers(header: int, status: int, ledger_id: int, entry_ids: Sequence[int]) -> bytes:
    if len(entry_ids) < _COLUMNS_MIN:
        pack = _ADD_RESPONSE.pack
        return b"".join([pack(24, header, status, ledger_id, entry_id) for entry_id in entry_ids])
    responses = bytearray(_ADD_RESPONSE.pack(24, header, status, ledger_id, 0) * len(entry_ids))
    _set_column(responses, 20, 28, array("q", entry_ids))
    return bytes(responses)


def scan_add_responses(
    buffer: bytes, starts: Sequence[int], index: int
) -> tuple[int, list[tuple[int, int, Sequence[int]]]]:
    """Parse the v2 ADD responses from frame `index` on that share the packet header.

    The caller has checked that frame `index` is an ADD response. Returns (index of the first frame not consumed,
    (error code, ledger id, entry ids) for each stretch with one code of one ledger).
    """
    last = _end_of_responses(buffer, starts, index)
    runs: list[tuple[int, int, Sequence[int]]] = []
    while index < last:
        at = starts[index]
        same = buffer[at : at + 20]
        _, _, code, ledger_id, _ = _ADD_RESPONSE.unpack_from(buffer, at)
        count = last - index
        if not _are_responses(buffer, at, count, same):
            starts_with = buffer.startswith
            for taken in range(1, count):
                if not starts_with(same, at + 28 * taken):
                    count = taken
                    break
        # They follow each other and are of one size: the length word is part of the compared bytes.
        runs.append((code, ledger_id, _as_range(_column(buffer[at : at + 28 * count], 20, 28, count))))
        index += count
    return last, runs


def _end_of_responses(buffer: bytes, starts: Sequence[int], index: int) -> int:
    """Return the first frame from `index` on that does not begin like that one, with its length and packet header."""
    same, starts_with = buffer[starts[index] : starts[index] + 8], buffer.startswith
    for at in starts[index:-1]:
        if not starts_with(same, at):
            break
        index += 1
    return index


def _are_responses(buffer: bytes, first: int, count: int, same: bytes) -> bool:
    """Report whether `count` add responses from offset `first` on differ only in the entry id; False if they are
    few."""
    end = first + 28 * count
    if count < _COLUMNS_MIN or not buffer.startswith(same, first + 28) or not buffer.startswith(same, end - 28):
        return False
    responses = bytearray(buffer[first:end])
    for offset in range(20, 28):
        responses[offset::28] = bytes(count)
    return responses == (same + bytes(8)) * count


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
    uniform = _uniform(buffer, start, end, end - start)[: count_max + 1]
    is_all = len(uniform) > count_max or uniform[-1] == end
    if is_all and _are_entries(buffer, uniform, ledger_id, first_entry_id, digest_type):
        return uniform, ""
    starts = [start]
    digest_size = DIGEST_SIZES[digest_type]
    entry_id = first_entry_id
    while start < end and len(starts) <= count_max:
        if end - start < 4:
            return starts, "short"
        stop = start + 4 + _u32_at(buffer, start)[0]
        if stop > end:
            return starts, "short"
        header_end = start + 36
        payload_start = header_end + digest_size
        if payload_start > stop:
            return starts, "size"
        expected = digest(digest_type, mac_key, buffer[start + 4 : header_end], buffer[payload_start:stop])
        if buffer[header_end:payload_start] != expected:
            return starts, "digest"
        if _two_i64_at(buffer, start + 4) != (ledger_id, entry_id):
            return starts, "ids"
        start = stop
        starts.append(start)
        entry_id += 1
    return _as_range(starts), ""


def _are_entries(buffer: bytes, starts: range, ledger_id: int, first_entry_id: int, digest_type: int) -> bool:
    """Report whether all records of one size are good; False does not tell which one is bad, and why."""
    count, size, gap = len(starts) - 1, starts.step, DIGEST_SIZES[digest_type]
    if count < _COLUMNS_MIN or size < 36 + gap or digest_type not in (DIGEST_CRC32, DIGEST_CRC32C):
        return False
    data = buffer[starts[0] : starts[-1]]
    if _column(data, 4, size, count) != [ledger_id] * count:
        return False
    if _column(data, 12, size, count) != list(range(first_entry_id, first_entry_id + count)):
        return False
    crc = google_crc32c.value if digest_type == DIGEST_CRC32C else zlib.crc32
    checksums = [crc(buffer[at + 4 : at + 36] + buffer[at + 36 + gap : at + size]) for at in starts[:-1]]
    # As int64 with the four bytes before it: zeros in CRC32, the low half of the accumulated length in CRC32C.
    if digest_type == DIGEST_CRC32:
        return _column(data, 36, size, count) == checksums
    return [number & 0xFFFF_FFFF for number in _column(data, 32, size, count)] == checksums


def gather_payloads(parts: Sequence[tuple[bytes, Sequence[int]]], header_size: int) -> tuple[bytes, array[int]]:
    """Join the payloads of records in several buffers: (payloads, int32 offsets in native order, count + 1).

    `parts`: (buffer, starts) each; `header_size`: bytes of a body before its payload (32 plus the digest). Raises
    OverflowError at 2 GiB.
    """
    skip = 4 + header_size
    payloads = [buffer[at + skip : end] for buffer, starts in parts for at, end in pairwise(starts)]
    return b"".join(payloads), array("i", accumulate(map(len, payloads), initial=0))


class Frame:
    """A buffer of a known size that is filled from its front by the caller, and then becomes `bytes`.

    `rest` must not be written after `take`.
    """

    def __init__(self, size: int) -> None:
        self._data = bytearray(size)
        self._filled = 0

    @property
    def missing(self) -> int:
        """Return the number of bytes missing."""
        return len(self._data) - self._filled

    @property
    def filled(self) -> int:
        """Return the number of bytes filled."""
        return self._filled

    def rest(self) -> memoryview:
        """Return the place of the next bytes."""
        return memoryview(self._data)[self._filled :]

    def advance(self, count: int) -> None:
        """Count `size` bytes written to `rest`. Raises ValueError for more than there was room for."""
        if not 0 <= count <= self.missing:
            raise ValueError(f"{count} bytes where {self.missing} are missing")
        self._filled += count

    def take(self) -> bytes:
        """Return the whole buffer. Raises ValueError before it is full."""
        if self.missing:
            raise ValueError(f"{self.missing} bytes are missing")
        return bytes(self._data)


def entries(
    entry_type: type[T], ledger_id: int, first_entry_id: int, data: bytes, starts: Sequence[int], header_size: int
) -> Iterator[T]:
    """Iterate over records as tuples (entry id, payload, the ledger's length up to here, ledger id), built lazily.

    `entry_type`: a named tuple of these four; `starts`: as of `Records`; `header_size`: bytes of a body before its
    payload, at least 32.
    """
    assert issubclass(entry_type, tuple)
    assert header_size >= _HEADER.size
    skip = 4 + header_size
    payloads = [data[start + skip : end] for start, end in pairwise(starts)]
    lengths = [_i64_at(data, start + _LENGTH_OFFSET)[0] for start in starts[:-1]]
    fields = zip(itertools.count(first_entry_id), payloads, lengths, itertools.repeat(ledger_id), strict=False)
    # Measured 2x faster than calling entry_type(...): no Python frame per entry.
    return map(tuple.__new__, itertools.repeat(entry_type), fields)


class Steps(Generic[T]):
    """An asynchronous iteration over items most of which are available. A base class; subclasses define `_more`.

    `_items`: an iterator over the available ones.
    """

    def __init__(self) -> None:
        self._items: Iterator[T] = iter(())

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        for item in self._items:
            return item
        return await self._more()

    async def _more(self) -> T:
        """Fetch more, keep the others in `_items`, return the first. Raises StopAsyncIteration at the end."""
        raise NotImplementedError


def cut_runs(buffer: bytes, starts: Sequence[int]) -> list[tuple[int, int, int]] | None:
    """Cut records into runs of consecutive entries of one ledger: (ledger id, first entry id, count), in record order.

    None if a record is too short for its ids or one of them is negative. `starts` as in `Records`.
    """
    if len(starts) > 1 and min(map(operator.sub, starts[1:], starts)) < 20:
        return None
    unpack = _two_i64_at
    pairs = [unpack(buffer, start + 4) for start in starts[:-1]]
    if pairs and min(min(pairs)[0], min(map(operator.itemgetter(1), pairs))) < 0:
        return None
    runs: list[tuple[int, int, int]] = []
    at = 0
    for index in range(1, len(pairs) + 1):
        ledger_id, entry_id = pairs[index - 1]
        if index == len(pairs) or pairs[index] != (ledger_id, entry_id + 1):
            runs.append((ledger_id, pairs[at][1], index - at))
            at = index
    return runs


def greatest_lac(buffer: bytes, starts: Sequence[int]) -> int:
    """Return the greatest LAC in the headers of entries; -1 if none has one. An impossible one does not count."""
    unpack = _two_i64_at
    pairs = [unpack(buffer, at + 12) for at, end in itertools.pairwise(starts) if end - at >= 28]
    lacs: list[int] = [lac for entry_id, lac in pairs if lac < entry_id]
    return max([-1, *lacs])


def pack_locations(log_id: int, position: int, starts: Sequence[int]) -> bytes:
    """Return index slots, int64 big-endian, of records written to entry log `log_id` from file offset `position` on.

    A location is `log_id << 32 | offset of the body`, four bytes after the length word. Source: storage 3.2.
    """
    base = (log_id << 32) + position + 4 - starts[0]
    locations = array("q", [base + start for start in starts[:-1]])
    if sys.byteorder == "little":
        locations.byteswap()
    return locations.tobytes()


def digest(digest_type: int, mac_key: bytes, header: bytes, payload: bytes) -> bytes:
    """Return the digest bytes over header and payload. Source: wire-protocol 4.2 and 4.3."""
    if digest_type == DIGEST_CRC32C:
        return _U32.pack(google_crc32c.extend(google_crc32c.value(header), payload))
    if digest_type == DIGEST_CRC32:
        return _I64.pack(zlib.crc32(payload, zlib.crc32(header)))
    if digest_type == DIGEST_HMAC:
        return hmac.digest(mac_key, header + payload, "sha1")
    return b""


def _uniform(buffer: bytes, start: int, end: int, size_max: int) -> range:
    """Return the starts, and the end, of the records of one size at the beginning of [start, end).

    `range(start, start + 1)` unless all complete ones are of one size, or when the first is incomplete or above
    `size_max` (length word included).
    """
    none = range(start, start + 1)
    if end - start < 4:
        return none
    word = buffer[start : start + 4]
    size = _U32.unpack(word)[0] + 4
    count = (end - start) // size
    if size == 4 or size > size_max or count < _UNIFORM_MIN:
        return none
    last = start + (count - 1) * size
    if buffer[start + size : start + size + 4] != word or buffer[last : last + 4] != word:
        return none
    for offset in range(4):
        column = buffer[start + offset : start + count * size : size]
        if column.count(word[offset]) != count:
            return none
    return range(start, start + count * size + 1, size)


def _shortest(uniform: range, starts: list[int]) -> Sequence[int]:
    return uniform if len(uniform) == len(starts) > 1 else starts


def _column(data: bytes, offset: int, step: int, count: int) -> list[int]:
    """Return the int64 at `offset` of every record of `step` bytes, the number of records being `count`."""
    column = bytearray(8 * count)
    for byte in range(8):
        column[byte::8] = data[offset + byte :: step]
    numbers = array("q", bytes(column))
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tolist()


def _set_column(records: bytearray, offset: int, step: int, numbers: array[int]) -> None:
    """Write `numbers`, big-endian, at `offset` of every record of `step` bytes."""
    width = numbers.itemsize
    column = array(numbers.typecode, numbers)
    if sys.byteorder == "little":
        column.byteswap()
    data = column.tobytes()
    for byte in range(width):
        records[offset + byte :: step] = data[byte::width]


def _as_range(numbers: list[int]) -> Sequence[int]:
    """Return the same numbers as a range when they are equally spaced."""
    if len(numbers) < 2:
        return range(numbers[0], numbers[0] + 1) if numbers else numbers
    step = numbers[1] - numbers[0]
    if step and numbers[-1] - numbers[0] == step * (len(numbers) - 1):
        candidate = range(numbers[0], numbers[-1] + (1 if step > 0 else -1), step)
        if list(candidate) == numbers:
            return candidate
    return numbers
