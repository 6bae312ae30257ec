"""`bk bookie repair` and `bk inspect directory --verify` on real files."""

from __future__ import annotations

import json
import pathlib

import pytest

from bookies.admin.cli import main
from bookies.config import BookieConfig
from bookies.lab.sim.faults import damage
from bookies.runtime.files import OsDisk
from bookies.storage.identity.cookie import master_cookie
from bookies.storage.offline.offline_bookie import kept_page_size


def files_below(path: pathlib.Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


@pytest.fixture
def bookie(tmp_path: pathlib.Path) -> pathlib.Path:
    """Directories of a bookie that was stopped, one index file gone."""
    config = BookieConfig(
        journal_directories=(str(tmp_path / "journal"),), ledger_directories=(str(tmp_path / "ledgers"),)
    )
    for name, data in damage.build("repair", is_clean=True).files.items():
        path = tmp_path / name[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for directory in ("journal", "ledgers"):
        (tmp_path / directory / "current" / "VERSION").write_bytes(master_cookie(config, "b1", "cluster").pack())
    (tmp_path / "ledgers" / "current" / "0" / "3" / "3.idx").unlink()
    return tmp_path


def test_what_is_missing_is_built_again(bookie: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(bookie / "ledgers")
    before = files_below(bookie)
    assert main(["inspect", "directory", path, "--verify", "--json"]) == 1
    assert main(["bookie", "repair", path, "--dry-run", "--json"]) == 1
    assert files_below(bookie) == before
    assert "its index file is missing" in capsys.readouterr().out
    assert main(["bookie", "repair", path, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"done": {"ledgers": 8, "uncertain": 0, "rebuilt": 1}, "findings": []}
    assert main(["inspect", "directory", str(bookie / "journal"), "--verify"]) == 0
    assert (bookie / "ledgers" / "current" / "0" / "3" / "3.idx").exists()
    capsys.readouterr()
    assert main(["bookie", "repair", path, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("no damage found")


def test_a_running_bookie_is_left_alone(bookie: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_below(bookie)
    lock = OsDisk().lock_directory(str(bookie / "ledgers" / "current"))
    try:
        assert main(["bookie", "repair", str(bookie / "ledgers")]) == 1
        assert capsys.readouterr().err
        assert main(["bookie", "repair", str(bookie / "ledgers"), "--dry-run"]) == 1
        assert "stop the bookie first" in capsys.readouterr().err
    finally:
        lock.release()
    assert files_below(bookie) == before


def test_a_bookie_that_is_being_given_up_is_left_alone(
    bookie: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for directory in ("journal", "ledgers"):
        current = bookie / directory / "current"
        (current / "VERSION").rename(current / "FORMATTING")
    before = files_below(bookie)
    assert main(["bookie", "repair", str(bookie / "ledgers")]) == 2
    assert "repeat that" in capsys.readouterr().err
    assert main(["inspect", "directory", str(bookie / "ledgers")]) == 1
    assert "is being emptied: repeat bk bookie format" in capsys.readouterr().out
    assert files_below(bookie) == before


@pytest.mark.parametrize("state", ["absent", "empty"])
@pytest.mark.parametrize("missing", ["journal", "ledgers2"])
def test_nothing_is_built_while_a_disk_is_not_there(
    bookie: pathlib.Path, state: str, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is on it would be missing in the new index, and what is written would be hidden under it."""
    config = BookieConfig(
        journal_directories=(str(bookie / "journal"),),
        ledger_directories=(str(bookie / "ledgers"), str(bookie / "ledgers2")),
    )
    (bookie / "ledgers2" / "current").mkdir(parents=True)
    for directory in ("journal", "ledgers", "ledgers2"):
        (bookie / directory / "current" / "VERSION").write_bytes(master_cookie(config, "b1", "cluster").pack())
    (bookie / missing).rename(bookie / "away")
    if state == "empty":
        (bookie / missing).mkdir()
    before = files_below(bookie)
    path = str(bookie / "ledgers")
    assert main(["bookie", "repair", path]) == 1
    assert "mount the disk" in capsys.readouterr().err
    assert main(["bookie", "convert", path, "--to", "rocksdb"]) == 1
    assert "mount the disk" in capsys.readouterr().err
    assert main(["inspect", "directory", path, "--verify"]) == 1
    assert f"finding: {bookie / missing}: it " in capsys.readouterr().out
    assert files_below(bookie) == before


def test_pages_keep_the_size_they_have(bookie: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their checksums are of that size: with another one damage would go unnoticed."""
    [page_size] = {BookieConfig().index_page_size * 2}
    monkeypatch.setenv("BK_INDEX_PAGE_SIZE", str(page_size))
    catalog = bookie / "ledgers" / "current" / "index.catalog"
    before = kept_page_size(OsDisk(), [str(catalog.parent)])
    index = bookie / "ledgers" / "current" / "0" / "1" / "1.idx"
    index.write_bytes(index.read_bytes()[:1040])
    assert main(["bookie", "repair", str(bookie / "ledgers"), "--json"]) == 0
    assert kept_page_size(OsDisk(), [str(catalog.parent)]) == before != page_size
    assert index.stat().st_size > 1040
