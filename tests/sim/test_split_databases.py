"""The index in databases of several directories, each with entry logs and ids of logs of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import posixpath
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.records import BOOKIE, FakeRecords

from bookies.bookie.control import control_calls
from bookies.errors import DataUnknown, DiskFull, EntryNotFound, InvalidArgument, StorageError
from bookies.lab.sim.world.databases import SimDatabases, pack, parse
from bookies.lab.sim.world.disk import LOSSES, NOTHING_SURVIVES, PROCESS_DIES
from bookies.storage.disks.durable_files import SyncFailed
from bookies.storage.entry_log import entry_log_format
from bookies.storage.gc.collection_policy import Compaction
from bookies.storage.identity import lost_directories
from bookies.storage.identity.cookie import Cookie
from bookies.storage.identity.index_kind import REBUILD
from bookies.storage.index import index_format
from bookies.storage.rocksdb import rocksdb_format
from bookies.storage.rocksdb.conversion import Conversion
from bookies.storage.rocksdb.database_files import DAMAGED
from bookies.storage.rocksdb.to_index_files import ToIndexFiles
from bookies.storage.rocksdb.to_rocksdb import ToRocks
from bookies.storage.store import LedgerStore

from .conftest import Machine, entry_body
from .test_lost_disks import check as check_after_loss

COOKIE = Cookie("b1", "/journal0", ("/ledgers0",), "cluster").pack()
LEDGERS = range(1, 8)
SMALL = {"entry_log_size_max": 1 << 12, "gc_interval_ms": 1 << 40, "gc_quarantine_ms": 0, "gc_share_max": 100}


def made(count: int = 2, index: str = "rocksdb", **settings: object) -> Machine:
    return Machine("split", ledgers=count, ledger_index=index, **settings)


def current(number: int) -> str:
    return f"/ledgers{number}/current"


def of(number: int, count: int = 2) -> list[int]:
    return [ledger_id for ledger_id in LEDGERS if ledger_id % count == number]


@pytest.fixture
def load(body: Any) -> Any:
    async def script(store: LedgerStore, promises: Any) -> None:
        for first in (0, 9, 30):
            for ledger_id in LEDGERS:
                await promises.add(
                    store, ledger_id, {entry: body(ledger_id, entry) for entry in range(first, first + 9)}
                )
            await store.checkpoint()
        await promises.add_mixed(store, {(ledger_id, 50): body(ledger_id, 50) for ledger_id in LEDGERS})
        await promises.fence(store, 2)
        await promises.write_lac(store, 3, 7)

    return script


def names_in(machine: Machine, number: int) -> set[str]:
    paths = [path for path in machine.disk.files(current(number)) if path.endswith(".log")]
    return {posixpath.basename(path) for path in paths}


@pytest.mark.parametrize("count", [2, 3])
def test_each_directory_has_its_ledgers_entries_and_ids(load: Any, count: int) -> None:
    machine = made(count, **SMALL)
    assert machine.live(load)
    for number in range(count):
        locations, ledgers = map(machine.disk.read_bytes, rocksdb_format.paths_in(current(number)))
        assert {int.from_bytes(key, "big") for key in parse(ledgers)} == set(of(number, count))
        assert {int.from_bytes(key[:8], "big") for key in parse(locations)} == set(of(number, count))
        named = {f"{int.from_bytes(value[:4], 'big'):x}.log" for value in parse(locations).values()}
        assert named == names_in(machine, number)
        for name in names_in(machine, number):
            data = machine.disk.read_bytes(f"{current(number)}/{name}")
            ledgers_map = entry_log_format.read_ledgers_map(lambda size, at, data=data: data[at : at + size], len(data))
            assert ledgers_map
            assert set(ledgers_map) <= set(of(number, count))
    machine.check()


def collide(machine: Machine) -> None:
    """Number the logs of each directory from 0 on, as Apache's bookie does, and remove what only ours writes."""
    for number in range(2):
        names = sorted(names_in(machine, number), key=lambda name: int(name.partition(".")[0], 16))
        new = {int(name.partition(".")[0], 16): at for at, name in enumerate(names)}
        for at, name in enumerate(names):
            machine.disk.rename(f"{current(number)}/{name}", f"{current(number)}/{at:x}.log")
        path = rocksdb_format.paths_in(current(number))[0]
        values = parse(machine.disk.read_bytes(path))
        for key, value in values.items():
            values[key] = new[int.from_bytes(value[:4], "big")].to_bytes(4, "big") + value[4:]
        machine.disk.put(path, pack(values))
        machine.disk.put(f"{current(number)}/lastId", b"%x\n" % (len(names) - 1))
        machine.disk.sync_directory(current(number))
    machine.disk.unlink(f"{current(0)}/index.catalog")
    machine.disk.sync_directory(current(0))


