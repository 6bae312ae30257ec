"""What a bookie's storage promises, call by call, on a simulated disk. Crashes are in test_storage_crash.py."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.fakes.adds import add_to

from bookies.errors import (
    BookieBusy,
    BookieReadOnly,
    BookKeeperError,
    DataUnknown,
    DirectoryInUse,
    DiskFull,
    EntryNotFound,
    InvalidArgument,
    LedgerFenced,
    LedgerUnknownToBookie,
    ReadFailed,
    StorageError,
    Unauthorized,
)
from bookies.kernels import Adds, Records
from bookies.lab.sim.world.disk import LOSSES, NOTHING_SURVIVES, PROCESS_DIES
from bookies.storage.index import catalog_format, index_format
from bookies.storage.journal import journal_format, log_mark_format
from bookies.storage.store import LedgerStore

Body = Callable[..., bytes]
KEY = b"k" * 20
BOTH_INDEXES_BUT = {
    "test_without_a_mark_no_journal_is_deleted",
    "test_journals_and_marks_of_two_directories",
    "test_a_failed_sync_of_log_or_index_stops_the_bookie",
    "test_a_header_cut_off_by_a_crash_is_made_again_from_the_journal_and_fenced",
    "test_a_start_that_fails_can_be_repeated",
    "test_an_explicit_lac_makes_an_old_header_a_new_one",
    "test_an_io_error_while_reading_is_never_a_missing_entry",
    "test_an_unreadable_header_is_never_an_empty_one",
}


def outcome() -> tuple[asyncio.Future[BaseException | None], Callable[[BaseException | None], None]]:
    future: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    return future, future.set_result


async def add(store: LedgerStore, ledger_id: int, body: bytes, key: bytes = KEY, *, is_recovery: bool = False) -> None:
    """Add one entry. Raises what the storage refuses with, now or later."""
    future, done = outcome()
    entry_id = struct.unpack_from(">q", body, 8)[0]
    add_to(
        store,
        ledger_id,
        key,
        [entry_id],
        Records.of([body]),
        entry_id - 1,
        is_recovery=is_recovery,
        is_deferred_sync=False,
        done=done,
    )
    if (error := await future) is not None:
        raise error


async def fence(store: LedgerStore, ledger_id: int, key: bytes = KEY) -> None:
    future, done = outcome()
    store.fence(ledger_id, key, done)
    if (error := await future) is not None:
        raise error


async def room(store: LedgerStore) -> None:
    """Wait until the store is not congested."""
    if store.is_congested:
        uncongested: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        store.when_uncongested(lambda: uncongested.set_result(None))
        await uncongested


# -- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["cache", "disk", "after a restart", "after a crash"])
def test_entries_come_back_whatever_their_order(machine: Any, body: Body, where: str) -> None:
    made = machine()
    ids = [[0, 1, 2], [9, 4], [3], [20, 21, 22], [5, 30], [4, 6]]

    async def write(store: LedgerStore, promises: Any) -> None:
        await asyncio.gather(*(promises.add(store, 1, {entry: body(1, entry) for entry in some}) for some in ids))
        if where == "disk":
            await store.checkpoint()
        if where in ("cache", "disk"):
            await read(store, promises)

    async def read(store: LedgerStore, promises: Any) -> None:
        assert await store.list_entries(1) == [range(7), range(9, 10), range(20, 23), range(30, 31)]
        assert await store.read(1, -1) == body(1, 30)
        assert (await store.read(1, 21), store.read_resident(1, 99)) == (body(1, 21), None)
        batch = await store.read_batch(1, 0, 100, 1 << 20)
        assert Records.of([body(1, entry) for entry in range(7)]).data.startswith(batch)
        assert await store.read_batch(1, 21, 1, 1 << 20) == Records.of([body(1, 21)]).data
        assert await store.read_batch(1, 21, 100, 0) == Records.of([body(1, 21)]).data
        for entry_id in (7, 8, 10, 31, 1 << 50):
            with pytest.raises(EntryNotFound):
                await store.read(1, entry_id)
            with pytest.raises(EntryNotFound):
                await store.read_batch(1, entry_id, 10, 100)
        with pytest.raises(LedgerUnknownToBookie):
            await store.read(2, 0)
        with pytest.raises(LedgerUnknownToBookie):
            await store.list_entries(2)
        assert list(store.ledger_ids()) == [1]

    assert made.live(write, stops=where == "after a restart")
    if where == "after a crash":
        made.crash(NOTHING_SURVIVES)
    if where.startswith("after"):
        assert made.live(read)
    made.check() if where.startswith("after a r") else None


def test_cache_and_disk_are_read_together(machine: Any, body: Body) -> None:
    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(0, 40, 2)})
        await store.checkpoint()
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(1, 40, 2)})
        assert await store.list_entries(1) == [range(40)]
        assert [await store.read(1, entry) for entry in range(40)] == [body(1, entry) for entry in range(40)]

    assert machine().live(script)


async def log_opened(store: LedgerStore) -> None:
    """Wait until the workers have opened what the loop wants to look into."""
    await asyncio.wait(store._open().readers.open_logs._opening.values())
    await asyncio.sleep(0)


def test_what_is_in_memory_is_read_at_once(machine: Any, body: Body) -> None:
    """Every other look finds it in this simulator, once a worker has opened the log."""

    async def script(store: LedgerStore, promises: Any) -> None:
        bodies = {entry: body(1, entry) for entry in range(300)}  # a page has 8 slots
        await promises.add(store, 1, bodies)
        records = Records.of(list(bodies.values())).data
        size = len(records) // 300
        assert store.read_batch_resident(1, 0, 1000, 1 << 20) == records  # the cache's
        await store.checkpoint()
        assert store.read_batch_resident(1, 0, 1000, 1 << 20) is None  # nobody has opened the log for the loop
        await log_opened(store)
        assert await store.read_batch(1, 0, 1000, 1 << 20) == records
        for first, count, size_max in ((0, 1000, 1 << 20), (100, 100, 1 << 20), (3, 1000, 50 * size), (299, 5, 0)):
            looks = [store.read_batch_resident(1, first, count, size_max) for _ in range(2)]
            assert await store.read_batch(1, first, count, size_max) in looks
            assert None in looks
        assert sorted((store.read_resident(1, 7), store.read_resident(1, 7)), key=bool) == [None, bodies[7]]
        await promises.add(store, 1, {300: body(1, 300)})
        looks = [store.read_batch_resident(1, 295, 10, 1 << 20) for _ in range(2)]
        assert records[295 * size :] in looks  # up to what the cache has
        for ledger_id, entry_id in ((1, 301), (1, 1 << 50), (1, -1), (2, 0)):
            assert {store.read_resident(ledger_id, entry_id) for _ in range(2)} == {None}

    assert machine().live(script)


def test_a_log_that_is_removed_is_closed_for_the_loop_too(machine: Any, body: Body) -> None:
    made = machine()

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {0: body(1, 0)})
        await store.checkpoint()
        readers, before = store._open().readers, list(made.disk.open_files)
        assert store.read_resident(1, 0) is None
        await readers.forget_log(0)  # while a worker opens it
        await asyncio.sleep(0)
        assert store.read_resident(1, 0) is None
        await log_opened(store)
        assert body(1, 0) in (store.read_resident(1, 0), store.read_resident(1, 0))
        await readers.forget_log(0)
        assert list(made.disk.open_files) == before
        assert store.read_resident(1, 0) is None

    assert made.live(script)


def test_a_batch_goes_over_many_pages(machine: Any, body: Body) -> None:
    async def script(store: LedgerStore, promises: Any) -> None:
        bodies = {entry: body(1, entry) for entry in range(300)}  # a page has 8 slots
        await promises.add(store, 1, bodies)
        await store.checkpoint()
        records = Records.of(list(bodies.values())).data
        assert await store.read_batch(1, 0, 1000, 1 << 20) == records
        size = len(records) // 300
        assert await store.read_batch(1, 100, 100, 1 << 20) == records[100 * size : 200 * size]
        assert await store.read_batch(1, 3, 1000, 50 * size) == records[3 * size : 53 * size]

    assert machine().live(script)


def test_an_entry_that_was_added_again_is_read_as_it_is_now(machine: Any, body: Body) -> None:
    """Alone or among others, whether its older copy is on disk or in the cache."""

    async def script(store: LedgerStore, promises: Any) -> None:
        now = {entry: body(1, entry) for entry in range(20)}
        await promises.add(store, 1, now)
        await store.checkpoint()
        for entry in (4, 9):
            now[entry] = body(1, entry) + b"again"
            await promises.add(store, 1, {entry: now[entry]})
        assert await read_all(store) == list(now.values())
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(20, 30)})
        now |= {entry: body(1, entry) for entry in range(20, 30)}
        now[25] += b"once more"
        await promises.add(store, 1, {25: now[25]})
        assert await read_all(store) == list(now.values())
        await store.checkpoint()
        assert await read_all(store) == list(now.values())

    async def read_all(store: LedgerStore) -> list[bytes]:
        found: list[bytes] = []
        while True:
            try:
                batch = await store.read_batch(1, len(found), 100, 1 << 20)
            except EntryNotFound:
                return found
            at = 0
            while at < len(batch):
                end = at + 4 + int.from_bytes(batch[at : at + 4], "big")
                found.append(batch[at + 4 : end])
                at = end

    assert machine().live(script)


def test_the_lac_is_the_greatest_of_entries_and_explicit_ones(machine: Any, body: Body) -> None:
    made = machine()

    async def write(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(5)})
        await promises.write_lac(store, 2, 7)
        await promises.write_lac(store, 2, 6)
        assert [await store.last_add_confirmed(ledger) for ledger in (1, 2)] == [3, 7]
        assert await store.read_lac(1) == (None, body(1, 4))
        assert await store.read_lac(2) == (promises.lacs[2][1], None)

    async def read(store: LedgerStore, promises: Any) -> None:
        """[F-22, R-33] Straight after the restart, before anything else has opened the ledgers."""
        assert await store.read_lac(2) == (promises.lacs[2][1], None)
        assert [await store.last_add_confirmed(ledger) for ledger in (1, 2)] == [3, 6]

    assert made.live(write)
    assert made.live(read)


def test_watchers_are_called_once_when_the_lac_passes(machine: Any, body: Body) -> None:
    async def script(store: LedgerStore, promises: Any) -> None:
        calls: list[str] = []
        await promises.add(store, 1, {0: body(1, 0), 1: body(1, 1)})
        store.watch_lac(1, -1, lambda: calls.append("already"))
        store.watch_lac(1, 0, lambda: calls.append("next"))
        store.watch_lac(1, 5, lambda: calls.append("fenced"))
        store.watch_lac(1, 0, lambda: calls.append("cancelled"))()
        await promises.add(store, 1, {2: body(1, 2)})
        assert calls == ["already", "next"]
        store.watch_lac(1, 2, lambda: calls.append("explicit"))
        await promises.write_lac(store, 1, 3)
        await promises.fence(store, 1)
        assert calls == ["already", "next", "explicit", "fenced"]

    assert machine().live(script)


# -- fences and keys -----------------------------------------------------------------------------------------------


def test_a_fence_is_for_ever_and_stops_only_ordinary_adds(machine: Any, body: Body) -> None:
    made = machine()

    async def script(store: LedgerStore, promises: Any) -> None:
        await add(store, 1, body(1, 0))
        await asyncio.gather(fence(store, 1), fence(store, 1))
        await check(store, promises)

    async def check(store: LedgerStore, promises: Any) -> None:
        with pytest.raises(LedgerFenced):
            await add(store, 1, body(1, 1))
        await add(store, 1, body(1, 0), is_recovery=True)
        await fence(store, 1)
        with pytest.raises(Unauthorized):
            await fence(store, 1, b"another")

    assert made.live(script)
    assert made.live(check)


def test_fencing_an_unknown_ledger_creates_it(machine: Any, body: Body) -> None:
    async def script(store: LedgerStore, promises: Any) -> None:
        await fence(store, 9)
        with pytest.raises(EntryNotFound):
            await store.read(9, -1)
        with pytest.raises(LedgerFenced):
            await add(store, 9, body(9, 0))
        assert await store.last_add_confirmed(9) == -1

    assert machine().live(script)


def test_a_fence_is_answered_when_it_is_durable_also_the_second_time(machine: Any) -> None:
    """[R-5, F-42]"""
    made = machine()

    async def script(store: LedgerStore, promises: Any) -> None:
        record = journal_format.pack_fence(5)
        answers = []
        for name in ("first", "second"):
            store.fence(5, KEY, lambda error, name=name: answers.append((name, record in durable_journal(made))))
        await fence(store, 5)
        assert answers == [("first", True), ("second", True)]

    assert made.live(script)


def journals(made: Any) -> list[str]:
    """Paths of the first journal's files."""
    return [path for path in made.disk.files("/journal0") if path.endswith(".txn")]


