"""The catalog's file format: the ledgers of a bookie and the checksums of their index files.

Index files are Apache's and have no checksums, and a missing file leaves no trace. The catalog adds both: a header and
then records `uint32 length | uint32 crc32 of the body | body`, appended before index files are written. A record names
a ledger, its index header, and the crc32 of each page that is about to be written.

After a crash a page may be in its earlier state, because a record precedes the write. So both checksums count until the
next "settled" record.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from bookies.runtime.ports import Buffer
from bookies.storage.index.index_format import HEADER_SIZE, SLOT_SIZE, IndexHeader, pack_header, parse_header
from bookies.storage.journal import LogMark

FILE_NAME = "index.catalog"
HOLES_NAME = "index.holes"  # a file of text, in every index directory while there are holes
MAGIC = b"BKIC"
VERSION = 2
PAGE_SIZE_MAX = 1 << 24  # bytes
RECORD_SIZE_MAX = 64 << 20  # bytes; a ledger of 10**10 entries in one checkpoint is below it

ANY = -1  # stands for an unknown checksum

LEDGER, DELETED, SETTLED, HOLE, HOLES_SETTLED, SYNCED, TORN, VERSIONS = 1, 2, 3, 4, 5, 6, 7, 8
RESET = 1  # flag: the index file is replaced, earlier pages do not count
PARTIAL = 2  # flag: the file has pages without a known checksum

_FILE = struct.Struct(">4sII")
FILE_HEADER_SIZE = _FILE.size + 4  # with its crc32
_RECORD = struct.Struct(">II")
_LEDGER = struct.Struct(">BqBHI")
_DELETED = struct.Struct(">Bq")
_SETTLED = struct.Struct(">BI")
_MARK = struct.Struct(">qq")
_LOG = struct.Struct(">q")
_PAGE = struct.Struct(">QI")  # number, crc32
_SYNCED = struct.Struct(">Bqqq16sI")
_TORN = struct.Struct(">BI")
_LOG_END = struct.Struct(">qq")
_VERSIONS = struct.Struct(">BI")
_VERSION = struct.Struct(">Q")


class Known(Struct):
    """The expected content of one index file. `header`: without trailing zeros; empty if it is not known.

    `pages`: page number to crc32 of the content that is, or is about to be, in the file; pages of zeros are absent.
    `older`: checksums that the page may have instead if a crash interrupted the write. `is_partial`: pages that are not
    named are trusted as they are. `is_fresh`: the file was about to be created when the catalog ended, so the journal
    has its whole content. `is_stale`: the end of the catalog is lost, so the file may be younger. Then its header
    counts too, and its pages are rebuilt.
    """

    header: bytes = b""
    pages: dict[int, int] = field(default_factory=dict)
    older: dict[int, tuple[int, ...]] = field(default_factory=dict)
    is_partial: bool = False
    is_fresh: bool = False
    is_stale: bool = False

    def copy(self) -> Known:
        return replace(self, pages=dict(self.pages), older=dict(self.older))

    def index_header(self) -> IndexHeader | None:
        return parse_header(self.header.ljust(HEADER_SIZE, b"\0")) if self.header else None

    def expect(self, page: int, checksum: int, absent: int) -> None:
        """Record that this page is about to be written. `absent`: the checksum of a page that does not exist."""
        before = self.pages.get(page, ANY if self.is_partial else absent)
        is_reset = page in self.older and page not in self.pages  # `older` has the page of the replaced file.
        if before != checksum and not is_reset:
            self.older[page] = (*self.older.get(page, ()), before)
        self.pages[page] = checksum

    def is_exactly(self, pages: set[int], page_size: int) -> bool:
        """Report whether these intact pages of a file certainly contain all slots of the ledger."""
        header = self.index_header()
        if header is None or header.is_rebuilding or self.is_partial or self.is_fresh or self.is_stale or self.older:
            return False
        absent = checksum_of(b"", page_size)
        return all(page in pages for page, checksum in self.pages.items() if checksum != absent)

    def reset(self) -> None:
        """Record that the file is about to be replaced. A crash may leave the old one, so its pages become `older`."""
        for page, checksum in self.pages.items():
            self.older[page] = (*self.older.get(page, ()), checksum)
        self.pages = {}
        self.is_partial = False

    def is_right(self, page: int, data: Buffer, page_size: int) -> bool:
        """Report whether the page may be in the file. A page without checksum must be empty unless `is_partial`."""
        checksum = checksum_of(data, page_size)
        if page in self.older and (checksum in self.older[page] or ANY in self.older[page]):
            return True
        if page in self.pages:
            return checksum == self.pages[page]
        return self.is_partial or checksum == checksum_of(b"", page_size)


def checker(known: Known | None, page_size: int) -> Callable[[int, bytes], bool]:
    """Return a function for a worker that reports whether (page, data) may be in the ledger's file, as known now."""
    if known is None:
        return lambda page, data: True
    copy = known.copy()
    return lambda page, data: copy.is_right(page, data, page_size)


