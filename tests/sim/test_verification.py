"""`bk inspect directory --verify`: finds what is damaged, whose it is, and nothing where nothing is."""

from __future__ import annotations

import dataclasses
from functools import cache
from random import Random
from typing import Any

import pytest

from bookies.config import BookieConfig
from bookies.lab.sim.faults import damage
from bookies.lab.sim.faults.damage import Base, Files
from bookies.lab.sim.world.disk import SimDisk
from bookies.storage.identity.cookie import master_cookie
from bookies.storage.offline.verification import verify_rows

LOG, INDEX = "/ledgers/current/0.log", "/ledgers/current/0/3/3.idx"


@cache
def base() -> Base:
    made = damage.build("verify", is_clean=True)
    config = BookieConfig(journal_directories=("/journal",), ledger_directories=("/ledgers",))
    for directory in ("/journal", "/ledgers"):
        made.files[f"{directory}/current/VERSION"] = master_cookie(config, "b1", "cluster").pack()
    return made


def verified(files: Files) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(findings, total)"""
    disk = SimDisk(Random(0))
    for path, data in files.items():
        disk.put(path, data)
    *rows, total = verify_rows(disk, "/journal")
    assert disk.files() == {path: files[path] for path in sorted(files)}
    assert not disk.open_files
    return [row for row in rows if row["row"] == "finding"], total


def test_a_bookie_in_order() -> None:
    findings, total = verified(base().files)
    assert findings == []
    assert total["ledgers"] == 8
    assert total["entries"] == len(base().entries)
    assert total["unchecked_digests"] == 0


def changed(path: str, at: int) -> Files:
    data = bytearray(base().files[path])
    data[at] ^= 0x10
    return base().files | {path: bytes(data)}


@pytest.mark.parametrize(
    ("path", "at", "problem", "costs_entries"),
    [
        (LOG, 0, "not an entry log", False),
        (LOG, 1024 + 4 + 60, "fail their digest", True),
        (LOG, 1024, "from byte 1,024 on", False),
        (INDEX, 0, "not an index file", False),
        (INDEX, 1024 + 7, "are missing at the places that it names", True),
        (INDEX, 1024 + 7, "the checksum of page 0 is wrong", False),
        ("/ledgers/current/index.catalog", 40, "the checksum of the record at byte", False),
    ],
)
def test_damage_is_found(path: str, at: int, problem: str, costs_entries: bool) -> None:
    findings, total = verified(changed(path, at))
    matching = [row for row in findings if problem in row["problem"]]
    assert matching, findings
    assert total["findings"] == len(findings)
    assert not costs_entries or matching[0]["entries"] >= 1


def test_index_files_on_a_disk_that_is_not_mounted_are_not_called_gone() -> None:
    """They are neither lost nor to be built again: the directory is what is missing, and is named."""
    config = BookieConfig(journal_directories=("/journal",), ledger_directories=("/ledgers",))
    config = dataclasses.replace(config, index_directories=("/x", "/y"))
    files = {}
    for path, data in base().files.items():
        name = path.rpartition("/")[2]
        if name.endswith(".idx") or name == "index.catalog":
            place = "/y" if name.endswith(".idx") and int(name[:-4], 16) % 2 else "/x"
            path = path.replace("/ledgers", place)
        files[path] = data
    for directory in ("/journal", "/ledgers", "/x", "/y"):
        files[f"{directory}/current/VERSION"] = master_cookie(config, "b1", "cluster").pack()
    assert verified(files)[0] == []
    findings, _ = verified({path: data for path, data in files.items() if not path.startswith("/y/")})
    assert [(row["path"], "it is missing" in row["problem"]) for row in findings] == [("/y", True)]


def test_a_file_that_is_gone_is_found() -> None:
    files = dict(base().files)
    del files[INDEX]
    findings, _ = verified(files)
    assert [(row["ledger"], row["problem"]) for row in findings] == [(3, "its index file is missing")]
    assert findings[0]["entries"] == 18
    files = dict(base().files)
    del files[LOG]
    findings, _ = verified(files)
    assert {row["ledger"] for row in findings} == {1, 2, 3, 4}
    assert sum(row["entries"] for row in findings) == 36