def durable_journal(made: Any) -> bytes:
    return b"".join(made.disk.files("/journal", is_durable=True).values())


def test_nothing_is_acknowledged_before_it_is_durable(machine: Any, body: Body) -> None:
    """[R-14, F-8] Over rolls, with two journals, with groups of all sizes."""
    made = machine(journals=2, journal_size_max=1 << 14, journal_group_size_max=1 << 12)
    early: list[str] = []

    async def script(store: LedgerStore, promises: Any) -> None:
        random = Random(1)
        waits = []
        for number in range(150):
            ledger_id = number % 3
            records = Records.of([body(ledger_id, number, size=random.choice((1, 300, 6000)))])
            future, done = outcome()

            def check(error: BaseException | None, data: bytes = records.data, done: Any = done) -> None:
                if data not in durable_journal(made):
                    early.append("acknowledged too early")
                done(error)

            add_to(store, ledger_id, KEY, [number], records, -1, is_recovery=False, is_deferred_sync=False, done=check)
            waits.append(future)
            if random.random() < 0.3:
                await asyncio.sleep(random.random() / 1000)
        forced, done = outcome()
        store.force(0, done)
        await asyncio.gather(*waits, forced)
        assert len(journals(made)) > 5

    assert made.live(script)
    assert not early


def test_keys_are_compared_after_a_restart_too(machine: Any, body: Body) -> None:
    """[F-23]"""
    made = machine()

    async def write(store: LedgerStore, promises: Any) -> None:
        await add(store, 1, body(1, 0))
        for key in (b"", b"wrong", KEY + b"k"):
            with pytest.raises(Unauthorized):
                await add(store, 1, body(1, 1), key)
        await add(store, 2, body(2, 0), bytes(20))
        await add(store, 3, body(3, 0), b"")

    async def read(store: LedgerStore, promises: Any) -> None:
        with pytest.raises(Unauthorized):
            await add(store, 1, body(1, 1), b"wrong")
        with pytest.raises(Unauthorized):
            await fence(store, 1, b"")
        with pytest.raises(Unauthorized):
            store.write_lac(1, b"wrong", 0, bytes(20), lambda error: None)
        for ledger_id in (2, 3):  # the first real key is taken over
            await add(store, ledger_id, body(ledger_id, 1), b"real")
            with pytest.raises(Unauthorized):
                await add(store, ledger_id, body(ledger_id, 2), b"other")

    assert made.live(write)
    assert made.live(read, stops=False)
    made.crash(NOTHING_SURVIVES)

    async def read_again(store: LedgerStore, promises: Any) -> None:
        with pytest.raises(Unauthorized):
            await fence(store, 2, b"other")
        await fence(store, 2, b"real")

    assert made.live(read_again)


