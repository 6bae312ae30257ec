"""The index file's format: path, header, slots. One file per ledger maps entry ids to locations.

A header of 1024 bytes (master key, state bits, explicit LAC) precedes an array of int64 locations, indexed by entry id;
0 means missing. Slots after the end of the file are missing too.

Source: storage 4.1 to 4.3, 4.7.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from bookies.errors import CorruptRecord
from bookies.storage.records.record_scan import WORD

MAGIC = b"BKLE"
VERSION = 1  # 0: without explicit LAC
HEADER_SIZE = 1024
SLOT_SIZE = 8
MISSING = 0
ENTRY_ID_MAX = (1 << 40) - 1  # a file has 8 bytes for every entry id up to its highest; no add is above it

STATE_FENCED = 0x1
STATE_LIMBO = 0x2  # ours: entries or promises of this bookie may be lost; Apache's bookies ignore the bit
STATE_REBUILDING = 0x4  # ours: slots may be missing until the entry logs have been read
STATE_UNCERTAIN = STATE_LIMBO | STATE_REBUILDING  # reads return UNKNOWN instead of NO_ENTRY
EXPLICIT_LAC_SIZE_MIN = 16

_HEAD = struct.Struct(">4sIi")
_SLOT = struct.Struct(">q")
_PATH = re.compile(r"(?:.*/)?([0-9a-fA-F]{1,2})/([0-9a-fA-F]{1,2})/([0-9a-fA-F]{1,16})\.idx(\.rloc)?")


def path_of(ledger_id: int) -> str:
    """Return the path below an index directory's `current`: two levels of the id's low bytes, without zero padding."""
    return f"{ledger_id >> 8 & 0xFF:x}/{ledger_id & 0xFF:x}/{ledger_id:x}.idx"


def parse_path(path: str) -> int | None:
    """Return the ledger id of `g/p/x.idx`, or None for any other path."""
    return _parse(path, is_relocating=False)


def parse_relocating_path(path: str) -> int | None:
    """Return the ledger id of `g/p/x.idx.rloc`, a file that moves to another directory. Source: storage 4.7."""
    return _parse(path, is_relocating=True)


def _parse(path: str, *, is_relocating: bool) -> int | None:
    match = _PATH.fullmatch(path)
    if match is None or bool(match[4]) != is_relocating:
        return None
    group, part, ledger_id = (int(digits, 16) for digits in match.groups()[:3])
    return ledger_id if (group, part) == (ledger_id >> 8 & 0xFF, ledger_id & 0xFF) else None


class TruncatedHeader(CorruptRecord):
    """The file ends within its header: a crash interrupted its creation. Repairs treat the ledger as fenced (F-18)."""


class IndexHeader(Struct, frozen=True):
    """Header of an index file. `explicit_lac`: the body as the client sent it, or empty. `state`: all bits, even
    unknown.
    """

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
        """Return a copy with these state bits set."""
        return replace(self, state=self.state | bits)

    def without_state(self, bits: int) -> IndexHeader:
        """Return a copy with these state bits cleared."""
        return replace(self, state=self.state & ~bits)


def pack_header(header: IndexHeader) -> bytes:
    """Return the whole header, 1024 bytes. A version-0 header has no field for an explicit LAC and leaves it out.

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
    """Parse the header from the first 1024 bytes of a file, or fewer if the file is shorter.

    Raises TruncatedHeader when the file ends before the last field does, CorruptRecord for anything else.
    """
    first = first[:HEADER_SIZE]
    if len(first) < _HEAD.size:
        _check_start(first, path)
        raise TruncatedHeader("the file ends within its header", path=path, offset=len(first))
    _, version, key_size = _HEAD.unpack_from(first)
    _check_start(first, path)
    if version > VERSION:
        raise CorruptRecord(f"index version {version} is not supported: 0 or 1 expected", path=path, offset=4)
    if not 0 <= key_size <= HEADER_SIZE - 16:
        raise CorruptRecord(f"the length of the master key, {key_size:,} bytes, is invalid", path=path, offset=8)
    at = _HEAD.size + key_size
    if len(first) < at + 4 + 4 * version:
        raise TruncatedHeader("the file ends within its header", path=path, offset=len(first))
    master_key = first[_HEAD.size : at]
    state = WORD.unpack_from(first, at)[0]
    lac_size = WORD.unpack_from(first, at + 4)[0] if version >= 1 else 0
    if lac_size and not EXPLICIT_LAC_SIZE_MIN <= lac_size <= HEADER_SIZE - at - 8:
        raise CorruptRecord(f"the length of the explicit LAC, {lac_size:,} bytes, is invalid", path=path, offset=at + 4)
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
    """Return the offset of page number `page` in the file. Pages are written whole (Q-20)."""
    return HEADER_SIZE + page * page_size


def is_whole(file_size: int, page_size: int) -> bool:
    """Report whether a file of this size ends with its header or a page. Only damage and crashes leave another size."""
    return file_size >= HEADER_SIZE and not (file_size - HEADER_SIZE) % page_size


def slot_count(file_size: int) -> int:
    """Return the number of slots in a file of this size. A fragment of a slot at the end does not count."""
    return max(0, file_size - HEADER_SIZE) // SLOT_SIZE


def iterate_slots(data: bytes, first_entry_id: int) -> Iterator[tuple[int, int]]:
    """Yield (entry id, location) of the slots in `data` that are not missing. Ignore a fragment at the end."""
    whole = len(data) - len(data) % SLOT_SIZE
    for index, (number,) in enumerate(_SLOT.iter_unpack(memoryview(data)[:whole])):
        if number != MISSING:
            yield first_entry_id + index, number
