"""A bookie that does not run, found from one of its directories."""

from __future__ import annotations

import pathlib
from random import Random

import pytest

from bookies.config import BookieConfig
from bookies.errors import StorageError
from bookies.lab.sim.world.disk import SimDisk
from bookies.runtime.files import OsDisk
from bookies.storage.identity import Cookie
from bookies.storage.identity.cookie import master_cookie
from bookies.storage.offline import bookie_at


def disk_with(own: Cookie, *directories: str) -> SimDisk:
    disk = SimDisk(Random(0))
    for directory in directories:
        disk.put(f"{directory}/current/VERSION", own.pack())
    return disk


def cookie(journal: str, ledgers: str) -> Cookie:
    return master_cookie(BookieConfig(journal_directories=(journal,), ledger_directories=(ledgers,)), "b1", "cluster")


@pytest.mark.parametrize("given", ["/b/ledgers", "/b/journal", "/b/ledgers/current", "/b/ledgers/"])
@pytest.mark.parametrize("names", [("journal", "ledgers"), ("/b/journal", "/b/ledgers")])
def test_all_directories_from_one(given: str, names: tuple[str, str]) -> None:
    found = bookie_at(disk_with(cookie(*names), "/b/journal", "/b/ledgers"), given)
    assert (found.journals, found.ledgers, found.indexes) == (["/b/journal"], ["/b/ledgers"], ["/b/ledgers"])
    assert not found.problems


def test_a_copy_never_stands_for_what_it_was_copied_from() -> None:
    """A bookie may work on the directories that the cookie names."""
    disk = disk_with(cookie("/b/journal", "/b/ledgers"), "/b/journal", "/b/ledgers", "/copy/of-ledgers")
    found = bookie_at(disk, "/copy/of-ledgers")
    assert found.ledgers == ["/copy/of-ledgers"]
    with pytest.raises(
        StorageError, match=r"/copy/of-ledgers: it is not what its cookie names \(/b/journal, /b/ledgers\)"
    ):
        found.config()


def test_a_copy_of_a_bookie_with_one_directory_is_whole() -> None:
    found = bookie_at(disk_with(cookie("/b/all", "/b/all"), "/b/all", "/copy"), "/copy")
    assert (found.journals, found.ledgers, found.problems) == (["/copy"], ["/copy"], {})


def test_links_lead_to_the_directory(tmp_path: pathlib.Path) -> None:
    real, link = tmp_path / "disk1", tmp_path / "srv"
    own = cookie(str(link / "journal"), str(link / "ledgers"))
    for name in ("journal", "ledgers"):
        (real / name / "current").mkdir(parents=True)
        (real / name / "current" / "VERSION").write_bytes(own.pack())
    link.symlink_to(real)
    found = bookie_at(OsDisk(), str(real / "ledgers"))
    assert (found.journals, found.problems) == ([str(link / "journal")], {})


@pytest.mark.parametrize("inside", ["ledgers/current", "journal/current", "ledgers"])
def test_from_inside_of_a_directory(inside: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("journal", "ledgers"):
        (tmp_path / name / "current").mkdir(parents=True)
        (tmp_path / name / "current" / "VERSION").write_bytes(cookie("journal", "ledgers").pack())
    monkeypatch.chdir(tmp_path / inside)
    found = bookie_at(OsDisk(), ".")
    assert (found.journals, found.ledgers) == ([str(tmp_path / "journal")], [str(tmp_path / "ledgers")])
    assert not found.problems


def test_which_kind_of_directory_is_missing() -> None:
    config = BookieConfig(journal_directories=("/j",), ledger_directories=("/l",), index_directories=("/x", "/y"))
    own = master_cookie(config, "b1", "cluster")
    found = bookie_at(disk_with(own, "/j", "/l", "/x"), "/l")
    assert (list(found.problems), found.has_all_indexes) == (["/y"], False)
    found = bookie_at(disk_with(own, "/l", "/x", "/y"), "/l")
    assert (list(found.problems), found.has_all_indexes) == (["/j"], True)


def test_the_kind_of_index_is_what_is_there() -> None:
    disk = disk_with(cookie("/b/journal", "/b/ledgers"), "/b/journal", "/b/ledgers")
    assert bookie_at(disk, "/b/ledgers").config().ledger_index == "files"
    disk.make_directories("/b/ledgers/current/locations")
    assert bookie_at(disk, "/b/journal").config().ledger_index == "rocksdb"
