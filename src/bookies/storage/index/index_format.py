"""The index file's format: path, header, slots. One file per ledger says where each of its entries is.

A header of 1024 bytes (master key, state bits, explicit LAC) and then an array of int64 locations, indexed by entry id;
0 means missing. What is behind the end of the file is missing too.

Source: storage 4.1 to 4.3, 4.7.
"""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from bookies.errors import CorruptRecord
from bookies.storage.records.record_scan import WORD

MAGIC = b"BKLE"
VERSION = 1  # 0: without explicit LAC
HEADER_SIZE = 1024
SLOT_SIZE = 8
MISSING = 0

STATE_FENCED = 0x1
STATE_LIMBO = 0x2  # ours: what this bookie once promised about the ledger may be lost; Apache's ignores it
STATE_REBUILDING = 0x4  # ours: slots are missing until the entry logs have been read
STATE_UNCERTAIN = STATE_LIMBO | STATE_REBUILDING  # nothing is denied: what is not found may have been here
EXPLICIT_LAC_SIZE_MIN = 16

_HEAD = struct.Struct(">4sIi")
_SLOT = struct.Struct(">q")
_PATH = re.compile(r"(?:.*/)?([0-9a-fA-F]{1,2})/([0-9a-fA-F]{1,2})/([0-9a-fA-F]{1,16})\.idx(\.rloc)?")


def path_of(ledger_id: int) -> str:
    """Path below an index directory's `current`: two levels of the id's low bytes, nothing zero-padded."""
    return f"{ledger_id >> 8 & 0xFF:x}/{ledger_id & 0xFF:x}/{ledger_id:x}.idx"


def parse_path(path: str) -> int | None:
    """The ledger id of `g/p/x.idx`, or None if the path is not that of an index file at its place."""
    return _parse(path, is_relocating=False)


def parse_relocating_path(path: str) -> int | None:
    """The ledger id of `g/p/x.idx.rloc`, an index file on its way to another directory. Source: storage 4.7."""
    return _parse(path, is_relocating=True)


def _parse(path: str, *, is_relocating: bool) -> int | None:
    match = _PATH.fullmatch(path)
    if match is None or bool(match[4]) != is_relocating:
        return None
    group, part, ledger_id = (int(digits, 16) for digits in match.groups()[:3])
    return ledger_id if (group, part) == (ledger_id >> 8 & 0xFF, ledger_id & 0xFF) else None


class TruncatedHeader(CorruptRecord):
    """The file ends within its header: a crash while it was created. Whoever repairs it treats the ledger as fenced."""


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """`explicit_lac`: the body as the client sent it, empty for none. `state`: bits, unknown ones are kept."""

    master_key: bytes
    state: int = 0
    explicit_lac: bytes = b""
    version: int = VERSION

    @property
    def is_fenced(self) -> bool:
        return bool(self.state & STATE_FENCED)

    @property
    def is_in_limbo(self) -> bool:
        return bool(self.state & STATE_LIMBO)

    @property
    def is_rebuilding(self) -> bool:
        return bool(self.state & STATE_REBUILDING)

    @property
    def is_uncertain(self) -> bool:
        return bool(self.state & STATE_UNCERTAIN)

    def with_state(self, bits: int) -> IndexHeader:
        """The same header with these state bits set too."""
        return dataclasses.replace(self, state=self.state | bits)

    def without_state(self, bits: int) -> IndexHeader:
        """The same header with these state bits cleared."""
        return dataclasses.replace(self, state=self.state & ~bits)


def pack_header(header: IndexHeader) -> bytes:
    """The whole header, 1024 bytes. A header of version 0 has no room for an explicit LAC and leaves it out.

    Raises ValueError when key and explicit LAC do not fit.
    """
    parts = [_HEAD.pack(MAGIC, header.version, len(header.master_key)), header.master_key, WORD.pack(header.state)]
    if header.version >= 1:
        parts += [WORD.pack(len(header.explicit_lac)), header.explicit_lac]
    data = b"".join(parts)
    if len(data) > HEADER_SIZE:
        raise ValueError(f"an index header of {len(data):,} bytes does not fit into {HEADER_SIZE:,}")
    return data.ljust(HEADER_SIZE, b"\0")


def parse_header(first: bytes, *, path: str = "index file") -> IndexHeader:
    """The header from the first 1024 bytes of a file, or all it has.

    Raises TruncatedHeader when the file ends before the last field does, CorruptRecord for anything else.
    """
    first = first[:HEADER_SIZE]
    if len(first) < _HEAD.size:
        _check_start(first, path)
        raise TruncatedHeader("the file ends within its header", path=path, offset=len(first))
    _, version, key_size = _HEAD.unpack_from(first)
    _check_start(first, path)
    if version > VERSION:
        raise CorruptRecord(f"index version {version}: versions 0 and 1 are known", path=path, offset=4)
    if not 0 <= key_size <= HEADER_SIZE - 16:
        raise CorruptRecord(f"a master key of {key_size:,} bytes", path=path, offset=8)
    at = _HEAD.size + key_size
    if len(first) < at + 4 + 4 * version:
        raise TruncatedHeader("the file ends within its header", path=path, offset=len(first))
    master_key = first[_HEAD.size : at]
    state = WORD.unpack_from(first, at)[0]
    lac_size = WORD.unpack_from(first, at + 4)[0] if version >= 1 else 0
    if lac_size and not EXPLICIT_LAC_SIZE_MIN <= lac_size <= HEADER_SIZE - at - 8:
        raise CorruptRecord(f"an explicit LAC of {lac_size:,} bytes", path=path, offset=at + 4)
    explicit_lac = first[at + 8 : at + 8 + lac_size]
    if len(explicit_lac) < lac_size:
        raise TruncatedHeader("the file ends within its header", path=path, offset=len(first))
    return IndexHeader(master_key, state, explicit_lac, version)


def _check_start(first: bytes, path: str) -> None:
    if first[:4] != MAGIC[: len(first)]:
        raise CorruptRecord(f"not an index file: it begins with {first[:4]!r}", path=path, offset=0)


def slots_per_page(page_size: int) -> int:
    return page_size // SLOT_SIZE


def page_offset(page: int, page_size: int) -> int:
    """Where in the file page number `page` begins. Pages are written whole (Q-20)."""
    return HEADER_SIZE + page * page_size


def slot_count(file_size: int) -> int:
    """Slots in a file of so many bytes; a fragment of a slot at the end does not count."""
    return max(0, file_size - HEADER_SIZE) // SLOT_SIZE


def iterate_slots(data: bytes, first_entry_id: int) -> Iterator[tuple[int, int]]:
    """(entry id, location) of the slots in `data` that are not missing. A trailing fragment of a slot is ignored."""
    whole = len(data) - len(data) % SLOT_SIZE
    for index, (number,) in enumerate(_SLOT.iter_unpack(memoryview(data)[:whole])):
        if number != MISSING:
            yield first_entry_id + index, number
