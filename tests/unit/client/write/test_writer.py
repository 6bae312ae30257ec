"""The writer: ids, batches, memory, cancellation, failures of bookies and of the store, sealing and closing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.fakes.pool import PASSWORD, Stage, on_stage, play

from bookies import errors
from bookies.client.base.budget import MemoryBudget
from bookies.client.write import LedgerWriter
from bookies.client.write.adds import LedgerFrames, SendWindow
from bookies.model import DigestType, LedgerMetadata, LedgerState
from bookies.protocol.ledger.ledger import closed, in_recovery, with_ensemble


@on_stage()
async def test_append_returns_dense_ids_and_stores_on_every_replica(stage: Stage) -> None:
    ledger = await stage.create()
    assert [await ledger.append(payload) for payload in (b"one", bytearray(b"two"), memoryview(b"three"))] == [
        0,
        1,
        2,
    ]
    await stage.settle()
    for entry_id in range(3):
        assert stage.replicas(ledger.metadata, entry_id) != []
        assert len(stage.replicas(ledger.metadata, entry_id)) == 3
    assert stage.header("a", ledger.ledger_id, 2) == (1, 11)  # LAC when packaged; accumulated length
    assert (ledger.last_add_confirmed, ledger.length, ledger.pending_count) == (2, 11, 0)
    await ledger.close()


@on_stage()
async def test_traces_of_entries_that_one_bookie_has_not_answered_cost_nothing(stage: Stage) -> None:
    """They stay for as long as the bookie is silent, and each answer of the others would visit them all."""
    visits = 0

    class Visited(dict[int, str]):
        def __iter__(self) -> Iterator[int]:
            nonlocal visits
            for entry_id in super().__iter__():
                visits += 1
                yield entry_id

    ledger = await stage.create()
    traces = ledger._channel._traces = Visited()
    stage.pool.trace = lambda: "a trace"  # type: ignore[method-assign]
    stage.pool["c"].is_held = True
    for _ in range(50):
        await ledger.append_many([b"x"])
    assert ledger._channel._traces is traces  # no copy is made
    assert len(traces) == 50
    assert visits < 200
    stage.pool["c"].is_held = False
    stage.pool["c"].release()
    await stage.settle()
    assert len(traces) == 0
    await ledger.close()


@on_stage()
async def test_one_who_waits_for_room_lets_the_appends_behind_go_on(stage: Stage) -> None:
    """An append that waits for memory makes `append_nowait` refuse: waiting for room must let that one run."""
    ledger = await stage.create()
    ledger._budget = MemoryBudget(1 << 20)
    ledger._payload_size_max = 100_000
    for name in "abc":
        stage.pool[name].is_held = True
    sent = [ledger.append_nowait(b"x" * 100_000) for _ in range(10)]
    refusals = 0

    async def append() -> int:
        nonlocal refusals
        while True:
            try:
                return await ledger.append_nowait(b"z" * 100_000)
            except errors.BookieBusy:
                refusals += 1
                assert refusals < 10, "the loop is blocked"
                await ledger.wait_writable()

    persistent = asyncio.create_task(append())
    await stage.settle()
    queued = asyncio.create_task(ledger.append(b"y" * 100_000))
    await stage.settle()
    assert not queued.done()
    for name in "abc":
        stage.pool[name].is_held = False
        stage.pool[name].release()
    assert {await queued, await persistent} == {10, 11}
    await asyncio.gather(*sent)
    await ledger.close()


@on_stage()
async def test_a_writer_has_no_dictionary_of_its_own(stage: Stage) -> None:
    """With more than 30 attributes that would be 1.5 KiB each, for thousands of writers."""
    ledger = await stage.create()
    assert not hasattr(ledger, "__dict__")
    await ledger.close()


@on_stage()
async def test_appends_of_one_turn_share_one_write_per_bookie(stage: Stage) -> None:
    ledger = await stage.create()
    futures = [ledger.append_nowait(b"x" * 100) for _ in range(500)]
    assert ledger.pending_count == 500
    assert [await future for future in futures] == list(range(500))
    assert [(bookie, len(ids)) for bookie, ids in stage.pool.asked("add")] == [("a", 500), ("b", 500), ("c", 500)]
    await ledger.close()


@on_stage()
async def test_append_many_is_cut_into_buffers_and_keeps_its_order(stage: Stage) -> None:
    ledger = await stage.create()
    before = ledger.append_nowait(b"first")
    payloads = [b"%d" % number * 50 for number in range(10_000)]
    assert await ledger.append_many(payloads) == 10_000
    assert await before == 0
    assert len(stage.pool.asked("add")) > 10
    for bookie in "abc":
        ids = [entry_id for name, ids in stage.pool.asked("add") if name == bookie for entry_id in ids]
        assert ids == list(range(10_001))
    assert await ledger.append_many(iter([b"a", b"b"])) == 10_002
    await ledger.seal()
    record = await stage.record(ledger.ledger_id)
    assert (record.last_entry_id, record.length) == (10_002, 5 + sum(map(len, payloads)) + 2)
    await ledger.close()


@on_stage(memory_limit=1 << 20)
async def test_one_append_many_is_never_interleaved(stage: Stage) -> None:
    """Also when it waits for memory in the middle; others wait behind it and `append_nowait` refuses."""
    ledger = await stage.create()
    for bookie in "abc":
        stage.pool[bookie].is_held = True
    many = asyncio.create_task(ledger.append_many([b"m" * 1000] * 3000))
    await stage.settle()
    with pytest.raises(errors.BookieBusy, match="memory_limit"):
        ledger.append_nowait(b"between")
    single = asyncio.create_task(ledger.append(b"behind"))
    await stage.settle()
    for bookie in "abc":
        stage.pool[bookie].is_held = False
        stage.pool[bookie].release()
    assert await many == 2999
    assert await single == 3000
    await ledger.close()


@on_stage(memory_limit=1 << 20)
async def test_appends_that_wait_for_memory_are_not_overtaken(stage: Stage) -> None:
    """Whoever calls just when memory becomes free, before those who wait have run, stands in line behind them."""
    ledger = await stage.create()
    calls: list[int] = []
    ids: dict[int, int] = {}

    async def append(number: int) -> None:
        calls.append(number)
        ids[number] = await ledger.append(b"x" * 100_000)

    tasks: list[asyncio.Task[None]] = []
    stage.pool["c"].is_held = True
    for number in range(40):
        tasks.append(asyncio.create_task(append(number)))
    await stage.settle()
    assert len(ids) == 10, "the others wait for memory"
    for number in range(40, 80):
        stage.pool["c"].release(1)
        await append(number) if number == 79 else tasks.append(asyncio.create_task(append(number)))
        await asyncio.sleep(0)
        if number % 3 == 0:
            with pytest.raises(errors.BookieBusy):
                ledger.append_nowait(b"x" * 100_000)
        if number == 70:
            stage.pool["c"].is_held = False
            stage.pool["c"].release()
    await asyncio.gather(*tasks)
    assert [ids[number] for number in calls] == list(range(80))
    await ledger.close()


@on_stage(memory_limit=1 << 20)
async def test_appends_that_wait_for_memory_end_with_their_writer(stage: Stage) -> None:
    """The memory may be another ledger's: nobody knows when it becomes free."""
    for is_failure in (False, True):
        ledger, budget = await stage.create(), MemoryBudget(1 << 20)
        ledger._budget = budget
        budget.take(1 << 20)
        waiting: list[asyncio.Task[object]] = [asyncio.create_task(ledger.append(b"x")) for _ in range(3)]
        waiting.append(asyncio.create_task(ledger.append_many([b"x"])))
        waiting.append(asyncio.create_task(ledger.append(b"x", timeout=60)))
        waiting.append(asyncio.create_task(ledger.wait_writable()))
        await stage.settle()
        assert not any(task.done() for task in waiting)
        if is_failure:
            ledger._task_died(RuntimeError("a bug"))
            await stage.settle()
        else:
            await ledger.close()
        assert all(task.done() for task in waiting)
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, errors.LedgerClosed)
            assert "nothing was sent" in str(outcome)
        assert budget.used == 1 << 20
        budget.release(1 << 20)
        await budget.acquire(1 << 20)  # None of them is in its way.
        await ledger.close()