class Synced(NamedTuple):
    """Extent of the durable entry logs: `log_id` up to byte `end`, all others completely, up to `greatest_id`.

    With databases in several directories more logs are active: `others` has their ids and ends.

    No durable slot names a place after that. `marks`: of each journal; no persisted mark is greater. The journals from
    there on have everything else in the logs, except compaction copies whose source still exists. `run_id`: see
    `Directories`; it applies to the same logs only if the directories have the same one.
    """

    log_id: int
    end: int
    greatest_id: int
    marks: tuple[LogMark, ...] = ()
    run_id: bytes = bytes(16)
    others: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, ends: Mapping[int, int], greatest_id: int, marks: tuple[LogMark, ...], run_id: bytes) -> Synced:
        """Return the extent with these active logs, by id."""
        first, *others = ends.items() or [(-1, 0)]
        return cls(*first, greatest_id, marks, run_id, tuple(others))

    @property
    def ends(self) -> dict[int, int]:
        """Return the ends of the active logs, by id; also -1 without any."""
        return {self.log_id: self.end, **dict(self.others)}


class Contents(Struct):
    """The contents of a catalog. `marks`: of the last checkpoint. `problem`: why the rest of the file was not used.

    `uncounted_from`: the first entry log that may have copies without a slot if the bookie stops uncleanly. If some
    exist in any case, it is -1 minus that id.

    `has_other_pages`: the page size has changed, so checksums cannot be compared.

    `synced`: None if unknown. `torn`: entry log to the byte from which on it does not count: a power failure may have
    torn what was there, and a replay has written it again.

    `versions`: of the databases in place of index files, of each the number of writes that were durable; empty without
    databases.
    """

    page_size: int
    ledgers: dict[int, Known] = field(default_factory=dict)
    marks: tuple[LogMark, ...] = ()
    holes: list[str] = field(default_factory=list)
    uncounted_from: int = 0
    problem: str = ""
    has_other_pages: bool = False
    synced: Synced | None = None
    torn: dict[int, int] = field(default_factory=dict)
    versions: tuple[int, ...] = ()


def checksum_of(data: Buffer, page_size: int) -> int:
    """Return the crc32 of a page. Missing bytes at its end count as zeros."""
    checksum = zlib.crc32(data)
    return zlib.crc32(bytes(page_size - len(data)), checksum) if len(data) < page_size else checksum


@cache
def absent_checksum(page_size: int) -> int:
    """Return the crc32 of a page without slots."""
    return checksum_of(b"", page_size)


