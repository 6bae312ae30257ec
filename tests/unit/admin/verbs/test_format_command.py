"""`bk bookie format` on real files and a store: what it says, what it asks, and its exit status."""

from __future__ import annotations

import io
import json
import pathlib
import shutil

import pytest

from bookies.admin.cli import main
from bookies.config import BookieConfig
from bookies.metadata.uri import connect
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.runtime import aio
from bookies.runtime.files import OsDisk
from bookies.storage.identity.cookie import master_cookie, write_cookie


@pytest.fixture
def home(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A local cluster whose bookie b1 has stopped; ledger 7 has its entries there alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BK_METADATA", raising=False)
    (tmp_path / "bk-data" / "metadata").mkdir(parents=True)
    config = BookieConfig(journal_directories=("b1/journal",), ledger_directories=("b1/ledgers",))
    b1 = BookieId("b1")

    async def prepare() -> None:
        driver = connect(f"file:{tmp_path}/bk-data/metadata", aio.runtime())
        await driver.open()
        data = master_cookie(config, "b1", await driver.initialize_cluster()).pack()
        await driver.create_cookie(b1, data)
        for directory in ("journal", "ledgers"):
            write_cookie(OsDisk(), f"{tmp_path}/bk-data/b1/{directory}", data)
        record = LedgerMetadata(7, 1, 1, 1, ((0, (b1,)),), LedgerState.CLOSED, last_entry_id=5, length=9)
        await driver.create_ledger(record)
        await driver.close()

    aio.run(prepare())
    index = tmp_path / "bk-data" / "b1" / "ledgers" / "current" / "0" / "7" / "7.idx"
    index.parent.mkdir(parents=True)
    index.write_bytes(b"x" * 5000)
    return tmp_path / "bk-data"


def files(home: pathlib.Path) -> list[str]:
    return [str(each.relative_to(home)) for each in sorted((home / "b1").rglob("*")) if each.is_file()]


def test_it_looks_refuses_and_obeys(home: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(home)
    assert main(["bookie", "format", "b1"]) == 1
    printed = capsys.readouterr()
    assert "1 ledger has entries on it (7)" in printed.err
    assert "nothing was changed; --force overrides the objections" in printed.err
    assert main(["bookie", "format", str(home / "b1" / "journal"), "--dry-run"]) == 1
    assert "3 files" in capsys.readouterr().out
    assert main(["bookie", "format", "b1", "--dry-run", "--force", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["directories"] == [str(home / "b1" / "journal"), str(home / "b1" / "ledgers")]
    assert (facts["files"], facts["ledgers"]) == (3, [7])
    assert files(home) == before
    assert main(["bookie", "format", "b1", "--force"]) == 2
    assert "stdin is not a terminal, so no confirmation is possible" in capsys.readouterr().err
    assert files(home) == before
    assert main(["bookie", "format", "b1", "--force", "--yes"]) == 0
    said = capsys.readouterr().out
    assert "bookie b1 is decommissioned: 3 files" in said
    assert "its cookie is kept because ledgers have entries on it" in said
    assert files(home) == []
    assert main(["bookie", "format", "b1", "--yes"]) == 1
    assert "1 ledger has entries on it (7)" in capsys.readouterr().err
    assert main(["bookie", "format", str(home / "b1" / "journal")]) == 0
    assert "is empty already. To delete the bookie's cookie too, name it: --bookie-id ID" in capsys.readouterr().out


def test_the_cluster_forgets_a_bookie_whose_disks_are_lost(
    home: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def drop() -> None:
        driver = connect(f"file:{home}/metadata", aio.runtime())
        await driver.open()
        await driver.delete_ledger(7)
        await driver.close()

    aio.run(drop())
    shutil.rmtree(home / "b1")
    assert main(["bookie", "format"]) == 2
    assert "name a directory of the bookie" in capsys.readouterr().err
    assert main(["bookie", "format", "--bookie-id", "b1", "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["directories"], facts["cookie"], facts["files"]) == ([], "removed", 0)
    assert main(["bookie", "format", "--bookie-id", "b1", "--yes"]) == 0
    assert main(["bookie", "format", "--bookie-id", "b1", "--yes"]) == 2
    assert "the cluster has no bookie b1" in capsys.readouterr().err


@pytest.mark.parametrize(("typed", "status"), [("b1\n", 0), ("yes\n", 2), ("", 2)])
def test_it_asks_for_the_name(
    home: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, status: int
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(typed))
    assert main(["bookie", "format", "b1", "--force"]) == status
    said = capsys.readouterr().err
    assert "1 have their entries nowhere else (7), which are lost" in said
    assert "Type the bookie's id" in said
    assert (files(home) == []) == (status == 0)


def test_it_is_used_wrongly(home: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["b1", "--bookie-id", "b2"], "belongs to bookie b1, not to b2"),
        (["b9"], "b9 is neither a directory nor a bookie of a local cluster here"),
        ([str(home)], "is not a directory of a bookie"),
        (["b1", "--metadata", f"file:{home}/nowhere"], "nowhere"),
    ):
        assert main(["bookie", "format", *words]) in (1, 2)
        assert said in capsys.readouterr().err
    lock = OsDisk().lock_directory(str(home / "b1" / "ledgers" / "current"))
    try:
        assert main(["bookie", "format", "b1", "--force", "--yes"]) == 1
    finally:
        lock.release()
    assert "bookie b1 runs" in capsys.readouterr().err
    assert len(files(home)) == 3
