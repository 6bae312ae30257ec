"""Rows of a bookie's files; the files are made with the formats' own writers, and by Apache in `tests/golden`."""

from __future__ import annotations

import json

import pytest

from bookies.errors import CorruptRecord
from bookies.kernels import Records
from bookies.lab.sim.world.disk import SimDisk
from bookies.storage.engine import (
    quarantine_format,
)
from bookies.storage.engine.quarantine_format import QuarantineRecord, QuarantineState
from bookies.storage.entry_log import (
    entry_log_format,
)
from bookies.storage.identity import Cookie
from bookies.storage.index import (
    index_format,
)
from bookies.storage.journal import (
    journal_format,
    log_mark_format,
)
from bookies.storage.offline import (
    inspection,
)
from bookies.storage.scrub import (
    scrub_format,
)

KEY = bytes(range(20))
LAC = (7).to_bytes(8, "big") + (3).to_bytes(8, "big") + b"dig!"
HEADS = [
    (7).to_bytes(8, "big") + entry_id.to_bytes(8, "big") + b"\xff" * 8 + (5 * entry_id + 5).to_bytes(8, "big")
    for entry_id in (0, 1)
]
BODIES = [head + b"dighello" for head in HEADS]


def journal() -> bytes:
    data = journal_format.pack_header()
    data += journal_format.pack_ledger_key(7, KEY) + Records.of(BODIES).data + journal_format.pack_fence(7)
    data += journal_format.pack_explicit_lac(7, LAC) + Records.of([HEADS[0][:8] + b"\xff" * 7 + b"\xf0"]).data
    return (data + journal_format.pack_padding(len(data))).ljust(4096, b"\0")


def entry_log() -> bytes:
    records = Records.of(BODIES).data
    header = entry_log_format.pack_header(1024 + len(records), 1)
    return header + records + entry_log_format.pack_ledgers_map([(7, len(records))])


def index_file() -> bytes:
    header = index_format.pack_header(index_format.IndexHeader(KEY, index_format.STATE_FENCED, LAC))
    slots = b"".join(entry_log_format.location(0, at).to_bytes(8, "big") for at in (1028, 1072))
    return header + slots.ljust(8192, b"\0")


@pytest.fixture
def disk() -> SimDisk:
    """One directory that holds everything."""
    disk = SimDisk()
    for name, data in (
        ("1f.txn", journal()),
        ("20.txn", journal_format.pack_header()),
        ("0.log", entry_log()),
        ("1.log", b""),
        ("2.log", entry_log()[:-60]),
        ("3.log.compacting", b""),
        ("0/7/7.idx", index_file()),
        ("lastMark", log_mark_format.pack(log_mark_format.LogMark(0x1F, 512))),
        ("lastId", b"2\n"),
        ("DIRTY", b""),
        ("BOOKIE_STATUS", b"1,READ_WRITE,1700000000000\n"),
        ("VERSION", Cookie("b1", "d", ("d",), "c1").pack()),
    ):
        disk.put(f"d/current/{name}", data)
    return disk


def test_journal_rows(disk: SimDisk) -> None:
    head, *records, end = inspection.journal_rows(disk, "d/current/1f.txn")
    assert head == {"row": "file", "path": "d/current/1f.txn", "size": 4096, "version": 6, "is_newest": False}
    assert records == [
        {"row": "record", "offset": 512, "size": 40, "ledger": 7, "kind": "ledger_key", "master_key": KEY.hex()},
        {"row": "record", "offset": 556, "size": 40, "ledger": 7, "kind": "entry", "entry": 0}
        | {"last_add_confirmed": -1, "length": 5},
        {"row": "record", "offset": 600, "size": 40, "ledger": 7, "kind": "entry", "entry": 1}
        | {"last_add_confirmed": -1, "length": 10},
        {"row": "record", "offset": 644, "size": 16, "ledger": 7, "kind": "fence"},
        {"row": "record", "offset": 664, "size": 40, "ledger": 7, "kind": "explicit_lac"}
        | {"explicit_lac_body": LAC.hex(), "last_add_confirmed": 3},
        {"row": "record", "offset": 708, "size": 16, "ledger": 7, "kind": "unknown", "entry": -16},
    ]
    assert end == {"row": "end", "state": "clean", "offset": 1024, "problem": "zeros follow"}
    assert next(iter(inspection.journal_rows(disk, "d/current/20.txn")))["is_newest"] is True


def test_damage_is_a_row(disk: SimDisk) -> None:
    disk.flip_bit("d/current/1f.txn", 556)
    *_, end = inspection.journal_rows(disk, "d/current/1f.txn")
    assert end["state"] == "corrupt"
    assert inspection.is_damaged(end)
    *_, end = inspection.journal_rows(disk, "d/current/1f.txn", is_newest=True)
    assert end["state"] == "torn"
    assert not inspection.is_damaged(end)
    disk.flip_bit("d/current/1f.txn", 0)
    with pytest.raises(CorruptRecord):
        list(inspection.journal_rows(disk, "d/current/1f.txn"))


def test_entry_log_rows(disk: SimDisk) -> None:
    head, *records, of_map, end = inspection.entry_log_rows(disk, "d/current/0.log")
    assert head["has_valid_map"] is True
    assert (head["log"], head["map_offset"], head["ledger_count"]) == (0, 1112, 1)
    assert [(row["offset"], row["entry"], row["length"]) for row in records] == [(1024, 0, 5), (1068, 1, 10)]
    assert of_map == {"row": "map", "ledger": 7, "size": 88}
    assert end["state"] == "clean"
    assert [row["row"] for row in inspection.entry_log_rows(disk, "d/current/1.log")] == ["file", "end"]
    *_, end = inspection.entry_log_rows(disk, "d/current/2.log")
    assert end["state"] == "torn"


