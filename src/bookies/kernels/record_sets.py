"""Columns of record sets in Python, the definition of correct: collecting records, and cutting columns.

docs/reference/formats/record-set.md has the layout. Columns are in the order of their flags: flags, times, then the
lengths of keys, headers and values, then the keys, headers and values themselves. All but the lengths of values are
there only if a record needs them.
"""

from __future__ import annotations

import sys
from array import array
from itertools import accumulate, chain, pairwise

HAS_KEY, HAS_TIMESTAMP, HAS_HEADERS, HAS_VALUE = 1, 2, 4, 8  # as in `encoding/envelope.py`
TIMES, MIXED = 16, 32  # the set has a column of times, and one of flags
PLAIN = HAS_VALUE | HAS_TIMESTAMP  # a record with a value alone, at the time of its set
ROW_SIZE = 21  # bytes of a record with all columns, beside key, headers and value
_PLAIN_ROW_SIZE = 4  # the same of a plain record

Columns = tuple[int, int, int, bytes]  # flags of the set, its records, its time in microseconds since 1970, its columns


class SetBuilder:
    """Records that will share an entry, as columns. `size_max`: bytes of the columns of a set with several records.

    `begin` opens a set. `add_plain` and `add` return the token of the open set, or None if they have not added the
    record, because no set is open or it has no room.
    """

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self._token: object = None
        self._clear()

    def _clear(self) -> None:
        self._time_us = 0
        self._values: list[bytes] = []
        self._rows: dict[int, tuple[int, bytes, bytes, int]] = {}  # flags, key, headers, time of records beyond plain
        self._size = 0

    def __len__(self) -> int:
        return len(self._values)

    @property
    def time_us(self) -> int:
        """Return the time of the open set."""
        return self._time_us

    def begin(self, token: object, time_us: int) -> None:
        """Open a set. `token`: what `add` returns; not None."""
        self._clear()
        self._token = token
        self._time_us = time_us

    def add_plain(self, value: object) -> object:
        """Add a record with a value alone. None also if that is not of type bytes."""
        if type(value) is not bytes or self._token is None:
            return None
        row_size = ROW_SIZE if self._rows else _PLAIN_ROW_SIZE
        if self._values and self._size + row_size + len(value) > self.size_max:
            return None
        self._values.append(value)
        self._size += row_size + len(value)
        return self._token

    def add(self, value: bytes | None, key: bytes | None, headers: bytes | None, time_us: int | None) -> object:
        """Add a record. `headers`: packed; `time_us`: None: it has no time."""
        if self._token is None:
            return None
        if key is None and headers is None and value is not None and time_us == self._time_us:
            return self.add_plain(value)
        size = len(value or b"") + len(key or b"") + len(headers or b"")
        past = 0 if self._rows else (ROW_SIZE - _PLAIN_ROW_SIZE) * len(self._values)
        if self._values and self._size + past + ROW_SIZE + size > self.size_max:
            return None
        flags = (
            (key is not None) * HAS_KEY
            | (time_us is not None) * HAS_TIMESTAMP
            | (headers is not None) * HAS_HEADERS
            | (value is not None) * HAS_VALUE
        )
        self._rows[len(self._values)] = flags, key or b"", headers or b"", time_us or 0
        self._values.append(value or b"")
        self._size += past + ROW_SIZE + size
        return self._token

    def take(self) -> Columns:
        """Close the set, which has a record, and return it."""
        values, rows, time_us = self._values, self._rows, self._time_us
        self._clear()
        self._token = None
        lengths = _packed("I", map(len, values))
        if not rows:
            return PLAIN, len(values), time_us, b"".join((lengths, *values))
        plain = PLAIN, b"", b"", time_us
        table = [rows.get(index, plain) for index in range(len(values))]
        all_flags = bytes(row[0] for row in table)
        flags = 0
        for bits in set(all_flags):
            flags |= bits
        parts: list[bytes] = []
        if len(set(all_flags)) > 1:
            flags |= MIXED
            parts.append(all_flags)
        if any(row[3] != time_us for row in table if row[0] & HAS_TIMESTAMP):
            flags |= TIMES
            parts.append(_packed("q", (row[3] for row in table)))
        blobs = ((HAS_KEY, [row[1] for row in table]), (HAS_HEADERS, [row[2] for row in table]), (HAS_VALUE, values))
        present = [blob for bit, blob in blobs if flags & bit or bit == HAS_VALUE]
        parts += [_packed("I", map(len, blob)) for blob in present]
        return flags, len(values), time_us, b"".join(chain(parts, *present))


def _packed(code: str, numbers: object) -> bytes:
    column = array(code, numbers)  # type: ignore[call-overload]
    if sys.byteorder == "little":
        column.byteswap()
    return bytes(column.tobytes())


def offsets_of(data: bytes, at: int, count: int, start: int) -> array[int]:
    """Return where each of `count` pieces starts, and the end of the last: int32 in native order.

    `at`: offset of their lengths, uint32 each; `start`: that of the first piece. Raises ValueError if a length or a
    piece is outside the data.
    """
    if at < 0 or count < 0 or start < 0 or at + 4 * count > len(data):
        raise ValueError("the column of lengths is outside the data")
    lengths = array("I", data[at : at + 4 * count])
    if sys.byteorder == "little":
        lengths.byteswap()
    if start + sum(lengths) > min(len(data), (1 << 31) - 1):
        raise ValueError("a piece is outside the data")
    return array("i", accumulate(lengths, initial=start))


def cut_column(data: bytes, at: int, count: int, start: int) -> tuple[list[bytes], int]:
    """Return the pieces whose lengths are a column, and the end of the last. Arguments and errors as `offsets_of`."""
    offsets = offsets_of(data, at, count, start)
    return [data[begin:end] for begin, end in pairwise(offsets)], offsets[-1]
