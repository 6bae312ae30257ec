"""Garbage collection on a simulated disk: what goes, what stays, who can bring it back, and what a damaged log does."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.fakes.adds import add_to
from tests.fakes.offloaded import coming_back, forgotten
from tests.fakes.records import BOOKIE, FakeLocks, FakeRecords, Record, record

from bookies.errors import (
    BookKeeperError,
    DataUnknown,
    InvalidArgument,
    LedgerFenced,
    LedgerUnknownToBookie,
    StorageError,
)
from bookies.kernels import Records
from bookies.lab.sim.world.cluster import SimClock
from bookies.lab.sim.world.disk import LOSSES, NOTHING_SURVIVES, PROCESS_DIES
from bookies.model import BookieId, LedgerMetadata
from bookies.storage.engine.quarantine_format import QuarantineState
from bookies.storage.gc.deleted_ledgers import BATCH
from bookies.storage.index.index_format import path_of
from bookies.storage.store import LedgerStore

Body = Callable[..., bytes]
KEY = b"k" * 20
QUARANTINE_MS = 60_000
BOTH_INDEXES_BUT = {
    "test_a_deletion_whose_caller_is_cancelled_leaves_no_ledger_without_its_file",
    "test_a_collection_completes_a_deletion_that_has_failed",
}


async def put(
    store: LedgerStore, promises: Any, body: Body, ledger_ids: Any, count: int = 4, size: int = 3_000
) -> None:
    """With the usual size each ledger gets a log of its own, of which the last is not sealed."""
    for ledger_id in ledger_ids:
        await promises.add(store, ledger_id, {entry: body(ledger_id, entry, size=size) for entry in range(count)})
        await store.checkpoint()


async def collect(store: LedgerStore, *, is_forced: bool = False, with_surplus: bool = False) -> None:
    assert store.collector is not None
    await store.collector.collect(is_forced=is_forced, is_awaited=True, with_surplus=with_surplus)
    assert store.collector.steps.failure_count == 0


def logs_of(made: Any) -> list[str]:
    return [posixpath.basename(path) for path in made.disk.files() if path.endswith(".log")]


def forget(promises: Any, *ledger_ids: int) -> None:
    """Nothing is promised of deleted ledgers any more."""
    for kept in (promises.acknowledged, promises.submitted):
        for key in [key for key in kept if key[0] in ledger_ids]:
            del kept[key]
    for ledger_id in ledger_ids:
        promises.fences.pop(ledger_id, None)


async def refusal(call: Callable[[Any], None]) -> BaseException | None:
    """What a write is refused with, now or later."""
    future: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    try:
        call(future.set_result)
    except BookKeeperError as error:
        return error
    return await future


async def refusals(store: LedgerStore, body: Body, ledger_id: int) -> list[type[BaseException]]:
    """Of an ordinary add, a recovery's add, a fence, an explicit LAC."""
    entry = Records.of([body(ledger_id, 99)])

    def add(is_recovery: bool) -> Callable[[Any], None]:
        flags = {"is_recovery": is_recovery, "is_deferred_sync": False}
        return lambda done: add_to(store, ledger_id, KEY, [99], entry, 98, **flags, done=done)  # type: ignore[arg-type]

    calls: list[Callable[[Any], None]] = [
        add(False),
        add(True),
        lambda done: store.fence(ledger_id, KEY, done),
        lambda done: store.write_lac(ledger_id, KEY, 3, b"x" * 20, done),
    ]
    return [type(await refusal(call)) for call in calls]


@pytest.fixture
def small(machine: Any) -> Callable[..., Any]:
    """A machine whose entry logs are small and whose collection only runs when it is asked to."""

    def make(seed: object = 0, **settings: object) -> Any:
        chosen: dict[str, object] = {
            "entry_log_size_max": 1 << 14,
            "gc_interval_ms": 1 << 40,
            "gc_quarantine_ms": QUARANTINE_MS,
        }
        return machine(seed, **(chosen | settings))

    return make


