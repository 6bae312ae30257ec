"""Consumers: where they begin, what they commit, who follows them, and what a suspended one cannot do any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.fakes.logs import fill, in_log
from tests.fakes.world import World

from bookies.client.base import Entry
from bookies.client.client import Client
from bookies.client.log import Log
from bookies.client.log.base.cursor_store import LogCursors
from bookies.client.log.consumers.consumer import Progress
from bookies.encoding.envelope import Record
from bookies.errors import (
    CursorMoved,
    InvalidArgument,
    LeaseHeld,
    LeaseLost,
    LogNotFound,
    LogRecordCorrupt,
    LogTruncated,
    MetadataError,
)
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.shared.nodes import Table
from bookies.protocol.log import Position
from bookies.protocol.log.lag import Lag


async def cursor_of(log: Log, name: str = "billing") -> Position:
    return (await log.cursors())[name].position


def test_a_consumer_that_takes_over_an_old_cursor_is_not_passed() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 1, 1, 1, 1)
        await log.move_cursor("billing", positions[1])
        await asyncio.sleep(200)
        await log.set_retention(rows=1, cursor_age=100)
        async with log.consumer("billing") as rows:
            [removal] = await log.apply_retention()
            assert (removal.before, removal.passed) == (positions[1], ())
            assert (await anext(rows)).position == positions[1]

    in_log(act)


def test_records_of_a_consumer_count_as_handled_like_entries() -> None:
    """One that is damaged is named, and the iteration goes on after it."""

    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            await writer.append(b"a", key=b"k")
            bad = await writer.append_entries([b"nonsense"])
            await writer.append(b"b")
        values = []
        async with log.consumer("billing") as rows:
            records = rows.records()
            first = await anext(records)
            values.append((first.value, first.key))
            with pytest.raises(LogRecordCorrupt, match=f"read on from {bad.next}"):
                await anext(records)
            values.append(((await anext(records)).value, None))
        assert values == [(b"a", b"k"), (b"b", None)]
        assert await cursor_of(log) == bad.next.next

    in_log(act, record_format="envelope")


def test_consumers_continue_after_the_last_commit() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 3, 3)
        seen = []
        async with log.consumer("billing") as rows:
            assert rows.lease.is_held
            async for entry in rows:
                seen.append(entry.payload)
                if len(seen) == 4:
                    break
        assert await cursor_of(log) == positions[3].next  # a normal end commits the last entry too

        async def fail_at_the_sixth() -> None:
            async with log.consumer("billing") as rows:
                async for entry in rows:
                    seen.append(entry.payload)
                    if len(seen) == 6:
                        raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail_at_the_sixth()
        assert await cursor_of(log) == positions[5]  # but an exception does not
        async with log.consumer("billing") as rows:
            assert (await anext(rows)).position == positions[5]
            more = asyncio.create_task(anext(rows))  # type: ignore[arg-type]
            await asyncio.sleep(3)
            assert await cursor_of(log) == positions[5].next  # in the background, because the next one was asked for
            [new] = await fill(log, 1)
            assert (await more).position == new
        assert seen == [b"%d" % number for number in range(6)]
        assert await cursor_of(log) == new.next

    in_log(act)


def test_batches_and_explicit_commits() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 4, 4)
        async with log.consumer("billing", commit_interval=None) as rows:
            batches = rows.batches()
            first = await anext(batches)
            await rows.commit()
            assert await cursor_of(log) == Position(first.ledger_id, first.last_entry_id).next
            await anext(batches)
            await asyncio.sleep(10)
            assert await cursor_of(log) == Position(first.ledger_id, first.last_entry_id).next
        assert await cursor_of(log) == positions[-1].next
        async with log.consumer("audit", start=positions[2], commit_interval=0.5) as rows:
            entry = await anext(rows)
            await rows.commit()
            assert await cursor_of(log, "audit") == positions[3]
            await asyncio.sleep(5)
            assert await cursor_of(log, "audit") == positions[3]  # the background does not move it back
            with pytest.raises(InvalidArgument, match="not both"):
                await anext(rows.batches())
            assert entry.position == positions[2]
            assert (await anext(rows)).position == positions[3]
        assert await cursor_of(log, "audit") == positions[3].next

    in_log(act)


def test_a_log_without_ledgers_is_followed_from_its_beginning() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.consumer("billing") as rows:
            assert await rows.lag() == Lag(0, 0, 0.0)
            waiting = asyncio.create_task(anext(rows))  # type: ignore[arg-type]
            await asyncio.sleep(3)
            assert await log.cursors() == {}
            positions = await fill(log, 2)
            assert (await waiting).position == positions[0]
            assert (await anext(rows)).position == positions[1]
            await asyncio.sleep(2)
            assert await cursor_of(log) == positions[1]
        async with log.open() as reader:
            tail = reader.tail(from_beginning=True)
            assert [(await anext(tail)).payload for _ in range(2)] == [b"0", b"1"]

    in_log(act)


def test_one_at_a_time_and_the_next_one_follows() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 5)
        other = (await world.client()).log("orders")
        first = await log.consumer("billing")
        assert (await anext(first)).position == positions[0]
        with pytest.raises(LeaseHeld, match="consumer billing of log orders is held by"):
            await other.consumer("billing", failover=False)
        waiting = asyncio.create_task(other.consumer("billing").begin())
        await asyncio.sleep(1)
        states = await other.consumers()
        assert len(states["billing"].processes) == 2
        assert states["billing"].lag == Lag(5, 5, None)
        async with other.consumer("audit") as audit:  # another name disturbs nobody
            assert (await anext(audit)).position == positions[0]
        await first.close()
        second = await waiting
        assert second.lease.token > first.lease.token
        assert (await anext(second)).position == positions[1]
        await second.close()
        await second.close()

    in_log(act)


def test_a_suspended_consumer_cannot_commit_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 5)
        other = (await world.client()).log("orders")
        first = await log.consumer("billing", ttl=2, commit_interval=None)
        await anext(first)
        await anext(first)
        left: list[Entry] = []
        next(task for task in asyncio.all_tasks() if task.get_name().startswith("keep consumer")).cancel()
        second = await other.consumer("billing", ttl=2, commit_interval=None)
        assert (await anext(second)).position == positions[0]
        assert not first.lease.is_held
        with pytest.raises(CursorMoved, match="belongs to a later consumer"):
            await first.commit()
        while len(left) < 3:
            left.append(await anext(first))  # of the batch that it has
        with pytest.raises(LeaseLost):
            await anext(first)
        await second.commit()
        assert await cursor_of(log) == positions[1]
        with pytest.raises(CursorMoved):
            await first.close()
        await second.close()
        await log.move_cursor("billing", positions[3])  # by hand; the token stays
        assert (await log.cursors())["billing"].token == second.lease.token

    in_log(act)


def test_the_block_ends_when_the_cursor_is_deleted() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        await fill(log, 5)

        async def work() -> None:
            async with log.consumer("billing") as rows:
                async for entry in rows:
                    if entry.payload == b"2":
                        await log.delete_cursor("billing")

        with pytest.raises(CursorMoved, match="was deleted while its consumer used it"):
            await work()
        assert await log.cursors() == {}

    in_log(act)


def test_an_idle_consumer_ends_when_the_cursor_is_deleted() -> None:
    """It has nothing to commit. Who waits for its turn begins afterwards, and again with the first entry."""

    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 2)
        others = [(await world.client()).log("orders") for _ in range(2)]
        turns: list[str] = []

        async def work(name: str, own: Log) -> None:
            async with own.consumer("billing", ttl=3) as rows:
                turns.append(f"{name} begins")
                try:
                    async for _ in rows:
                        pass
                finally:
                    turns.append(f"{name} ends")

        first = asyncio.ensure_future(work("first", others[0]))
        await asyncio.sleep(5)
        second = asyncio.ensure_future(work("second", others[1]))
        await asyncio.sleep(5)
        assert await cursor_of(log) == positions[-1].next
        await log.delete_cursor("billing")
        await log.delete_cursor("billing")
        await log.delete_cursor("c" * 200)
        await asyncio.sleep(2)
        with pytest.raises(CursorMoved, match="cursor of consumer billing of log orders was deleted"):
            await first
        await asyncio.sleep(5)
        assert turns == ["first begins", "first ends", "second begins"]
        assert await cursor_of(log) == positions[-1].next
        await log.delete_cursor("billing")
        await asyncio.sleep(2)
        await log.move_cursor("billing", positions[1])
        with pytest.raises(CursorMoved):
            await second

    in_log(act)


def test_the_cursor_of_a_running_consumer_is_not_moved() -> None:
    """Its next commit would move it back. One that has died, or was deleted, is in nobody's way."""

    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 5)
        other = (await world.client()).log("orders")
        async with log.consumer("billing", ttl=4) as rows:
            await anext(rows)
            refusal = "not moved.*consumer billing of log orders is held by .*end that process, or delete the cursor"
            with pytest.raises(LeaseHeld, match=refusal):
                await other.move_cursor("billing", positions[3])
            await other.move_cursor("audit", positions[3])
            await anext(rows)
            await rows.commit()
        assert await cursor_of(log) == positions[2]
        dead = await log.consumer("billing", ttl=4, commit_interval=None)
        await anext(dead)
        next(task for task in asyncio.all_tasks() if task.get_name().startswith("keep consumer")).cancel()
        await other.move_cursor("billing", positions[4])
        with pytest.raises(CursorMoved):
            await dead.commit()
        async with other.consumer("billing") as rows:
            assert (await anext(rows)).position == positions[4]

    in_log(act)


