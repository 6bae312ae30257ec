"""Ledgers whose entries are in the logs although the index has nothing of them: kept, found again, not compacted."""

from __future__ import annotations

import asyncio
import errno
import posixpath
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.fakes.offloaded import coming_back
from tests.fakes.records import BOOKIE, FakeRecords, Record, record
from tests.sim.conftest import KEY
from tests.sim.space_world import ALL, Body, collect, compact, fill, logs_of, small_machine

from bookies.errors import BookKeeperError, DataUnknown, EntryNotFound, LedgerFenced, LedgerUnknownToBookie
from bookies.lab.sim.world.disk import NOTHING_SURVIVES, PROCESS_DIES
from bookies.storage.engine import opening
from bookies.storage.engine.quarantine_format import QuarantineRecord, QuarantineState, identity_of, pack
from bookies.storage.engine.rebuild import AGAIN_S
from bookies.storage.entry_log.entry_log_format import MAP_FIELDS_OFFSET
from bookies.storage.gc.deleted_ledgers import REMEMBERED_MS
from bookies.storage.identity import Cookie
from bookies.storage.index import catalog_format
from bookies.storage.journal import journal_format, journal_trailer
from bookies.storage.store import LedgerStore

LIST = "/ledgers0/current/removedLedgers"
LOST, NEW = 5, 7
KINDS = ["transactional", "plain"]


@pytest.fixture
def small(machine: Any) -> Callable[..., Any]:
    return partial(small_machine, machine)


def lose_index(made: Any, body: Body) -> None:
    """Fill the logs; then one ledger is deleted, and that it was is forgotten."""

    async def script(store: LedgerStore, promises: Any) -> None:
        await fill(store, promises, body, 6)
        removals = store._open().removals
        await removals.quarantine([LOST], QuarantineState.QUARANTINED, 0)
        assert await removals.delete([LOST], 0) == [LOST]

    assert made.live(script)
    made.disk.unlink(LIST)


async def check_entries(store: LedgerStore, body: Body, entries: range = range(12)) -> None:
    for entry in entries:
        assert await store.read(LOST, entry) == body(LOST, entry, size=500)


def lose_index_file(made: Any) -> None:
    path = next(path for path in made.disk.files() if path.endswith(f"/{LOST}.idx"))
    made.disk.unlink(path)
    made.disk.sync_directory(posixpath.dirname(path))


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_that_could_not_be_opened_once_is_not_compacted_away(small: Any, body: Body, kind: str) -> None:
    """Its entries are missing from the rebuilt index, so the ledger is in limbo. A later attempt finds them."""
    made, records = small(compaction=kind), FakeRecords.of(LOST, 6)
    assert made.live(lambda store, promises: fill(store, promises, body, 6))
    lose_index_file(made)

    async def compact_in_limbo(store: LedgerStore, promises: Any) -> None:
        made.disk.fail("open", "/1.log", lambda: OSError(errno.EMFILE, "Too many open files"))
        await store.repair()
        await store.checkpoint()
        store.collect(records, BOOKIE)
        await collect(store)
        await compact(store)
        assert "1.log" in logs_of(made)
        assert store.collector is not None
        assert f"ledger {LOST} is in limbo" in store.collector.why(1)[0]
        for entry in (2, 3):
            with pytest.raises(DataUnknown):
                await store.read(LOST, entry)
        await asyncio.sleep(AGAIN_S + 1)
        await store._open().rebuilder.wait_idle()
        await check_entries(store, body)
        assert LOST in store.limbo
        await store.end_limbo(dict(store.limbo.doubts))
        await compact(store)
        assert "1.log" not in logs_of(made)
        await check_entries(store, body)

    assert made.live(compact_in_limbo)
    assert made.live(lambda store, promises: check_entries(store, body))


async def check_that_some_are_unknown(store: LedgerStore, body: Body) -> None:
    await check_entries(store, body, range(2))
    for entry in (2, 3):
        with pytest.raises(DataUnknown):
            await store.read(LOST, entry)


