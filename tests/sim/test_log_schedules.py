"""The schedules X-75 to X-80 of client-protocol 8.3, each with the mutant that it has to find.

A test writes its schedule down as code; the checks of `log_world` judge it at the end. A mutant is the same schedule
with one rule broken, and the promise it breaks has to be among the problems.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from tests.sim.log_world import LogWorld, SeenLog, read_all

from bookies.client.log import LogWriter
from bookies.client.log.base import log_operations
from bookies.errors import LogFenced, MetadataError
from bookies.lab.sim.checkers.log_history import Truncation
from bookies.lab.sim.world import SimClient
from bookies.lab.sim.world.sim_metadata import SimDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.shared.nodes import At, Change, Condition, Exists, Outcome, Table
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.log_model import LedgerEnd

Patch = pytest.MonkeyPatch
BOOKIES = ("b1", "b2", "b3")


def run(schedule: Callable[[LogWorld], Coroutine[Any, Any, None]], *, bookies: int = 3) -> SeenLog:
    return LogWorld(schedule.__name__, bookies=bookies).run(schedule)


def holds(history: SeenLog) -> None:
    assert not history.problems, "\n".join(history.problems)


def breaks(history: SeenLog, promise: str) -> None:
    assert any(problem.startswith(promise) for problem in history.problems), history.problems


async def outcome(task: asyncio.Future[Any]) -> BaseException | None:
    await asyncio.wait([task])
    return task.exception()


async def lead(world: LogWorld, role: str) -> tuple[SimClient, LogWriter]:
    client = await world.process(role)
    return client, await world.as_process(client, _leading(world, client))


async def _leading(world: LogWorld, client: SimClient) -> LogWriter:
    return await world.log(client).lead()


def begin(client: SimClient, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return client.participant.create_task(work)


async def append(world: LogWorld, client: SimClient, writer: LogWriter, *payloads: bytes) -> Position:
    return await world.as_process(client, world.append(client, writer, list(payloads)))


def silence(world: LogWorld, host: str) -> None:
    """What the bookies answer to a host does not arrive."""
    for bookie in BOOKIES:
        world.cluster.network.block(bookie, host)


def last_list(world: LogWorld) -> list[int]:
    manifest = world.manifests()[-1][2]
    assert manifest is not None
    return manifest.ledger_ids


def cut_off(world: LogWorld, host: str) -> None:
    for bookie in BOOKIES:
        world.cluster.network.block(host, bookie)


# -- a leader in the middle of a roll ------------------------------------------------------------------------


async def x75(world: LogWorld) -> None:
    one, writer = await lead(world, "A")
    await append(world, one, writer, b"a0")
    cut_off(world, one.name)
    late = begin(one, world.append(one, writer, [b"a1"]))
    rolling = begin(one, writer.roll())
    await asyncio.sleep(0.1)  # less than an add may take
    assert last_list(world) == [0, 1], "the roll has listed its ledger, and waits for a1"
    two, successor = await lead(world, "B")
    await append(world, two, successor, b"b0")
    world.cluster.network.heal()
    refused = [await outcome(late), await outcome(rolling)]
    world.trace.note(one.name, f"was refused: {refused}")
    await append(world, two, successor, b"b1")
    await world.as_process(one, writer.abandon())


def test_x75_both_ledgers_of_a_roll_are_recovered() -> None:
    holds(run(x75))


def test_x75_mutant_that_recovers_only_the_last_ledger(monkeypatch: Patch) -> None:
    original = log_operations.end_of

    async def end_of(parts: log_operations.LogContext, ledger_id: int) -> LedgerEnd:
        if ledger_id == parts.records.current.open_ledgers[-1]:
            return await original(parts, ledger_id)
        async with parts.client.open(ledger_id) as ledger:
            return LedgerEnd(ledger.last_add_confirmed, ledger.length)

    monkeypatch.setattr(log_operations, "end_of", end_of)
    breaks(run(x75), "I-22")


# -- the list changes between reading it and swapping it -----------------------------------------------------


async def x76(world: LogWorld) -> None:
    one, writer = await lead(world, "A")
    await append(world, one, writer, b"a0")
    two = await world.process("B")
    store = world.cluster.store
    # B has read the list and is slow with the first thing that it writes: that it recovers A's first ledger.
    store.on_update = lambda host: (2.0, 0.0) if host == two.name else (0.0, 0.0)
    leading = begin(two, _leading(world, two))
    await asyncio.sleep(0.5)
    await world.as_process(one, writer.roll())
    store.on_update = None
    await append(world, one, writer, b"a1")
    await asyncio.sleep(2.0)
    successor = await leading
    await append(world, two, successor, b"b0")
    late = begin(one, world.append(one, writer, [b"a2"]))
    if isinstance(await outcome(late), LogFenced):
        world.trace.note(one.name, "steps down")
    assert sum(author == two.name for _, author, _ in world.manifests()) == 1
    await world.as_process(one, writer.abandon())


def test_x76_a_stale_list_is_never_built_on() -> None:
    holds(run(x76))


def test_x76_mutant_that_writes_the_list_blindly(monkeypatch: Patch) -> None:
    original = MemoryStore.commit

    def commit(self: MemoryStore, conditions: Sequence[Condition], changes: Sequence[Change]) -> Outcome:
        is_list = any(change.key.table is Table.RECORDS for change in changes)
        is_swap = any(isinstance(condition, At) and condition.version for condition in conditions)
        return original(self, [Exists(changes[0].key)] if is_list and is_swap else conditions, changes)

    monkeypatch.setattr(MemoryStore, "commit", commit)
    breaks(run(x76), "I-20")


# -- the reply to the swap is lost ---------------------------------------------------------------------------


async def x77(patch: Patch, world: LogWorld) -> None:
    one, writer = await lead(world, "A")
    await append(world, one, writer, b"a0")
    two = await world.process("B")
    original, lost = SimDriver.write_record, []

    async def write_record(self: SimDriver, name: str, data: bytes, expected_version: int) -> int:
        version = await original(self, name, data, expected_version)
        if self is two.driver and not lost:
            lost.append(version)
            raise MetadataError("the reply is lost")
        return version

    patch.setattr(SimDriver, "write_record", write_record)
    successor = await world.as_process(two, _leading(world, two))
    await append(world, two, successor, b"b0")
    assert lost
    listed = [author for _, author, _ in world.manifests()].count(two.name)
    if listed != 1:
        world.history.problems.append(f"X-77: B has listed {listed} ledgers")
    await world.as_process(one, writer.abandon())


def test_x77_a_swap_whose_reply_is_lost_is_recognised(monkeypatch: Patch) -> None:
    schedule = partial(x77, monkeypatch)
    holds(LogWorld("x77", bookies=3).run(schedule))


def test_x77_mutant_that_takes_no_answer_for_a_no(monkeypatch: Patch) -> None:
    original = log_operations.taken_over

    def taken_over(found: Manifest, basis: Manifest, ledger_id: int, ends: Any, *, leader: int | None) -> Any:
        if ledger_id in found.ledger_ids:
            raise LogFenced("somebody has changed the list")
        return original(found, basis, ledger_id, ends, leader=leader)

    monkeypatch.setattr(log_operations, "taken_over", taken_over)
    breaks(LogWorld("x77", bookies=3).run(partial(x77, monkeypatch)), "L-4")  # It deleted its ledger, which is listed.


# -- a leader wakes up after an hour -------------------------------------------------------------------------


async def x78(world: LogWorld) -> None:
    one, writer = await lead(world, "A")
    await append(world, one, writer, b"a0")
    late = [begin(one, world.append(one, writer, [b"late%d" % number])) for number in range(3)]
    one.participant.pause()
    two, successor = await lead(world, "B")
    await append(world, two, successor, b"b0")
    await asyncio.sleep(3600.0)
    await append(world, two, successor, b"b1")
    one.participant.resume()
    late += [begin(one, world.append(one, writer, [b"later%d" % number])) for number in range(3)]
    await asyncio.wait(late, timeout=60)
    await append(world, two, successor, b"b2")
    refused = [task for task in late if task.done() and isinstance(task.exception(), LogFenced)]
    if len(refused) != len(late):
        world.history.problems.append(f"X-78: {len(late) - len(refused)} appends were not refused")
    with_code = [task.exception() for task in refused]
    assert all(getattr(error, "code", 0) == -101 for error in with_code)
    await world.as_process(one, writer.abandon())


def test_x78_a_leader_that_slept_too_long_steps_down() -> None:
    holds(run(x78))


def test_x78_mutant_that_takes_over_again_by_itself(monkeypatch: Patch) -> None:
    from bookies.client.log import log_writer

    monkeypatch.setattr(log_writer, "is_fenced", lambda error: False)
    monkeypatch.setattr(log_operations, "check_leader", lambda found, epoch: None)
    original = log_operations.taken_over
    monkeypatch.setattr(log_operations, "taken_over", lambda *given, leader: original(*given))
    breaks(run(x78), "X-78")


async def recovered(client: SimClient, ledger_id: int) -> None:
    await (await client.client.recover(ledger_id)).close()


# -- an append whose fate is unknown -------------------------------------------------------------------------


async def x79(world: LogWorld) -> None:
    one, writer = await lead(world, "A")
    await append(world, one, writer, b"a0")
    silence(world, one.name)  # The bookies store what comes next, and nobody hears of it.
    late = [begin(one, world.append(one, writer, [b"a%d" % number])) for number in (1, 2)]
    late.append(begin(one, world.append(one, writer, [b"a3", b"a4"])))
    await asyncio.sleep(0.1)
    operator = await world.process("operator")
    await world.as_process(operator, recovered(operator, 0))  # They are in the ledger now, for ever.
    await asyncio.sleep(2.0)  # longer than adds may take: the bookies are given up, and there are no others
    world.cluster.network.heal()
    for task in late:
        error = await outcome(task)
        assert error is None, error
    await append(world, one, writer, b"a5")
    await world.as_process(one, writer.close())


def test_x79_the_end_of_the_ledger_is_decided_before_anything_is_sent_again() -> None:
    history = run(x79)
    holds(history)
    assert [payload for _, payload in history.final] == [*(b"a%d" % number for number in range(6)), b"the end"]
    at = {payload: position for position, payload in history.final}
    assert [at[b"a%d" % number] for number in range(5)] == [Position(0, number) for number in range(5)]
    assert all(at[ack.payload] == ack.position for ack in history.acks if ack.position is not None)


def test_x79_mutant_that_sends_it_again(monkeypatch: Patch) -> None:
    original = LogWriter._left_of

    async def left_of(self: LogWriter, batch: Any, *given: Any) -> Any:
        await original(self, batch, *given)
        return batch

    monkeypatch.setattr(LogWriter, "_left_of", left_of)
    breaks(run(x79), "I-20")


# -- a crash between the swap of a truncation and its deletes ------------------------------------------------


async def x80(patch: Patch, world: LogWorld) -> None:
    one, writer = await lead(world, "A")
    positions = []
    for number in range(4):
        positions.append(await append(world, one, writer, b"a%d" % number))
        await world.as_process(one, writer.roll())
    world.history.truncations.append(Truncation(positions[2]))
    done = 0

    async def step(original: Any, self: SimDriver, *arguments: Any) -> Any:
        """The process dies after the first of what a truncation does, whatever that is."""
        nonlocal done
        if self is one.driver:
            done += 1
            if done > 1:
                world.cluster.kill_client(one.name)
                await asyncio.Event().wait()
        return await original(self, *arguments)

    for name in ("write_record", "delete_ledger"):
        patch.setattr(SimDriver, name, partial_method(step, getattr(SimDriver, name)))
    with pytest.raises(asyncio.CancelledError):
        await world.as_process(one, writer.truncate(positions[2]))
    for each in last_list(world):
        if world.cluster.store.record(each) is None:
            world.history.problems.append(f"X-80: ledger {each} is listed and does not exist")
    if world.history.problems:
        return
    two, successor = await lead(world, "B")
    await asyncio.sleep(1.0)
    await append(world, two, successor, b"b0")
    assert (await world.as_process(two, read_all(world.log(two))))[0] == b"a2"
    assert [each for each in range(2) if world.cluster.store.record(each) is not None] == []


def partial_method(step: Any, original: Any) -> Any:
    async def method(self: SimDriver, *arguments: Any) -> Any:
        return await step(original, self, *arguments)

    return method


def test_x80_a_truncation_that_stops_half_way_leaves_a_note_and_the_next_leader_does_the_rest(
    monkeypatch: Patch,
) -> None:
    holds(LogWorld("x80", bookies=3).run(partial(x80, monkeypatch)))


def test_x80_mutant_that_deletes_first(monkeypatch: Patch) -> None:
    async def truncate(parts: Any, before: Position, own: Any = None, *, is_forced: bool = False) -> None:
        found = parts.records.current
        gone = [extent.ledger_id for extent in found.extents if extent.ledger_id < before.ledger_id]
        for ledger_id in gone:
            await parts.client.delete(ledger_id)
        kept = tuple(extent for extent in found.extents if extent.ledger_id not in gone)
        await parts.records.update(lambda found: replace(found, extents=kept))

    from bookies.client.log import log_writer

    monkeypatch.setattr(log_writer, "truncate", truncate)
    breaks(LogWorld("x80", bookies=3).run(partial(x80, monkeypatch)), "X-80")