def page_size_of(header: bytes) -> int | None:
    """Return the page size in the file's header; None if the header is damaged."""
    if len(header) < FILE_HEADER_SIZE:
        return None
    magic, version, page_size = _FILE.unpack_from(header)
    if int.from_bytes(header[_FILE.size : FILE_HEADER_SIZE], "big") != zlib.crc32(header[: _FILE.size]):
        return None
    is_right = (magic, version) == (MAGIC, VERSION) and 0 < page_size <= PAGE_SIZE_MAX and not page_size % SLOT_SIZE
    return page_size if is_right else None


def pack_file_header(page_size: int) -> bytes:
    packed = _FILE.pack(MAGIC, VERSION, page_size)
    return packed + zlib.crc32(packed).to_bytes(4, "big")


def pack_ledger(ledger_id: int, header: IndexHeader, pages: Sequence[tuple[int, int]], flags: int = 0) -> bytes:
    """Pack a ledger's record. `pages`: (number, crc32) of the pages that are about to be written."""
    return pack_known(ledger_id, trimmed(header), pages, flags)


def trimmed(header: IndexHeader) -> bytes:
    """Return the packed header without trailing zeros, as in `Known.header`."""
    return pack_header(header).rstrip(b"\0")


def pack_known(ledger_id: int, header: bytes, pages: Sequence[tuple[int, int]], flags: int) -> bytes:
    """Pack a ledger's record from a trimmed header."""
    head = _LEDGER.pack(LEDGER, ledger_id, flags, len(header), len(pages))
    return _record(head + header + b"".join([_PAGE.pack(page, checksum) for page, checksum in pages]))


def pack_deleted(ledger_id: int) -> bytes:
    return _record(_DELETED.pack(DELETED, ledger_id))


def pack_settled(marks: Sequence[LogMark], uncounted_from: int = 0) -> bytes:
    """Pack the record that all changes above are in the index files, with the marks about to be persisted.

    `uncounted_from`: see `Contents`.
    """
    packed = b"".join(_MARK.pack(*mark) for mark in marks)
    return _record(_SETTLED.pack(SETTLED, len(marks)) + packed + _LOG.pack(uncounted_from))


def pack_synced(synced: Synced) -> bytes:
    """Pack how far the entry logs are durable. It precedes slots that name them."""
    *extent, marks, run_id, others = synced
    pairs = [*marks, *others]  # of the same form
    return _record(_SYNCED.pack(SYNCED, *extent, run_id, len(marks)) + b"".join(_MARK.pack(*pair) for pair in pairs))


def pack_torn(torn: Mapping[int, int]) -> bytes:
    """Pack all torn logs; see `Contents`."""
    return _record(_TORN.pack(TORN, len(torn)) + b"".join(_LOG_END.pack(*log_end) for log_end in torn.items()))


def pack_versions(versions: Sequence[int]) -> bytes:
    """Pack how many writes of each database are durable; see `Contents`."""
    return _record(_VERSIONS.pack(VERSIONS, len(versions)) + b"".join(_VERSION.pack(number) for number in versions))


def pack_hole(text: str) -> bytes:
    """Pack the loss of a part of a journal. Until it is settled, no unknown ledger is reported as missing."""
    return _record(bytes([HOLE]) + text.encode())


def pack_holes_settled() -> bytes:
    """Pack the record that every ledger is known again."""
    return _record(bytes([HOLES_SETTLED]))


def _record(body: bytes) -> bytes:
    return _RECORD.pack(len(body), zlib.crc32(body)) + body


def pack(contents: Contents) -> Iterator[bytes]:
    """Yield the same contents as one file, in pieces."""
    yield pack_file_header(contents.page_size)
    for ledger_id, known in contents.ledgers.items():
        flags = PARTIAL if known.is_partial else 0
        yield pack_known(ledger_id, known.header, list(known.pages.items()), flags | RESET)
    for text in contents.holes:
        yield pack_hole(text)
    if contents.torn:
        yield pack_torn(contents.torn)
    if contents.synced is not None:
        yield pack_synced(contents.synced)
    if contents.versions:
        yield pack_versions(contents.versions)
    yield pack_settled(contents.marks, contents.uncounted_from)


