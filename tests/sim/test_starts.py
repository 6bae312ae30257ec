"""Starts that find the directories other than they were left: journals swapped, files half written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bookies.errors import StorageError
from bookies.lab.sim.world.disk import PROCESS_DIES
from bookies.storage.scrub import scrub_format
from bookies.storage.store import LedgerStore

Body = Callable[..., bytes]
JOURNALS = ("/journal0/current", "/journal1/current")
BOTH_INDEXES_BUT: set[str] = set()


def swap(made: Any) -> None:
    """Mount each of two journals' disks under the name of the other."""
    found = [{path.rpartition("/")[2]: data for path, data in made.disk.files(each).items()} for each in JOURNALS]
    for directory, before, after in zip(JOURNALS, found, reversed(found), strict=True):
        for name in before:
            made.disk.unlink(f"{directory}/{name}")
        made.disk.sync_directory(directory)
        for name, data in after.items():
            made.disk.put(f"{directory}/{name}", data)


@pytest.mark.parametrize("stops", [False, True])
def test_two_journals_that_were_swapped(machine: Any, body: Body, stops: bool) -> None:
    """Their first files have the same id, so each stands where the other's mark looks for it."""
    made = machine("swap", journals=2)
    made.mean_ms = 0.0001  # both begin in the same millisecond

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(20)})
        await promises.add(store, 2, {0: body(2, 0)})
        await store.checkpoint()
        await promises.add(store, 2, {entry: body(2, entry) for entry in range(1, 30)})
        await promises.fence(store, 2)
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(20, 40)})

    assert made.live(script, stops=stops)
    made.crash(PROCESS_DIES)
    ids = [{path.rpartition("/")[2] for path in made.disk.files(each) if path.endswith(".txn")} for each in JOURNALS]
    assert min(ids[0]) == min(ids[1])  # One may have prepared another file.
    swap(made)
    before = made.disk.files()
    wanted = r"/journal0/current: its journal.place names journal 2 of 2.*Mount it as /journal1/current"
    with pytest.raises(StorageError, match=wanted):
        made.live(script)
    made.crash(PROCESS_DIES)
    assert made.disk.files() == before
    swap(made)
    made.check()


def test_journals_of_before_they_had_names_get_them(machine: Any, body: Body) -> None:
    made = machine("names", journals=2)

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {0: body(1, 0)})

    assert made.live(script, stops=False)
    made.crash(PROCESS_DIES)
    for directory in JOURNALS:
        made.disk.unlink(f"{directory}/journal.place")
        made.disk.sync_directory(directory)
    made.check()
    assert [made.disk.read_bytes(f"{each}/journal.place")[:14] for each in JOURNALS] == [
        b"journal 1 of 2",
        b"journal 2 of 2",
    ]


def test_what_was_half_written_is_removed(machine: Any, body: Body) -> None:
    made = machine("half")
    left = [f"/ledgers0/current/.{name}.tmp" for name in (scrub_format.FILE_NAME, "lastMark", "removedLedgers")]

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {0: body(1, 0)})

    assert made.live(script)
    for path in [*left, "/ledgers0/current/.BOOKIE_STATUS.tmp"]:
        made.disk.put(path, b"half")
    made.check(lives=1)
    assert [path for path in made.disk.files() if path.endswith(".tmp")] == ["/ledgers0/current/.BOOKIE_STATUS.tmp"]
