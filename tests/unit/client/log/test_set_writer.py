"""Logs of record sets: when a set closes, what waits for it, failures, numbers, cursors inside a set."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from tests.fakes.logs import QUICK, Act, payloads
from tests.fakes.world import World, play

from bookies.client.client import Client
from bookies.client.log import Log
from bookies.client.log.records import open_sets
from bookies.encoding.envelope import Record
from bookies.encoding.record_sets import count_of, pack_set
from bookies.errors import (
    AckQuorumTimeout,
    BookieBusy,
    ConfigError,
    InvalidArgument,
    LedgerClosed,
    LogError,
    LogFenced,
    LogRecordCorrupt,
    NotSupported,
    WrongExpectedLast,
)
from bookies.protocol.log import Position
from bookies.protocol.log.log_model import Address
from bookies.protocol.log.records import LogRecord


def with_log(act: Act, compression: str | None = None, **settings: Any) -> None:
    async def main(world: World) -> None:
        client = await world.client(**QUICK, **settings)
        log = client.log("orders")
        await log.create(record_format="sets", compression=compression)
        await act(world, client, log)

    play(main, 3)


async def records(log: Log, start: Position | Address | None = None) -> list[LogRecord]:
    async with log.open() as reader:
        return [record async for record in reader.read(start).records()]


async def counts(log: Log) -> list[int]:
    return [count_of(entry) for entry in await payloads(log)]


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_records_of_one_moment_share_an_entry_and_those_under_load_the_next(compression: str | None) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead(linger=5.0) as writer:
            first = [writer.append_nowait(b"%d" % at) for at in range(3)]
            assert len(set(map(id, first))) == 1
            await asyncio.sleep(0)
            second = [
                writer.append_nowait(b"3", key=b"k", headers={"h": b"1"}, timestamp=1.5),
                writer.append_nowait(Record(None, b"gone", timestamp_us=7)),
                writer.append_nowait(bytearray(b"5")),
            ]
            assert not second[0].done()
            positions = [await append for append in (*first, *second)]
            assert second[0].done()
            last = await writer.append(b"alone", timeout=60)
        assert positions == [positions[0]] * 3 + [positions[0].next] * 3
        assert last == positions[0].next.next
        assert await counts(log) == [3, 3, 1]
        found = await records(log)
        assert [record.value for record in found] == [b"0", b"1", b"2", b"3", None, b"5", b"alone"]
        assert [record.slot for record in found] == [0, 1, 2, 0, 1, 2, 0]
        assert (found[3].key, found[3].headers, found[3].timestamp_us) == (b"k", [("h", b"1")], 1_500_000)
        assert (found[4].key, found[4].timestamp_us) == (b"gone", 7)
        assert await records(log, found[4].address) == found[4:]
        assert await records(log, found[2].address.next) == found[3:]
        async with log.open() as reader:
            sets = [(position, list(each.values())) async for position, each in reader.read().sets()]
        assert sets[1] == (positions[3], [b"3", None, b"5"])

    with_log(act, compression)


def test_a_set_closes_with_its_size_or_after_the_linger() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        loop = asyncio.get_running_loop()
        async with log.lead(linger=0.0005) as writer:
            began = loop.time()
            writer.append_nowait(b"first")
            await asyncio.sleep(0)
            large = [writer.append_nowait(bytes(20_000)) for _ in range(7)]
            assert len(set(map(id, large))) == 3
            await large[-1]
            await writer.flush()
            assert loop.time() - began < 1
        assert await counts(log) == [1, 3, 3, 1]

    with_log(act)


def test_others_follow_the_open_set() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            writer.append_nowait(b"a")
            with pytest.raises(WrongExpectedLast):
                await writer.append(b"never", expected_last=Position(-1, -1))
            last = await writer.append(b"b")
            writer.append_nowait(b"c")
            await writer.append_many([b"d", Record(b"e", b"k")])
            writer.append_nowait(b"f")
            await writer.append_entries([pack_set((8, 1, 0, b"\0\0\0\1g"), 0)])
            end = await writer.append(b"h", expected_last=Position(last.ledger_id, last.entry_id + 4))
            with pytest.raises(InvalidArgument, match="give expected_last, or producer"):
                await writer.append(b"h", expected_last=end, producer="p", sequence=1)
        assert [record.value for record in await records(log)] == [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"]

    with_log(act)


def test_a_cancelled_wait_leaves_the_other_records_of_the_set_alone() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            one, two = (asyncio.ensure_future(writer.append(value)) for value in (b"a", b"b"))
            await asyncio.sleep(0)
            one.cancel()
            assert (await two).entry_id == 0
            with pytest.raises(asyncio.CancelledError):
                await one
            with pytest.raises(AckQuorumTimeout):
                await writer.append(b"c", timeout=0)
        assert [record.value for record in await records(log)] == [b"a", b"b", b"c"]

    with_log(act)


def test_sets_continue_in_another_ledger_after_a_failure() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead(roll_size=100) as writer:
            for at in range(30):
                writer.append_nowait(b"%d" % at)
                if at % 3 == 0:
                    await asyncio.sleep(0.001)
                if at == 15:
                    await world.take_down(next(iter(world.bookies)))
            await writer.flush()
        assert [record.value for record in await records(log)] == [b"%d" % at for at in range(30)]

    async def main(world: World) -> None:
        client = await world.client(**QUICK)
        log = client.log("orders")
        await log.create(record_format="sets")
        await act(world, client, log)

    play(main, 4)


def test_the_memory_of_sets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_sets, "IN_FLIGHT_MAX", 100_000)

    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            first = [writer.append_nowait(bytes(60_000)) for _ in range(2)]
            with pytest.raises(BookieBusy, match="await wait_writable"):
                writer.append_nowait(bytes(60_000))
            one = asyncio.ensure_future(writer.append(b"waits"))
            await writer.wait_writable(timeout=60)
            writer.append_nowait(b"again")
            await asyncio.gather(one, *first)
        values = [record.value for record in await records(log)]
        assert sorted(map(len, values)) == [5, 5, 60_000, 60_000]  # type: ignore[arg-type]

    with_log(act)


def test_errors_reach_those_who_wait() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        writer = await log.lead()
        with pytest.raises(InvalidArgument, match=f"log {log.name}: an entry of 6,291,484 bytes exceeds the limit"):
            await writer.append(bytes(6 << 20))
        await writer.flush()  # `append` has raised it already.
        writer.append_nowait(bytes(6 << 20))
        with pytest.raises(InvalidArgument):
            await writer.flush()
        await writer.flush()
        async with log.lead():
            lost = writer.append_nowait(b"lost")
            with pytest.raises(LogFenced):
                await lost
        with pytest.raises(LogFenced):
            writer.append_nowait(b"too late")
        with pytest.raises(LogFenced):
            await writer.close()
        other = await log.lead()
        sent = other.append_nowait(b"sent")
        await asyncio.sleep(0)
        kept = other.append_nowait(b"kept")
        await other.abandon()
        with pytest.raises(LogError, match="may or may not be in the log"):
            await sent
        with pytest.raises(LedgerClosed, match="the records were not sent"):
            await kept

    with_log(act)


def test_a_set_that_cannot_be_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its appends end, and the writer goes on."""

    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            with monkeypatch.context() as patch:
                patch.setattr(open_sets, "pack_set", unable)
                with pytest.raises(LogError, match="a record set could not be packed: MemoryError"):
                    await writer.append(b"a")
                with pytest.raises(LogError):
                    await writer.flush()
            await writer.append(b"b")
        assert [record.value for record in await records(log)] == [b"b"]

    def unable(columns: object, codec: int) -> bytes:
        raise MemoryError

    with_log(act)


