"""Readers and truncations: who has lost entries gets `LogTruncated`, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.fakes.logs import fill, in_log, lose_notifications, payloads
from tests.fakes.world import World

from bookies.client.client import Client
from bookies.client.log import Log
from bookies.encoding.envelope import Record
from bookies.errors import LogTruncated
from bookies.protocol.log import Position


async def take(entries: AsyncIterator[object], count: int) -> None:
    for _ in range(count):
        await anext(entries)


async def truncate_to(log: Log, index: int) -> None:
    """Truncate the log to the beginning of a ledger, by its place in the list; truncate by force."""
    await log.truncate(Position((await log.manifest()).ledger_ids[index], 0), force=True)


@pytest.mark.parametrize("count", [0, 1])
def test_extents_that_go_between_two_reads(count: int) -> None:
    """Leaders come and go while everything is handled. `count`: entries that they append, which are lost then."""

    async def act(world: World, client: Client, log: Log) -> None:
        await fill(log, 3, 1)
        async with log.open() as reader, log.consumer("a") as alone, log.consumer("s", shared=True) as shared:
            everything = (reader.tail(from_beginning=True), reader.read(), alone, shared)
            end = reader.tail()
            for entries in everything:
                await take(entries, 4)
            await alone.commit()
            await shared.commit()
            waiting = asyncio.ensure_future(anext(end))  # type: ignore[arg-type]
            await asyncio.sleep(1)
            await fill(log, 0, 0, count, 0, 0)
            await asyncio.sleep(1)
            await truncate_to(log, 5)
            await fill(log, 1)
            for entries in everything:
                if count:
                    with pytest.raises(LogTruncated, match="begins at"):
                        await anext(entries)
                else:
                    assert (await anext(entries)).payload == b"0"
            assert (await waiting).payload == b"0"

    in_log(act)


def test_a_position_at_the_end_of_an_emptied_ledger() -> None:
    """The next entry is the first one of the next ledger, which may be truncated too."""

    async def act(world: World, client: Client, log: Log) -> None:
        positions = await fill(log, 2, 3)
        await log.truncate(positions[2])
        assert (await log.manifest()).ledger_ids == [positions[0].ledger_id, positions[2].ledger_id]
        async with log.open() as reader:
            assert [entry.position async for entry in reader.read(positions[1].next)] == positions[2:]
            await log.truncate(positions[3])
            with pytest.raises(LogTruncated):
                await anext(reader.read(positions[1].next))
            assert [entry.position async for entry in reader.read()] == positions[3:]

    in_log(act)


@pytest.mark.parametrize("is_lost", [False, True])
def test_compacted_extents_have_the_rows_that_they_had(is_lost: bool) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        for keys in (b"abaa", b"aab", b"", b"", b""):
            async with log.lead() as writer:
                for key in keys:
                    await writer.append(Record(b"value", bytes((key,))))
        async with log.open() as reader:
            entries = reader.tail(from_beginning=True)
            await take(entries, 1)
            assert (await log.compact()).removed == 5
            await take(entries, 3)  # of the first ledger, which it had begun to read
            if not is_lost:
                await take(entries, 2)
            await truncate_to(log, 3)
            async with log.lead() as writer:
                await writer.append(b"new", key=b"a")
            if is_lost:
                with pytest.raises(LogTruncated):
                    await anext(entries)
            else:
                assert (await anext(entries)).payload.endswith(b"new")

    in_log(act, record_format="envelope", compaction="key")


@pytest.mark.parametrize("count", [0, 1])
def test_a_ledger_that_is_gone_before_its_tail_has_seen_its_end(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_notifications(monkeypatch)

    async def act(world: World, client: Client, log: Log) -> None:
        writer = await (await world.client()).log("orders").lead()
        await writer.append_many([b"a", b"b"])
        async with log.open() as reader:
            entries = reader.tail(from_beginning=True)
            await take(entries, 2)
            if count:
                await writer.append(b"lost")
            await writer.close()
            await fill(log, 0, 0, 0)
            await truncate_to(log, 3)
            await fill(log, 1)
            if count:
                with pytest.raises(LogTruncated):
                    await anext(entries)
            else:
                assert (await anext(entries)).payload == b"0"

    in_log(act)


def test_rows_that_the_list_does_not_tell() -> None:
    """A reader that begins after a ledger without an end in the list, and never sees that end, cannot rule out a loss.
    One that does can."""

    async def act(world: World, client: Client, log: Log) -> None:
        writer = await (await world.client()).log("orders").lead()
        await writer.append(b"a")
        await writer.roll()
        position = await writer.append(b"b")
        assert len((await log.manifest()).open_ledgers) == 2
        async with log.open() as reader:
            waits, sleeps = reader.tail(position), reader.tail(position)
            await take(waits, 1)
            await take(sleeps, 1)
            await writer.abandon()
            waiting = asyncio.ensure_future(anext(waits))  # type: ignore[arg-type]
            for _ in range(4):
                await fill(log, 0)
                await asyncio.sleep(1)
            await truncate_to(log, 4)
            await fill(log, 1)
            assert (await waiting).payload == b"0"
            with pytest.raises(LogTruncated):
                await anext(sleeps)
        assert await payloads(log) == [b"0"]

    in_log(act)