def test_a_deleted_ledger_goes_after_its_quarantine(small: Any, body: Body) -> None:
    made, records = small(), FakeRecords.of(1, 2)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await put(store, promises, body, [1, 2])
        before = logs_of(made)
        records.delete(1)
        await collect(store)
        assert await store.read(1, 3) == body(1, 3, size=3_000)
        assert await refusals(store, body, 1) == [LedgerFenced, StorageError, DataUnknown, DataUnknown]
        await asyncio.sleep(QUARANTINE_MS / 1000)
        assert await store.read(1, 3) == body(1, 3, size=3_000)
        await collect(store)
        with pytest.raises(LedgerUnknownToBookie):
            await store.read(1, 3)
        assert await refusals(store, body, 1) == [LedgerFenced, StorageError, DataUnknown, DataUnknown]
        assert list(store.ledger_ids()) == [2]
        assert not [path for path in made.disk.files() if path.endswith("/1.idx")]
        assert set(logs_of(made)) < set(before)
        forget(promises, 1)
        await promises.check(store)

    async def later(store: LedgerStore, promises: Any) -> None:
        assert list(store.ledger_ids()) == [2]
        assert await refusals(store, body, 1) == [LedgerFenced, StorageError, DataUnknown, DataUnknown]

    assert made.live(script, stops=False)
    made.crash(NOTHING_SURVIVES)
    assert made.live(later)
    made.check()