def test_a_ledger_without_a_key_in_journal_and_index_comes_back_fenced(machine: Any, body: Body) -> None:
    """[F-13]"""
    made = machine()
    data = journal_format.pack_header() + Records.of([body(1, 0), body(1, 1)]).data + journal_format.pack_fence(2)
    made.disk.put("/journal0/current/5.txn", data.ljust(4096, b"\0"))

    async def check(store: LedgerStore, promises: Any) -> None:
        assert [await store.read(1, entry) for entry in (0, 1)] == [body(1, 0), body(1, 1)]
        for ledger_id in (1, 2):
            with pytest.raises(LedgerFenced):
                await add(store, ledger_id, body(ledger_id, 2))
        await fence(store, 1)

    assert made.live(check)
    assert made.live(check)


def test_calls_for_a_ledger_that_is_being_read_keep_their_order(machine: Any, body: Body) -> None:
    made = machine()

    async def write(store: LedgerStore, promises: Any) -> None:
        await add(store, 1, body(1, 0))

    async def race(store: LedgerStore, promises: Any) -> None:
        """An add accepted before a fence is seen by the read that comes with the fence."""
        tasks = [asyncio.ensure_future(each) for each in (add(store, 1, body(1, 1)), fence(store, 1))]
        await asyncio.sleep(0)
        reading = asyncio.ensure_future(store.read(1, -1))
        await asyncio.sleep(0)
        late = asyncio.ensure_future(add(store, 1, body(1, 2)))
        forced, done = outcome()
        store.force(1, done)
        assert await reading == body(1, 1)
        await asyncio.gather(*tasks, forced)
        with pytest.raises(LedgerFenced):
            await late

    assert made.live(write)
    assert made.live(race)


