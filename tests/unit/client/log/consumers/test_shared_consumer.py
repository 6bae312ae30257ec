"""Consumers that several processes share: what each gets, what is delivered again, and what is refused."""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes.logs import fill, in_log, lose_notifications
from tests.fakes.world import World, play

from bookies.client.base.segments import LogStore
from bookies.client.client import Client
from bookies.client.log import Log
from bookies.client.log.consumers import LogConsumer
from bookies.encoding.envelope import Record
from bookies.errors import CursorBehind, CursorMoved, InvalidArgument, LeaseHeld, LeaseLost, LogNotFound, LogTruncated
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.shared.nodes import Table
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.lag import Lag


async def take(rows: LogConsumer, count: int) -> list[Position]:
    return [(await anext(rows)).position for _ in range(count)]


async def cursor_of(log: Log, name: str = "billing") -> Position:
    return (await log.cursors())[name].position


def suspend() -> None:
    """Suspend the renewals of the only consumer."""
    [renewals] = [task for task in asyncio.all_tasks() if task.get_name().startswith("keep consumer")]
    renewals.cancel()


def test_processes_divide_a_log() -> None:
    """Each entry goes to one of them, across ledgers; the cursor ends behind the last one."""

    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 30, 5, 30)
        got: dict[int, list[Position]] = {}

        async def work(number: int) -> None:
            own = (await world.client()).log("orders")
            async with own.consumer("billing", shared=True, claim_size=4) as rows:
                async for entry in rows:
                    got.setdefault(number, []).append(entry.position)
                    await asyncio.sleep(0.1)

        tasks = [asyncio.ensure_future(work(number)) for number in range(3)]
        await asyncio.sleep(20)
        new = await fill(log, 7)
        await asyncio.sleep(20)
        handled = [position for part in got.values() for position in part]
        assert sorted(handled) == sorted([*positions, *new])
        assert all(len(part) > 10 for part in got.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = (await log.consumers())["billing"].lag.rows
        assert left is not None
        assert left <= 3  # A cancelled process has not asked for the entry after its last one.

    in_log(act)


def test_what_a_process_left_is_given_to_another() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 10)
        other = (await world.client()).log("orders")
        first = await log.consumer("billing", shared=True, claim_size=4, commit_interval=None)
        second = await other.consumer("billing", shared=True, claim_size=100, commit_interval=None)
        assert await take(first, 2) == positions[:2]
        assert await take(second, 6) == positions[4:]
        states = await log.consumers()
        one, two = (member[1:] for member in states["billing"].members)
        assert (one, two) == ((positions[0], positions[3]), (positions[4], positions[9]))
        await second.commit()
        assert (await second.lag()).rows == 4
        assert (await log.consumers())["billing"].lag == Lag(4, 4, None)
        assert await cursor_of(log) == positions[0]
        with pytest.raises(CursorBehind, match="billing"):
            await log.truncate(positions[1])
        await first.close()  # A normal end commits the second entry too.
        assert await take(second, 2) == positions[2:4]
        assert (await log.consumers())["billing"].members[0][1:] == (positions[2], positions[3])
        await second.close()
        assert await cursor_of(log) == positions[-1].next
        [state] = (await log.consumers()).values()
        assert (state.lag, state.processes, state.members) == (Lag(0, 0, 0.0), (), ())

    in_log(act)


def test_a_process_goes_back_in_a_ledger_that_has_ended_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """It opened the ledger before its end, of which the notification is late."""
    lose_notifications(monkeypatch)

    async def act(world: World, client: Client, log: Log) -> None:
        writer = await (await world.client()).log("orders").lead()
        positions = [await writer.append(b"%d" % number) for number in range(20)]
        other = (await world.client()).log("orders")
        first = await other.consumer("billing", shared=True, claim_size=10)
        await take(first, 1)
        async with log.consumer("billing", shared=True, claim_size=10) as rows:
            assert await take(rows, 10) == positions[10:]
            await first.__aexit__(RuntimeError, None, None)  # what it had claimed is free
            positions += [await writer.append(b"%d" % number) for number in (20, 21)]
            await writer.close()
            assert await take(rows, 12) == [*positions[:10], *positions[20:]]

    in_log(act)


