"""Writers that want other treatment: ids of their own, deferred sync, ensemble changes, deadlines, fault domains."""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes.pool import Stage, on_stage

from bookies import errors
from bookies.client.write import AdvancedLedgerWriter
from bookies.model import LedgerState

# -- ids of the caller ---------------------------------------------------------------------------------------------


@on_stage()
async def test_advanced_entries_are_confirmed_in_order_whatever_the_order_of_the_calls(stage: Stage) -> None:
    ledger = await stage.create(kind=AdvancedLedgerWriter)
    later = [asyncio.create_task(ledger.write(entry_id, b"%d" % entry_id)) for entry_id in (3, 1, 2)]
    await stage.settle()
    assert ledger.last_add_confirmed == -1
    assert ledger.pending_count == 3
    assert not any(task.done() for task in later)
    assert await ledger.write(0, b"zero") == 0
    assert await asyncio.gather(*later) == [3, 1, 2]
    await stage.settle()
    assert [len(stage.replicas(ledger.metadata, entry_id)) for entry_id in range(4)] == [3, 3, 3, 3]
    assert (ledger.last_add_confirmed, ledger.length, ledger.pending_count) == (3, 7, 0)
    assert ledger._budget.used == 0
    await ledger.seal()
    record = await stage.record(ledger.ledger_id)
    assert (record.state, record.last_entry_id, record.length) == (LedgerState.CLOSED, 3, 7)
    await ledger.close()


@on_stage()
async def test_an_id_is_taken_once(stage: Stage) -> None:
    """X-74, D-15, I-31: pending, delivered, acknowledged but not forced, negative."""
    ledger = await stage.create(kind=AdvancedLedgerWriter, deferred_sync=True)
    waiting = asyncio.create_task(ledger.write(2, b"two"))
    await stage.settle()
    assert await ledger.write(0, b"zero") == 0
    log = list(stage.pool.log)
    for entry_id in (2, 0, -1, -(1 << 70)):
        with pytest.raises(errors.EntryExists):
            await ledger.write(entry_id, b"again")
    with pytest.raises(errors.InvalidArgument):
        await ledger.write(1 << 63, b"x")
    assert stage.pool.log == log
    assert await ledger.write(1, b"one") == 1
    assert await waiting == 2
    for append in (ledger.append, ledger.append_nowait, ledger.append_many, ledger.push_many):
        with pytest.raises(errors.NotSupported, match="write"):
            await append(b"x")  # type: ignore[operator]
    await ledger.close()


@on_stage()
async def test_arguments_that_are_none_leave_nothing_behind(stage: Stage) -> None:
    """Neither an id nor an entry counts as used when the call was wrong."""
    ledger = await stage.create(kind=AdvancedLedgerWriter)
    for entry_id in (0.0, "0", None, True):
        with pytest.raises(errors.InvalidArgument, match="entry_id="):
            await ledger.write(entry_id, b"x")  # type: ignore[arg-type]
    for timeout in ("1", -1, float("nan")):
        with pytest.raises(errors.InvalidArgument, match="timeout="):
            await ledger.write(0, b"x", timeout=timeout)  # type: ignore[arg-type]
    assert ledger.pending_count == 0
    assert await ledger.write(0, b"x", timeout=1) == 0
    assert await ledger.seal() == 0
    await ledger.close()
    ledger = await stage.create()
    for timeout in ("1", -1, float("nan")):
        for call in (ledger.append, ledger.append_many):
            with pytest.raises(errors.InvalidArgument, match="timeout="):
                await call([b"x"] if call == ledger.append_many else b"x", timeout=timeout)  # type: ignore[operator]
    await stage.settle()
    assert ledger.last_add_confirmed == -1
    await ledger.close()


@on_stage()
async def test_a_sealed_advanced_ledger_ends_before_its_first_hole(stage: Stage) -> None:
    ledger = await stage.create(kind=AdvancedLedgerWriter)
    above = asyncio.create_task(ledger.write(5, b"five"))
    assert await ledger.write(0, b"zero") == 0
    assert await ledger.seal(timeout=1) == 0
    with pytest.raises(errors.LedgerClosed):
        await above
    await stage.settle()
    assert ledger._budget.used == 0
    assert (await stage.record(ledger.ledger_id)).last_entry_id == 0
    await ledger.close()


