"""Entry logs on a simulated disk: locations, rolls, failures part-way, and damage that is never 'no such entry'."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from bookies.config import BookieConfig
from bookies.errors import DiskFull, ReadFailed, StorageError
from bookies.kernels import Records
from bookies.lab.sim.world.disk import NOTHING_SURVIVES, SECTOR, SimDisk, SimFile
from bookies.storage.cache.write_cache import Run
from bookies.storage.disks.durable_files import SyncFailed
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.entry_log.entry_log import (
    DROP_STEP,
    SYNC_STEP,
    EntryLogReader,
    EntryLogWriter,
    LogLost,
    NoWritableDirectory,
)
from bookies.storage.entry_log.log_directories import LogDirectories

DIRECTORIES = ["/l0", "/l1"]
LOGS = LogDirectories(DIRECTORIES)


def body(ledger_id: int, entry_id: int, size: int = 40) -> bytes:
    return struct.pack(">qq", ledger_id, entry_id) + bytes([entry_id % 251]) * size


def run(ledger_id: int, entry_ids: Sequence[int], size: int = 40) -> tuple[int, Run]:
    return ledger_id, Run(entry_ids, Records.of([body(ledger_id, entry_id, size) for entry_id in entry_ids]))


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk(is_logging=True)
    for each in DIRECTORIES:
        made.make_directories(each)
    return made


def writer(disk: SimDisk, logs: LogDirectories = LOGS) -> EntryLogWriter:
    return EntryLogWriter(disk, logs, BookieConfig(entry_log_size_max=1 << 20))


def reader(disk: SimDisk) -> EntryLogReader:
    return EntryLogReader(disk, LOGS)


def pread(data: bytes):  # type: ignore[no-untyped-def]
    return lambda size, offset: data[offset : offset + size]


def fault() -> OSError:
    return OSError(5, "Input/output error")


def test_slots_lead_back_to_the_entries(disk: SimDisk) -> None:
    log = writer(disk)
    slots = log.write([run(1, range(5)), run(2, [0, 7, 9])])
    found = reader(disk)
    assert found.read_records(1, 0, slots[0], 1 << 20) == Records.of([body(1, entry) for entry in range(5)]).data
    assert found.read_records(1, 3, slots[0][24:], 1 << 20) == Records.of([body(1, 3), body(1, 4)]).data
    assert found.read_records(2, 7, slots[1][8:16], 0)[4:] == body(2, 7)


@pytest.mark.parametrize(("size_max", "count"), [(0, 1), (59, 1), (60, 1), (120, 2), (179, 2), (300, 5), (9999, 5)])
def test_a_batch_is_as_long_as_fits(disk: SimDisk, size_max: int, count: int) -> None:
    (slots,) = writer(disk).write([run(1, range(5))])
    assert (
        reader(disk).read_records(1, 0, slots, size_max) == Records.of([body(1, entry) for entry in range(count)]).data
    )


def test_a_batch_ends_where_entries_are_not_neighbours(disk: SimDisk) -> None:
    log = writer(disk)
    (first,) = log.write([run(1, range(4))])
    log.write([run(2, [0])])
    (second,) = log.write([run(1, range(4, 8))])
    batch = reader(disk).read_records(1, 0, first + second, 1 << 20)
    assert batch == Records.of([body(1, entry) for entry in range(4)]).data
    # Slots that go backwards, as after entries that were added in another order.
    assert reader(disk).read_records(1, 4, second[:8] + first, 1 << 20) == Records.of([body(1, 4)]).data


def test_an_entry_larger_than_the_first_read(disk: SimDisk) -> None:
    (slots,) = writer(disk).write([run(1, [0, 1], size=100_000)])
    assert reader(disk).read_records(1, 0, slots, 0)[4:] == body(1, 0, 100_000)
    assert (
        reader(disk).read_records(1, 0, slots, 1 << 20) == Records.of([body(1, each, 100_000) for each in (0, 1)]).data
    )


def test_a_roll_leaves_a_map_and_takes_the_next_id(disk: SimDisk) -> None:
    log = writer(disk)
    for number in range(3):
        log.write([run(7, [number], size=600_000), run(8, [number])])
    log.close()
    logs = {path: data for path, data in disk.files().items() if path.endswith(".log")}
    assert sorted(logs) == ["/l0/0.log", "/l0/2.log", "/l1/1.log"]  # in turn
    for data in logs.values():
        assert layout.read_ledgers_map(pread(data), len(data)) == {7: 600_020, 8: 60}
    assert disk.files()["/l0/lastId"] == disk.files()["/l1/lastId"] == b"2\n"
    assert not disk.open_files


def test_ids_are_never_used_again(disk: SimDisk) -> None:
    """[F-15, R-27] From lastId, from files, from compaction's output, whichever is greatest."""
    disk.put("/l0/3.log", b"")
    writer(disk).write([run(1, [0])])
    assert "/l0/4.log" in disk.files()
    disk.put("/l1/lastId", b"1f\n")
    writer(disk).write([run(1, [0])])
    assert "/l0/20.log" in disk.files()
    disk.put("/l1/30.log.2f.compacted", b"")
    writer(disk).write([run(1, [0])])
    assert "/l1/31.log" in disk.files()