def test_a_suspended_process_cannot_commit_and_its_entries_are_delivered_again() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 10)
        other = (await world.client()).log("orders")
        first = await log.consumer("billing", shared=True, ttl=2, claim_size=5, commit_interval=None)
        assert await take(first, 3) == positions[:3]
        suspend()
        second = await other.consumer("billing", shared=True, ttl=2, claim_size=20, commit_interval=None)
        assert await take(second, 5) == positions[5:]
        assert sorted(await take(second, 5)) == positions[:5]
        assert not first.lease.is_held
        with pytest.raises(LeaseLost, match="another process may have it"):
            await first.commit()
        with pytest.raises(LeaseLost):
            await take(first, 3)
        await second.close()
        assert await cursor_of(log) == positions[-1].next
        with pytest.raises(LeaseLost):
            await first.close()
        assert await cursor_of(log) == positions[-1].next

    in_log(act)


def test_a_process_continues_after_all_have_died() -> None:
    """What was handled ahead of others is not repeated."""

    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 10)
        other = (await world.client()).log("orders")
        first = await log.consumer("billing", shared=True, claim_size=5, commit_interval=None)
        second = await other.consumer("billing", shared=True, claim_size=3, commit_interval=None)
        await take(first, 1)
        assert await take(second, 3) == positions[5:8]
        await second.close()
        await first.lease.release()
        async with log.consumer("billing", shared=True) as rows:
            assert await take(rows, 7) == [*positions[:5], *positions[8:]]
        async with log.consumer("billing") as alone:
            new = await fill(log, 2)
            assert await take(alone, 1) == new[:1]
        await log.move_cursor("billing", positions[4])
        async with log.consumer("billing", shared=True) as rows:
            assert await take(rows, 2) == positions[4:6]

    in_log(act)


def test_shared_and_other_consumers_of_a_name_exclude_each_other() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 5)
        other = (await world.client()).log("orders")
        async with log.consumer("billing", shared=True) as rows:
            await take(rows, 2)
            with pytest.raises(LeaseHeld, match="consumer billing of log orders is held by"):
                await other.consumer("billing", failover=False)
            with pytest.raises(LeaseHeld, match="delete the cursor"):
                await other.move_cursor("billing", positions[3])
            waiting = asyncio.create_task(other.consumer("billing").begin())
            await asyncio.sleep(3)
            with pytest.raises(LeaseHeld):
                await other.consumer("billing", shared=True, failover=False)
            state = (await log.consumers())["billing"]
            assert (len(state.processes), len(state.members)) == (2, 1)
        alone = await waiting
        assert await take(alone, 1) == positions[2:3]
        await alone.close()

    in_log(act)


@pytest.mark.parametrize("passes_alone", [False, True])
def test_a_cursor_that_was_moved_back_delivers_all_entries_again(passes_alone: bool) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 5)
        first = await log.consumer("billing", shared=True, claim_size=1)
        await take(first, 1)
        async with (await world.client()).log("orders").consumer("billing", shared=True, claim_size=1) as rows:
            assert await take(rows, 3) == positions[1:4]
        await first.__aexit__(ValueError, None, None)  # its entry is not handled, those of the other one are
        assert await cursor_of(log) == positions[0]
        if passes_alone:
            async with log.consumer("billing") as alone:
                await take(alone, 2)
        else:
            await log.move_cursor("billing", positions[3])
        await log.move_cursor("billing", positions[0])
        async with log.consumer("billing", shared=True) as rows:
            assert await take(rows, 5) == positions

    in_log(act)


def test_the_cursor_is_deleted() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 5)

        async def work() -> None:
            async with log.consumer("billing", shared=True) as rows:
                async for entry in rows:
                    if entry.position == positions[2]:
                        await log.delete_cursor("billing")

        with pytest.raises(CursorMoved, match="cursor billing was deleted while processes shared it"):
            await work()
        assert await log.cursors() == {}
        first = await log.consumer("billing", shared=True, claim_size=3, commit_interval=None)
        await take(first, 2)
        await log.delete_cursor("billing")
        async with (await world.client()).log("orders").consumer("billing", shared=True) as rows:
            assert await take(rows, 5) == positions
            with pytest.raises(CursorMoved):
                await first.commit()
        with pytest.raises(CursorMoved):
            await first.close()
        assert await cursor_of(log) == positions[-1].next

    in_log(act)


