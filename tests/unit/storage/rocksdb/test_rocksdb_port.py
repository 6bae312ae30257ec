"""The binding to RocksDB: databases in use, as a bookie writes and reads them."""

from __future__ import annotations

import pathlib
import shutil
import struct
import subprocess
import sys
from itertools import islice

import pytest

from bookies.errors import CorruptRecord, DirectoryInUse, DiskFull, StorageError
from bookies.storage.rocksdb import rocksdb_port
from bookies.storage.rocksdb.rocksdb_port import RocksDatabase, RocksDatabases

pytest.importorskip("rocksdict")


def key(ledger_id: int, entry_id: int) -> bytes:
    return struct.pack(">qq", ledger_id, entry_id)


def opened(path: pathlib.Path, *, may_be_cut: bool = False) -> RocksDatabase:
    return RocksDatabases().open(str(path), is_large=True, may_be_cut=may_be_cut)


def test_what_was_written_is_there_after_the_database_was_opened_again(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "locations"
    database = opened(path)
    before = database.version()
    database.write([key(1, 0), key(1, 1), key(2, 5)], [b"a", b"b", b"c"])
    assert database.version() == (before[0], before[1] + 3)
    database.close()
    database.close()
    assert not (path / "rocksdict-config.json").exists()
    database = opened(path)
    try:
        assert database.version() == (before[0], before[1] + 3)
        assert database.get(key(1, 1)) == b"b"
        assert database.get(key(1, 2)) is None
        assert database.get_all([key(1, 2), key(1, 1), key(1, 0)]) == [None, b"b", b"a"]
        assert database.between(key(1, 0), key(2, 0), 10) == ([key(1, 0), key(1, 1)], [b"a", b"b"])
        assert database.between(key(1, 0), key(2, 0), 1) == ([key(1, 0)], [b"a"])
        assert database.between(key(1, 2), key(2, 0), 10) == ([], [])
        assert database.last_before([key(1, 0), key(2, 5), key(2, 6)]) == [None, key(1, 1), key(2, 5)]
        database.write([key(1, 1)], [b"new"], [(key(1, 0), key(2, 0))])  # the deletion is before the put
        assert list(database.pieces()) == [([key(1, 1), key(2, 5)], [b"new", b"c"])]
    finally:
        database.close()


def test_only_one_process_has_it(tmp_path: pathlib.Path) -> None:
    database = opened(tmp_path / "locations")
    with pytest.raises(DirectoryInUse, match="in use by another process"):
        opened(tmp_path / "locations")
    database.close()


def newest(path: pathlib.Path, end: str) -> pathlib.Path:
    return max((file for file in path.glob(f"*{end}") if file.stat().st_size), key=lambda file: file.name)


def written(path: pathlib.Path) -> None:
    """Leave a database with three batches, of 100 keys each, of a process that was killed."""
    database = opened(path.with_name("running"))
    for number in range(3):
        database.write([key(number, entry_id) for entry_id in range(100)], [bytes(8)] * 100)
    shutil.copytree(path.with_name("running"), path)
    database.close()


def test_a_log_that_ends_within_a_batch_lacks_that_batch(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "locations"
    written(path)
    log = newest(path, ".log")
    log.write_bytes(log.read_bytes()[:-10])
    database = opened(path)
    assert database.version()[1] == 200
    database.close()


def test_a_damaged_batch_is_damage_or_the_end(tmp_path: pathlib.Path) -> None:
    """The latter after a power failure, if the caller compares the version."""
    path = tmp_path / "locations"
    written(path)
    log = newest(path, ".log")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    with pytest.raises(CorruptRecord, match="cannot be read"):
        opened(path)
    database = opened(path, may_be_cut=True)
    assert database.version()[1] == 100
    database.close()


def test_a_damaged_table_is_an_error_and_not_a_missing_key(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "locations"
    writer = RocksDatabases().create(str(path), is_large=True)
    for number in range(50):
        values = [struct.pack(">q", entry_id * 7919 * (number + 1)) for entry_id in range(1_000)]
        writer.put([key(number, entry_id) for entry_id in range(1_000)], values)
    writer.finish()
    table = newest(path, ".sst")
    data = bytearray(table.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8] = bytes(8)
    table.write_bytes(data)
    database = opened(path)
    problems = 0
    try:
        for number in range(50):
            try:
                keys, _ = database.between(key(number, 0), key(number + 1, 0), 1_000)
                assert len(keys) == 1_000
                keys, _ = database.between(key(number, 900), key(number + 1, 0), 1_000)
                assert len(keys) == 100
                assert database.get(key(number, 500)) is not None
                assert database.last_before([key(number + 1, 0)]) != [None]
            except CorruptRecord:
                problems += 1
        assert 0 < problems < 50
        with pytest.raises(CorruptRecord):
            list(database.pieces())
    finally:
        database.close()


def test_a_database_that_cannot_be_opened_is_not_called_damaged(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "locations"
    path.write_text("a file")
    with pytest.raises(StorageError) as caught:
        opened(path)
    assert not isinstance(caught.value, CorruptRecord)


def test_a_missing_table_is_damage(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "locations"
    writer = RocksDatabases().create(str(path), is_large=True)
    writer.put([key(1, 1)], [b"x"])
    writer.finish()
    newest(path, ".sst").unlink()
    with pytest.raises(CorruptRecord):
        opened(path)


def test_renamed_databases_keep_their_content(tmp_path: pathlib.Path) -> None:
    written(tmp_path / "locations")
    databases = RocksDatabases()
    databases.rename(str(tmp_path / "locations"), str(tmp_path / "other"))
    assert not databases.exists(str(tmp_path / "locations"))
    database = opened(tmp_path / "other")
    assert database.get(key(2, 99)) == bytes(8)
    database.close()


def test_a_full_disk_and_what_follows_when_it_is_closed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "locations"
    database = opened(path)
    database.write([key(1, 1)], [b"a"])
    real = database._database

    class Full:
        def write(self, *_: object) -> None:
            raise Exception("IO error: No space left on device: While appending to file")

        def close(self) -> None:
            real.close()
            raise Exception("IO error: Writer has previous error.")

    database._database = Full()
    with pytest.raises(DiskFull, match="No space left"):
        database.write([key(1, 2)], [b"b"])
    database.close()
    keys = [key(1, 1)]
    for call in (lambda: database.get(keys[0]), lambda: database.get_all(keys), lambda: database.last_before(keys)):
        with pytest.raises(StorageError, match="it is closed"):
            call()
    database = opened(path, may_be_cut=True)
    assert database.get(key(1, 1)) == b"a"
    database.close()


def test_a_full_disk_keeps_no_database_from_being_read(tmp_path: pathlib.Path) -> None:
    """Also what only the write-ahead log has, which a crash leaves."""
    path, copy = tmp_path / "locations", tmp_path / "copy"
    database = opened(path)
    database.write([key(1, 0), key(1, 1), key(2, 0)], [b"a", b"b", b"c"])
    shutil.copytree(path, copy)
    version = database.version()
    database.close()
    files = sorted(file.name for file in copy.iterdir())
    full = RocksDatabases().open_full(str(copy), may_be_cut=True)
    assert full.version() == version
    assert full.get(key(1, 1)) == b"b"
    assert full.between(key(1, 0), key(2, 0), 10) == ([key(1, 0), key(1, 1)], [b"a", b"b"])
    assert full.last_before([key(2, 0)]) == [key(1, 1)]
    assert len(list(full.pieces())) == 1
    with pytest.raises(DiskFull, match="no space to open it for writing"):
        full.write([key(1, 2)], [b"d"])
    code = f"from bookies.storage.rocksdb.rocksdb_port import RocksDatabases as R; R().lock({str(copy)!r})"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "DirectoryInUse" in other.stderr
    full.close()
    full.close()
    assert sorted(file.name for file in copy.iterdir()) == [name for name in files if not name.startswith("rocksdict")]
    database = opened(copy)
    assert database.get(key(2, 0)) == b"c"
    database.close()
    (copy / "CURRENT").write_bytes(b"nonsense")
    with pytest.raises(StorageError):
        RocksDatabases().open_full(str(copy), may_be_cut=True)


@pytest.mark.parametrize("memory", ["/proc", "/missing"])
def test_a_database_is_read_where_no_directory_in_memory_can_be_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    database = opened(tmp_path / "locations")
    database.write([key(1, 1)], [b"a"])
    database.close()
    monkeypatch.setattr(rocksdb_port, "_MEMORY", memory)
    reader = RocksDatabases().read(str(tmp_path / "locations"))
    assert list(reader.pieces()) == [([key(1, 1)], [b"a"])]
    reader.close()


def test_a_reader_reports_the_version(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "locations"
    written(path)
    reader = RocksDatabases().read(str(path))
    database = opened(path)
    assert reader.version() == database.version()
    assert reader.version()[1] == 300
    reader.close()
    database.close()
    (path / "IDENTITY").unlink()
    reader = RocksDatabases().read(str(path))
    assert reader.version() == (0, 300)
    reader.close()


def test_a_range_that_an_iterator_cuts_off_is_read_again(tmp_path: pathlib.Path) -> None:
    database = opened(tmp_path / "locations")
    database.write([key(1, entry) for entry in range(4)], [bytes(8)] * 4)
    real, cut = database._database, [0, 1]

    class Failing:
        def iter(self, *arguments: object) -> object:
            return real.iter(*arguments)

        def items(self, **settings: object) -> object:
            return islice(real.items(**settings), cut.pop(0)) if cut else real.items(**settings)

        def close(self) -> None:
            real.close()

    database._database = Failing()
    keys, _ = database.between(key(1, 0), key(2, 0), 10)
    assert keys == [key(1, entry) for entry in range(4)]
    cut += [2] * 5
    with pytest.raises(StorageError, match="not read to its end") as caught:
        database.between(key(1, 0), key(2, 0), 10)
    assert not isinstance(caught.value, CorruptRecord)
    database.close()