@on_stage()
async def test_entries_above_a_hole_move_with_the_ensemble(stage: Stage) -> None:
    ledger = await stage.create("4/2/2", kind=AdvancedLedgerWriter)
    tasks = [asyncio.create_task(ledger.write(entry_id, b"x")) for entry_id in (8, 2, 4, 5, 9)]
    await stage.settle()
    stage.pool["b"].is_down = True
    tasks += [asyncio.create_task(ledger.write(entry_id, b"x")) for entry_id in (0, 1, 7)]
    await stage.settle()
    tasks += [asyncio.create_task(ledger.write(entry_id, b"x")) for entry_id in (3, 6)]
    assert sorted(await asyncio.gather(*tasks)) == list(range(10))
    await stage.settle()
    assert "b" not in ledger.metadata.last_ensemble
    assert [len(stage.replicas(ledger.metadata, entry_id)) for entry_id in range(10)] == [2] * 10
    await ledger.seal()
    await ledger.close()


@on_stage(memory_limit=1 << 20)
async def test_the_entry_that_fills_the_hole_does_not_wait_for_memory(stage: Stage) -> None:
    ledger = await stage.create(kind=AdvancedLedgerWriter)
    tasks = [asyncio.create_task(ledger.write(entry_id, b"x" * 300_000)) for entry_id in range(1, 6)]
    await stage.settle()
    assert len(stage.pool["a"].entries) == 3, "the others wait for memory"
    assert await ledger.write(0, b"y" * 300_000, timeout=1) == 0
    assert await asyncio.gather(*tasks) == [1, 2, 3, 4, 5]
    await ledger.seal()
    await ledger.close()


# -- deferred sync -------------------------------------------------------------------------------------------------


@on_stage()
async def test_deferred_entries_are_confirmed_by_force_only(stage: Stage) -> None:
    ledger = await stage.create("4/2/2", deferred_sync=True)
    assert await ledger.force() == -1
    assert [await ledger.append(b"abc") for _ in range(5)] == list(range(5))
    assert (ledger.last_add_confirmed, ledger.length) == (-1, 0)
    assert stage.pool.asked("deferred add")
    assert not stage.pool.asked("add")
    assert await ledger.force() == 4
    assert [bookie for bookie, _ in stage.pool.asked("force")] == ["a", "b", "c", "d"], "every bookie (I-25)"
    assert (ledger.last_add_confirmed, ledger.length) == (4, 15)
    await ledger.append(b"six")
    assert stage.header("b", ledger.ledger_id, 5) == (4, 18)
    assert await ledger.seal() == 5
    assert (await stage.record(ledger.ledger_id)).length == 18
    await ledger.close()


@on_stage()
async def test_a_seal_without_force_drops_what_is_not_forced(stage: Stage) -> None:
    """D-20: neither in the end nor in the length."""
    ledger = await stage.create(deferred_sync=True)
    await ledger.append(b"abc")
    await ledger.force()
    await ledger.append(b"lost")
    assert await ledger.seal(force=False) == 0
    record = await stage.record(ledger.ledger_id)
    assert (record.last_entry_id, record.length) == (0, 3)
    await ledger.close()


@on_stage()
async def test_force_covers_what_was_acknowledged_before_it(stage: Stage) -> None:
    """I-25: the target is fixed when the call starts, whatever is acknowledged while bookies sync."""
    ledger = await stage.create(deferred_sync=True)
    await ledger.append(b"one")
    stage.pool["c"].is_silent = True
    forcing = asyncio.create_task(ledger.force())
    await stage.settle()
    stage.pool["c"].is_silent = False
    await ledger.append(b"two")
    with pytest.raises(errors.BookieTimeout):
        await forcing
    assert ledger.last_add_confirmed == -1, "X-54: all but one is not enough"
    assert await ledger.force() == 1
    await ledger.close()


