"""The index in databases: damage of one, what the databases hold, and directories with another kind of index."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from tests.fakes.records import BOOKIE, FakeRecords

from bookies.errors import (
    CorruptRecord,
    DataUnknown,
    DirectoryInUse,
    DiskFull,
    LedgerUnknownToBookie,
    ReadFailed,
    StorageError,
)
from bookies.lab.sim.world.databases import pack, parse
from bookies.lab.sim.world.disk import LOSSES, NOTHING_SURVIVES, PROCESS_DIES
from bookies.storage.identity import lost_directories
from bookies.storage.identity.cookie import Cookie
from bookies.storage.identity.index_kind import REBUILD
from bookies.storage.index.index_format import STATE_FENCED, STATE_LIMBO, IndexHeader
from bookies.storage.rocksdb import rocksdb_format
from bookies.storage.rocksdb.database_files import DAMAGED, WIDE
from bookies.storage.store import LedgerStore

from .conftest import KEY, Machine
from .test_lost_disks import check as check_after_loss

COOKIE = Cookie("b1", "/journal0", ("/ledgers0",), "cluster").pack()
CURRENT = "/ledgers0/current"
LOCATIONS, LEDGERS = rocksdb_format.paths_in(CURRENT)


def made(seed: object = 0, **settings: object) -> Machine:
    return Machine(seed, ledger_index="rocksdb", **settings)


@pytest.fixture
def load(body: Any) -> Any:
    async def script(store: LedgerStore, promises: Any) -> None:
        for ledger_id in range(1, 5):
            for first in (0, 9, 30):
                entries = {entry: body(ledger_id, entry) for entry in range(first, first + 9)}
                await promises.add(store, ledger_id, entries)
                await store.checkpoint()
        await promises.fence(store, 2)
        await promises.write_lac(store, 3, 7)

    return script


async def repaired(store: LedgerStore, promises: Any) -> None:
    """Nothing is denied before the index is built again; everything is there afterwards."""
    for ledger_id, entry_id in promises.acknowledged:
        try:
            await store.read(ledger_id, entry_id)
        except (DataUnknown, ReadFailed):
            pass
    assert store.parts is not None
    await store.parts.rebuilder.wait_idle()
    await promises.check(store)


def test_the_databases_are_those_that_apaches_bookie_would_have_written(load: Any) -> None:
    machine = made()
    assert machine.live(load)
    ledgers = parse(machine.disk.read_bytes(LEDGERS))
    assert {int.from_bytes(key, "big") for key in ledgers} == {1, 2, 3, 4}
    for ledger_id in range(1, 5):
        header = rocksdb_format.parse_ledger_data(ledgers[rocksdb_format.pack_key(ledger_id)], LEDGERS, ledger_id)
        assert (header.master_key, header.is_fenced, header.is_uncertain) == (KEY, ledger_id == 2, False)
        assert bool(header.explicit_lac) == (ledger_id == 3)
    entry_ids = [*range(18), *range(30, 39)]
    keys = {key for ledger_id in range(1, 5) for key in rocksdb_format.entry_keys(ledger_id, entry_ids)}
    assert set(parse(machine.disk.read_bytes(LOCATIONS))) == keys
    assert not [path for path in machine.disk.files() if path.endswith((".idx", REBUILD))]
    machine.check()


def test_a_checkpoint_writes_only_locations_that_are_new(load: Any, body: Any) -> None:
    machine = made(index_page_size=8192)
    assert machine.live(load)
    size = len(machine.disk.read_bytes(LOCATIONS))

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {40: body(1, 40)})

    assert machine.live(script)
    assert len(machine.disk.read_bytes(LOCATIONS)) - size < 200
    machine.check()


@pytest.mark.parametrize("name", [LOCATIONS, LEDGERS])
@pytest.mark.parametrize("damage", ["removed", "cut", "flipped", "older", "another"])
def test_a_damaged_database_is_built_again_from_the_entry_logs(load: Any, name: str, damage: str) -> None:
    machine = made()
    assert machine.live(load)
    data = machine.disk.read_bytes(name)
    if damage == "removed":
        machine.disk.unlink(name)
        machine.disk.sync_directory(CURRENT)
    elif damage == "cut":
        machine.disk.put(name, data[: len(data) // 2])
    elif damage == "flipped":
        machine.disk.put(name, data[:40] + bytes([data[40] ^ 1]) + data[41:])
    elif damage == "older":
        machine.disk.put(name, data[: data.index(b"\n", 20) + 1])
    else:
        machine.disk.put(name, pack({}, 7))

    async def check(store: LedgerStore, promises: Any) -> None:
        if name == LEDGERS:  # keys, fences, and LACs have no other witness: the ledgers stay in limbo
            assert store.has_unknown_ledgers
            assert store.parts is not None
            await store.parts.rebuilder.wait_idle()
            for ids, sent in promises.acknowledged.items():
                assert await store.read(*ids) == sent
            with pytest.raises(DataUnknown, match="may have been fenced"):
                await promises.is_fenced(store, 2)
            with pytest.raises(DataUnknown):
                await store.read(99, 0)
        else:
            await repaired(store, promises)
            assert not store.has_unknown_ledgers

    assert machine.live(check)
    assert not machine.failures
    assert machine.disk.exists(name + DAMAGED) is (damage != "removed")
    assert not machine.disk.exists(name + REBUILD)
    flags = parse(machine.disk.read_bytes(LEDGERS)).get(rocksdb_format.pack_key(rocksdb_format.FLAGS_LEDGER_ID))
    assert (flags == (1).to_bytes(8, "big")) is (name == LEDGERS)
    if name == LOCATIONS:
        machine.check()


@pytest.mark.parametrize("name", [LOCATIONS, LEDGERS])
def test_a_crash_at_every_call_of_the_start_that_builds_a_database_again(load: Any, body: Any, name: str) -> None:
    machine = made()
    assert machine.live(load)
    machine.disk.unlink(name)
    machine.disk.sync_directory(CURRENT)
    assert machine.copies()().live(repaired if name == LOCATIONS else _is_served)
    for number, crashed in machine.victims(_is_served, step=3):
        victim = crashed()
        victim.crash(LOSSES[number % len(LOSSES)])
        assert victim.live(repaired if name == LOCATIONS else _is_served)
        assert not victim.failures


def test_ledgers_that_the_replay_has_written_are_built_again_too(body: Any) -> None:
    machine = made(index_page_size=64)

    async def early(store: LedgerStore, promises: Any) -> None:
        for ledger_id in range(1, 5):
            await promises.add(store, ledger_id, {entry: body(ledger_id, entry) for entry in range(200, 240)})

    async def late(store: LedgerStore, promises: Any) -> None:
        for ledger_id in range(1, 5):
            await promises.add(store, ledger_id, {entry: body(ledger_id, entry) for entry in range(4)})

    assert machine.live(early)
    assert machine.live(late, stops=False)
    machine.crash(PROCESS_DIES)
    machine.disk.unlink(LEDGERS)
    machine.disk.sync_directory(CURRENT)
    machine.config = dataclasses.replace(machine.config, index_cache_size=1, write_cache_size=1024)
    assert machine.live(_is_served)
    assert not machine.failures


@pytest.mark.parametrize("name", [LOCATIONS, LEDGERS])
def test_a_marker_without_a_reason_counts(load: Any, name: str) -> None:
    machine = made()
    assert machine.live(load)
    machine.disk.put(name + REBUILD, b"")
    assert machine.live(repaired if name == LOCATIONS else _is_served)
    assert not machine.failures
    assert not machine.disk.exists(name + REBUILD)


async def _is_served(store: LedgerStore, promises: Any) -> None:
    assert store.parts is not None
    for ids in promises.acknowledged:
        try:
            await store.read(*ids)
        except (DataUnknown, ReadFailed):
            pass
    await store.parts.rebuilder.wait_idle()
    for ids, sent in promises.acknowledged.items():
        assert await store.read(*ids) == sent


@pytest.mark.parametrize("call", ["get", "last_before", "between"])
def test_damage_that_a_read_finds_ends_the_process_and_the_next_start_repairs_it(load: Any, call: str) -> None:
    machine = made()
    assert machine.live(load)

    async def find(store: LedgerStore, promises: Any) -> None:
        assert store.parts is not None
        assert store.parts.databases is not None
        database: Any = store.parts.databases[0].ledgers if call == "get" else store.parts.databases[0].locations

        def fail(*_: object) -> None:
            raise CorruptRecord("a block has a wrong checksum", path=LOCATIONS, offset=0)

        setattr(database, call, fail)
        with pytest.raises(ReadFailed, match="wrong checksum"):
            await store.read(1, 3)
        with pytest.raises(StorageError, match="has failed"):
            await store.read(1, 3)

    assert machine.live(find, stops=False)
    [failure] = machine.failures
    assert "The next start rebuilds the index" in str(failure)
    assert machine.disk.exists(LOCATIONS + REBUILD)
    machine.failures.clear()
    machine.crash(NOTHING_SURVIVES)
    assert machine.live(repaired)
    machine.check()


@pytest.mark.parametrize("name", [LOCATIONS, LEDGERS])
def test_a_failed_write_of_a_database_ends_the_process_and_loses_nothing(load: Any, body: Any, name: str) -> None:
    machine = made()
    assert machine.live(load)

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 5, {0: body(5, 0)})
        machine.disk.fail("fdatasync", name, lambda: OSError(28, "No space left on device"))
        for _ in range(2):
            with pytest.raises(StorageError, match="the journal has what was not written"):
                await store.checkpoint()

    assert machine.live(script, stops=False)
    machine.disk.faults.clear()
    machine.crash(PROCESS_DIES)
    machine.check()


@pytest.mark.parametrize("name", [LOCATIONS, LEDGERS])
@pytest.mark.parametrize("is_partial", [False, True])
def test_a_full_disk_is_tried_again(load: Any, body: Any, name: str, is_partial: bool) -> None:
    machine = made()
    assert machine.live(load)

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 5, {0: body(5, 0)})
        machine.disk.fail("pwrite", name, lambda: DiskFull("no space left on device"), is_partial=is_partial)
        with pytest.raises(DiskFull):
            await store.checkpoint()
        await promises.check(store)
        await promises.add(store, 5, {1: body(5, 1)})
        await store.checkpoint()

    assert machine.live(script, stops=False)
    assert not machine.failures
    machine.crash(NOTHING_SURVIVES)
    machine.check()


def test_a_read_keeps_the_database_open_that_a_full_disk_has_stopped(load: Any, body: Any) -> None:
    machine = made()
    assert machine.live(load)

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 5, {0: body(5, 0)})
        machine.disk.fail("pwrite", LOCATIONS, lambda: DiskFull("no space left on device"))
        with pytest.raises(DiskFull):
            await store.checkpoint()
        assert store.parts is not None
        assert store.parts.databases is not None
        databases: Any = store.parts.databases[0]
        open_again = databases._database

        def refuse(*_: object, **__: object) -> None:
            raise DirectoryInUse("lock hold by current process")

        databases._database = refuse
        with pytest.raises(DiskFull, match="a read that has not ended"):
            await store.checkpoint()
        with pytest.raises(ReadFailed, match="is closed"):
            await store.read(1, 3)
        databases._database = open_again
        await store.checkpoint()
        machine.disk.faults.clear()
        machine.disk.fail("pwrite", LOCATIONS, lambda: DiskFull("no space left on device"))
        await promises.add(store, 5, {1: body(5, 1)})
        with pytest.raises(DiskFull):
            await store.checkpoint()
        capacity, machine.disk.capacity = machine.disk.capacity, machine.disk.used() + (1 << 20)
        with pytest.raises(DiskFull, match="are needed to continue its writes"):
            await store.checkpoint()
        assert await store.read(1, 3) == promises.acknowledged[1, 3]
        machine.disk.capacity = capacity
        await store.checkpoint()
        await promises.check(store)

    assert machine.live(script)
    assert not machine.failures
    machine.check()


def test_a_start_on_a_full_disk_says_what_to_free(load: Any) -> None:
    machine = made()
    assert machine.live(load)
    machine.disk.unlink(LOCATIONS)
    capacity, machine.disk.capacity = machine.disk.capacity, machine.disk.used()
    with pytest.raises(DiskFull, match=r"/ledgers0/current: the disk is full, 0 bytes .* free 6\d,\d+,\d+ bytes"):
        machine.live(load)
    assert not machine.disk.open_files
    machine.disk.capacity = capacity
    assert machine.live(repaired)


def test_a_bookie_serves_what_it_has_from_a_full_disk_and_writes_when_there_is_space(load: Any, body: Any) -> None:
    """RocksDB cannot open a database for writing then."""
    machine = made()
    assert machine.live(load)
    capacity = machine.disk.capacity

    async def script(store: LedgerStore, promises: Any) -> None:
        for (ledger_id, entry_id), expected in promises.acknowledged.items():
            assert await store.read(ledger_id, entry_id) == expected
        assert not store.is_writable
        machine.disk.capacity = capacity
        await asyncio.sleep(20)
        assert store.is_writable
        await promises.add(store, 5, {0: body(5, 0)})
        await store.checkpoint()
        await promises.check(store)

    machine.disk.capacity = machine.disk.used()
    assert machine.live(script)
    assert not machine.failures
    machine.check()


def test_index_files_are_not_begun_where_databases_were_lost(load: Any) -> None:
    machine = made()
    assert machine.live(load)
    for name in (LOCATIONS, LEDGERS):
        machine.disk.unlink(name)
    other = Machine()
    other.disk = machine.disk
    with pytest.raises(StorageError, match="which are missing, and ledger_index = files"):
        other.live(load)
    assert not machine.disk.open_files
    assert machine.live(_is_served)


def test_a_collected_ledger_leaves_no_key(load: Any) -> None:
    machine = made(gc_quarantine_ms=0, gc_share_max=100)
    assert machine.live(load)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(FakeRecords.of(1, 2, 4), BOOKIE)
        assert store.collector is not None
        await store.collector.collect(is_forced=True, is_awaited=True)
        await store.collector.collect(is_forced=True, is_awaited=True)
        with pytest.raises(LedgerUnknownToBookie):
            await store.read(3, 0)

    assert machine.live(script)
    for name in (LOCATIONS, LEDGERS):
        assert {int.from_bytes(key[:8], "big") for key in parse(machine.disk.read_bytes(name))} == {1, 2, 4}


def test_wide_keys_of_apaches_tool_get_their_usual_form(load: Any) -> None:
    machine = made()
    assert machine.live(load)
    pairs = parse(machine.disk.read_bytes(LEDGERS))
    key = rocksdb_format.pack_key
    pairs[key(1) + WIDE] = pairs.pop(key(1))
    pairs[key(3) + WIDE] = rocksdb_format.pack_ledger_data(IndexHeader(KEY, STATE_FENCED))
    machine.disk.put(LEDGERS, pack(pairs))
    machine.disk.unlink(f"{CURRENT}/index.catalog")  # Apache's tool makes another database

    async def check(store: LedgerStore, promises: Any) -> None:
        assert (await store.header(3)).is_fenced
        await promises.check(store)

    assert machine.live(check)
    left = parse(machine.disk.read_bytes(LEDGERS))
    assert {len(name) for name in left} == {8}
    machine.check()


def test_an_unfinished_check_of_apaches_makes_every_ledger_uncertain(load: Any) -> None:
    machine = made()
    assert machine.live(load)
    pairs = parse(machine.disk.read_bytes(LEDGERS))
    pairs[rocksdb_format.pack_key(rocksdb_format.FLAGS_LEDGER_ID)] = (1).to_bytes(8, "big")
    machine.disk.put(LEDGERS, pack(pairs))
    machine.disk.unlink(f"{CURRENT}/index.catalog")

    async def check(store: LedgerStore, promises: Any) -> None:
        assert store.has_unknown_ledgers
        assert sorted(store.limbo) == [1, 2, 3, 4]
        await store.settle_unknown_ledgers([])
        await store.end_limbo({each: store.limbo.doubts.get(each, 0) for each in (1, 2, 3, 4)})

    assert machine.live(check)
    flags = rocksdb_format.pack_key(rocksdb_format.FLAGS_LEDGER_ID)
    assert parse(machine.disk.read_bytes(LEDGERS))[flags] == bytes(8)
    assert machine.live(repaired)


def test_limbo_outlasts_a_restart(load: Any) -> None:
    machine = made()
    assert machine.live(load)
    pairs = parse(machine.disk.read_bytes(LEDGERS))
    pairs[rocksdb_format.pack_key(4)] = rocksdb_format.pack_ledger_data(IndexHeader(KEY, STATE_LIMBO))
    machine.disk.put(LEDGERS, pack(pairs))
    machine.disk.unlink(f"{CURRENT}/index.catalog")

    async def check(store: LedgerStore, promises: Any) -> None:
        assert list(store.limbo) == [4]
        with pytest.raises(DataUnknown):
            await store.read(4, 25)

    assert machine.live(check)
    assert machine.live(check)


def test_another_kind_of_index_is_refused_with_both_ways_out(load: Any) -> None:
    machine = Machine()
    assert machine.live(load)
    other = made()
    other.disk = machine.disk
    with pytest.raises(
        StorageError, match=r"ledger_index = files; or convert it: bk bookie convert /ledgers0 --to rock"
    ):
        other.live(load)
    assert not machine.disk.exists(LOCATIONS)
    assert not machine.disk.open_files
    machine.check()


@pytest.mark.parametrize("lost", [["/ledgers0"], ["/journal0"], ["/journal0", "/ledgers0"]])
def test_a_start_after_the_loss_of_a_directory_denies_nothing_wherever_it_crashes(load: Any, lost: list[str]) -> None:
    begun = made()
    assert begun.live(load, stops=False)
    begun.crash(PROCESS_DIES)
    for path in lost:
        begun.disk.lose_directory(path, is_empty=True)
    losses = tuple(lost_directories.Loss(path, "mark", is_replaced=True) for path in lost)
    kept = [path for path in ("/journal0", "/ledgers0") if path not in lost]
    lost_directories.write(begun.disk, COOKIE, kept, lost_directories.Uses(losses, False, (), tuple(lost)))
    victims = begun.victims(check_after_loss, step=5, stops=False)
    for number, victim in [*victims, (0, lambda: begun)]:  # the last one has ended
        machine = victim()
        machine.crash((PROCESS_DIES, NOTHING_SURVIVES)[number % 2])
        assert machine.live(check_after_loss)
        assert machine.live(check_after_loss)
        assert not machine.failures
