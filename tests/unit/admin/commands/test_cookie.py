"""`bk cookie` and `bk cluster info` on a real store: what they print, refuse, and leave behind."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from bookies.admin.cli import main
from bookies.config import BookieConfig
from bookies.metadata.uri import connect
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.runtime import aio
from bookies.storage.identity.cookie import master_cookie, parse

B1, B2 = BookieId("b1"), BookieId("b2")
CONFIG = BookieConfig(journal_directories=("/j1", "/j2"), ledger_directories=("/d1",), index_directories=("/i1",))


@pytest.fixture
def store(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A cluster that knows b1, on which ledger 0 has entries, and b2. Its instance id."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("BK_METADATA", f"file:{tmp_path}/store")

    async def make() -> str:
        driver = connect(f"file:{tmp_path}/store", aio.runtime())
        await driver.open()
        instance_id = await driver.initialize_cluster()
        for bookie in (B1, B2):
            await driver.create_cookie(bookie, master_cookie(CONFIG, bookie, instance_id).pack())
        record = LedgerMetadata(0, 1, 1, 1, ((0, (B1,)),), LedgerState.CLOSED, last_entry_id=4, length=50)
        await driver.create_ledger(record)
        await driver.close()
        return instance_id

    return aio.run(make())


def test_looking(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cookie", "list", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["bookie"], first["mode"], second["bookie"]) == ("b1", "down", "b2")
    assert first["journal_directories"] == ["/j1", "/j2"]
    assert main(["cookie", "list"]) == 0
    assert "/j1, /j2, /d1, /i1" in capsys.readouterr().out
    assert main(["cookie", "get", "b1"]) == 0
    assert capsys.readouterr().out.encode() == master_cookie(CONFIG, "b1", store).pack()
    assert main(["cookie", "get", "b1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["instance_id"] == store
    assert main(["cookie", "get", "b9"]) == 2
    assert "bookies with a cookie: b1, b2" in capsys.readouterr().err


def test_generate_create_update(
    store: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = ["cookie", "generate", "--journal-dir", "/j", "--ledger-dir", "/d1", "--ledger-dir", "/d2"]
    assert main(generate) == 2
    assert main(["cookie", "generate", "--bookie-id", "b3", "--ledger-dir", "/d"]) == 2
    capsys.readouterr()
    assert main([*generate, "--bookie-id", "b3"]) == 0
    text = capsys.readouterr().out
    cookie = parse(text.encode())
    assert (cookie.bookie, cookie.instance_id, cookie.ledger_directories) == ("b3", store, ("/d1", "/d2"))
    monkeypatch.setenv("BK_JOURNAL_DIRECTORIES", "/jv")
    settings = tmp_path / "bk.toml"
    settings.write_text('[bookie]\nbookie_id = "b3"\njournal_directories = ["/j"]\nledger_directories = ["/d1"]\n')
    assert main(["cookie", "generate", "--config", str(settings)]) == 0
    assert parse(capsys.readouterr().out.encode()).journals == ("/jv",)
    file = tmp_path / "VERSION"
    file.write_text(text)
    assert main(["cookie", "update", "b3", str(file)]) == 2  # There is none yet.
    assert main(["cookie", "create", "b3", str(file), "--dry-run"]) == 0
    assert main(["cookie", "get", "b3"]) == 2
    assert main(["cookie", "create", "b3", str(file)]) == 0
    assert main(["cookie", "create", "b3", str(file)]) == 1
    assert main(["cookie", "create", "b4", str(file)]) == 2
    assert "is the cookie of bookie b3, not of b4" in capsys.readouterr().err
    file.write_text(text.replace("/d2", "/d3"))
    assert main(["cookie", "update", "b3", str(file)]) == 0
    capsys.readouterr()
    assert main(["cookie", "get", "b3"]) == 0
    assert "/d3" in capsys.readouterr().out
    assert main([*generate, "--bookie-id", "b3", "--instance-id", "another"]) == 0
    file.write_text(capsys.readouterr().out)
    assert main(["cookie", "update", "b3", str(file)]) == 2
    assert "belongs to cluster another" in capsys.readouterr().err
    file.write_text("nonsense")
    assert main(["cookie", "update", "b3", str(file)]) == 1
    assert main(["cookie", "update", "b3", str(tmp_path / "missing")]) == 2


def test_generate_from_apaches_configuration(
    store: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "bk_server.conf"
    conf.write_text("advertisedAddress=bk1\nbookiePort=3182\njournalDirectories=/j\nledgerDirectories=/a,/b\n")
    assert main(["cookie", "generate", "--conf", str(conf)]) == 0
    assert parse(capsys.readouterr().out.encode()).bookie == "bk1:3182"


def test_delete_guards_what_is_stored(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cookie", "delete", "b1"]) == 1
    printed = capsys.readouterr().err
    assert "1 ledger has entries on it (0)" in printed
    assert "nothing was changed" in printed
    assert main(["cookie", "delete", "b2", "--dry-run"]) == 0
    assert main(["cookie", "delete", "b2"]) == 0
    assert main(["cookie", "get", "b2"]) == 2
    assert main(["cookie", "get", "b1"]) == 0
    capsys.readouterr()
    assert main(["cookie", "delete", "b1", "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deleted"] is True
    assert main(["cookie", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_cookie_that_cannot_be_read_can_be_deleted(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def spoil() -> None:
        driver = connect(os.environ["BK_METADATA"], aio.runtime())
        await driver.open()
        for bookie in (BookieId("b1"), BookieId("b2")):
            await driver.write_cookie(bookie, b"junk", (await driver.read_cookie(bookie))[1])
        await driver.close()

    aio.run(spoil())
    assert main(["cookie", "delete", "b2"]) == 1
    assert "the cookie of b2 cannot be read: " in capsys.readouterr().err
    assert main(["cookie", "delete", "b1", "--dry-run"]) == 1
    assert "1 ledger has entries on it (0)" in capsys.readouterr().err
    assert main(["cookie", "delete", "b2", "--force"]) == 0
    assert main(["cookie", "get", "b2"]) == 2


def test_cluster_info(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["instance_id"], facts["bookies"], facts["unavailable_bookies"]) == (store, 2, 2)
    assert main(["cluster", "info"]) == 0
    assert "unavailable bookies 2" in capsys.readouterr().out


def test_a_bookie_says_what_it_would_run_with(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BK_METADATA", raising=False)
    conf = tmp_path / "bk_server.conf"
    conf.write_text(
        "bookiePort=3182\nadvertisedAddress=bk1\njournalDirectories=/j\nledgerDirectories=/a,/b\nzkServers=z1:2181\n"
        "journalSyncData=false\ngcWaitTimes=1\nserverTcpNoDelay=true\n"
    )
    words = ["bookie", "run", "--conf", str(conf), "--dry-run", "--json"]
    assert main([*words, "--set", "lease_ms=9000", "--journal-dir", "/k"]) == 0
    printed = capsys.readouterr()
    shown = json.loads(printed.out)
    assert (shown["bookie"], shown["metadata"]) == ("bk1:3182", "zk+null://z1:2181/ledgers")
    assert shown["settings"] == {
        "host": "0.0.0.0",
        "port": 3182,
        "advertised_host": "bk1",
        "journal_directories": ["/k"],
        "ledger_directories": ["/a", "/b"],
        "lease_ms": 9000,
    }
    lines = printed.err.splitlines()
    assert lines[0].startswith(f"{conf}: WARNING: journalSyncData=false: ignored: every add is synced to disk")
    assert "did you mean gcWaitTime?" in lines[1]
    assert lines[2].startswith(f"{conf}: serverTcpNoDelay: ")
    monkeypatch.setenv("BK_PORT", "4000")
    assert main([*words, "--metadata", "file:/m", "--host", "10.0.0.9"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["bookie"], shown["metadata"]) == ("10.0.0.9:4000", "file:/m")
    conf.write_text("forceReadOnlyBookie=true\nadvertisedAddress=bk1\n")
    assert main(words) == 1  # wrong settings
    assert "bk bookie read-only" in capsys.readouterr().err
