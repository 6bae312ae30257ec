"""Fuzz targets: a bookie's files."""

from __future__ import annotations

import functools
import pathlib
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.fuzz.target import Target, accepted, check, equal, numbers, pread, round_trip

from bookies.errors import CorruptRecord
from bookies.kernels import Records, crc32c
from bookies.protocol.quorums import IdSet
from bookies.storage.checkpoint import failover
from bookies.storage.disks import directories, status_format
from bookies.storage.engine import quarantine_format
from bookies.storage.entry_log import entry_log_format
from bookies.storage.identity import cookie, former_ledgers_format
from bookies.storage.index import catalog_format, index_format, slot_scans
from bookies.storage.journal import LogMark, journal_format, journal_place, journal_trailer, log_mark_format
from bookies.storage.records import Batch, EndKind
from bookies.storage.records.record_scan import ScanEnd, Trust
from bookies.storage.rocksdb.rocksdb_format import pack_ledger_data, parse_ledger_data
from bookies.storage.scrub import scrub_format

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "storage"
JOURNAL_ID = 0x1A
Scan = Iterator[Batch | ScanEnd]


@functools.cache
def golden_files(case: str) -> dict[str, bytes]:
    """Return the files of one of Apache's bookies."""
    with tarfile.open(GOLDEN / case / "data.tar.gz") as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive if member.isfile()]
        return {name: file.read() for name, file in members if file is not None}


def _golden(case: str, suffix: str, size_max: int) -> list[bytes]:
    files = golden_files(case).items()
    return [data[:size_max] for name, data in files if name.endswith(suffix) and data]


# -- scans -------------------------------------------------------------------------------------------------------------


def scanned(scan: Callable[[int], Scan], data: bytes) -> tuple[list[tuple[Any, ...]], ScanEnd]:
    """Check a scan: its batches are the file's bytes, in order; the size of the pieces read changes nothing."""
    results: list[tuple[list[tuple[Any, ...]], ScanEnd]] = []
    for chunk_size in (1 << 20, 61):
        records: list[tuple[Any, ...]] = []
        items = list(scan(chunk_size))
        end = items.pop()
        assert isinstance(end, ScanEnd)
        position = 0
        for batch in items:
            assert isinstance(batch, Batch)
            check(len(batch.ids) == len(batch.records) > 0, "a batch without an id for each record", batch)
            for index, ids in enumerate(batch.ids):
                at, stop = (batch.offset + batch.records.starts[index + more] for more in (0, 1))
                check(position <= at < stop <= len(data), "records overlap or leave the file", at, stop, position)
                check(data[at + 4 : stop] == batch.records.body(index), "a record is not the file's bytes", at)
                check(struct.unpack_from(">qq", data, at + 4) == ids, "ids differ from the body's", at, ids)
                position = stop
                records.append((at, stop, ids, batch.trust))
        results.append((records, end))
    ends = [(end.kind, end.offset, end.next_record) for _, end in results]  # the texts of problems may differ
    equal((results[0][0], ends[0]), (results[1][0], ends[1]), "a scan depends on how much is read at once")
    return results[0]


def journal(data: bytes) -> None:
    """Any bytes as a journal, the newest and an older one, with and without a journal's id."""
    parsed = accepted(CorruptRecord, journal_format.parse_header, data[:512], len(data))
    if parsed is None:
        return
    where = len(data), parsed[1], parsed[0]
    for is_newest in (True, False):
        for journal_id in (JOURNAL_ID, None):
            options = {"is_newest": is_newest, "journal_id": journal_id}

            def scan(chunk_size: int, options: Any = options) -> Scan:
                return journal_format.scan(pread(data), *where, chunk_size=chunk_size, **options)

            _, end = scanned(scan, data)
            if not is_newest and end.kind is EndKind.TORN:
                check(end.offset >= len(data), "an older journal has a torn end", end)


def group(journal_data: bytes, records: bytes) -> bytes:
    """Append a group of records, with its padding and trailer."""
    end = journal_format.pack_group_end(JOURNAL_ID, len(journal_data), [records], len(records), 512)
    return journal_data + records + end


def sample_journal() -> bytes:
    data = journal_format.pack_header()
    for number in range(4):
        entry = Records.of([struct.pack(">qqqq", 7, number, number - 1, 40) + bytes([number]) * 9]).data
        key = journal_format.pack_ledger_key(7, b"k" * 20) if number == 0 else b""
        other = journal_format.pack_fence(3) if number == 2 else journal_format.pack_explicit_lac(7, b"l" * 24)
        data = group(data, key + entry + other)
    return data


SAMPLE = sample_journal()
LAST_GROUP = len(SAMPLE) - 512


