"""The position of a time: with points of leaders, with commits, with creation times of ledgers, with timestamps."""

from __future__ import annotations

import asyncio
import datetime

import pytest
from tests.fakes.logs import QUICK, Act, in_log
from tests.fakes.world import World, play

from bookies.client.client import Client
from bookies.client.log import Log
from bookies.client.log.base.cursor_store import TIMES
from bookies.encoding.envelope import Record
from bookies.errors import InvalidArgument, LogNotFound, MetadataCorrupt, MetadataError
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.interface.driver import RecordWrite, Step
from bookies.protocol.log import Position
from bookies.protocol.log.log_times import Point, parse_times
from bookies.wire.messages import AddRequest


def with_log(act: Act, record_format: str = "raw") -> None:
    in_log(act, record_format, **QUICK)


def now(world: World) -> float:
    """The wall clock, seconds."""
    return world.runtime("test").clock.wall_ms() / 1000


async def stored_points(world: World, log: Log) -> list[Point]:
    driver = MemoryDriver(world.store, world.runtime("looks"))
    await driver.open()
    try:
        data, _ = await driver.read_record(TIMES + log.name)
    finally:
        await driver.close()
    return parse_times(log.name, (await log.manifest()).token, data)


async def forget_points(client: Client, log: Log) -> None:
    """As in a log that is older than the points."""
    data, version = await client._driver.read_record(TIMES + log.name)
    assert data
    await client._driver.delete_record(TIMES + log.name, version)


async def appended(world: World, log: Log, *, rolls: bool = False) -> list[tuple[Position, float]]:
    """Append an entry every five seconds; their positions and the times just before."""
    entries = []
    async with log.lead() as writer:
        for number in range(12):
            at_s = now(world)
            entries.append((await writer.append(b"%d" % number), at_s))
            await asyncio.sleep(5)
            if rolls:
                await writer.roll()
                await asyncio.sleep(5)
    return entries


def test_points_of_the_leader_are_exact_to_a_second() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        assert await log.at(0.0) is None
        entries = await appended(world, log)
        for position, at_s in entries:
            assert await log.at(at_s) == position
            assert await log.at(at_s, is_end=True) in (position, position.next)
        moment = datetime.datetime.fromtimestamp(entries[4][1], datetime.UTC)
        assert await log.at(moment) == entries[4][0]
        last = entries[-1][0]
        assert await log.at(0) == entries[0][0]
        assert await log.at(0, is_end=True) == entries[0][0]
        assert await log.at(now(world)) == last.next
        assert await log.at(now(world) + 1e6, is_end=True) == last.next
        assert len(await stored_points(world, log)) == 13
        assert list(await log.begun()) == [0]

    with_log(act)


def test_a_log_that_is_being_written_ends_at_its_last_confirmed_entry() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            position = await writer.append(b"a")
            await asyncio.sleep(2)  # Readers know what is confirmed.
            assert await log.at(now(world) + 60) == position.next
            assert await log.at(now(world), is_end=True) == position.next
            await writer.roll()
            assert await log.at(now(world) + 60) == Position(writer.ledger_id, 0)

    with_log(act)


@pytest.mark.parametrize("rolls", [False, True])
def test_a_killed_leader_loses_the_points_of_some_seconds_only(rolls: bool) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        writer = await log.lead()
        entries = []
        for number in range(40):
            at_s = now(world)
            entries.append((await writer.append(b"%d" % number), at_s))
            await asyncio.sleep(1)
            if rolls and number % 7 == 6:
                await writer.roll()
        async with log.lead() as successor:
            entries.append((await successor.append(b"x"), now(world)))
            manifest = successor.manifest
        order = {ledger_id: index for index, ledger_id in enumerate(manifest.ledger_ids)}
        for index, (position, at_s) in enumerate(entries):
            found = await log.at(at_s)
            assert found is not None
            assert (order[found.ledger_id], found.entry_id) <= (order[position.ledger_id], position.entry_id)
            async with log.open() as reader:
                [first] = [entry.payload async for entry in reader.read(found)][:1]
            assert int(first) >= index - 12 if first != b"x" else index == 40
        await writer.abandon()

    with_log(act)


def test_a_transaction_has_the_time_of_its_commit() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        times, firsts = [], []
        for version in range(3):
            times.append(now(world))
            async with log.transaction("loader", version) as txn:
                await txn.append_many([b"%d" % version, b"more"])
            firsts.append(Position((await log.manifest()).ledger_ids[-1], 0))
            await asyncio.sleep(180)
        assert [await log.at(at_s) for at_s in times] == firsts
        assert [await log.at(at_s + 30, is_end=True) for at_s in times[:2]] == firsts[1:]
        assert await log.at(now(world)) == Position(firsts[-1].ledger_id, 2)

    with_log(act)


def test_without_points_the_creation_of_ledgers_narrows_the_position() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        entries = await appended(world, log, rolls=True)
        await forget_points(client, log)
        ids = (await log.manifest()).ledger_ids
        for index, (position, at_s) in enumerate(entries):
            found, end = await log.at(at_s), await log.at(at_s, is_end=True)
            assert found is not None
            assert end is not None
            assert ids.index(position.ledger_id) - 2 <= ids.index(found.ledger_id) <= ids.index(position.ledger_id)
            assert ids.index(end.ledger_id) - ids.index(position.ledger_id) in (0, 1), index

    with_log(act)


