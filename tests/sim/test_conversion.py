"""The index converted with a crash at every system call: whichever index counts then is whole, and nothing is lost.

Two directories, whose entry logs have the same ids, as Apache numbers them. Databases are files of the simulated disk.
"""

from __future__ import annotations

import dataclasses
import errno
from random import Random

import pytest
from tests.fakes.copies import copies_of

from bookies.config import BookieConfig
from bookies.errors import DiskFull, StorageError
from bookies.lab.sim.world.databases import SimDatabases, pack, parse
from bookies.lab.sim.world.disk import LOSSES, SimDisk
from bookies.lab.sim.world.loop import Crashed
from bookies.storage.entry_log import entry_log_format
from bookies.storage.entry_log.log_directories import LogDirectories
from bookies.storage.entry_log.log_usage import find_logs
from bookies.storage.identity.index_kind import RECORD, check_kind
from bookies.storage.index import catalog_format, index_format
from bookies.storage.index.index_format import STATE_FENCED, STATE_LIMBO, IndexHeader
from bookies.storage.offline import inspection
from bookies.storage.rocksdb import rocksdb_format
from bookies.storage.rocksdb.conversion import SWITCH, Conversion, read_step
from bookies.storage.rocksdb.to_index_files import ToIndexFiles
from bookies.storage.rocksdb.to_rocksdb import ToRocks

CONFIG = BookieConfig(journal_directories=("j",), ledger_directories=("a", "b"), index_page_size=64)
KEY = b"k" * 20
LEDGERS: dict[int, tuple[IndexHeader, list[int]]] = {
    2: (IndexHeader(KEY), [0, 1, 2, 9, 30]),
    3: (IndexHeader(KEY, STATE_FENCED), [0, 1, 2]),
    4: (IndexHeader(b"", STATE_FENCED | STATE_LIMBO, b"x" * 20), []),
    5: (IndexHeader(KEY), list(range(20))),
}
Found = dict[int, tuple[IndexHeader, list[int]]]


def body_of(ledger_id: int, entry_id: int) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in (ledger_id, entry_id, 0, 5)) + b"hello"


def apache_bookie(*, flags: int = 0) -> SimDisk:
    """Each directory has a log 0 with the entries of its ledgers."""
    disk = SimDisk(Random(1))
    disk.put("j/current/VERSION", b"x")
    disk.put("b/current/9.log.7.compacted", b"left by a crash")
    for number, name in enumerate(("a", "b")):
        data = bytearray(entry_log_format.pack_header())
        locations: dict[bytes, bytes] = {}
        ledgers: dict[bytes, bytes] = {}
        for ledger_id, (header, entry_ids) in LEDGERS.items():
            if ledger_id % 2 == number:
                ledgers[rocksdb_format.pack_key(ledger_id)] = rocksdb_format.pack_ledger_data(header)
                for entry_id in entry_ids:
                    body = body_of(ledger_id, entry_id)
                    location = entry_log_format.location(0, len(data) + 4)
                    locations[rocksdb_format.entry_keys(ledger_id, [entry_id])[0]] = location.to_bytes(8, "big")
                    data += len(body).to_bytes(4, "big") + body
        if flags and number == 0:
            ledgers[rocksdb_format.pack_key(rocksdb_format.FLAGS_LEDGER_ID)] = flags.to_bytes(8, "big")
        disk.put(f"{name}/current/VERSION", b"x")
        disk.put(f"{name}/current/0.log", bytes(data))
        disk.put(f"{name}/current/locations", pack(locations))
        disk.put(f"{name}/current/ledgers", pack(ledgers))
    return disk


def run(disk: SimDisk, kind: type[Conversion]) -> None:
    """All of it, or what an earlier try left to be done."""
    conversion = kind(disk, SimDatabases(disk), CONFIG, lambda *_: None)
    try:
        conversion.open()
        if conversion.restart():
            survey = conversion.survey()
            assert not survey.damaged_count
            conversion.convert(survey)
        else:
            conversion.finish()
    finally:
        conversion.close()


