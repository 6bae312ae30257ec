"""Pages and writes of an index in databases, on the simulated disk."""

from __future__ import annotations

import struct
import sys
from random import Random

import pytest

from bookies.lab.sim.world.databases import SimDatabases
from bookies.lab.sim.world.disk import SimDisk
from bookies.storage.entry_log.log_directories import LogDirectories
from bookies.storage.identity.index_kind import REBUILD
from bookies.storage.index.index_files import IndexDamaged, IndexFiles, IndexWrite, LoadedIndex
from bookies.storage.index.index_format import IndexHeader
from bookies.storage.rocksdb import rocksdb_format
from bookies.storage.rocksdb.database_files import DatabaseFiles, OpenDatabases, path_of

PAGE = 64  # eight slots
KEY = b"k" * 20


def load(files: IndexFiles, path: str) -> LoadedIndex:
    [outcome] = files.load_all([path])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def opened(disk: SimDisk) -> tuple[OpenDatabases, DatabaseFiles]:
    disk.make_directories("current")
    shared = OpenDatabases(disk, SimDatabases(disk), "current", LogDirectories(["current"], is_split=True), 0)
    shared.open((), is_new=True, may_be_cut=False)
    return shared, DatabaseFiles(disk, PAGE, [shared], 8, "r+")


def slots_of(*locations: int) -> bytes:
    return b"".join(struct.pack(">q", location) for location in locations)


def change(ledger_id: int, pages: dict[int, bytes], firsts: dict[int, int], header: bool) -> IndexWrite:
    written = IndexHeader(KEY) if header else None
    return IndexWrite(path_of(ledger_id), header, written, list(pages.items()), firsts=firsts)


def test_only_changed_slots_that_are_set_are_written() -> None:
    shared, files = opened(SimDisk(Random(1)))
    pages = {0: slots_of(2, 0, 4), 5: slots_of(7)}
    assert files.write([change(3, pages, {0: 1, 5: 0}, header=True)]) == [1024 + 6 * PAGE]
    keys = [key for batch, _ in shared.locations.pieces() for key in batch]
    assert keys == rocksdb_format.entry_keys(3, [1, 3, 40])
    loaded = load(files, path_of(3))
    assert loaded.header == IndexHeader(KEY)
    assert (loaded.size, loaded.last_entry_id) == (1024 + 6 * PAGE, 40)
    assert files.read_page(path_of(3), 0) == slots_of(0, 2, 0, 4)
    assert files.read_page(path_of(3), 1) == b""
    assert files._next_page(path_of(3), 1) == 5
    assert files._next_page(path_of(3), 6) == sys.maxsize
    assert files._next_page(None, 0) == sys.maxsize
    assert list(files.slots(path_of(3), lambda *_: False)) == [(0, slots_of(0, 2, 0, 4), True), (5, slots_of(7), True)]


def test_neighbours_are_not_mixed_up() -> None:
    _, files = opened(SimDisk(Random(1)))
    for ledger_id in (3, 4, 5):
        files.write([change(ledger_id, {0: slots_of(ledger_id)} if ledger_id != 4 else {}, {0: 0}, header=True)])
    loaded = load(files, path_of(4))
    assert (loaded.last_entry_id, loaded.size) == (-1, 1024)
    with pytest.raises(FileNotFoundError):
        load(files, path_of(6))
    files.remove([])
    files.remove([path_of(3)])
    with pytest.raises(FileNotFoundError):
        load(files, path_of(3))
    assert load(files, path_of(5)).last_entry_id == 0


def test_the_greatest_entry_id_that_apaches_bookie_accepts() -> None:
    shared, files = opened(SimDisk(Random(1)))
    files.write([change(3, {}, {}, header=True)])
    last = rocksdb_format.ID_MAX - 1
    shared.write("locations", rocksdb_format.entry_keys(3, [last]), [slots_of(9)])
    loaded = load(files, path_of(3))
    assert loaded.last_entry_id == last
    assert files.read_page(path_of(3), last // 8).endswith(slots_of(9))


def test_a_location_that_is_none_is_damage() -> None:
    disk = SimDisk(Random(1))
    shared, files = opened(disk)
    files.write([change(3, {}, {}, header=True)])
    shared.write("locations", rocksdb_format.entry_keys(3, [0]), [b"short"])
    with pytest.raises(IndexDamaged, match="a location has 5 bytes, not 8"):
        files.read_page(path_of(3), 0)
    assert b"5 bytes" in disk.read_bytes(f"current/locations{REBUILD}")


def test_ledger_data_that_cannot_be_parsed_is_a_problem_of_that_ledger() -> None:
    shared, files = opened(SimDisk(Random(1)))
    shared.write("ledgers", [rocksdb_format.pack_key(3)], [b"\xff"])
    loaded = load(files, path_of(3))
    assert loaded.header is None
    assert loaded.problem is not None


def test_the_flag_for_holes_is_written_when_it_changes() -> None:
    shared, files = opened(SimDisk(Random(1)))
    before = files.versions()
    files.note_holes(has_holes=False)
    assert files.versions() == before
    files.note_holes(has_holes=True)
    assert rocksdb_format.needs_integrity_check(shared.ledgers)
    files.note_holes(has_holes=False)
    assert not rocksdb_format.needs_integrity_check(shared.ledgers)
    assert files.versions()[3] == before[3] + 2
    files.close()