def test_index_rows(disk: SimDisk) -> None:
    head, *slots = inspection.index_rows(disk, "d/current/0/7/7.idx")
    assert head["ledger"] == 7
    assert head["is_fenced"] is True
    assert head["last_add_confirmed"] == 3
    assert slots == [
        {"row": "slot", "entry": 0, "log": 0, "offset": 1028},
        {"row": "slot", "entry": 1, "log": 0, "offset": 1072},
    ]
    (row,) = inspection.ledger_rows(disk, "d")
    assert (row["ledger"], row["entries"], row["last_entry"], row["is_fenced"]) == (7, 2, 1, True)


def test_mark_and_cookie_rows(disk: SimDisk) -> None:
    (mark,) = inspection.mark_rows(disk, "d")
    assert (mark["journal_file"], mark["offset"]) == ("1f.txn", 512)
    assert list(inspection.mark_rows(disk, "d/current/lastMark")) == [mark]
    disk.put("d/current/lastMark", b"torn")
    assert "problem" in next(inspection.mark_rows(disk, "d"))
    for path in ("d", "d/current", "d/current/VERSION"):
        assert inspection.cookie_row(disk, path)["bookie"] == "b1"
    with pytest.raises(FileNotFoundError):
        inspection.cookie_row(disk, "nowhere")


def test_directory_rows(disk: SimDisk) -> None:
    rows = list(inspection.directory_rows(disk, "d"))
    assert [(row["name"], row["kind"], row.get("detail")) for row in rows] == [
        ("0.log", "entry log", "closed"),
        ("1.log", "entry log", "empty"),
        ("1f.txn", "journal", "version 6"),
        ("2.log", "entry log", "closed"),
        ("20.txn", "journal", "version 6"),
        ("3.log.compacting", "compaction", "being written"),
        ("BOOKIE_STATUS", "status", "1,READ_WRITE,1700000000000"),
        ("DIRTY", "dirty", "running, or not shut down cleanly"),
        ("VERSION", "cookie", "bookie b1, instance c1"),
        ("lastId", "last log id", "2"),
        ("lastMark", "mark", "1f.txn at 512"),
        ("*/*/*.idx", "index", "1 ledgers, 1 fenced, 2 entries"),
    ]
    assert not any(map(inspection.is_damaged, rows))
    json.dumps(rows)


def test_a_folder_that_the_running_bookie_removes_meanwhile_is_empty(disk: SimDisk) -> None:
    before = inspection.index_files_of(disk, "d")
    disk.fail("list", before[0][1].rpartition("/")[0], lambda: FileNotFoundError(2, "No such file or directory"))
    assert inspection.index_files_of(disk, "d") == before[1:]


def test_files_of_our_own(disk: SimDisk) -> None:
    """Apache's bookie has none of these."""
    removals = {7: QuarantineRecord(QuarantineState.QUARANTINED, 1)}
    disk.put("d/current/index.catalog", b"BKIC")
    disk.put("d/current/index.holes", b"a.txn: from byte 512 to byte 1,024: damaged\nanother\n")
    disk.put("d/current/removedLedgers", quarantine_format.pack(1, removals))
    disk.put("d/current/scrub.progress", scrub_format.pack(1, scrub_format.Progress(number=1_234)))
    rows = {row["name"]: row for row in inspection.directory_rows(disk, "d")}
    assert rows["index.catalog"]["kind"] == "catalog"
    assert rows["index.holes"]["detail"] == "a part of a journal is lost: the ledgers that were here are not known yet"
    assert rows["removedLedgers"]["detail"] == "1 in quarantine or deleted"
    assert rows["scrub.progress"]["detail"] == "pass 1,234, 0 damaged entries known"
    disk.put("d/current/removedLedgers", b"torn")
    [row] = [row for row in inspection.directory_rows(disk, "d") if row["name"] == "removedLedgers"]
    assert inspection.is_damaged(row)


def test_findings(disk: SimDisk) -> None:
    disk.unlink("d/current/VERSION")
    disk.put("d/current/zz.txn", b"")
    disk.put("d/current/22.txn", journal_format.pack_header())
    disk.put("d/current/23.txn", journal_format.pack_header().replace(b"\6", b"\7"))
    disk.put("d/current/lastMark", log_mark_format.pack(log_mark_format.LogMark(0x1E, 0)))
    disk.put("d/current/lastMark.1", b"x")
    disk.put("d/current/0/8/8.idx.rloc", b"")
    disk.put("d/current/0/8/9.idx", b"")
    disk.put("d/current/0/9/9.idx", b"")
    rows = list(inspection.directory_rows(disk, "d"))
    findings = [row["problem"] for row in rows if row["row"] == "finding"]
    assert findings == [
        "d/current/0/9/9.idx at byte 0: the file ends within its header",
        "d/current has no VERSION: it is new, or was wiped",
        "zz.txn is not hexadecimal: Apache's bookie does not start with it",
        "journals are missing between 20.txn and 22.txn",
        "the mark names 1e.txn, which is not here",
        "lastMark.1 is not a mark: 1 bytes, 78",
        "0/8/8.idx.rloc is left of an interrupted move to this directory",
        "0/8/9.idx is in the wrong subdirectory for its name",
    ]
    problems = [row["problem"] for row in rows if row["row"] == "item" and "problem" in row]
    assert problems == ["d/current/23.txn at byte 4: journal version 7: versions 1 to 6 are known"]
    assert all(inspection.is_damaged(row) for row in rows if "problem" in row)