def test_other_formats_have_no_sets() -> None:
    async def main(world: World) -> None:
        client = await world.client(**QUICK)
        log = client.log("raw")
        with pytest.raises(InvalidArgument, match='needs record_format="sets"'):
            await log.create(compression="zstd")
        await log.create()
        async with log.lead() as writer:
            with pytest.raises(NotSupported, match="create a log with record_format"):
                writer.append_nowait(b"a")
            await writer.wait_writable()
            await writer.flush()
        async with log.open() as reader:
            with pytest.raises(NotSupported, match=r"read it with records\(\)"):
                reader.read().sets()

    play(main, 3)


def test_numbered_records_are_stored_once() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        values = [b"%d" % at for at in range(1_000, 3_000)]
        async with log.lead() as writer:
            first = await writer.append_many(values, producer="p", sequence=0)
            assert await writer.append(values[-1], producer="p", sequence=1_999) == first
        async with log.lead() as writer:
            again = await log.sequenced(writer)
            appended = await again.append("p", 1_990, [Record(value) for value in (*values[1_990:], b"next")])
            assert (appended.first, appended.repeated) == (first, 10)
            await again.save()
        async with log.lead() as writer:
            assert (await (await log.sequenced(writer)).append("p", 2_000, [Record(b"next")])).repeated == 1
        found = await records(log)
        assert [record.value for record in found] == [*values, b"next"]
        assert found[0].headers == [("bk-sequence", b"p:0")]
        assert sum(await counts(log)) == 2_001
        assert len(await counts(log)) < 5

    with_log(act, "lz4")