# -- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"XKLE", b"BKLE\0\0\0\2", b"BKLE\0\0\0\1\xff\xff\xff\xff"])
@pytest.mark.parametrize("has_catalog", [True, False])
def test_an_unreadable_header_is_never_an_empty_one(machine: Any, body: Body, damage: bytes, has_catalog: bool) -> None:
    """[F-43] With the catalog it is known what it was; without, nothing is denied until the logs were read."""
    made = machine()

    async def write(store: LedgerStore, promises: Any) -> None:
        await add(store, 1, body(1, 0))
        await add(store, 2, body(2, 0))

    async def check(store: LedgerStore, promises: Any) -> None:
        if not has_catalog:
            for attempt in (store.read(1, 1), store.read(1, -1), store.read_lac(1), store.list_entries(1)):
                with pytest.raises(DataUnknown):
                    await attempt  # type: ignore[misc]
            with pytest.raises(DataUnknown):
                await add(store, 1, body(1, 1))
        assert await store.read(2, 0) == body(2, 0)
        await asyncio.sleep(1)
        await check_again(store, promises)

    async def check_again(store: LedgerStore, promises: Any) -> None:
        assert await store.read(1, 0) == body(1, 0)
        assert await store.list_entries(1) == [range(1)]
        with pytest.raises(EntryNotFound):
            await store.read(1, 1)
        if not has_catalog:
            with pytest.raises(LedgerFenced):
                await add(store, 1, body(1, 1), b"")
        else:
            with pytest.raises(Unauthorized):
                await add(store, 1, body(1, 1), b"another")

    assert made.live(write)
    path = "/ledgers0/current/0/1/1.idx"
    data = made.disk.files()[path]
    made.disk.put(path, damage + data[len(damage) :])
    if not has_catalog:
        made.disk.unlink("/ledgers0/current/index.catalog")
    assert made.live(check)
    assert made.live(check_again)


def test_a_header_cut_off_by_a_crash_is_made_again_from_the_journal_and_fenced(machine: Any, body: Body) -> None:
    """[F-18]"""
    made = machine()

    async def write(store: LedgerStore, promises: Any) -> None:
        await add(store, 1, body(1, 0))

    async def check(store: LedgerStore, promises: Any) -> None:
        assert await store.read(1, 0) == body(1, 0)
        with pytest.raises(DataUnknown):
            await add(store, 1, body(1, 1))
        await asyncio.sleep(1)
        assert await store.read(1, 0) == body(1, 0)
        with pytest.raises(LedgerFenced):
            await add(store, 1, body(1, 1))

    assert made.live(write, stops=False)
    made.crash(PROCESS_DIES)
    made.disk.put("/ledgers0/current/0/1/1.idx", b"BKLE\0\0\0\1")
    assert made.live(check)


def test_an_io_error_while_reading_is_never_a_missing_entry(machine: Any, body: Body) -> None:
    """[R-3] And the next attempt may succeed."""
    made = machine()

    async def write(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(20)})

    async def check(store: LedgerStore, promises: Any) -> None:
        for path in (".idx", ".idx", ".log"):
            made.disk.fail("pread", path, lambda: OSError(5, "Input/output error"))
            with pytest.raises(ReadFailed):
                await store.read(1, 19)
        assert await store.read(1, 19) == body(1, 19)

    assert made.live(write)
    assert made.live(check)


@pytest.mark.parametrize("operation", ["pwritev", "fdatasync", "allocate"])
def test_after_a_failure_of_the_journal_nobody_is_answered(machine: Any, body: Body, operation: str) -> None:
    made = machine()

    async def script(store: LedgerStore, promises: Any) -> None:
        await add(store, 1, body(1, 0))
        made.disk.fail(operation, ".txn", lambda: OSError(5, "Input/output error"))
        answers: list[object] = []
        for entry_id in range(1, 4):
            record = Records.of([body(1, entry_id, size=5000)])
            add_to(store, 1, KEY, [entry_id], record, 0, is_recovery=False, is_deferred_sync=False, done=answers.append)
        store.fence(1, KEY, answers.append)
        await asyncio.sleep(1)
        assert not answers
        assert len(made.failures) == 1
        with pytest.raises(StorageError):
            await add(store, 1, body(1, 9))
        assert not store.is_writable
        await store.stop()

    assert made.live(script)
    assert "/ledgers0/current/DIRTY" in made.disk.files()