def test_idle_processes_end_when_the_cursor_is_deleted() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 4)

        async def work() -> None:
            own = (await world.client()).log("orders")
            async with own.consumer("billing", shared=True, ttl=3) as rows:
                async for _ in rows:
                    pass

        tasks = [asyncio.ensure_future(work()) for _ in range(3)]
        await asyncio.sleep(5)
        assert await cursor_of(log) == positions[-1].next
        waiting = asyncio.create_task(log.consumer("billing").begin())
        await asyncio.sleep(1)
        await log.delete_cursor("billing")
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [CursorMoved] * 3
        alone = await waiting
        assert await take(alone, 4) == positions
        await alone.close()

    in_log(act)


def test_a_version_that_only_deletes_the_cursor() -> None:
    """A process that waits gets the entries again: that it has handled later ones says nothing about those of its
    next range."""

    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 6)
        async with log.consumer("billing", shared=True, commit_interval=None) as rows:
            assert await take(rows, 6) == positions
            await rows.commit()
            await (await log._parts()).cursors.delete("billing", lambda: asyncio.sleep(0, ()))
            async with (await world.client()).log("orders").consumer("billing", shared=True):
                again = await take(rows, 1)
                await rows.commit()
                assert (again, await cursor_of(log)) == (positions[:1], positions[1])
                assert await take(rows, 5) == positions[1:]

    in_log(act)


def test_a_compaction_removes_claimed_entries() -> None:
    """The process that gets them goes on with those that are left of the range, or with the next range."""

    async def main(world: World) -> None:
        client = await world.client()
        log = client.log("orders")
        await log.create(record_format="envelope", compaction="key")
        positions = []
        async with log.lead() as writer:
            for keys in (b"aaaabaac", b"aad"):
                positions += [await writer.append(b"value", key=bytes((key,))) for key in keys]
                await writer.roll()
            positions.append(await writer.append(b"value", key=b"a"))
        sizes = (3, 6)
        for size in sizes:
            rows = await log.consumer(f"size{size}", shared=True, claim_size=size, commit_interval=None)
            assert await take(rows, 1) == positions[:1]
            await rows.lease.release()  # What it has claimed is free.
        assert (await log.compact()).removed == 8
        rest = [positions[4], positions[7], positions[10], positions[11]]
        for size in sizes:
            async with log.consumer(f"size{size}", shared=True, claim_size=size) as rows:
                assert await take(rows, len(rest)) == rest
            assert await cursor_of(log, f"size{size}") == positions[-1].next

    play(main, 3)


