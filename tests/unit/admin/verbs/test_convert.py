"""`bk bookie convert` and `bk inspect` on a small bookie of Apache's with RocksDB."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from bookies.admin import cli
from bookies.config import BookieConfig
from bookies.errors import CorruptRecord
from bookies.storage.entry_log import entry_log_format
from bookies.storage.identity.cookie import master_cookie
from bookies.storage.index.index_format import STATE_FENCED, STATE_LIMBO, IndexHeader
from bookies.storage.rocksdb import rocksdb_format, rocksdb_port
from bookies.storage.rocksdb.rocksdb_port import RocksDatabases

pytest.importorskip("rocksdict")

KEY = b"k" * 20
HEADERS = {7: IndexHeader(KEY, STATE_FENCED, bytes(16)), 8: IndexHeader(KEY, STATE_LIMBO), 300: IndexHeader(KEY)}
LEDGERS = pathlib.Path("ledgers/current")


@pytest.fixture(autouse=True)
def bookie(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers 7, 8 and 300 with three entries each, and two entries of ledger 9, which was deleted."""
    monkeypatch.chdir(tmp_path)
    config = BookieConfig(journal_directories=("journal",), ledger_directories=("ledgers",))
    for name in ("journal", "ledgers"):
        current = pathlib.Path(name, "current")
        current.mkdir(parents=True)
        (current / "VERSION").write_bytes(master_cookie(config, "b1", "cluster").pack())
    data = bytearray(entry_log_format.pack_header())
    pairs: dict[bytes, bytes] = {}
    for ledger_id, count in ((7, 3), (8, 3), (9, 2), (300, 3)):
        for key in rocksdb_format.entry_keys(ledger_id, range(count)):
            pairs[key] = entry_log_format.location(0, len(data) + 4).to_bytes(8, "big")
            data += (37).to_bytes(4, "big") + key + bytes(16) + b"hello"
    (LEDGERS / "0.log").write_bytes(data)
    make_database("locations", pairs)
    make_database(
        "ledgers", {rocksdb_format.pack_key(each): rocksdb_format.pack_ledger_data(HEADERS[each]) for each in HEADERS}
    )


def make_database(name: str, pairs: dict[bytes, bytes]) -> None:
    writer = RocksDatabases().create(str(LEDGERS / name), is_large=name == "locations")
    writer.put(list(pairs), list(pairs.values()))
    writer.finish()


def convert(*arguments: str) -> int:
    return cli.main(["bookie", "convert", "ledgers", *arguments])


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert convert("--to", "index-files") == 0
    out = capsys.readouterr().out
    assert "3 ledgers, 9 entries, looked up" in out
    assert "2 entries of ledgers that the bookie had deleted: left out" in out
    assert "bk bookie convert ledgers --discard-old" in out
    assert convert("--discard-old") == 0
    assert "the old index removed: 2 of its directories" in capsys.readouterr().out
    assert convert("--discard-old") == 0
    assert "no old index is kept here" in capsys.readouterr().out
    assert convert("--to", "rocksdb", "--json") == 0
    assert document(capsys) == {
        "to": "rocksdb",
        "done": True,
        "ledgers": 3,
        "entries": 9,
        "orphans": 0,
        "logs_linked": 0,
        "logs_copied": 0,
        "copied_bytes": 0,
        "logs_spared": 0,
        "damaged": 0,
        "damaged_entries": [],
        "problems": [],
    }
    assert convert("--to", "rocksdb") == 1
    assert "is a RocksDB database already" in capsys.readouterr().err