def test_a_consumer_that_begins_during_a_move_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 5)
        other = (await world.client()).log("orders")
        await (await other.consumer("billing")).close()
        move, begun = LogCursors.move, []

        async def late(self: LogCursors, *arguments: Any, **options: Any) -> None:
            monkeypatch.setattr(LogCursors, "move", move)
            begun.append(await other.consumer("billing"))
            await move(self, *arguments, **options)

        monkeypatch.setattr(LogCursors, "move", late)
        with pytest.raises(CursorMoved, match="belongs to a later consumer"):
            await log.move_cursor("billing", positions[3])
        await begun[0].close()

    in_log(act)


def test_a_lease_that_is_lost_during_the_last_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        await fill(log, 5)

        async def never(self: MemoryDriver, *_: object) -> int:
            await asyncio.Event().wait()
            raise AssertionError

        async def consume() -> None:
            async with log.consumer("billing", ttl=2, commit_interval=None) as rows:
                await anext(rows)
                await anext(rows)
                monkeypatch.setattr(MemoryDriver, "transact", never)
                monkeypatch.setattr(MemoryDriver, "write_record", never)

        with pytest.raises(LeaseLost):
            await consume()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    in_log(act)


def test_consumers_of_a_deleted_log() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        await fill(log, 2)

        async def consume(name: str) -> None:
            own = (await world.client()).log("orders")
            async with own.consumer(name) as rows:
                async for _ in rows:
                    pass

        tasks = [asyncio.ensure_future(consume(name)) for name in ("billing", "billing", "billing", "audit")]
        await asyncio.sleep(5)
        await log.delete()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [LogNotFound] * 4
        assert world.store.list(Table.RECORDS).items == []

    in_log(act)