def test_transactions_have_sets() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.transaction("loader", 1) as txn:
            await txn.append_many([b"a", Record(b"b", b"k")])
            await txn.append(b"c", timestamp=2.0)
        assert [(record.value, record.slot) for record in await records(log)] == [(b"a", 0), (b"b", 1), (b"c", 0)]

    with_log(act)


def test_consumers_commit_inside_a_set() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            await writer.append_many([b"a", b"b", b"c"])
            hurt = pack_set((8 + 4, 1, 0, b"\0\0\0\1\0\0\0\1xy"), 0)
            bad = await writer.append_entries([hurt])
            end = await writer.append_many([b"d"])

        async def consume(count: int) -> list[bytes | None]:
            async with log.consumer("billing") as rows:
                steps = rows.records()
                return [(await anext(steps)).value for _ in range(count)]

        assert await consume(2) == [b"a", b"b"]
        cursor = (await log.cursors())["billing"]
        assert (cursor.position.next, cursor.slot, str(cursor.address)) == (bad, 2, f"{cursor.position}:2")
        assert await consume(1) == [b"c"]
        assert (await log.cursors())["billing"].address == Address(*bad)
        async with log.consumer("billing") as rows:
            steps = rows.records()
            with pytest.raises(LogRecordCorrupt, match="has no record at"):
                await anext(steps)
            assert (await anext(steps)).value == b"d"
            assert (await rows.lag()).rows == 1
        assert (await log.cursors())["billing"].position == end.next
        await log.move_cursor("billing", bad)
        assert (await log.cursors())["billing"].slot == 0

    with_log(act)


def test_entries_after_records_do_not_move_the_cursor_back() -> None:
    """Records of the set were handled: what is committed says so while the set is handled again, as an entry."""

    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            first = await writer.append_many([b"a", b"b", b"c"])
            second = await writer.append_many([b"d"])
        async with log.consumer("billing") as rows:
            assert [(await anext(rows.records())).value for _ in range(2)] == [b"a", b"b"]
        async with log.consumer("billing") as rows:
            assert (await anext(rows)).position == first
            await asyncio.sleep(3)
            assert (await log.cursors())["billing"].address == Address(*first, 2)
            assert (await anext(rows)).position == second
            await asyncio.sleep(3)
            assert (await log.cursors())["billing"].address == Address(*second)

    with_log(act)


def test_the_records_of_a_consumer_go_on_after_a_loop_that_stopped() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            end = await writer.append_many([b"%d" % number for number in range(4)])
        seen = []
        async with log.consumer("billing") as rows:
            for _ in range(2):
                async for record in rows.records():
                    seen.append(record.slot)
                    if record.slot % 2:
                        break
            assert (await rows.lag()).rows == 1
        assert seen == [0, 1, 2, 3]
        assert (await log.cursors())["billing"].address == Address(*end.next)

    with_log(act)


def test_a_consumer_commits_behind_a_damaged_set() -> None:
    """The commit passes the whole set, whatever number of records it claims."""

    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            bad = await writer.append_entries([pack_set((8 + 2, 9, 0, b"\xff" * 36), 0)])
            end = await writer.append_many([b"a"])
        async with log.consumer("billing") as rows:
            with pytest.raises(LogRecordCorrupt, match="damaged"):
                await anext(rows.records())
        assert (await log.cursors())["billing"].address == Address(*bad.next) == Address(*end)

    with_log(act)


def test_outcomes_are_told_before_the_flush_returns() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        told: list[Position] = []
        async with log.lead(linger=5.0) as writer:
            for number in range(3):
                append = writer.append_nowait(b"%d" % number)
                append.add_done_callback(lambda done: told.append(done.result()))
                await writer.flush()
                assert told == [Position(writer.ledger_id, at) for at in range(number + 1)]

    with_log(act)


def test_a_process_without_the_library_stops_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            await writer.append(b"before")
            with monkeypatch.context() as patch:
                patch.setitem(sys.modules, "zstandard", None)
                for wait in (True, False):
                    with pytest.raises(ConfigError, match="pip install"):
                        await log.lead(wait=wait)
            await writer.append(b"after")
            assert await log.leader() is None
        assert [record.value for record in await records(log)] == [b"before", b"after"]

    with_log(act, "zstd")
