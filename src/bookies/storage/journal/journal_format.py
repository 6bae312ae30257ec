"""The journal's file format: names, header, records, padding, and the scanner that replay and inspection use.

A file is a header and then records `int32 length | int64 ledger | int64 entry | rest`. Entry ids from 0 on are entries,
stored as the client sent them; negative ids are notes about the ledger. From version 5 on, groups of records begin on
multiples of the alignment, and padding records fill the gaps. Zeros end the data. Our groups have a trailer with a
checksum inside their padding (`journal_trailer`); those of Apache's bookie and of our earlier versions have none.

Source: storage 2.1 to 2.5, 2.10.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence

from bookies import kernels
from bookies.errors import CorruptRecord
from bookies.kernels import Records
from bookies.runtime.ports import Buffer
from bookies.storage.journal import journal_trailer
from bookies.storage.records import Batch, EndKind
from bookies.storage.records.record_scan import (
    CHUNK_SIZE,
    IDS,
    RECORD_SIZE_MAX,
    RECORD_SIZE_MIN,
    WORD,
    Pread,
    ScanEnd,
    Trust,
    Window,
    run_ids,
)

MAGIC = b"BKLG"
VERSION = 6  # the version that we write
SEALED_VERSION = 0x53454136  # version 6 with sealed entries, which Apache's bookie refuses to replay
HEADER_SIZES = {
    1: 0,
    2: 8,
    3: 8,
    4: 8,
    5: 512,
    6: 512,
    SEALED_VERSION: 512,
}  # bytes, by version; records begin after the header
HEADER_SIZE = HEADER_SIZES[VERSION]
PADDING_VERSION = 5  # the first version with padding records
PADDING_MASK = 0xFFFFFF00
ALIGNMENT = 512  # bytes; every valid alignment is a multiple of it

LEDGER_KEY = -0x1000  # int32 size, master key
FENCE = -0x2000  # no content
FORCE_LEDGER = -0x4000  # never written
EXPLICIT_LAC = -0x8000  # int32 size, explicit-LAC body as the client sent it
VERSION_OF_SPECIAL = {LEDGER_KEY: 3, FENCE: 4, EXPLICIT_LAC: 6}  # the first version that may contain it

_PADDING_MASK_BYTES = WORD.pack(PADDING_MASK)
_PADDING_REACH = 8192  # bytes; padding of the usual alignments (512, 4096) is shorter
_SPECIAL = struct.Struct(">IqqI")
_FENCE_RECORD = struct.Struct(">Iqq")
_PADDING = struct.Struct(">II")
_NAME = re.compile(r"([0-9a-fA-F]{1,16})\.txn")
_NEWEST_NAME = re.compile(r"([0-9a-f]{1,16})\.newest")


def file_name(journal_id: int) -> str:
    return f"{journal_id:x}.txn"


def parse_file_name(name: str) -> int | None:
    """Return the journal's id, or None if the name is not that of a journal file."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def pack_header(version: int = VERSION) -> bytes:
    """Return the header of a new file. `version`: 4 to 6, or the sealed one. Source: storage 2.2."""
    assert version >= 4
    return (MAGIC + WORD.pack(version)).ljust(HEADER_SIZES[version], b"\0")


def newest_name(journal_id: int) -> str:
    """Return the name of our empty file that names the newest journal. It reveals that the newest one is missing."""
    return f"{journal_id:x}.newest"


