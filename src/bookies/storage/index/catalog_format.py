"""The catalog's file format: which ledgers there are, and what their index files hold, with checksums.

Index files are Apache's and have no checksums, and a file that is gone leaves no trace. The catalog makes good both: a
header and then records `uint32 length | uint32 crc32 of the body | body`, appended before index files are written. A
record names a ledger, its index header, and the crc32 of each page that is about to be written.

A page may still be as it was before: between a record and the next "settled" one a crash may have kept the page from
being written. So both checksums count until then.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bookies.runtime.ports import Buffer
from bookies.storage.index.index_format import HEADER_SIZE, SLOT_SIZE, IndexHeader, pack_header, parse_header
from bookies.storage.journal import LogMark

FILE_NAME = "index.catalog"
MAGIC = b"BKIC"
VERSION = 2
PAGE_SIZE_MAX = 1 << 24  # bytes
RECORD_SIZE_MAX = 64 << 20  # bytes; a ledger of 10**10 entries in one checkpoint is below it

ANY = -1  # in place of a checksum that nobody knows

LEDGER, DELETED, SETTLED, HOLE, HOLES_SETTLED, SYNCED, TORN = 1, 2, 3, 4, 5, 6, 7
RESET = 1  # flag: the index file is written anew, earlier pages are gone
PARTIAL = 2  # flag: the file has pages of which no checksum is known

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


@dataclass(slots=True)
class Known:
    """One ledger. `header`: of its index file, trailing zeros cut off; empty if it is not known.

    `pages`: number to crc32 of what is, or is about to be, in the file; 0 pages are absent. `older`: what may be there
    instead if a crash came in between. `is_partial`: pages that are not named are believed as they are. `is_fresh`: the
    file was about to be made when the catalog ended, so the journal has all that would be in it. `is_doubted`: the rest
    of the catalog is lost, so the file may be younger: then its header counts too, and its pages are built again.
    """

    header: bytes = b""
    pages: dict[int, int] = field(default_factory=dict)
    older: dict[int, tuple[int, ...]] = field(default_factory=dict)
    is_partial: bool = False
    is_fresh: bool = False
    is_doubted: bool = False

    def copy(self) -> Known:
        return dataclasses.replace(self, pages=dict(self.pages), older=dict(self.older))

    def index_header(self) -> IndexHeader | None:
        return parse_header(self.header.ljust(HEADER_SIZE, b"\0")) if self.header else None

    def expect(self, page: int, checksum: int, absent: int) -> None:
        """This page is about to be written. `absent`: the checksum of a page that is not there."""
        before = self.pages.get(page, ANY if self.is_partial else absent)
        is_anew = page in self.older and page not in self.pages  # What the file before had there is known.
        if before != checksum and not is_anew:
            self.older[page] = (*self.older.get(page, ()), before)
        self.pages[page] = checksum

    def is_exactly(self, pages: set[int], page_size: int) -> bool:
        """Whether these pages of a file, each as it should be, are certainly all there is to know."""
        header = self.index_header()
        if header is None or header.is_rebuilding or self.is_partial or self.is_fresh or self.is_doubted or self.older:
            return False
        absent = checksum_of(b"", page_size)
        return all(page in pages for page, checksum in self.pages.items() if checksum != absent)

    def reset(self) -> None:
        """The file is about to be replaced by a new one, which has every page; a crash may leave the one before."""
        for page, checksum in self.pages.items():
            self.older[page] = (*self.older.get(page, ()), checksum)
        self.pages = {}
        self.is_partial = False

    def is_right(self, page: int, data: Buffer, page_size: int) -> bool:
        """Whether that may be in the file; of pages that are not named, nothing may be unless some are unknown."""
        checksum = checksum_of(data, page_size)
        if page in self.older and (checksum in self.older[page] or ANY in self.older[page]):
            return True
        if page in self.pages:
            return checksum == self.pages[page]
        return self.is_partial or checksum == checksum_of(b"", page_size)


def checker(known: Known | None, page_size: int) -> Callable[[int, bytes], bool]:
    """Whether (page, data) may be in the file of a ledger, for a worker: as it is known now."""
    if known is None:
        return lambda page, data: True
    copy = known.copy()
    return lambda page, data: copy.is_right(page, data, page_size)


class Synced(NamedTuple):
    """How far the entry logs were durable: `log_id` up to byte `end`, all others as a whole up to `greatest_id`.

    No durable slot names anything behind that. `marks`: of each journal, none that was persisted is greater; from there
    on the journals have whatever else is in the logs, but for copies by a compaction whose source is still there.
    `run_id`: see `Directories`; only with the same one there it is about the same logs.
    """

    log_id: int
    end: int
    greatest_id: int
    marks: tuple[LogMark, ...] = ()
    run_id: bytes = bytes(16)


@dataclass
class Contents:
    """What a catalog says. `marks`: of the last checkpoint. `problem`: why the rest of the file was not believed.

    `doubtful_from`: the entry log from which on there may be copies that no slot names, if the bookie does not stop in
    an orderly way; -1 less that id if there are some in any case.

    `has_other_pages`: pages had another size then, so nothing can be compared with their checksums.

    `synced`: None if nobody knows. `torn`: entry log to the byte from which on it does not count: a power failure may
    have torn what was there, and a replay has written it again.
    """

    page_size: int
    ledgers: dict[int, Known] = field(default_factory=dict)
    marks: tuple[LogMark, ...] = ()
    holes: list[str] = field(default_factory=list)
    doubtful_from: int = 0
    problem: str = ""
    has_other_pages: bool = False
    synced: Synced | None = None
    torn: dict[int, int] = field(default_factory=dict)


def checksum_of(data: Buffer, page_size: int) -> int:
    """The crc32 of a page; what is missing of it counts as zeros."""
    checksum = zlib.crc32(data)
    return zlib.crc32(bytes(page_size - len(data)), checksum) if len(data) < page_size else checksum


def page_size_of(header: bytes) -> int | None:
    """What the first bytes of the file say of the page size; None if they are not what was written."""
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
    """`pages`: (number, crc32) of those that are about to be written."""
    return pack_known(ledger_id, trimmed(header), pages, flags)


def trimmed(header: IndexHeader) -> bytes:
    """The header without the zeros behind it; what `Known.header` holds."""
    return pack_header(header).rstrip(b"\0")


def pack_known(ledger_id: int, header: bytes, pages: Sequence[tuple[int, int]], flags: int) -> bytes:
    """As `pack_ledger`, with a trimmed header."""
    head = _LEDGER.pack(LEDGER, ledger_id, flags, len(header), len(pages))
    return _record(head + header + b"".join([_PAGE.pack(page, checksum) for page, checksum in pages]))


def pack_deleted(ledger_id: int) -> bytes:
    return _record(_DELETED.pack(DELETED, ledger_id))


def pack_settled(marks: Sequence[LogMark], doubtful_from: int = 0) -> bytes:
    """Everything above is in the index files; the marks that a checkpoint is about to persist.

    `doubtful_from`: see `Contents`.
    """
    packed = b"".join(_MARK.pack(*mark) for mark in marks)
    return _record(_SETTLED.pack(SETTLED, len(marks)) + packed + _LOG.pack(doubtful_from))


def pack_synced(synced: Synced) -> bytes:
    """How far the entry logs are durable, before index files may name anything in them."""
    *extent, marks, run_id = synced
    head = _SYNCED.pack(SYNCED, *extent, run_id, len(marks))
    return _record(head + b"".join(_MARK.pack(*mark) for mark in synced.marks))


def pack_torn(torn: Mapping[int, int]) -> bytes:
    """See `Contents`; all of them."""
    return _record(_TORN.pack(TORN, len(torn)) + b"".join(_LOG_END.pack(*each) for each in torn.items()))


def pack_hole(text: str) -> bytes:
    """A part of a journal was lost: of ledgers that are not known nothing may be denied."""
    return _record(bytes([HOLE]) + text.encode())


def pack_holes_settled() -> bytes:
    """Every ledger that there was is known again."""
    return _record(bytes([HOLES_SETTLED]))


def _record(body: bytes) -> bytes:
    return _RECORD.pack(len(body), zlib.crc32(body)) + body


def pack(contents: Contents) -> Iterator[bytes]:
    """The same contents as one file, in pieces."""
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
    yield pack_settled(contents.marks, contents.doubtful_from)


def parse(data: bytes, page_size: int) -> Contents:
    """What the file says, as far as it can be believed. `page_size`: of the index files now."""
    contents = Contents(page_size)
    size_then = page_size_of(data)
    if size_then is None:
        contents.problem = "its header is not that of a catalog of this version"
        return contents
    if size_then != page_size:
        contents.problem, page_size = f"pages had {size_then:,} bytes then", size_then
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
            contents.problem = f"the record at byte {at:,} is not what was written"
            break
        _apply(contents, body, unsettled, absent)
        is_settled = is_settled or body[0] == SETTLED
        at += _RECORD.size + size
    if not (is_settled or contents.problem):
        contents.problem = "it is cut off: it lacks a record that every catalog begins with"
    return contents


def _apply(contents: Contents, body: bytes, unsettled: dict[int, Known], absent: int) -> None:
    """One record, whose checksum is right."""
    kind = body[0]
    if kind == LEDGER:
        _, ledger_id, flags, header_size, count = _LEDGER.unpack_from(body)
        known = contents.ledgers.setdefault(ledger_id, Known(is_fresh=bool(flags & RESET)))
        if flags & RESET:
            known.reset()
        known.header = body[_LEDGER.size : _LEDGER.size + header_size]
        known.is_partial = bool(flags & PARTIAL)
        assert len(body) == _LEDGER.size + header_size + count * _PAGE.size
        for page, checksum in _PAGE.iter_unpack(body[_LEDGER.size + header_size :]):
            known.expect(page, checksum, absent)
        unsettled[ledger_id] = known
    elif kind == DELETED:
        contents.ledgers.pop(_DELETED.unpack_from(body)[1], None)
    elif kind == SETTLED:
        count = _SETTLED.unpack_from(body)[1]
        contents.marks = tuple(LogMark(*_MARK.unpack_from(body, _SETTLED.size + 16 * index)) for index in range(count))
        contents.doubtful_from = _LOG.unpack_from(body, _SETTLED.size + _MARK.size * count)[0]
        for known in unsettled.values():
            known.older.clear()
            known.is_fresh = False
        unsettled.clear()
    elif kind == HOLE:
        contents.holes.append(body[1:].decode("utf-8", "replace"))
    elif kind == HOLES_SETTLED:
        contents.holes.clear()
    elif kind == SYNCED:
        _, log_id, end, greatest_id, run_id, count = _SYNCED.unpack_from(body)
        marks = tuple(LogMark(*_MARK.unpack_from(body, _SYNCED.size + _MARK.size * index)) for index in range(count))
        contents.synced = Synced(log_id, end, greatest_id, marks, run_id)
    elif kind == TORN:
        contents.torn = dict(_LOG_END.iter_unpack(body[_TORN.size :]))