def test_a_failed_sync_of_log_or_index_stops_the_bookie(machine: Any, body: Body) -> None:
    for operation, path in (("fdatasync", ".log"), ("fsync", ".idx"), ("sync_directory", "/0/1")):
        made = machine(operation)

        async def script(store: LedgerStore, promises: Any, made: Any = made, fault: Any = (operation, path)) -> None:
            await promises.add(store, 1, {0: body(1, 0)})
            made.disk.fail(*fault, lambda: OSError(5, "Input/output error"))
            with pytest.raises(StorageError):
                await store.checkpoint()

        assert made.live(script, stops=False)
        made.disk.faults.clear()
        made.crash(NOTHING_SURVIVES)
        made.check()


# -- room ----------------------------------------------------------------------------------------------------------


def test_what_was_received_is_taken_however_full_the_cache_is(machine: Any, body: Body) -> None:
    """Three times the cache within one turn of the loop, so no flush can end meanwhile."""
    made = machine()

    async def script(store: LedgerStore, promises: Any) -> None:
        adding = [
            asyncio.ensure_future(promises.add(store, 1, {entry_id: body(1, entry_id, size=100_000)}))
            for entry_id in range(30)
        ]
        await asyncio.sleep(0)
        assert store.is_congested
        assert store.stats()["write_cache_size"] > 30 * 100_000
        calm = asyncio.Event()
        store.when_uncongested(calm.set)
        await asyncio.gather(*adding)
        await calm.wait()
        await store.checkpoint()
        await promises.check(store)

    assert made.live(script)


def test_congestion_pauses_then_refuses_and_ends(machine: Any, body: Body) -> None:
    made = machine()

    async def script(store: LedgerStore, promises: Any) -> None:
        made.disk.fail("open", ".log", lambda: DiskFull("no space"), count=1_000)
        modes: list[bool] = []
        store.on_mode_change(lambda: modes.append(store.is_writable))
        entry_id = 0
        resumed: list[int] = []
        while not store.is_congested:
            await promises.add(store, 1, {entry_id: body(1, entry_id, size=100_000)}, is_recovery=True)
            entry_id += 1
        store.when_uncongested(lambda: resumed.append(entry_id))
        is_refused = False
        while not is_refused:
            try:
                await promises.add(store, 1, {entry_id: body(1, entry_id, size=100_000)}, is_recovery=True)
                entry_id += 1
            except BookieBusy:
                is_refused = True
        del promises.submitted[1, entry_id]
        await asyncio.sleep(1)
        assert modes == [False]
        with pytest.raises(BookieReadOnly):
            await add(store, 1, body(1, entry_id))
        assert store.read_resident(1, 0) == body(1, 0, size=100_000)
        made.disk.faults.clear()
        await asyncio.sleep(3)
        assert resumed
        assert modes == [False, True]
        await store.checkpoint()
        await promises.check(store)

    assert made.live(script)


def test_a_full_disk_is_read_only_until_there_is_room(machine: Any, body: Body) -> None:
    made = machine()
    made.disk.capacity = 1 << 20

    async def script(store: LedgerStore, promises: Any) -> None:
        modes: list[bool] = []
        store.on_mode_change(lambda: modes.append(store.is_writable))
        await promises.add(store, 1, {0: body(1, 0)})
        made.disk.put("/ledgers0/other", bytes((1 << 20) - (40 << 10)))
        await asyncio.sleep(11)
        assert modes == [False]
        with pytest.raises(BookieReadOnly):
            await add(store, 1, body(1, 1))
        with pytest.raises(BookieReadOnly):
            store.write_lac(1, KEY, 0, bytes(20), lambda error: None)
        await promises.add(store, 1, {1: body(1, 1)}, is_recovery=True)
        await promises.fence(store, 1)
        made.disk.unlink("/ledgers0/other")
        await asyncio.sleep(11)
        assert modes == [False, True]
        total, free = store.usage()
        assert total == 1 << 20
        assert free > total // 2

    assert made.live(script)
    made.check()


def test_a_disk_that_fills_up_in_the_middle_of_a_flush_loses_nothing(machine: Any, body: Body) -> None:
    """[F-16]"""
    for skip in range(12):
        made = machine(skip)

        async def script(store: LedgerStore, promises: Any, made: Any = made, skip: int = skip) -> None:
            for ledger_id in range(1, 7):
                await promises.add(store, ledger_id, {entry: body(ledger_id, entry, size=900) for entry in range(12)})
            made.disk.fail("", "/ledgers0", lambda: DiskFull("no space"), skip=skip * 2, count=6, is_partial=True)
            try:
                await store.checkpoint()
            except (DiskFull, StorageError):
                await asyncio.sleep(3)
            made.disk.faults.clear()

        made.live(script, stops=False)
        made.disk.faults.clear()
        made.crash(LOSSES[skip % len(LOSSES)])
        made.check()


def test_pages_and_ledgers_beyond_the_budget(machine: Any, body: Body) -> None:
    made = machine(index_cache_size=4096, index_page_size=256, write_cache_size=64 << 10, open_files_max=8)

    async def script(store: LedgerStore, promises: Any) -> None:
        for start in range(0, 200, 20):
            for ledger_id in range(12):
                promises.add(store, ledger_id, {entry: body(ledger_id, entry) for entry in range(start, start + 20)})
            await promises.add(store, 12, {start * 1000: body(12, start * 1000)})
            await room(store)
        await promises.check(store)
        stats = store.stats()
        assert stats["flushes"] > 3
        assert stats["index_dirty_size"] + stats["index_clean_size"] < 16_000

    assert made.live(script)
    made.check()


