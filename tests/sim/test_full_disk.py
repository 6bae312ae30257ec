"""Disks that are full, really: starts that fail without a trace, journals that use the last bytes they have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.partition import Partition

from bookies.errors import BookKeeperError, DiskFull
from bookies.lab.sim.world.disk import PROCESS_DIES
from bookies.storage.journal import journal_format, preallocated_journal
from bookies.storage.store import LedgerStore

Body = Callable[..., bytes]
MIB = 1 << 20
BOTH_INDEXES_BUT: set[str] = set()


def write(body: Body, count: int, size: int = 5000) -> Any:
    async def script(store: LedgerStore, promises: Any) -> None:
        for entry_id in range(count):
            await promises.add(store, 1 + entry_id % 3, {entry_id: body(1 + entry_id % 3, entry_id, size=size)})

    return script


async def nothing(store: LedgerStore, promises: Any) -> None:
    """Only start."""


@pytest.mark.parametrize("room", [0, 600, 3000, 60_000, 204_000])
def test_a_start_on_a_full_ledger_disk_leaves_nothing_and_says_what_to_do(machine: Any, body: Body, room: int) -> None:
    made = machine(room)
    assert made.live(write(body, 1))
    assert made.live(write(body, 40), stops=False)
    made.crash(PROCESS_DIES)
    ledgers = Partition(made.disk, "/ledgers0", 0)
    ledgers.capacity = ledgers.used() + room
    before = sorted(made.disk.files())
    for _ in range(3):
        with pytest.raises(DiskFull) as caught:
            made.live(nothing)
        text = str(caught.value)
        assert text.startswith("/ledgers0/current: the disk is full, ")
        assert f" {ledgers.usage('/ledgers0')[1]:,} bytes are usable; free " in text
        assert text.endswith("or add space, then start again; no data was lost: the journal still has all of it")
        after = sorted(made.disk.files())
        if room < 200_000:  # with more the entries fit and their index does not: then a log may stay
            assert after == before
        assert not made.disk.open_files
        made.crash(PROCESS_DIES)
    missing = int(text.partition("; free ")[2].split()[0].replace(",", ""))
    ledgers.capacity += missing
    made.check()


def test_a_stop_and_a_start_on_a_full_ledger_disk(machine: Any, body: Body) -> None:
    """What is tried every second while the disk is full leaves nothing either."""
    made = machine()
    ledgers = Partition(made.disk, "/ledgers0", MIB)

    async def script(store: LedgerStore, promises: Any) -> None:
        await write(body, 20)(store, promises)
        await store.checkpoint()
        await promises.add(store, 9, {0: body(9, 0, size=5000)})
        before = sorted(made.disk.files("/ledgers0"))
        ledgers.capacity = ledgers.used() + 1500  # enough for a new log's header
        with pytest.raises(DiskFull):
            await store.checkpoint()
        await asyncio.sleep(20)
        assert sorted(made.disk.files("/ledgers0")) == before
        with pytest.raises(DiskFull):
            await store.stop()

    assert made.live(script, stops=False)
    with pytest.raises(DiskFull, match="no data was lost"):
        made.live(nothing)
    ledgers.capacity = 8 * MIB
    made.check()


async def fill(
    store: LedgerStore, promises: Any, body: Body, failures: list[BaseException], *, is_recovery: bool = False
) -> int:
    """Add until the storage refuses or fails; how many were acknowledged."""
    for entry_id in range(10_000):
        try:
            bodies = {entry_id: body(1, entry_id, size=200)}
            adding = promises.add(store, 1, bodies, is_recovery=is_recovery)
        except BookKeeperError:
            return entry_id
        await asyncio.wait([adding], timeout=0.5)
        if not adding.done():
            assert failures, "no answer, and no failure"
            await asyncio.sleep(5)
            assert not adding.done(), "an answer after the failure"
            return entry_id
        await asyncio.sleep(0.01)  # the disks are looked at meanwhile
    raise AssertionError("the disk never filled up")


def test_a_journal_uses_the_last_bytes_of_its_disk_and_then_stops_without_lying(machine: Any, body: Body) -> None:
    """[F-35] Ordinary adds end first, then those of recoveries; only fences, which are never refused, meet the end."""
    made = machine(journal_preallocate_size=64 << 10, journal_size_max=96 << 10)
    journal = Partition(made.disk, "/journal0", 100 << 10)

    async def script(store: LedgerStore, promises: Any) -> None:
        assert await fill(store, promises, body, made.failures) > 60
        assert not store.is_writable
        assert store.takes_priority
        assert store.read_only_reason.startswith("/journal0/current: the disk is full, 4.")
        assert journal.usage("/journal0")[1] < 5120
        await fill(store, promises, body, made.failures, is_recovery=True)
        assert not store.takes_priority
        assert journal.usage("/journal0")[1] < 2048
        assert not made.failures
        ledger_id = 100
        while not made.failures:
            promises.fence(store, ledger_id)
            ledger_id += 1
            await asyncio.sleep(0.1)

    assert made.live(script, stops=False)
    assert [type(error) for error in made.failures] == [DiskFull]
    # A group takes a record of 256 bytes and padding up to 512 at least: hardly anything of the disk is left.
    assert journal.usage("/journal0")[1] < 512
    made.crash(PROCESS_DIES)
    made.failures.clear()
    # What was flushed and checkpointed at the start gives its journal files back: that is room enough.
    made.check()
    names = [path.rpartition("/")[2] for path in made.disk.files("/journal0")]
    assert len([name for name in names if name.endswith(".txn")]) <= 2


@pytest.mark.parametrize("room", [512, 4096, 30_000])
def test_a_journal_begins_and_goes_on_with_little_room(machine: Any, body: Body, room: int) -> None:
    """Neither the first file nor the next needs more than its header."""
    made = machine(room, journal_preallocate_size=64 << 10, journal_size_max=4096)
    journal = Partition(made.disk, "/journal0", room)
    acknowledged: list[int] = []

    async def script(store: LedgerStore, promises: Any) -> None:
        acknowledged.append(await fill(store, promises, body, made.failures, is_recovery=True))

    assert made.live(script, stops=False)
    assert acknowledged[0] >= (room - 512 * (1 + room // 4096)) // 1024
    made.crash(PROCESS_DIES)
    made.failures.clear()
    journal.capacity += MIB
    made.check()
    names = [path.rpartition("/")[2] for path in made.disk.files("/journal0")]
    kinds = (journal_format.parse_file_name, journal_format.parse_newest_name)
    assert all(any(kind(name) is not None for kind in kinds) for name in names)


def test_nothing_is_prepared_where_room_is_short(machine: Any, body: Body) -> None:
    made = machine(journal_backups_max=0)  # spares of 4096 bytes
    journal = Partition(made.disk, "/journal0", MIB)

    def spares() -> list[str]:
        return [path for path in made.disk.files("/journal0") if path.endswith(preallocated_journal.SUFFIX)]

    async def script(store: LedgerStore, promises: Any) -> None:
        for entry_id in range(30):
            journal.capacity = journal.used() + 4 * 4096 - 1
            await promises.add(store, 1, {entry_id: body(1, entry_id, size=200)})
            await asyncio.sleep(0.1)
            assert not spares()
        journal.capacity = MIB
        for entry_id in range(30, 60):
            await promises.add(store, 1, {entry_id: body(1, entry_id, size=200)})
            await asyncio.sleep(1)
        assert spares()

    assert made.live(script)
    assert not made.failures
    made.check()