@on_stage()
async def test_memory_is_held_until_the_slowest_replica_has_answered(stage: Stage) -> None:
    """Pains 40: entries are confirmed by two bookies, but the third's unanswered bytes stop the writer."""
    budget = MemoryBudget(1 << 20)
    ledger = await stage.create()
    ledger._budget = budget
    stage.pool["c"].is_held = True
    for _ in range(10):
        await ledger.append(b"x" * 100_000)
    assert ledger.last_add_confirmed == 9
    assert budget.used > 1_000_000
    waiting = asyncio.create_task(ledger.append(b"y" * 100_000))
    await stage.settle()
    assert not waiting.done()
    assert ledger.pending_count == 0, "it waits before it gets an id"
    stage.pool["c"].release(1)
    assert await waiting == 10
    stage.pool["c"].is_held = False
    stage.pool["c"].release()
    await stage.settle()
    assert budget.used == 0
    await ledger.close()


@on_stage(memory_limit=1 << 20)
async def test_memory_is_released_when_the_slow_replica_is_replaced(stage: Stage) -> None:
    ledger = await stage.create()
    stage.pool["c"].is_silent = True
    started = stage.loop.time()
    for _ in range(30):
        await ledger.append(b"x" * 100_000)
    assert stage.loop.time() - started == pytest.approx(5, abs=0.5), "one timeout, then a replacement"
    assert "c" not in ledger.metadata.last_ensemble
    await ledger.seal()
    assert ledger._budget.used == 0
    await ledger.close()