async def compacted(store: LedgerStore, records: FakeRecords) -> dict[str, object]:
    store.collect(records, BOOKIE)
    assert store.collector is not None
    await store.collector.collect(is_forced=True, is_awaited=True)
    await store.collector.compact(Compaction.MAJOR, is_awaited=True)
    await store.checkpoint()
    return store.collector.figures()


def forget(promises: Any, *gone: int) -> None:
    for key in [key for key in promises.acknowledged if key[0] in gone]:
        del promises.acknowledged[key]
    for ledger_id in gone:
        promises.fences.pop(ledger_id, None)


def test_logs_of_one_name_are_served_written_compacted_and_collected(load: Any, body: Any) -> None:
    machine = made(**SMALL, major_compaction_threshold=99)
    assert machine.live(load)
    collide(machine)
    assert {"0.log", "1.log"} <= names_in(machine, 0) & names_in(machine, 1)

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.check(store)
        for ledger_id in of(0)[1:] + of(1):
            await promises.add(store, ledger_id, {60: body(ledger_id, 60)})
        await store.checkpoint()
        forget(promises, 4, 5)
        figures = await compacted(store, FakeRecords.of(1, 2, 3, 6, 7))
        assert int(str(figures["logs_compacted"])) >= 4
        assert not figures["logs_set_aside"]
        assert sorted(store.ledger_ids()) == [1, 2, 3, 6, 7]
        await promises.check(store)

    assert machine.live(script)
    assert not machine.failures
    assert not names_in(machine, 0) & names_in(machine, 1)
    machine.check()


def test_a_log_is_named_with_its_directory_where_several_have_one_of_the_name(load: Any) -> None:
    machine = made(**SMALL)
    assert machine.live(load)
    collide(machine)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(FakeRecords.of(*LEDGERS), BOOKIE)
        assert store.collector is not None
        await store.collector.collect(is_forced=True, is_awaited=True)
        why: Any = control_calls(store.collector)["why"]
        with pytest.raises(InvalidArgument, match=r"/ledgers0/current/0\.log and /ledgers1/current/0\.log have this"):
            await why(log="0")
        for number in range(2):
            text = "\n".join(await why(log=f"{current(number)}/0.log"))
            assert [ledger_id for ledger_id in LEDGERS if f"ledger {ledger_id}: " in text]
            assert not [ledger_id for ledger_id in of(1 - number) if f"ledger {ledger_id}: " in text]
        with pytest.raises(InvalidArgument, match="no such entry log"):
            await why(log="ff")

    assert machine.live(script)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", rocksdb_format.NAMES)
def test_a_database_that_is_lost_leaves_the_ledgers_of_other_directories_alone(
    load: Any, name: str, number: int
) -> None:
    machine = made()
    assert machine.live(load)
    path = posixpath.join(current(number), name)
    machine.disk.put(path, machine.disk.read_bytes(path)[:20])

    async def check(store: LedgerStore, promises: Any) -> None:
        for ledger_id in of(1 - number):
            assert not (await store.header(ledger_id)).is_uncertain
            with pytest.raises(EntryNotFound):
                await store.read(ledger_id, 25)
        assert sorted(store.limbo) == (of(number) if name == rocksdb_format.LEDGERS else [])
        assert store.parts is not None
        await store.parts.rebuilder.wait_idle()
        for ids, sent in promises.acknowledged.items():
            assert await store.read(*ids) == sent
        if name == rocksdb_format.LOCATIONS:
            await promises.check(store)

    assert machine.live(check)
    assert not machine.failures
    assert machine.disk.exists(path + DAMAGED)
    assert not machine.disk.exists(path + REBUILD)


