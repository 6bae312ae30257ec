"""Index files on a simulated disk: found, loaded, written whole, never seen half-made."""

from __future__ import annotations

import pathlib

import pytest

from bookies.errors import CorruptRecord, DiskFull, StorageError
from bookies.lab.sim.world.disk import NOTHING_SURVIVES, SimDisk
from bookies.lab.sim.world.loop import Crashed
from bookies.runtime.files import OsDisk
from bookies.storage.disks.durable_files import SyncFailed
from bookies.storage.index import index_format as layout
from bookies.storage.index.index_files import (
    IndexFiles,
    IndexWrite,
    LoadedIndex,
    WrongPage,
    find_index_files,
    remove_index_files,
)
from bookies.storage.index.index_format import IndexHeader
from bookies.storage.index.slot_scans import entry_runs

PAGE = 64
WRITTEN = IndexHeader(b"key")
HEADER = layout.pack_header(WRITTEN)


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk()
    made.make_directories("/i0")
    made.make_directories("/i1")
    return made


def load(files: IndexFiles, path: str) -> LoadedIndex:
    [outcome] = files.load_all([path])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def files(disk: SimDisk, mode: str = "r+") -> IndexFiles:
    return IndexFiles(disk, PAGE, 8, mode)


def slots(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in numbers).ljust(PAGE, b"\0")


def test_a_new_file_is_complete_and_durable_before_it_has_its_name(disk: SimDisk) -> None:
    index = files(disk)
    (size,) = index.write([IndexWrite("/i0/0/7/7.idx", True, WRITTEN, [(0, slots(9, 0, 8))])])
    disk.crash(NOTHING_SURVIVES)
    assert size == 1024 + PAGE
    loaded = load(files(disk, "r"), "/i0/0/7/7.idx")
    assert (loaded.header, loaded.size, loaded.last_entry_id) == (IndexHeader(b"key"), size, 2)


def test_a_crash_at_any_call_leaves_no_half_made_file() -> None:
    number = 1
    while True:
        disk = SimDisk()
        disk.make_directories("/i0")
        disk.crash_at = disk.call_count + number
        try:
            files(disk).write([IndexWrite("/i0/0/7/7.idx", True, WRITTEN, [(0, slots(9))])])
        except Crashed:
            pass
        else:
            break
        disk.crash(NOTHING_SURVIVES)
        found = find_index_files(disk, ["/i0"])
        for path in found.values():
            assert load(files(disk, "r"), path).last_entry_id == 0
        assert not [path for path in disk.files() if path.endswith(".new")]
        number += 1
    assert number > 6


def test_pages_are_written_in_place_and_together(disk: SimDisk) -> None:
    index = files(disk)
    path = "/i0/0/7/7.idx"
    index.write([IndexWrite(path, True, WRITTEN, [(0, slots(1))])])
    disk.log = []
    index.write([IndexWrite(path, False, None, [(1, slots(2)), (2, slots(3)), (5, slots(4))])])
    assert [call.operation for call in disk.log].count("pwritev") == 2
    assert [index.read_page(path, page)[:8] for page in (0, 1, 2, 3, 5, 6)] == [
        bytes.fromhex(f"{number:016x}")[: 8 if number is not None else 0] for number in (1, 2, 3, 0, 4)
    ] + [b""]
    assert load(index, path).last_entry_id == 40


def test_failures_say_whether_they_are_final(disk: SimDisk) -> None:
    index = files(disk)
    change = IndexWrite("/i0/0/7/7.idx", True, WRITTEN, [(0, slots(1))])
    disk.fail("pwritev", ".idx", lambda: DiskFull("no space"), is_partial=True)
    with pytest.raises(DiskFull):
        index.write([change])
    assert not find_index_files(disk, ["/i0"])
    index.write([change])
    assert list(find_index_files(disk, ["/i0"])) == [7]
    disk.fail("fsync", ".idx", lambda: OSError(5, "Input/output error"))
    with pytest.raises(SyncFailed):
        index.write([IndexWrite("/i0/0/7/7.idx", False, WRITTEN, [])])