@on_stage()
async def test_striped_ledger_sends_each_bookie_its_entries(stage: Stage) -> None:
    ledger = await stage.create("4/2/2")
    await ledger.append_many([b"%d" % number for number in range(20)])
    assert dict(stage.pool.asked("add"))["a"] == [0, 3, 4, 7, 8, 11, 12, 15, 16, 19]
    await ledger.seal()
    for entry_id in range(20):
        assert len(stage.replicas(ledger.metadata, entry_id)) == 2
    await ledger.close()


@on_stage()
async def test_failed_bookie_is_replaced_and_gets_nothing_more(stage: Stage) -> None:
    ledger = await stage.create()
    await ledger.append_many([b"a"] * 10)
    stage.pool["b"].is_down = True
    assert await ledger.append_many([b"b"] * 10) == 19
    assert await ledger.append(b"c") == 20
    await ledger.seal()
    record = await stage.record(ledger.ledger_id)
    assert [first for first, _ in record.ensembles] == [0, 10]
    assert "b" not in record.last_ensemble
    for entry_id in range(10, 21):
        assert len(stage.replicas(record, entry_id)) == 3
    await ledger.close()


@on_stage()
async def test_new_ensemble_is_stored_before_anything_is_sent_to_it(stage: Stage) -> None:
    """X-33: the mutant that re-targets first would confirm entries on a bookie that the store does not list."""
    ledger = await stage.create()
    await ledger.append(b"a")

    async def check() -> None:
        assert "d" in (await stage.record(ledger.ledger_id)).last_ensemble

    checks: list[Any] = []
    stage.pool["d"].on_request = lambda kind, entry_id: checks.append(asyncio.create_task(check()))
    stage.writable = stage.writable[:4]
    stage.pool["c"].is_down = True
    await ledger.append_many([b"b"] * 5)
    await ledger.append_many([b"b"] * 5)
    await asyncio.gather(*checks)
    assert checks
    await ledger.close()


@on_stage()
async def test_late_failure_waits_for_the_next_append(stage: Stage) -> None:
    """X-32: an idle writer does not touch the store."""
    ledger = await stage.create()
    stage.pool["c"].is_silent = True
    await ledger.append(b"a")
    await asyncio.sleep(3600)
    assert len((await stage.record(ledger.ledger_id)).ensembles) == 1
    assert await ledger.append(b"b") == 1
    await ledger.seal()
    record = await stage.record(ledger.ledger_id)
    assert [first for first, _ in record.ensembles] == [0, 1]
    assert stage.replicas(record, 1)[:2] != []
    await ledger.close()


@on_stage(("a", "b", "c"))
async def test_nobody_to_replace_a_failed_bookie(stage: Stage) -> None:
    """X-37: exactly three bookies. Everything pending is unknown; the ledger ends at its confirmed prefix."""
    ledger = await stage.create()
    await ledger.append(b"kept")
    stage.pool["b"].is_down = stage.pool["c"].is_down = True
    results = await asyncio.gather(*[ledger.append(b"lost") for _ in range(3)], return_exceptions=True)
    assert [type(result) for result in results] == [errors.NotEnoughBookies] * 3
    assert [(result.entry_id, result.ledger_id) for result in results] == [(n, ledger.ledger_id) for n in (1, 2, 3)]
    assert "may or may not be stored" in str(results[0])
    with pytest.raises(errors.LedgerClosed, match="nothing was sent"):
        await ledger.append(b"more")
    with pytest.raises(errors.NotEnoughBookies):
        await ledger.seal()
    record = await stage.record(ledger.ledger_id)
    assert (record.state, record.last_entry_id, record.length) == (LedgerState.CLOSED, 0, 4)
    assert ledger.length == 4
    await ledger.close()


@on_stage()
async def test_fenced_writer_leaves_a_ledger_in_recovery_alone(stage: Stage) -> None:
    """D-27, X-12: after "fenced" the record says IN_RECOVERY; the recovery decides the end."""
    ledger = await stage.create()
    await ledger.append(b"a")
    versioned = await stage.driver.read_ledger(ledger.ledger_id)
    await stage.driver.write_ledger(in_recovery(versioned.metadata), versioned.version)
    for bookie in "ab":
        stage.pool[bookie].fenced.add(ledger.ledger_id)
    with pytest.raises(errors.LedgerFenced, match="may or may not be stored"):
        await ledger.append(b"b")
    with pytest.raises(errors.LedgerFenced):
        await ledger.seal()
    assert (await stage.record(ledger.ledger_id)).state is LedgerState.IN_RECOVERY
    assert "failed(LedgerFenced)" in repr(ledger)
    await ledger.close()