def test_an_unfinished_check_of_apache_counts_beside_a_lost_database(load: Any) -> None:
    machine = made()
    assert machine.live(load)
    first, second = (rocksdb_format.paths_in(current(number))[1] for number in range(2))
    values = parse(machine.disk.read_bytes(first))
    flag = rocksdb_format.NEEDS_INTEGRITY_CHECK.to_bytes(8, "big")
    machine.disk.put(first, pack(values | {rocksdb_format.pack_key(rocksdb_format.FLAGS_LEDGER_ID): flag}))
    machine.disk.put(second, b"no database")
    machine.disk.unlink(f"{current(0)}/index.catalog")

    async def check(store: LedgerStore, promises: Any) -> None:
        await check_after_loss(store, promises)
        assert sorted(store.limbo) == [*LEDGERS]

    assert machine.live(check)
    assert machine.live(check)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("crashes", [False, True])
def test_a_lost_directory_that_is_replaced_takes_no_promise_of_others_with_it(
    load: Any, number: int, crashes: bool
) -> None:
    begun = made()
    assert begun.live(load, stops=not crashes)
    if crashes:
        begun.crash(PROCESS_DIES)
    lost = f"/ledgers{number}"
    begun.disk.lose_directory(lost, is_empty=True)
    uses = lost_directories.Uses((lost_directories.Loss(lost, "mark", is_replaced=True),), False, (), (lost,))
    lost_directories.write(begun.disk, COOKIE, ["/journal0", f"/ledgers{1 - number}"], uses)

    async def check(store: LedgerStore, promises: Any) -> None:
        await check_after_loss(store, promises)
        for ledger_id, entry_id in promises.acknowledged:
            if ledger_id in of(1 - number):
                assert await store.read(ledger_id, entry_id) == promises.acknowledged[ledger_id, entry_id]
        with pytest.raises(EntryNotFound):
            await store.read(of(1 - number)[0], 25)
        with pytest.raises(DataUnknown):
            await store.read(of(number)[0], 25)
        with pytest.raises(DataUnknown):
            await promises.add(store, 9, {0: entry_body(9, 0)})

    victims = begun.victims(check_after_loss, step=53, stops=False)
    for call, victim in [*victims, (0, lambda: begun)]:  # the last one has ended
        machine = victim()
        machine.crash((PROCESS_DIES, NOTHING_SURVIVES)[call % 2])
        assert machine.live(check if not crashes else check_after_loss)
        assert machine.live(check_after_loss)
        assert not machine.failures


@pytest.mark.parametrize("lost", ["/ledgers1", "/index1"])
def test_index_directories_of_their_own_are_lost_for_their_ledgers_only(load: Any, lost: str) -> None:
    machine = made(index_directories=("/index0", "/index1"))
    assert machine.live(load)
    assert not machine.disk.exists(rocksdb_format.paths_in(current(1))[0])
    machine.disk.lose_directory(lost, is_empty=True)
    losses = (lost_directories.Loss(lost, "mark", is_replaced=True),)
    kept = [path for path in ("/journal0", "/ledgers0", "/ledgers1", "/index0", "/index1") if path != lost]
    lost_directories.write(machine.disk, COOKIE, kept, lost_directories.Uses(losses, False, (), (lost,)))

    async def check(store: LedgerStore, promises: Any) -> None:
        await check_after_loss(store, promises)
        assert sorted(store.limbo) == of(1)
        for ledger_id, entry_id in promises.acknowledged:
            if ledger_id in of(0) or lost == "/index1":
                assert await store.read(ledger_id, entry_id) == promises.acknowledged[ledger_id, entry_id]
        with pytest.raises(EntryNotFound):
            await store.read(4, 25)
        with pytest.raises(DataUnknown):
            await store.read(3, 25)

    async def rebuilt(store: LedgerStore, promises: Any) -> None:
        await check_after_loss(store, promises)
        assert store.parts is not None
        await store.parts.rebuilder.wait_idle()

    assert machine.live(rebuilt)
    assert machine.live(check)
    assert not machine.failures


