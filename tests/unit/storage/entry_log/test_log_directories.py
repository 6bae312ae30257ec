"""Ids of entry logs in memory and in the names of files, for one space of ids and for one in each directory."""

from __future__ import annotations

import struct

import pytest

from bookies.errors import StorageError
from bookies.lab.sim.world.disk import SimDisk
from bookies.storage.entry_log.entry_log import greatest_log_id
from bookies.storage.entry_log.entry_log_format import LOG_ID_MAX
from bookies.storage.entry_log.log_directories import LogDirectories
from bookies.storage.entry_log.log_usage import find_logs

PATHS = ["/a", "/b", "/c"]
ONE, SPLIT = LogDirectories(PATHS), LogDirectories(PATHS, is_split=True)


def test_one_space_of_ids_is_what_the_names_say() -> None:
    assert (ONE.count, ONE.space_of(7), ONE.inward(0, 9), ONE.file_id(9)) == (1, 0, 9, 9)
    assert (ONE.id_in("/b", 9), ONE.of_log(9), ONE.holds(9, 4)) == (9, PATHS, True)
    assert (ONE.name(31), ONE.label(31)) == ("1f.log", "1f")
    assert (ONE.next_id(-1, 0), ONE.next_id(5, 0), ONE.next_id(LOG_ID_MAX, 0)) == (0, 6, 0)
    assert ONE.slots_inward(0, b"x" * 8) == ONE.slots_outward(b"x" * 8) == b"x" * 8


def test_each_directory_has_ids_of_its_own_and_certain_ledgers() -> None:
    ids = {directory: SPLIT.id_in(directory, 31) for directory in PATHS}
    assert len(set(ids.values())) == 3
    for number, (directory, log_id) in enumerate(ids.items()):
        assert (SPLIT.file_id(log_id), SPLIT.of_log(log_id)) == (31, [directory])
        assert (SPLIT.name(log_id), SPLIT.label(log_id)) == (f"{directory}/1f.log",) * 2
        assert [ledger_id for ledger_id in range(6) if SPLIT.holds(log_id, ledger_id)] == [number, number + 3]
        assert SPLIT.space_of(number + 3) == number


def test_a_new_log_has_a_greater_id_than_all_others() -> None:
    last = -1
    for space in (0, 2, 1, 1, 0, 2):
        log_id = SPLIT.next_id(last, space)
        assert log_id > last
        assert SPLIT.of_log(log_id) == [PATHS[space]]
        last = log_id


@pytest.mark.parametrize("number", range(3))
def test_slots_have_ids_and_locations_those_of_files(number: int) -> None:
    locations = struct.pack(">IIIIII", 0, 1028, 5, 1028, 5, 4096)
    slots = SPLIT.slots_inward(number, locations)
    assert struct.unpack(">IIIIII", slots) == (number, 1028, 15 + number, 1028, 15 + number, 4096)
    assert SPLIT.slots_outward(slots) == locations
    assert SPLIT.slots_outward(bytes(16)) == bytes(16)  # missing ones


def test_an_id_that_does_not_fit_is_refused() -> None:
    assert SPLIT.inward(1, LOG_ID_MAX // 3 - 1) <= LOG_ID_MAX
    with pytest.raises(StorageError, match=r"7fffffff\.log: the id is too large for 3 ledger directories"):
        SPLIT.inward(0, LOG_ID_MAX)


def test_what_the_directories_have() -> None:
    disk = SimDisk()
    for name in ("a/0.log", "b/0.log", "c/5.log.compacting"):
        disk.put(f"/{name}", b"")
    disk.put("/b/lastId", b"2\n")
    assert find_logs(disk, SPLIT) == {0: "/a/0.log", 1: "/b/0.log"}
    assert find_logs(disk, SPLIT, ["/b"]) == {1: "/b/0.log"}
    assert find_logs(disk, ONE) == {0: "/a/0.log"}
    assert greatest_log_id(disk, SPLIT) == 17
    assert greatest_log_id(disk, SPLIT, ["/a", "/b"]) == 7
    assert greatest_log_id(disk, ONE) == 5
