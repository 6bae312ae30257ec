"""Page cache control for files that are read or written once, and reads that skip holes."""

from __future__ import annotations

from bisect import bisect_right

from bookies.runtime.ports import File
from bookies.storage.journal.journal_trailer import zeros
from bookies.storage.records.record_scan import CHUNK_SIZE

READ_STEP = 8 << 20  # bytes of a file that is read once, dropped from the page cache by one call
HOLE_SIZE_MIN = 64 * 1024  # bytes; smaller reads are not checked for holes


class DroppedPrefix:
    """The first `size` bytes of one file, which were dropped from the page cache, each byte once.

    A page that the system can re-use costs a copy. A new page costs a virtual machine ten times that, because its host
    has to provide it. `step`: bytes dropped by one call.
    """

    def __init__(self, step: int) -> None:
        self.size = 0
        self._step = step

    def is_due(self, end: int) -> bool:
        """Report whether `grow` would drop pages."""
        return end - self.size >= self._step

    def grow(self, file: File, end: int) -> None:
        """Drop the pages before `end`, if they are at least one step."""
        if self.is_due(end):
            file.drop_cache(self.size, end - self.size)
            self.size = end


class SparseReader:
    """A `file.pread` that returns zeros for holes, without reading blocks that were reserved and never written.

    It locates the data before the first read: the system reads ahead, and afterwards reports pages that it has read in
    vain as data.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._since = -1  # file offset from which on holes are known; -1: not located yet
        self._data: list[int] = []  # offsets of pieces of `CHUNK_SIZE` that may contain data

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
        while (
            offset <= (data_at := self._file.next_data(offset)) < end
        ):  # smaller than `offset`: the file was truncated
            self._data.append(data_at)
            offset = data_at + CHUNK_SIZE