@on_stage()
async def test_the_first_failure_ends_a_deferred_writer(stage: Stage) -> None:
    """X-53: no ensemble change; the record keeps its ensemble and ends at what was forced."""
    ledger = await stage.create(deferred_sync=True)
    await ledger.append(b"one")
    await ledger.force()
    await ledger.append(b"two")
    stage.pool["c"].is_down = True
    await ledger.append(b"three")  # two others answer first
    await stage.settle()
    with pytest.raises(errors.LedgerClosed):
        await ledger.append(b"four")
    with pytest.raises(errors.LedgerClosed):
        await ledger.force()
    record = await stage.record(ledger.ledger_id)
    assert record.ensembles == ((0, ("a", "b", "c")),)
    assert (record.state, record.last_entry_id, record.length) == (LedgerState.CLOSED, 0, 3)
    await ledger.close()


@on_stage()
async def test_a_force_says_nothing_of_what_a_bookie_acknowledged_before_it_came_back(stage: Stage) -> None:
    """I-25: it syncs what it still has. What was forced before, or is asked for later, is not concerned."""
    ledger = await stage.create(deferred_sync=True)
    await ledger.append(b"one")
    assert await ledger.force() == 0
    stage.pool["c"].ended_count += 1
    await ledger.append(b"two")
    assert await ledger.force() == 1
    await ledger.append(b"three")
    stage.pool["c"].ended_count += 1
    with pytest.raises(errors.WriteFailed, match="bookie c ended before it was forced"):
        await ledger.force()
    with pytest.raises(errors.LedgerClosed):
        await ledger.append(b"four")
    await stage.settle()
    record = await stage.record(ledger.ledger_id)
    assert (record.state, record.last_entry_id, record.length) == (LedgerState.CLOSED, 1, 6)
    await ledger.close()


@on_stage()
async def test_force_of_an_ordinary_ledger_proves_what_is_true(stage: Stage) -> None:
    ledger = await stage.create()
    await ledger.append(b"one")
    assert await ledger.force() == 0
    await ledger.close()
    with pytest.raises(errors.LedgerClosed):
        await ledger.force()


# -- ensemble changes ----------------------------------------------------------------------------------------------


@on_stage(names="abcdefgh", delay_ensemble_change=True)
async def test_delayed_changes_wait_until_the_quorum_is_in_danger(stage: Stage) -> None:
    """X-39: two of five may be away; the third is replaced, with the other two, in one change."""
    ledger = await stage.create("5/5/3")
    stage.writable = [*stage.writable, *map(type(stage.writable[0]), "fgh")]
    for bookie in "ab":
        stage.pool[bookie].is_down = True
        await ledger.append(b"x")
    await stage.settle()
    assert ledger.metadata.ensembles == ((0, ("a", "b", "c", "d", "e")),)
    stage.pool["c"].is_down = True
    assert await ledger.append(b"y") == 2
    await stage.settle()
    assert [first for first, _ in ledger.metadata.ensembles] == [0, 2]
    assert not {"a", "b", "c"} & set(ledger.metadata.last_ensemble)
    assert len(stage.replicas(ledger.metadata, 2)) == 5
    assert await ledger.seal() == 2
    assert ledger._budget.used == 0
    await ledger.close()


@on_stage(delay_ensemble_change=True)
async def test_a_read_only_bookie_is_replaced_at_once(stage: Stage) -> None:
    """X-40."""
    ledger = await stage.create("3/3/2")
    stage.pool["b"].refuses_adds = errors.BookieReadOnly
    await ledger.append(b"x")
    await stage.settle()
    assert "b" not in ledger.metadata.last_ensemble
    await ledger.seal()
    await ledger.close()


@on_stage(names="abc", delay_ensemble_change=True)
async def test_with_too_few_bookies_a_delayed_change_goes_on_with_the_others(stage: Stage) -> None:
    """X-37: three of three; one dies."""
    ledger = await stage.create("3/3/2")
    stage.pool["b"].is_down = True
    assert [await ledger.append(b"x") for _ in range(20)] == list(range(20))
    assert await ledger.seal() == 19
    await ledger.close()