def test_last_id_and_names_are_durable_before_a_log_is_written(disk: SimDisk) -> None:
    """[F-15, F-17]"""
    log = writer(disk)
    log.write([run(1, [0])])
    log.sync()
    disk.crash(NOTHING_SURVIVES)
    assert disk.files()["/l1/lastId"] == b"0\n"
    assert reader(disk).read_records(1, 0, (1028).to_bytes(8, "big"), 0)[4:] == body(1, 0)


def test_sync_covers_the_active_and_every_rolled_log(disk: SimDisk) -> None:
    """[R-16, R-17]"""
    log = writer(disk)
    slots = [log.write([run(1, [number], size=600_000)])[0] for number in range(4)]
    log.sync()
    disk.crash(NOTHING_SURVIVES)
    for number in range(4):
        assert reader(disk).read_records(1, number, slots[number], 0)[4:] == body(1, number, 600_000)


def test_a_failed_sync_is_final_for_every_later_call(disk: SimDisk) -> None:
    """[R-16, R-17] The system would report the next one as done."""
    log = writer(disk)
    for number in range(4):
        log.write([run(1, [number], size=600_000)])
    disk.fail("fsync", "1.log", fault)
    with pytest.raises(SyncFailed):
        log.sync()
    later = (log.sync, log.close, lambda: log.write([run(1, [9])]), lambda: log.roll(log.first_unfinished_ids()))
    for call in later:
        with pytest.raises(SyncFailed):
            call()


def test_a_write_that_fails_part_way_does_not_shift_anything(disk: SimDisk) -> None:
    """[F-16]"""
    log = writer(disk)
    before = log.write([run(1, range(3), size=1000)])
    disk.fail("pwritev", "0.log", lambda: DiskFull("no space"), is_partial=True)
    after = log.write([run(1, range(3, 50), size=1000)])
    more = log.write([run(1, [50])])
    log.close()
    found = reader(disk)
    for first, slots in ((0, before[0]), (3, after[0]), (50, more[0])):
        for index in range(len(slots) // 8):
            size = 40 if first == 50 else 1000
            assert found.read_records(1, first + index, slots[8 * index : 8 * index + 8], 0)[4:] == body(
                1, first + index, size
            )
    sealed = disk.files()["/l0/0.log"]
    *_, end = layout.scan(pread(sealed), len(sealed))
    assert end.kind.value == "clean"  # type: ignore[union-attr]
    assert layout.read_ledgers_map(pread(sealed), len(sealed)) == {1: 3 * 1020}


def test_nothing_is_lost_when_no_disk_takes_anything(disk: SimDisk) -> None:
    log = writer(disk)
    log.write([run(1, [0])])
    disk.fail("", "", lambda: DiskFull("no space"), count=100)
    with pytest.raises(DiskFull):
        log.write([run(1, [1])])
    disk.faults.clear()
    (slots,) = log.write([run(1, [1])])
    assert reader(disk).read_records(1, 1, slots, 0)[4:] == body(1, 1)


def test_a_new_log_goes_where_there_is_room(disk: SimDisk) -> None:
    disk.fail("open", "/l0", lambda: DiskFull("no space"), count=100)
    writer(disk).write([run(1, [0])])
    assert [path for path in disk.files() if path.endswith(".log")] == ["/l1/1.log"]
    disk.fail("open", "/l1", lambda: DiskFull("no space"), count=100)
    with pytest.raises(NoWritableDirectory):
        writer(disk).write([run(1, [0])])


def test_a_run_that_is_not_what_it_should_be_is_not_written(disk: SimDisk) -> None:
    """[R-24]"""
    with pytest.raises(StorageError, match="write cache"):
        writer(disk).write([(2, run(1, [0])[1])])


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: None,
        lambda data: data[:1024],
        lambda data: data[:1030],
        lambda data: data[:1060],
        lambda data: data[:1024] + b"\0\0\0\0" + data[1028:],
        lambda data: data[:1024] + b"\x7f\xff\xff\xff" + data[1028:],
        lambda data: data[:1024] + b"\0\0\0\x0c" + data[1028:],
        lambda data: data[:1028] + b"\xff" + data[1029:],
        lambda data: data[:1043] + b"\x09" + data[1044:],
    ],
    ids=["missing", "header only", "cut in ids", "cut in body", "zero", "huge", "short", "ledger id", "entry id"],
)
def test_damage_is_an_error_never_a_missing_entry(disk: SimDisk, damage) -> None:  # type: ignore[no-untyped-def]
    """[R-3]"""
    log = writer(disk)
    (slots,) = log.write([run(1, [0])])
    log.close()
    data = damage(disk.files()["/l0/0.log"])
    disk.unlink("/l0/0.log")
    if data is not None:
        disk.put("/l0/0.log", data)
    with pytest.raises(ReadFailed):
        reader(disk).read_records(1, 0, slots, 0)