def damaged_journal(data: bytes) -> None:
    """Overwrite parts of a journal that later groups follow: all records are there, or the scan reports the damage."""
    changed = bytearray(SAMPLE)
    while data:
        (at, size), data = numbers(data, 2)
        piece, data = data[: 1 + size % 24], data[1 + size % 24 :]
        at %= LAST_GROUP
        piece = piece[: LAST_GROUP - at]
        changed[at : at + len(piece)] = piece
    file = bytes(changed)
    parsed = accepted(CorruptRecord, journal_format.parse_header, file[:512], len(file))
    if parsed is None:
        return
    written = set(_records_of(SAMPLE, is_newest=True)[0])
    for is_newest in (True, False):
        found, end = _records_of(file, is_newest=is_newest)
        verified = {record for record in found if record[-1] is Trust.VERIFIED}
        check(verified <= written, "a verified record was never written", verified - written)
        intact = {(at, ids, file[at:stop]) for at, stop, ids, _ in found} >= {
            (at, ids, SAMPLE[at:stop]) for at, stop, ids, _ in written
        }
        reported = end.kind is EndKind.CORRUPT or end.next_record is not None
        check(intact or reported, "a record is missing, and the scan does not report it", end, is_newest)


def _records_of(file: bytes, *, is_newest: bool) -> tuple[list[tuple[Any, ...]], ScanEnd]:
    version, start = journal_format.parse_header(file[:512], len(file))
    scan = journal_format.scan(pread(file), len(file), start, version, is_newest=is_newest, journal_id=JOURNAL_ID)
    *batches, end = scan
    assert isinstance(end, ScanEnd)
    records = [
        (batch.offset + batch.records.starts[index], batch.offset + batch.records.starts[index + 1], ids, batch.trust)
        for batch in batches
        if isinstance(batch, Batch)
        for index, ids in enumerate(batch.ids)
    ]
    return records, end


def packed_trailer(found: journal_trailer.Trailer) -> bytes:
    fields = struct.pack(">4sIqqI", journal_trailer.MAGIC, found.size, found.journal_id, found.start, found.checksum)
    return fields + struct.pack(">I", crc32c(fields))


def trailer(data: bytes) -> None:
    (at, offset), rest = numbers(data, 2)
    at %= len(rest) + 1
    found = journal_trailer.parse_trailer(rest, at, offset, None)
    if found is not None:
        equal(packed_trailer(found), rest[at : at + journal_trailer.TRAILER_SIZE], "pack(parse(b)) is not b")
    fields = rest[: journal_trailer.TRAILER_SIZE - 4]
    sealed = fields + struct.pack(">I", crc32c(fields))
    known = journal_trailer.parse_trailer(sealed, 0, offset, None)
    if known is not None:
        equal(packed_trailer(known), sealed, "pack(parse(b)) is not b")
        check(known.start + known.size == offset, "a trailer of another place", known, offset)
    journal_trailer.find_group(pread(rest), len(rest), at, None)


def entry_log(data: bytes) -> None:
    accepted(CorruptRecord, entry_log_format.parse_header, data)
    start = min(entry_log_format.HEADER_SIZE, len(data))
    scanned(lambda chunk: entry_log_format.scan(pread(data), len(data), start, chunk_size=chunk), data)
    # A short header, so that the search reaches the records and the map behind it.
    short = data[:24].ljust(entry_log_format.HEADER_SIZE, b"\0") + data[24:]
    scanned(lambda chunk: entry_log_format.scan(pread(short), len(short), chunk_size=chunk), short)
    for file in (data, short):
        ledgers = entry_log_format.read_ledgers_map(pread(file), len(file))
        if ledgers is not None:
            check(len(ledgers) > 0 and min(ledgers.values()) >= 0, "an empty or negative map", ledgers)
            check(sum(ledgers.values()) <= len(file), "a map of more bytes than the log has", ledgers)


