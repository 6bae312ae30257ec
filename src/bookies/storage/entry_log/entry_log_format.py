"""The entry log's file format: names, header, ledgers map, locations, and the scanner that collection and repair use.

A log is a 1024-byte header and then records `int32 length | entry body`. When it is closed the ledgers map follows, in
records of the same framing with ledger id -1, and the header gets its offset. The direct layout (of Apache's direct-I/O
writer) has a header block of 4096 bytes and pads blocks with bytes 0xf0.

Source: storage 3.1 to 3.6, 6.8, 7.6.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct

from bookies import kernels
from bookies.errors import CorruptRecord
from bookies.kernels import Records
from bookies.storage.records import Batch, EndKind
from bookies.storage.records.record_scan import (
    CHUNK_SIZE,
    IDS,
    RECORD_SIZE_MAX,
    RECORD_SIZE_MIN,
    WORD,
    Pread,
    ScanEnd,
    Window,
    run_ids,
)
from bookies.storage.sealing.sealed_format import pack_key_list, parse_key_list

MAGIC = b"BKLO"
VERSION = 1  # version 0 never has a ledgers map
SEALED_VERSION = (
    0x53454131  # version 1 with sealed entries; many bits differ, so that damage cannot make one of another
)
HEADER_SIZE = 1024
KEYS_OFFSET = 20  # the key list, of sealed logs only
MAP_FIELDS_OFFSET = 8  # offset at which `pack_map_fields` is written in place when the log is closed
LOG_ID_MAX = (1 << 31) - 1

MAP_LEDGER_ID, MAP_ENTRY_ID = -1, -2
MAP_PAIRS_MAX = 10_000  # in one record

DIRECT_BLOCK = 4096  # bytes: header, and the unit of writing of the direct layout
DIRECT_PADDING = b"\xf0"

_HEADER = struct.Struct(">4sIqI")
_MAP_FIELDS = struct.Struct(">qI")
_MAP_HEAD = struct.Struct(">IqqI")
_PAIR = struct.Struct(">qq")
_NAME = re.compile(r"([0-9a-fA-F]{1,8})\.log")
_COMPACTED_NAME = re.compile(r"([0-9a-fA-F]{1,8})\.log\.(?:([0-9a-fA-F]{1,8})\.compacted|compacting)")


def file_name(log_id: int) -> str:
    return f"{log_id:x}.log"


def parse_file_name(name: str) -> int | None:
    """Return the log's id, or None if the name is not that of an entry log."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def parse_compacted_name(name: str) -> tuple[int, int | None] | None:
    """Return (new id, id of the replaced log) of a compaction's output; the latter is None until it is complete."""
    match = _COMPACTED_NAME.fullmatch(name)
    return (int(match[1], 16), int(match[2], 16) if match[2] else None) if match else None


def pack_last_id(log_id: int) -> bytes:
    """Return the content of `lastId`: the highest id ever allocated in these directories."""
    return b"%x\n" % log_id


def parse_last_id(data: bytes) -> int | None:
    """Return the id in a `lastId` file; None for garbage, which is tolerated."""
    text = data.strip()
    return int(text, 16) if re.fullmatch(rb"[0-9a-fA-F]{1,8}", text) else None


def location(log_id: int, body_offset: int) -> int:
    """Return the location of an entry: its log, and the offset of its body, four bytes after its length word."""
    return log_id << 32 | body_offset


def split_location(number: int) -> tuple[int, int]:
    """Return (log id, offset of the body)."""
    return number >> 32, number & 0xFFFFFFFF


class LogHeader(Struct, frozen=True):
    """A parsed header. `map_offset` and `ledger_count` are unverified; `read_ledgers_map` checks them.

    `keys`: ids of the keys that its entries may be sealed with; empty: they are not sealed.
    """

    version: int = VERSION
    map_offset: int = 0
    ledger_count: int = 0
    keys: tuple[int, ...] = ()


def pack_header(map_offset: int = 0, ledger_count: int = 0, keys: Sequence[int] = ()) -> bytes:
    """Return the header, 1024 bytes. The numbers are 0 until the log is closed. `keys`: see `LogHeader`."""
    version, key_list = (SEALED_VERSION, pack_key_list(keys)) if keys else (VERSION, b"")
    return (_HEADER.pack(MAGIC, version, map_offset, ledger_count) + key_list).ljust(HEADER_SIZE, b"\0")


