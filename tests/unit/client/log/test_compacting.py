"""Compaction through the client: positions, readers, producers' numbers, two compactions, a stop at every step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.fakes.world import World, play

from bookies.client.client import Client
from bookies.client.log import Log
from bookies.client.log.retaining import SWAP_EXTENTS, Compactor
from bookies.encoding.envelope import Record
from bookies.errors import InvalidArgument, LogInUse, LogTruncated
from bookies.protocol.log import Position
from bookies.protocol.log.records import LogRecord

Act = Callable[[World, Client, Log, list[Position]], Awaitable[None]]
AGE_S = 60
ROUNDS = 4


def with_log(act: Act) -> None:
    """A log of four closed ledgers with the keys a, b and one of their own, and one without a key; all positions."""

    async def main(world: World) -> None:
        client = await world.client()
        log = client.log("orders")
        await log.create(record_format="envelope", compaction="key")
        positions = []
        async with log.lead() as writer:
            for number in range(ROUNDS):
                for key in (b"a", b"b", b"own%d" % number, None):
                    positions.append(await writer.append(b"%d" % number, key=key))
                await writer.roll()
        await act(world, client, log, positions)

    play(main, 3)


async def records(log: Log, start: Position | None = None) -> list[LogRecord]:
    async with log.open() as reader:
        return [record async for record in reader.read(start).records()]


async def table(log: Log) -> dict[bytes | None, bytes | None]:
    """Return the last value of each key."""
    return {record.key: record.value for record in await records(log)}


async def unlisted(client: Client, log: Log) -> list[int]:
    manifest = await log.manifest()
    listed = {*manifest.storages, *manifest.deleting}
    return [ledger.ledger_id async for ledger in client.ledgers() if ledger.ledger_id not in listed]


def test_the_last_record_of_each_key_stays_at_its_position() -> None:
    async def act(world: World, client: Client, log: Log, positions: list[Position]) -> None:
        before = await records(log)
        assert (await log.compact(dry_run=True)).removed == 6
        assert await records(log) == before
        result = await log.compact()
        assert (result.entries, result.removed, len(result.ledgers), result.passes) == (16, 6, 3, 1)
        after = await records(log)
        assert [record for record in before if record.key not in (b"a", b"b") or record.value == b"3"] == after
        assert (await log.compact()).ledgers == ()
        # A position leads to the next entry that is left, also the position of one that went.
        assert await records(log, positions[0]) == after
        assert await records(log, positions[3].next) == await records(log, positions[4]) == after[2:]
        assert (await log.manifest()).rows_truncated == 0
        await log.move_cursor("billing", positions[5])
        async with log.consumer("billing") as rows:
            assert (await anext(rows)).position == positions[6]
        await log.truncate(positions[7], force=True)
        assert await records(log) == after[3:]
        assert await unlisted(client, log) == []
        async with log.lead() as writer:
            await writer.append(b"4", key=b"own1")
            await writer.roll()
        assert (await log.compact()).removed == 0  # It was truncated before.
        await log.delete()
        assert [ledger async for ledger in client.ledgers()] == []

    with_log(act)


def test_tombstones_go_after_their_time_and_numbers_stay() -> None:
    async def act(world: World, client: Client, log: Log, positions: list[Position]) -> None:
        async with log.lead() as writer:
            await writer.append(Record(b"1", b"n"), producer="p", sequence=1)
            await writer.append(Record(None, b"n"), producer="p", sequence=2)
            await writer.append(Record(None, b"a"))
            await writer.append(Record(b"5", b"n"))
            await writer.roll()
        await log.compact(tombstone_age=AGE_S)
        left = await table(log)
        assert (left[b"n"], left[b"a"]) == (b"5", None)
        await asyncio.sleep(2 * AGE_S)
        assert (await log.compact(tombstone_age=AGE_S)).removed == 1
        assert b"a" not in await table(log)
        async with log.lead() as writer:
            await client._driver.delete_record(*await _record(client, "sequences/orders"))
            await writer.append(Record(b"?", b"n"), producer="p", sequence=2)  # The log holds it.
            await writer.append(Record(b"6", b"n"), producer="p", sequence=3)
        assert (await table(log))[b"n"] == b"6"

    with_log(act)


async def _record(client: Client, name: str) -> tuple[str, int]:
    return name, (await client._driver.read_record(name))[1]


def test_readers_go_on_in_the_new_ledgers() -> None:
    async def act(world: World, client: Client, log: Log, positions: list[Position]) -> None:
        whole = await records(log)
        async with log.open() as reader:
            rows, tail = reader.read().records(), reader.tail(from_beginning=True).records()
            read = [[await anext(rows) for _ in range(5)], [await anext(tail) for _ in range(2)]]
            await log.compact()
            after = await records(log)
            read[0] += [record async for record in rows]
            while len(read[1]) < 2 or read[1][-1] != whole[-1]:
                read[1].append(await anext(tail))
        for of_reader in read:
            seen = [record.position for record in of_reader]
            assert len({*seen}) == len(seen)
            assert [record for record in whole if record.position in seen] == of_reader
            assert {record.position for record in after} <= {*seen}

    with_log(act)


@pytest.mark.parametrize("claim_size", [1, 2, 3, 100])
def test_entries_that_a_process_had_claimed_go(claim_size: int) -> None:
    """Another process of the consumer gets what is left of them, then the rest, and the cursor follows."""

    async def act(world: World, client: Client, log: Log, positions: list[Position]) -> None:
        first = await log.consumer("billing", shared=True, claim_size=claim_size, commit_interval=None)
        assert (await anext(first)).position == positions[0]
        await first.__aexit__(ValueError, ValueError(), None)
        await log.compact()
        left = [record.position for record in await records(log)]
        async with log.consumer("billing", shared=True, claim_size=claim_size, commit_interval=None) as rows:
            assert [(await anext(rows)).position for _ in left] == left
        assert (await log.cursors())["billing"].position == positions[-1].next

    with_log(act)


def test_two_compactions_and_a_truncation_at_a_time() -> None:
    async def act(world: World, client: Client, log: Log, positions: list[Position]) -> None:
        before = await table(log)
        outcomes = await asyncio.gather(log.compact(), log.compact(), return_exceptions=True)
        assert all(not isinstance(outcome, BaseException) or isinstance(outcome, LogInUse) for outcome in outcomes)
        assert await table(log) == before
        assert await unlisted(client, log) == []
        async with log.lead() as writer:
            await writer.append_many([Record(b"x", b"own0"), Record(b"x", b"own1"), Record(b"x", b"own2")])
            await writer.roll()
        outcomes = await asyncio.gather(log.compact(), log.truncate(positions[9]), return_exceptions=True)
        assert all(not isinstance(outcome, BaseException) or isinstance(outcome, LogTruncated) for outcome in outcomes)
        assert await unlisted(client, log) == []
        assert (await table(log))[b"own0"] == b"x"

    with_log(act)


@pytest.mark.parametrize("step", range(60))
def test_a_compaction_that_stops_anywhere_loses_nothing(step: int) -> None:
    async def act(world: World, client: Client, log: Log, positions: list[Position]) -> None:
        before = await table(log)
        other = await world.client()
        compaction = asyncio.ensure_future(other.log("orders").compact())
        for _ in range(step):
            await asyncio.sleep(0.0002)
            if compaction.done():
                break
        compaction.cancel()
        await asyncio.gather(compaction, return_exceptions=True)
        assert await table(log) == before
        await asyncio.sleep(2 * AGE_S)
        left = await unlisted(client, log)
        assert len(left) <= SWAP_EXTENTS
        reaped = [row.ledger_id async for row in log.reap(orphan_grace=AGE_S) if row.outcome == "deleted"]
        assert set(left) <= set(reaped)
        assert await unlisted(client, log) == []
        await log.compact()
        assert await table(log) == before
        assert len(await records(log)) == 10

    with_log(act)


def test_a_small_table_reads_the_log_more_often() -> None:
    async def act(world: World, client: Client, log: Log, positions: list[Position]) -> None:
        compactor = Compactor(await log._parts(), client._driver, 1000, keys_max=2)
        result = await compactor.run()
        assert (result.removed, result.passes > 1) == (6, True)

    with_log(act)


def test_what_is_refused() -> None:
    async def main(world: World) -> None:
        client = await world.client()
        with pytest.raises(InvalidArgument, match="record_format"):
            await client.log("a").create(compaction="key")
        with pytest.raises(InvalidArgument, match='expected "key"'):
            await client.log("a").create(compaction="time", record_format="envelope")
        with pytest.raises(InvalidArgument, match="no limit 'ages'"):
            await client.log("a").create(retention={"ages": 1})
        await client.log("a").create(retention={"age": 60, "rows": 5})
        policy = await client.log("a").retention()
        assert (policy.age_ms, policy.size, policy.rows) == (60_000, None, 5)
        with pytest.raises(InvalidArgument, match="only a log that was created with compaction"):
            await client.log("a").compact()

    play(main, 3)