@on_stage()
async def test_fenced_writer_of_a_ledger_that_nobody_recovers_ends_it(stage: Stage) -> None:
    """A bookie that came back in limbo fences its ledgers; without this close the ledger would stay open for ever."""
    ledger = await stage.create()
    await ledger.append(b"a")
    for bookie in "ab":
        stage.pool[bookie].fenced.add(ledger.ledger_id)
    with pytest.raises(errors.LedgerFenced):
        await ledger.append(b"b")
    with pytest.raises(errors.LedgerFenced):
        await ledger.seal()
    record = await stage.record(ledger.ledger_id)
    assert (record.state, record.last_entry_id) == (LedgerState.CLOSED, 0)
    await ledger.close()


def end_elsewhere(last: int, length: int) -> Any:
    """Somebody else closes the ledger there."""

    async def act(stage: Stage, ledger: LedgerWriter) -> None:
        versioned = await stage.driver.read_ledger(ledger.ledger_id)
        await stage.driver.write_ledger(closed(versioned.metadata, last, length), versioned.version)

    return act


@on_stage()
async def test_seal_adopts_an_equal_end_and_refuses_another(stage: Stage) -> None:
    """X-25, I-24: same end is success; another end is a conflict, with the same outcome each time."""
    ledger = await stage.create()
    await ledger.append_many([b"ab"] * 3)
    await end_elsewhere(2, 6)(stage, ledger)
    assert await ledger.seal() == 2
    await ledger.close()
    other = await stage.create()
    await other.append_many([b"ab"] * 3)
    await end_elsewhere(4, 10)(stage, other)
    for _ in range(2):
        with pytest.raises(errors.VersionConflict, match="closed by another client at entry 4"):
            await other.seal()
    assert (await stage.record(other.ledger_id)).last_entry_id == 4
    await other.close()


@on_stage()
async def test_close_after_foreign_end_compares_its_own_prefix(stage: Stage) -> None:
    """D-28: pending entries are in the air when a foreign CLOSED is met by an ensemble change; the ends agree."""
    ledger = await stage.create()
    await ledger.append_many([b"ab"] * 3)
    await end_elsewhere(2, 6)(stage, ledger)
    stage.pool["c"].is_down = stage.pool["b"].is_down = True
    with pytest.raises(errors.LedgerClosed, match="another client has closed"):
        await ledger.append(b"pending")
    with pytest.raises(errors.LedgerClosed):
        await ledger.seal()
    assert await ledger._closer.wait_written() is None, "the implicit close found an equal end"
    assert "sealed" in repr(ledger)
    await ledger.close()


@on_stage()
async def test_explicit_seal_decides_the_end_of_a_ledger_in_recovery(stage: Stage) -> None:
    """X-25, first half: the confirmed prefix is a legal end, and the recovery adopts it."""
    ledger = await stage.create()
    await ledger.append_many([b"ab"] * 3)
    versioned = await stage.driver.read_ledger(ledger.ledger_id)
    await stage.driver.write_ledger(in_recovery(versioned.metadata), versioned.version)
    assert await ledger.seal() == 2
    assert (await stage.recover(ledger.ledger_id)).last_entry_id == 2
    await ledger.close()


@on_stage()
async def test_seal_waits_for_what_was_appended_before(stage: Stage) -> None:
    ledger = await stage.create()
    for bookie in "abc":
        stage.pool[bookie].is_held = True
    futures = [ledger.append_nowait(b"a") for _ in range(5)]
    seals = [asyncio.create_task(ledger.seal()) for _ in range(2)]
    await stage.settle()
    assert "sealing" in repr(ledger)
    with pytest.raises(errors.LedgerClosed, match="being sealed"):
        ledger.append_nowait(b"b")
    for bookie in "ab":
        stage.pool[bookie].release()
    assert await asyncio.gather(*seals, *futures) == [4, 4, 0, 1, 2, 3, 4]
    assert await ledger.seal() == 4
    stage.pool["c"].release()
    await ledger.close()


@on_stage()
async def test_seal_that_times_out_leaves_the_writer_open(stage: Stage) -> None:
    ledger = await stage.create()
    for bookie in "abc":
        stage.pool[bookie].is_held = True
    future = ledger.append_nowait(b"a")
    with pytest.raises(errors.AckQuorumTimeout, match="1 entries were not confirmed"):
        await ledger.seal(timeout=1)
    for bookie in "abc":
        stage.pool[bookie].is_held = False
        stage.pool[bookie].release()
    assert await future == 0
    assert await ledger.append(b"b") == 1
    assert await ledger.seal() == 1
    await ledger.close()


