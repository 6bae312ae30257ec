"""The simulated disk forgets exactly what was not synced."""

from __future__ import annotations

from random import Random

import pytest

from bookies.errors import DirectoryInUse, DiskFull
from bookies.lab.sim.world.disk import (
    EVERYTHING_SURVIVES,
    NOTHING_SURVIVES,
    PROCESS_DIES,
    SECTOR,
    Loss,
    SimDisk,
)
from bookies.lab.sim.world.loop import Crashed


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk(Random(1), is_logging=True)
    made.make_directories("/d")
    return made


def test_unsynced_bytes_and_names_are_forgotten(disk: SimDisk) -> None:
    file = disk.open("/d/a", "x+")
    file.pwrite(b"one", 0)
    file.fsync()
    disk.sync_directory("/d")
    file.pwrite(b"two", 0)
    disk.open("/d/b", "w+").fsync()
    disk.crash(NOTHING_SURVIVES)
    assert disk.files() == {"/d/a": b"one"}


def test_everything_written_survives_the_death_of_the_process_alone(disk: SimDisk) -> None:
    disk.open("/d/a", "x+").pwrite(b"one", 0)
    disk.crash(PROCESS_DIES)
    assert disk.files() == {"/d/a": b"one"}


def test_sectors_survive_one_by_one() -> None:
    seen = set()
    for seed in range(40):
        disk = SimDisk(Random(seed))
        disk.put("/d/a", b"o" * 2 * SECTOR)
        disk.open("/d/a", "r+").pwrite(b"n" * 2 * SECTOR, 0)
        disk.crash(Loss(0.5))
        seen.add(bytes(disk.files()["/d/a"][::SECTOR]))
    assert seen == {b"oo", b"on", b"no", b"nn"}


def test_a_file_without_sync_may_have_its_name_and_length_but_not_its_bytes() -> None:
    seen = set()
    for seed in range(40):
        disk = SimDisk(Random(seed))
        disk.make_directories("/d")
        disk.open("/d/a", "x+").pwrite(b"x" * 10, 0)
        disk.crash(Loss(0.5))
        seen.add(disk.files().get("/d/a"))
    assert seen == {None, b"", bytes(10), b"x" * 10}


def test_garbage_appears_only_where_nothing_was_before() -> None:
    for seed in range(20):
        disk = SimDisk(Random(seed))
        disk.put("/d/a.txn", b"o" * SECTOR + bytes(SECTOR))
        disk.open("/d/a.txn", "r+").pwrite(b"n" * 2 * SECTOR, 0)
        disk.crash(Loss(0.0, garbage=1.0))
        data = disk.files()["/d/a.txn"]
        assert data[:SECTOR] == b"o" * SECTOR
        assert data[SECTOR:] not in (bytes(SECTOR), b"n" * SECTOR)


def test_a_rename_is_whole_or_did_not_happen() -> None:
    for loss in (NOTHING_SURVIVES, EVERYTHING_SURVIVES):
        disk = SimDisk(Random(1))
        disk.put("/d/a", b"old")
        disk.put("/d/b", b"new")
        disk.rename("/d/b", "/d/a")
        disk.crash(loss)
        assert disk.files() in ({"/d/a": b"old", "/d/b": b"new"}, {"/d/a": b"new"})


def test_replaced_bytes_are_durable(disk: SimDisk) -> None:
    disk.replace_bytes("/d/mark", b"1")
    disk.replace_bytes("/d/mark", b"2")
    disk.crash(NOTHING_SURVIVES)
    assert disk.files() == {"/d/mark": b"2"}


def test_the_call_at_which_it_crashes_does_not_happen(disk: SimDisk) -> None:
    crashes = []
    file = disk.open("/d/a", "x+")
    disk.on_crash = lambda: crashes.append(disk.call_count)
    disk.crash_at = disk.call_count + 2
    file.pwrite(b"one", 0)
    with pytest.raises(Crashed):
        file.fsync()
    with pytest.raises(Crashed):
        disk.list("/d")
    assert crashes == [disk.crash_at]
    disk.crash(NOTHING_SURVIVES)
    assert disk.files() == {}
    with pytest.raises(Crashed):
        file.pread(1, 0)  # a handle of the life before


def test_faults_strike_the_calls_they_name(disk: SimDisk) -> None:
    disk.fail("pwrite", "/d/a", lambda: OSError(5, "Input/output error"), skip=1, count=2)
    file, other = disk.open("/d/a", "x+"), disk.open("/d/b", "x+")
    file.pwrite(b"1", 0)
    for _ in range(2):
        other.pwrite(b"1", 0)
        with pytest.raises(OSError, match="Input/output"):
            file.pwrite(b"2", 0)
    file.pwrite(b"3", 0)
    assert disk.files() == {"/d/a": b"3", "/d/b": b"1"}


def test_a_full_disk(disk: SimDisk) -> None:
    disk.capacity = 100
    file = disk.open("/d/a", "x+")
    file.pwrite(bytes(90), 0)
    with pytest.raises(DiskFull):
        file.pwrite(bytes(20), 90)
    file.pwrite(b"x" * 90, 0)
    assert disk.usage("/d") == (100, 10)


def test_locks_end_with_the_process(disk: SimDisk) -> None:
    lock = disk.lock_directory("/d")
    with pytest.raises(DirectoryInUse):
        disk.lock_directory("/d")
    disk.crash(PROCESS_DIES)
    disk.lock_directory("/d")
    lock.release()
    assert disk.locks == {"/d": None}


def test_a_flipped_bit_and_the_log_of_calls(disk: SimDisk) -> None:
    disk.put("/d/a", b"\x00\x01")
    disk.flip_bit("/d/a", 1, 1)
    disk.crash(NOTHING_SURVIVES)
    assert disk.read_bytes("/d/a") == b"\x00\x03"
    assert disk.log is not None
    assert (disk.log[-1].operation, disk.log[-1].path) == ("read_bytes", "/d/a")