@pytest.mark.parametrize("way", [None, NOTHING_SURVIVES, PROCESS_DIES])
def test_a_log_that_could_not_be_read_until_a_restart_is_read_by_the_next_life(
    small: Any, body: Body, way: Any
) -> None:
    made = small(str(way))
    assert made.live(lambda store, promises: fill(store, promises, body, 6))
    lose_index_file(made)
    errors = made.disk.fail("open", "/1.log", lambda: OSError(errno.EIO, "Input/output error"), count=1 << 40)

    async def unread(store: LedgerStore, promises: Any) -> None:
        await store.repair()
        await store.checkpoint()
        await check_that_some_are_unknown(store, body)

    async def later(store: LedgerStore, promises: Any) -> None:
        await store._open().rebuilder.wait_idle()
        await check_entries(store, body)
        assert LOST in store.limbo

    for _ in range(2):  # and the second life is like the first
        assert made.live(unread, stops=way is None)
        if way is not None:
            made.crash(way)
    made.disk.faults.remove(errors)
    assert made.live(later)


def test_a_log_that_could_not_be_read_for_half_a_day_is_read_then_and_the_others_are_not_read_for_it(
    small: Any, body: Body
) -> None:
    made = small()
    assert made.live(lambda store, promises: fill(store, promises, body, 6))
    lose_index_file(made)
    errors = made.disk.fail("pread", "/1.log", lambda: OSError(errno.EIO, "Input/output error"), count=1 << 40)

    async def script(store: LedgerStore, promises: Any) -> None:
        await store.repair()
        count = store._open().rebuilder.count
        await asyncio.sleep(12 * 3600)
        assert store._open().rebuilder.count == count
        await check_that_some_are_unknown(store, body)
        made.disk.faults.remove(errors)
        await asyncio.sleep(AGAIN_S * 200)
        await store._open().rebuilder.wait_idle()
        assert store._open().rebuilder.count == count + 1
        await check_entries(store, body)

    assert made.live(script)


def test_a_rebuild_that_an_error_has_ended_is_repeated(small: Any, body: Body) -> None:
    made = small()
    assert made.live(lambda store, promises: fill(store, promises, body, 6))
    lose_index_file(made)

    async def script(store: LedgerStore, promises: Any) -> None:
        made.disk.fail("read_bytes|open", "lastId", lambda: OSError(errno.EMFILE, "Too many open files"))
        await store.repair()
        with pytest.raises(DataUnknown):
            await store.read(LOST, 0)
        await asyncio.sleep(AGAIN_S + 1)
        await store._open().rebuilder.wait_idle()
        await check_entries(store, body)
        assert not (await store.header(LOST)).is_uncertain

    assert made.live(script)


def test_what_was_fetched_in_place_of_an_unreadable_log_ends_the_doubts(small: Any, body: Body) -> None:
    made = small()
    assert made.live(lambda store, promises: fill(store, promises, body, 6))
    lose_index_file(made)
    made.disk.fail("open", "/1.log", lambda: OSError(errno.EIO, "Input/output error"), count=1 << 40)

    async def fetch(store: LedgerStore, promises: Any) -> None:
        await store.repair()
        assert await store.held_entries(LOST) == [range(2), range(4, 12)]
        entries = {entry: body(LOST, entry, size=500) for entry in (2, 3)}
        await promises.add(store, LOST, entries, is_recovery=True)
        await store.end_limbo(dict(store.limbo.doubts))

    async def check(store: LedgerStore, promises: Any) -> None:
        await store._open().rebuilder.wait_idle()
        assert not (await store.header(LOST)).is_uncertain
        assert await store.list_entries(LOST) == [range(12)]
        assert store._open().rebuilder.count == 0
        await check_entries(store, body)

    assert made.live(fetch)
    assert made.live(check)


