"""Record sets: many records in one entry, as columns, which a codec may compress.

docs/reference/formats/record-set.md has the layout. `kernels.SetBuilder` collects the records of a set.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bookies.encoding.compression import NAMES, NONE, check_library, compress, decompress
from bookies.encoding.envelope import Record, pack_headers
from bookies.errors import InvalidArgument, LogRecordCorrupt
from bookies.kernels import SetBuilder, cut_column, offsets_of
from bookies.kernels.record_sets import HAS_HEADERS, HAS_KEY, HAS_TIMESTAMP, HAS_VALUE, MIXED, PLAIN, TIMES, Columns

MAGIC, VERSION = b"bks", 1
SET_SIZE = 64 << 10  # bytes of the columns of a set, unless a single record is larger
SIZE_MAX = 64 << 20  # the same in any set: a reader allocates no more
_front = struct.Struct(">3sBBBxxIIq")  # magic, version, codec, flags, records, bytes of the columns, time in us
HEADER_SIZE = _front.size
_FLAGS = HAS_KEY | HAS_TIMESTAMP | HAS_HEADERS | HAS_VALUE | TIMES | MIXED
CODECS = NAMES[1:]  # names that a log's setting may have


def codec_of(name: str | None) -> int:
    """Return the number of a codec; None: no compression. Raises `InvalidArgument`, `ConfigError` (no library)."""
    if name is None:
        return NONE
    if name not in CODECS:
        raise InvalidArgument(f"compression={name!r}: expected one of {', '.join(CODECS)}, or None")
    codec = NAMES.index(name)
    check_library(codec)
    return codec


# -- to entries ------------------------------------------------------------------------------------------------------


def pack_set(columns: Columns, codec: int) -> bytes:
    """Return a set as an entry; without compression if that would not make it smaller. Raises `InvalidArgument`."""
    flags, count, time_us, body = columns
    if len(body) > SIZE_MAX:
        raise InvalidArgument(f"the record has {len(body):,} bytes; a record set may have {SIZE_MAX:,}")
    stored = compress(body, codec)
    if len(stored) >= len(body):
        codec, stored = NONE, body
    return _front.pack(MAGIC, VERSION, codec, flags, count, len(body), time_us) + stored


def pack_sets(records: Iterable[Record], codec: int, time_us: int, size_max: int = SET_SIZE) -> list[tuple[int, bytes]]:
    """Return records as sets: of each the number of records, and the entry. `time_us`: of the sets."""
    builder = SetBuilder(size_max)
    sets: list[tuple[int, bytes]] = []

    def close() -> None:
        if len(builder):
            columns = builder.take()
            sets.append((columns[1], pack_set(columns, codec)))

    for value, key, headers, record_us in records:
        blob = None if headers is None else pack_headers(headers)
        if builder.add(value, key, blob, record_us) is None:
            close()
            builder.begin(sets, time_us)
            builder.add(value, key, blob, record_us)
    close()
    return sets


# -- from entries ----------------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """The columns of a set, a list for each; None: no record has it. `headers`: packed."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[bytes | None] | None
    times: Sequence[int | None] | None


