"""Retention through the client: what goes, the history, cursors that move meanwhile, other clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from msgspec.structs import replace
from tests.fakes.world import World, play

from bookies.client.client import Client
from bookies.client.log import Log
from bookies.client.log.base.cursor_store import HISTORY, TIMES
from bookies.client.write.manifest import ManifestLoop
from bookies.errors import InvalidArgument, LogNotFound, LogTruncated, MetadataError
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.interface.driver import Step
from bookies.metadata.shared.nodes import Table
from bookies.protocol.log import Position
from bookies.protocol.log.log_model import HELD
from bookies.protocol.log.retention import LogRemoval, Retention, RetentionDecision

Act = Callable[[World, Client, Log, list[Position]], Awaitable[None]]
LEDGERS, PAUSE_S = 8, 10


def with_log(act: Act, password: bytes = b"") -> None:
    """A log of eight closed ledgers of two entries, ten seconds apart, and an open one; their first positions."""

    async def main(world: World) -> None:
        client = await world.client()
        log = client.log("orders", password=password)
        await log.create()
        firsts = []
        async with log.lead() as writer:
            for _ in range(LEDGERS):
                firsts.append(await writer.append(b"12345"))
                await writer.append(b"67890")
                await writer.roll()
                await asyncio.sleep(PAUSE_S)
        await act(world, client, log, firsts)

    play(main, 3)


async def ledgers(client: Client) -> list[int]:
    return [ledger.ledger_id async for ledger in client.ledgers()]


def test_ledgers_go_by_age_and_the_history_says_so() -> None:
    async def act(world: World, client: Client, log: Log, firsts: list[Position]) -> None:
        assert await log.retention() == Retention()
        assert await log.retention_decision() == RetentionDecision(None)
        assert await log.apply_retention() == []
        await log.set_retention(age=65)
        assert await log.retention() == Retention(age_ms=65_000)
        decision = await log.retention_decision()
        assert decision.removal is not None
        [removal] = await log.apply_retention()
        assert replace_time(removal) == replace_time(decision.removal)
        assert (removal.reasons, removal.rows, removal.size) == (("age",), 4, 20)
        assert removal.before == firsts[2]
        assert firsts[0].ledger_id not in await ledgers(client)
        assert (await log.manifest()).rows_truncated == 4
        assert await log.history() == [removal]
        await asyncio.sleep(PAUSE_S)
        await log.apply_retention()
        assert [removal.before for removal in await log.history()] == [firsts[2], firsts[3]]
        await asyncio.sleep(20 * PAUSE_S)
        await log.apply_retention()  # An old log keeps its last two ledgers.
        assert len((await log.manifest()).extents) == 2
        await log.set_retention()
        assert (await log.manifest()).retention == {}
        await log.delete()
        assert world.store.list(Table.RECORDS).items == []

    with_log(act)


def replace_time(removal: object) -> tuple[object, ...]:
    return tuple(getattr(removal, name) for name in ("before", "ledgers", "rows", "size", "passed"))


def test_without_points_ledgers_go_by_their_creation_and_without_a_password() -> None:
    async def act(world: World, client: Client, log: Log, firsts: list[Position]) -> None:
        _, version = await client._driver.read_record(TIMES + log.name)
        await client._driver.delete_record(TIMES + log.name, version)
        auditor = client.log("orders")
        await auditor.set_retention(age=65, cursor_age=1_000)
        # The ledger after the next of each ledger was created by then, a pause after its end.
        [removal] = await auditor.apply_retention()
        assert removal.before == firsts[1]
        await auditor.set_retention(rows=4)
        [removal] = await auditor.apply_retention()
        assert removal.before == firsts[6]

    with_log(act, b"secret")


def test_a_log_that_nobody_appends_to_any_more_can_be_led_afterwards() -> None:
    async def act(world: World, client: Client, log: Log, firsts: list[Position]) -> None:
        await log.set_retention(size=10)
        await log.apply_retention()
        async with log.lead() as writer:
            await writer.append(b"x")
        async with log.open() as reader:
            assert [entry.payload async for entry in reader.read()] == [b"12345", b"67890", b"x"]
            with pytest.raises(LogTruncated):
                [entry async for entry in reader.read(firsts[0])]

    with_log(act)


def test_a_cursor_that_is_made_meanwhile_is_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, client: Client, log: Log, firsts: list[Position]) -> None:
        other = (await world.client()).log("orders")
        between: list[Callable[[], Awaitable[object]]] = [lambda: other.move_cursor("late", firsts[1])]
        interrupt(monkeypatch, between)
        await log.set_retention(rows=1)
        assert await log.apply_retention() == []
        assert await log.history() == []
        assert (await log.retention_decision()).held_by == ("late",)
        assert [removal.before for removal in await log.apply_retention()] == [firsts[1]]
        # A stale cursor may be passed, but not one that has moved since the decision.
        await log.set_retention(rows=1, cursor_age=1)
        await asyncio.sleep(2)
        between.append(lambda: other.move_cursor("late", firsts[1].next))
        assert await log.apply_retention() == []
        await asyncio.sleep(2)
        [removal] = await log.apply_retention()
        assert removal.passed == ("late",)
        assert [removal.passed for removal in await log.history()] == [(), ("late",)]
        with pytest.raises(LogTruncated):
            async with log.open() as reader:
                [entry async for entry in reader.read((await log.cursors())["late"].position)]

    with_log(act)


def interrupt(monkeypatch: pytest.MonkeyPatch, between: list[Callable[[], Awaitable[object]]]) -> None:
    """Run what is in the list before the next transactions."""
    transact = MemoryDriver.transact

    async def interrupted(self: MemoryDriver, steps: Sequence[Step]) -> int:
        if between:
            await between.pop()()
        return await transact(self, steps)

    monkeypatch.setattr(MemoryDriver, "transact", interrupted)


def test_an_idle_consumer_with_new_entries_is_not_passed() -> None:
    async def act(world: World, client: Client, log: Log, firsts: list[Position]) -> None:
        await log.move_cursor("idle", firsts[-1].next.next)
        async with log.lead():
            pass  # It writes nothing, so its ledger is empty.
        await asyncio.sleep(200)
        async with log.lead() as writer:
            first = await writer.append(b"new")
            for _ in range(5):
                await writer.roll()
                await writer.append(b"new")
        await log.set_retention(rows=2, cursor_age=100)
        removals = await log.apply_retention()
        assert [removal.passed for removal in removals] == [()] * len(removals)
        async with log.open() as reader:
            entry = await anext(reader.read((await log.cursors())["idle"].position))
        assert entry.position == first

    with_log(act)


def test_a_policy_that_is_withdrawn_or_changed_meanwhile_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, client: Client, log: Log, firsts: list[Position]) -> None:
        other = (await world.client()).log("orders")
        between: list[Callable[[], Awaitable[object]]] = [other.set_retention]
        interrupt(monkeypatch, between)
        await log.set_retention(rows=4)
        assert await log.apply_retention() == []
        assert await log.history() == []
        await log.set_retention(rows=4)
        between.append(lambda: other.set_retention(rows=10))
        assert [removal.before for removal in await log.apply_retention()] == [firsts[3]]

    with_log(act)


def test_a_log_that_is_held_meanwhile_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, client: Client, log: Log, firsts: list[Position]) -> None:
        async def hold() -> None:
            records = ManifestLoop(world.runtime("mover"), client._driver, "orders")
            await records.refresh()
            await records.update(lambda current: None if current.held else replace(current, extra={HELD: "it moves"}))

        interrupt(monkeypatch, [hold])
        await log.set_retention(rows=4)
        assert await log.apply_retention() == []
        assert len((await log.manifest()).extents) == LEDGERS + 1

    with_log(act)


def test_one_auditor_of_two_reports_a_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, client: Client, log: Log, firsts: list[Position]) -> None:
        other = (await world.client()).log("orders")
        reported: list[LogRemoval] = []

        async def remove() -> None:
            await asyncio.sleep(1)
            reported.extend(await other.apply_retention())

        interrupt(monkeypatch, [remove])
        await log.set_retention(rows=4)
        assert await log.apply_retention() == []
        assert await log.history() == reported
        assert [removal.before for removal in reported] == [firsts[6]]

    with_log(act)


def test_a_lost_reply_leaves_one_row_in_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, client: Client, log: Log, firsts: list[Position]) -> None:
        transact = MemoryDriver.transact
        calls = []

        async def forgetful(self: MemoryDriver, steps: Sequence[Step]) -> int:
            version = await transact(self, steps)
            calls.append(version)
            if len(calls) == 1:
                raise MetadataError("the reply was lost")
            return version

        monkeypatch.setattr(MemoryDriver, "transact", forgetful)
        await log.set_retention(size=50)
        assert [removal.before for removal in await log.apply_retention()] == [firsts[3]]
        assert len(await log.history()) == 1
        assert len(calls) == 1

    with_log(act)


def test_two_clients_remove_at_once() -> None:
    async def act(world: World, client: Client, log: Log, firsts: list[Position]) -> None:
        await log.set_retention(rows=6)
        others = [(await world.client()).log("orders") for _ in range(3)]
        await asyncio.gather(*(other.apply_retention() for other in others))
        history = await log.history()
        assert sum(removal.rows for removal in history) == (await log.manifest()).rows_truncated == 10
        removed = [ledger_id for removal in history for ledger_id in removal.ledgers]
        assert len(removed) == len(set(removed))

    with_log(act)


def test_a_recreated_log_has_no_history() -> None:
    async def act(world: World, client: Client, log: Log, firsts: list[Position]) -> None:
        await log.set_retention(rows=6)
        await log.apply_retention()
        data, _ = await client._driver.read_record(HISTORY + log.name)
        await log.delete()
        await log.create()
        await client._driver.create_record(HISTORY + log.name, data)  # as if its deletion had come late
        assert await log.history() == []

    with_log(act)


def test_what_is_refused() -> None:
    async def act(world: World, client: Client, log: Log, firsts: list[Position]) -> None:
        for wrong in (
            {"age": -1},
            {"age": "7d"},
            {"age": True},
            {"size": -5},
            {"rows": 0},
            {"rows": 1.5},
            {"cursor_age": 5},
        ):
            with pytest.raises(InvalidArgument, match=f"{next(iter(wrong))}"):
                await log.set_retention(**wrong)  # type: ignore[arg-type]
        for call in (log.set_retention(age=5), log.apply_retention(), log.history()):
            await log.delete()
            with pytest.raises(LogNotFound):
                await call

    with_log(act)