def parse_newest_name(name: str) -> int | None:
    """Return the id in the name of a `.newest` file, or None for any other name."""
    match = _NEWEST_NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def parse_header(first: bytes, file_size: int, *, path: str = "journal") -> tuple[int, int]:
    """Return (version, offset of the first record). `first`: at least 24 bytes of the file, or the whole file.

    F-3: a file that is shorter than its header, and a prefix of a valid one, is an empty journal. The offset then lies
    beyond the end of the file. Raises CorruptRecord for an unknown version, and for a start that is neither a header
    nor a version 1 record.
    """
    head = first[:8]
    if len(head) < 8 and head == (MAGIC + b"\0\0\0")[: len(head)]:
        return VERSION, HEADER_SIZE
    if head[:4] == MAGIC and len(head) == 8:
        version = WORD.unpack_from(head, 4)[0]
        if version not in HEADER_SIZES:
            raise CorruptRecord(f"journal version {version}: versions 1 to {VERSION} are known", path=path, offset=4)
        return version, HEADER_SIZES[version]
    if len(first) >= 20 and head[:4] != bytes(4):
        length, ledger_id, entry_id = _FENCE_RECORD.unpack_from(first)
        if not RECORD_SIZE_MIN <= length <= file_size - 4 or ledger_id < 0 or entry_id < 0:
            raise CorruptRecord("neither a journal header nor a version 1 record", path=path, offset=0)
    return 1, 0


def pack_ledger_key(ledger_id: int, key: bytes) -> bytes:
    """Return a LEDGER_KEY record, length word included: the ledger exists and has this master key."""
    return _SPECIAL.pack(20 + len(key), ledger_id, LEDGER_KEY, len(key)) + key


def pack_fence(ledger_id: int) -> bytes:
    """Return a FENCE record, length word included."""
    return _FENCE_RECORD.pack(16, ledger_id, FENCE)


def pack_explicit_lac(ledger_id: int, body: bytes) -> bytes:
    """Return an EXPLICIT_LAC record, length word included. `body`: ledger id, LAC, digest as the client sent them."""
    return _SPECIAL.pack(20 + len(body), ledger_id, EXPLICIT_LAC, len(body)) + body


def parse_special(body: bytes) -> bytes:
    """Return the key of a LEDGER_KEY body, or the explicit-LAC body of an EXPLICIT_LAC body."""
    return body[20:]


def padding_size(position: int, alignment: int = ALIGNMENT, room: int = 0) -> int:
    """Return the size in bytes of the padding record, with at least `room` bytes of content, for a group's end."""
    gap = -position % alignment
    return gap if (gap == 0 and room == 0) or gap >= 8 + room else alignment + gap


def pack_padding(position: int, alignment: int = ALIGNMENT, room: int = 0) -> bytes:
    """Return the padding record for a group that ends at file offset `position`; empty if none is needed.

    If the gap is too small for the record's own 8 bytes and `room` bytes of content, the record extends into the next
    unit. Source: storage 2.4.
    """
    size = padding_size(position, alignment, room)
    return _PADDING.pack(PADDING_MASK, size - 8).ljust(size, b"\0") if size else b""


def pack_group_end(journal_id: int, start: int, buffers: Sequence[Buffer], size: int, alignment: int) -> bytes:
    """Return the padding with the trailer for the group of `buffers`, `size` bytes in all, at file offset `start`."""
    padding = pack_padding(start + size, alignment, journal_trailer.TRAILER_SIZE)
    return journal_trailer.seal(journal_id, start, buffers, size, padding)


def find_wrong_version(pread: Pread, size: int, start: int, version: int, journal_id: int | None) -> ScanEnd | None:
    """Return the end of a scan from `start` on, if the header's version is damaged: no older file has trailers.

    `next_record` is the next group with a trailer. Damage to the first bytes may look like a version 1 record, whose
    length covers the real ones.
    """
    if version >= PADDING_VERSION or not journal_trailer.find_group(pread, size, 0, journal_id):
        return None
    follows = journal_trailer.find_group(pread, size, max(start - 1, 0), journal_id)
    damage = f"groups with trailers, which no journal of version {version} has: the header is damaged"
    return ScanEnd(EndKind.CORRUPT, start, damage, size if follows is None else follows.start)