def parse(data: bytes, page_size: int) -> Contents:
    """Return the contents of a file up to the first damaged record. `page_size`: of the index files now."""
    contents = Contents(page_size)
    size_then = page_size_of(data)
    if size_then is None:
        contents.problem = "its header is damaged or of another version"
        return contents
    if size_then != page_size:
        contents.problem, page_size = f"it was written for pages of {size_then:,} bytes", size_then
        contents.has_other_pages = True
    absent = checksum_of(b"", page_size)
    unsettled: dict[int, Known] = {}
    is_settled = False
    at = FILE_HEADER_SIZE
    while at < len(data):
        if len(data) - at < _RECORD.size:
            contents.problem = "the last record is cut off"
            break
        size, checksum = _RECORD.unpack_from(data, at)
        body = data[at + _RECORD.size : at + _RECORD.size + size] if size <= RECORD_SIZE_MAX else b""
        if len(body) < size or not body or zlib.crc32(body) != checksum:
            contents.problem = f"the checksum of the record at byte {at:,} is wrong"
            break
        try:
            _apply(contents, body, unsettled, absent)
        except (struct.error, ValueError) as error:
            contents.problem = f"the record at byte {at:,} is not what the catalog writes: {error}"
            break
        is_settled = is_settled or body[0] == SETTLED
        at += _RECORD.size + size
    if not (is_settled or contents.problem):
        contents.problem = "it is cut off: a record that every catalog contains is missing"
    return contents


def _apply(contents: Contents, body: bytes, unsettled: dict[int, Known], absent: int) -> None:
    """Apply one record, whose checksum is right."""
    record_type = body[0]
    if record_type == LEDGER:
        _, ledger_id, flags, header_size, count = _LEDGER.unpack_from(body)
        if len(body) != _LEDGER.size + header_size + count * _PAGE.size:
            raise ValueError(f"{len(body)} bytes for {count} pages")
        known = contents.ledgers.setdefault(ledger_id, Known(is_fresh=bool(flags & RESET)))
        if flags & RESET:
            known.reset()
        known.header = body[_LEDGER.size : _LEDGER.size + header_size]
        known.is_partial = bool(flags & PARTIAL)
        for page, checksum in _PAGE.iter_unpack(body[_LEDGER.size + header_size :]):
            known.expect(page, checksum, absent)
        unsettled[ledger_id] = known
    elif record_type == DELETED:
        contents.ledgers.pop(_DELETED.unpack_from(body)[1], None)
    elif record_type == SETTLED:
        count = _SETTLED.unpack_from(body)[1]
        contents.marks = tuple(LogMark(*_MARK.unpack_from(body, _SETTLED.size + 16 * index)) for index in range(count))
        contents.uncounted_from = _LOG.unpack_from(body, _SETTLED.size + _MARK.size * count)[0]
        for known in unsettled.values():
            known.older.clear()
            known.is_fresh = False
        unsettled.clear()
    elif record_type == HOLE:
        contents.holes.append(body[1:].decode("utf-8", "replace"))
    elif record_type == HOLES_SETTLED:
        contents.holes.clear()
    elif record_type == SYNCED:
        _, log_id, end, greatest_id, run_id, count = _SYNCED.unpack_from(body)
        pairs = list(_MARK.iter_unpack(body[_SYNCED.size :]))
        if len(pairs) < count:
            raise ValueError(f"{len(pairs)} marks of {count}")
        marks = tuple(LogMark(*pair) for pair in pairs[:count])
        contents.synced = Synced(log_id, end, greatest_id, marks, run_id, tuple(pairs[count:]))
    elif record_type == TORN:
        contents.torn = dict(_LOG_END.iter_unpack(body[_TORN.size :]))
    elif record_type == VERSIONS:
        contents.versions = tuple(number for (number,) in _VERSION.iter_unpack(body[_VERSIONS.size :]))