def test_relative_names_count_from_where_the_directory_is(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    for path in (tmp_path / "ledgers", tmp_path.relative_to("/") / "journal"):
        assert cli.main(["bookie", "convert", f"{path}/", "--to", "index-files", "--dry-run"]) == 0


def test_damaged_entries_stop_it_unless_they_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    log = LEDGERS / "0.log"
    data = bytearray(log.read_bytes())
    data[1024 + 41 + 19] ^= 1  # an entry id
    log.write_bytes(data)
    assert convert("--to", "index-files") == 1
    out = capsys.readouterr().out
    assert "entry 1 of ledger 7 is not where the index says" in out
    assert "nothing was changed" in out
    assert not (LEDGERS / "0").exists()
    assert convert("--to", "index-files", "--json", "--keep-damaged") == 0
    row = document(capsys)
    assert (row["damaged"], row["damaged_entries"], row["done"]) == (1, [[7, 1]], True)
    assert cli.main(["inspect", "index", "ledgers", "--ledger", "7", "--json"]) == 0
    assert [row["entry"] for row in document(capsys)[1:]] == [0, 1, 2]


def test_a_database_in_use_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    # Such a lock is the process's, so somebody else has to hold it.
    program = (
        "import fcntl, sys\n"
        f"file = open({str(LEDGERS / 'ledgers' / 'LOCK')!r}, 'r+')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert convert("--to", "index-files") == 1
        assert "is in use by another process" in capsys.readouterr().err
    (LEDGERS / "ledgers" / "LOCK").unlink()  # as copies of databases may be
    assert convert("--to", "index-files") == 0


def test_used_wrongly(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bookie", "convert", "nowhere", "--to", "rocksdb"]) == 2
    assert convert("--cancel") == 1
    assert "no conversion is in progress" in capsys.readouterr().err
    (LEDGERS / "CONVERSION").write_bytes(b"{}")
    assert convert("--to", "index-files") == 1
    assert "is not what bk bookie convert writes" in capsys.readouterr().err
    (LEDGERS / "CONVERSION").write_bytes(b'{"to": "rocksdb", "step": "build", "links": []}')
    assert convert("--to", "index-files") == 1
    assert "a conversion to rocksdb is in progress" in capsys.readouterr().err
    assert convert("--discard-old") == 1
    assert convert("--cancel") == 0
    assert "the old index is in use" in capsys.readouterr().out
    (LEDGERS / "CONVERSION").write_bytes(b'{"to": "index-files", "step": "switch", "links": []}')
    assert convert("--cancel") == 1
    assert "the switch to the new index has begun: finish it with" in capsys.readouterr().err
    (pathlib.Path("journal") / "current" / "VERSION").rename("VERSION")
    pathlib.Path("journal/current").rmdir()
    pathlib.Path("journal").rmdir()
    assert convert("--to", "index-files") == 1
    assert "journal: it is missing, and the cookie in ledgers names it" in capsys.readouterr().err
    (LEDGERS / "VERSION").unlink()
    assert convert("--to", "index-files") == 1
    assert "it has no VERSION" in capsys.readouterr().err


def test_inspection(capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in LEDGERS.rglob("*") if path.is_file()}
    assert cli.main(["inspect", "directory", "ledgers"]) == 0
    out = capsys.readouterr().out
    assert "3 ledgers, 1 fenced, 9 entries, 1 in limbo; 1 more were deleted" in out
    assert "locations of entries, in RocksDB; bk bookie convert turns it into index files" in out
    assert cli.main(["inspect", "index", "ledgers"]) == 0
    assert "deleted" in capsys.readouterr().out
    assert cli.main(["inspect", "index", "ledgers", "--json"]) == 0
    rows = document(capsys)
    assert [(row["ledger"], row["entries"], row["last_entry"]) for row in rows] == [
        (7, 3, 2),
        (8, 3, 2),
        (9, 2, 1),
        (300, 3, 2),
    ]
    assert rows[2]["is_deleted"]
    assert cli.main(["inspect", "index", "ledgers", "--ledger", "7"]) == 0
    out = capsys.readouterr().out
    assert "state 0x1, fenced" in out
    assert "explicit last add confirmed 0" in out
    assert "1,028" in out
    assert cli.main(["inspect", "index", "ledgers", "--ledger", "9"]) == 1
    assert "no such ledger" in capsys.readouterr().err
    cli.main(["inspect", "directory", "ledgers", "--verify"])
    assert "the index is in RocksDB" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in LEDGERS.rglob("*") if path.is_file()} == before
    assert convert("--to", "index-files") == 0
    capsys.readouterr()
    assert cli.main(["inspect", "directory", "ledgers"]) == 0
    out = capsys.readouterr().out
    assert "keeps Apache's bookie from creating an empty database here" in out
    assert "bk bookie convert --discard-old deletes it" in out


def test_damage_in_a_database_is_never_the_end_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    RocksDatabases().remove(str(LEDGERS / "locations"))
    pairs = {key: key[8:] for ledger_id in range(40) for key in rocksdb_format.entry_keys(ledger_id, range(1_000))}
    make_database("locations", pairs)
    table = next((LEDGERS / "locations").glob("*.sst"))
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 0xFF
    table.write_bytes(data)
    reader = RocksDatabases().read(str(LEDGERS / "locations"))
    with pytest.raises(CorruptRecord, match="cannot be read"):
        list(reader.pieces())
    with pytest.raises(CorruptRecord, match="cannot be read"):
        list(reader.from_key(bytes(16)))
    reader.close()
    assert convert("--to", "index-files") == 1
    assert "cannot be read" in capsys.readouterr().err
    assert cli.main(["inspect", "directory", "ledgers"]) == 1
    assert "finding: ledgers/current/locations" in capsys.readouterr().out
    (LEDGERS / "locations" / "CURRENT").write_bytes(b"nothing\n")
    with pytest.raises(CorruptRecord):
        RocksDatabases().read(str(LEDGERS / "locations"))


def test_without_the_binding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    monkeypatch.setattr(rocksdb_port, "is_available", lambda: False)
    assert convert("--to", "index-files") == 2
    assert "pip install 'bookies[rocksdb]'" in capsys.readouterr().err
    assert cli.main(["inspect", "directory", "ledgers"]) == 0
    assert "Apache's DbLedgerStorage" in capsys.readouterr().out


def test_core_does_not_import_the_binding() -> None:
    program = (
        "import sys\n"
        "import bookies, bookies.bookie.main\n"
        "import bookies.storage.rocksdb.to_rocksdb, bookies.storage.rocksdb.rocksdb_port\n"
        "assert 'rocksdict' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
