"""Files of Apache's bookies: what we read is what Apache's bookie answered, what we write is what it wrote.

Each case is an archive of a bookie's directories and what the bookie served from them (`expected.json`).
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import posixpath
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from bookies.errors import CookieMismatch, CorruptRecord
from bookies.kernels import Records
from bookies.storage.entry_log import entry_log_format
from bookies.storage.identity import admission, cookie
from bookies.storage.index import index_format
from bookies.storage.journal import journal_format, log_mark_format
from bookies.storage.records import Batch, EndKind
from bookies.storage.records.record_scan import ScanEnd

GOLDEN = pathlib.Path(__file__).parent / "storage"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/data.tar.gz"))
FENCED_IN_JOURNAL_ONLY = 6  # Apache's replay loses this fence, because no key record precedes it; ours must not
Files = dict[str, bytes]


@cache
def _archive(path: pathlib.Path) -> Files:
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}  # type: ignore[union-attr]


def _case(name: str) -> tuple[Files, dict[str, Any]]:
    return _archive(GOLDEN / name / "data.tar.gz"), json.loads((GOLDEN / name / "expected.json").read_text())


def _pread(data: bytes) -> Callable[[int, int], bytes]:
    return lambda size, offset: data[offset : offset + size]


def _named(files: Files, parse: Callable[[str], int | None]) -> dict[str, int]:
    """Paths directly in a `current` whose name `parse` knows, with what it makes of it."""
    found = {}
    for path in files:
        directory, name = posixpath.split(path)
        number = parse(name)
        if number is not None and posixpath.basename(directory) == "current":
            found[path] = number
    return found


def _scan_journal(data: bytes, *, start: int | None = None, is_newest: bool = True) -> tuple[list[Batch], ScanEnd, int]:
    version, first = journal_format.parse_header(data[:512], len(data))
    *batches, end = journal_format.scan(_pread(data), len(data), start or first, version, is_newest=is_newest)
    assert isinstance(end, ScanEnd)
    return [batch for batch in batches if isinstance(batch, Batch)], end, version


def _scan_log(data: bytes) -> tuple[list[Batch], ScanEnd]:
    *batches, end = entry_log_format.scan(_pread(data), len(data))
    assert isinstance(end, ScanEnd)
    return [batch for batch in batches if isinstance(batch, Batch)], end


@dataclass
class Ledger:
    """What files say about one ledger."""

    key: bytes = b""
    is_fenced: bool = False
    explicit_lac: bytes = b""
    bodies: dict[int, bytes] = field(default_factory=dict)


def _indexed(files: Files) -> dict[int, Ledger]:
    """Ledgers of the index files, with the bodies their slots point to."""
    logs = {log_id: files[path] for path, log_id in _named(files, entry_log_format.parse_file_name).items()}
    ledgers = {}
    for path, data in files.items():
        ledger_id = index_format.parse_path(path)
        if ledger_id is None:
            continue
        header = index_format.parse_header(data, path=path)
        ledger = Ledger(header.master_key, header.is_fenced, header.explicit_lac)
        for entry_id, number in index_format.iterate_slots(data[index_format.HEADER_SIZE :], 0):
            log_id, offset = entry_log_format.split_location(number)
            size = int.from_bytes(logs[log_id][offset - 4 : offset], "big")
            ledger.bodies[entry_id] = logs[log_id][offset : offset + size]
        ledgers[ledger_id] = ledger
    return ledgers


def _replay(files: Files, ledgers: dict[int, Ledger], *, keeps_first: bool) -> None:
    """Apply all journals from their marks on. `keeps_first`: of an entry that was added twice."""
    marks: dict[int, list[bytes]] = {}
    for path, index in _named(files, log_mark_format.parse_file_name).items():
        marks.setdefault(index, []).append(files[path])
    journals = _named(files, journal_format.parse_file_name)
    for index, directory in enumerate(sorted({posixpath.dirname(path) for path in journals})):
        mark = log_mark_format.distinct(marks[index])[-1]
        for path, journal_id in sorted(journals.items()):
            if posixpath.dirname(path) == directory and journal_id >= mark.journal_id:
                start = mark.offset if journal_id == mark.journal_id else 0
                for batch in _scan_journal(files[path], start=start)[0]:
                    _apply(batch, ledgers, keeps_first=keeps_first)


def _apply(batch: Batch, ledgers: dict[int, Ledger], *, keeps_first: bool = False) -> None:
    for index, (ledger_id, entry_id) in enumerate(batch.ids):
        ledger, body = ledgers.setdefault(ledger_id, Ledger()), batch.records.body(index)
        if entry_id >= 0:
            if not keeps_first or entry_id not in ledger.bodies:
                ledger.bodies[entry_id] = body
        elif entry_id == journal_format.LEDGER_KEY:
            ledger.key = journal_format.parse_special(body)
        elif entry_id == journal_format.FENCE:
            ledger.is_fenced = True
        else:
            assert entry_id == journal_format.EXPLICIT_LAC
            ledger.explicit_lac = journal_format.parse_special(body)


@pytest.mark.parametrize("name", CASES)
def test_files_hold_what_the_bookie_served(name: str) -> None:
    files, expected = _case(name)
    ledgers = _indexed(files)
    if name.startswith("db-"):
        # The index of these is a RocksDB database, not read here: the journal is complete instead.
        files = {path: data for path, data in files.items() if not path.endswith("lastMark")}
        files["ledgers/current/lastMark"] = bytes(16)
    # Apache's memtable keeps the first copy of an entry that was added twice; its other storages the last.
    _replay(files, ledgers, keeps_first=name.startswith("sorted"))
    for wanted in expected["ledgers"]:
        if not wanted["entries"] and wanted["lastEntry"] == "BKNoSuchLedgerExistsException":
            continue
        ledger = ledgers[wanted["ledger"]]
        assert sorted(ledger.bodies) == [entry["entry"] for entry in wanted["entries"]]
        for entry in wanted["entries"]:
            body = ledger.bodies[entry["entry"]]
            assert hashlib.sha256(body).hexdigest() == entry["bodySha256"]
            numbers = [int.from_bytes(body[at : at + 8], "big", signed=True) for at in range(0, 32, 8)]
            assert numbers == [wanted["ledger"], entry["entry"], entry["lac"], entry["length"]]
        assert ledger.explicit_lac.hex() == wanted["explicitLacBody"]
        if wanted["fenced"] is not None:
            assert ledger.is_fenced == wanted["fenced"]
        if wanted["entries"]:
            assert ledger.key.hex() == wanted["masterKey"]


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith(("-crash", "-replayed"))])
def test_the_fence_that_apache_forgets_is_in_the_journal(name: str) -> None:
    files, _ = _case(name)
    ledgers: dict[int, Ledger] = {}
    for path in _named(files, journal_format.parse_file_name):
        for batch in _scan_journal(files[path])[0]:
            _apply(batch, ledgers)
    assert ledgers[FENCED_IN_JOURNAL_ONLY] == Ledger(is_fenced=True)


def _write_journal(batches: list[Batch], version: int) -> bytes:
    """The same content written by us: every record packed anew, every group padded."""
    out = bytearray(journal_format.pack_header(version))
    for batch in batches:
        for index, (ledger_id, entry_id) in enumerate(batch.ids):
            body = batch.records.body(index)
            if entry_id == journal_format.LEDGER_KEY:
                out += journal_format.pack_ledger_key(ledger_id, body[20:])
            elif entry_id == journal_format.FENCE:
                out += journal_format.pack_fence(ledger_id)
            elif entry_id == journal_format.EXPLICIT_LAC:
                out += journal_format.pack_explicit_lac(ledger_id, body[20:])
            else:
                out += Records.of([body]).data
        if version >= journal_format.PADDING_VERSION:
            out += journal_format.pack_padding(len(out))
    return bytes(out)


@pytest.mark.parametrize("name", CASES)
def test_journals_are_written_byte_for_byte(name: str) -> None:
    files, _ = _case(name)
    journals = _named(files, journal_format.parse_file_name)
    assert journals
    for path, journal_id in journals.items():
        data = files[path]
        batches, end, version = _scan_journal(data, is_newest=False)
        assert (end.kind, end.next_record) == (EndKind.CLEAN, None)
        assert _write_journal(batches, version).ljust(len(data), b"\0") == data
        assert journal_format.file_name(journal_id) == posixpath.basename(path)


@pytest.mark.parametrize("name", [name for name in CASES if "directio" not in name])
def test_entry_logs_are_written_byte_for_byte(name: str) -> None:
    files, _ = _case(name)
    for path, log_id in _named(files, entry_log_format.parse_file_name).items():
        data = files[path]
        assert entry_log_format.file_name(log_id) == posixpath.basename(path)
        header = entry_log_format.parse_header(data[:1024], path=path)
        if header is None:
            assert data == b""
            continue
        ledgers_map = entry_log_format.read_ledgers_map(_pread(data), len(data))
        assert (ledgers_map is not None) == bool(header.map_offset)
        batches, end = _scan_log(data)
        # The log of a running bookie ends wherever its buffer was flushed last; everything else ends clean.
        was_cut = end.kind is EndKind.TORN and len(data) % 65536 == 0
        assert end.kind is EndKind.CLEAN or was_cut
        sizes: dict[int, int] = {}
        for batch in batches:
            for index, (ledger_id, _) in enumerate(batch.ids):
                sizes[ledger_id] = sizes.get(ledger_id, 0) + 4 + len(batch.records.body(index))
        out = entry_log_format.pack_header(header.map_offset, header.ledger_count)
        out += b"".join(batch.records.tobytes() for batch in batches)
        if ledgers_map is not None:
            assert ledgers_map == sizes
            assert len(out) == header.map_offset
            out += entry_log_format.pack_ledgers_map(ledgers_map.items())
        assert out == data[: end.offset]


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("db-")])
def test_index_files_are_written_byte_for_byte(name: str) -> None:
    files, _ = _case(name)
    for path, data in files.items():
        ledger_id = index_format.parse_path(path)
        if ledger_id is None:
            continue
        assert path.endswith("current/" + index_format.path_of(ledger_id))
        header = index_format.parse_header(data)
        out = bytearray(index_format.pack_header(header))
        out += bytes(len(data) - len(out))
        for entry_id, number in index_format.iterate_slots(data[index_format.HEADER_SIZE :], 0):
            offset = index_format.HEADER_SIZE + index_format.SLOT_SIZE * entry_id
            out[offset : offset + 8] = number.to_bytes(8, "big")
        assert out == data
        pages, rest = divmod(len(data) - index_format.HEADER_SIZE, 8192)
        assert rest == 0
        assert len(data) == index_format.page_offset(pages, 8192)


@pytest.mark.parametrize("name", CASES)
def test_cookies_marks_and_last_ids_are_written_byte_for_byte(name: str) -> None:
    files, _ = _case(name)
    for path, data in files.items():
        name = posixpath.basename(path)
        if name == cookie.FILE_NAME:
            found = cookie.parse(data, path=path)
            assert found.bookie == "bk-golden"
            assert found.pack() == data
        elif log_mark_format.parse_file_name(name) is not None:
            mark = log_mark_format.parse(data)
            assert mark is not None
            assert log_mark_format.pack(mark) == data
        elif name == "lastId":
            log_id = entry_log_format.parse_last_id(data)
            assert log_id is not None
            assert entry_log_format.pack_last_id(log_id) == data


@pytest.mark.parametrize("name", ["db-v6-clean", "db-directio-clean"])
def test_scanning_finds_every_location_of_the_database(name: str) -> None:
    files, _ = _case(name)
    databases = json.loads((GOLDEN / name / "rocksdb.json").read_text())
    wanted = {tuple(pair) for pair in databases["ledgers/current/locations"]}
    found = set()
    for path, log_id in _named(files, entry_log_format.parse_file_name).items():
        for batch in _scan_log(files[path])[0]:
            for (ledger_id, entry_id), start in zip(batch.ids, batch.records.starts, strict=False):
                number = entry_log_format.location(log_id, batch.offset + start + 4)
                found.add((f"{ledger_id:016x}{entry_id:016x}", f"{number:016x}"))
    # An entry that was added twice is twice in the log and once in the database.
    assert wanted <= found
    assert {key for key, _ in found} == {key for key, _ in wanted}


def test_compaction_leftovers_are_told_apart() -> None:
    files, _ = _case("compaction-interrupted")
    names = {posixpath.basename(path) for path in files}
    found = {name: entry_log_format.parse_compacted_name(name) for name in names if ".log." in name}
    assert found == {
        "1f.log.0.compacted": (0x1F, 0),
        "20.log.compacting": (0x20, None),
        "zz.log.compacted": None,
    }
    for name in ("1f.log.0.compacted", "20.log.compacting"):
        assert _scan_log(files[f"ledgers/current/{name}"])[1].kind is EndKind.CLEAN


# -- damage -----------------------------------------------------------------------------------------------------------

VARIANTS = {
    variant["name"]: variant for variant in json.loads((GOLDEN / "damaged" / "variants.json").read_text())["variants"]
}
CORRUPT, TORN, CLEAN = EndKind.CORRUPT, EndKind.TORN, EndKind.CLEAN
# Variant -> how the scan of the newest journal ends, how many of its 24 records it finds, and whether it notices that
# a group of records follows. An error in the header counts as CORRUPT with no records.
JOURNALS: dict[str, tuple[EndKind, int, bool]] = {
    "none-crash": (CLEAN, 24, False),
    "journal-torn-body": (TORN, 23, False),
    "journal-torn-length": (TORN, 13, False),
    "journal-zero-word": (CLEAN, 13, True),
    "journal-negative-length": (TORN, 13, True),
    "journal-negative-length-skip": (TORN, 13, True),
    "journal-huge-length": (TORN, 13, True),
    "journal-long-length": (TORN, 13, True),
    "journal-unknown-special": (CLEAN, 24, False),
    "journal-unknown-ledger": (CLEAN, 24, False),
    "journal-version-7": (CORRUPT, 0, False),
    "journal-version-5-with-lac": (CORRUPT, 23, False),
    "journal-version-3-with-fence": (CORRUPT, 21, False),
    "journal-version-1": (CLEAN, 19, False),
    "journal-bad-magic": (CORRUPT, 0, False),
    "journal-empty": (CLEAN, 0, False),
    "journal-header-4": (CLEAN, 0, False),
    "journal-header-8": (CLEAN, 0, False),
    "journal-header-512": (CLEAN, 0, False),
}
# Variant -> how the scan of entry log 0 ends, and how many of its 19 records it finds.
LOGS: dict[str, tuple[EndKind, int]] = {
    "none-clean": (CLEAN, 19),
    "log-payload-flip": (CLEAN, 19),  # for the client's digest to find
    "log-ledger-id": (CLEAN, 19),  # for whoever reads it by its location to find
    "log-length": (TORN, 10),
    "log-truncated": (TORN, 18),
}


def _damaged(name: str) -> Files:
    variant = VARIANTS[name]
    files = dict(_archive(GOLDEN / "damaged" / f"{variant['base']}.tar.gz"))
    for operation in variant["operations"]:
        path, data = operation["file"], files.get(operation["file"], b"")
        content = bytes.fromhex(operation.get("hex", ""))
        if operation["op"] == "write":
            at = operation["offset"]
            files[path] = data[:at] + content + data[at + len(content) :]
        elif operation["op"] == "truncate":
            files[path] = data[: operation["size"]]
        elif operation["op"] == "append":
            files[path] = data + content
        elif operation["op"] == "create":
            files[path] = content
        elif operation["op"] == "rename":
            files[operation["to"]] = files.pop(path)
        else:
            assert operation["op"] == "delete"
            files = {each: kept for each, kept in files.items() if each != path and not each.startswith(path + "/")}
    return files


@pytest.mark.parametrize("name", JOURNALS)
def test_damaged_journals(name: str) -> None:
    data = _damaged(name)["journal/current/1a1fdd5cd2c.txn"]
    kind, count, is_followed = JOURNALS[name]
    try:
        batches, end, _ = _scan_journal(data)
    except CorruptRecord:
        batches, end = [], ScanEnd(CORRUPT, 0, "")
    assert (end.kind, sum(len(batch.ids) for batch in batches)) == (kind, count)
    assert (end.next_record is not None) == is_followed


@pytest.mark.parametrize("name", [name for name, (_, _, is_followed) in JOURNALS.items() if is_followed])
def test_damage_in_an_older_journal_is_corruption(name: str) -> None:
    data = _damaged(name)["journal/current/1a1fdd5cd2c.txn"]
    _, end, _ = _scan_journal(data, is_newest=False)
    assert end.kind is CORRUPT
    with pytest.raises(CorruptRecord):
        end.raise_if_corrupt("journal")


@pytest.mark.parametrize("name", LOGS)
def test_damaged_entry_logs(name: str) -> None:
    batches, end = _scan_log(_damaged(name)["ledgers/current/0.log"])
    assert (end.kind, sum(len(batch.ids) for batch in batches)) == LOGS[name]


def test_an_entry_log_with_a_wrong_magic_is_an_error() -> None:
    with pytest.raises(CorruptRecord, match="not an entry log"):
        entry_log_format.parse_header(_damaged("log-bad-magic")["ledgers/current/0.log"])


@pytest.mark.parametrize(
    ("name", "ledger_id", "error"),
    [
        ("index-empty", 2, index_format.TruncatedHeader),
        ("index-bad-magic", 2, CorruptRecord),
        ("index-version-2", 2, CorruptRecord),
        ("index-bad-magic-fenced", 3, CorruptRecord),
    ],
)
def test_damaged_index_headers_are_errors(name: str, ledger_id: int, error: type[CorruptRecord]) -> None:
    data = _damaged(name)[f"ledgers/current/0/{ledger_id}/{ledger_id}.idx"]
    with pytest.raises(error):
        index_format.parse_header(data)


def test_damaged_index_slots() -> None:
    missing = _damaged("index-slot-missing-log")["ledgers/current/0/2/2.idx"]
    slots = dict(index_format.iterate_slots(missing[1024:], 0))
    assert entry_log_format.split_location(slots[3]) == (0x77, 0x404)
    assert 3 not in dict(index_format.iterate_slots(_damaged("index-slot-zero")["ledgers/current/0/2/2.idx"][1024:], 0))
    header_only = _damaged("index-header-only")["ledgers/current/0/2/2.idx"]
    assert index_format.slot_count(len(header_only)) == 0
    paths = _damaged("index-rloc")
    assert [index_format.parse_relocating_path(path) for path in paths if ".rloc" in path] == [2]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("mark-torn", log_mark_format.LogMark(0, 0)),
        ("mark-missing", log_mark_format.LogMark(0, 0)),
        ("mark-beyond-end", log_mark_format.LogMark(0x1A1FDD5E392, 99_999_999)),
    ],
)
def test_damaged_marks(name: str, wanted: log_mark_format.LogMark) -> None:
    files = _damaged(name)
    copies = (data for path, data in files.items() if path.endswith("lastMark"))
    mark = max(log_mark_format.distinct(copies), default=log_mark_format.LogMark())
    assert mark == wanted
    _, end, _ = _scan_journal(files["journal/current/1a1fdd5e392.txn"], start=mark.offset)
    assert end.kind is CLEAN


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("cookie-")])
def test_damaged_cookies(name: str) -> None:
    """The decision of the bookie's start, from the files and the stored cookie of the undamaged case."""
    files = _damaged(name)
    stored = cookie.parse(_archive(GOLDEN / "damaged" / "base-clean.tar.gz")["journal/current/VERSION"])
    states = {}
    for directory in ("journal", "ledgers"):
        names = {posixpath.relpath(path, f"{directory}/current") for path in files if path.startswith(directory)}
        data = files.get(f"{directory}/current/VERSION")
        states[directory] = cookie.DirectoryState(cookie.parse(data) if data else None, names <= {"VERSION"})
    if VARIANTS[name]["starts"]:
        assert admission.decide(stored, stored, states) is admission.Decision.OK
    else:
        with pytest.raises(CookieMismatch):
            admission.decide(stored, stored, states)
