"""Shared parts of the journal and entry log scanners: a window over a file, record batches, and the end of a scan.

Both formats are `uint32 length | body` records back to back, without checksum. The last item of every scan is
therefore a `ScanEnd` with its place and reason, so that damage is not mistaken for the end of the data.

Source: storage 2.3, 2.10, 3.5, F-14.
"""

from __future__ import annotations

import enum
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from msgspec import Struct

from bookies import kernels
from bookies.errors import CorruptRecord
from bookies.kernels import Records
from bookies.model import FRAME_SIZE_MAX

Pread = Callable[[int, int], bytes]  # (size, offset), as `runtime.ports.File.pread`

RECORD_SIZE_MAX = FRAME_SIZE_MAX + 64 * 1024  # bytes of a body; the margin is for larger headers
RECORD_SIZE_MIN = 16  # ledger id and entry id
CHUNK_SIZE = 1 << 20  # bytes read at once

IDS = struct.Struct(">qq")
WORD = struct.Struct(">I")


class Trust(enum.Enum):
    UNPROVEN = "unproven"  # credible; there is no checksum
    VERIFIED = "verified"  # certainly what was written
    DAMAGED = "damaged"  # in a changed part of the file: only records that prove themselves count


class RunIds(Sequence[tuple[int, int]]):
    """(ledger id, entry id) of records that are all entries, stored as runs of consecutive ids.

    `runs`: (ledger id, first entry id, count) of each run. Use it to avoid a cost per entry.
    """

    def __init__(self, runs: Sequence[tuple[int, int, int]], count: int) -> None:
        self.runs = runs
        self._count = count
        self._pairs: list[tuple[int, int]] | None = None  # built on the first access by index

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for ledger_id, first, count in self.runs:
            yield from zip(itertools.repeat(ledger_id), range(first, first + count), strict=False)

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, int]]: ...

    def __getitem__(self, index: int | slice) -> tuple[int, int] | list[tuple[int, int]]:
        if self._pairs is None:
            self._pairs = list(self)
        return self._pairs[index]


def run_ids(data: bytes, starts: Sequence[int]) -> RunIds | None:
    """Return the ids of the records in `data`; None if some are not entries. `starts`: as in `Records`."""
    runs = kernels.cut_runs(data, starts)
    return None if runs is None else RunIds(runs, len(starts) - 1)


class Batch(Struct, frozen=True):
    """Credible records that lie back to back in a file, with their trust level.

    `offset`: file offset of `records.data`, so record i's length word is at `offset + records.starts[i]`.
    `ids`: (ledger id, entry id) of each record.
    """

    offset: int
    records: Records
    ids: Sequence[tuple[int, int]]
    trust: Trust = Trust.UNPROVEN

    @property
    def end(self) -> int:
        """Return the file offset after the last record."""
        return self.offset + self.records.starts[-1]


class EndKind(enum.Enum):
    CLEAN = "clean"  # everything that was written has been read
    TORN = "torn"  # cut off or garbage where a crash may leave that: at the end of the last write
    CORRUPT = "corrupt"  # differs from what was written


class ScanEnd(Struct, frozen=True):
    """Place and reason of the end of a scan.

    `offset`: the first byte not read as a record or padding. `next_record`: a later file offset where a group of
    records seems to begin, if the scanner searched for one; then something in between was lost.
    """

    kind: EndKind
    offset: int
    problem: str
    next_record: int | None = None

    def raise_if_corrupt(self, path: str) -> None:
        if self.kind is EndKind.CORRUPT:
            raise CorruptRecord(self.problem, path=path, offset=self.offset)


class Window:
    """A part of a file in memory: `data` begins at file offset `base`; `at` is the reading position in it."""

    def __init__(self, pread: Pread, size: int, start: int, chunk_size: int = CHUNK_SIZE) -> None:
        self._pread = pread
        self._size = size
        self._chunk_size = chunk_size
        self.base = min(start, size)
        self.at = 0
        self.data = b""

    @property
    def position(self) -> int:
        """Return the file offset of the reading position."""
        return self.base + self.at

    @property
    def is_last(self) -> bool:
        """Report whether the window reaches the end of the file."""
        return self.base + len(self.data) >= self._size

    def remaining(self) -> int:
        """Return the bytes from the reading position to the end of the file; negative if it is past the end."""
        return self._size - self.position

    def has(self, count: int) -> bool:
        """Report whether `count` bytes are in memory; move the window if necessary. False: the file ends."""
        if len(self.data) - self.at >= count:
            return True
        if self.is_last:
            return False
        self.base += self.at
        self.at = 0
        wanted = min(max(count, self._chunk_size), self._size - self.base)
        self.data = self._pread(wanted, self.base)
        if len(self.data) < wanted:
            self._size = self.base + len(self.data)  # the file became shorter meanwhile
        return len(self.data) >= count

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes at a file offset, from memory if possible. Does not move the window."""
        at = offset - self.base
        if at >= 0 and at + size <= len(self.data):
            return self.data[at : at + size]
        return self._pread(size, offset)

    def word(self) -> int:
        """Return the uint32 at the reading position; the caller has checked `has(4)`."""
        number: int = WORD.unpack_from(self.data, self.at)[0]
        return number

    def is_filled_with(self, byte: bytes, end: int) -> bool:
        """Report whether all bytes from the reading position to file offset `end` equal `byte`. Moves the position."""
        while self.position < end:
            if not self.has(1):
                return True
            count = min(len(self.data) - self.at, end - self.position)
            if self.data.count(byte, self.at, self.at + count) != count:
                return False
            self.at += count
        return True