def scan(
    pread: Pread,
    size: int,
    start: int,
    version: int,
    *,
    is_newest: bool,
    journal_id: int | None = None,
    record_size_max: int = RECORD_SIZE_MAX,
    chunk_size: int = CHUNK_SIZE,
    search: Pread | None = None,
) -> Iterator[Batch | ScanEnd]:
    """Yield batches of credible records from file offset `start` on, then one `ScanEnd`.

    `search`: a `pread` for the bytes after an early end, which are mostly holes.

    Records with unknown negative entry ids are delivered: the caller skips them with a warning.

    Groups with trailers (of `journal_id`; None: of any journal) are delivered after they were checked. The scan ends as
    CORRUPT at the first group that is damaged or missing before a later one; `next_record` is the offset of that later
    group.

    Otherwise, in the newest file of a journal, an unreadable place is where a crash interrupted the writing (TORN). If
    a group follows nevertheless, `next_record` is its offset: a writer that syncs each group before it writes the next
    one has then acknowledged the missing records. In older files a TORN end is CORRUPT. So is an early end, zeros or
    not, if a record seems to begin on a later multiple of 512. After replay the mark must point to the end of the file,
    not of the scan; otherwise the rest counts as damage once the file is no longer the newest.

    Source: storage 2.10.
    """
    window = Window(pread, size, start, chunk_size)
    group = _Group(search or pread, size, window.position, is_newest, journal_id)
    end: ScanEnd | None = None
    if (damage := find_wrong_version(search or pread, size, window.position, version, journal_id)) is not None:
        yield damage
        return
    while end is None:
        starts, reason = kernels.scan_records(window.data, window.at, len(window.data), record_size_max)
        batch, problem = _check(window, starts, version)
        if batch is not None:
            group.batches.append(batch)
            window.at = batch.records.starts[-1]
            if version < PADDING_VERSION or batch.end - group.start > journal_trailer.SIZE_MAX:
                yield from group.take(Trust.UNPROVEN, batch.end)
        if problem is not None:
            end = ScanEnd(problem[0], window.position, problem[1])
        elif reason in ("end", "short"):
            end = _fill(window)
        elif reason == "zero":
            end = ScanEnd(EndKind.CLEAN, window.position, "zeros follow")
        elif reason == "negative" and window.word() == PADDING_MASK and version >= PADDING_VERSION:
            padding_at = window.position
            end = _skip_padding(window)
            if end is None:
                trust, end = group.check(window, padding_at)
                yield from group.take(trust, window.position)
                if end is not None:
                    yield end
                    return
        else:
            end = ScanEnd(EndKind.TORN, window.position, f"no record can begin with {window.word():#010x}")
    trust, end = group.judge(end, record_size_max)
    yield from group.take(trust, end.offset)
    yield end


