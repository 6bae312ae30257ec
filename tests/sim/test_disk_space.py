"""Disks that fill up and have room again: read-only and back, starts, where new files go, what compaction does."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.partition import Partition
from tests.fakes.records import BOOKIE, FakeRecords

from bookies.errors import BookieReadOnly, BookKeeperError, DiskFull
from bookies.lab.sim.world.disk import PROCESS_DIES
from bookies.storage.store import LedgerStore

Body = Callable[..., bytes]
MIB = 1 << 20
KIB = 1 << 10


async def add(store: LedgerStore, promises: Any, body: Body, ledger_id: int, ids: range, size: int = 500) -> None:
    await promises.add(store, ledger_id, {entry: body(ledger_id, entry, size=size) for entry in ids})


def test_read_only_and_back_follow_the_level(machine: Any, body: Body) -> None:
    made = machine()
    ledgers = Partition(made.disk, "/ledgers0", 10 * MIB)

    def leave(share: float) -> None:
        """So much of the disk is usable; somebody else has the rest."""
        used = ledgers.used()
        ledgers.usage = lambda path: (10 * MIB, int(share * 10 * MIB)) if "ledgers" in path else (MIB, MIB)  # type: ignore[method-assign]
        made.disk.usage = ledgers.usage
        assert used < MIB

    async def script(store: LedgerStore, promises: Any) -> None:
        changes: list[bool] = []
        store.on_mode_change(lambda: changes.append(store.is_writable))
        await add(store, promises, body, 1, range(4))
        for share, is_writable, takes_priority in (
            (0.06, True, True),
            (0.049, False, True),
            (0.06, False, True),  # the margin
            (0.009, False, False),
            (0.02, False, True),
            (0.071, True, True),
            (0.051, True, True),
            (0.04, False, True),
            (0.5, True, True),
        ):
            leave(share)
            await asyncio.sleep(11)
            assert (store.is_writable, store.takes_priority) == (is_writable, takes_priority), share
            assert bool(store.read_only_reason) is not is_writable
            if not is_writable:
                assert "adds are accepted again when 716.8 KiB are usable" in store.read_only_reason
                with pytest.raises(BookieReadOnly, match="the disk is full"):
                    await add(store, promises, body, 1, range(4, 8))
            recovering = promises.add(store, 1, {2: body(1, 2, size=500)}, is_recovery=True) if takes_priority else None
            if recovering is None:
                with pytest.raises(BookieReadOnly):
                    promises.add(store, 1, {2: body(1, 2, size=500)}, is_recovery=True)
            else:
                await recovering
            await promises.fence(store, 7)
        assert changes == [False, True, False, True]
        assert store.disk_status()["mode"] == "writable"

    assert made.live(script)
    made.check()


def test_a_disk_that_is_almost_full_is_looked_at_more_often(machine: Any, body: Body) -> None:
    made = machine()
    ledgers = Partition(made.disk, "/ledgers0", 10 * MIB)

    async def script(store: LedgerStore, promises: Any) -> None:
        for ledger_id in range(5):
            await add(store, promises, body, ledger_id, range(4))
        await store.checkpoint()
        ledgers.capacity = ledgers.used() * 100 // 92
        await asyncio.sleep(10.5)
        assert store.is_writable
        ledgers.capacity = ledgers.used() + 1
        await asyncio.sleep(1.5)
        assert not store.is_writable

    assert made.live(script, stops=False)


def test_new_logs_and_index_files_go_where_there_is_room(machine: Any, body: Body) -> None:
    made = machine(ledgers=3, read_only_on_any_disk_full=False, entry_log_size_max=4096, disk_check_interval_ms=100)
    full = Partition(made.disk, "/ledgers1", 10 * MIB)

    def logs() -> set[str]:
        return {posixpath.dirname(path) for path in made.disk.files() if path.endswith((".log", ".idx"))}

    async def script(store: LedgerStore, promises: Any) -> None:
        await asyncio.sleep(1)
        full.ballast = 10 * MIB
        full.capacity = full.used()
        await asyncio.sleep(1)
        for ledger_id in range(20):
            await add(store, promises, body, ledger_id, range(4))
            await store.checkpoint()
        assert store.is_writable
        assert not [path for path in logs() if path.startswith("/ledgers1")]
        full.ballast = 0
        await asyncio.sleep(1)
        for ledger_id in range(20, 40):
            await add(store, promises, body, ledger_id, range(4))
            await store.checkpoint()
        assert [path for path in logs() if path.startswith("/ledgers1")]

    assert made.live(script)
    made.check()


def test_a_log_goes_on_elsewhere_when_its_disk_becomes_full(machine: Any, body: Body) -> None:
    made = machine(ledgers=2, read_only_on_any_disk_full=False, disk_check_interval_ms=100)

    async def script(store: LedgerStore, promises: Any) -> None:
        await add(store, promises, body, 1, range(4))
        await store.checkpoint()
        first = next(path for path in made.disk.files() if path.endswith(".log"))
        full = Partition(made.disk, first.rpartition("/current")[0], 0)
        full.capacity = full.used() + 20
        await asyncio.sleep(1)
        size = len(made.disk.files()[first])
        await add(store, promises, body, 2, range(4))
        await add(store, promises, body, 3, range(4))
        full.capacity += 10_000  # for the pages of the ledger that was there before
        await store.checkpoint()
        assert len([path for path in made.disk.files() if path.endswith(".log")]) == 2
        assert len(made.disk.files()[first]) <= size + 100  # but for its map

    assert made.live(script)
    made.check()


@pytest.mark.parametrize("where", ["/ledgers0", "/journal0"])
def test_a_start_on_a_disk_without_a_byte_is_read_only_until_there_is_room(
    machine: Any, body: Body, where: str
) -> None:
    made = machine(journal_backups_max=0)

    async def first(store: LedgerStore, promises: Any) -> None:
        await add(store, promises, body, 1, range(20))
        await promises.fence(store, 2)

    async def second(store: LedgerStore, promises: Any) -> None:
        assert not store.is_writable
        assert store.read_only_reason.startswith("there is no free space for ")
        assert await store.read(1, 19) == promises.acknowledged[1, 19]
        for call in (
            lambda: promises.add(store, 1, {20: body(1, 20)}),
            lambda: promises.add(store, 1, {20: body(1, 20)}, is_recovery=True),
            lambda: promises.write_lac(store, 4, 17),
            lambda: promises.fence(store, 3),
        ):
            with pytest.raises(BookKeeperError, match="there is no free space"):
                await call()
        await asyncio.sleep(30)
        assert not store.is_writable
        disk.capacity += 10 * MIB
        await asyncio.sleep(11)
        assert store.is_writable
        await add(store, promises, body, 1, range(20, 24))

    assert made.live(first)
    disk = Partition(made.disk, where, 0)
    disk.capacity = disk.used()
    promises = made.promises
    if where == "/journal0":  # one file, which holds what replay begins with
        disk.capacity = disk.used() - 100
    assert made.live(second)
    promises.fences.pop(3, None)
    promises.lacs.pop(4, None)
    made.check()


def test_a_crash_of_a_bookie_that_waits_for_room_loses_nothing(machine: Any, body: Body) -> None:
    made = machine(journal_backups_max=0)

    async def first(store: LedgerStore, promises: Any) -> None:
        await add(store, promises, body, 1, range(20))
        await store.checkpoint()

    async def nothing(store: LedgerStore, promises: Any) -> None:
        await asyncio.sleep(100)
        assert not store.is_writable

    assert made.live(first)
    disk = Partition(made.disk, "/ledgers0", 0)
    disk.capacity = disk.used()
    for stops in (False, True, False):
        if stops:
            with pytest.raises(DiskFull):
                made.live(nothing, stops=True)
        else:
            assert made.live(nothing, stops=False)
        made.crash(PROCESS_DIES)
    disk.capacity += MIB
    made.check()


def test_no_room_in_a_checkpoint_or_an_entry_log_loses_nothing(machine: Any, body: Body) -> None:
    for room in (0, 700, 3000, 30_000):
        made = machine(room, write_cache_size=MIB)
        disk = Partition(made.disk, "/ledgers0", 64 * MIB)

        async def script(store: LedgerStore, promises: Any, room: int = room, disk: Partition = disk) -> None:
            await add(store, promises, body, 1, range(40))
            await store.checkpoint()
            await add(store, promises, body, 1, range(40, 80))
            await add(store, promises, body, 2, range(80))
            disk.capacity = disk.used() + room
            with pytest.raises(DiskFull):
                await store.checkpoint()
            await asyncio.sleep(12)
            assert not store.is_writable
            await promises.check(store)
            disk.capacity = 64 * MIB
            await asyncio.sleep(12)
            assert store.is_writable
            await store.checkpoint()
            await promises.check(store)

        assert made.live(script, stops=False)
        made.crash(PROCESS_DIES)
        assert not made.failures
        made.check()


@pytest.mark.parametrize("kind", ["transactional", "plain"])
def test_compaction_on_a_full_disk_gives_space_back_log_by_log(machine: Any, body: Body, kind: str) -> None:
    """What can be copied into the room there is goes first; what that gives back is room for the next."""
    made = machine(
        entry_log_size_max=64 << 10,
        gc_interval_ms=30_000,
        gc_quarantine_ms=0,
        minor_compaction_interval_ms=0,
        major_compaction_interval_ms=10**9,
        compaction=kind,
        disk_check_interval_ms=1000,
    )
    records = FakeRecords.of(*range(1, 20))
    disk = Partition(made.disk, "/ledgers0", 64 * MIB)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        assert store.collector is not None
        for number in range(12):
            # Of each log a little more lives than of the one before.
            for ledger_id in (1, 2):
                count = 2 + 2 * number if ledger_id == 1 else 26
                ids = range(30 * number, 30 * number + count)
                await add(store, promises, body, ledger_id, ids, size=1000)
            await store.checkpoint()
            await asyncio.sleep(1)
        before = disk.used()
        disk.ballast = 40 * MIB
        disk.capacity = disk.used() + 3 * KIB + MIB
        await asyncio.sleep(2)
        assert not store.is_writable
        records.delete(2)
        await asyncio.sleep(100)
        disk.ballast = 0
        space = store.collector.space()
        assert space["logs_compacted"] >= 6, space
        assert disk.used() < before * 7 // 10
        for key in [key for key in promises.acknowledged if key[0] == 2]:
            del promises.acknowledged[key], promises.submitted[key]
        await promises.check(store)

    assert made.live(script)
    made.check()