def test_a_batch_to_new_ledgers_to_ledgers_on_disk_and_to_a_fenced_one(machine: Any, body: Body) -> None:
    """Ledgers on disk are loaded together; what arrives meanwhile waits behind, and each is decided by itself.

    The journal has the keys of the new ones (F-7).
    """
    made = machine(journals=2)

    async def before(store: LedgerStore, promises: Any) -> None:
        await promises.add_mixed(store, {(ledger_id, 0): body(ledger_id, 0) for ledger_id in range(30)})
        await promises.fence(store, 7)

    async def after(store: LedgerStore, promises: Any) -> None:
        open_ids = [ledger_id for ledger_id in range(60) if ledger_id != 7]
        outcomes: asyncio.Queue[tuple[list[int], type]] = asyncio.Queue()
        adds = Adds.of_many([(ledger_id, 1, 0) for ledger_id in (7, 7, 61)], [body(7, 1), body(7, 1), body(61, 1)])
        first = asyncio.create_task(promises.add_mixed(store, {(id_, 1): body(id_, 1) for id_ in open_ids}))
        await asyncio.sleep(0)
        assert not store.add(
            adds,
            KEY,
            is_recovery=False,
            is_deferred_sync=False,
            accepted=lambda size: None,
            done=lambda part, error: outcomes.put_nowait((list(part.ledger_ids), type(error))),
        )
        await promises.add_mixed(store, {(id_, 2): body(id_, 2) for id_ in open_ids})
        await first
        decided = [await outcomes.get() for _ in range(3)]
        assert sorted(decided, key=str) == [([61], type(None)), ([7], LedgerFenced), ([7], LedgerFenced)]
        await promises.check(store)

    async def replayed(store: LedgerStore, promises: Any) -> None:
        for ledger_id in range(30, 60):
            with pytest.raises(Unauthorized):
                await add(store, ledger_id, body(ledger_id, 3), b"o" * 20)
        await promises.check(store)

    assert made.live(before)
    assert made.live(after, stops=False)
    made.crash(NOTHING_SURVIVES)
    assert made.live(replayed)
    made.check()


def test_ids_and_keys_out_of_range_are_refused(machine: Any, body: Body) -> None:
    async def script(store: LedgerStore, promises: Any) -> None:
        for ledger_id, entry_id in ((-1, 0), (1, -5), (1, 1 << 41)):
            with pytest.raises(InvalidArgument):
                await add(store, ledger_id, body(1, entry_id) if entry_id >= 0 else struct.pack(">qqq", 1, entry_id, 0))
        with pytest.raises(InvalidArgument):
            await add(store, 1, body(1, 0), b"k" * 2000)
        with pytest.raises(InvalidArgument):
            store.write_lac(1, KEY, 0, bytes(15), lambda error: None)

    assert machine().live(script)


# -- start, stop, checkpoints --------------------------------------------------------------------------------------


def test_a_checkpoint_moves_the_mark_and_retires_journals(machine: Any, body: Body) -> None:
    made = machine(journal_size_max=1 << 14, journal_backups_max=2)

    async def script(store: LedgerStore, promises: Any) -> None:
        for entry_id in range(40):
            await promises.add(store, 1, {entry_id: body(1, entry_id, size=3000)})
        before = journals(made)
        await store.checkpoint()
        after = journals(made)
        assert len(before) > 6
        assert after == before[-3:]
        mark = log_mark_format.parse(made.disk.files()["/ledgers0/current/lastMark"])
        assert mark is not None
        assert after[-1].endswith(journal_format.file_name(mark.journal_id))

    assert made.live(script)


def test_without_a_mark_no_journal_is_deleted(machine: Any, body: Body) -> None:
    """[F-12]"""
    made = machine(ledgers=2, journal_size_max=1 << 14, journal_backups_max=0)

    async def script(store: LedgerStore, promises: Any) -> None:
        for entry_id in range(20):
            await promises.add(store, 1, {entry_id: body(1, entry_id, size=3000)})
        before = journals(made)
        made.disk.fail("open", "lastMark", lambda: DiskFull("no space"), count=2)
        with pytest.raises(DiskFull):
            await store.checkpoint()
        assert journals(made) == before
        made.disk.fail("open", "lastMark", lambda: DiskFull("no space"), count=1)
        await store.checkpoint()  # one copy is enough
        assert len(journals(made)) == 1

    assert made.live(script)
    made.check()


def test_checkpoints_come_by_themselves(machine: Any, body: Body) -> None:
    made = machine(checkpoint_interval_ms=1000)

    async def by_time(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {0: body(1, 0)})
        await asyncio.sleep(1.5)
        assert store.stats()["checkpoints"] == 2
        await asyncio.sleep(5)
        assert store.stats()["checkpoints"] == 2  # nothing to do

    assert made.live(by_time)
    made = machine(checkpoint_journal_size=1 << 20, write_cache_size=256 << 10)

    async def by_volume(store: LedgerStore, promises: Any) -> None:
        for entry_id in range(40):
            await promises.add(store, 1, {entry_id: body(1, entry_id, size=50_000)})
            await room(store)
        await asyncio.sleep(1)
        assert store.stats()["checkpoints"] in (2, 3)

    assert made.live(by_volume)


