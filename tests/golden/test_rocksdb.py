"""Directories of Apache's DbLedgerStorage: read, converted, served by our storage, and converted back."""

from __future__ import annotations

import asyncio
import json
import pathlib
import tarfile
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from tests.golden.test_ledger_store import (
    FENCED_IN_JOURNAL_ONLY,
    check_files,
    check_ledger,
    disk_with,
    probe_add,
    serve,
)

from bookies.admin import cli
from bookies.config import BookieConfig
from bookies.runtime import aio
from bookies.runtime.files import OsDisk
from bookies.storage.offline import inspection
from bookies.storage.rocksdb import rocksdb_format
from bookies.storage.rocksdb.rocksdb_port import RocksDatabases
from bookies.storage.store import LedgerStore

pytest.importorskip("rocksdict")

GOLDEN = pathlib.Path(__file__).parent / "storage"
CASES = sorted(path.parent.name for path in GOLDEN.glob("db-*/data.tar.gz"))
CLEAN = [name for name in CASES if name.endswith("-clean")]


@pytest.fixture
def bookie(request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The case's directories in the current one, as the names in its cookie ask; the case's name."""
    name: str = request.param
    with tarfile.open(GOLDEN / name / "data.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return name


def files_in(directory: pathlib.Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def content(path: str) -> list[list[str]]:
    """Every key and value of a database, in hexadecimal."""
    reader = RocksDatabases().read(path)
    try:
        return [
            [key.hex(), value.hex()]
            for keys, values in reader.pieces()
            for key, value in zip(keys, values, strict=True)
        ]
    finally:
        reader.close()


def expected_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / name / "expected.json").read_text())
    return found


@pytest.mark.parametrize("bookie", CLEAN, indirect=True)
def test_reads_every_key_and_value_and_changes_nothing(bookie: str) -> None:
    before = files_in(pathlib.Path())
    for path, rows in json.loads((GOLDEN / bookie / "rocksdb.json").read_text()).items():
        assert content(path) == rows
    assert cli.main(["bookie", "convert", "ledgers", "--to", "index-files", "--dry-run"]) == 0
    assert files_in(pathlib.Path()) == before


Check = Callable[[LedgerStore], Coroutine[Any, Any, None]]


def checks_of(expected: Any, bookie: str) -> tuple[Check, Check]:
    """A check of all entries, and one of which ledgers are fenced, which adds to the others."""

    async def check(store: LedgerStore) -> None:
        for ledger in expected["ledgers"]:
            await check_ledger(store, ledger, bookie)

    async def probe(store: LedgerStore) -> None:
        for ledger in expected["ledgers"]:
            if ledger["addProbe"] is not None and ledger["ledger"] != FENCED_IN_JOURNAL_ONLY:
                key = bytes.fromhex(ledger["masterKey"])
                outcome = await probe_add(store, ledger["ledger"], key, 5_000)
                assert (outcome == "LedgerFenced") is ledger["fenced"], f"ledger {ledger['ledger']}: {outcome}"

    return check, probe


@pytest.mark.parametrize("bookie", CASES, indirect=True)
def test_serves_what_apache_served(bookie: str) -> None:
    expected = expected_of(bookie)
    logs = {str(path): path.read_bytes() for path in pathlib.Path("ledgers/current").glob("*.log")}
    assert cli.main(["bookie", "convert", "ledgers", "--to", "index-files"]) == 0
    files = files_in(pathlib.Path())
    assert all(files[path] == data for path, data in logs.items())
    check_index(expected, is_clean=bookie in CLEAN)

    check, probe = checks_of(expected, bookie)
    disk = disk_with(files)
    serve(disk, {}, check)
    serve(disk, {}, check)
    serve(disk, {}, probe)
    check_files(disk, set(files))


def check_index(expected: dict[str, Any], *, is_clean: bool) -> None:
    """Headers and last entries, as far as Apache had flushed them."""
    rows = {row["ledger"]: row for row in inspection.ledger_rows(OsDisk(), "ledgers")}
    for ledger in expected["ledgers"] if is_clean else []:
        row = rows.pop(ledger["ledger"])
        assert row["master_key"] == ledger["masterKey"]
        assert row["is_fenced"] == ledger["fenced"]
        assert row.get("explicit_lac_body", "") == ledger["explicitLacBody"]
        assert row["entries"] == len(ledger["entries"])
        assert row["last_entry"] == (ledger["lastEntry"] if ledger["entries"] else None)
    assert not rows or not is_clean


@pytest.mark.parametrize("bookie", CLEAN, indirect=True)
def test_there_and_back_is_the_same(bookie: str) -> None:
    assert cli.main(["bookie", "convert", "ledgers", "--to", "index-files"]) == 0
    assert cli.main(["bookie", "convert", "ledgers", "--discard-old"]) == 0
    assert cli.main(["bookie", "convert", "ledgers", "--to", "rocksdb"]) == 0
    for path, rows in json.loads((GOLDEN / bookie / "rocksdb.json").read_text()).items():
        assert content(path) == rows
    left = [path for path in files_in(pathlib.Path("ledgers/current")) if path.endswith((".idx", ".catalog"))]
    assert all(path.startswith("index-files.before-conversion/") for path in left)


@pytest.mark.parametrize("bookie", ["db-v6-clean"], indirect=True)
def test_a_torn_write_ahead_log_is_what_only_a_crash_leaves(bookie: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = pathlib.Path("ledgers/current/locations/000004.log")
    log.write_bytes(log.read_bytes()[:-10])
    assert cli.main(["bookie", "convert", "ledgers", "--to", "index-files", "--dry-run"]) == 1
    assert "cannot be read" in capsys.readouterr().err
    pathlib.Path("ledgers/current/DIRTY").touch()
    assert cli.main(["bookie", "convert", "ledgers", "--to", "index-files", "--dry-run"]) == 0


@pytest.mark.parametrize("bookie", ["db-v6-crash"], indirect=True)
def test_on_the_way_back_the_journal_is_replayed_first(bookie: str) -> None:
    assert cli.main(["bookie", "convert", "ledgers", "--to", "index-files"]) == 0
    assert cli.main(["bookie", "convert", "ledgers", "--discard-old"]) == 0
    assert pathlib.Path("ledgers/current/DIRTY").exists()
    assert cli.main(["bookie", "convert", "ledgers", "--to", "rocksdb", "--dry-run"]) == 1
    assert cli.main(["bookie", "convert", "ledgers", "--to", "rocksdb"]) == 0
    assert not pathlib.Path("ledgers/current/DIRTY").exists()
    keys = {key for key, _ in content("ledgers/current/locations")}
    headers = dict(content("ledgers/current/ledgers"))
    for ledger in expected_of(bookie)["ledgers"]:
        ledger_id = ledger["ledger"]
        entry_ids = [entry["entry"] for entry in ledger["entries"]]
        assert {key.hex() for key in rocksdb_format.entry_keys(ledger_id, entry_ids)} <= keys
        header = rocksdb_format.parse_ledger_data(bytes.fromhex(headers[f"{ledger_id:016x}"]), "", ledger_id)
        assert header.is_fenced == (ledger["fenced"] or ledger_id == FENCED_IN_JOURNAL_ONLY)
        assert header.explicit_lac.hex() == ledger["explicitLacBody"]


def serve_in_place(script: Callable[[LedgerStore], Awaitable[None]]) -> None:
    """Start on the directories here, with the databases as they are; run the script; stop."""

    async def main() -> None:
        config = BookieConfig(journal_directories=("journal",), ledger_directories=("ledgers",), ledger_index="rocksdb")
        store = LedgerStore(aio.runtime(), config, lambda error: pytest.fail(repr(error)))
        await store.start()
        try:
            await script(store)
            await store.stop()
        finally:
            store.abort()

    aio.run(main())


@pytest.mark.parametrize("bookie", CASES, indirect=True)
def test_serves_databases_in_place_and_gives_them_back(bookie: str) -> None:
    expected = expected_of(bookie)

    check, probe = checks_of(expected, bookie)
    serve_in_place(check)
    if bookie in CLEAN:
        for path, rows in json.loads((GOLDEN / bookie / "rocksdb.json").read_text()).items():
            assert content(path) == rows
    serve_in_place(check)
    serve_in_place(probe)
    left = files_in(pathlib.Path("ledgers/current"))
    assert not [path for path in left if path.endswith((".idx", ".json", ".rebuild", "DIRTY"))]
    assert cli.main(["bookie", "convert", "ledgers", "--to", "index-files"]) == 0


@pytest.mark.parametrize("bookie", ["db-v6-clean"], indirect=True)
def test_a_bookie_does_not_start_on_databases(bookie: str) -> None:
    disk = disk_with(files_in(pathlib.Path()))

    async def nothing(_: LedgerStore) -> None:
        await asyncio.sleep(0)

    with pytest.raises(Exception, match="bk bookie convert"):
        serve(disk, {}, nothing)
    assert not disk.locks
