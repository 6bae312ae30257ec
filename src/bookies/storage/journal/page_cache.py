"""What the page cache is told to forget of a file that is read or written once, and where there is nothing to read."""

from __future__ import annotations

from bisect import bisect_right

from bookies.runtime.ports import File
from bookies.storage.journal.journal_trailer import zeros
from bookies.storage.records.record_scan import CHUNK_SIZE

READ_STEP = 8 << 20  # bytes of a file that is read once, after which the page cache is told that nobody needs them
HOLE_SIZE_MIN = 64 * 1024  # bytes of a read that is worth asking whether there is anything


class ForgottenPart:
    """The part of one file, from its front, that the page cache was told to forget: `size` bytes, each told once.

    Pages that the system can use again cost a copy; ever new ones cost a virtual machine, whose host has to find them,
    ten times that. `step`: bytes after which it is told again.
    """

    def __init__(self, step: int) -> None:
        self.size = 0
        self._step = step

    def is_due(self, end: int) -> bool:
        """Whether `grow` would tell it."""
        return end - self.size >= self._step

    def grow(self, file: File, end: int) -> None:
        """Nothing before `end` need be kept."""
        if self.is_due(end):
            file.drop_cache(self.size, end - self.size)
            self.size = end


class PassingHoles:
    """As `file.pread`, which does not read what was reserved and never written.

    Where there is something is found out before any of it is read: the system reads ahead, and what it has read in vain
    is data to it from then on.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._since = -1  # what is before it was not looked at
        self._data: list[int] = []  # where pieces of `CHUNK_SIZE` begin that may hold something

    def __call__(self, size: int, offset: int) -> bytes:
        if size < HOLE_SIZE_MIN:
            return self._file.pread(size, offset)
        if self._since < 0:
            self._look(offset)
        at = bisect_right(self._data, offset - CHUNK_SIZE)
        if offset < self._since or (at < len(self._data) and self._data[at] < offset + size):
            return self._file.pread(size, offset)
        return zeros(size)

    def _look(self, offset: int) -> None:
        self._since, end = offset, self._file.size()
        while offset <= (found := self._file.next_data(offset)) < end:  # Less: the file became shorter meanwhile.
            self._data.append(found)
            offset = found + CHUNK_SIZE