def pack_map_fields(map_offset: int, ledger_count: int) -> bytes:
    """Return the bytes to write at `MAP_FIELDS_OFFSET` when the log is closed, after the map is durable."""
    return _MAP_FIELDS.pack(map_offset, ledger_count)


def parse_header(first: bytes, *, path: str = "entry log") -> LogHeader | None:
    """Return the header; None for a file shorter than its header, which is an empty log (Q-4).

    Raises CorruptRecord for a wrong magic, an unknown version or a damaged key list.
    """
    if len(first) < HEADER_SIZE:
        return None
    magic, version, map_offset, ledger_count = _HEADER.unpack_from(first)
    if magic != MAGIC:
        raise CorruptRecord(f"not an entry log: it begins with {magic!r}", path=path, offset=0)
    if version == SEALED_VERSION:
        keys = parse_key_list(first[KEYS_OFFSET:HEADER_SIZE], path=path, offset=KEYS_OFFSET)
        return LogHeader(version, map_offset, ledger_count, keys)
    if version > VERSION:
        raise CorruptRecord(f"entry log version {version}: versions 0 and 1 are known", path=path, offset=4)
    return LogHeader(version, map_offset, ledger_count)


def is_sealed(first: bytes) -> bool:
    """Report whether a header, which may be damaged, is that of a sealed log."""
    return len(first) >= KEYS_OFFSET and _HEADER.unpack_from(first)[:2] == (MAGIC, SEALED_VERSION)


def pack_ledgers_map(pairs: Iterable[tuple[int, int]]) -> bytes:
    """Return map records of (ledger id, bytes of its records in this log), 10,000 pairs in each; empty for none."""
    parts = []
    pairs = iter(pairs)
    while chunk := list(islice(pairs, MAP_PAIRS_MAX)):
        parts.append(_MAP_HEAD.pack(20 + 16 * len(chunk), MAP_LEDGER_ID, MAP_ENTRY_ID, len(chunk)))
        parts.extend([_PAIR.pack(ledger_id, size) for ledger_id, size in chunk])
    return b"".join(parts)


def read_ledgers_map(pread: Pread, size: int) -> dict[int, int] | None:
    """Return the ledgers map of a log of `size` bytes, ledger id -> bytes; None if there is no complete, valid one.

    R-20: require a complete valid map with a non-zero count; otherwise scan. None never means that the log is empty.
    Source: storage 3.4.
    """
    first = pread(HEADER_SIZE, 0)
    if len(first) < HEADER_SIZE:
        return None
    magic, version, map_offset, ledger_count = _HEADER.unpack_from(first)
    if magic != MAGIC or version not in (VERSION, SEALED_VERSION) or not HEADER_SIZE <= map_offset < size:
        return None
    if not 0 < ledger_count <= (size - map_offset) // 16:
        return None
    records = ledger_count // MAP_PAIRS_MAX + 1
    data = pread(min(size - map_offset, 16 * ledger_count + records * (24 + DIRECT_BLOCK)), map_offset)
    ledgers: dict[int, int] = {}
    at = 0
    while at + 4 <= len(data):
        word = WORD.unpack_from(data, at)[0]
        if word == 0:
            break
        if data[at] == DIRECT_PADDING[0]:
            at += DIRECT_BLOCK - (map_offset + at) % DIRECT_BLOCK
            continue
        if len(data) < at + 24 or len(data) < at + 4 + word:
            return None
        _, ledger_id, entry_id, count = _MAP_HEAD.unpack_from(data, at)
        if (ledger_id, entry_id) != (MAP_LEDGER_ID, MAP_ENTRY_ID) or word != 20 + 16 * count or count == 0:
            return None
        ledgers.update(_PAIR.iter_unpack(data[at + 24 : at + 4 + word]))
        at += 4 + word
    if len(ledgers) != ledger_count or min(ledgers) < 0 or min(ledgers.values()) < 0:
        return None
    # Every byte before the map is padding or belongs to a ledger.
    return ledgers if sum(ledgers.values()) <= map_offset - HEADER_SIZE else None