class _Group:
    """The undelivered records of a group, and the check of them against the group's trailer."""

    def __init__(self, pread: Pread, size: int, start: int, is_newest: bool, journal_id: int | None) -> None:
        self.start = start
        self.batches: list[Batch] = []
        self._pread = pread
        self._size = size
        self._is_newest = is_newest
        self._journal_id = journal_id
        self._has_trailers = False  # earlier groups of this scan have trailers

    def take(self, trust: Trust, end: int) -> Iterator[Batch]:
        """Yield the records read so far; the next group begins at `end`."""
        for batch in self.batches:
            yield batch if trust is batch.trust else Batch(batch.offset, batch.records, batch.ids, trust)
        self.batches.clear()
        self.start = end

    def check(self, window: Window, padding_at: int) -> tuple[Trust, ScanEnd | None]:
        """Check the group against its trailer. The padding has been read, and the window is after it."""
        place = window.position - journal_trailer.TRAILER_SIZE
        has_room = place >= padding_at + 8
        data = window.read(journal_trailer.TRAILER_SIZE, place) if has_room else b""
        trailer = journal_trailer.parse_trailer(data, 0, place, self._journal_id)
        if trailer is None:
            if not self._has_trailers and not data.strip(b"\0"):
                return Trust.UNPROVEN, None  # not written by us
            foreign = journal_trailer.parse_trailer(data, 0, place, None)
            if foreign is not None:
                self.batches.clear()  # the group belongs to another journal
                return self._damaged(f"a group of journal {foreign.journal_id:x}", may_be_torn=False)
            problem = "the trailer of a group is damaged"
        elif trailer.start < self.start:
            return Trust.UNPROVEN, None  # the scan began within the group
        elif trailer.start > self.start:
            problem = "a record reaches into the next group"
        elif trailer.matches(self._contents(window, place)):
            self._has_trailers = True
            return Trust.VERIFIED, None
        else:
            problem = "the records of a group do not match its checksum"
        return self._damaged(problem, may_be_torn=self._is_newest)

    def _contents(self, window: Window, end: int) -> Iterator[Buffer]:
        """Yield the group's bytes up to file offset `end`; most are in memory, as records."""
        at = self.start
        for batch in self.batches:
            records = batch.records
            first = batch.offset + records.starts[0]
            if first > at:
                yield window.read(first - at, at)
            yield memoryview(records.data)[records.starts[0] : records.starts[-1]]
            at = batch.end
        yield window.read(end - at, at)

    def _damaged(self, problem: str, *, may_be_torn: bool) -> tuple[Trust, ScanEnd | None]:
        """Judge a group that differs from what was written. No end: it is the last, and a crash may have torn it."""
        later = journal_trailer.find_group(self._pread, self._size, self.start, self._journal_id)
        if later is None and may_be_torn:
            return Trust.UNPROVEN, None
        follows = self._size if later is None else later.start
        return Trust.DAMAGED, ScanEnd(EndKind.CORRUPT, self.start, problem, follows)

    def judge(self, end: ScanEnd, record_size_max: int) -> tuple[Trust, ScanEnd]:
        """Decide whether an early end is damage, and how far the group it ended in can be trusted."""
        if self.start < self._size:  # for every version, because the version itself may be damaged
            trust, hole = self._damaged(f"{end.problem}, yet groups go on", may_be_torn=True)
            if hole is not None:
                return trust, hole
        end = _judge(self._pread, self._size, end, self._is_newest, record_size_max)
        is_hole = end.kind is EndKind.CORRUPT or end.next_record is not None
        return (Trust.DAMAGED if is_hole and self._has_trailers else Trust.UNPROVEN), end


def _check(window: Window, starts: Sequence[int], version: int) -> tuple[Batch | None, tuple[EndKind, str] | None]:
    """Return (the batch up to the first record that is not credible, the problem of that record)."""
    data, problem = window.data, None
    unpack = IDS.unpack_from
    ids: list[tuple[int, int]] = []
    if len(starts) > 1 and (entries := run_ids(data, starts)) is not None:
        return Batch(window.base, Records(data, starts), entries), None
    for index in range(len(starts) - 1):
        at = starts[index]
        length = starts[index + 1] - at - 4
        if length < RECORD_SIZE_MIN:
            problem = EndKind.TORN, f"no record has {length} bytes"
            break
        pair = unpack(data, at + 4)
        if pair[0] < 0 or pair[1] < 0:
            problem = _problem_of_special(data, at, length, pair, version)
            if problem is not None:
                break
        ids.append(pair)
    if not ids:
        return None, problem
    return Batch(window.base, Records(data, starts[: len(ids) + 1]), ids), problem


def _problem_of_special(
    data: bytes, at: int, length: int, ids: tuple[int, int], version: int
) -> tuple[EndKind, str] | None:
    ledger_id, entry_id = ids
    if ledger_id < 0:
        return EndKind.TORN, f"no record has ledger id {ledger_id}"
    if entry_id == FENCE and length != 16:
        return EndKind.TORN, f"no fence record has {length} bytes"
    if entry_id in (LEDGER_KEY, EXPLICIT_LAC) and (length < 20 or WORD.unpack_from(data, at + 20)[0] != length - 20):
        return EndKind.TORN, f"sizes outside and inside a record of kind {entry_id} differ"
    if version < VERSION_OF_SPECIAL.get(entry_id, 0):
        return EndKind.CORRUPT, f"a journal of version {version} cannot hold a record of kind {entry_id}"
    return None


