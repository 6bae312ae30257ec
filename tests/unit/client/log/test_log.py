"""Logs: lead, append, roll, read, follow, truncate, delete; what is refused, and what is said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace
from tests.fakes.world import World, play

from bookies.client.client import Client
from bookies.client.log import Log, LogWriter
from bookies.config import ClientConfig
from bookies.errors import (
    AckQuorumTimeout,
    BookieUnreachable,
    BookKeeperError,
    InvalidArgument,
    LedgerClosed,
    LedgerNotFound,
    LogExists,
    LogFenced,
    LogNotFound,
    LogTruncated,
    MetadataError,
    NotEnoughBookies,
    RecordNotFound,
    SchemaIncompatible,
    Unauthorized,
)
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.interface.driver import RECORD_SIZE_MAX, LedgerLock, Versioned
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.log import Position
from bookies.protocol.log.log_model import pack_manifest
from bookies.protocol.payloads.schemas import LogSchemas

Act = Callable[[World, Client, Log], Awaitable[None]]
QUICK = {"add_timeout_ms": 300, "read_timeout_ms": 300, "connect_timeout_ms": 1_000}


def with_log(act: Act, *, bookies: int = 3, **settings: object) -> None:
    async def main(world: World) -> None:
        client = await world.client(**(QUICK | settings))
        log = client.log("orders")
        await log.create()
        await act(world, client, log)

    play(main, bookies)


async def payloads(log: Log, start: Position | None = None) -> list[bytes]:
    async with log.open() as reader:
        return [entry.payload async for entry in reader.read(start)]


class Tail:
    """What a tail gets, in the background."""

    def __init__(self, log: Log, start: Position | None = None) -> None:
        self.seen: list[bytes] = []
        self._log = log
        self._start = start
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async with self._log.open() as reader:
            async for entry in reader.tail(self._start):
                self.seen.append(entry.payload)
                self._news.set()

    async def wait_for(self, *wanted: bytes) -> None:
        async with asyncio.timeout(60):
            while self.seen != list(wanted):
                self._news.clear()
                await self._news.wait()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


# -- a log -----------------------------------------------------------------------------------------------------------


def test_names_creation_and_deletion() -> None:
    async def act(world: World) -> None:
        store = await world.client()
        assert await store.logs() == []
        log = store.log("orders")
        assert repr(log) == "<Log orders>"
        for operation in (log.manifest(), payloads(log), log.lead().begin(), log.truncate(Position(0, 0))):
            with pytest.raises(LogNotFound, match="there is no log orders"):
                await operation
        await log.delete()  # of nothing
        await log.create(ensemble=2, digest="hmac")
        with pytest.raises(LogExists, match="log orders already exists"):
            await log.create()
        await log.create(exist_ok=True)
        manifest = await log.manifest()
        assert (manifest.ensemble, manifest.write_quorum, manifest.ack_quorum) == (2, 2, 2)
        await store.log("web").create()
        assert await store.logs() == ["orders", "web"]
        assert await store.logs("w") == ["web"]
        async with log.lead() as writer:
            await writer.append(b"x")
        assert (await store.metadata(writer.ledger_id)).custom_metadata == {"log": b"orders", "log.epoch": b"1"}
        await log.delete()
        assert await store.logs() == ["web"]
        assert [each async for each in store.ledgers()] == []
        with pytest.raises(InvalidArgument, match="no name of a log"):
            store.log("no/slash")
        with pytest.raises(InvalidArgument, match="password must be bytes"):
            store.log("x", password="text")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="ack_quorum"):
            await log.create(write_quorum=2, ack_quorum=3)
        for wrong in ({"roll_size": 0}, {"roll_size": "1"}, {"roll_age": 0}, {"roll_age": "1"}, {"roll_age": True}):
            with pytest.raises(
                InvalidArgument, match=r"must be (1 or more|a whole number|a number of seconds above 0)"
            ):
                log.lead(**wrong)  # type: ignore[arg-type]

    play(act)


def test_a_creation_whose_reply_was_lost_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    original, lost = MemoryDriver.create_record, []

    async def create_record(self: MemoryDriver, name: str, data: bytes) -> int:
        version = await original(self, name, data)
        lost.append(version)
        raise MetadataError("the reply is lost")

    monkeypatch.setattr(MemoryDriver, "create_record", create_record)

    async def act(world: World) -> None:
        await (await world.client()).log("orders").create()
        assert len(lost) == 1

    play(act)


def test_leading_appending_reading() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        assert await payloads(log) == []
        async with log.lead() as writer:
            assert (writer.name, writer.epoch, writer.ledger_id) == ("orders", 1, 0)
            assert await writer.append(b"a") == Position(0, 0)
            assert await writer.append_many([b"b", bytearray(b"c")]) == Position(0, 2)
            assert await writer.append(b"d", timeout=5) == Position(0, 3)
            assert await writer.append_many([b"e"], timeout=5) == Position(0, 4)
            assert repr(writer).startswith("<LogWriter orders open epoch=1 <Ledger 0 open E3/Qw3/Qa2 last_add")
            for nothing in (writer.append_many([]), writer.append(bytes(6 << 20))):
                with pytest.raises(InvalidArgument):
                    await nothing
            await writer.roll()
            assert await writer.append(b"f") == Position(1, 0)
        assert repr(writer).startswith("<LogWriter orders ended(LedgerClosed) epoch=1")
        with pytest.raises(LedgerClosed, match="nothing was sent: the writer was closed"):
            await writer.append(b"late")
        with pytest.raises(LedgerClosed):
            await writer.roll()
        await writer.close()
        manifest = await log.manifest()
        assert [(each.ledger_id, each.first, each.last, each.bytes) for each in manifest.extents] == [
            (0, 0, 4, 5),
            (1, 0, 0, 1),
        ]
        assert await payloads(log) == [b"a", b"b", b"c", b"d", b"e", b"f"]
        async with log.open() as reader:
            entries = [entry async for entry in reader.read(Position(0, 4))]
            assert [entry.position for entry in entries] == [Position(0, 4), Position(1, 0)]
            assert repr(reader) == "<LogReader orders open ledgers=[0, 1]>"
        assert await payloads(log, Position(0, 4).next) == [b"f"]
        assert await payloads(log, Position(1, 1)) == []

    with_log(act)


def test_the_next_leader_stops_the_one_before() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        one = await log.lead()
        await one.append(b"a")
        other = (await world.client(**QUICK)).log("orders")
        async with other.lead() as two:
            assert two.epoch == 2
            with pytest.raises(LogFenced, match="taking log orders over: the entry may or may not be in the log"):
                await one.append(b"late")
            with pytest.raises(LogFenced, match="nothing was sent"):
                await one.append(b"later")
            with pytest.raises(LogFenced):
                await one.roll()
            await two.append(b"b")
        await one.close()
        assert await payloads(log) == [b"a", b"b"]

    with_log(act)


def test_a_leader_that_wrote_nothing_finds_out_when_it_rolls_or_closes() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        one, two = await log.lead(), await log.lead()
        with pytest.raises(LogFenced, match="took the log over: its epoch is 2, this leader's was 1"):
            await one.roll()
        await one.abandon()
        three = await log.lead()
        await two.close()  # There was nothing to lose.
        await three.close()

    with_log(act)


def test_an_election_may_end_the_attempt() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        with pytest.raises(LogFenced, match="was chosen"):
            await log.lead(is_candidate=lambda: False)
        async with log.lead(is_candidate=lambda: True, timeout=10):
            pass

    with_log(act)


def test_leaving_by_an_exception_does_not_end_the_ledger() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        async def fail() -> None:
            async with log.lead() as writer:
                await writer.append(b"a")
                raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            await fail()
        assert not await store.is_sealed(0)
        async with log.lead():
            assert await payloads(log) == [b"a"]

    with_log(act)


def test_passwords() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        secret = store.log("orders", password=b"s3cret")
        async with secret.lead() as writer:
            await writer.append(b"a")
        assert await payloads(secret) == [b"a"]
        with pytest.raises(Unauthorized):
            await payloads(log)
        with pytest.raises(Unauthorized, match="log orders: wrong password"):  # although no ledger is open
            await log.lead()
        async with secret.lead() as writer:
            await writer.append(b"b")
        assert await payloads(secret) == [b"a", b"b"]

    with_log(act)


# -- rolling ---------------------------------------------------------------------------------------------------------


def test_schemas_are_kept_while_others_change_the_log() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        def accepting(known: LogSchemas) -> None:
            pass

        def check(known: LogSchemas) -> None:
            if len(known.versions) > 2:
                raise SchemaIncompatible("too many")

        assert await log.schemas() == LogSchemas()
        assert (await log.add_schema("json", "a INT", accepting)).id == 1
        others = [await world.client() for _ in range(2)]
        added = await asyncio.gather(
            *(
                one.log("orders").add_schema("json", f"{name} INT", check)
                for one, name in zip(others, "bc", strict=True)
            )
        )
        async with log.lead() as writer:
            await writer.append(b"x")
            await writer.roll()
        kept = await log.schemas()
        assert {(one.id, one.text) for one in kept.versions[1:]} == {(one.id, one.text) for one in added}
        assert [one.id for one in kept.versions] == [1, 2, 3]
        with pytest.raises(SchemaIncompatible):
            await log.add_schema("json", "d INT", check)
        assert (await log.add_schema("json", "a INT", check, compatibility="full")).id == 1
        assert (await log.schemas()).compatibility == "full"
        with pytest.raises(LogNotFound):
            await client.log("nothing").add_schema("json", "a INT", check)

    with_log(act)


async def ledger_count(log: Log) -> int:
    return len((await log.manifest()).extents)


def test_ledgers_are_rolled_by_size_and_by_age() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead(roll_size=10, roll_age=60.0) as writer:
            await writer.append(b"x" * 9)
            await asyncio.sleep(1)
            assert await ledger_count(log) == 1
            await writer.append(b"x")
            await asyncio.sleep(1)
            assert await ledger_count(log) == 2
            await asyncio.sleep(200)  # An empty ledger is as good as a new one.
            assert await ledger_count(log) == 2
            await writer.append(b"x")
            await asyncio.sleep(61)
            assert await ledger_count(log) == 3
        assert len(await payloads(log)) == 3

    with_log(act)


def test_appends_keep_their_order_while_the_ledger_is_rolled() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead(roll_size=40) as writer:
            wanted = [b"%d" % number for number in range(200)]
            tasks = []
            for number, payload in enumerate(wanted):
                tasks.append(asyncio.create_task(writer.append(payload)))
                if number % 7 == 0:
                    await asyncio.sleep(0.0005)
            positions = await asyncio.gather(*tasks)
        assert await payloads(log) == wanted
        async with log.open() as reader:
            assert [entry.position async for entry in reader.read()] == positions
            assert len(reader.manifest.extents) > 3

    with_log(act)


def test_a_roll_that_cannot_begin_leaves_everything_as_it_was() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead(roll_size=1) as writer:
            await writer.append(b"")
            for driver, name in zip(world._drivers, ("b1", "b2"), strict=False):
                await driver.unregister(BookieId(name))
            await asyncio.sleep(0.5)
            await writer.append(b"a")
            with pytest.raises(NotEnoughBookies):
                await writer.roll()
            await asyncio.sleep(5)
            await writer.append(b"b")
            assert writer.ledger_id == 0
        assert await payloads(log) == [b"", b"a", b"b"]

    with_log(act)


def test_a_roll_whose_swap_is_unknown_goes_on_with_the_same_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write, lost = MemoryDriver.read_record, MemoryDriver.write_record, []

    async def write_record(self: MemoryDriver, name: str, data: bytes, expected_version: int) -> int:
        version = await write(self, name, data, expected_version)
        if lost:
            raise MetadataError("the reply is lost")
        return version

    async def read_record(self: MemoryDriver, name: str) -> tuple[bytes, int]:
        if lost:
            raise MetadataError("the reply is lost")
        return await read(self, name)

    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead() as writer:
            await writer.append(b"a")
            monkeypatch.setattr(MemoryDriver, "write_record", write_record)
            monkeypatch.setattr(MemoryDriver, "read_record", read_record)
            lost.append(True)
            with pytest.raises(MetadataError, match="lost"):
                await writer.roll()
            lost.clear()
            await writer.append(b"b")
            assert writer.ledger_id == 0
            await writer.roll()
            assert await writer.append(b"c") == Position(1, 0)
        assert (await log.manifest()).ledger_ids == [0, 1]
        assert await payloads(log) == [b"a", b"b", b"c"]

    with_log(act)


# -- failures --------------------------------------------------------------------------------------------------------


def test_a_leader_goes_on_after_its_ledger_failed() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead() as writer:
            await writer.append(b"a")
            for name in ("b1", "b2"):
                await world.take_down(BookieId(name))
            tasks = [asyncio.create_task(writer.append(b"%d" % number)) for number in range(20)]
            tasks.append(asyncio.create_task(writer.append_many([b"x", b"y"])))
            await asyncio.sleep(2)
            for name in ("b1", "b2"):
                await world.listen(BookieId(name))
            positions = await asyncio.gather(*tasks)
            assert writer.epoch > 1
            await writer.append(b"z")
        assert await payloads(log) == [b"a", *(b"%d" % number for number in range(20)), b"x", b"y", b"z"]
        async with log.open() as reader:
            found = {entry.payload: entry.position async for entry in reader.read()}
        assert [found[b"%d" % number] for number in range(20)] == positions[:20]
        assert found[b"y"] == positions[20]

    with_log(act)


def test_a_leader_gives_up_when_nothing_helps_for_too_long() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead() as writer:
            await writer.append(b"a")
            for name in ("b1", "b2"):
                await world.take_down(BookieId(name))
            with pytest.raises(Exception, match="the entry may or may not be in the log") as caught:
                await writer.append(b"b")
            assert getattr(caught.value, "retriable", False)
            with pytest.raises(type(caught.value), match="nothing was sent"):
                await writer.append(b"c")

    with_log(act)


def test_a_large_batch_that_fails_half_way_is_unknown_and_said_so() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead() as writer:
            await writer.append(b"a")
            for name in ("b1", "b2"):
                await world.take_down(BookieId(name))
            large = asyncio.create_task(writer.append_many([bytes(100_000)] * 20))
            await asyncio.sleep(2)
            for name in ("b1", "b2"):
                await world.listen(BookieId(name))
            with pytest.raises(Exception, match="of the batch nothing, or some at its front, is in log orders"):
                await large
            await writer.append(b"z")
        assert [len(each) for each in await payloads(log)][-1] == 1

    with_log(act, memory_limit=1 << 20)


def test_time_outs_say_what_they_do_not_know() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead() as writer:
            for name in ("b1", "b2"):
                await world.take_down(BookieId(name))
            for operation in (writer.append(b"a", timeout=0.1), writer.append_many([b"b", b"c"], timeout=0.1)):
                with pytest.raises(AckQuorumTimeout, match="it may or may not be in log orders"):
                    await operation
            for name in ("b1", "b2"):
                await world.listen(BookieId(name))
            await writer.append(b"d")

    with_log(act)


def test_letting_go_makes_what_is_pending_unknown() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        writer = await log.lead()
        for name in ("b1", "b2"):
            await world.take_down(BookieId(name))
        pending = [asyncio.create_task(writer.append(b"a")) for _ in range(3)]
        await asyncio.sleep(0.01)
        await writer.abandon()
        for task in pending:
            with pytest.raises(LedgerClosed, match="may or may not be in the log"):
                await task

    with_log(act)


# -- following -------------------------------------------------------------------------------------------------------


def test_a_tail_follows_from_ledger_to_ledger_and_from_leader_to_leader() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        early = Tail((await world.client()).log("orders"))
        await asyncio.sleep(1)
        async with log.lead() as writer:
            await writer.append(b"a")
            await early.wait_for(b"a")
            await asyncio.sleep(1)  # Every bookie is told.
            late = Tail((await world.client()).log("orders"))
            again = Tail((await world.client()).log("orders"), Position(0, 0))
            await asyncio.sleep(1)
            await writer.append(b"b")
            await writer.roll()
            await writer.append(b"c")
            await early.wait_for(b"a", b"b", b"c")
        after_the_end = Tail((await world.client()).log("orders"))
        await asyncio.sleep(1)
        async with log.lead(), log.lead() as writer:  # the first one writes nothing
            await writer.append(b"d")
            await early.wait_for(b"a", b"b", b"c", b"d")
            await again.wait_for(b"a", b"b", b"c", b"d")
            await late.wait_for(b"b", b"c", b"d")
            await after_the_end.wait_for(b"d")
        for tail in (early, late, again, after_the_end):
            await tail.stop()

    with_log(act)


def test_a_tail_waits_for_the_bookies_of_closed_ledgers_too() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead() as writer:
            await writer.append(b"a")
            await writer.roll()
            await writer.append(b"b")
        for name in world.bookies:
            await world.take_down(name)
        with pytest.raises(BookieUnreachable):
            await payloads(log)
        tail = Tail((await world.client(**QUICK)).log("orders"), Position(0, 0))
        await asyncio.sleep(5)
        for name in world.bookies:
            await world.listen(name)
        await tail.wait_for(b"a", b"b")
        await tail.stop()
        for name in world.bookies:
            await world.take_down(name)
        tail = Tail((await world.client(**QUICK)).log("orders"), Position(0, 0))
        with pytest.raises(BookieUnreachable):  # but not for ever
            await asyncio.wait_for(tail.task, 120)

    with_log(act)


def test_closing_a_reader_ends_its_tails() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        reader = await log.open()
        tails = [asyncio.create_task(anext(reader.tail()))]  # waits for a first ledger
        await asyncio.sleep(0.1)
        async with log.lead() as writer:
            await writer.append(b"a")
            assert (await tails[0]).payload == b"a"
            tails = [asyncio.create_task(anext(reader.tail()))]  # waits for an entry
            await asyncio.sleep(0.1)
            await reader.close()
        for tail in tails:
            with pytest.raises(LedgerClosed):
                await tail
        with pytest.raises(LedgerClosed, match="the reader of log orders is closed"):
            await anext(reader.read())
        with pytest.raises(TimeoutError):
            await anext((await log.open()).tail(timeout=0.5))

    with_log(act)


class HeldSeals(MemoryDriver):
    """A store that closes no ledger before `sealing` is set."""

    def __init__(self, world: World, sealing: asyncio.Event) -> None:
        super().__init__(world.store, world.runtime("held"))
        self._sealing = sealing

    async def write_ledger(
        self, metadata: LedgerMetadata, expected_version: int, lock: LedgerLock | None = None
    ) -> Versioned:
        if metadata.is_closed:
            await self._sealing.wait()
        return await super().write_ledger(metadata, expected_version, lock)


def test_readers_stop_before_a_ledger_that_is_not_closed() -> None:
    """A roll lists the next ledger first; what is in it comes behind all of the one before."""

    async def act(world: World, store: Client, log: Log) -> None:
        sealing = asyncio.Event()
        held = await Client(world.runtime("leader"), HeldSeals(world, sealing), ClientConfig()).open_session()
        writer = await held.log("orders").lead()
        await writer.append(b"a")
        await writer.append(b"a2")
        await asyncio.sleep(1)  # The idle writer announces that it is confirmed.
        rolling = asyncio.create_task(writer.roll())
        await asyncio.sleep(1)
        assert await ledger_count(log) == 2
        blocked = asyncio.create_task(writer.append(b"b"))
        await asyncio.sleep(0.1)
        assert not blocked.done()
        assert await payloads(log) == [b"a", b"a2"]
        sealing.set()
        await rolling
        assert await blocked == Position(1, 0)
        await writer.close()
        await held.close()
        assert await payloads(log) == [b"a", b"a2", b"b"]

    with_log(act)


# -- truncating ------------------------------------------------------------------------------------------------------


async def five_ledgers(writer: LogWriter) -> list[Position]:
    positions = []
    for number in range(5):
        positions.append(await writer.append_many([b"%da" % number, b"%db" % number]))
        if number < 4:
            await writer.roll()
    return positions


def test_truncating() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead() as writer:
            positions = await five_ledgers(writer)
            slow = await log.open()
            entries = slow.read()
            assert (await anext(entries)).payload == b"0a"
            assert (await anext(entries)).payload == b"0b"
            await writer.truncate(positions[2])
            assert [each.ledger_id async for each in store.ledgers()] == [2, 3, 4]
            assert (await payloads(log))[:2] == [b"2b", b"3a"]
            with pytest.raises(LogTruncated, match=r"log orders begins at 2:1: what was to be read next is before it"):
                await anext(entries)
            for position in (positions[0], Position(2, 0)):
                with pytest.raises(LogTruncated, match="begins at 2:1"):
                    await payloads(log, position)
            with pytest.raises(LogTruncated, match="truncated already, or of another log"):
                await writer.truncate(positions[0])
            with pytest.raises(InvalidArgument, match="4:3 is after 4:1"):
                await writer.truncate(Position(4, 3))
            await writer.truncate(positions[4].next)
            assert await payloads(log) == []
            assert (await log.manifest()).ledger_ids == [3, 4]
            await writer.append(b"new")
        await log.truncate(Position(*positions[4]))
        assert await payloads(log) == [b"new"]

    with_log(act)


def test_anybody_may_truncate_while_somebody_leads() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead() as writer:
            positions = await five_ledgers(writer)
            other = (await world.client()).log("orders")
            with pytest.raises(InvalidArgument, match="4:1 is after 4:-1, the last entry known"):
                await other.truncate(positions[4])
            await writer.append(b"4c")
            await other.truncate(positions[3])
            await other.truncate(Position(4, 1), timeout=10)
            await writer.roll()  # The list is another one than the leader knows, and still its own.
            await writer.append(b"new")
        assert await payloads(log) == [b"4b", b"4c", b"new"]

    with_log(act, explicit_lac_interval_ms=0)


def test_a_tail_that_is_overtaken_by_a_truncation_says_so() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead() as writer:
            positions = await five_ledgers(writer)
            async with log.open() as reader:
                tail = reader.tail(Position(0, 0))
                assert (await anext(tail)).payload == b"0a"
                assert (await anext(tail)).payload == b"0b"
                await writer.truncate(positions[3])
                with pytest.raises(LogTruncated, match="begins at 3:1"):
                    await anext(tail)

    with_log(act)


def test_a_gap_inside_the_next_ledger_is_a_gap() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead() as writer:
            await writer.append_many([b"a", b"b"])
            await writer.roll()
            last = await writer.append_many([b"c", b"d"])
            async with log.open() as reader:
                entries = reader.read()
                assert [(await anext(entries)).payload for _ in range(2)] == [b"a", b"b"]
                await writer.truncate(last)
                with pytest.raises(LogTruncated, match="begins at 1:1"):
                    await anext(entries)

    with_log(act)


def test_a_listed_ledger_that_is_gone_is_lost_not_truncated() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead() as writer:
            await five_ledgers(writer)
        await store.delete(1)
        with pytest.raises(LedgerNotFound):
            await payloads(log)
        with pytest.raises(LedgerNotFound):
            await payloads(log, Position(1, 0))

    with_log(act)


def test_what_a_truncation_left_is_swept_up_by_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async def delete(self: Client, ledger_id: int, *, timeout: float | None = None) -> None:
        raise MetadataError("not now")

    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead() as writer:
            positions = await five_ledgers(writer)
            with monkeypatch.context() as patch:
                patch.setattr(Client, "delete", delete)
                with pytest.raises(MetadataError, match="not now"):
                    await writer.truncate(positions[2])
                assert (await log.manifest()).deleting == (0, 1)
        async with log.lead():
            await asyncio.sleep(1)
            assert (await log.manifest()).deleting == ()
            assert [each.ledger_id async for each in store.ledgers()] == [2, 3, 4, 5]

    with_log(act)


# -- deleting --------------------------------------------------------------------------------------------------------


def test_deleting_a_log_stops_its_leader() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        writer = await log.lead()
        await writer.append(b"a")
        reader = await log.open()
        other = (await world.client()).log("orders")
        await other.delete()
        with pytest.raises(LogFenced):
            await writer.append(b"b")
        await writer.close()
        with pytest.raises(LogNotFound):
            await anext(reader.read())
        await log.create()
        with pytest.raises(LogNotFound, match="there is another one of that name"):
            await anext(reader.read())
        assert await payloads(log) == []

    with_log(act)


def test_a_deletion_that_stopped_half_way_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    async def delete(self: Client, ledger_id: int, *, timeout: float | None = None) -> None:
        raise MetadataError("not now")

    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead() as writer:
            await five_ledgers(writer)
        with monkeypatch.context() as patch:
            patch.setattr(Client, "delete", delete)
            with pytest.raises(MetadataError, match="not now"):
                await log.delete()
        for operation in (payloads(log), log.lead().begin(), log.manifest()):
            with pytest.raises(LogNotFound, match="is being deleted"):
                await operation
        with pytest.raises(LogExists):
            await log.create()
        await log.delete()
        assert [each async for each in store.ledgers()] == []
        with pytest.raises(RecordNotFound):
            await store._driver.read_record("logs/orders")

    with_log(act)


def test_a_deletion_that_could_not_stop_the_leader_does_so_when_it_is_repeated() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        writer = await log.lead()
        await writer.append(b"a")
        other = (await world.client(**QUICK)).log("orders")
        for name in ("b1", "b2"):
            await world.take_down(BookieId(name))
        with pytest.raises(BookKeeperError):
            await other.delete()
        for name in ("b1", "b2"):
            await world.listen(BookieId(name))
        await other.delete()
        with pytest.raises((LogFenced, LogNotFound)):
            await writer.append(b"b")
        await writer.close()

    with_log(act)


def test_nobody_can_lead_when_the_list_is_full() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        manifest = await log.manifest()
        note = "x" * (RECORD_SIZE_MAX - len(pack_manifest(replace(manifest, extra={"note": ""}))))
        version = (await store._driver.read_record("logs/orders"))[1]
        await store._driver.write_record("logs/orders", pack_manifest(replace(manifest, extra={"note": note})), version)
        with pytest.raises(InvalidArgument, match="accepts at most 1,032,192"):
            await log.lead()
        assert [each async for each in store.ledgers()] == []

    with_log(act)


def test_a_list_that_is_too_long_is_refused_and_the_leader_goes_on() -> None:
    async def act(world: World, store: Client, log: Log) -> None:
        async with log.lead() as writer:
            await writer.append(b"a")
            manifest = writer.manifest
            note = "x" * (RECORD_SIZE_MAX - len(pack_manifest(replace(manifest, extra={"note": ""}))))
            wide = pack_manifest(replace(manifest, extra={"note": note}))
            await store._driver.write_record("logs/orders", wide, writer._records.version)
            for _ in range(2):
                with pytest.raises(InvalidArgument, match="a metadata store accepts at most 1,032,192"):
                    await writer.roll()
            await writer.append(b"b")
            assert writer.ledger_id == 0
        assert await payloads(log) == [b"a", b"b"]

    with_log(act)