class StoreFaults:
    """Fails writes of ledgers: `before` (no effect) and `after` (took effect), so many times."""

    def __init__(self) -> None:
        self.before_count = 0
        self.after_count = 0
        self.is_slow = False

    async def before(self, operation: str, driver: Any) -> None:
        if operation == "write_ledger":
            if self.is_slow:
                await asyncio.sleep(1000)
            if self.before_count:
                self.before_count -= 1
                raise errors.MetadataError("store away")

    async def after(self, operation: str, driver: Any) -> None:
        if operation == "write_ledger" and self.after_count:
            self.after_count -= 1
            raise errors.MetadataError("reply lost")


def test_seal_survives_a_lost_reply_and_may_be_repeated() -> None:
    """X-65, D-25: the write took effect but its reply was lost; the store is away for longer than our patience."""
    faults = StoreFaults()

    async def act(stage: Stage) -> None:
        ledger = await stage.create()
        await ledger.append(b"a")
        faults.after_count = 1
        assert await ledger.seal() == 0
        await ledger.close()
        other = await stage.create()
        await other.append(b"a")
        faults.before_count = 50
        with pytest.raises(errors.MetadataError, match="store away"):
            await other.seal()
        faults.before_count = 0
        assert await other.seal() == 0
        assert (await stage.record(other.ledger_id)).is_closed
        await other.close()
        third = await stage.create()
        await third.append(b"a")
        faults.before_count = 50
        for _ in range(2):
            with pytest.raises(errors.MetadataError, match="store away"):
                await third.seal()
            await third.close()
        fourth = await stage.create()
        await fourth.append(b"a")
        faults.before_count = 50
        with pytest.raises(errors.MetadataError, match="store away"):
            await fourth.seal()
        fourth.client_closed()
        await fourth.client_stopped()
        with pytest.raises(errors.MetadataError, match="store away"):
            await asyncio.wait_for(fourth.seal(), 600)
        await asyncio.wait_for(fourth.close(), 600)
        fifth = await stage.create()
        await fifth.append(b"a")
        seal = asyncio.create_task(fifth.seal())
        await asyncio.sleep(0)  # The task that writes the end has not begun.
        await fifth.client_stopped()
        with pytest.raises(errors.ClientClosed):
            await asyncio.wait_for(seal, 600)

    play(act, faults=faults)


class OutOfMemory(LedgerFrames):
    def pack(self, first: int, last_add_confirmed: int, payloads: Sequence[bytes]) -> bytes:
        raise MemoryError


@on_stage()
async def test_an_entry_that_could_not_be_packed_is_not_acknowledged_with_the_id_of_another(stage: Stage) -> None:
    ledger, other = await stage.create(), await stage.create()
    other._scheduler = ledger._scheduler
    good = ledger._channel.frames
    ledger._channel.frames = OutOfMemory(ledger.ledger_id, DigestType.CRC32C, PASSWORD, good.window)
    lost, beside = ledger.append_nowait(b"lost"), other.append_nowait(b"beside")
    await stage.settle()
    ledger._channel.frames = good
    with pytest.raises(errors.LedgerClosed, match="nothing was sent: the writer has failed: MemoryError"):
        await lost
    with pytest.raises(errors.LedgerClosed):
        ledger.append_nowait(b"next")
    assert await beside == 0
    assert ledger._budget.used == 0
    await ledger.close()
    await other.close()


def test_seal_with_a_slow_store() -> None:
    faults = StoreFaults()

    async def act(stage: Stage) -> None:
        ledger = await stage.create()
        await ledger.append(b"a")
        faults.is_slow = True
        with pytest.raises(errors.MetadataError, match="may or may not be sealed"):
            await ledger.seal(timeout=1)
        assert await ledger.seal() == 0, "the write under way is waited for"
        await ledger.close()

    play(act, faults=faults)


def test_lost_reply_of_an_ensemble_change() -> None:
    """X-35: exactly one new fragment."""
    faults = StoreFaults()

    async def act(stage: Stage) -> None:
        ledger = await stage.create()
        await ledger.append(b"a")
        faults.after_count = 1
        stage.pool["a"].is_down = True
        assert await ledger.append_many([b"b"] * 3) == 3
        await ledger.append(b"c")
        await ledger.seal()
        assert len((await stage.record(ledger.ledger_id)).ensembles) == 2
        await ledger.close()

    play(act, faults=faults)


