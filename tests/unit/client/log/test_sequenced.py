"""Numbered entries: each once, across leaders, snapshots and truncations."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.fakes.logs import QUICK, Act, in_log, payloads
from tests.fakes.world import World

from bookies.client.client import Client
from bookies.client.log import Log, LogWriter
from bookies.client.log.base.cursor_store import CURSORS, SEQUENCES
from bookies.client.log.sequenced import SNAPSHOT_ENTRIES, SequencedWriter
from bookies.client.write.manifest import ManifestLoop
from bookies.encoding.envelope import Record, pack_record, parse_record
from bookies.errors import CursorBehind, InvalidArgument, LogError, LogFenced, MetadataError, SequenceGap
from bookies.metadata.embedded import MemoryDriver
from bookies.protocol.log import Position
from bookies.protocol.log.log_model import MIGRATED_FROM
from bookies.protocol.log.sequences import CURSOR, HEADER, WRITER_AGE_MS, WRITERS_MAX, pack_number
from bookies.runtime.ports import Clock


def with_log(act: Act) -> None:
    in_log(act, "envelope", **QUICK)


async def lead(log: Log) -> tuple[LogWriter, SequencedWriter]:
    writer = await log.lead()
    return writer, await log.sequenced(writer)


def records(*values: bytes) -> list[Record]:
    return [Record(value) for value in values]


async def values_of(log: Log) -> list[bytes | None]:
    async with log.open() as reader:
        return [parse_record(entry.payload).value async for entry in reader.read()]


def test_a_repeat_is_answered_with_the_same_positions_by_the_next_leader_too() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        _, numbered = await lead(log)
        appended = await numbered.append("w", 0, records(b"a", b"b"))
        assert (appended.repeated, await numbered.append("w", 0, records(b"a", b"b"))) == (
            0, (*appended[:2], 2),
        )  # fmt: skip
        other = await numbered.append("v", 10, records(b"x"))
        for save in (False, True):
            if save:
                await numbered.save()
                assert (await log.cursors())[CURSOR].position == other.last.next  # type: ignore[union-attr]
            _, numbered = await lead(log)  # takes over
            assert await numbered.append("w", 0, records(b"a", b"b")) == (*appended[:2], 2)
            assert (await numbered.append("v", 10, records(b"x"))).first == other.first
        more = await numbered.append("w", 1, records(b"b", b"c"))
        assert (more.first, more.repeated) == (appended.last, 1)
        with pytest.raises(SequenceGap):
            await numbered.append("w", 4, records(b"e"))
        leader = await log.lead()
        await leader.append_entries([b"no record"])  # another program's mistake is no number
        await lead(log)
        assert await values_of_records(log) == [b"a", b"b", b"x", b"c"]

    with_log(act)


async def values_of_records(log: Log) -> list[bytes | None]:
    async with log.open() as reader:
        payloads = [entry.payload async for entry in reader.read()]
    return [parse_record(payload).value for payload in payloads if payload != b"no record"]


def test_appends_of_many_writers_run_at_once_and_those_of_one_in_order() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        _, numbered = await lead(log)
        results = await asyncio.gather(
            *(
                numbered.append(f"w{name}", number, records(b"%d" % number))
                for number in range(15)
                for name in range(5)
            ),
            *(numbered.append("w0", number, records(b"%d" % number)) for number in range(15)),
        )
        assert [each.repeated for each in results] == [0] * 75 + [1] * 15
        assert [each.first for each in results[75:]] == [each.first for each in results[:75:5]]
        await numbered.save()
        assert (await log.cursors())[CURSOR].position == max(each.last for each in results).next  # type: ignore[union-attr, type-var]
        await lead(log)  # seals, so that everything is readable
        assert sorted(await values_of(log)) == sorted(b"%d" % number for number in range(15) for _ in range(5))

    with_log(act)


def test_after_an_unknown_outcome_nothing_is_appended_until_the_lead_is_taken_again() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        _, numbered = await lead(log)
        await numbered.append("w", 0, records(b"a"))
        _, second = await lead(log)
        with pytest.raises(LogFenced):
            await numbered.append("w", 1, records(b"b"))
        with pytest.raises(LogError, match="nothing was sent"):
            await numbered.append("v", 0, records(b"x"))
        await numbered.save()  # does nothing
        assert (await second.append("w", 1, records(b"b"))).repeated == 0
        task = asyncio.ensure_future(second.append("w", 2, records(b"c")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert second.unknown is not None
        _, third = await lead(log)
        await third.append("w", 2, records(b"c"))
        assert await values_of(log) == [b"a", b"b", b"c"]

    with_log(act)


def test_truncation_keeps_what_the_next_leader_needs() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        leader, numbered = await lead(log)
        appended = await numbered.append("w", 0, records(b"a", b"b"))
        assert appended.last is not None
        await asyncio.sleep(1)  # The idle leader announces that the entries are confirmed.
        with pytest.raises(CursorBehind, match=CURSOR) as refused:
            await log.truncate(appended.last)
        assert "delete" not in str(refused.value)  # Without the cursor the next leader would not recognize repeats.
        assert "log.sequenced" in str(refused.value)
        await leader.truncate(appended.last.next)  # It stores the numbers first.
        leader, numbered = await lead(log)
        assert (await numbered.append("w", 1, records(b"b"))).last == appended.last
        last = (await numbered.append("w", 2, records(b"c"))).last
        assert last is not None
        await leader.abandon()  # without storing them
        leader = await log.lead()
        with pytest.raises(CursorBehind, match=CURSOR):
            await leader.truncate(last.next)
        await leader.truncate(last.next, force=True)
        _, numbered = await lead(log)  # reads from the beginning that is left
        assert (await numbered.append("w", 2, records(b"c"))).repeated == 0  # as documented
        await log.delete()
        await log.create(record_format="envelope")
        _, numbered = await lead(log)
        assert (await numbered.append("w", 2, records(b"c"))).repeated == 0  # another log of that name

    with_log(act)


def test_the_state_is_stored_now_and_then() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        _, numbered = await lead(log)
        before = (await log.cursors())[CURSOR].position
        for first in range(0, SNAPSHOT_ENTRIES, 1000):
            appended = await numbered.append("w", first, records(*[b"x"] * 1000))
        after = (await log.cursors())[CURSOR].position
        assert appended.last is not None
        assert (before.entry_id, after) == (0, appended.last.next)

    with_log(act)


def test_a_leader_stores_the_numbers_when_it_rolls_and_at_its_end() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as leader:
            await leader.append(b"a", producer="w", sequence=0)
            await leader.append(b"without a number")
            await leader.roll()
            begin = Position(leader.ledger_id, 0)
            await asyncio.sleep(1)  # of simulated time: in the background
            assert (await log.cursors())[CURSOR].position == begin
            appending = asyncio.ensure_future(leader.append(b"b", producer="w", sequence=1))
            await asyncio.gather(appending, leader.roll())  # It may be in either ledger.
            await leader.append(b"c", producer="w", sequence=2)
        last = leader.manifest.extents[-1]
        assert last.last is not None
        assert (await log.cursors())[CURSOR].position == Position(last.ledger_id, last.last + 1)
        await log.truncate(Position(last.ledger_id, last.last + 1))
        async with log.lead() as leader:
            for number in range(3):
                await leader.append(b"repeated", producer="w", sequence=number)
            await leader.append(b"d", producer="w", sequence=3)
        assert await values_of(log) == [b"d"]

    with_log(act)


class LaterClock:
    def __init__(self, clock: Clock, ahead_ms: int) -> None:
        self._clock, self._ahead_ms = clock, ahead_ms

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + self._ahead_ms

    def monotonic(self) -> float:
        return self._clock.monotonic()


def test_a_writer_is_as_active_as_its_appends_and_not_as_the_times_of_its_records() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        leader, numbered = await lead(log)
        old = [Record(b"backfilled", timestamp_us=1_600_000_000_000_000)]
        await asyncio.gather(*(numbered.append(f"w{number}", 0, old) for number in range(WRITERS_MAX)))
        await leader.abandon()  # without a snapshot of them
        await (await log.lead()).close()
        _, numbered = await lead(log)
        with pytest.raises(InvalidArgument, match="1,000 writers"):
            await numbered.append("new", 0, old)
        assert (await numbered.append("w0", 0, old)).repeated == 1
        runtime = world.runtime("later")
        runtime = msgspec.structs.replace(runtime, clock=LaterClock(runtime.clock, WRITER_AGE_MS + 60_000))
        driver = MemoryDriver(world.store, runtime)
        await driver.open()
        _, numbered = await lead(Log(client, runtime, driver, "orders", b""))
        assert (await numbered.append("new", 0, old)).repeated == 0
        await driver.close()

    with_log(act)


def test_a_snapshot_that_the_store_refuses_ends_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async def failing(*_: object) -> None:
            raise MetadataError("the store does not answer")

        async with log.lead() as leader:
            await leader.append(b"a", producer="w", sequence=0)
            monkeypatch.setattr(SequencedWriter, "save", failing)
            await leader.roll()
            await leader.append(b"b", producer="w", sequence=1)
        assert await values_of(log) == [b"a", b"b"]

    with_log(act)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_numbers_that_a_compaction_has_removed_are_repeats(is_compacted: bool) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        writer, numbered = await lead(log)
        for number in (5, 6):  # no snapshot has them
            await numbered.append("w", number, [Record(b"%d" % number, b"key")])
        await writer.abandon()
        for _ in range(2):
            await (await log.lead()).close()
        if is_compacted:
            assert (await log.compact()).removed == 1
        _, numbered = await lead(log)
        for number in (5, 6):
            assert (await numbered.append("w", number, records(b"again"))).repeated == 1
        if is_compacted:  # it cannot tell them from those that went
            assert (await numbered.append("w", 4, records(b"x"))).repeated == 1
        else:
            with pytest.raises(InvalidArgument, match="the first number of writer w is 5"):
                await numbered.append("w", 4, records(b"x"))

    in_log(act, "envelope", "key", **QUICK)


def test_a_migrated_log_knows_its_numbers_without_a_snapshot() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as leader:
            for number in range(4):
                await leader.append(b"%d" % number, producer="w", sequence=number)
                await leader.roll()
        records = ManifestLoop(world.runtime("x"), client._driver, log.name)
        await records.refresh()
        await records.update(
            lambda manifest: (
                None
                if MIGRATED_FROM in manifest.extra
                else msgspec.structs.replace(manifest, extra={**manifest.extra, MIGRATED_FROM: "other"})
            )
        )
        for record in (SEQUENCES, CURSORS):  # A migration copies neither.
            _, version = await client._driver.read_record(record + log.name)
            await client._driver.delete_record(record + log.name, version)
        async with log.lead() as leader:
            await leader.append(b"repeated", producer="w", sequence=1)
            at = await leader.append(b"4", producer="w", sequence=4)
            assert (await log.cursors())[CURSOR].position < at
            await leader.truncate(at)
        assert (await log.cursors())[CURSOR].position == at.next
        assert await values_of(log) == [b"4"]

    with_log(act)


def test_two_processes_that_begin_at_once_agree_on_the_first_snapshot() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        other = (await world.client()).log("orders")
        first = await log.lead()
        second = await other.lead()
        one, two = await asyncio.gather(log.sequenced(first), other.sequenced(second))
        with pytest.raises(LogFenced):
            await one.append("w", 0, records(b"a"))
        await two.append("w", 0, records(b"a"))
        _, third = await lead(log)
        assert (await third.append("w", 0, records(b"a"))).repeated == 1
        await two.save()  # of an older leader, which conflicts and is valid

    with_log(act)


def test_what_is_refused() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        raw = client.log("raw")
        await raw.create()
        with pytest.raises(InvalidArgument, match="keeps raw values"):
            await raw.sequenced(await raw.lead())
        _, numbered = await lead(log)
        for writer, first, values in (("a b", 0, [b"x"]), ("w", -1, [b"x"]), ("w", 1 << 63, [b"x"]), ("w", 0, [])):
            with pytest.raises(InvalidArgument):
                await numbered.append(writer, first, records(*values))
        with pytest.raises(InvalidArgument):
            await numbered.append("w", 0, records(b"x" * (6 << 20)))
        await numbered.append("w", 0, records(b"x"))  # nothing was sent before

    with_log(act)


@pytest.mark.parametrize("record_format", ["envelope", "sets"])
def test_numbers_in_entries_that_were_copied_from_another_log_do_not_count(record_format: str) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        other = client.log("other")
        await other.create(record_format=record_format)
        for each, count in ((other, 10), (log, 2)):
            async with each.lead() as leader:
                for number in range(count):
                    await leader.append(b"%d" % number, producer="w", sequence=number)
        copies = await payloads(other)
        async with log.transaction("copier", 1) as txn:
            await txn.append_entries(copies)
        async with log.lead() as leader:
            with pytest.raises(InvalidArgument, match="number 0 of producer w would count in log orders"):
                await leader.append_entries(copies)
            for number in range(1, 4):  # The first one is a repeat.
                await leader.append(b"own", producer="w", sequence=number)
        async with log.open() as reader:
            values = [record.value async for record in reader.read().records()]
        assert values == [b"0", b"1", *(b"%d" % number for number in range(10)), b"own", b"own"]

    in_log(act, record_format, **QUICK)


def test_a_compaction_keeps_a_producer_s_own_last_number_and_not_one_that_was_copied() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        writer, numbered = await lead(log)
        for number in range(2):
            await numbered.append("w", number, [Record(b"own", b"key")])
        await writer.abandon()  # without a snapshot of them
        await (await log.lead()).close()
        async with log.transaction("copier", 1) as txn:
            await txn.append_entries([pack_record(Record(b"copy", b"key", [(HEADER, pack_number("w", 9))]))])
        assert (await log.compact()).removed == 1
        _, numbered = await lead(log)
        assert (await numbered.append("w", 1, [Record(b"own", b"key")])).repeated == 1
        assert (await numbered.append("w", 2, [Record(b"new", b"key")])).repeated == 0

    in_log(act, "envelope", "key", **QUICK)
