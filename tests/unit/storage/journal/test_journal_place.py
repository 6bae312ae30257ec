"""A journal's directory says which one it is."""

from __future__ import annotations

from random import Random

import pytest

from bookies.errors import StorageError
from bookies.lab.sim.world.disk import SimDisk
from bookies.storage.journal.journal_place import FILE_NAME, check_places, note_place, pack, parse, read_place

PLACES = ("/x/current", "/y/current")


def made() -> SimDisk:
    disk = SimDisk(Random(0))
    for number, directory in enumerate(PLACES):
        disk.put(f"{directory}/VERSION", b"")
        note_place(disk, directory, number, 2)
    return disk


def test_text() -> None:
    assert pack(0, 2) == b"journal 1 of 2\n01d80abb\n"
    assert parse(pack(0, 2)) == (0, 2)
    assert parse(pack(11, 12)) == (11, 12)
    for wrong in (b"", pack(0, 2)[:-2], pack(0, 2).replace(b"1", b"2", 1), pack(0, 2) + b"x", b"journal 0 of 2\n"):
        assert parse(wrong) is None


def test_places_are_noted_once() -> None:
    disk = made()
    check_places(disk, PLACES)
    before = disk.call_count
    note_place(disk, PLACES[1], 1, 2)
    assert disk.call_count - before <= 3  # it was only looked at
    single = SimDisk(Random(0))
    note_place(single, PLACES[0], 0, 1)
    assert not single.files()


@pytest.mark.parametrize("how", ["swapped", "copied"])
def test_another_journal_in_its_place_is_refused(how: str) -> None:
    disk = made()
    first = disk.read_bytes(f"{PLACES[0]}/{FILE_NAME}")
    if how == "swapped":
        disk.put(f"{PLACES[0]}/{FILE_NAME}", disk.read_bytes(f"{PLACES[1]}/{FILE_NAME}"))
    disk.put(f"{PLACES[1]}/{FILE_NAME}", first)
    with pytest.raises(StorageError, match=r"configured as journal [12]:.*Mount it as /[xy]/current again"):
        check_places(disk, PLACES)


def test_one_that_is_damaged_says_nothing() -> None:
    disk = made()
    disk.flip_bit(f"{PLACES[1]}/{FILE_NAME}", 8)
    check_places(disk, PLACES)
    note_place(disk, PLACES[1], 1, 2)
    assert read_place(disk, PLACES[1]) == (1, 2)
