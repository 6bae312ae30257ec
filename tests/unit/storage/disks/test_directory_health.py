"""Which directories can be used, and what the disk that watches over them lets through."""

from __future__ import annotations

import pytest

from bookies.errors import DiskFull
from bookies.lab.sim.world.disk import SimDisk
from bookies.storage.disks import DirectoryHealth
from bookies.storage.disks.directory_health import READ_FAILURES_MAX
from bookies.storage.disks.observed_disk import WatchedDisk

DIRECTORIES = ["/a", "/b", "/c"]


def health_of(keeps_going: bool = True) -> DirectoryHealth:
    return DirectoryHealth(DIRECTORIES, DIRECTORIES, keeps_going=keeps_going)


def test_new_things_go_where_there_is_room() -> None:
    health = health_of()
    assert [health.pick(DIRECTORIES, number) for number in range(4)] == ["/a", "/b", "/c", "/a"]
    health.crowded = frozenset({"/b"})
    assert [health.pick(DIRECTORIES, number) for number in range(4)] == ["/a", "/c", "/a", "/c"]
    assert health.should_leave("/b", DIRECTORIES)
    assert not health.should_leave("/a", DIRECTORIES)
    health.crowded = frozenset(DIRECTORIES)
    health.usable = {"/a": 5, "/b": 9, "/c": 7}
    assert {health.pick(DIRECTORIES, number) for number in range(4)} == {"/b"}
    assert not health.should_leave("/b", DIRECTORIES)


def test_a_failed_directory_is_told_once_and_the_last_one_never_fails() -> None:
    health = health_of()
    assert health.fail("/b/0/1.idx", "broken")
    assert health.fail("/b/1.log", "broken again")
    assert health.take_new_failures() == ["/b"]
    assert not health.has_new_failures
    assert health.healthy(DIRECTORIES) == ["/a", "/c"]
    assert health.is_failed("/b/x")
    assert not health.is_failed("/bb/x")
    assert health.fail("/a", "broken")
    assert not health.fail("/c", "broken")
    assert not health.fail("/elsewhere/file", "broken")
    assert list(health.failed) == ["/b", "/a"]
    assert not health_of(keeps_going=False).fail("/b", "broken")


def test_a_directory_that_cannot_be_listed_fails_at_once() -> None:
    disk, health = SimDisk(), health_of()
    disk.put("/b/0/file", b"content")
    disk.fail("list", "/b", lambda: OSError(5, "Input/output error"), count=2)
    watched = WatchedDisk(disk, health)
    for path, failed in (("/b/0", []), ("/b", ["/b"])):
        with pytest.raises(OSError, match="Input"):
            watched.list(path)
        assert list(health.failed) == failed


def test_there_has_to_be_one_of_each_kind() -> None:
    health = DirectoryHealth(["/a", "/b"], ["/i"], keeps_going=True)
    assert not health.fail("/i", "broken")
    assert health.fail("/a", "broken")
    assert not health.fail("/b", "broken")


def test_writes_fail_at_once_where_one_has_failed_and_reads_go_through() -> None:
    disk, health = SimDisk(), health_of()
    watched = WatchedDisk(disk, health)
    disk.put("/a/file", b"content")
    disk.put("/b/file", b"content")
    file = watched.open("/a/file", "r+")
    disk.fail("fsync", "/a", lambda: OSError(5, "Input/output error"))
    with pytest.raises(OSError, match="Input/output error"):
        file.fsync()
    assert health.take_new_failures() == ["/a"]
    calls = disk.call_count
    for write in (
        file.fsync,
        file.fdatasync,
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(0),
        lambda: watched.open("/a/other", "x+"),
        lambda: watched.unlink("/a/file"),
        lambda: watched.rename("/a/file", "/a/other"),
        lambda: watched.replace_bytes("/a/file", b"x"),
        lambda: watched.sync_directory("/a"),
    ):
        with pytest.raises(OSError, match="the bookie refuses writes to it"):
            write()
    assert disk.call_count == calls
    assert file.pread(7, 0) == b"content"
    assert watched.read_bytes("/a/file") == b"content"
    watched.open("/b/file", "r+").pwrite(b"x", 0)


def test_a_full_disk_and_a_missing_file_are_no_failures() -> None:
    disk, health = SimDisk(), health_of()
    watched = WatchedDisk(disk, health)
    disk.put("/a/file", b"content")
    disk.fail("pwrite", "/a", lambda: DiskFull("no space"))
    with pytest.raises(DiskFull):
        watched.open("/a/file", "r+").pwrite(b"x", 0)
    with pytest.raises(FileNotFoundError):
        watched.open("/a/missing", "r+")
    assert not health.failed


def test_a_few_failed_reads_are_damage_and_many_are_a_failed_directory() -> None:
    disk, health = SimDisk(), health_of()
    watched = WatchedDisk(disk, health)
    disk.put("/a/file", b"content")
    file = watched.open("/a/file", "r")
    disk.fail("pread", "/a", lambda: OSError(5, "Input/output error"), count=100)
    for place in [*[0] * 20, *range(1, READ_FAILURES_MAX)]:  # one bad place may be tried again and again
        assert not health.failed, place
        with pytest.raises(OSError, match="Input/output error"):
            file.pread(1, place << 20)
    assert "reads fail" in health.failed["/a"]