def test_empty_folders_are_removed_with_their_last_file(disk: SimDisk) -> None:
    index = files(disk)
    paths = [f"/i0/{layout.path_of(ledger_id)}" for ledger_id in (0x107, 0x10107, 0x108, 0x207)]
    changes = [IndexWrite(path, True, WRITTEN, [(0, slots(9))]) for path in paths]
    index.write(changes)
    for path in paths[:1] + paths[2:]:
        index.forget(path)
    remove_index_files(disk, [*paths[2:], paths[0], "/i0/3/3/303.idx"])
    assert [disk.exists(path) for path in ("/i0/1", "/i0/1/7", "/i0/1/8", "/i0/2")] == [True, True, False, False]
    disk.crash(NOTHING_SURVIVES)
    assert find_index_files(disk, ["/i0"]) == {0x10107: paths[1]}
    index.write(changes[2:])
    disk.crash(NOTHING_SURVIVES)
    assert find_index_files(disk, ["/i0"]) == {0x10107: paths[1], 0x108: paths[2], 0x207: paths[3]}


def test_a_removal_that_fails_or_ends_at_any_call_is_repeated() -> None:
    for fault in ("crash", "error"):
        number = 1
        while True:
            disk = SimDisk()
            disk.make_directories("/i0")
            changes = [IndexWrite(f"/i0/0/{part}/{part}.idx", True, WRITTEN, []) for part in (7, 8)]
            files(disk).write(changes)
            end = disk.call_count + number
            if fault == "crash":
                disk.crash_at = end
            else:
                disk.fail("", "/i0", lambda: OSError(5, "Input/output error"), skip=number - 1)
            try:
                remove_index_files(disk, [change.path for change in changes])
            except (Crashed, OSError, SyncFailed):
                pass
            if disk.call_count < end:
                break
            disk.crash(NOTHING_SURVIVES)
            remove_index_files(disk, list(find_index_files(disk, ["/i0"]).values()))
            disk.crash(NOTHING_SURVIVES)
            assert not find_index_files(disk, ["/i0"])
            number += 1
        assert number > 5


def test_finds_files_in_all_directories_by_hexadecimal_names(disk: SimDisk) -> None:
    """[R-26]"""
    for ledger_id, directory in ((7, "/i0"), (0x1234, "/i1"), (0xABCDEF01, "/i0"), (1 << 40, "/i1")):
        disk.put(f"{directory}/{layout.path_of(ledger_id)}", HEADER)
    disk.put("/i0/0/7/notes.txt", b"")
    disk.put("/i0/VERSION", b"")
    disk.put("/i1/0/9/7.idx", HEADER)  # not where ledger 7 belongs
    found = find_index_files(disk, ["/i0", "/i1"])
    assert found == {
        7: "/i0/0/7/7.idx",
        0xABCDEF01: "/i0/ef/1/abcdef01.idx",
        0x1234: "/i1/12/34/1234.idx",
        1 << 40: "/i1/0/0/10000000000.idx",
    }


def test_ends_moves_that_a_crash_interrupted(disk: SimDisk) -> None:
    disk.put("/i0/0/7/7.idx", HEADER)
    disk.put("/i1/0/7/7.idx.rloc", HEADER[:100])
    disk.put("/i1/0/8/8.idx.rloc", HEADER)
    assert find_index_files(disk, ["/i0", "/i1"]) == {7: "/i0/0/7/7.idx", 8: "/i1/0/8/8.idx"}
    assert sorted(disk.files()) == ["/i0/0/7/7.idx", "/i1/0/8/8.idx"]


def test_two_files_of_a_ledger_are_rivals_or_refused(disk: SimDisk) -> None:
    """Who does not ask for rivals, as a conversion, would take any of them."""
    for directory in ("/i0", "/i1"):
        disk.put(f"{directory}/0/7/7.idx", HEADER)
    rivals: dict[int, list[str]] = {}
    assert find_index_files(disk, ["/i0", "/i1"], rivals) == {7: "/i0/0/7/7.idx"}
    assert rivals == {7: ["/i1/0/7/7.idx"]}
    with pytest.raises(StorageError, match=r"/i1/0/7/7\.idx and /i0/0/7/7\.idx are of one ledger; start the bookie"):
        find_index_files(disk, ["/i0", "/i1"])