def test_a_wall_clock_that_is_set_forward_ends_no_quarantine(
    small: Any, body: Body, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, records, true_ms, ahead_ms = small(), FakeRecords.of(1, 2), SimClock.wall_ms, [0]
    monkeypatch.setattr(SimClock, "wall_ms", lambda clock: true_ms(clock) + ahead_ms[0])

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await put(store, promises, body, [1, 2])
        records.delete(1)
        await collect(store)
        ahead_ms[0] = 10 * QUARANTINE_MS
        await collect(store)
        assert list(store.ledger_ids()) == [1, 2]

    async def later(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await collect(store)
        assert list(store.ledger_ids()) == [1, 2]
        await asyncio.sleep(min(QUARANTINE_MS, 3_600_000) / 1000)
        await collect(store)
        assert list(store.ledger_ids()) == [2]

    assert made.live(script)
    assert made.live(later)


def test_nothing_goes_on_one_proof(small: Any, body: Body) -> None:
    """[F-31] A scan that misses a ledger, a record that cannot be read, a scan that breaks off, another cluster."""
    made = small(gc_quarantine_ms=0)
    records = FakeRecords.of(*range(1, 9))

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE, "cluster")
        await put(store, promises, body, range(1, 9))
        records.unlisted = {1, 2, 8}
        await collect(store)
        assert sorted(set(records.reads)) == [1, 2, 8]
        records.unlisted = set()
        records.delete(3, 7)
        records.unreadable = {3, 7}
        await collect(store)
        records.unreadable = set()
        records.breaks_after = 1
        assert store.collector is not None
        await store.collector.collect(is_forced=True, is_awaited=True)
        records.breaks_after = None
        for records.instance in ("another", None):
            await store.collector.collect(is_forced=True, is_awaited=True)
        assert store.collector.steps.failure_count == 3
        assert sorted(store.ledger_ids()) == list(range(1, 9))
        records.instance = "cluster"
        await store.collector.collect(is_forced=False, is_awaited=True)
        assert sorted(store.ledger_ids()) == [1, 2, 4, 5, 6, 8]

    assert made.live(script)


def test_a_record_that_comes_back_while_others_are_deleted_counts(small: Any, body: Body) -> None:
    """Deletions are in batches. The last one is proven when the others are over."""
    made, last = small(gc_quarantine_ms=0), BATCH
    records = FakeRecords.of()

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await asyncio.gather(*(promises.add(store, each, {0: body(each, 0)}) for each in range(last + 1)))
        store._open().removals.on_deleted = lambda _: records.ledgers.setdefault(last, record(last))
        await collect(store, is_forced=True)
        assert list(store.ledger_ids()) == [last]

    assert made.live(script)


def test_many_at_once_wait_for_an_operator(small: Any, body: Body) -> None:
    made = small(gc_quarantine_ms=0)
    records = FakeRecords.of(*range(300))

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await asyncio.gather(*(promises.add(store, each, {0: body(each, 0)}) for each in range(300)))
        records.delete(*range(100, 250))
        await collect(store)
        assert store.collector is not None
        assert "bk bookie gc --force" in str(store.collector.space()["alarm"])
        assert len(list(store.ledger_ids())) == 300
        await collect(store, is_forced=True)
        assert store.collector.space()["alarm"] is None
        assert len(list(store.ledger_ids())) == 150
        forget(promises, *range(100, 250))
        await promises.check(store)

    assert made.live(script)
    made.check()


def test_a_ledger_comes_back_from_quarantine(small: Any, body: Body) -> None:
    """By an operator, who pins it; by the next run, when its metadata is there; at once, when somebody needs it."""
    made, records = small(), FakeRecords.of(1, 2, 3, 4)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        assert store.collector is not None
        await put(store, promises, body, [1, 2, 3, 4])
        records.delete(1, 2, 3, 4)
        await collect(store)
        await store.collector.undelete(1)
        records.ledgers |= {2: record(2), 3: record(3)}
        assert await refusals(store, body, 3) == [LedgerFenced, StorageError, DataUnknown, DataUnknown]
        await asyncio.sleep(1)
        await promises.fence(store, 3)
        assert store.collector.space()["ledgers_in_quarantine"] == 2
        await collect(store)
        await promises.fence(store, 2)
        await asyncio.sleep(QUARANTINE_MS / 1000)
        await collect(store)
        assert sorted(store.ledger_ids()) == [1, 2, 3]
        await promises.add(store, 1, {50: body(1, 50)})
        for ledger_id in (4, 77):
            with pytest.raises(InvalidArgument):
                await store.collector.undelete(ledger_id)
        with pytest.raises(InvalidArgument, match="not in quarantine"):
            await store.collector.undelete(3)
        forget(promises, 4)

    assert made.live(script, stops=False)
    made.crash(NOTHING_SURVIVES)
    made.check()


def test_ledgers_without_a_record_are_listed_with_the_rest_of_their_quarantine(small: Any, body: Body) -> None:
    made, records = small(), FakeRecords.of(1, 2, 3, 4)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        assert store.collector is not None
        await put(store, promises, body, [1, 2, 3, 4])
        assert await store.collector.orphans() == []
        records.delete(1, 2)
        await collect(store)
        records.delete(3)
        await store.collector.undelete(2)
        rows = await store.collector.orphans()
        assert [(row["ledger"], row["state"], row["left_ms"]) for row in rows] == [
            (1, "quarantined", QUARANTINE_MS),
            (2, "pinned", None),
            (3, "found", None),
        ]
        await asyncio.sleep(QUARANTINE_MS / 2000)
        assert [row["left_ms"] for row in await store.collector.orphans()] == [QUARANTINE_MS // 2, None, None]
        forget(promises, 1, 3)

    assert made.live(script, stops=False)


def test_a_closed_ledger_that_moved_elsewhere_goes_and_may_come_again(small: Any, body: Body) -> None:
    made, records = small(gc_quarantine_ms=0, gc_surplus_ms=5_000), FakeRecords.of(1, 2, 3)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await put(store, promises, body, [1, 2, 3])
        await store.checkpoint()
        records.ledgers |= {1: record(1, "b2", is_closed=True), 2: record(2, "b2")}
        await collect(store)
        assert sorted(store.ledger_ids()) == [1, 2, 3]
        await asyncio.sleep(5)
        await collect(store)
        assert sorted(store.ledger_ids()) == [2, 3]
        forget(promises, 1)
        records.ledgers[1] = record(1, is_closed=True)
        await promises.add(store, 1, {0: body(1, 0, version=1)}, is_recovery=True)
        await collect(store)

    assert made.live(script, stops=False)
    made.crash(NOTHING_SURVIVES)
    made.check()


def test_what_no_record_names_goes_at_once_when_somebody_asks_for_it(small: Any, body: Body) -> None:
    """By default none of it ever goes. Of ledgers 1 to 4, all closed, 2 is being repaired, 3 is named again just when
    its lock is taken, and 4 is named."""
    made, records = small(), FakeRecords.of(1, 2, 3, 4)
    locks = records.recovery

    def repaired(ledger_id: int) -> None:
        if ledger_id == 3:
            records.ledgers[3] = record(3, is_closed=True)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await put(store, promises, body, [1, 2, 3, 4])
        records.ledgers |= {each: record(each, "b2", is_closed=True) for each in (1, 2, 3)}
        records.ledgers[4] = record(4, is_closed=True)
        locks.on_lock = repaired
        await collect(store, is_forced=True)
        assert sorted(store.ledger_ids()) == [1, 2, 3, 4]
        locks.held = {2}
        before = logs_of(made)
        await collect(store, with_surplus=True)
        assert sorted(store.ledger_ids()) == [2, 3, 4]
        assert len(logs_of(made)) < len(before), "and its bytes"
        assert not locks.mine
        forget(promises, 1)
        for each in (2, 3):  # Nobody refuses their copies.
            await promises.add(store, each, {9: body(each, 9)}, is_recovery=True)
        await promises.add(store, 1, {0: body(1, 0, version=1)}, is_recovery=True)  # It may come again.

    assert made.live(script, stops=False)
    made.crash(NOTHING_SURVIVES)
    made.check()


def test_a_copy_that_arrives_while_its_lock_is_lost_is_not_deleted(small: Any, body: Body) -> None:
    """The store ends the bookie's session after the check of ledger 1; a repair takes the lock over, and copies the
    ledger here. Either the bookie refuses that, or it keeps what it has acknowledged."""
    made, records = small(), FakeRecords.of(1, 2)
    current, locks = records.current_ledgers, records.recovery

    async def script(store: LedgerStore, promises: Any) -> None:
        async def looked_up(ledger_ids: Sequence[int]) -> list[Record | None]:
            found = await current(ledger_ids)
            if ledger_ids == [2] and 1 in locks.mine:
                locks.mine.clear()
                with contextlib.suppress(StorageError):
                    await promises.add(store, 1, {9: body(1, 9)}, is_recovery=True)
                    records.ledgers[1] = record(1, is_closed=True)
            return found

        records.current_ledgers = looked_up  # type: ignore[method-assign]
        store.collect(records, BOOKIE)
        await put(store, promises, body, [1, 2])
        records.ledgers |= {each: record(each, "b2", is_closed=True) for each in (1, 2)}
        await collect(store, with_surplus=True)
        gone = [each for each in (1, 2) if not records.ledgers[each].metadata.names(BOOKIE)]
        assert 2 in gone
        assert sorted(store.ledger_ids()) == [each for each in (1, 2) if each not in gone]
        forget(promises, *gone)

    assert made.live(script, stops=False)
    made.crash(NOTHING_SURVIVES)
    made.check()


def test_a_collection_that_is_interrupted_leaves_no_quarantine(small: Any, body: Body) -> None:
    """The store does not answer the request for locks, and the bookie ends: repairs are accepted afterwards."""
    made, records = small(gc_quarantine_ms=86_400_000), FakeRecords.of(1, 2)
    asked = asyncio.Event()

    class Silent(FakeLocks):
        async def lock(self, ledger_id: int, owner: str, *, needs_mark: bool) -> int | None:
            asked.set()
            await asyncio.Event().wait()
            return None

    async def interrupted(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await put(store, promises, body, [1, 2])
        records.ledgers |= {each: record(each, "b2", is_closed=True) for each in (1, 2)}
        records.recovery = Silent()
        collecting = asyncio.create_task(collect(store, with_surplus=True))
        await asyncio.wait_for(asked.wait(), 60)
        assert await refusals(store, body, 1) == [LedgerFenced, StorageError, DataUnknown, DataUnknown]
        collecting.cancel()

    async def later(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {9: body(1, 9)}, is_recovery=True)

    made.live(interrupted)
    made.live(later)
    made.check()


def test_what_somebody_repairs_is_not_deleted_here_meanwhile(small: Any, body: Body) -> None:
    """Ledgers 1 to 3 have moved elsewhere. One is being repaired when that is noticed, one when its quarantine is
    over, and of one the record names this bookie again just when its lock is taken."""
    made, records = small(gc_quarantine_ms=5_000, gc_surplus_ms=1), FakeRecords.of(1, 2, 3)
    locks = records.recovery

    def repaired(ledger_id: int) -> None:
        if ledger_id == 3:
            records.ledgers[3] = record(3, is_closed=True)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await put(store, promises, body, [1, 2, 3])
        await store.checkpoint()
        records.ledgers |= {each: record(each, "b2", is_closed=True) for each in (1, 2, 3)}
        locks.held = {1}
        await collect(store)
        await asyncio.sleep(1)
        await collect(store)
        await promises.add(store, 1, {1: body(1, 1)}, is_recovery=True)  # It is not even in quarantine.
        for ledger_id in (2, 3):
            with pytest.raises(StorageError):
                await promises.add(store, ledger_id, {1: body(ledger_id, 1)}, is_recovery=True)
        locks.held, locks.on_lock = {1, 2}, repaired
        await asyncio.sleep(6)
        await collect(store)
        assert sorted(store.ledger_ids()) == [1, 2, 3]
        await promises.add(store, 3, {1: body(3, 1)}, is_recovery=True)
        locks.held = {1}
        await collect(store)
        assert sorted(store.ledger_ids()) == [1, 3]
        assert not locks.mine
        forget(promises, 2)

    assert made.live(script)
    made.check()


def test_a_closed_ledger_that_was_offloaded_goes_and_may_come_back(small: Any, body: Body) -> None:
    made, records = small(gc_quarantine_ms=5_000), FakeRecords.of(1, 2, 3)

    def offloaded(ledger_id: int, *, is_closed: bool) -> Record:
        labels = {"bookies.offload": b"{}", "bookies.offload.bookies-deleted": b"1"}
        return Record(record(ledger_id, is_closed=is_closed).metadata.replace(custom_metadata=labels))

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await put(store, promises, body, [1, 2, 3])
        await store.checkpoint()
        await collect(store)
        records.ledgers |= {each: offloaded(each, is_closed=each != 2) for each in (1, 2, 3)}
        await collect(store, is_forced=True)
        assert sorted(store.ledger_ids()) == [1, 2, 3], "in quarantine"
        await asyncio.sleep(3)
        records.ledgers[3] = record(3, is_closed=True)
        await collect(store)
        await asyncio.sleep(3)
        await collect(store)
        assert sorted(store.ledger_ids()) == [2, 3], "one is open, one was restored"
        forget(promises, 1)
        records.ledgers[1] = record(1, is_closed=True)
        await promises.add(store, 1, {0: body(1, 0, version=1)}, is_recovery=True)
        await collect(store)

    assert made.live(script, stops=False)
    made.crash(NOTHING_SURVIVES)
    made.check()


@pytest.mark.parametrize("with_surplus", [False, True])
def test_what_a_restore_writes_stays_though_no_record_names_the_bookie_yet(
    small: Any, body: Body, with_surplus: bool
) -> None:
    """Nor does an older quarantine keep it out, or take it away in the end."""
    made, records = small(gc_quarantine_ms=5_000, gc_surplus_ms=1_000), FakeRecords.of(1, 2)

    def elsewhere(state: Callable[[LedgerMetadata], LedgerMetadata]) -> Record:
        return Record(state(record(1, is_closed=True).metadata.replace(ensembles=((0, (BookieId("other"),)),))))

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await put(store, promises, body, [1, 2])
        await store.checkpoint()
        records.ledgers[1] = elsewhere(forgotten)
        await collect(store, is_forced=True)
        assert await refusals(store, body, 1)
        records.ledgers[1] = elsewhere(coming_back)
        for _ in range(4):
            await collect(store, is_forced=True, with_surplus=with_surplus)
            await asyncio.sleep(3)
        assert sorted(store.ledger_ids()) == [1, 2]

    assert made.live(script)
    made.check()


@pytest.mark.parametrize("loss", range(len(LOSSES) + 1))
def test_a_log_that_a_crash_left_without_a_map_gets_one_and_goes_when_it_is_empty(
    small: Any, body: Body, loss: int
) -> None:
    made, records = small(loss, gc_quarantine_ms=0, write_cache_size=1 << 16), FakeRecords.of(1, 2)

    async def first(store: LedgerStore, promises: Any) -> None:
        await put(store, promises, body, [1, 2], 30, size=500)
        await store.checkpoint()
        promises.add(store, 1, {entry: body(1, entry, size=700) for entry in range(30, 90)})
        await asyncio.sleep(0.01)

    async def second(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await collect(store)
        assert store.collector is not None
        space = store.collector.space()
        assert space["logs_set_aside"] == {}
        assert space["live_bytes"]
        await promises.check(store)
        records.delete(1)
        await collect(store)
        forget(promises, 1)
        await promises.check(store)

    async def third(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        records.ledgers.clear()
        await collect(store)
        assert logs_of(made) == []
        forget(promises, 2)

    assert made.live(first, stops=False)
    made.crash((*LOSSES, PROCESS_DIES)[loss])
    assert made.live(second)
    assert made.live(third)
    made.check()


def test_a_damaged_log_is_set_aside_and_named(small: Any, body: Body) -> None:
    made, records = small(gc_quarantine_ms=0), FakeRecords.of(1, 2)

    async def first(store: LedgerStore, promises: Any) -> None:
        await put(store, promises, body, [1], 8, size=500)
        await store.checkpoint()

    async def second(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await put(store, promises, body, [2])
        assert store.collector is not None
        for _ in range(2):
            await collect(store, is_forced=True)
            assert list(store.collector.space()["logs_set_aside"]) == ["0"]  # type: ignore[call-overload]
            assert "set aside" in store.collector.why(0)[0]
        assert await store.read(1, 7) == body(1, 7, size=500)

    assert made.live(first, stops=False)
    made.crash(PROCESS_DIES)
    made.disk.flip_bit("/ledgers0/current/0.log", 1024 + 2 * 540, bit=7)
    assert made.live(second)
    assert "0.log" in logs_of(made)


def test_a_log_whose_map_does_not_tell_the_truth_is_kept(small: Any, body: Body) -> None:
    """The map has no checksum: one bit of a ledger's id, and nothing seems to live in the log."""
    made, records = small(gc_quarantine_ms=0), FakeRecords.of(1)

    async def first(store: LedgerStore, promises: Any) -> None:
        await put(store, promises, body, [1], 3, size=500)

    async def second(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        assert store.collector is not None
        for _ in range(2):
            await collect(store, is_forced=True)
        assert "ledgers map" in store.collector.why(0)[0]
        await promises.check(store)

    assert made.live(first)
    path = "/ledgers0/current/0.log"
    made.disk.flip_bit(path, len(made.disk.files()[path]) - 16 + 7, bit=5)
    assert made.live(second)
    assert "0.log" in logs_of(made)


def test_a_job_that_fails_stops_no_other(small: Any, body: Body) -> None:
    """[R-28, R-29]"""
    made, records = small(gc_quarantine_ms=0), FakeRecords.of(1)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        assert store.collector is not None
        await put(store, promises, body, [2, 3, 1], 8)
        made.disk.fail("unlink", "/0.log", lambda: OSError(5, "Input/output error"))
        await store.collector.collect(is_forced=False, is_awaited=True)
        assert "0.log" in logs_of(made)
        assert "the next run deletes it" in store.collector.why(0)[0]
        await store.collector.collect(is_forced=False, is_awaited=True)
        assert "0.log" not in logs_of(made)
        forget(promises, 2, 3)
        await promises.check(store)

    assert made.live(script)
    made.check()


def test_a_run_that_gets_nowhere_is_begun_anew(small: Any, body: Body) -> None:
    made, records = small(gc_quarantine_ms=0, gc_interval_ms=1000), FakeRecords.of(1)

    async def script(store: LedgerStore, promises: Any) -> None:
        async def never(ledger_id: int) -> None:
            await asyncio.get_running_loop().create_future()

        store.collect(records, BOOKIE)
        assert store.collector is not None
        await put(store, promises, body, [1, 2])
        store.collector._ledgers.is_unwanted = never  # type: ignore[assignment,method-assign]
        store.collector._logs.drop_ledgers = never  # type: ignore[assignment,method-assign]
        await asyncio.sleep(3000)
        assert store.collector.steps.restart_count == 1

    assert made.live(script)


def test_why_a_log_is_still_there(small: Any, body: Body) -> None:
    made, records = small(), FakeRecords.of(1, 2, 3)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        assert store.collector is not None
        why = store.collector.why
        await put(store, promises, body, [1, 2, 3], 4, size=600)
        await store.checkpoint()
        assert "it is being written" in why(0)[0]
        await put(store, promises, body, [3], 40)
        await store.checkpoint()
        assert "has not scanned it yet" in why(0)[0]
        records.delete(1, 2)
        await collect(store)
        await store.collector.undelete(2)
        lines = why(0)
        assert "belong to 3 ledgers" in lines[0]
        assert ["quarantine" in lines[1], "undelete" in lines[2], lines[3].endswith("bytes")] == [True] * 3
        assert "no such entry log" in why(-1)[0]

    assert made.live(script)


def test_a_surplus_ledger_that_is_brought_back_stays_until_its_record_names_this_bookie(small: Any, body: Body) -> None:
    made, records = small(gc_quarantine_ms=5_000, gc_surplus_ms=1_000), FakeRecords.of(1, 2)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        assert store.collector is not None
        assert store.parts is not None
        await put(store, promises, body, [1, 2])
        records.ledgers[1] = record(1, "b2", is_closed=True)
        for _ in range(2):
            await collect(store)
            await asyncio.sleep(2)
        assert store.parts.removals.states[1].state is QuarantineState.SURPLUS
        await store.collector.undelete(1)
        for with_surplus in (False, True, False):
            await collect(store, is_forced=True, with_surplus=with_surplus)
            await asyncio.sleep(10)
            assert store.parts.removals.states[1].state is QuarantineState.PINNED
        assert sorted(store.ledger_ids()) == [1, 2]
        await promises.add(store, 1, {9: body(1, 9)}, is_recovery=True)
        records.ledgers[1] = record(1, is_closed=True)
        await collect(store)
        assert not store.parts.removals.states

    assert made.live(script)
    assert made.live(check)


async def make_dirty(store: LedgerStore, *ledger_ids: int) -> None:
    """As the end of a limbo, or a compaction."""
    assert store.parts is not None
    for ledger_id in ledger_ids:
        ledger = await store.parts.index.load(ledger_id)
        store.parts.index.set_header(ledger, ledger.header)


def test_a_deletion_whose_caller_is_cancelled_leaves_no_ledger_without_its_file(machine: Any, body: Body) -> None:
    made = machine()
    path = f"/ledgers0/current/{path_of(1)}"

    async def script(store: LedgerStore, promises: Any) -> None:
        await put(store, promises, body, (1, 2))
        assert store.parts is not None
        removals = store.parts.removals
        await removals.quarantine([1], QuarantineState.QUARANTINED, 0)
        await make_dirty(store, 1)
        task = asyncio.create_task(removals.delete([1], 0))
        while made.disk.exists(path):  # noqa: ASYNC110  (virtual time)
            await asyncio.sleep(1e-6)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        await promises.add(store, 2, {4: body(2, 4)})
        await store.checkpoint()
        assert removals.is_proven(1)
        assert not store.parts.index.is_known(1)
        assert not made.disk.exists(path)
        forget(promises, 1)

    assert made.live(script)
    assert made.live(check)


def test_a_collection_completes_a_deletion_that_has_failed(machine: Any, body: Body) -> None:
    """Until then no checkpoint succeeds that has to write a ledger whose file is gone."""
    made, records = machine(gc_interval_ms=1 << 40, gc_quarantine_ms=0), FakeRecords.of(3)

    async def script(store: LedgerStore, promises: Any) -> None:
        await put(store, promises, body, (1, 2, 3))
        store.collect(records, BOOKIE)
        assert store.parts is not None
        removals = store.parts.removals
        await removals.quarantine([1, 2], QuarantineState.QUARANTINED, 0)
        made.disk.fail("unlink", path_of(2), lambda: OSError(5, "Input/output error"))
        with pytest.raises(OSError, match="Input/output"):
            await removals.delete([1, 2], store.parts.runtime.clock.wall_ms())
        await make_dirty(store, 1)
        with pytest.raises(FileNotFoundError):
            await store.checkpoint()
        await collect(store)
        assert not store.parts.index.is_known(1)
        assert not store.parts.index.is_known(2)
        forget(promises, 1, 2)
        await promises.add(store, 3, {4: body(3, 4)})
        await store.checkpoint()

    assert made.live(script)
    assert made.live(check)


async def check(store: LedgerStore, promises: Any) -> None:
    await promises.check(store)