def scan(
    pread: Pread,
    size: int,
    start: int = HEADER_SIZE,
    *,
    record_size_max: int = RECORD_SIZE_MAX,
    chunk_size: int = CHUNK_SIZE,
) -> Iterator[Batch | ScanEnd]:
    """Yield batches of entries from file offset `start` on, then one `ScanEnd`. Map records are skipped.

    CLEAN: at the end of the file, or before zeros that reach to it. TORN: the end of the file cuts off the last record.
    CORRUPT: anything else; the rest is unknown. F-14: report how a scan ended; delete a log only after a clean end.

    Source: storage 3.5.
    """
    window = Window(pread, size, start, chunk_size)
    size_max = max(record_size_max, 20 + 16 * MAP_PAIRS_MAX)
    end: ScanEnd | None = None
    while end is None:
        starts, reason = kernels.scan_records(window.data, window.at, len(window.data), size_max)
        batches, stop, problem = _split(window, starts)
        yield from batches
        window.at = stop
        if problem:
            end = ScanEnd(EndKind.CORRUPT, window.position, problem)
        elif reason in ("end", "short"):
            end = _fill(window, size_max)
        elif reason == "zero":
            end = _end_at_zeros(window, size)
        elif reason == "negative":
            end = _skip_direct_padding(window, size)
        else:
            end = ScanEnd(EndKind.CORRUPT, window.position, f"no record has {window.word():,} bytes")
    yield end


def _split(window: Window, starts: Sequence[int]) -> tuple[list[Batch], int, str]:
    """Return (runs of entries without the map records between them, end of the good records, problem there)."""
    data, problem = window.data, ""
    unpack = IDS.unpack_from
    batches: list[Batch] = []
    ids: list[tuple[int, int]] = []
    first = index = 0
    if len(starts) > 1 and (entries := run_ids(data, starts)) is not None:
        return [Batch(window.base, Records(data, starts), entries)], starts[-1], ""
    for index in range(len(starts) - 1):
        at = starts[index]
        pair = unpack(data, at + 4) if starts[index + 1] - at >= 4 + RECORD_SIZE_MIN else (-1, -3)
        if pair[0] >= 0 and pair[1] >= 0:
            ids.append(pair)
            continue
        if pair[0] != -1 or pair[1] < MAP_ENTRY_ID:
            problem = f"no record has {starts[index + 1] - at - 4} bytes for entry {pair[1]} of ledger {pair[0]}"
            break
        if ids:
            batches.append(Batch(window.base, Records(data, starts[first : index + 1]), ids))
        ids = []
        first = index + 1
    else:
        index = len(starts) - 1
    if ids:
        batches.append(Batch(window.base, Records(data, starts[first : index + 1]), ids))
    return batches, starts[index], problem


def _fill(window: Window, size_max: int) -> ScanEnd | None:
    """Read the whole next record into the window; return the end of the scan if there is none."""
    if not window.has(4):
        left = window.data[window.at :]
        if left.strip(DIRECT_PADDING):
            return ScanEnd(EndKind.TORN, window.position, f"{len(left)} bytes are left at the end of the file")
        return ScanEnd(EndKind.CLEAN, window.position, "end of file")
    length = window.word()
    if length <= size_max:
        if length > window.remaining() - 4:
            problem = f"a record of {length:,} bytes is cut off by the end of the file"
            return ScanEnd(EndKind.TORN, window.position, problem)
        window.has(4 + length)
    return None


def _end_at_zeros(window: Window, size: int) -> ScanEnd:
    position = window.position
    if window.is_filled_with(b"\0", size):
        return ScanEnd(EndKind.CLEAN, position, "zeros to the end of the file")
    return ScanEnd(EndKind.CORRUPT, position, f"zeros, yet something follows at byte {window.position:,}")


def _skip_direct_padding(window: Window, size: int) -> ScanEnd | None:
    position, word = window.position, window.word()
    block_end = position - position % DIRECT_BLOCK + DIRECT_BLOCK
    if window.is_filled_with(DIRECT_PADDING, min(block_end, size)):
        return None
    return ScanEnd(EndKind.CORRUPT, position, f"no record can begin with {word:#010x}")