async def skips(world: World, log: Log, late_s: float) -> list[int]:
    """Append records with early timestamps until a leader is killed; the entries that a seek to their time skips."""
    entries = []
    writer = await log.lead()
    for number in range(80):
        stamp_us = int((now(world) - late_s) * 1e6)
        position = await writer.append(Record(b"%d" % number, timestamp_us=stamp_us))
        entries.append((position, now(world)))
        await asyncio.sleep(0.31)
    async with log.lead() as successor:  # The points of the last seconds are lost.
        await successor.append(b"more")
        await asyncio.sleep(3)
    await writer.abandon()
    skipped = []
    for number, (position, confirmed_s) in enumerate(entries):
        found = await log.at(confirmed_s)
        assert found is not None
        assert found.ledger_id == position.ledger_id
        assert number - 40 < found.entry_id
        if found.entry_id > position.entry_id:
            skipped.append(number)
    return skipped


@pytest.mark.parametrize("late_s", [0.0, 0.5, 1.5, 5.0])
def test_timestamps_that_are_earlier_than_the_confirmation_skip_no_record(late_s: float) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        assert await skips(world, log, late_s) == []

    with_log(act, "envelope")


def test_a_slow_quorum_skips_no_record() -> None:
    async def main(world: World) -> None:
        client = await world.client(add_timeout_ms=10_000)
        log = client.log("orders")
        await log.create(record_format="envelope")
        for bookie in world.bookies.values():
            bookie.delay_s = lambda request: 4.0 if isinstance(request, AddRequest) else 0.0
        entries: list[tuple[Position, float]] = []
        async with log.lead() as writer:

            async def append(number: int) -> None:
                await asyncio.sleep(0.25 * number)
                entries.append((await writer.append(b"%d" % number), now(world)))

            await asyncio.gather(*map(append, range(80)))
            await asyncio.sleep(3)
        for position, confirmed_s in entries:
            found = await log.at(confirmed_s)
            assert found is not None
            assert position.entry_id - 8 < found.entry_id <= position.entry_id

    play(main, 3)


def test_a_suspended_leader_that_notes_late_moves_no_end() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        old = await log.lead()
        await old.append(b"a")
        await asyncio.sleep(2)
        position = await old.append(b"b")
        async with log.lead() as successor:
            times = []
            for number in range(20):
                times.append(now(world))
                await successor.append(b"%d" % number)
                await asyncio.sleep(3)
            before = [await log.at(at_s, is_end=True) for at_s in times]
            assert before[-1] == Position(successor.ledger_id, 20)
            late_ms = int(now(world) * 1000)
            old._parts.times._unsaved.append(Point(position.next, late_ms))  # as after SIGSTOP and SIGCONT
            await old._parts.times.save()
            assert [await log.at(at_s, is_end=True) for at_s in times] == before
            assert await log.at(times[-1]) == position
        await old.abandon()

    with_log(act)


def test_truncated_points_count_as_the_beginning() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        entries = await appended(world, log)
        await log.truncate(entries[5][0])
        assert await log.at(entries[1][1]) == entries[5][0]
        assert await log.at(entries[7][1]) == entries[7][0]

    with_log(act)


@pytest.mark.parametrize("wrong", ["10m", True, -1.0, float("nan"), 1e300, datetime.datetime(2026, 11, 27), None])
def test_wrong_times_are_refused(wrong: object) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        with pytest.raises(InvalidArgument, match="time"):
            await log.at(wrong)  # type: ignore[arg-type]

    with_log(act)


# -- the record ------------------------------------------------------------------------------------------------------


def test_the_record_goes_with_its_log_and_is_not_made_again_by_its_leader() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        writer = await log.lead()
        await writer.append(b"a")
        await asyncio.sleep(3)
        assert await stored_points(world, log)
        await log.delete()
        await asyncio.sleep(30)
        with pytest.raises(LogNotFound):
            await writer._parts.times.save()
        await log.create()
        await asyncio.sleep(30)
        with pytest.raises(LogNotFound):
            await writer._parts.times.save()
        assert await log.at(0) is None
        assert await client._driver.record_names(TIMES) == []
        await writer.abandon()

    with_log(act)


def test_a_store_that_fails_delays_no_append_and_loses_no_point(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        transact = MemoryDriver.transact
        is_down = True

        async def failing(self: MemoryDriver, steps: list[Step]) -> int:
            if is_down and any(isinstance(step, RecordWrite) and step.name.startswith(TIMES) for step in steps):
                raise MetadataError("no answer")
            return await transact(self, steps)

        monkeypatch.setattr(MemoryDriver, "transact", failing)
        async with log.lead() as writer:
            for number in range(30):
                await writer.append(b"%d" % number)
                await asyncio.sleep(1)
            is_down = False
            await asyncio.sleep(15)
            assert len(await stored_points(world, log)) >= 30

    with_log(act)


def test_a_damaged_record_is_reported_to_readers_and_replaced_by_the_leader() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        await client._driver.create_record(TIMES + log.name, b"?")
        with pytest.raises(MetadataCorrupt, match="times of log orders"):
            await log.begun()
        async with log.lead() as writer:
            position = await writer.append(b"a")
            await asyncio.sleep(12)
            assert await log.at(now(world)) == position.next

    with_log(act)