def in_index_files(disk: SimDisk) -> Found:
    """What the index files say; every slot leads to its entry, and the catalog agrees."""
    logs = find_logs(disk, LogDirectories(["a/current", "b/current"]))
    data = disk.read_bytes("a/current/index.catalog")
    catalog = catalog_format.parse(data, 64)
    assert not catalog.problem
    found: Found = {}
    for directory in ("a", "b"):
        for ledger_id, path in inspection.index_files_of(disk, directory):
            content = disk.read_bytes(path)
            header = index_format.parse_header(content[:1024])
            entry_ids = []
            for entry_id, location in index_format.iterate_slots(content[1024:], 0):
                log_id, offset = entry_log_format.split_location(location)
                body = body_of(ledger_id, entry_id)
                assert disk.read_bytes(logs[log_id])[offset : offset + len(body)] == body
                entry_ids.append(entry_id)
            for page in range(len(content[1024:]) // 64):
                assert catalog.ledgers[ledger_id].is_right(page, content[1024 + page * 64 :][:64], 64)
            found[ledger_id] = header, entry_ids
    assert set(catalog.ledgers) == set(found)
    return found


def in_databases(disk: SimDisk) -> Found:
    """What the databases say; every location leads to its entry in a log of the same directory."""
    found: Found = {}
    for number, directory in enumerate(("a/current", "b/current")):
        for key, value in parse(disk.read_bytes(f"{directory}/ledgers")).items():
            ledger_id = int.from_bytes(key, "big")
            assert ledger_id % 2 == number
            found[ledger_id] = rocksdb_format.parse_ledger_data(value, "", ledger_id), []
        for key, value in parse(disk.read_bytes(f"{directory}/locations")).items():
            ledger_id, entry_id = int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")
            log_id, offset = entry_log_format.split_location(int.from_bytes(value, "big"))
            body = body_of(ledger_id, entry_id)
            assert disk.read_bytes(f"{directory}/{log_id:x}.log")[offset : offset + len(body)] == body
            found[ledger_id][1].append(entry_id)
    return found


def test_there_and_back() -> None:
    disk = apache_bookie()
    run(disk, ToIndexFiles)
    assert in_index_files(disk) == LEDGERS
    assert [path for path in disk.files() if path.endswith(".log")] == ["a/current/0.log", "b/current/1.log"]
    assert disk.read_bytes("a/current/locations").startswith(b"The index is in index files now")
    check_kind(disk, ["a/current", "b/current"], is_rocksdb=False)
    with pytest.raises(StorageError, match="nothing to convert"):
        run(disk, ToIndexFiles)
    with pytest.raises(StorageError, match="was set aside"):
        run(disk, ToRocks)
    discard(disk)
    run(disk, ToRocks)
    assert in_databases(disk) == LEDGERS
    assert not [path for path in disk.files() if path.endswith(".idx") and "before-conversion" not in path]


def discard(disk: SimDisk) -> None:
    conversion = ToIndexFiles(disk, SimDatabases(disk), CONFIG, lambda *_: None)
    conversion.open()
    assert conversion.discard_old() >= 2
    assert conversion.discard_old() == 0
    conversion.close()
    assert not [path for path in disk.files() if ".before-conversion" in path]


def test_an_interrupted_compaction_removes_no_log_of_another_directory() -> None:
    """Its file says: when the index is updated, log 0 can go. But that is the id of another log then."""
    disk = apache_bookie()
    disk.put("b/current/2.log.0.compacted", disk.read_bytes("b/current/0.log"))
    disk.put("b/current/3.log.compacting", b"")
    run(disk, ToIndexFiles)
    assert [path for path in disk.files() if ".log" in path] == ["a/current/0.log", "b/current/1.log"]
    assert in_index_files(disk) == LEDGERS
    discard(disk)
    disk.put("a/current/5.log.1.compacted", b"")
    run(disk, ToRocks)
    assert [path for path in disk.files() if ".log" in path] == ["a/current/0.log", "b/current/1.log"]
    assert in_databases(disk) == LEDGERS


def test_entries_in_logs_of_another_directory() -> None:
    """As our bookie leaves it: any log has entries of any ledger."""
    disk = apache_bookie()
    run(disk, ToIndexFiles)
    discard(disk)
    disk.rename("b/current/1.log", "a/current/1.log")
    run(disk, ToRocks)
    assert in_databases(disk) == LEDGERS
    discard(disk)
    assert [path for path in disk.files() if path.endswith(".log")] == [
        "a/current/0.log",
        "a/current/1.log",
        "b/current/1.log",
    ]
    run(disk, ToIndexFiles)  # one of the two names of the log is enough again
    assert in_index_files(disk) == LEDGERS
    assert [path for path in disk.files() if path.endswith(".log")] == ["a/current/0.log", "a/current/1.log"]


def test_a_log_is_the_same_only_byte_for_byte() -> None:
    """Of one that has another end in the other directory nobody knows whose that is."""
    disk = apache_bookie()
    run(disk, ToIndexFiles)
    discard(disk)
    disk.rename("b/current/1.log", "a/current/1.log")
    run(disk, ToRocks)
    discard(disk)
    disk.put("b/current/1.log", disk.read_bytes("b/current/1.log") + b"more")
    run(disk, ToIndexFiles)
    assert in_index_files(disk) == LEDGERS
    assert [path for path in disk.files() if path.endswith(".log")] == [
        "a/current/0.log",
        "a/current/1.log",
        "b/current/2.log",
    ]


def test_index_directories_of_their_own() -> None:
    disk = apache_bookie()
    for ledgers, indexes in (("a", "x"), ("b", "y")):
        for name in rocksdb_format.NAMES:
            disk.put(f"{indexes}/current/{name}", disk.read_bytes(f"{ledgers}/current/{name}"))
            disk.unlink(f"{ledgers}/current/{name}")
    before = disk.files()
    config = dataclasses.replace(CONFIG, index_directories=("x", "y"))
    for kind in (ToIndexFiles, ToRocks):
        conversion = kind(disk, SimDatabases(disk), config, lambda *_: None)
        conversion.open()
        conversion.convert(conversion.survey())
        conversion.discard_old()
        conversion.close()
        names = {path.partition("/")[0] for path in disk.files() if path.endswith((".idx", ".catalog"))}
        assert names == ({"x", "y"} if kind is ToIndexFiles else set())
    logs = {path for path in disk.files() if path.endswith(".log")}
    assert logs == {"a/current/0.log", "b/current/1.log"}
    assert disk.files("x") == {path: data for path, data in before.items() if path.startswith("x/")}


def test_a_log_is_copied_where_it_cannot_be_linked() -> None:
    disk = apache_bookie()
    run(disk, ToIndexFiles)
    discard(disk)
    disk.rename("b/current/1.log", "a/current/1.log")
    disk.fail("link", "1.log", lambda: OSError(errno.EXDEV, "another file system"))
    disk.fail("fsync", "1.log.converting", lambda: OSError(errno.EIO, "broken"))
    with pytest.raises(StorageError, match="sync failed"):
        run(disk, ToRocks)
    assert not disk.exists("b/current/1.log.converting")
    disk.fail("link", "1.log", lambda: OSError(errno.EXDEV, "another file system"))
    disk.devices = {"b": 1}
    conversion = ToRocks(disk, SimDatabases(disk), CONFIG, lambda *_: None)
    conversion.open()
    survey = conversion.survey() if conversion.restart() else None
    conversion.close()
    assert survey is not None
    assert (survey.logs_linked, survey.logs_copied) == (0, 1)
    assert survey.copied_size == len(disk.read_bytes("a/current/1.log"))
    run(disk, ToRocks)
    assert disk.read_bytes("b/current/1.log") == disk.read_bytes("a/current/1.log")
    assert in_databases(disk) == LEDGERS
    discard(disk)
    run(disk, ToIndexFiles)  # gives the space of the copy back
    assert not disk.exists("b/current/1.log")
    assert in_index_files(disk) == LEDGERS


@pytest.mark.parametrize(
    ("kind", "is_back"), [(ToIndexFiles, False), (ToRocks, False), (ToIndexFiles, True)], ids=["there", "rocks", "back"]
)
def test_a_crash_at_every_call(kind: type[Conversion], is_back: bool) -> None:
    """`is_back`: of what was converted before, so directories share a log."""
    read_new, read_old = (in_index_files, in_databases) if kind is ToIndexFiles else (in_databases, in_index_files)

    def before() -> SimDisk:
        disk = apache_bookie()
        if kind is ToRocks or is_back:
            run(disk, ToIndexFiles)
            discard(disk)
            disk.rename("b/current/1.log", "a/current/1.log")
            if is_back:
                run(disk, ToRocks)
                discard(disk)
            for directory in ("a/current", "b/current"):
                disk.sync_directory(directory)
        if kind is ToIndexFiles:
            note_versions(disk)
        return disk

    fresh = copies_of(before())
    disk = fresh()
    first = disk.call_count
    run(disk, kind)
    count = disk.call_count - first
    assert count > 150
    switched = 0
    for number in range(1, count + 1):
        for loss in LOSSES if number > count - 4 else LOSSES[number % 2 :: 2]:
            disk = fresh()
            disk.random = Random(number)
            disk.crash_at = disk.call_count + number
            with pytest.raises(Crashed):
                run(disk, kind)
            disk.crash(loss)
            step = read_step(disk, "a/current")
            if step is None or step.step != SWITCH:
                # The old index counts still, or the new one does already.
                is_new = SimDatabases(disk).exists("b/current/locations") == (kind is ToRocks)
                switched += is_new
                assert (read_new if is_new else read_old)(disk) == LEDGERS
                if kind is ToIndexFiles and not is_new:
                    assert catalog_format.parse(disk.read_bytes("a/current/index.catalog"), 64).versions == VERSIONS
                if is_new:
                    continue
            if step is not None:
                with pytest.raises(StorageError, match="is incomplete"):
                    check_kind(disk, ["a/current", "b/current"], is_rocksdb=False)
            run(disk, kind)
            assert read_new(disk) == LEDGERS
            assert not disk.exists(f"a/current/{RECORD}")
            extra = [path for path in disk.files() if path.endswith((".converting", ".new"))]
            assert not extra
            assert not (is_back and disk.exists("b/current/1.log"))
    assert switched


VERSIONS = (0, 1) * 4  # of the databases of `apache_bookie`


def note_versions(disk: SimDisk) -> None:
    """Leave the catalog of a bookie of ours that runs on the databases."""
    catalog = catalog_format.Contents(64, versions=VERSIONS)
    disk.put("a/current/index.catalog", b"".join(catalog_format.pack(catalog)))


@pytest.mark.parametrize(("place", "skip"), [("idx.new", 2), (RECORD, 1)], ids=["half", "all"])
def test_cancelled_before_the_switch(place: str, skip: int) -> None:
    disk = apache_bookie()
    note_versions(disk)
    files = disk.files()
    disk.fail("rename", place, lambda: OSError(5, "broken"), skip=skip)
    with pytest.raises(OSError, match="broken"):
        run(disk, ToIndexFiles)
    assert disk.files() != files
    with pytest.raises(StorageError, match="a conversion to index-files is in progress"):
        run(disk, ToRocks)
    conversion = ToIndexFiles(disk, SimDatabases(disk), CONFIG, lambda *_: None)
    conversion.open()
    conversion.cancel()
    conversion.close()
    assert disk.files() == files
    assert not disk.locks


def test_entries_that_cannot_be_read_are_named_and_kept() -> None:
    disk = apache_bookie()
    disk.flip_bit("a/current/0.log", 1024 + 4 + 15)  # the entry id of the first record
    conversion = ToIndexFiles(disk, SimDatabases(disk), CONFIG, lambda *_: None)
    conversion.open()
    survey = conversion.survey()
    assert (survey.damaged_count, survey.damaged) == (1, [(2, 0)])
    conversion.convert(survey)
    conversion.close()
    slots = dict(index_format.iterate_slots(disk.read_bytes("a/current/0/2/2.idx")[1024:], 0))
    assert slots[0] == 1028


def test_an_unfinished_integrity_check_makes_everything_uncertain_and_comes_back() -> None:
    disk = apache_bookie(flags=rocksdb_format.NEEDS_INTEGRITY_CHECK)
    run(disk, ToIndexFiles)
    assert all(header.is_fenced and header.is_in_limbo for header, _ in in_index_files(disk).values())
    assert catalog_format.parse(disk.read_bytes("a/current/index.catalog"), 64).holes
    discard(disk)
    run(disk, ToRocks)
    assert rocksdb_format.needs_integrity_check(SimDatabases(disk).read("a/current/ledgers"))


def test_deleted_ledgers_are_left_out() -> None:
    disk = apache_bookie()
    ledgers = parse(disk.read_bytes("a/current/ledgers"))
    del ledgers[rocksdb_format.pack_key(2)]
    disk.put("a/current/ledgers", pack(ledgers))
    conversion = ToIndexFiles(disk, SimDatabases(disk), CONFIG, lambda *_: None)
    conversion.open()
    assert conversion.survey().orphans == 5
    conversion.close()
    run(disk, ToIndexFiles)
    assert set(in_index_files(disk)) == {3, 4, 5}


def test_what_is_refused() -> None:
    disk = apache_bookie()
    disk.capacity = disk.used() + 1000
    with pytest.raises(DiskFull, match="No file was changed"):
        run(disk, ToIndexFiles)
    disk = apache_bookie()
    ledgers, locations = (disk.read_bytes(f"a/current/{name}") for name in ("ledgers", "locations"))
    for name, data in (("ledgers", ledgers), ("locations", locations)):
        disk.put(f"a/current/{name}", disk.read_bytes(f"b/current/{name}"))
        disk.put(f"b/current/{name}", data)
    with pytest.raises(StorageError, match="the order or the number of directories differs"):
        run(disk, ToIndexFiles)
    disk = apache_bookie()
    disk.unlink("b/current/ledgers")
    with pytest.raises(StorageError, match="the database is missing"):
        run(disk, ToIndexFiles)
    disk = apache_bookie()
    disk.put("a/current/locations.rebuild", b"it is missing\n")
    disk.put("a/current/locations", pack({}))
    with pytest.raises(StorageError, match=r"locations: .* not rebuilt yet\. .* Start the bookie once"):
        run(disk, ToIndexFiles)
    older, other = "locations: it ends at change 1 of 9", "ledgers: it is another"
    for versions, problem in (((0, 9, 0, 1), older), ((0, 1, 7, 1), other)):
        disk = apache_bookie()
        catalog = catalog_format.Contents(64, {}, versions=versions)
        disk.put("a/current/index.catalog", b"".join(catalog_format.pack(catalog)))
        with pytest.raises(StorageError, match=problem):
            run(disk, ToIndexFiles)
    disk = apache_bookie()
    disk.put("a/current/0/2/2.idx", b"x")
    with pytest.raises(StorageError, match="it is unknown which"):
        run(disk, ToIndexFiles)
    disk = apache_bookie()
    run(disk, ToIndexFiles)
    discard(disk)
    disk.put("b/current/0.log", b"")
    disk.rename("b/current/1.log", "a/current/1.log")
    disk.put("b/current/1.log", b"another one")
    with pytest.raises(StorageError, match="have the same id"):
        run(disk, ToRocks)
    disk.unlink("b/current/1.log")
    disk.put("a/current/DIRTY", b"")
    with pytest.raises(StorageError, match="was not shut down cleanly"):
        run(disk, ToRocks)
    disk.unlink("a/current/DIRTY")
    disk.rename("a/current/index.catalog", "b/current/index.catalog")  # as after a failure of the first directory
    run(copies_of(disk)(), ToRocks)
    disk.flip_bit("b/current/index.catalog", -1)
    with pytest.raises(StorageError, match=r"index\.catalog: .* Start the bookie with ledger_index = files"):
        run(disk, ToRocks)
    for name in ("locations.rebuild", "ledgers"):
        disk = SimDisk(Random(1))
        disk.make_directories(f"a/current/{name}")
        with pytest.raises(StorageError, match=r"ledger_index = files\. Nothing was changed"):
            check_kind(disk, ["a/current"], is_rocksdb=False)
    config = BookieConfig(journal_directories=("j",), ledger_directories=("a", "b"), index_directories=("i",))
    with pytest.raises(StorageError, match="pairs"):
        ToIndexFiles(disk, SimDatabases(disk), config, lambda *_: None).open()
