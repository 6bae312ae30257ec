"""A conversion killed with SIGKILL again and again, on real files and RocksDB: repeated, it ends, and all is there."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from bookies.admin import cli
from bookies.config import BookieConfig
from bookies.storage.entry_log import entry_log_format
from bookies.storage.identity.cookie import master_cookie
from bookies.storage.identity.index_kind import RECORD
from bookies.storage.index.index_format import STATE_FENCED, IndexHeader
from bookies.storage.offline import inspection
from bookies.storage.rocksdb import rocksdb_format
from bookies.storage.rocksdb.rocksdb_port import RocksDatabases

pytest.importorskip("rocksdict")
pytestmark = pytest.mark.live

SCRIPT = pathlib.Path(__file__).with_name("convert_killed.py")
LEDGERS, ENTRIES = 20, 1_500  # several pieces of keys, several writes of index files
SHARES = (0.05, 0.4, 0.7, 0.1, 0.97, 0.01)  # behind the switch a run has less to do
Expected = dict[tuple[int, int], int]  # (ledger, entry) to location


def make_bookie() -> Expected:
    """Directories as Apache's bookie leaves them after an orderly stop, with one entry log."""
    config = BookieConfig(journal_directories=("journal",), ledger_directories=("ledgers",))
    for name in ("journal", "ledgers"):
        current = pathlib.Path(name, "current")
        current.mkdir(parents=True)
        (current / "VERSION").write_bytes(master_cookie(config, "b1", "cluster").pack())
    data = bytearray(entry_log_format.pack_header())
    keys: list[bytes] = []
    found: Expected = {}
    for ledger_id in range(LEDGERS):
        for entry_id, key in enumerate(rocksdb_format.entry_keys(ledger_id, range(ENTRIES))):
            found[ledger_id, entry_id] = entry_log_format.location(0, len(data) + 4)
            keys.append(key)
            data += (32).to_bytes(4, "big") + key + bytes(16)
    pathlib.Path("ledgers/current/0.log").write_bytes(data)
    writer = RocksDatabases().create("ledgers/current/locations", is_large=True)
    writer.put(keys, [location.to_bytes(8, "big") for location in found.values()])
    writer.finish()
    headers = {each: IndexHeader(b"k" * 20, STATE_FENCED * (each % 2)) for each in range(LEDGERS)}
    writer = RocksDatabases().create("ledgers/current/ledgers", is_large=False)
    writer.put(
        [rocksdb_format.pack_key(each) for each in headers],
        [rocksdb_format.pack_ledger_data(each) for each in headers.values()],
    )
    writer.finish()
    return found


def kill_and_repeat(target: str, total: int) -> int:
    """How many of the runs were killed before they ended."""
    killed = 0
    for share in SHARES:
        command = [sys.executable, str(SCRIPT), target, str(int(total * share))]
        here = os.environ | {"TMPDIR": os.getcwd()}  # What a killed process leaves goes with the test.
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=here)
        if done.returncode == 0 or "nothing to convert" in done.stderr or "already" in done.stderr:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        killed += 1
    if pathlib.Path("ledgers/current", RECORD).exists() or not is_converted(target):
        assert cli.main(["bookie", "convert", "ledgers", "--to", target]) == 0
    return killed


def is_converted(target: str) -> bool:
    return RocksDatabases().exists("ledgers/current/locations") == (target == "rocksdb")


def calls_of(target: str) -> int:
    command = [sys.executable, str(SCRIPT), target, "0"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def in_index_files(tmp_path: pathlib.Path) -> Expected:
    from bookies.runtime.files import OsDisk

    disk, found = OsDisk(), {}
    for ledger_id, path in inspection.index_files_of(disk, str(tmp_path / "ledgers")):
        for row in inspection.index_rows(disk, path):
            if row["row"] == "slot":
                found[ledger_id, row["entry"]] = entry_log_format.location(row["log"], row["offset"])
            else:
                assert row["is_fenced"] == bool(ledger_id % 2)
    return found


def in_databases() -> Expected:
    reader = RocksDatabases().read("ledgers/current/locations")
    found = {}
    for keys, values in reader.pieces():
        for key, value in zip(keys, values, strict=True):
            found[int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")] = int.from_bytes(value, "big")
    reader.close()
    return found


@pytest.mark.long
def test_killed_on_the_way_there_and_back(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = make_bookie()
    there = calls_of("index-files")
    assert cli.main(["bookie", "convert", "ledgers", "--discard-old"]) == 0
    back = calls_of("rocksdb")
    assert cli.main(["bookie", "convert", "ledgers", "--discard-old"]) == 0
    assert kill_and_repeat("index-files", there) >= 4
    assert in_index_files(tmp_path) == expected
    assert cli.main(["bookie", "convert", "ledgers", "--discard-old"]) == 0
    assert kill_and_repeat("rocksdb", back) >= 4
    assert in_databases() == expected