def test_checkpoints_happen_under_a_load_that_never_ends(machine: Any, body: Body) -> None:
    """Entries arrive faster than they are flushed, so that a full generation always waits behind the one on its way."""
    made = machine(checkpoint_journal_size=1 << 20, write_cache_size=256 << 10, checkpoint_interval_ms=3_600_000)
    seen: list[tuple[int, int]] = []

    async def write(store: LedgerStore, promises: Any) -> None:
        async def one(first: int) -> None:
            for entry_id in range(first, 400, 25):
                await promises.add(store, 1, {entry_id: body(1, entry_id, size=30_000)})
                await room(store)
                seen.append((entry_id, store.stats()["checkpoints"]))

        await asyncio.gather(*map(one, range(25)))

    assert made.live(write)
    assert seen[-1][1] >= 4, "12 MB, a checkpoint after each of the first"
    files = [name for name in made.disk.files() if name.endswith(".txn")]
    assert len(files) <= 4


def test_an_orderly_stop_leaves_nothing_to_replay_and_no_dirty_mark(machine: Any, body: Body) -> None:
    made = machine(is_logging=True)

    async def write(store: LedgerStore, promises: Any) -> None:
        assert "/ledgers0/current/DIRTY" in made.disk.files()
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(9)})

    async def look(store: LedgerStore, promises: Any) -> None:
        assert store.stats()["replayed_entries"] == 0
        # Entry logs are not read by a start, however large they are.
        assert not [call for call in made.disk.log if call.path.endswith(".log") and call.operation != "list"]

    assert made.live(write)
    assert "/ledgers0/current/DIRTY" not in made.disk.files()
    assert not made.disk.open_files
    assert not made.disk.locks
    made.disk.log.clear()
    assert made.live(look)


def test_a_directory_belongs_to_one_process(machine: Any) -> None:
    """[F-1]"""
    made = machine()

    async def script(store: LedgerStore, promises: Any) -> None:
        other = LedgerStore(store._runtime, made.config, made.failures.append)
        with pytest.raises(DirectoryInUse):
            await other.start()

    assert made.live(script)


@pytest.mark.parametrize("missing", ["first", "middle", "all"])
def test_a_missing_journal_stops_the_start(machine: Any, body: Body, missing: str) -> None:
    made = machine(journal_size_max=1 << 14, journal_backups_max=0)

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {0: body(1, 0)})
        await store.checkpoint()
        for entry_id in range(40):
            await promises.add(store, 1, {entry_id: body(1, entry_id, size=3000)})

    assert made.live(script, stops=False)
    made.crash(PROCESS_DIES)
    paths = journals(made)
    for path in {"first": paths[:1], "middle": paths[3:4], "all": paths}[missing]:
        made.disk.unlink(path)
    before = made.disk.files()
    with pytest.raises(StorageError, match="acknowledged"):
        made.live(script)
    assert made.disk.files() == before
    assert not made.disk.locks
    assert not made.disk.open_files


def test_damage_in_an_older_journal_makes_what_was_in_it_unknown(machine: Any, body: Body) -> None:
    made = machine(journal_size_max=1 << 14)

    async def script(store: LedgerStore, promises: Any) -> None:
        for entry_id in range(40):
            await promises.add(store, 1, {entry_id: body(1, entry_id, size=3000)})

    async def check(store: LedgerStore, promises: Any) -> None:
        with pytest.raises(DataUnknown):
            await store.read(1, 0)
        for entry_id in range(1, 40):
            assert await store.read(1, entry_id) == body(1, entry_id, size=3000)
        for attempt in (store.read(1, 40), store.read(1, -1), store.read_lac(1), store.list_entries(1)):
            with pytest.raises(DataUnknown):
                await attempt  # type: ignore[misc]
        for ledger_id in (1, 77):  # which may have been fenced
            with pytest.raises(DataUnknown):
                await add(store, ledger_id, body(ledger_id, 50))
        with pytest.raises(DataUnknown):  # there may have been such a ledger
            await store.read(2, 0)
        assert store.has_unknown_ledgers
        await add(store, 1, body(1, 0, size=3000), is_recovery=True)
        assert await store.read(1, 0) == body(1, 0, size=3000)

    async def settle(store: LedgerStore, promises: Any) -> None:
        assert await store.settle_unknown_ledgers([1, 3]) == 1
        assert not store.has_unknown_ledgers
        await check_settled(store, promises)

    async def check_settled(store: LedgerStore, promises: Any) -> None:
        assert not store.has_unknown_ledgers
        for ledger_id in (1, 3):
            with pytest.raises(DataUnknown):
                await store.read(ledger_id, 77)
            with pytest.raises(DataUnknown):
                await add(store, ledger_id, body(ledger_id, 60))
        with pytest.raises(LedgerUnknownToBookie):
            await store.read(4, 0)

    assert made.live(script, stops=False)
    made.crash(PROCESS_DIES)
    made.disk.flip_bit(journals(made)[0], 512, 7)
    assert made.live(check, stops=False)
    made.crash(NOTHING_SURVIVES)
    assert made.live(settle, stops=False)
    made.crash(NOTHING_SURVIVES)
    assert made.live(check_settled)


CATALOG_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "header": lambda data: b"?" + data[1:],
    "hole": lambda data: data.replace(b"from byte", b"FROM byte"),
    "cut": lambda data: data[: data.find(b"from byte")],
    "cut between records": lambda data: data[: catalog_format.FILE_HEADER_SIZE],
}