class RecordSet:
    """The records of one entry. `time_us`: of those without a time of their own, microseconds since 1970.

    Made by `parse_set`. Every method raises `LogRecordCorrupt` if a length is outside. `where`: the end of messages.
    """

    where = ""

    def __init__(self, flags: int, count: int, time_us: int, data: bytes, start: int) -> None:
        self.flags = flags
        self.time_us = time_us
        self._count = count
        self._data = data
        self._start = start  # of the columns in the data

    def __len__(self) -> int:
        return self._count

    def values(self) -> Sequence[bytes | None]:
        """Return the values."""
        if self.flags != PLAIN:
            return self.rows().values
        at = self._start
        try:
            values, end = cut_column(self._data, at, self._count, at + 4 * self._count)
        except ValueError as error:
            raise self._damaged(f"the record set of {self._count:,} records is damaged: {error}") from None
        self._check_end(end)
        return values

    def rows(self) -> Rows:
        """Return all columns."""
        flags = self.flags
        if flags == PLAIN:
            return Rows(self.values(), None, None, [self.time_us] * self._count)
        bounds = self.bounds()
        bits = self.bits()
        columns = [
            None
            if offsets is None
            else [
                self._data[offsets[index] : offsets[index + 1]] if has & bit else None for index, has in enumerate(bits)
            ]
            for bit, offsets in zip((HAS_VALUE, HAS_KEY, HAS_HEADERS), bounds, strict=True)
        ]
        times = [time_us if has & HAS_TIMESTAMP else None for time_us, has in zip(self.times(), bits, strict=True)]
        return Rows(columns[0] or (), columns[1], columns[2], times if flags & HAS_TIMESTAMP else None)

    def bits(self) -> bytes:
        """Return what each record has: the sum of its flags."""
        if not self.flags & MIXED:
            return bytes([self.flags & ~TIMES]) * self._count
        self._check_size()
        return self._data[self._start : self._start + self._count]

    def times(self) -> Sequence[int]:
        """Return the time of each record; that of the set for one without."""
        if not self.flags & TIMES:
            return array("q", [self.time_us]) * self._count
        self._check_size()
        at = self._start + (self._count if self.flags & MIXED else 0)
        times = array("q", self._data[at : at + 8 * self._count])
        if sys.byteorder == "little":
            times.byteswap()
        return times

    def bounds(self) -> tuple[array[int], array[int] | None, array[int] | None]:
        """Return the offsets in `data` of values, keys and headers, and of the end of each column; None: none."""
        self._check_size()
        count, flags = self._count, self.flags
        at = self._start + (count if flags & MIXED else 0) + (8 * count if flags & TIMES else 0)
        columns = (flags & HAS_KEY, flags & HAS_HEADERS, HAS_VALUE)
        end = at + 4 * count * sum(map(bool, columns))
        bounds: list[array[int] | None] = []
        try:
            for bit in columns:
                bounds.append(offsets_of(self._data, at, count, end) if bit else None)
                if bit:
                    at, end = at + 4 * count, bounds[-1][-1]  # type: ignore[index]
        except ValueError as error:
            raise self._damaged(f"the record set of {count:,} records is damaged: {error}") from None
        self._check_end(end)
        keys, headers, values = bounds
        assert values is not None
        return values, keys, headers

    @property
    def data(self) -> bytes:
        """Return the bytes that `bounds` refers to."""
        return self._data

    def _check_size(self) -> None:
        rows = 1 if self.flags & MIXED else 0
        rows += 8 if self.flags & TIMES else 0
        rows += 4 * (1 + bool(self.flags & HAS_KEY) + bool(self.flags & HAS_HEADERS))
        if self._start + rows * self._count > len(self._data):
            raise self._damaged(f"the record set is too short for {self._count:,} records")

    def _damaged(self, text: str) -> LogRecordCorrupt:
        return LogRecordCorrupt(text + self.where)

    def _check_end(self, end: int) -> None:
        if end != len(self._data):
            raise self._damaged(
                f"the record set of {self._count:,} records is damaged: it has {len(self._data) - end:,} bytes too many"
            )


def count_of(entry: bytes) -> int:
    """Return the number of records that an entry claims to have; 1 if it is no set."""
    return int(_front.unpack_from(entry)[4]) if len(entry) >= HEADER_SIZE and entry.startswith(MAGIC) else 1


def parse_set(entry: bytes) -> RecordSet:
    """Return the set of an entry. Raises `LogRecordCorrupt`, and `ConfigError` if the library of its codec is missing.

    Lengths of records are checked when they are used.
    """
    if len(entry) < HEADER_SIZE or not entry.startswith(MAGIC):
        raise LogRecordCorrupt(f"the entry ({len(entry):,} bytes) is not a record set")
    _, version, codec, flags, count, size, time_us = _front.unpack_from(entry)
    if version != VERSION or flags > _FLAGS:
        raise LogRecordCorrupt(
            f"the record set has version {version} and flags {flags}; this version reads version {VERSION}"
        )
    if size > SIZE_MAX or 4 * count > size:
        raise LogRecordCorrupt(f"the record set claims {count:,} records in {size:,} bytes")
    if codec == NONE and size == len(entry) - HEADER_SIZE:
        return RecordSet(flags, count, time_us, entry, HEADER_SIZE)
    return RecordSet(flags, count, time_us, decompress(entry[HEADER_SIZE:], codec, size), 0)