def test_an_outage_of_the_store_ends_nothing_while_the_lease_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 5)
        transact = MemoryDriver.transact
        failures = []

        async def failing(self: MemoryDriver, steps: list[object]) -> int:
            if len(failures) < 3:
                failures.append(steps)
                raise MetadataError("the store does not answer")
            return await transact(self, steps)  # type: ignore[arg-type]

        async with log.consumer("billing") as rows:
            await anext(rows)
            await anext(rows)
            monkeypatch.setattr(MemoryDriver, "transact", failing)
            await asyncio.sleep(5)
            assert len(failures) == 3
            assert await cursor_of(log) == positions[1]

    in_log(act)


def test_truncations() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 3, 3)
        await log.move_cursor("billing", positions[1])
        await log.truncate(positions[4], force=True)
        with pytest.raises(LogTruncated):
            await log.consumer("billing")
        await log.delete_cursor("billing")
        async with log.consumer("billing") as rows:
            assert (await anext(rows)).position == positions[4]
        await log.delete()
        assert world.store.list(Table.RECORDS).items == []
        with pytest.raises(LogNotFound):
            await log.consumer("billing")

    in_log(act)


def test_lag_in_time() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        started_us = world.runtime("x").clock.wall_ms() * 1000
        async with log.lead() as writer:
            for number in range(3):
                await writer.append(Record(b"x", None, None, started_us + number * 1_000_000))
            last = await writer.append_entries([b"no record"])
        await asyncio.sleep(60)
        async with log.consumer("billing") as rows:
            lag = await rows.lag()
            assert (lag.rows, lag.bytes) == (4, 3 * 19 + 9)
            assert lag.seconds is not None
            assert 59 < lag.seconds < 62
            await anext(rows)
            await anext(rows)
            assert (await rows.lag()).seconds == pytest.approx(lag.seconds - 1, abs=0.5)
            await anext(rows)
            await anext(rows)
            assert (await rows.lag()).seconds is None
        assert (await log.consumers())["billing"].lag == Lag(0, 0, 0.0)
        assert await cursor_of(log) == last.next

    in_log(act, record_format="envelope")


@pytest.mark.parametrize(
    "arguments",
    [{"name": "a b"}, {"commit_interval": 0}, {"failover": 1}, {"ttl": 0.1}, {"start": 7}],
)
def test_what_is_refused(arguments: dict[str, object]) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        with pytest.raises(InvalidArgument):
            log.consumer(**({"name": "billing"} | arguments))  # type: ignore[arg-type]

    in_log(act)


def test_progress_before_anything_is_handed_out() -> None:
    progress = Progress(Position(1, 2))
    progress.accept()
    progress.ask()
    assert progress.handled == Position(1, 2)


def test_names_that_are_too_long_together() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        long = client.log("l" * 200)
        await long.create()
        [position] = await fill(long, 1)
        await long.move_cursor("c" * 200, position)
        with pytest.raises(InvalidArgument, match="at most 255 characters"):
            await long.consumer("c" * 200)
        assert [state.processes for state in (await long.consumers()).values()] == [()]
        await long.delete()

    in_log(act)


def test_the_cursor_of_numbered_entries_is_no_consumers() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        with pytest.raises(InvalidArgument, match="numbered entries"):
            await log.consumer("bk-sequences")

    in_log(act)