@pytest.mark.parametrize("damage", [*CATALOG_DAMAGES, "removed"])
def test_a_damaged_catalog_hides_no_hole(machine: Any, body: Body, damage: str) -> None:
    """Nor does it end the limbo of a ledger whose index file is lost with it."""
    made = machine()
    catalog, index = "/ledgers0/current/index.catalog", "/ledgers0/current/0/1/1.idx"

    async def script(store: LedgerStore, promises: Any) -> None:
        for entry_id in range(3):
            await promises.add(store, 1, {entry_id: body(1, entry_id)})

    async def check(store: LedgerStore, promises: Any) -> None:
        assert store.has_unknown_ledgers
        assert list(store.limbo) == [1]
        for ledger_id, entry_id in ((1, 0), (1, 3), (2, 0)):
            with pytest.raises(DataUnknown):
                await store.read(ledger_id, entry_id)
        with pytest.raises(DataUnknown):
            await add(store, 77, body(77, 0))

    async def settle(store: LedgerStore, promises: Any) -> None:
        await check(store, promises)
        assert await store.settle_unknown_ledgers([1]) == 0

    async def check_settled(store: LedgerStore, promises: Any) -> None:
        assert not store.has_unknown_ledgers
        with pytest.raises(LedgerUnknownToBookie):
            await store.read(2, 0)
        await add(store, 77, body(77, 0))

    assert made.live(script, stops=False)
    made.crash(PROCESS_DIES)
    made.disk.flip_bit(journals(made)[0], 512, 7)
    assert made.live(check)
    made.disk.unlink(journals(made)[0])
    data = made.disk.read_bytes(catalog)
    if damage == "removed":
        made.disk.unlink(catalog)
    else:
        made.disk.put(catalog, CATALOG_DAMAGES[damage](data))
        assert made.disk.read_bytes(catalog) != data
    if made.disk.exists(index):
        made.disk.unlink(index)
    assert made.live(check, stops=False)
    made.crash(NOTHING_SURVIVES)
    assert made.live(settle)
    assert not made.disk.exists(f"/ledgers0/current/{catalog_format.HOLES_NAME}")
    assert made.live(check_settled)


def test_a_start_that_fails_can_be_repeated(machine: Any, body: Body) -> None:
    """[F-38] Also when it fails in the flush after replay."""
    made = machine()

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(9)})
        await promises.fence(store, 2)

    assert made.live(script, stops=False)
    made.crash(PROCESS_DIES)
    for operation, path in (
        ("pwritev", ".log"),
        ("fdatasync", ".log"),
        ("pwrite", ".idx"),
        ("", "lastMark"),
        ("open", "/journal"),
    ):
        made.disk.fail(operation, path, lambda: OSError(5, "Input/output error"), count=3)
        with pytest.raises((OSError, BookKeeperError)):
            made.live(script)
        made.disk.faults.clear()
        assert not made.disk.locks
    made.check()


def test_journals_and_marks_of_two_directories(machine: Any, body: Body) -> None:
    """[R-10]"""
    made = machine(journals=2, ledgers=2)

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {0: body(1, 0)})
        assert Records.of([body(1, 0)]).data in b"".join(made.disk.files("/journal1").values())
        assert Records.of([body(1, 0)]).data not in b"".join(made.disk.files("/journal0").values())

    assert made.live(script)
    names = {path for path in made.disk.files() if "lastMark" in path}
    assert names == {f"/ledgers{ledgers}/current/lastMark.{journal}" for ledgers in (0, 1) for journal in (0, 1)}


def test_an_explicit_lac_makes_an_old_header_a_new_one(machine: Any, body: Body) -> None:
    made = machine()
    header = index_format.pack_header(index_format.IndexHeader(KEY, version=0))
    made.disk.put("/ledgers0/current/0/1/1.idx", header)

    async def write(store: LedgerStore, promises: Any) -> None:
        await promises.write_lac(store, 1, 5)

    assert made.live(write)
    made.check()


def test_many_random_lives(machine: Any, body: Body) -> None:
    """Everything at once, with crashes at random moments."""
    for seed in range(25):
        random = Random(seed)
        made = machine(seed, journals=random.choice((1, 2)), journal_size_max=1 << 14, write_cache_size=128 << 10)
        made.mean_ms = random.choice((0.02, 0.5))

        async def script(store: LedgerStore, promises: Any, random: Random = random) -> None:
            await promises.check(store)
            for _ in range(random.randint(1, 40)):
                await act(store, promises, random, body)

        for life in range(4):
            if not made.live(script, crash_at=random.randint(1, 250), stops=random.random() < 0.5):
                made.crash(random.choice((*LOSSES, PROCESS_DIES)))
            elif life % 2:
                made.crash(PROCESS_DIES)
        made.crash(random.choice((*LOSSES, PROCESS_DIES)))
        made.check(lives=1)


async def act(store: LedgerStore, promises: Any, random: Random, body: Body) -> None:
    """Something that clients do, waited for or not."""
    ledger_id = random.randint(0, 5)
    first = random.randint(0, 60)
    ids = random.choice((range(first, first + 6), [first], range(first, first + 9, 4), [first + 3, first]))
    size = random.choice((10, 500, 5000))
    choice = random.random()
    if choice < 0.75:
        bodies = {entry: body(ledger_id, entry, random.randint(0, 9), size) for entry in ids}
        try:
            adding = promises.add(store, ledger_id, bodies, is_recovery=random.random() < 0.3)
        except (LedgerFenced, BookieBusy):
            return
        adding.add_done_callback(lambda future: future.cancelled() or future.exception())
    elif choice < 0.8:
        adding = promises.fence(store, ledger_id)
    elif choice < 0.9:
        adding = promises.write_lac(store, ledger_id, first)
    else:
        await store.checkpoint()
        return
    if random.random() < 0.5:
        try:
            await adding
        except LedgerFenced:
            pass