def test_a_slot_that_names_the_header_or_another_place_is_an_error(disk: SimDisk) -> None:
    log = writer(disk)
    log.write([run(1, range(3))])
    for position in (1, 1000, 1027, 1029, 1088 + 4, 1 << 31):
        with pytest.raises(ReadFailed):
            reader(disk).read_records(1, 0, position.to_bytes(8, "big"), 0)


def test_damage_behind_the_first_entry_only_shortens_a_batch(disk: SimDisk) -> None:
    log = writer(disk)
    (slots,) = log.write([run(1, range(5))])
    log.close()
    disk.flip_bit("/l0/0.log", 1024 + 3 * 60 + 3, 4)  # the length of entry 3
    batch = reader(disk).read_records(1, 0, slots, 1 << 20)
    assert batch[:60] == Records.of([body(1, 0)]).data
    assert len(batch) < 5 * 60


@pytest.mark.parametrize("cached_size", [0, 4 << 20, 1 << 30])
def test_the_page_cache_keeps_the_newest_bytes(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch, cached_size: int
) -> None:
    """What is dropped was synced before, and nothing is dropped twice: who has read it keeps it."""
    dropped: list[tuple[str, int, int]] = []

    def drop_cache(file: SimFile, offset: int, size: int) -> None:
        assert offset + size <= file._inode.durable_size
        assert not any(sector * SECTOR < offset + size for sector in file._inode.dirty)
        dropped.append((file.path, offset, size))

    monkeypatch.setattr(SimFile, "drop_cache", drop_cache)
    log = EntryLogWriter(disk, LOGS, BookieConfig(entry_log_size_max=32 << 20, entry_log_cached_size=cached_size))
    for entry_id in range(14):
        log.write([run(1, [entry_id], size=2 << 20)])
    log.sync()
    starts = [offset for _, offset, _ in dropped]
    ends = [offset + size for _, offset, size in dropped]
    if cached_size >= 32 << 20:
        log.close()
        assert not dropped
        return
    assert starts[0] == 0
    assert starts[1:] == ends[:-1]
    assert all(size >= DROP_STEP for _, _, size in dropped)
    assert 0 <= (28 << 20) - cached_size - ends[-1] < DROP_STEP + SYNC_STEP
    log.roll(list(log.extents()))
    assert log.sync()[0] == {}
    path, offset, size = dropped[-1]  # a log that is finished goes as a whole
    assert (path, offset) == ("/l0/0.log", ends[-1])
    assert offset + size <= len(disk.files()[path])
    assert offset + size > 28 << 20


def test_a_log_that_could_not_be_synced_stays_in_the_page_cache(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until what was new in it is written elsewhere, readers have it from there."""
    dropped: list[str] = []
    monkeypatch.setattr(SimFile, "drop_cache", lambda file, offset, size: dropped.append(file.path))
    log = EntryLogWriter(disk, LOGS, BookieConfig(entry_log_size_max=1 << 20, entry_log_cached_size=0))
    for number in range(3):
        log.write([run(1, [number], size=600_000)])
    log._health.failed["/l0"] = "it broke"
    disk.fail("fsync", "/l0/0.log", fault)
    with pytest.raises(LogLost):
        log.sync()
    assert "/l1/1.log" in dropped
    assert "/l0/0.log" not in dropped


@pytest.mark.parametrize("gap", [-100, 0, 1, 4, 5, 19, 40, 5_000, 200_000, 1 << 33])
@pytest.mark.parametrize("size", [0, 1, 2000, 100_000])
def test_the_next_slot_is_only_a_hint_at_the_size_of_an_entry(disk: SimDisk, size: int, gap: int) -> None:
    (slots,) = writer(disk).write([run(1, range(3), size)])
    following = (int.from_bytes(slots[8:16], "big") + gap).to_bytes(8, "big")
    assert reader(disk).read_records(1, 1, slots[8:16] + following, 0)[4:] == body(1, 1, size)
    assert reader(disk).read_records(1, 2, slots[16:24] + following, 0)[4:] == body(1, 2, size)