def test_a_log_without_a_map_is_not_empty_because_a_rebuild_has_missed_it(small: Any, body: Body) -> None:
    """Nothing else lives in it, and the ledger's entries in it have no slot."""
    made, records = small(), FakeRecords.of(LOST)
    assert made.live(lambda store, promises: fill(store, promises, body, 6))
    lose_index_file(made)
    log = "/ledgers0/current/1.log"
    data = made.disk.read_bytes(log)
    made.disk.put(log, data[:MAP_FIELDS_OFFSET] + bytes(12) + data[MAP_FIELDS_OFFSET + 12 :])

    async def script(store: LedgerStore, promises: Any) -> None:
        made.disk.fail("open", "/1.log", lambda: OSError(errno.EMFILE, "Too many open files"))
        await store.repair()
        store.collect(records, BOOKIE)
        assert store.collector is not None
        await store.collector.collect(is_forced=True, is_awaited=True)
        assert [*store.ledger_ids()] == [LOST]
        await asyncio.sleep(AGAIN_S + 1)
        await store._open().rebuilder.wait_idle()
        await check_entries(store, body)

    assert made.live(script)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_metadata_may_want_is_not_compacted_away(small: Any, body: Body, kind: str) -> None:
    """Two thirds of each log are garbage; of the rest one ledger is known to nobody but the logs and the metadata."""
    made, records = small(compaction=kind), FakeRecords.of(LOST, 6)
    lose_index(made, body)
    records.unreadable.add(LOST)

    async def doubtful(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        before = set(logs_of(made))
        await collect(store)
        await compact(store)
        await compact(store)
        assert store.collector is not None
        assert store.collector.steps.failure_count == 0
        assert before <= set(logs_of(made))
        assert any("missing from the index" in line for line in store.collector.why(0))
        with pytest.raises(LedgerUnknownToBookie):
            await store.read(LOST, 0)

        records.unreadable.clear()
        await compact(store)
        await store._open().rebuilder.wait_idle()
        for entry in range(12):
            assert await store.read(LOST, entry) == body(LOST, entry, size=500)
        with pytest.raises(DataUnknown):
            await store.read(LOST, 12)
        await store.checkpoint()
        await compact(store)
        assert store.collector.steps.failure_count == 0
        assert not before & set(logs_of(made))
        for ledger in (LOST, 6):
            for entry in range(12):
                assert await store.read(ledger, entry) == body(ledger, entry, size=500)

    assert made.live(doubtful)


def test_what_the_record_allowed_to_delete_is_not_missed(small: Any, body: Body) -> None:
    """A restore from files begins when the logs still have the ledger. The bookie lists it and all that is written."""
    made, records = small(), FakeRecords.of(*ALL)
    lose_index(made, body)
    closed = record(LOST, is_closed=True).metadata

    async def restore(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        records.ledgers[LOST] = Record(coming_back(closed))
        await collect(store)
        await store._open().rebuilder.wait_idle()
        await promises.add(store, LOST, {entry: body(LOST, entry, size=500) for entry in range(14)}, is_recovery=True)
        records.ledgers[LOST] = Record(closed)
        await collect(store)
        assert await store.list_entries(LOST) == [range(14)]
        with pytest.raises(EntryNotFound):
            await store.read(LOST, 14)
        with pytest.raises(LedgerFenced):
            await promises.add(store, LOST, {14: body(LOST, 14)})

    assert made.live(restore)
    made.check()


def test_what_the_metadata_wants_nothing_of_goes(small: Any, body: Body) -> None:
    """Deleted long ago, or closed and listed elsewhere; but one that is open elsewhere may be about to come."""
    for wanted, is_gone in ((None, True), (record(LOST, "b2", is_closed=True), True), (record(LOST, "b2"), False)):
        made, records = small(str(wanted)), FakeRecords.of(6)
        lose_index(made, body)
        if wanted is not None:
            records.ledgers[LOST] = wanted

        async def script(
            store: LedgerStore, promises: Any, made: Any = made, records: Any = records, is_gone: bool = is_gone
        ) -> None:
            store.collect(records, BOOKIE)
            before = set(logs_of(made))
            await compact(store)
            assert bool(before & set(logs_of(made))) is not is_gone
            assert not store._open().index.is_known(LOST)

        assert made.live(script)


@pytest.mark.parametrize("is_synced", [False, True])
def test_what_was_never_in_the_journal_is_not_missed(small: Any, body: Body, is_synced: bool) -> None:
    """A flush is ahead of a journal that hangs, and the bookie is killed: nothing of that was ever acknowledged. With
    `is_synced` the log was synced after it, which is not before the journal has it: then it counts."""
    made, records = small(is_synced), FakeRecords.of(*ALL, NEW)

    async def die(store: LedgerStore, promises: Any) -> None:
        await fill(store, promises, body, 5)
        assert store._open().index.catalog.synced is not None

    assert made.live(die, stops=False)
    made.crash(PROCESS_DIES)
    entry = body(NEW, 0, size=200)
    path = "/ledgers0/current/" + max(logs_of(made), key=lambda name: int(name.removesuffix(".log"), 16))
    made.disk.put(path, made.disk.read_bytes(path) + len(entry).to_bytes(4, "big") + entry)

    async def again(store: LedgerStore, promises: Any) -> None:
        if is_synced:
            store._open().index.catalog.note_torn({})
        store.collect(records, BOOKIE)
        await compact(store)
        assert store._open().index.is_known(NEW) is is_synced
        with pytest.raises(DataUnknown if is_synced else LedgerUnknownToBookie):
            await store.read(NEW, 1)
        await promises.check(store)

    assert made.live(again)


def test_a_ledger_that_the_map_leaves_out_stops_the_compaction(small: Any, body: Body) -> None:
    """The map has no checksum: one bit of a ledger's id, and only the records say whose they are."""
    made, records = small(), FakeRecords.of(LOST, 6)
    lose_index(made, body)
    path = "/ledgers0/current/0.log"
    data = made.disk.files()[path]
    at = data.rindex(LOST.to_bytes(8, "big"))
    made.disk.flip_bit(path, at + 6, bit=5)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        records.unreadable.add(LOST)
        assert store.collector is not None
        store.collector._logs.has_unindexed = lambda usage: False  # type: ignore[method-assign]
        await compact(store)
        assert "0.log" in logs_of(made)
        assert f"ledger {LOST}" in store.collector.why(0)[0]

    assert made.live(script)


@pytest.mark.parametrize("owner", ["b1", "b2", None])
def test_a_list_is_believed_only_of_this_bookie(small: Any, body: Body, owner: str | None) -> None:
    """Of this bookie, or of nobody: the metadata brings the ledger back, and the logs tell what was in it."""
    made, records = small(owner), FakeRecords.of(LOST, 6)
    told: list[int] = []

    async def write(store: LedgerStore, promises: Any) -> None:
        await fill(store, promises, body, 6)

    async def again(store: LedgerStore, promises: Any) -> None:
        removals = store._open().removals
        told.extend(removals.found)
        assert bool(removals.files.damaged) is (owner == "b2")
        store.collect(records, BOOKIE)
        await collect(store)
        await store._open().rebuilder.wait_idle()
        await store.checkpoint()
        await compact(store)
        assert store.collector is not None
        assert store.collector.space()["logs_set_aside"] == {}
        assert store.collector.steps.failure_count == 0
        for entry in range(12):
            assert await store.read(LOST, entry) == body(LOST, entry, size=500)
        with pytest.raises(EntryNotFound if owner == "b2" else DataUnknown):
            await store.read(LOST, 12)

    made.disk.put("/ledgers0/current/VERSION", Cookie("b1", "/journal", ("/ledgers0",), "cluster").pack())
    assert made.live(write)
    identity = identity_of(owner, "cluster") if owner else b""
    made.disk.put(LIST, pack(7, {LOST: QuarantineRecord(QuarantineState.DELETED, 0)}, identity))
    assert made.live(again)
    assert told == ([] if owner == "b2" else [LOST])


class Fencing(FakeRecords):
    """Every read of a record, or the first of them, meets a client that fences the ledger. `answers`: what it was told.

    `on_second`: called at the second read.
    """

    store: LedgerStore | None = None

    def __init__(self, *, fences_once: bool = False) -> None:
        super().__init__()
        self.answers: list[str] = []
        self.fences_once = fences_once
        self.on_second: Callable[[], object] = lambda: None

    async def fence(self) -> None:
        assert self.store is not None
        answer: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        try:
            # The life may end, and cancel this, while the fence is under way.
            self.store.fence(LOST, KEY, lambda error: answer.done() or answer.set_result(error))
        except BookKeeperError as error:
            answer.set_result(error)
        self.answers.append(type(await answer).__name__)

    async def read_ledger(self, ledger_id: int) -> Record:
        if ledger_id == LOST and self.store is not None:
            if self.reads.count(LOST) == 1:
                self.on_second()
            if not (self.fences_once and self.answers):
                await self.fence()
        return await super().read_ledger(ledger_id)

    async def fence_on(self) -> None:
        """Fence the ledger until that is acknowledged."""
        while self.answers[-1:] != ["NoneType"]:
            await self.fence()
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("loss", [None, NOTHING_SURVIVES, PROCESS_DIES])
def test_a_fence_makes_no_new_ledger_of_one_whose_record_comes_back(small: Any, body: Body, loss: Any) -> None:
    """The entry logs still have a deleted ledger. A client fences it before, during and after its return."""
    made, records = small(str(loss)), Fencing()

    async def restore(store: LedgerStore, promises: Any) -> None:
        await fill(store, promises, body, 6)
        await delete_now(store)
        records.ledgers.update(FakeRecords.of(*ALL).ledgers)
        records.store = store
        store.collect(records, BOOKIE)
        fencing = asyncio.ensure_future(records.fence_on())
        await collect(store)
        await fencing
        assert {*records.answers} == {"DataUnknown", "NoneType"}

    assert made.live(restore, stops=loss is None)
    if loss is not None:
        made.crash(loss)
    assert made.live(partial(check_limbo, body))


async def check_limbo(body: Body, store: LedgerStore, promises: Any) -> None:
    """The ledger has what the logs have, and denies nothing."""
    await store._open().rebuilder.wait_idle()
    assert LOST in store.limbo
    await check_entries(store, body)
    with pytest.raises(DataUnknown):
        await store.read(LOST, 12)


@pytest.mark.parametrize("is_early", [True, False])
def test_a_fence_makes_no_new_ledger_of_one_that_the_index_has_lost(small: Any, body: Body, is_early: bool) -> None:
    """`is_early`: a client fences it while its record is read for the first time; or else as soon as it can after the
    second one. In both cases the bookie dies soon after."""
    made, records = small(is_early), Fencing(fences_once=is_early)
    records.ledgers.update(FakeRecords.of(*ALL).ledgers)
    lose_index(made, body)

    async def find(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        if is_early:
            records.store = store
            await collect(store)
            assert records.answers == ["NoneType"]
            return
        records.fences_once, records.answers, records.store = True, [""], store
        is_due = asyncio.Event()
        records.on_second = is_due.set
        collecting = asyncio.ensure_future(collect(store))
        await is_due.wait()
        await records.fence_on()
        collecting.cancel()

    assert made.live(find, stops=False)
    made.crash(PROCESS_DIES)
    assert made.live(partial(check_limbo, body))


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_deletion_is_remembered_while_the_logs_have_entries(small: Any, body: Body, is_damaged: bool) -> None:
    """Later than after seven days its record comes back, and a client fences it. `is_damaged`: a log is set aside."""
    made, records = small(is_damaged), Fencing()

    async def restore(store: LedgerStore, promises: Any) -> None:
        await fill(store, promises, body, 6)
        await delete_now(store, age_ms=REMEMBERED_MS + 1)
        records.ledgers.update(FakeRecords.of(*ALL).ledgers)
        records.delete(LOST)
        store.collect(records, BOOKIE)
        await collect(store)
        assert store._open().removals.is_deleted(LOST)
        if is_damaged:
            assert store.collector is not None
            store.collector.put_aside(0, "damage")
            await compact(store)
            await collect(store)
            assert [*logs_of(made)].count("0.log")
            assert store._open().removals.is_deleted(LOST)
        else:
            records.ledgers.update(FakeRecords.of(LOST).ledgers)
            records.store = store
            await records.fence_on()
            assert {*records.answers} == {"DataUnknown", "NoneType"}
            await check_limbo(body, store, promises)

    assert made.live(restore)


def test_a_deletion_is_forgotten_when_the_logs_have_nothing_of_the_ledger(small: Any, body: Body) -> None:
    made, records = small(), FakeRecords.of(6)

    async def script(store: LedgerStore, promises: Any) -> None:
        await fill(store, promises, body, 6)
        await delete_now(store, age_ms=REMEMBERED_MS + 1)
        store.collect(records, BOOKIE)
        assert store.collector is not None
        await store.collector.collect(is_forced=True, is_awaited=True)
        assert store._open().removals.is_deleted(LOST)
        await compact(store)
        await promises.add(store, 6, {20: body(6, 20)})
        await store.checkpoint()
        await collect(store)
        assert store._open().removals.get(LOST) is None
        assert LOST in store.former_ledgers
        assert store._open().removals.is_deleted(1)

    assert made.live(script)


async def delete_now(store: LedgerStore, age_ms: int = 0) -> None:
    removals, now_ms = store._open().removals, store._open().runtime.clock.wall_ms()
    await removals.quarantine([LOST], QuarantineState.QUARANTINED, now_ms - age_ms)
    assert await removals.delete([LOST], now_ms - age_ms) == [LOST]


def return_elsewhere(made: Any, body: Body, *, is_flushed: bool) -> None:
    """Delete a ledger. Then another program, which does not know that, serves the directories and stores it again."""

    async def delete(store: LedgerStore, promises: Any) -> None:
        await fill(store, promises, body, 6)
        await delete_now(store)

    async def serve(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, LOST, {entry: body(LOST, entry, size=500) for entry in range(20, 24)})

    assert made.live(delete)
    note = made.disk.read_bytes(LIST)
    made.disk.unlink(LIST)
    assert made.live(serve, stops=is_flushed)
    if not is_flushed:
        made.crash(PROCESS_DIES)
    made.disk.put(LIST, note)
    for path in [path for path in made.disk.files() if path.endswith(".txn")]:
        made.disk.put(path, made.disk.read_bytes(path).replace(journal_trailer.MAGIC, b"none"))


@pytest.mark.parametrize("is_flushed", [True, False])
def test_a_deleted_ledger_that_was_stored_again_elsewhere_is_kept(small: Any, body: Body, is_flushed: bool) -> None:
    """Its record decides, also if it cannot be read at first, and after a crash."""
    made, records = small(is_flushed), FakeRecords.of(LOST, 6)
    return_elsewhere(made, body, is_flushed=is_flushed)

    async def unsure(store: LedgerStore, promises: Any) -> None:
        assert LOST in store._open().removals.in_state(QuarantineState.QUARANTINED)
        with pytest.raises(DataUnknown):
            await store.read(LOST, 3)
        store.collect(records, BOOKIE)
        records.unreadable.add(LOST)
        await compact(store)
        await compact(store)
        with pytest.raises(DataUnknown):
            await promises.add(store, LOST, {30: body(LOST, 30, size=500)})

    async def decided(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await collect(store)
        assert store._open().removals.get(LOST) is None
        await compact(store)

    async def after(store: LedgerStore, promises: Any) -> None:
        for entry in range(20, 24):
            assert await store.read(LOST, entry) == body(LOST, entry, size=500)
        with pytest.raises(DataUnknown):
            await store.read(LOST, 30)
        assert LOST in store.limbo

    made.live(unsure, stops=False)
    made.crash(PROCESS_DIES)
    records.unreadable.clear()
    made.live(decided, stops=False)
    made.crash(NOTHING_SURVIVES)
    assert made.live(after)


def test_a_found_ledger_is_doubted_until_that_is_durable(
    small: Any, body: Body, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk has room for the list of another ledger's quarantine, and none for the start's checkpoint."""
    made, records = small(), FakeRecords.of(LOST)
    return_elsewhere(made, body, is_flushed=True)

    async def uncovered(*arguments: object, **options: object) -> None:
        pass

    async def full(store: LedgerStore, promises: Any) -> None:
        await store._open().removals.quarantine([6], QuarantineState.QUARANTINED, 0)

    async def decided(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await collect(store)
        assert store._open().removals.get(LOST) is None
        assert await store.read(LOST, 20) == body(LOST, 20, size=500)
        with pytest.raises(DataUnknown):
            await store.read(LOST, 3)

    with monkeypatch.context() as patch:
        patch.setattr(opening, "_checkpoint", uncovered)
        made.live(full, stops=False)
    made.crash(PROCESS_DIES)
    assert made.live(decided)


def test_a_record_that_says_nothing_does_not_bring_a_deleted_ledger_back(small: Any, body: Body) -> None:
    """Its kind is unknown, or a crash has cut its ids off, so they may be those of any ledger."""
    made, records = small(), FakeRecords.of(6)

    async def delete(store: LedgerStore, promises: Any) -> None:
        await fill(store, promises, body, 6)
        await delete_now(store)

    async def start(store: LedgerStore, promises: Any) -> None:
        assert store._open().removals.is_deleted(LOST)
        assert not store._open().removals.found
        store.collect(records, BOOKIE)
        await collect(store)
        assert store._open().removals.is_deleted(LOST)

    assert made.live(delete)
    newest = max(int(posixpath.basename(path)[:-4], 16) for path in made.disk.files() if path.endswith(".txn"))
    record = struct.pack(">Iqq", 16, LOST, -0x7777)
    made.disk.put(f"/journal0/current/{journal_format.file_name(newest + 1)}", journal_format.pack_header() + record)
    assert made.live(start)


@pytest.mark.parametrize("is_flushed", [True, False])
def test_what_was_stored_again_elsewhere_is_deleted_without_a_record(small: Any, body: Body, is_flushed: bool) -> None:
    made, records = small(is_flushed), FakeRecords.of(6)
    return_elsewhere(made, body, is_flushed=is_flushed)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        assert store.collector is not None
        await store.collector.collect(is_forced=True, is_awaited=True)
        assert store._open().removals.is_proven(LOST)
        with pytest.raises(LedgerUnknownToBookie):
            await store.read(LOST, 20)

    assert made.live(script)


def test_the_note_of_an_earlier_process_empties_no_log(small: Any, body: Body) -> None:
    """The logs keep the entries of a deleted ledger until the metadata store has been asked about it again."""
    made, records = small(), FakeRecords.of(LOST)

    async def delete(store: LedgerStore, promises: Any) -> None:
        await fill(store, promises, body, 6)
        await delete_now(store)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        assert store.collector is not None
        records.unreadable.add(LOST)
        before = set(logs_of(made))
        await store.collector.collect(is_forced=True, is_awaited=True)
        assert store._open().removals.is_deleted(1)
        assert before <= set(logs_of(made))
        records.unreadable.clear()
        await collect(store)
        await store._open().rebuilder.wait_idle()
        for entry in range(12):
            assert await store.read(LOST, entry) == body(LOST, entry, size=500)

    assert made.live(delete)
    assert made.live(script)


def broken_catalog(data: bytes, how: str) -> bytes:
    if how == "header":
        return b"\xff" + data[1:]
    if how == "flipped":
        return data[:30] + bytes([data[30] ^ 1]) + data[31:]
    ends, at = [catalog_format.FILE_HEADER_SIZE], catalog_format.FILE_HEADER_SIZE
    while at < len(data):  # between two records
        at += 8 + int.from_bytes(data[at : at + 4], "big")
        ends.append(at)
    return data[: ends[0 if how == "empty" else len(ends) // 2]]


@pytest.mark.parametrize("crash_at", [None, *range(8, 80, 6)])
@pytest.mark.parametrize("how", ["header", "flipped", "empty", "half"])
@pytest.mark.parametrize("is_gone", [True, False])
def test_a_ledger_whose_index_file_and_catalog_are_lost_is_found_in_the_logs(
    small: Any, body: Body, how: str, crash_at: int | None, is_gone: bool
) -> None:
    """Damage of two files; `crash_at`: and the start that has noticed it ends early."""
    made = small(how)

    async def before(store: LedgerStore, promises: Any) -> None:
        for number in range(3):
            for ledger_id in range(1, 7):
                entries = {entry: body(ledger_id, entry, size=200) for entry in range(4 * number, 4 * number + 4)}
                await promises.add(store, ledger_id, entries)
            await store.checkpoint()

    assert made.live(before)
    catalog = "/ledgers0/current/index.catalog"
    made.disk.put(catalog, broken_catalog(made.disk.read_bytes(catalog), how))
    path = next(path for path in made.disk.files() if path.endswith(f"/{LOST}.idx"))
    if is_gone:
        made.disk.unlink(path)
        made.disk.sync_directory(posixpath.dirname(path))
    else:
        made.disk.put(path, made.disk.read_bytes(path)[: 1024 + 40])

    async def check(store: LedgerStore, promises: Any) -> None:
        await store.repair()
        await promises.check(store)

    if crash_at is not None:
        made.live(check, crash_at=crash_at)
        made.crash(NOTHING_SURVIVES)
    assert made.live(check)
    made.check()
    path = next(path for path in made.disk.files() if path.endswith(f"/{LOST}.idx"))
    made.disk.put(path, made.disk.read_bytes(path)[:1024])  # The catalog knows the file again.
    assert made.live(check)


def test_what_is_lost_after_the_entries_were_counted_keeps_a_ledger_in_limbo(small: Any, body: Body) -> None:
    made = small()

    async def script(store: LedgerStore, promises: Any) -> None:
        await fill(store, promises, body, 2)
        await store._open().index.distrust(LOST)
        counted = dict(store.limbo.doubts)
        assert await store.held_entries(LOST) == [range(4)]
        await store._open().index.distrust(LOST)
        await store.end_limbo(counted)
        assert LOST in store.limbo
        await store.end_limbo(dict(store.limbo.doubts))
        assert LOST not in store.limbo

    assert made.live(script)
