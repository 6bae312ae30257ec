"""Compaction on a simulated disk: what it copies, what reads see meanwhile, and a crash at its disk calls.

The sweeps crash at every `BK_SWEEP_STEP`-th disk call, counted from another one each time; 1 is all of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.fakes.records import BOOKIE, FakeRecords, record
from tests.sim.space_world import (
    ALL,
    GONE,
    Body,
    Script,
    SpaceSweep,
    check_reclaimed,
    collect,
    compact,
    compaction_script,
    deletion_script,
    fill,
    forget,
    logs_of,
    small_machine,
)

from bookies.errors import BookieBusy, LedgerUnknownToBookie
from bookies.lab.sim.world.disk import NOTHING_SURVIVES, PROCESS_DIES
from bookies.storage.engine.log_pieces import Piece, matching_parts
from bookies.storage.index.log_references import greatest_offsets
from bookies.storage.store import LedgerStore

KINDS = ["transactional", "plain"]
STEP = int(os.environ.get("BK_SWEEP_STEP", "17"))
BOTH_INDEXES_BUT = {
    "test_a_crash_in_collection",
}


@pytest.fixture
def small(machine: Any) -> Callable[..., Any]:
    """A machine with small entry logs, whose collection only runs when it is asked to."""
    return partial(small_machine, machine)


@pytest.mark.parametrize("kind", KINDS)
def test_what_lives_is_copied_and_the_logs_go(small: Any, body: Body, kind: str) -> None:
    made, records = small(compaction=kind), FakeRecords.of(*ALL)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await fill(store, promises, body, 6)
        before = logs_of(made)
        records.delete(*GONE)
        await collect(store)
        assert logs_of(made) == before
        await compact(store)
        forget(promises, *GONE)
        await promises.check(store)
        assert store.collector is not None
        assert store.collector.steps.failure_count == 0
        assert store.collector.space()["logs_compacted"] == 6  # with the one that was being written
        assert not [name for name in logs_of(made) if name in before]

    async def rest(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await compact(store)  # now also what was the active log

    async def later(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await collect(store)
        live = sum(len(each) + 4 for each in promises.acknowledged.values())
        assert store.collector is not None
        assert store.collector.space()["live_bytes"] == live
        assert sum(logs_of(made).values()) < 1.25 * live + 2000 * len(logs_of(made))

    assert made.live(script)
    made.check()
    assert made.live(rest)
    assert made.live(later)
    made.check()


@pytest.mark.parametrize("kind", KINDS)
def test_superseded_copies_are_dropped_and_newer_ones_stay(small: Any, body: Body, kind: str) -> None:
    """[F-32, R-19] Entries that are written again, before, while and after their log is compacted."""
    made, records = small(compaction=kind, compaction_rate_size=1 << 15), FakeRecords.of(*ALL)

    async def again(store: LedgerStore, promises: Any, version: int) -> None:
        bodies = {entry: body(5, entry, version=version, size=500) for entry in range(0, 12, 3)}
        await promises.add(store, 5, bodies, is_recovery=True)

    async def newest(store: LedgerStore, version: int) -> None:
        for entry in range(12):
            expected = version if entry % 3 == 0 else 0
            assert await store.read(5, entry) == body(5, entry, version=expected, size=500)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await fill(store, promises, body, 6)
        await again(store, promises, 1)
        await store.checkpoint()
        records.delete(*GONE)
        compacting = asyncio.ensure_future(compact(store))
        version = 1
        while not compacting.done():
            await asyncio.sleep(0.05)
            version += 1
            await again(store, promises, version)
            await store.checkpoint()
            await newest(store, version)
        assert version > 3
        await compacting
        await newest(store, version)
        made.newest = version
        forget(promises, *GONE)

    async def later(store: LedgerStore, promises: Any) -> None:
        await newest(store, made.newest)

    assert made.live(script, stops=False)
    made.crash(NOTHING_SURVIVES)
    assert made.live(later)
    made.check()


@pytest.mark.parametrize("kind", KINDS)
def test_reads_meet_every_entry_while_it_moves(small: Any, body: Body, kind: str) -> None:
    async def script(store: LedgerStore, promises: Any) -> None:
        records = FakeRecords.of(*ALL)
        store.collect(records, BOOKIE)
        await fill(store, promises, body, 6)
        records.delete(*GONE)
        await collect(store)
        compacting = asyncio.ensure_future(compact(store))

        async def read(entry: int) -> int:
            count = 0
            while not compacting.done():
                assert await store.read(6, entry) == body(6, entry, size=500)
                assert await store.read_batch(6, entry, 4, 1 << 16)
                count += 1
            return count

        assert min(await asyncio.gather(*(read(entry) for entry in (0, 5, 11)))) > 5
        await compacting
        forget(promises, *GONE)

    for mean_ms in (0.05, 0.3):
        made = small(mean_ms, compaction=kind)
        made.mean_ms = mean_ms
        assert made.live(script)
        made.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_ledger_deleted_meanwhile_does_not_come_back(small: Any, body: Body, kind: str) -> None:
    made, records = small(compaction=kind, compaction_rate_size=1 << 15), FakeRecords.of(*ALL)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await fill(store, promises, body, 6)
        records.delete(*GONE)
        await collect(store)
        compacting = asyncio.ensure_future(compact(store))
        await asyncio.sleep(0.2)
        assert not compacting.done()
        removals = store._open().removals
        from bookies.storage.engine.quarantine_format import QuarantineState

        await removals.quarantine([5], QuarantineState.QUARANTINED, 0)
        assert await removals.delete([5], 0) == [5]
        await compacting
        with pytest.raises(LedgerUnknownToBookie):
            await store.read(5, 0)
        forget(promises, *GONE, 5)
        await promises.check(store)

    assert made.live(script)
    made.check()


def test_minor_and_major_come_when_they_are_due_and_wait_when_they_must(small: Any, body: Body) -> None:
    settings = {"gc_interval_ms": 1000, "minor_compaction_interval_ms": 5_000, "major_compaction_interval_ms": 20_000}
    made, records = small(**settings), FakeRecords.of(*ALL)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        assert store.collector is not None
        space = store.collector.space
        await fill(store, promises, body, 4)
        records.delete(*GONE)
        await asyncio.sleep(12)
        assert space()["logs_compacted"] == 0  # a third is wanted: too much for a minor one
        store.collector.compactions.suspend(is_suspended=True)
        await asyncio.sleep(12)
        assert space()["logs_compacted"] == 0
        with pytest.raises(BookieBusy, match="resume"):
            await compact(store)
        store.collector.compactions.suspend(is_suspended=False)
        await asyncio.sleep(3)
        assert space()["logs_compacted"] == 4
        forget(promises, *GONE)
        await promises.check(store)

    assert made.live(script)
    made.check()


def test_a_suspension_outlives_the_bookie(small: Any, body: Body) -> None:
    made, records = small(), FakeRecords.of(*ALL)

    def life(expected: bool, then: bool) -> None:
        async def script(store: LedgerStore, promises: Any) -> None:
            store.collect(records, BOOKIE)
            assert store.collector is not None
            await asyncio.sleep(10)
            assert store.collector.space()["is_compaction_held"] is expected
            await store.collector.compactions.hold_up(is_suspended=then)

        assert made.live(script, stops=False)
        made.crash(NOTHING_SURVIVES)

    life(expected=False, then=True)
    life(expected=True, then=True)
    life(expected=True, then=False)
    life(expected=False, then=False)
    made.disk.fail("open", "COMPACTION_HELD", lambda: OSError(5, "Input/output error"))
    life(expected=False, then=True)
    life(expected=False, then=False)


def test_a_log_that_cannot_be_read_to_its_end_stays(small: Any, body: Body) -> None:
    """[F-14] Damage inside, and a slot that names a place where no such entry is."""
    for offset, said in ((1024 + 4 * 540, "no record"), (1024 + 8 * 540 + 4 + 15, "no such entry")):
        made, records = small(offset), FakeRecords.of(*ALL)

        async def first(store: LedgerStore, promises: Any) -> None:
            await fill(store, promises, body)

        async def second(store: LedgerStore, promises: Any, said: str = said, records: Any = records) -> None:
            store.collect(records, BOOKIE)
            records.delete(*GONE)
            await compact(store)
            assert store.collector is not None
            aside: Any = store.collector.space()["logs_set_aside"]
            assert list(aside) == ["0"]
            assert said in aside["0"], aside
            assert store.collector.space()["logs_compacted"] == 1 + 1
            assert await store.read(5, 4) == body(5, 4, size=500)

        assert made.live(first)
        made.disk.flip_bit("/ledgers0/current/0.log", offset, bit=6)
        assert made.live(second)
        assert "0.log" in logs_of(made)
        assert not [name for name in logs_of(made) if not name.endswith(".log")]


def test_a_full_disk_ends_a_compaction_and_loses_nothing(small: Any, body: Body) -> None:
    for kind in KINDS:
        made, records = small(kind, compaction=kind), FakeRecords.of(*ALL)

        async def script(store: LedgerStore, promises: Any, made: Any = made, records: Any = records) -> None:
            store.collect(records, BOOKIE)
            await fill(store, promises, body, 5)
            records.delete(*GONE)
            await collect(store)
            made.disk.capacity = made.disk.used() + 1500
            await compact(store)
            made.disk.grow(1 << 40)
            await asyncio.sleep(5)
            forget(promises, *GONE)
            await promises.check(store)
            await compact(store)
            await promises.check(store)
            assert store.collector is not None
            assert store.collector.space()["logs_compacted"] == 5

        assert made.live(script)
        made.check()


def test_parts_of_a_run_that_match() -> None:
    piece = Piece(7, 10, 100, 104)
    slots = [bytes([number] * 8) for number in range(1, 5)]
    whole = b"".join(slots)
    assert list(matching_parts(piece, whole, whole)) == [piece]
    assert list(matching_parts(piece, whole, bytes(32))) == []
    other = slots[0] + bytes(8) + slots[2] + slots[3]
    assert list(matching_parts(piece, whole, other)) == [Piece(7, 10, 100, 101), Piece(7, 12, 102, 104)]


# -- crashes -------------------------------------------------------------------------------------------------------


def sweep(small: Any, body: Body, script: Script, **settings: Any) -> int:
    """Crash at disk calls of a life with `script`; then nothing is lost, nothing is leaked."""
    sweep = SpaceSweep(small, body, script, **settings)
    count = sweep.count_calls()
    for number in range(1 + count % STEP, count + 1, STEP):
        try:
            assert not sweep.crash(number)
        except BaseException as error:
            error.add_note(f"crash at disk call {number} of {count}")
            raise
    print(f"{count} disk calls")
    return count


def test_a_crash_in_collection(small: Any, body: Body) -> None:
    """Two ledger directories. [R-21, R-23, R-29]"""
    assert sweep(small, body, deletion_script, ledgers=2) > 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_in_compaction(small: Any, body: Body, kind: str) -> None:
    """[R-18, R-19, F-33, F-34]"""
    assert sweep(small, body, compaction_script(body), compaction=kind) > 150


def test_a_crash_while_a_ledger_is_brought_back(small: Any, body: Body) -> None:
    pinned: list[int] = []

    async def script(store: LedgerStore, promises: Any, records: FakeRecords) -> None:
        store.collect(records, BOOKIE)
        kept = records.ledgers.pop(6)
        await collect(store)
        assert store.collector is not None
        await store.collector.undelete(6)
        pinned.append(6)
        await promises.add(store, 6, {30: body(6, 30)})
        records.ledgers[6] = kept
        await collect(store)

    def with_quarantine(seed: object, **settings: object) -> Any:
        return small(seed, **(settings | {"gc_quarantine_ms": 1 << 40}))

    async def restored(store: LedgerStore, promises: Any, records: FakeRecords) -> None:
        try:
            await script(store, promises, records)
        finally:
            records.ledgers[6] = record(6)

    assert sweep(with_quarantine, body, restored) > 60
    assert pinned


@pytest.mark.parametrize("kills", [1, 5])
@pytest.mark.parametrize("when", ["a flush", "the mark"])
def test_what_a_replay_has_written_twice_is_given_back(machine: Any, body: Body, when: str, kills: int) -> None:
    """A process dies after its entries were flushed and before its mark says so, again and again."""
    made = small_machine(machine, "twice")
    records = FakeRecords.of(1, 2, 3)

    async def load(store: LedgerStore, promises: Any) -> None:
        for first in range(0, 100, 10):
            for ledger_id in (1, 2, 3):
                entries = {each: body(ledger_id, each, size=300) for each in range(first, first + 10)}
                await promises.add(store, ledger_id, entries)

    async def load_and_flush(store: LedgerStore, promises: Any) -> None:
        await load(store, promises)
        await store._parts.checkpointer.flusher.flush_all(())

    async def nothing(store: LedgerStore, promises: Any) -> None:
        pass

    rename = made.disk.rename

    def crash_at_mark(source: str, target: str) -> None:
        if target.endswith("lastMark"):
            made.disk.crash_at = made.disk.call_count + 1
        rename(source, target)

    if when == "a flush":
        for _ in range(kills):
            assert made.live(load_and_flush, stops=False)
            made.crash(PROCESS_DIES)
    else:
        assert made.live(load, stops=False)
        made.crash(PROCESS_DIES)
        for kill in range(kills):
            made.disk.rename = crash_at_mark
            has_marked = made.live(
                nothing, stops=False
            )  # the catalog may know all the same, and then nothing is replayed
            made.disk.rename = rename
            assert not has_marked or kill
            made.crash(PROCESS_DIES)

    async def after(store: LedgerStore, promises: Any) -> None:
        await check_reclaimed(store, promises, records, made)

    assert made.live(nothing)
    assert made.live(after)
    assert made.live(after)
    made.check()


def test_a_deletion_while_a_part_of_a_journal_is_lost_holds_no_compaction_up(small: Any, body: Body) -> None:
    """The index cannot say then that it does not know the ledger, but it has no slot of it to move."""
    made, records = small(compaction="transactional"), FakeRecords.of(*ALL)

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        assert store.collector is not None
        assert store.parts is not None
        await fill(store, promises, body, 6)
        records.delete(*GONE)
        await collect(store)
        made.disk.fail("link", ".log", lambda: OSError(5, "Input/output error"), count=1 << 40, skip=1)
        await compact(store)
        assert [name for name in logs_of(made) if name.endswith(".compacted")]
        store.parts.index.catalog.add_hole("a part of a journal is lost")
        records.delete(5)
        await collect(store)
        made.disk.faults.clear()
        before = store.collector.steps.failure_count
        await collect(store)
        assert store.collector.steps.failure_count == before
        assert not store.parts.index.is_known(5)
        assert await greatest_offsets(store.parts.index, [0], [5]) == {}
        assert not [name for name in logs_of(made) if name.endswith(".compacted")]
        forget(promises, *GONE, 5)

    assert made.live(script)
