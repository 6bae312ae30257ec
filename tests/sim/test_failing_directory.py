"""One of three ledger directories fails at every disk call in turn; it takes only itself out.

Afterwards no acknowledged entry is denied or another, what does not lie there is served, the bookie takes entries, and
a start with the directory back serves everything again. The sweeps take every `BK_SWEEP_STEP`-th call; 1 is all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.records import BOOKIE, FakeRecords

from bookies.errors import BookieReadOnly, DataUnknown, DiskFull, LedgerFenced, ReadFailed
from bookies.lab.sim.world.disk import NOTHING_SURVIVES, PROCESS_DIES, Loss
from bookies.storage.checkpoint.failover import Note, pack_note, parse_note
from bookies.storage.entry_log import entry_log
from bookies.storage.gc.collection_policy import Compaction
from bookies.storage.store import LedgerStore

from .conftest import entry_body

Body = Callable[..., bytes]
STEP = int(os.environ.get("BK_SWEEP_STEP", "17"))
BROKEN = "/ledgers1"
WRITES = "open|pwrite|pwritev|write_durably|truncate|allocate|rename|link|unlink|make_directories|fsync|fdatasync"
KINDS = {
    "all": "",
    "writes": WRITES + "|sync_directory",
    "syncs": "fsync|fdatasync|sync_directory",
    "reads": "pread|list|read_bytes|exists|size|is_directory|next_data",
}
WAYS = (PROCESS_DIES, NOTHING_SURVIVES, Loss(0.5))


def error() -> OSError:
    return OSError(5, "Input/output error")


async def add(store: LedgerStore, promises: Any, body: Body, ledger_id: int, ids: range, size: int = 500) -> None:
    await promises.add(store, ledger_id, {entry: body(ledger_id, entry, size=size) for entry in ids})


async def check_half(store: LedgerStore, promises: Any) -> int:
    """Nothing is denied or false; how many entries cannot be had for now."""
    missing = 0
    for (ledger_id, entry_id), _ in promises.acknowledged.items():
        try:
            found = await store.read(ledger_id, entry_id)
        except (ReadFailed, DataUnknown):
            missing += 1
        else:
            assert found in promises.submitted[ledger_id, entry_id]
        with contextlib.suppress(ReadFailed, DataUnknown):
            listed = [each for run in await store.list_entries(ledger_id) for each in run]
            assert entry_id in listed
            assert await store.last_add_confirmed(ledger_id) >= entry_id - 1  # of an uncertain ledger it may be less
    for ledger_id, was_acknowledged in promises.fences.items():
        if was_acknowledged:
            with pytest.raises((LedgerFenced, DataUnknown, ReadFailed)):
                await promises.add(store, ledger_id, {1_000: entry_body(ledger_id, 1_000)})
            promises.submitted.pop((ledger_id, 1_000), None)
    return missing


@pytest.fixture
def three(machine: Any) -> Callable[..., Any]:
    def make(seed: object = 0, **settings: object) -> Any:
        chosen: dict[str, object] = {
            "entry_log_size_max": 1 << 13,
            "gc_interval_ms": 1 << 40,
            "gc_quarantine_ms": 0,
            "minor_compaction_interval_ms": 0,
            "major_compaction_interval_ms": 0,
        }
        made = machine(seed, ledgers=3, **(chosen | settings))
        made.disk.forgets_failed_syncs = True
        return made

    return make


def sweep(
    three: Callable[..., Any],
    before: Any,
    script: Any,
    kind: str,
    *,
    step: int = STEP,
    **settings: object,
) -> int:
    """Break the directory at each `step`-th of its calls of `script`."""

    begun = three("fail", **settings)
    assert begun.live(before, stops=False)
    begun.crash(PROCESS_DIES)
    fresh = begun.copies()
    first = fresh()
    first.disk.log = []
    assert first.live(script)
    operations = KINDS[kind].split("|") if KINDS[kind] else None
    starting = fresh()
    starting.disk.log = []

    assert starting.live(start_only, stops=False)

    def calls(made: Any) -> int:
        return sum(
            BROKEN in call.path and (operations is None or call.operation in operations) for call in made.disk.log
        )

    begin, count = calls(starting), calls(first)
    for number in range(begin, count, step):
        made = fresh()
        missing: list[int] = []

        async def life(store: LedgerStore, promises: Any, missing: list[int] = missing) -> None:
            with contextlib.suppress(ReadFailed, DataUnknown, OSError):
                await script(store, promises)
            await asyncio.sleep(30)
            missing.append(await check_half(store, promises))
            assert store.is_writable, store.read_only_reason
            await promises.add(store, 500, {0: entry_body(500, 0)})
            done = store.stats()["checkpoints"]
            while store.stats()["checkpoints"] == done:
                with contextlib.suppress(OSError):  # of a read: tried again, elsewhere if the file is a new one
                    await store.checkpoint()
                await asyncio.sleep(1)
            missing.append(await check_half(store, promises))

        made.disk.fail(KINDS[kind], BROKEN, error, count=1 << 40, skip=number)
        try:
            assert made.live(life, stops=number % 2 == 0)
            assert not made.failures
            made.disk.faults.clear()
            made.crash(WAYS[number % len(WAYS)])
            made.live(start_only)  # in which index files are built again
            assert made.live(settle)
            made.check(lives=1)
            assert not made.failures
        except BaseException as problem:
            problem.add_note(
                f"{kind} of {BROKEN} failed from call {number} of {begin} to {count} on; missing {missing}"
            )
            raise
    return count - begin


async def settle(store: LedgerStore, promises: Any) -> None:
    """Give index files time to be built again."""
    await asyncio.sleep(60)


@pytest.mark.parametrize("kind", list(KINDS))
def test_adds_flushes_and_checkpoints(three: Callable[..., Any], body: Body, kind: str) -> None:
    async def before(store: LedgerStore, promises: Any) -> None:
        for ledger_id in range(1, 9):
            await add(store, promises, body, ledger_id, range(6))
        await promises.fence(store, 3)
        await store.checkpoint()
        await add(store, promises, body, 9, range(6))

    async def script(store: LedgerStore, promises: Any) -> None:
        for number in range(3):
            for ledger_id in (1, 2, 4, 20 + number, 30 + number):
                await add(store, promises, body, ledger_id, range(6 + 4 * number, 10 + 4 * number))
            if number == 1:
                await promises.fence(store, 5)
                await promises.write_lac(store, 6, 17)
            for ledger_id in range(1, 9):
                await store.read(ledger_id, 5)
            await store.checkpoint()

    assert sweep(three, before, script, kind) > 5


@pytest.mark.parametrize("kind", ["all", "writes", "syncs"])
def test_entries_of_many_ledgers_in_one_run(
    three: Callable[..., Any], body: Body, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_log, "MIXED_SIZE", 3000)  # a few entries

    async def before(store: LedgerStore, promises: Any) -> None:
        for ledger_id in range(1, 9):
            await add(store, promises, body, ledger_id, range(6))
        await store.checkpoint()

    async def script(store: LedgerStore, promises: Any) -> None:
        for number in range(3):
            for entry in range(6 + 4 * number, 10 + 4 * number):
                ids = [(ledger_id, entry) for ledger_id in (*range(1, 9), 20 + number)]
                await promises.add_mixed(store, {each: body(*each, size=500) for each in ids})
            await add(store, promises, body, 3, range(8 + 4 * number, 12 + 4 * number))
            for ledger_id in range(1, 9):
                await store.read(ledger_id, 5)
            await store.checkpoint()

    assert sweep(three, before, script, kind) > 5


@pytest.mark.parametrize("compaction", ["transactional", "plain"])
@pytest.mark.parametrize("kind", ["all", "syncs"])
def test_collection_and_compaction(three: Callable[..., Any], body: Body, kind: str, compaction: str) -> None:
    async def before(store: LedgerStore, promises: Any) -> None:
        for number in range(4):
            for ledger_id in range(1, 7):
                await add(store, promises, body, ledger_id, range(2 * number, 2 * number + 2))
            await store.checkpoint()
        for key in [key for key in promises.acknowledged if key[0] < 4]:
            del promises.acknowledged[key], promises.submitted[key]

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(FakeRecords.of(4, 5, 6, 500), BOOKIE)
        assert store.collector is not None
        await store.collector.collect(is_forced=True, is_awaited=True)
        await store.collector.compact(Compaction.MAJOR, is_awaited=True)
        await add(store, promises, body, 5, range(8, 12))
        await store.checkpoint()

    assert sweep(three, before, script, kind, compaction=compaction) > 5


@pytest.mark.parametrize("is_mixed", [False, True])
def test_what_a_failed_sync_has_lost_is_written_again(three: Callable[..., Any], body: Body, is_mixed: bool) -> None:
    """[R-17] Entries that had left the write cache, in a log whose sync fails."""
    made = three(write_cache_size=1 << 20, entry_log_size_max=1 << 20)

    async def script(store: LedgerStore, promises: Any) -> None:
        for entry in range(0, 1600, 20):
            if is_mixed:
                ids = [(1 + each % 20, (entry + each) // 20) for each in range(20)]
                await promises.add_mixed(store, {each: body(*each, size=500) for each in ids})
            else:
                await add(store, promises, body, 1 + entry % 3, range(entry, entry + 20))
        assert store.stats()["flushes"] > 0
        for directory in ("/ledgers0", "/ledgers1"):
            made.disk.fail("fdatasync|fsync", f"{directory}/current", error, count=1 << 40)
        await store.checkpoint()
        assert await check_half(store, promises) == 0
        assert store.is_writable

    assert made.live(script, stops=False)
    assert not made.failures
    made.disk.faults.clear()
    made.crash(NOTHING_SURVIVES)
    made.check()


async def start_only(store: LedgerStore, promises: Any) -> None:
    """Only start."""


def filled(three: Callable[..., Any], body: Body) -> Any:
    """A bookie with eight ledgers, a third of whose index files lie in the directory that will fail."""
    made = three("whole")

    async def fill(store: LedgerStore, promises: Any) -> None:
        for ledger_id in range(1, 9):
            await add(store, promises, body, ledger_id, range(6))

    assert made.live(fill)
    assert any(path.startswith(BROKEN) and path.endswith(".idx") for path in made.disk.files())
    return made


def is_certain_again(made: Any) -> None:
    """The directory is back with all that was synced: after rebuilds no ledger is uncertain."""
    made.disk.faults.clear()
    made.crash(PROCESS_DIES)
    assert made.live(start_only)
    assert made.live(settle)
    made.check(lives=1)
    assert not made.failures


def test_a_log_that_a_failed_directory_did_not_accept_is_no_damage(three: Callable[..., Any], body: Body) -> None:
    """Its name exists, without a header, and logs with greater ids were synced elsewhere."""
    made = filled(three, body)

    async def script(store: LedgerStore, promises: Any) -> None:
        for number in range(1, 10):
            made.disk.fail("pwrite", f"{BROKEN}/current/{number}.log", error, count=1 << 40)
        made.disk.fail("pread", f"{BROKEN}/", error, count=1 << 40)  # the rebuild elsewhere is incomplete
        for entry in range(6, 60, 6):
            await add(store, promises, body, 1, range(entry, entry + 6))
            await store.checkpoint()
        assert store.stats()["directories_failed"] == 1

    assert made.live(script, stops=False)
    assert b"" in [
        made.disk.read_bytes(path) for path in made.disk.files() if path.startswith(BROKEN) and path.endswith(".log")
    ]
    is_certain_again(made)


def test_a_directory_whose_names_cannot_be_read_fails_at_once(three: Callable[..., Any], body: Body) -> None:
    """Otherwise a rebuild would find the ledgers incomplete for good, just before the directory fails anyway."""
    made = filled(three, body)

    async def script(store: LedgerStore, promises: Any) -> None:
        for ledger_id in range(1, 9):
            await store.header(ledger_id)
        made.disk.fail("pread", f"{BROKEN}/", error, count=1 << 40)
        made.disk.fail("list", f"{BROKEN}/", error, count=1 << 40)
        for ledger_id in range(1, 9):
            with contextlib.suppress(ReadFailed, DataUnknown):
                await store.read(ledger_id, 5)
            await asyncio.sleep(1)
        assert store.stats()["directories_failed"] == 1

    assert made.live(script, stops=False)
    is_certain_again(made)


def test_the_last_directory_is_not_given_up(three: Callable[..., Any], body: Body) -> None:
    made = three()

    async def script(store: LedgerStore, promises: Any) -> None:
        await add(store, promises, body, 1, range(20))
        made.disk.fail("pwrite|pwritev|open", "/ledgers", error, count=1 << 40)
        with pytest.raises(DiskFull, match="no ledger directory accepts a new entry log"):
            await store.checkpoint()
        await asyncio.sleep(5)
        assert not store.is_writable
        assert "cannot be flushed" in store.read_only_reason
        with pytest.raises(BookieReadOnly):
            await add(store, promises, body, 1, range(20, 21))
        await promises.check(store)

    assert made.live(script, stops=False)
    assert not made.failures
    made.disk.faults.clear()
    made.crash(PROCESS_DIES)
    made.promises.submitted.pop((1, 20))
    made.check()


def test_it_can_be_switched_off(three: Callable[..., Any], body: Body) -> None:
    made = three(survive_failed_directory=False)

    async def script(store: LedgerStore, promises: Any) -> None:
        await add(store, promises, body, 1, range(20))
        made.disk.fail("fdatasync|fsync", ".log", error)
        with pytest.raises(Exception, match="failed"):
            await store.checkpoint()
        await asyncio.sleep(1)

    made.live(script, stops=False)


def test_notes() -> None:
    note = Note(["/a", "/b"], {31: 1024})
    data = pack_note(note)
    assert parse_note(data) == note
    assert parse_note(data[:-3]) == parse_note(b"") == parse_note(b"x" + data) == Note()


@pytest.mark.parametrize("broken", ["/ledgers0", "/ledgers1"])
def test_a_crash_while_a_directory_is_given_up(three: Callable[..., Any], body: Body, broken: str) -> None:
    """The power fails at calls of a life in which a directory fails; /ledgers0 has the catalog."""

    async def before(store: LedgerStore, promises: Any) -> None:
        for ledger_id in range(1, 7):
            await add(store, promises, body, ledger_id, range(6))
        await promises.fence(store, 3)
        await store.checkpoint()

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.write_lac(store, 4, 9)
        for number in range(2):
            for ledger_id in (1, 2, 4, 20 + number):
                with contextlib.suppress(DataUnknown):  # of which a part lies where nothing can be opened
                    await add(store, promises, body, ledger_id, range(6 + 4 * number, 10 + 4 * number))
            await store.checkpoint()
            await asyncio.sleep(5)
        await promises.write_lac(store, 4, 10)
        await store.checkpoint()

    def fresh(skip: int) -> Any:
        made = begun[skip]()
        made.disk.fail(KINDS["writes"], f"{broken}/", error, count=1 << 40, skip=skip)
        return made

    begun = {}
    for skip in (16, 24, 37):  # the start takes some of them
        made = three((broken, skip))
        assert made.live(before, stops=False)
        made.crash(PROCESS_DIES)
        begun[skip] = made.copies()
        first = fresh(skip)
        begin = first.disk.call_count
        assert first.live(script, stops=False)
        assert any(path.endswith("failed.directories") for path in first.disk.files())
        count = first.disk.call_count - begin
        for number in range(20 + skip % STEP, count, 2 * STEP):
            made = fresh(skip)
            if made.live(script, crash_at=number, stops=False):
                break
            made.disk.faults.clear()
            made.crash(WAYS[number % len(WAYS)])
            try:
                assert made.live(settle)
                made.check(lives=1)
                assert not made.failures
            except BaseException as problem:
                problem.add_note(f"{broken} failed from call {skip} on, crash at {number} of {count}")
                raise