def test_store_that_never_comes_back_during_a_change() -> None:
    """X-42: the adds are unknown; a later recovery keeps what it finds."""
    faults = StoreFaults()

    async def act(stage: Stage) -> None:
        ledger = await stage.create()
        faults.before_count = 1000
        stage.pool["a"].is_down = stage.pool["b"].is_down = True
        with pytest.raises(errors.MetadataError, match="store away"):
            await ledger.append(b"b")
        await ledger.close()
        faults.before_count = 0
        stage.pool["a"].is_down = stage.pool["b"].is_down = False
        assert (await stage.recover(ledger.ledger_id)).is_closed

    play(act, faults=faults)


@on_stage()
async def test_deleted_ledger_is_noticed_by_a_change(stage: Stage) -> None:
    """X-66."""
    ledger = await stage.create()
    await stage.driver.delete_ledger(ledger.ledger_id)
    stage.pool["a"].is_down = stage.pool["b"].is_down = True
    with pytest.raises(errors.LedgerNotFound):
        await ledger.append(b"b")
    await ledger.close()


@on_stage(("a", "b", "c", "d", "e", "f"))
async def test_foreign_change_of_an_older_fragment_survives(stage: Stage) -> None:
    """X-34 through the writer: re-replication swapped a bookie in fragment 0 while the writer changes the last one."""
    ledger = await stage.create()
    await ledger.append(b"a")
    stage.pool["c"].is_down = True
    await ledger.append_many([b"b"] * 2)
    await ledger.append(b"b")
    versioned = await stage.driver.read_ledger(ledger.ledger_id)
    (_, oldest), last = versioned.metadata.ensembles
    swapped = versioned.metadata.replace(ensembles=((0, (*oldest[:2], "x")), last))
    await stage.driver.write_ledger(swapped, versioned.version)
    stage.pool["b"].is_down = True
    stage.writable = stage.writable[3:]
    await ledger.append_many([b"c"] * 2)
    await ledger.append(b"c")
    await ledger.seal()
    record = await stage.record(ledger.ledger_id)
    assert record.ensembles[0][1][2] == "x"
    assert len(record.ensembles) == 3
    assert "b" not in record.last_ensemble
    await ledger.close()


@on_stage()
async def test_cancelled_append_is_unknown_and_stays_in_the_pipeline(stage: Stage) -> None:
    ledger = await stage.create()
    for bookie in "abc":
        stage.pool[bookie].is_held = True
    task = asyncio.create_task(ledger.append(b"a"))
    await stage.settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError, match="may or may not be stored"):
        await task
    with pytest.raises(errors.AckQuorumTimeout, match="may or may not be stored"):
        await ledger.append(b"b", timeout=0.5)
    for bookie in "abc":
        stage.pool[bookie].is_held = False
        stage.pool[bookie].release()
    assert await ledger.append(b"c", timeout=1) == 2
    await ledger.close()


@on_stage(memory_limit=1 << 20)
async def test_timeout_before_there_is_memory_means_nothing_was_sent(stage: Stage) -> None:
    ledger = await stage.create()
    for bookie in "abc":
        stage.pool[bookie].is_held = True
    big = [ledger.append_nowait(b"x" * 250_000) for _ in range(4)]
    with pytest.raises(errors.BookieBusy, match="nothing was sent"):
        await ledger.append(b"x" * 250_000, timeout=1)
    with pytest.raises(errors.BookieBusy):
        await ledger.append_many([b"x" * 250_000], timeout=1)
    with pytest.raises(errors.BookieBusy):
        await ledger.wait_writable(timeout=1)
    cancelled = asyncio.create_task(ledger.append(b"x" * 250_000))
    await stage.settle()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    for bookie in "abc":
        stage.pool[bookie].is_held = False
        stage.pool[bookie].release()
    await asyncio.gather(*big)
    await ledger.wait_writable()
    assert await ledger.append_many([b"y"], timeout=1) == 4
    assert ledger._budget.used < 1000
    await ledger.close()


@on_stage(frame_size_max=4096)
async def test_arguments_are_checked_before_anything_is_sent(stage: Stage) -> None:
    ledger = await stage.create()
    with pytest.raises(errors.InvalidArgument, match="exceeds the limit of 4,032, which follows from frame_size_max"):
        await ledger.append(b"x" * 4033)
    assert await ledger.append(b"x" * 4032) == 0
    with pytest.raises(errors.InvalidArgument, match="at least one"):
        await ledger.append_many([])
    with pytest.raises(errors.InvalidArgument, match="not str"):
        ledger.append_nowait("text")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument):
        await ledger.append_many([b"a", b"x" * 5000])
    with pytest.raises(errors.NotSupported, match="advanced"):
        await ledger.write(7, b"x")
    assert ledger.last_add_confirmed == 0
    await ledger.close()


