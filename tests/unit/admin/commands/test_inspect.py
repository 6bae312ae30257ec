"""`bk inspect` on Apache's files: what it prints, its JSON, its exit status. Nothing it looks at is changed."""

from __future__ import annotations

import json
import pathlib
import shutil
import tarfile
from typing import Any

import pytest
from tests.fakes.dlog_entries import Row, packed

from bookies.admin.cli import main
from bookies.distributedlog.formats.entries import SET, pack_set
from bookies.encoding.envelope import Record, pack_record
from bookies.encoding.record_sets import pack_sets
from bookies.model import DigestType
from bookies.wire.digest import package_entry

GOLDEN = pathlib.Path(__file__).parents[3] / "golden" / "storage"


@pytest.fixture
def bookie(tmp_path: pathlib.Path) -> pathlib.Path:
    with tarfile.open(GOLDEN / "damaged" / "base-clean.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def bk(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object) -> tuple[int, str, str]:
        status = main(["inspect", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_journal(bookie: pathlib.Path, bk: Any) -> None:
    status, out, _ = bk("journal", bookie / "journal", "--ledger", 3)
    assert status == 0
    lines = out.splitlines()
    assert lines[0].endswith("1a1fdd5e392.txn: version 6, 1.0 MiB, the newest")
    assert [line.split()[3] for line in lines[2:-1]] == ["ledger_key", *["entry"] * 6, "fence", "entry"]
    assert lines[-1] == "  clean end at byte 11,264: zeros follow"
    status, out, _ = bk("journal", bookie / "journal", "--summary")
    assert "  ledger 1: 6 entries 0 to 5, 816 B, 1 ledger_key, 1 explicit_lac" in out.splitlines()


def test_journal_as_json(bookie: pathlib.Path, bk: Any) -> None:
    status, out, _ = bk("journal", bookie / "journal" / "current" / "1a1fdd5e392.txn", "--json")
    assert status == 0
    rows = json.loads(out)
    assert [row["row"] for row in rows] == ["file", *["record"] * 24, "end"]
    assert sum(row.get("kind") == "entry" for row in rows) == 19


def test_entry_log(bookie: pathlib.Path, bk: Any) -> None:
    status, out, _ = bk("entrylog", bookie / "ledgers")
    assert status == 0
    assert "0.log: version 1, 3.7 KiB, not closed" in out
    assert "1.log: empty, 0 bytes" in out
    assert out.count("entry") >= 18


def test_ranges_and_bodies(bookie: pathlib.Path, bk: Any) -> None:
    def records(kind: str, *options: object) -> list[dict[str, Any]]:
        path = bookie / ("journal" if kind == "journal" else "ledgers")
        status, out, _ = bk(kind, path, "--json", *options)
        assert status == 0
        return [row for row in json.loads(out) if row["row"] == "record"]

    every = records("entrylog", "--ledger", 1)
    assert [row["entry"] for row in every] == [0, 1, 2, 3, 4, 5]
    assert [row["entry"] for row in records("entrylog", "--ledger", 1, "--entries", "2-3")] == [2, 3]
    offsets = f"{every[1]['offset']}-{every[2]['offset']}"
    chosen = [row for row in records("entrylog", "--offsets", offsets) if row["ledger"] == 1]
    assert [row["entry"] for row in chosen] == [1, 2]
    assert [row["kind"] for row in records("journal", "--ledger", 1, "--entries", "5")] == ["entry"]
    [text] = records("entrylog", "--ledger", 1, "--entries", 0, "--records", "text")
    [digits] = records("entrylog", "--ledger", 1, "--entries", 0, "--records", "hex")
    payload = text["records"][0]["payload"]
    assert payload
    assert bytes.fromhex(digits["records"][0]["payload"]).decode("utf-8", "backslashreplace") == payload
    _, out, _ = bk("entrylog", bookie / "ledgers", "--ledger", 1, "--entries", 0, "--records", "text")
    assert f"    payload {payload}" in out
    for wrong in ("x", "1-", "-1", "1-x"):
        with pytest.raises(SystemExit):
            main(["inspect", "journal", str(bookie / "journal"), f"--entries={wrong}"])


def test_damage_is_exit_status_1(bookie: pathlib.Path, bk: Any) -> None:
    log = bookie / "ledgers" / "current" / "0.log"
    log.write_bytes(log.read_bytes() + b"\xff" * 64)
    for option in ((), ("--json",), ("--summary",)):
        status, out, _ = bk("entrylog", log, *option)
        assert status == 1
        assert "corrupt" in out
    log.write_bytes(b"X" * 2000)
    status, out, err = bk("entrylog", log)
    assert (status, out) == (1, "")
    assert err == f"bk inspect: {log} at byte 0: not an entry log: it begins with b'XXXX'\n"


def test_a_group_behind_the_end_is_told(bookie: pathlib.Path, bk: Any) -> None:
    (path,) = (bookie / "journal" / "current").glob("*.txn")
    data = bytearray(path.read_bytes())
    data[5632:6144] = bytes(512)
    path.write_bytes(data)
    status, out, _ = bk("journal", path)
    assert status == 1
    assert "clean end at byte 5,632: zeros follow; but a group of records seems to begin at byte" in out


def test_index(bookie: pathlib.Path, bk: Any) -> None:
    status, out, _ = bk("index", bookie / "ledgers")
    assert status == 0
    assert [line.split() for line in out.splitlines()] == [
        ["ledger", "entries", "last", "state"],
        ["1", "6", "5"],
        ["2", "6", "5"],
        ["3", "6", "5", "fenced"],
    ]
    path = bookie / "ledgers" / "current" / "0" / "1" / "1.idx"
    status, out, _ = bk("index", path)
    assert status == 0
    assert "explicit last add confirmed 5: 0000000000000001000000000000000583bf58be" in out
    assert out.splitlines()[-1].split()[:2] == ["5", "0"]
    path.write_bytes(b"")
    status, out, _ = bk("index", bookie / "ledgers")
    assert status == 1
    assert "the file ends within its header" in out


def test_last_mark_and_cookie(bookie: pathlib.Path, bk: Any) -> None:
    status, out, _ = bk("lastmark", bookie / "ledgers")
    assert status == 0
    assert "1a1fdd5e392.txn (id 1795260015506) from byte 11,264 on" in out
    status, out, _ = bk("cookie", bookie / "ledgers", "--json")
    assert status == 0
    assert json.loads(out)[0]["ledger_directories"] == ["ledgers"]
    assert "bk-golden" in bk("cookie", bookie / "journal")[1]
    (bookie / "ledgers" / "current" / "lastMark").unlink()
    (bookie / "ledgers" / "current" / "VERSION").unlink()
    for verb in ("lastmark", "cookie"):
        status, out, err = bk(verb, bookie / "ledgers")
        assert (status, out) == (1, "")
        assert len(err.splitlines()) == 1


def test_directory(bookie: pathlib.Path, bk: Any) -> None:
    status, out, _ = bk("directory", bookie / "ledgers")
    assert status == 0
    assert "3 ledgers, 1 fenced, 18 entries" in out
    (bookie / "ledgers" / "current" / "VERSION").unlink()
    status, out, _ = bk("directory", bookie / "ledgers")
    assert status == 1
    assert "finding: " in out
    status, out, _ = bk("directory", bookie / "ledgers", "--json")
    assert status == 1
    assert json.loads(out)[-1]["row"] == "finding"


def test_used_wrongly(bookie: pathlib.Path, bk: Any) -> None:
    for arguments in (("journal", bookie / "nowhere"), ("directory", bookie / "ledgers" / "current" / "0.log")):
        status, out, err = bk(*arguments)
        assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert bk("journal", bookie / "ledgers")[0] == 1


def test_nothing_is_changed(bookie: pathlib.Path, bk: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("copy") / "bookie"
    shutil.copytree(bookie, copy)
    for verb in ("journal", "entrylog", "index", "lastmark", "cookie", "directory"):
        bk(verb, bookie / ("journal" if verb == "journal" else "ledgers"))
    assert {path.relative_to(bookie): path.read_bytes() for path in bookie.rglob("*") if path.is_file()} == {
        path.relative_to(copy): path.read_bytes() for path in copy.rglob("*") if path.is_file()
    }


def test_records_in_entries(tmp_path: pathlib.Path, bk: Any) -> None:
    """Each entry's records are below it; an entry that is none says so, and counts as damage."""
    distributedlog = packed([Row(7, 0, b"one"), Row(8, SET, pack_set([b"a", b"bc"]), 2)], 0)
    envelope = pack_record(Record(b"value", b"k", [("h", b"1")], 1_795_284_255_562_000))
    path = tmp_path / "0.log"
    bodies = [
        package_entry(DigestType.CRC32, b"", 1, 0, -1, 0, distributedlog),
        package_entry(DigestType.CRC32C, b"", 2, 0, -1, 0, envelope),
        package_entry(DigestType.HMAC, b"key", 3, 0, -1, 0, b"secret"),
        package_entry(DigestType.CRC32C, b"", 4, 0, -1, 0, pack_sets([Record(b"a", b"k"), Record(b"bc")], 0, 0)[0][1]),
    ]
    path.write_bytes(b"BKLO\0\0\0\1".ljust(1024, b"\0") + b"".join(len(body).to_bytes(4) + body for body in bodies))
    status, out, _ = bk("entrylog", path, "--ledger", 1, "--records", "distributedlog")
    assert status == 0
    assert [line for line in out.splitlines() if line.startswith("    slot")] == [
        "    slot 0, kind record, txid 7, position 1, size 3",
        "    slot 1, kind record, txid 8, position 2, size 1",
        "    slot 2, kind record, txid 8, position 3, size 2",
    ]
    status, out, _ = bk("entrylog", path, "--ledger", 4, "--records", "sets")
    assert [line for line in out.splitlines() if line.startswith("    slot")] == [
        "    slot 0, key k, size 1",
        "    slot 1, size 2",
    ]
    status, out, _ = bk("entrylog", path, "--ledger", 2, "--records", "sets", "--json")
    [record] = [row for row in json.loads(out) if row["row"] == "record"]
    assert (status, "is not a record set" in record["problem"]) == (1, True)
    status, out, _ = bk("entrylog", path, "--ledger", 2, "--records", "envelope", "--json")
    [record] = [row for row in json.loads(out) if row["row"] == "record"]
    assert status == 0
    assert (record["records"][0]["key"], record["records"][0]["headers"], record["records"][0]["size"]) == (
        "k",
        {"h": "1"},
        5,
    )
    status, out, _ = bk("entrylog", path, "--records", "envelope")
    assert status == 1
    assert "is not an envelope record" in out
    assert "no checksum proves its content" in out