def test_damaged_headers_are_told(disk: SimDisk) -> None:
    for data in (b"", HEADER[:10], b"XKLE" + HEADER[4:], HEADER[:7] + b"\2" + HEADER[8:]):
        disk.put("/i0/0/7/7.idx", data)
        loaded = load(files(disk, "r"), "/i0/0/7/7.idx")
        assert loaded.header is None
        assert isinstance(loaded.problem, CorruptRecord)


def test_extent_of_files_of_any_length(disk: SimDisk) -> None:
    path = "/i0/0/7/7.idx"
    for tail, last in (
        (b"", -1),
        (bytes(PAGE), -1),
        (slots(1)[:8], 0),
        (slots(1, 1)[:15], 0),
        (slots(1) + bytes(999), 0),
    ):
        disk.put(path, HEADER + tail)
        assert load(files(disk, "r"), path).last_entry_id == last


def is_right(page: int, data: bytes) -> bool:
    return True


def test_runs_of_entries_from_file_and_memory(disk: SimDisk) -> None:
    path = "/i0/0/7/7.idx"
    disk.put(path, HEADER + slots(*[1] * 8) + slots(*[1] * 8) + slots(0, 1, 0, 0, 1, 1))
    index = files(disk, "r")
    assert index.scan_slots(path, {}, [], is_right, entry_runs) == [range(16), range(17, 18), range(20, 22)]
    newer = {1: slots(1, 0)[:16], 4: slots(1)[:8]}
    assert index.scan_slots(path, newer, [], is_right, entry_runs) == [
        range(9),
        range(17, 18),
        range(20, 22),
        range(32, 33),
    ]
    assert index.scan_slots(None, {0: slots(0, 1)}, [], is_right, entry_runs) == [range(1, 2)]
    assert index.scan_slots(None, {}, [], is_right, entry_runs) == []


def test_runs_of_entries_skip_holes_of_terabytes(tmp_path: pathlib.Path) -> None:
    """Ids are the client's choice: neither a file nor pages in memory may cost what lies between."""
    path = str(tmp_path / "7.idx")
    far, page_size = (1 << 36) + 5, 8192
    with open(path, "wb") as file:
        file.write(HEADER + slots(1, 1, 0, 1))
        file.seek(1024 + 8 * far)
        file.write(slots(1, 1)[:16])
    index = IndexFiles(OsDisk(), page_size, 8, "r")
    expected = [range(2), range(3, 4), range(far, far + 2)]
    assert index.scan_slots(path, {}, [], is_right, entry_runs) == expected
    farther = (1 << 30) * page_size // 8
    assert index.scan_slots(path, {1 << 30: slots(1)[:8]}, [], is_right, entry_runs) == [
        *expected,
        range(farther, farther + 1),
    ]
    assert index.scan_slots(None, {1 << 30: slots(1)[:8]}, [], is_right, entry_runs) == [range(farther, farther + 1)]
    index.close()


def test_a_page_that_is_wrong_or_gone_ends_the_list(disk: SimDisk) -> None:
    path = "/i0/0/7/7.idx"
    disk.put(path, HEADER + slots(*[1] * 8) + slots(*[2] * 8))
    index = files(disk, "r")
    with pytest.raises(WrongPage) as caught:
        index.scan_slots(path, {}, [], lambda page, data: page != 1, entry_runs)
    assert caught.value.page == 1
    assert index.scan_slots(path, {1: b""}, [], lambda page, data: page != 1, entry_runs) == [range(8)]
    with pytest.raises(WrongPage) as caught:
        index.scan_slots(path, {}, [0, 5], lambda page, data: bool(data), entry_runs)
    assert caught.value.page == 5