@on_stage(frame_size_max=4096, wire="v3")
async def test_v3_frames_leave_room_for_their_larger_envelope(stage: Stage) -> None:
    ledger = await stage.create()
    with pytest.raises(errors.InvalidArgument):
        await ledger.append(b"x" * 4000)
    await ledger.close()


@on_stage()
async def test_mutable_payloads_are_copied(stage: Stage) -> None:
    ledger = await stage.create(digest_type=DigestType.DUMMY)
    payload = bytearray(b"before")
    future = ledger.append_nowait(payload)
    payload[:] = b"after!"
    await future
    assert stage.pool["a"].entries[ledger.ledger_id, 0].endswith(b"before")
    await ledger.close()


@on_stage()
async def test_block_seals_or_only_closes(stage: Stage) -> None:
    """Leaving by an exception lets a recovery decide the end."""
    async with await stage.create() as ledger:
        ledger.append_nowait(b"not awaited")
    record = await stage.record(ledger.ledger_id)
    assert (record.state, record.last_entry_id) == (LedgerState.CLOSED, 0)
    other = await stage.create()

    async def leave_by_an_exception() -> None:
        async with other:
            await other.append(b"a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await leave_by_an_exception()
    assert (await stage.record(other.ledger_id)).state is LedgerState.OPEN
    assert "closed" in repr(other)
    with pytest.raises(errors.LedgerClosed):
        await other.append(b"b")


@on_stage(("a", "b", "c", "d"))
async def test_a_bookie_that_the_watch_has_not_shown_yet_replaces_a_failed_one(stage: Stage) -> None:
    stage.late.append(stage.writable.pop())
    stage.pool["b"].is_down = True
    ledger = await stage.create()
    assert await ledger.append(b"kept") == 0
    await ledger.seal()
    assert (await stage.record(ledger.ledger_id)).ensembles == ((0, ("a", "d", "c")),)


@on_stage(("a", "b", "c"))
async def test_leaving_the_block_after_a_lost_append_raises(stage: Stage) -> None:
    """An append that nobody awaited has failed: the block must not end as if all was well (pains 12)."""
    stage.pool["a"].is_down = stage.pool["b"].is_down = True
    ledger = await stage.create()

    async def forget_the_outcome() -> asyncio.Future[int]:
        async with ledger:
            return ledger.append_nowait(b"lost")

    with pytest.raises(errors.NotEnoughBookies, match="none of the 3 writable bookies can take the place"):
        await forget_the_outcome()


@on_stage()
async def test_close_makes_what_is_pending_unknown(stage: Stage) -> None:
    ledger = await stage.create()
    await ledger.append(b"ab")
    for bookie in "abc":
        stage.pool[bookie].is_held = True
    sent = ledger.append_nowait(b"a")
    await stage.settle()
    queued = ledger.append_nowait(b"b")
    await ledger.close()
    with pytest.raises(errors.LedgerClosed, match="may or may not be stored"):
        await sent
    with pytest.raises(errors.LedgerClosed, match="nothing was sent"):
        await queued
    with pytest.raises(errors.LedgerClosed):
        await ledger.seal()
    await ledger.close()
    assert (ledger.last_add_confirmed, ledger.length) == (0, 2)
    for bookie in "abc":
        stage.pool[bookie].release()
    assert ledger._budget.used == 0, "late answers give the memory back"
    assert (await stage.record(ledger.ledger_id)).state is LedgerState.OPEN


def test_close_while_the_ensemble_changes() -> None:
    faults = StoreFaults()

    async def act(stage: Stage) -> None:
        ledger = await stage.create()
        faults.is_slow = True
        stage.pool["a"].is_down = stage.pool["b"].is_down = True
        future = ledger.append_nowait(b"a")
        await stage.settle()
        assert ledger._pipeline.is_changing
        await ledger.close()
        with pytest.raises(errors.LedgerClosed):
            await future

    play(act, faults=faults)


@on_stage()
async def test_client_that_closes_its_pool(stage: Stage) -> None:
    ledger = await stage.create()
    await ledger.append(b"a")
    stage.pool.is_closed = True
    with pytest.raises(errors.ClientClosed):
        await ledger.append(b"b")
    assert (await stage.record(ledger.ledger_id)).state is LedgerState.OPEN
    assert ledger._budget.used == 0
    await ledger.close()


@on_stage()
async def test_own_mistake_ends_the_writer_instead_of_hanging_it(stage: Stage) -> None:
    ledger = await stage.create()
    stage.mistake = KeyError("a bug")
    stage.pool["a"].is_down = stage.pool["b"].is_down = True
    with pytest.raises(errors.LocalProtocolError, match="a bug"):
        await ledger.append(b"b")
    await ledger.close()


@on_stage(tuple("abcdefghij"), ensemble_changes_max=2)
async def test_too_many_ensemble_changes(stage: Stage) -> None:
    """X-41."""
    ledger = await stage.create()
    await ledger.append(b"a")
    for bookie in "abcde":
        stage.pool[bookie].refuses_adds = errors.WriteFailed
    with pytest.raises(errors.WriteFailed, match="too many ensemble changes"):
        await ledger.append(b"b")
    with pytest.raises(errors.WriteFailed):
        await ledger.seal()
    assert (await stage.record(ledger.ledger_id)).last_entry_id == 0
    await ledger.close()


@on_stage()
async def test_repr_shows_state(stage: Stage) -> None:
    ledger = await stage.create()
    await ledger.append(b"a")
    assert repr(ledger) == (
        f"<Ledger {ledger.ledger_id} open E3/Qw3/Qa2 last_add_confirmed=0 pending=0 ensemble=[a, b, c]>"
    )
    await ledger.seal()
    assert " sealed " in repr(ledger)
    await ledger.close()
    assert PASSWORD.decode() not in repr(ledger)


@on_stage()
async def test_budget_is_fair_and_exact(stage: Stage) -> None:
    budget = MemoryBudget(100)
    await budget.acquire(60)
    order: list[str] = []

    async def take(name: str, size: int) -> None:
        await budget.acquire(size)
        order.append(name)

    large = asyncio.create_task(take("large", 90))
    await stage.settle()
    small = asyncio.create_task(take("small", 10))
    gone = asyncio.create_task(take("gone", 5))
    await stage.settle()
    assert not budget.try_acquire(1), "those who wait come first"
    assert "2 waiting" not in repr(budget)
    gone.cancel()
    budget.release(60)
    await asyncio.gather(large, small)
    assert order == ["large", "small"]
    with pytest.raises(errors.InvalidArgument, match="memory_limit"):
        await budget.acquire(101)
    # Cancelled in the very turn in which it was granted: given back.
    unlucky = asyncio.create_task(take("unlucky", 50))
    await stage.settle()
    budget.release(100)
    unlucky.cancel()
    with pytest.raises(asyncio.CancelledError):
        await unlucky
    assert budget.used == 0


def test_window_slices_and_measures() -> None:
    """Frames across batches, lengths inside and behind them."""

    def frame(length: int) -> bytes:
        return bytes(52) + length.to_bytes(8, "big")

    window = SendWindow(10, 100)
    assert window.length_at(9) == 100
    first, second = [frame(101), frame(103)], [frame(106), frame(110), frame(115)]
    window.push(10, b"".join(first), [0, 60, 120])
    window.push(12, b"".join(second), range(0, 181, 60))
    assert window.frames(range(12, 15)) == b"".join(second)
    assert window.frames(range(10, 15)) == b"".join(first + second)
    assert window.frames([11, 12, 14]) == first[1] + second[0] + second[2]
    assert [window.length_at(entry_id) for entry_id in range(9, 15)] == [100, 101, 103, 106, 110, 115]
    assert window.release(11) == 0
    assert window.release(12) == 120
    assert window.length_at(11) == 103
    assert window.frames([13]) == second[1]
    assert window.release(15) == 180
    assert window.length_at(14) == 115


def test_legal_transitions_only() -> None:
    """What writers commit passes the checker that the simulator uses."""
    from bookies.protocol.ledger.ledger import Author, illegality

    async def act(stage: Stage) -> None:
        commits: list[LedgerMetadata] = []
        write = stage.driver.write_ledger

        async def spy(metadata: LedgerMetadata, expected_version: int, *rest: Any) -> Any:
            before = await stage.record(metadata.ledger_id)
            assert illegality(before, metadata, Author.WRITER) == ""
            commits.append(metadata)
            return await write(metadata, expected_version, *rest)

        stage.driver.write_ledger = spy  # type: ignore[method-assign]
        async with await stage.create() as ledger:
            await ledger.append(b"a")
            stage.pool["a"].is_down = True
            await ledger.append_many([b"b"] * 3)
        assert len(commits) == 2
        assert with_ensemble(commits[0], 1, commits[0].last_ensemble) == commits[0]

    play(act)


@on_stage()
async def test_payloads_that_are_none_are_refused(stage: Stage) -> None:
    ledger = await stage.create()
    for wrong in (5, None):
        with pytest.raises(errors.InvalidArgument, match="expected payloads, one after the other"):
            await ledger.append_many(wrong)  # type: ignore[arg-type]
    assert await ledger.append(b"x") == 0
    await ledger.close()
