"""The trailer of a group of journal records: the group's start, its journal, and its checksum.

The trailer is the end of the content of the group's padding record: the last bytes before a multiple of 512. All
readers, Apache's too, skip the content of padding, so a journal with trailers is an ordinary journal. Journals without
trailers are readable as well. Trailers reveal changed records, and records that are missing before a later group.

Source: storage 2.4, 2.10, F-4.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from msgspec import Struct

from bookies.kernels import crc32c
from bookies.runtime.ports import Buffer
from bookies.storage.records.record_scan import CHUNK_SIZE, Pread

MAGIC = b"BKGE"
SECTOR = 512  # bytes; trailers end on multiples of it
SIZE_MAX = 64 << 20  # bytes of a group that is kept in memory until its trailer is read; larger ones are not checked

_FIELDS = struct.Struct(">4sIqqI")
_DIGEST = struct.Struct(">I")
TRAILER_SIZE = _FIELDS.size + _DIGEST.size
_ZEROS = bytes(CHUNK_SIZE)


class Trailer(Struct, frozen=True):
    """A parsed trailer. `start`: file offset of the group; `size`: bytes from there to the trailer."""

    journal_id: int
    start: int
    size: int
    checksum: int

    def matches(self, buffers: Iterable[Buffer]) -> bool:
        """Report whether the group, in consecutive buffers, matches its checksum."""
        checksum = 0
        for buffer in buffers:
            checksum = crc32c(buffer, checksum)
        return self.checksum == checksum


def seal(journal_id: int, start: int, buffers: Sequence[Buffer], size: int, padding: bytes) -> bytes:
    """Return the padding of the group of `buffers` at file offset `start`, with the trailer at its end.

    `size`: bytes of the buffers in all. `padding`: a padding record with at least `TRAILER_SIZE` bytes of content.
    """
    head = padding[:-TRAILER_SIZE]
    checksum = 0
    for buffer in buffers:
        checksum = crc32c(buffer, checksum)
    fields = _FIELDS.pack(MAGIC, size + len(head), journal_id, start, crc32c(head, checksum))
    return head + fields + _DIGEST.pack(crc32c(fields))


def parse_trailer(data: bytes, at: int, offset: int, journal_id: int | None) -> Trailer | None:
    """Return the trailer at `data[at]`, which is file offset `offset`; None if there is none.

    `journal_id`: the only journal whose trailers count; None: any journal.
    """
    if len(data) - at < TRAILER_SIZE or data[at : at + 4] != MAGIC:
        return None
    fields_end = at + _FIELDS.size
    if crc32c(data[at:fields_end]) != _DIGEST.unpack_from(data, fields_end)[0]:
        return None
    _, size, group_journal_id, start, checksum = _FIELDS.unpack_from(data, at)
    if journal_id not in (None, group_journal_id) or start < 0 or start + size != offset:
        return None  # a block of another file, or of another place
    return Trailer(group_journal_id, start, size, checksum)


def zeros(size: int) -> bytes:
    """Return `size` zero bytes, without a copy for `CHUNK_SIZE`."""
    return _ZEROS if size == CHUNK_SIZE else bytes(size)


def is_zero(data: bytes) -> bool:
    """Report whether all bytes are zero. `data`: at most `CHUNK_SIZE` bytes."""
    return data == (_ZEROS if len(data) == CHUNK_SIZE else _ZEROS[: len(data)])


def find_group(pread: Pread, size: int, after: int, journal_id: int | None) -> Trailer | None:
    """Return the trailer of the first group that begins after file offset `after`; None if there is none."""
    base = after - after % SECTOR
    while base < size:
        data = pread(min(CHUNK_SIZE, size - base), base)
        at = -1 if is_zero(data) else data.find(MAGIC)
        while at >= 0:
            if (at + TRAILER_SIZE) % SECTOR == 0:
                trailer = parse_trailer(data, at, base + at, journal_id)
                if trailer is not None and trailer.start > after:
                    return trailer
            at = data.find(MAGIC, at + 1)
        base += CHUNK_SIZE
    return None