@on_stage(ensemble_changes_allowed=False)
async def test_without_changes_entries_go_to_the_same_bookie_again(stage: Stage) -> None:
    """X-44: ten seconds away; the record does not change, the waits grow, every replica is complete."""
    ledger = await stage.create("3/3/3")
    stage.pool["a"].is_down = True
    appending = [asyncio.create_task(ledger.append(b"x")) for _ in range(3)]
    await asyncio.sleep(10)
    asked = len([1 for bookie, _ in stage.pool.asked("add") if bookie == "a"])
    assert 5 <= asked <= 9, "0.1 s, doubling to 5 s"
    assert not any(task.done() for task in appending)
    stage.pool["a"].is_down = False
    assert await asyncio.gather(*appending) == [0, 1, 2]
    assert await ledger.append(b"y") == 3
    assert ledger.metadata.ensembles == ((0, ("a", "b", "c")),)
    assert [len(stage.replicas(ledger.metadata, entry_id)) for entry_id in range(4)] == [3] * 4
    await ledger.seal()
    await ledger.close()


@on_stage()
async def test_changes_that_are_allowed_again_happen(stage: Stage) -> None:
    ledger = await stage.create("3/3/3")
    ledger.allow_ensemble_changes(False)
    stage.pool["a"].is_down = True
    appending = asyncio.create_task(ledger.append(b"x"))
    await asyncio.sleep(3)
    ledger.allow_ensemble_changes(True)
    assert await appending == 0
    assert "a" not in ledger.metadata.last_ensemble
    await ledger.seal()
    await ledger.close()


# -- quorums -------------------------------------------------------------------------------------------------------


@on_stage(ensemble_changes_allowed=False, add_quorum_timeout_ms=2000)
async def test_a_writer_without_quorum_ends_in_time(stage: Stage) -> None:
    """Pains 41: also when nothing may be replaced."""
    ledger = await stage.create("3/3/2")
    assert await ledger.append(b"x") == 0
    for bookie in "ab":
        stage.pool[bookie].is_down = True
    started = stage.loop.time()
    first, second = asyncio.create_task(ledger.append(b"1")), asyncio.create_task(ledger.append(b"2"))
    await asyncio.wait([first, second])
    assert 2 <= stage.loop.time() - started <= 2.6
    for task in (first, second):
        assert isinstance(task.exception(), errors.AckQuorumTimeout)
    with pytest.raises(errors.LedgerClosed):
        await ledger.append(b"3")
    await stage.settle()
    assert (await stage.record(ledger.ledger_id)).last_entry_id == 0
    await ledger.close()


@on_stage(fault_domains="a=r1, b=r1, c=r2, d=r1, e=r2", fault_domains_min=2)
async def test_an_entry_needs_replicas_in_several_fault_domains(stage: Stage) -> None:
    ledger = await stage.create("3/3/2")
    stage.pool["c"].is_held = True
    appending = asyncio.create_task(ledger.append(b"x"))
    await stage.settle()
    assert not appending.done(), "a and b are in one rack"
    stage.pool["c"].release()
    assert await appending == 0
    stage.pool["c"].is_held = False
    assert await ledger.seal() == 0
    await ledger.close()


@on_stage(fault_domains="a=r1, b=r1, c=r2, d=r1, e=r2", fault_domains_min=2)
async def test_a_replacement_comes_from_a_domain_that_is_missing(stage: Stage) -> None:
    ledger = await stage.create("3/3/2")
    stage.pool["c"].is_down = True
    assert await ledger.append(b"x") == 0
    await stage.settle()
    assert ledger.metadata.last_ensemble == ("a", "b", "e")
    await ledger.seal()
    await ledger.close()


@on_stage(add_quorum_timeout_ms=2000)
async def test_a_hole_is_no_want_of_a_quorum(stage: Stage) -> None:
    """The bookies have answered; what is missing is up to the caller, for any length of time."""
    ledger = await stage.create("3/3/2", kind=AdvancedLedgerWriter)
    assert await ledger.write(0, b"0") == 0
    waiting = asyncio.create_task(ledger.write(2, b"2"))
    with pytest.raises(errors.AckQuorumTimeout, match="not confirmed in time"):
        await ledger.write(3, b"3", timeout=3)
    await asyncio.sleep(60)
    assert not waiting.done()
    assert await ledger.write(1, b"1") == 1
    assert await waiting == 2
    assert ledger.last_add_confirmed == 3
    await ledger.seal()
    await ledger.close()