def _fill(window: Window) -> ScanEnd | None:
    """Read the whole next record into the window; return the end of the scan if there is none."""
    if not window.has(4):
        left = window.remaining()
        if left <= 0:
            return ScanEnd(EndKind.CLEAN, window.position, "end of file")
        return ScanEnd(EndKind.TORN, window.position, f"{left} bytes are left at the end of the file")
    length = window.word()
    if length >= 1 << 31:
        window.has(8)  # padding or garbage: the next iteration decides
    elif length > window.remaining() - 4:
        return ScanEnd(EndKind.TORN, window.position, f"a record of {length:,} bytes is cut off by the end of the file")
    else:
        window.has(4 + length)
    return None


def _skip_padding(window: Window) -> ScanEnd | None:
    total = 8 + WORD.unpack_from(window.data, window.at + 4)[0] if window.has(8) else 8
    if total > window.remaining():
        return ScanEnd(EndKind.TORN, window.position, "padding is cut off by the end of the file")
    window.at += total
    return None


def _judge(pread: Pread, size: int, end: ScanEnd, is_newest: bool, record_size_max: int) -> ScanEnd:
    """Search for records after an early end, and decide whether it is damage."""
    if end.kind is EndKind.CORRUPT or end.offset >= size:
        return end
    next_record = find_record(pread, size, end.offset, record_size_max, after_padding=is_newest)
    if is_newest:
        return ScanEnd(end.kind, end.offset, end.problem, next_record)
    if next_record is not None:
        return ScanEnd(
            EndKind.CORRUPT, end.offset, f"{end.problem}, yet records go on at byte {next_record:,}", next_record
        )
    return end if end.kind is EndKind.CLEAN else ScanEnd(EndKind.CORRUPT, end.offset, end.problem)


def find_record(pread: Pread, size: int, offset: int, record_size_max: int, *, after_padding: bool) -> int | None:
    """Return the first multiple of 512 after `offset` where a credible record, and a credible successor, begin.

    `after_padding`: only where a padding record ends. That is certainly the start of a group; other places may be in
    the middle of a group that a crash tore apart.
    """
    position = offset - offset % ALIGNMENT + ALIGNMENT
    while position + 20 <= size:
        base = max(offset, position - _PADDING_REACH)
        data = pread(min(CHUNK_SIZE, size - base), base)
        stop = base + len(data) - 20  # the last place whose first 20 bytes are in `data`
        if stop < position:
            return None  # the file became shorter meanwhile
        if journal_trailer.is_zero(data):
            position = stop - stop % ALIGNMENT + ALIGNMENT
        while position <= stop:
            at = position - base
            if (not after_padding or _ends_padding(data, at)) and _begins_records(
                pread, size, position, data[at : at + 20], record_size_max
            ):
                return position
            position += ALIGNMENT
    return None


def _begins_records(pread: Pread, size: int, position: int, head: bytes, record_size_max: int) -> bool:
    """Report whether a record seems to begin at `position`, followed by a record, padding, zeros or the file's end."""
    if not _is_record(head, size - position, record_size_max):
        return False
    follows = position + 4 + WORD.unpack_from(head)[0]
    next_head = pread(20, follows)
    word = next_head[:4].ljust(4, b"\0")
    return word in (bytes(4), _PADDING_MASK_BYTES) or _is_record(next_head, size - follows, record_size_max)


def _is_record(head: bytes, size: int, record_size_max: int) -> bool:
    """Report whether the first 20 of `size` bytes could begin a record."""
    if len(head) < 20:
        return False
    length, ledger_id, entry_id = _FENCE_RECORD.unpack(head)
    return (
        RECORD_SIZE_MIN <= length <= min(record_size_max, size - 4)
        and ledger_id >= 0
        and (entry_id >= 0 or entry_id in VERSION_OF_SPECIAL)
    )


def _ends_padding(data: bytes, at: int) -> bool:
    """Report whether a padding record ends at `data[at]`."""
    mask = data.rfind(_PADDING_MASK_BYTES, max(0, at - _PADDING_REACH), at)
    return 0 <= mask <= at - 8 and mask + 8 + WORD.unpack_from(data, mask + 4)[0] == at