@pytest.mark.parametrize(
    ("directories", "has_catalog", "problem"),
    [
        (("/ledgers1", "/ledgers0"), True, "the ledger is in /ledgers1/current, number 0 of 2 directories"),
        (("/ledgers1", "/ledgers0"), False, "the ledger is in /ledgers1/current, number 0 of 2 directories"),
        (("/ledgers0", "/ledgers1", "/ledgers2"), True, "databases of 2 directories, and the settings name 3"),
        (("/ledgers0", "/ledgers1", "/ledgers2"), False, "the ledger is in /ledgers0/current, number 0 of 3"),
        (("/ledgers0",), True, "databases of 2 directories, and the settings name 1"),  # else only the cookies show it
    ],
)
def test_another_order_or_number_of_directories_is_refused(
    load: Any, directories: tuple[str, ...], problem: str, has_catalog: bool
) -> None:
    machine = made()
    assert machine.live(load)
    if not has_catalog:
        machine.disk.unlink(f"{current(0)}/index.catalog")
    before = {path: data for path, data in machine.disk.files().items() if "/ledgers2" not in path}
    config, machine.config = machine.config, dataclasses.replace(machine.config, ledger_directories=directories)
    with pytest.raises(StorageError, match=problem):
        machine.live(load)
    assert {path: data for path, data in machine.disk.files().items() if "/ledgers2" not in path} == before
    assert not machine.disk.open_files
    machine.config = config
    machine.check()


def test_a_directory_that_fails_ends_the_process_and_loses_nothing(load: Any, body: Any) -> None:
    machine = made(survive_failed_directory=True)
    assert machine.live(load)

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 5, {60: body(5, 60)})
        await store.checkpoint()
        await promises.add(store, 5, {61: body(5, 61)})
        machine.disk.fail("fdatasync", "/ledgers1", lambda: OSError(5, "Input/output error"), count=1 << 40)
        with pytest.raises(SyncFailed, match="/ledgers1/current"):
            await store.checkpoint()
        assert store.parts is not None
        assert not store.parts.health.failed

    assert machine.live(script, stops=False)
    machine.disk.faults.clear()
    machine.crash(PROCESS_DIES)
    machine.check()


@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_flush_goes_to_every_directory_or_to_none(load: Any, body: Any, is_mixed: bool) -> None:
    machine = made(gc_interval_ms=1 << 40)
    assert machine.live(load)

    async def script(store: LedgerStore, promises: Any) -> None:
        entries = {(ledger_id, 70): body(ledger_id, 70) for ledger_id in LEDGERS if ledger_id != 2}
        if is_mixed:
            await promises.add_mixed(store, entries)
        else:
            for ids, sent in entries.items():
                await promises.add(store, ids[0], {ids[1]: sent})
        machine.disk.fail("pwrite", "/ledgers1", lambda: DiskFull("no space left on device"), count=2)
        with pytest.raises(DiskFull):
            await store.checkpoint()
        for ids, sent in entries.items():
            assert await store.read(*ids) == sent
        await asyncio.sleep(2)
        await store.checkpoint()
        await promises.check(store)

    assert machine.live(script)
    assert not machine.failures
    for number in range(2):
        sizes: dict[int, int] = {}
        for name in names_in(machine, number):
            data = machine.disk.read_bytes(f"{current(number)}/{name}")
            ledgers_map = entry_log_format.read_ledgers_map(lambda size, at, data=data: data[at : at + size], len(data))
            for ledger_id, size in (ledgers_map or {}).items():
                sizes[ledger_id] = sizes.get(ledger_id, 0) + size
        assert set(sizes) == set(of(number))
        sizes.pop(2, None)  # it is fenced
        assert len(set(sizes.values())) == 1  # each has its entries once
    machine.check()


def convert(machine: Machine, kind: type[Conversion]) -> None:
    conversion = kind(machine.disk, SimDatabases(machine.disk), machine.config, lambda *_: None)
    conversion.open()
    conversion.convert(conversion.survey())
    conversion.discard_old()
    conversion.close()
    machine.config = dataclasses.replace(machine.config, ledger_index="rocksdb" if kind is ToRocks else "files")


def test_there_and_back_by_conversions_with_logs_that_directories_share(load: Any, body: Any) -> None:
    machine = made(index="files", **SMALL, major_compaction_threshold=99)
    assert machine.live(load)
    convert(machine, ToRocks)
    assert names_in(machine, 0) & names_in(machine, 1)

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.check(store)
        forget(promises, 1, 6)
        figures = await compacted(store, FakeRecords.of(2, 3, 4, 5, 7))
        assert not figures["logs_set_aside"]
        assert sorted(store.ledger_ids()) == [2, 3, 4, 5, 7]
        for ledger_id in (3, 4):
            await promises.add(store, ledger_id, {80: body(ledger_id, 80)})
        await promises.check(store)

    assert machine.live(script)
    assert not names_in(machine, 0) & names_in(machine, 1)  # each has compacted what it shared
    machine.check()
    machine.disk.put(f"{current(0)}/scrub.progress", b"has ids of logs")
    convert(machine, ToIndexFiles)
    assert not machine.disk.exists(f"{current(0)}/scrub.progress")
    machine.check()
    convert(machine, ToRocks)
    machine.check()


