"""Roll-up through the client: positions, times, readers, cursors and numbers stay, also when it stops at any step."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fakes.offloaded import named
from tests.fakes.world import World, play

from bookies.client.client import Client
from bookies.client.log import Log
from bookies.client.log.log import compactor_of
from bookies.client.log.retaining import LogRollUp
from bookies.encoding.envelope import Record
from bookies.errors import DigestMismatch, InvalidArgument, LogFenced, LogInUse, LogTruncated
from bookies.protocol.ledger.offload import Content
from bookies.protocol.log import Position
from bookies.protocol.log.log_model import HELD

Act = Callable[[World, Client, Log], Awaitable[None]]
COUNTS = (3, 0, 1, 4, 0, 2)
ONE = 6  # payload bytes of an entry


async def content(log: Log, start: Position | None = None) -> list[tuple[Position, bytes]]:
    async with log.open() as reader:
        return [(entry.position, entry.payload) async for entry in reader.read(start)]


async def append(log: Log, *counts: int) -> None:
    """Append entries in ledgers of so many, a second apart."""
    for count in counts:
        async with log.lead() as writer:
            for number in range(count):
                await writer.append(b"%03d:%02d" % (writer.epoch, number))
            await asyncio.sleep(1.2)


def with_log(act: Act, password: bytes = b"", **settings: Any) -> None:
    """A log of closed ledgers with `COUNTS` entries, some empty."""

    async def main(world: World) -> None:
        client = await world.client()
        log = client.log("orders", password=password)
        await log.create(**settings)
        await append(log, *COUNTS)
        await act(world, client, log)

    play(main, 3)


async def ledger_ids(client: Client) -> set[int]:
    return {ledger.ledger_id async for ledger in client.ledgers()}


async def times(log: Log) -> list[Position | None]:
    start_s = (await log.manifest()).created_ms / 1000
    return [await log.at(start_s + step / 4, is_end=is_end) for step in range(40) for is_end in (False, True)]


@pytest.mark.parametrize("password", [b"", b"secret"])
def test_entries_positions_and_times_stay(password: bytes) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        before, at, first = await content(log), await times(log), await log.manifest()
        forecast = await log.roll_up(dry_run=True)
        assert await log.manifest() == first
        news: list[tuple[int, int]] = []
        result = await log.roll_up(progress=lambda done, total: news.append((done, total)))
        assert result == LogRollUp(6, 6, 1, 1, 10 * ONE, 0)
        assert (forecast, forecast.left) == (LogRollUp(6, 6, 1, 0, 10 * ONE, 0), 1)
        assert news[-1] == (10 * ONE, 10 * ONE)
        after = await log.manifest()
        assert await ledger_ids(client) == {*after.storages}
        assert len({*after.storages}) == 1
        assert after.ledger_ids == first.ledger_ids
        assert await content(log) == before
        assert await times(log) == at
        for index, (position, _) in enumerate(before):
            assert await content(log, position) == before[index:]
            assert await content(log, position.next) == before[index + 1 :]
        assert (await log.roll_up()).runs == 0
        await append(log, 2, 2)
        assert (await content(log))[: len(before)] == before
        await log.truncate(before[4][0])
        assert await content(log, before[4][0]) == await content(log)
        await log.roll_up(below=ONE * 10)
        assert (await content(log))[:6] == before[4:]
        await log.delete()
        assert await ledger_ids(client) == set()

    with_log(act, password)


def test_times_of_a_log_without_points_stay() -> None:
    """Only the creation of its ledgers tells them."""

    async def act(world: World, client: Client, log: Log) -> None:
        _, version = await client._driver.read_record("log-times/orders")
        await client._driver.delete_record("log-times/orders", version)
        at = await times(log)
        assert len({*at}) > 4
        await log.set_retention(age=3, size=None)
        decision = await log.retention_decision()
        await log.roll_up(below=ONE * 4)
        await log.roll_up()
        assert await times(log) == at
        assert (await log.retention_decision()).removal is not None
        assert decision.removal is not None

    with_log(act)


def test_readers_go_on_while_ledgers_are_replaced() -> None:
    """From the beginning, tailing, and reading from a position, over two roll-ups."""

    async def act(world: World, client: Client, log: Log) -> None:
        whole = await content(log)
        async with log.open() as reader:
            rows, tail = reader.read(), reader.tail(from_beginning=True)
            begun, waiting = reader.read(whole[3][0]), reader.tail()
            next_one = asyncio.ensure_future(anext(waiting))
            found = [[(entry.position, entry.payload) for entry in [await anext(source)]] for source in (rows, tail)]
            await log.roll_up(below=ONE * 4)
            assert len({*(await log.manifest()).storages}) > 1
            found[0].append((lambda entry: (entry.position, entry.payload))(await anext(rows)))
            await log.roll_up()
            found[0] += [(entry.position, entry.payload) async for entry in rows]
            assert found[0] == whole
            assert [(entry.position, entry.payload) async for entry in begun] == whole[3:]
            await append(log, 1)
            while len(found[1]) < len(whole) + 1:
                found[1] += [(entry.position, entry.payload) for entry in [await anext(tail)]]
            assert found[1] == await content(log)
            assert (await next_one).position == found[1][-1][0]

    with_log(act)


def test_a_leader_a_consumer_and_numbers_go_on() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer, log.consumer("billing", commit_interval=None) as rows:
            await writer.append(b"1", producer="p", sequence=1)
            await writer.roll()
            last = await writer.append(b"2", producer="p", sequence=2)
            first = await anext(rows)
            await rows.commit()
            assert (await log.roll_up()).merged >= 6
            assert await writer.append(b"2", producer="p", sequence=2) == last
            await writer.append(b"3", producer="p", sequence=3)
            assert (await log.cursors())["billing"].position == first.position.next
            assert [row.payload for row in [await anext(rows) for _ in range(12)]][-1:] != [first.payload]
        assert (await log.cursors())["billing"].position == (await content(log))[-1][0].next
        async with log.lead() as writer:  # It finds the numbers in the log.
            assert await writer.append(b"3", producer="p", sequence=3) == (await content(log))[-1][0]

    with_log(act, record_format="envelope")


def test_a_compacted_log_and_a_transaction() -> None:
    async def main(world: World) -> None:
        client = await world.client()
        log = client.log("orders")
        await log.create(record_format="envelope", compaction="key")
        for number in range(4):
            async with log.transaction("loader", number) as txn:
                await txn.append_many([Record(b"%d" % number, b"k%d" % (number + key)) for key in range(4)])
        at, first = await times(log), await log.manifest()
        assert (await log.compact()).removed == 9
        before = await content(log)
        assert (await log.roll_up()).merged == 4
        after = await log.manifest()
        assert (len({*after.storages}), len(await ledger_ids(client))) == (1, 1)
        assert [extent.txn for extent in after.extents] == [extent.txn for extent in first.extents]
        assert await content(log) == before
        assert await times(log) == at
        async with log.transaction("loader", 9) as txn:
            await txn.append_many([Record(b"9", b"k0"), Record(None, b"k1")])
        assert (await log.compact()).removed == 2
        left = [(position, payload) for position, payload in await content(log) if position in dict(before)]
        assert set(left) < set(before)
        await log.roll_up()
        assert len(await ledger_ids(client)) == 1
        assert (await content(log))[: len(left)] == left
        async with log.transaction("loader", 9) as txn:  # It was committed.
            await txn.append(Record(b"?", b"k0"))
        assert (await content(log))[: len(left)] == left

    play(main, 3)


def test_ledgers_that_are_offloaded_stay() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        before = await content(log)
        ledger_id = (await log.manifest()).ledger_ids[2]
        await client.administration().change_record(ledger_id, named)
        result = await log.roll_up()
        assert (result.offloaded, result.merged, result.runs, result.left) == (1, 2, 1, 5)
        assert (await log.manifest()).storages[2] == ledger_id
        assert await content(log) == before

    with_log(act)


@pytest.mark.parametrize("step", range(2, 42, 4))
def test_a_roll_up_that_stops_anywhere_loses_nothing(step: int) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        before = await content(log)
        other = await world.client()
        work = asyncio.ensure_future(other.log("orders").roll_up(below=ONE * 4))
        for _ in range(step):
            await asyncio.sleep(0.0002)
        await other.close()  # It can delete nothing any more, as if its process were killed.
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert await content(log) == before
        assert await ledger_ids(client) - {*(await log.manifest()).storages} or step > 38
        await asyncio.sleep(120)
        async for _ in log.reap(orphan_grace=60):
            pass
        await log.roll_up()
        manifest = await log.manifest()
        assert (manifest.deleting, await ledger_ids(client)) == ((), {*manifest.storages})
        assert len({*manifest.storages}) == 1
        assert await content(log) == before

    with_log(act)


def test_two_roll_ups_a_compaction_and_a_truncation_at_a_time() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            for number in range(3):
                await writer.append_many([Record(b"%d" % number, b"a"), Record(b"%d" % number)])
                await writer.roll()
        before = await content(log)
        calls = log.roll_up(), log.roll_up(), log.compact(), log.truncate(before[3][0])
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert all(isinstance(failure, LogInUse | LogTruncated) for failure in failures)
        assert len(failures) < len(calls)
        manifest = await log.manifest()
        assert await ledger_ids(client) == {*manifest.storages}
        left = await content(log)
        assert set(left) <= set(before[3:])
        assert [row for row in left if row in before] == left
        assert {payload for _, payload in before[3:]} - {payload for _, payload in left} <= {p for _, p in before[-6:]}

    with_log(act, record_format="envelope", compaction="key")


def test_what_is_refused() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        for arguments, words in (({"below": 0}, "below=0"), ({"rate": 0}, "rate=0")):
            with pytest.raises(InvalidArgument, match=words):
                await log.roll_up(**arguments)
        parts = await log._parts()
        await parts.records.update(lambda now: None if now.held else replace(now, extra={HELD: "it is a mirror"}))
        before = await content(log)
        with pytest.raises(LogFenced, match="it is a mirror"):
            await log.roll_up()
        assert await content(log) == before

    with_log(act)


def test_a_copy_that_differs_is_refused() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        compactor = await compactor_of(log)
        ledger_id = (await log.manifest()).ledger_ids[0]

        async def moved(*_: object) -> None:
            pass

        good = Content().extended(b"001:00001:01001:02", struct.pack("<3q", 6, 12, 18))
        await compactor._verify(ledger_id, good, moved)
        for wrong in (Content(), replace(good, rows=4), replace(good, size=17), replace(good, ends=1)):
            with pytest.raises(DigestMismatch, match="the log is unchanged"):
                await compactor._verify(ledger_id, wrong, moved)

    with_log(act)