def sample_log() -> bytes:
    records = Records.of([struct.pack(">qqqq", 7, number, 0, 9) + bytes(9) for number in range(4)]).data
    size = entry_log_format.HEADER_SIZE + len(records)
    header = entry_log_format.pack_header(size, 2)
    return header + records + entry_log_format.pack_ledgers_map([(7, len(records) // 2), (9, len(records) // 2)])


# -- index and catalog -------------------------------------------------------------------------------------------------


def index_file(data: bytes) -> None:
    header = round_trip(index_format.parse_header, index_format.pack_header, CorruptRecord, data)
    if header is not None and not data[: index_format.HEADER_SIZE].strip(b"\0"):
        check(False, "zeros are an index header", header)
    slots = list(index_format.iterate_slots(data, 3))
    whole = data[: len(data) - len(data) % 8]
    runs = slot_scans.entry_runs(iter([(3, whole)]))
    equal([entry for run in runs for entry in run], [entry for entry, _ in slots], "runs and slots differ")
    size, log_ids = slot_scans.size_and_logs(iter([(3, whole)]))
    equal(size, len(whole), "the bytes of slots")
    for log_id in log_ids[:4]:
        naive = {
            offset for _, slot in slots if (slot & (1 << 64) - 1) >> 32 == log_id and (offset := slot & 0xFFFFFFFF)
        }
        greatest = slot_scans.greatest_offsets(iter([(3, whole)]), [log_id]).get(log_id)
        equal(greatest, max(naive, default=None), "the greatest offset differs from the slots")
        equal(slot_scans.least_offset(iter([(3, whole)]), log_id, 0), min(naive, default=None), "the least offset")


def catalog(data: bytes) -> None:
    """A catalog of any bytes, and one whose records have right checksums and any content."""
    catalog_format.parse(data, 64)
    sealed = catalog_format.pack_file_header(64)
    while data:
        size, body, data = data[0], data[1 : 1 + data[0]], data[1 + data[0] :]
        sealed += struct.pack(">II", size, zlib.crc32(body)) + body
    contents = catalog_format.parse(sealed, 64)
    again = catalog_format.parse(b"".join(catalog_format.pack(contents)), 64)
    equal(again.problem, "", "a packed catalog is damaged")
    kept = [(c.marks, c.holes, c.uncounted_from, c.synced, c.torn) for c in (contents, again)]
    equal(kept[1], kept[0], "parse(pack(x)) is not x")
    pages = [{ledger: (known.header, known.pages) for ledger, known in c.ledgers.items()} for c in (contents, again)]
    equal(pages[1], pages[0], "parse(pack(x)) is not x")


def _catalogs() -> list[bytes]:
    layout = catalog_format
    records = [
        layout.pack_ledger(7, index_format.IndexHeader(b"k" * 20), [(0, 5), (2, 6)], layout.RESET),
        layout.pack_deleted(7),
        layout.pack_hole("a hole"),
        layout.pack_holes_settled(),
        layout.pack_torn({3: 4096}),
        layout.pack_synced(layout.Synced(1, 2048, 1, (LogMark(5, 6),), b"r" * 16)),
        layout.pack_settled([LogMark(1, 2), LogMark(3, 4)], 9),
    ]
    bodies = [record[8:] for record in records]
    whole = layout.pack_file_header(64) + b"".join(records)
    return [whole, b"".join(bytes([len(body)]) + body for body in bodies)]


# -- small files -------------------------------------------------------------------------------------------------------


def _sealed(magic: bytes, body: bytes) -> bytes:
    """Return a file of quarantine's or the scrub's form, whose checksum is right."""
    count = len(body) if magic == scrub_format.MAGIC else len(body) // 17
    data = struct.pack(">4sIQI", magic, 1, 9, count) + body
    return data + struct.pack(">I", crc32c(data))


def small_files(data: bytes) -> None:
    """Every other file of a bookie, chosen by the first byte."""
    kind, rest = (data[0], data[1:]) if data else (0, b"")
    if kind == 0:
        accepted(CorruptRecord, cookie.parse, rest)
        round_trip(cookie.parse, cookie.Cookie.pack, CorruptRecord, b"5\n" + rest)
    elif kind == 1:
        round_trip(log_mark_format.parse, log_mark_format.pack, (), rest)
        log_mark_format.distinct([rest, rest[:16], rest[16:]])
    elif kind == 2:
        round_trip(status_format.parse, status_format.StatusRecord.pack, CorruptRecord, rest)
    elif kind == 3:
        for file in (rest, _sealed(quarantine_format.MAGIC, rest)):
            found = accepted(CorruptRecord, quarantine_format.parse, file)
            if found is not None:
                again = quarantine_format.parse(quarantine_format.pack(*found))
                equal(again, found, "parse(pack(x)) is not x")
    elif kind == 4:
        for file in (rest, _sealed(scrub_format.MAGIC, rest)):
            progress = accepted(CorruptRecord, scrub_format.parse, file)
            if progress is not None:
                equal(scrub_format.parse(scrub_format.pack(*progress)), progress, "parse(pack(x)) is not x")
    elif kind == 5:
        for file in (rest, rest + b"%08x\n" % zlib.crc32(rest)):
            place = journal_place.parse(file)
            if place is not None:
                equal(journal_place.parse(journal_place.pack(*place)), place, "parse(pack(x)) is not x")
    elif kind == 6:
        for file in (rest, rest + b"%08x\n" % zlib.crc32(rest)):
            note = failover.parse_note(file)
            packed = failover.pack_note(note)
            equal(failover.pack_note(failover.parse_note(packed)), packed, "pack(parse(b)) is not b, for what we wrote")
    elif kind == 7:
        directories.parse_run_id(rest)
        entry_log_format.parse_last_id(rest)
    elif kind == 8:
        header = accepted(CorruptRecord, parse_ledger_data, rest, "ledgers", 7)
        if header is not None:
            equal(parse_ledger_data(pack_ledger_data(header), "ledgers", 7), header, "parse(pack(x)) is not x")
    else:
        names(rest.decode("utf-8", "replace"))


def names(text: str) -> None:
    """File names: a number that is accepted is a number that can be written."""
    for parse, form in (
        (journal_format.parse_file_name, journal_format.file_name),
        (entry_log_format.parse_file_name, entry_log_format.file_name),
        (index_format.parse_path, index_format.path_of),
        (journal_format.parse_newest_name, journal_format.newest_name),
    ):
        number = parse(text)
        if number is not None:
            equal(parse(form(number)), number, "parse(name(x)) is not x")
    index_format.parse_relocating_path(text)
    entry_log_format.parse_compacted_name(text)
    log_mark_format.parse_file_name(text)


def former_ledgers(data: bytes) -> None:
    """The list of former ledgers, as it is and with a right checksum."""
    for file in (data, data + b"crc32c %08x\n" % crc32c(data)):
        ids = accepted(CorruptRecord, former_ledgers_format.parse, file)
        if ids is not None:
            check(ids.runs == sorted(ids.runs), "the runs are not ascending", ids.runs)
            again = former_ledgers_format.parse(former_ledgers_format.pack(ids))
            equal((again.bound, again.runs), (ids.bound, ids.runs), "parse(pack(x)) is not x")


def _former_ledgers() -> Sequence[bytes]:
    ids = IdSet(1207)
    for start, stop in ((500_000, 500_004), (700_000, 700_001)):
        ids.add(start, stop)
    packed = former_ledgers_format.pack(ids)
    whole = former_ledgers_format.pack(IdSet(former_ledgers_format.ALL_LEDGERS))
    return [
        packed,
        packed[: packed.index(b"crc32c")],
        whole,
        b"formerLedgers 1\nbelow %d\n%d\n" % (10**19 - 1, 10**19 - 1),
    ]


def _small_files() -> list[bytes]:
    removed = {7: quarantine_format.QuarantineRecord(quarantine_format.QuarantineState.PINNED, 5)}
    progress = scrub_format.Progress(1, 2, 3, logs={4: scrub_format.LogProgress(5)})
    progress.findings.append(scrub_format.Finding(4, 0, 7, 1, 2, "digest", 9))
    packed = scrub_format.pack(3, progress)
    chosen = [*_golden("interleaved-v6-clean", "VERSION", 400)[:1], b"3\nhost:3181\n/j\n1\t/l\n", b"4\n"]
    seeds = [(0, file) for file in chosen] + [(1, bytes(15) + b"\x07"), (2, b"1,READ_ONLY,1700000000000,true\n")]
    seeds += [(3, quarantine_format.pack(1, removed, b"i" * 16)), (3, struct.pack(">qqB", 7, 5, 1)), (4, packed)]
    seeds += [(4, packed[20:-4]), (4, b"[]"), (5, journal_place.pack(1, 2)), (5, b"journal 1 of 2\n")]
    seeds += [(6, failover.pack_note(failover.Note(["/l1"], {5: 4096}))), (6, b'{"failed": [], "lost": {"f": 1}}\n')]
    seeds += [(7, b"0123456789abcdef" * 2 + b"\n"), (7, b"1f\n")]
    seeds += [(8, pack_ledger_data(index_format.IndexHeader(b"k" * 20, 3, b"l" * 20)))]
    seeds += [(9, name) for name in (b"1f.txn", b"1f.log", b"0/1f/1f.idx", b"lastMark.1", b"1f.log.2.compacted")]
    return [bytes([kind]) + file for kind, file in seeds]


def _journals() -> Sequence[bytes]:
    apache = [_golden(case, ".txn", 4096)[0] for case in ("interleaved-v6-crash", "sorted-v5-crash", "sorted-v4-crash")]
    return [SAMPLE, SAMPLE[:1100], *apache]


TARGETS = [
    Target("journal", journal, _journals, 4096),
    Target("journal-damage", damaged_journal, lambda: [struct.pack(">HHB", 600, 0, 9)], 256),
    Target("journal-trailer", trailer, lambda: [bytes(4) + SAMPLE[512 + 512 - 36 : 1024]], 1200),
    Target("entry-log", entry_log, lambda: [sample_log(), *_golden("compaction-plain-before", "2.log", 2104)], 3000),
    Target("index-file", index_file, lambda: [*_golden("interleaved-v6-clean", ".idx", 1200)[:3]], 1200),
    Target("catalog", catalog, _catalogs, 1024),
    Target("small-files", small_files, _small_files, 1024),
    Target("former-ledgers", former_ledgers, _former_ledgers, 1024),
]