def test_a_crash_while_directories_with_logs_of_one_name_are_written_and_compacted(load: Any, body: Any) -> None:
    begun = made(**SMALL, major_compaction_threshold=99)
    assert begun.live(load)
    collide(begun)
    gone = (4, 5)

    async def script(store: LedgerStore, promises: Any) -> None:
        compacting = asyncio.ensure_future(
            compacted(store, FakeRecords.of(*(ledger_id for ledger_id in LEDGERS if ledger_id not in gone)))
        )
        await promises.add_mixed(store, {(ledger_id, 90): body(ledger_id, 90) for ledger_id in (1, 3, 6, 7)})
        await promises.fence(store, 6)
        await compacting

    forget(begun.promises, *gone)
    check: Callable[..., Any] = lambda store, promises: promises.check(store)  # noqa: E731
    victims = begun.victims(script, step=13)
    for number, victim in [*victims, (0, lambda: begun)]:  # the last one has ended
        machine = victim()
        machine.crash(LOSSES[number % len(LOSSES)])
        try:
            if number % 3 == 0:
                machine.live(check, crash_at=1 + number * 7 % 60)
                machine.crash(PROCESS_DIES)
            machine.check()
            assert not machine.failures
        except BaseException as error:
            error.add_note(f"crash at disk call {number}")
            raise


def test_damage_in_a_log_that_directories_share_costs_only_the_damaged_entry(body: Any) -> None:
    machine = made(index="files", **SMALL, major_compaction_threshold=99)

    async def load(store: LedgerStore, promises: Any) -> None:
        for ledger_id, entry_id in ((2, 0), (1, 0), (1, 1)):
            await promises.add(store, ledger_id, {entry_id: body(ledger_id, entry_id)})
            await store.checkpoint()

    assert machine.live(load)
    convert(machine, ToRocks)
    (name,) = names_in(machine, 0) & names_in(machine, 1)
    path = f"{current(0)}/{name}"
    at = machine.disk.read_bytes(path).index(body(1, 0))

    async def damage(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {2: body(1, 2)})
        file = machine.disk.open(path, "r+")
        file.pwrite(bytes(4), at - 4)  # the record's size
        file.fsync()
        file.close()

    assert machine.live(damage, stops=False)
    machine.crash(PROCESS_DIES)

    async def script(store: LedgerStore, promises: Any) -> None:
        await compacted(store, FakeRecords.of(1, 2))
        for ids in ((2, 0), (1, 1), (1, 2)):
            assert await store.read(*ids) == promises.acknowledged[ids]

    assert machine.live(script)
    assert machine.live(script)


@pytest.mark.parametrize("problem", ["its index file is missing", "is being rebuilt", "page 0 of its index file is"])
def test_an_index_file_that_lacks_entries_is_not_converted_to_databases(load: Any, problem: str) -> None:
    machine = made(index="files")
    assert machine.live(load)
    path = next(path for path in machine.disk.files() if path.endswith("/3.idx"))
    data = machine.disk.read_bytes(path)
    if "missing" in problem:
        machine.disk.unlink(path)
    elif "page 0" in problem:
        machine.disk.put(path, data[:1024] + bytes(64) + data[1088:])
    else:
        header = index_format.parse_header(data[:1024]).with_state(index_format.STATE_REBUILDING)
        machine.disk.put(path, index_format.pack_header(header))
    conversion = ToRocks(machine.disk, SimDatabases(machine.disk), machine.config, lambda *_: None)
    conversion.open()
    with pytest.raises(StorageError, match=problem):
        conversion.survey()
    conversion.close()

    async def rebuilt(store: LedgerStore, promises: Any) -> None:
        assert store.parts is not None
        with contextlib.suppress(DataUnknown):
            await store.read(3, 0)
        await store.parts.rebuilder.wait_idle()
        await promises.check(store)

    assert machine.live(rebuilt)
    convert(machine, ToRocks)
    machine.check()