def test_the_list_of_a_server_that_lags_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A position that it lacks is no truncated one. One that is in no list is refused."""

    async def act(world: World, client: Client, log: Log) -> None:
        await fill(log, 1)
        [old] = [await LogStore(client._driver, "orders").read()]
        [position] = await fill(log, 1)
        read, answers = LogStore.read, [old, old]  # when the consumer is opened, and when it begins

        async def lagging(store: LogStore) -> tuple[Manifest, int]:
            return answers.pop() if answers else await read(store)

        monkeypatch.setattr(LogStore, "read", lagging)
        async with (await world.client()).log("orders").consumer("billing", shared=True, start=position) as rows:
            assert await take(rows, 1) == [position]
        assert answers == []
        with pytest.raises(LogTruncated):
            await log.consumer("audit", shared=True, start=Position(1_000, 0))

    in_log(act)


def test_a_log_without_ledgers() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        other = (await world.client()).log("orders")
        async with log.consumer("billing", shared=True) as rows, other.consumer("billing", shared=True) as idle:
            assert await rows.lag() == Lag(0, 0, 0.0)
            waiting = [asyncio.ensure_future(anext(each)) for each in (rows, idle)]  # type: ignore[arg-type]
            await asyncio.sleep(12)
            assert await log.cursors() == {}
            positions = await fill(log, 1)
            done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result().position for task in done] == positions
            late = (await world.client()).log("orders")
            async with late.consumer("billing", shared=True):
                assert await cursor_of(log) == positions[0]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        assert await cursor_of(log) == positions[0].next

    in_log(act)


def test_truncations() -> None:
    """One that carries the cursor along changes nothing for the processes; a forced one is reported."""

    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 2, 2)
        async with log.consumer("billing", shared=True, start=positions[1]) as rows:
            assert await take(rows, 3) == positions[1:]
            await rows.commit()
            new = [(await fill(log, 1))[0] for _ in range(3)]
            await log.truncate(new[0])
            async with (await world.client()).log("orders").consumer("billing", shared=True, claim_size=1) as late:
                assert sorted([*await take(rows, 1), *await take(late, 2)]) == new
        await log.move_cursor("billing", new[0])
        await log.truncate(new[2], force=True)
        with pytest.raises(LogTruncated):
            await log.consumer("billing", shared=True)
        [lease] = [record for record in await client._driver.record_names("consumers/") if "billing" in record]
        assert b'"queue":[]' in (await client._driver.read_record(lease))[0]

    in_log(act)


def test_a_truncation_carries_the_cursor_to_claimed_entries() -> None:
    """Processes that begin afterwards leave the claims as they are."""

    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 2, 6, 1, 1)
        async with log.consumer("billing", shared=True, claim_size=2, commit_interval=None) as rows:
            assert await take(rows, 2) == positions[:2]
            await rows.commit()
            assert await take(rows, 3) == positions[2:5]
            assert await cursor_of(log) == positions[1].next
            await log.truncate(positions[2])
            assert await cursor_of(log) == positions[2]
            async with (await world.client()).log("orders").consumer("billing", shared=True) as late:
                assert await take(late, 2) == positions[6:8]
                assert await take(rows, 1) == positions[5:6]
                await rows.commit()
                assert await cursor_of(log) == positions[5].next
                assert sorted([*await take(rows, 1), *await take(late, 1)]) == positions[8:]
        assert await cursor_of(log) == positions[-1].next

    in_log(act)


def test_a_compaction_removes_all_claimed_entries_at_the_end() -> None:
    """They are no lag any more, although no entry follows."""

    async def main(world: World) -> None:
        client = await world.client()
        log = client.log("orders")
        await log.create(record_format="envelope", compaction="key")
        async with log.lead() as writer:
            kept = await writer.append(b"value", key=b"a")
            await writer.roll()
            for _ in range(3):
                last = await writer.append(Record(None, b"b"))
        first = await log.consumer("billing", shared=True, commit_interval=None)
        assert await take(first, 2) == [kept, Position(last.ledger_id, 0)]
        await first.commit()
        await take(first, 1)
        await first.lease.release()  # What it has claimed is free.
        assert [(await log.compact(tombstone_age=0.001)).removed for _ in range(2)] == [2, 1]
        async with log.consumer("billing", shared=True) as rows:
            waiting = asyncio.ensure_future(take(rows, 1))
            await asyncio.sleep(10)
            assert [state.lag.rows for state in (await log.consumers()).values()] == [0]
            assert await cursor_of(log) == last.next
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    play(main, 3)


def test_a_deleted_log() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        await fill(log, 2)

        async def consume() -> None:
            own = (await world.client()).log("orders")
            async with own.consumer("billing", shared=True) as rows:
                async for _ in rows:
                    pass

        tasks = [asyncio.ensure_future(consume()) for _ in range(3)]
        await asyncio.sleep(5)
        await log.delete()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [LogNotFound] * 3
        assert world.store.list(Table.RECORDS).items == []

    in_log(act)


def test_one_write_commits_and_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        await fill(log, 100)
        writes: list[str] = []
        write_record = MemoryDriver.write_record

        async def counted(self: MemoryDriver, name: str, data: bytes, version: int) -> int:
            writes.append(name)
            return await write_record(self, name, data, version)

        async with log.consumer("billing", shared=True, claim_size=10, commit_interval=None) as rows:
            monkeypatch.setattr(MemoryDriver, "write_record", counted)
            await take(rows, 91)
        assert writes[:10] == ["consumers/orders/billing"] * 10
        assert len(writes) == 11  # the last one leaves

    in_log(act)


@pytest.mark.parametrize("arguments", [{"shared": 1}, {"claim_size": 0}, {"ttl": 0.5}])
def test_what_is_refused(arguments: dict[str, object]) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        with pytest.raises(InvalidArgument):
            log.consumer("billing", **({"shared": True} | arguments))  # type: ignore[arg-type]

    in_log(act)


def test_the_cursor_of_numbered_entries_is_no_consumer() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            await writer.append(b"a", producer="p", sequence=1)
        assert list(await log.cursors()) == ["bk-sequences"]
        assert await log.consumers() == {}

    in_log(act, record_format="envelope")
