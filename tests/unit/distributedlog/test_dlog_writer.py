"""The writer: what it appends, how it rolls, takes over, goes on after failures, and which znodes it leaves."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.fakes.distributedlog import Place, in_namespace
from tests.fakes.world import LaggingDriver
from tests.fakes.zookeeper import FakeZooKeeper

from bookies.client.base import Opening
from bookies.client.client import Client
from bookies.client.read import LedgerReader
from bookies.config import ClientConfig
from bookies.distributedlog import Dlog, Dlsn, Namespace, dlog_writer
from bookies.distributedlog.formats.log_names import LAYOUT_VERSION
from bookies.distributedlog.model.segment_list import started
from bookies.distributedlog.parts import recover
from bookies.distributedlog.store import Ownership
from bookies.errors import (
    BookieBusy,
    InvalidArgument,
    LedgerClosed,
    LogEnded,
    LogError,
    LogFenced,
    LogInUse,
    LogNotFound,
    NotSupported,
    TxidOutOfOrder,
)
from bookies.model import BookieId

STORES = pytest.mark.parametrize("has_zookeeper", [True, False], ids=["zookeeper", "embedded"])
ROOT = "/dl/orders/<default>"


async def payloads(log: Dlog, start: Dlsn | None = None) -> list[bytes]:
    async with log.open() as reader:
        return [record.payload async for record in reader.read(start)]


@STORES
def test_records_have_positions_in_order_of_the_calls(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        log = await place.log()
        async with log.lead() as writer:
            assert writer.segment is None  # A writer that is idle leaves no trace.
            first = await asyncio.gather(*(writer.append(b"%d" % number) for number in range(5)))
            assert await writer.append_many([b"5", b"6"]) == Dlsn(1, 1, 1)
            assert await writer.append_set([b"7", b"8"], txid=20) == Dlsn(1, 2, 1)
        assert first == [Dlsn(1, 0, slot) for slot in range(5)]
        async with log.open() as reader:
            records = [record async for record in reader.read()]
        assert [record.payload for record in records] == [b"%d" % number for number in range(9)]
        assert [record.sequence_id for record in records] == list(range(9))
        assert [record.txid for record in records] == [1, 2, 3, 4, 5, 6, 7, 20, 20]
        (segment,) = await log.segments()
        assert (segment.record_count, segment.last_txid, segment.last_dlsn) == (9, 20, Dlsn(1, 2, 1))

    in_namespace(act, has_zookeeper=has_zookeeper)


def test_a_segment_whose_ledger_a_lagging_server_does_not_know_is_not_taken_for_an_empty_one() -> None:
    async def act(place: Place) -> None:
        log = await place.log()
        writer = await log.lead()
        await writer.append(b"acknowledged")
        await writer.abandon()
        runtime = place.world.runtime("lagging")
        client = Client(runtime, LaggingDriver(place.world.store, runtime), ClientConfig())
        zookeeper = FakeZooKeeper(place.server)  # type: ignore[arg-type]
        await asyncio.gather(client.open_session(), zookeeper.open())
        async with Namespace(runtime, zookeeper, "/dl", client) as namespace:
            await namespace.log("orders").recover()
        assert await payloads(log) == [b"acknowledged"]

    in_namespace(act)


def test_the_znodes_are_those_of_the_specification() -> None:
    """Source: distributedlog 2.10."""

    async def act(place: Place) -> None:
        log = await place.log(owner="w1")
        await log.create()
        assert {path: data for path, data in place.znodes().items() if path.startswith(ROOT)} == {
            ROOT: b"",
            f"{ROOT}/ledgers": b"0",
            f"{ROOT}/maxtxid": b"0",
            f"{ROOT}/version": LAYOUT_VERSION,
            f"{ROOT}/lock": b"",
            f"{ROOT}/readLock": b"",
            f"{ROOT}/allocation": b"",
        }
        writer = await log.lead()
        assert place.znodes()[f"{ROOT}/lock/member_w1_s         1_0000000000"] == b"w1"
        await writer.append(b"ten", txid=10)
        znodes = place.znodes()
        assert writer.segment is not None
        ledger = writer.segment.ledger_id
        assert znodes[f"{ROOT}/ledgers/inprogress_000000000000000001"] == b"5;%d;10;1;0;0;-1" % ledger
        assert (znodes[f"{ROOT}/ledgers"], znodes[f"{ROOT}/maxtxid"], znodes[f"{ROOT}/allocation"]) == (b"1", b"0", b"")
        assert place.server is not None
        assert place.server.nodes[f"{ROOT}/allocation"].version == 2
        await writer.append_many([b"eleven", b"twelve"], txid=11)
        await writer.close()
        znodes = place.znodes()
        name, data = next(item for item in znodes.items() if "logrecs" in item[0])
        assert name == f"{ROOT}/ledgers/logrecs_000000000000000001"
        numbers = data.split(b";")
        assert numbers[0] == b"%d" % (3 << 32 | 5)
        assert numbers[1:4] + numbers[5:] == [b"%d" % ledger, b"10", b"12", b"1", b"1", b"1", b"0", b"0", b"0"]
        assert (znodes[f"{ROOT}/ledgers"], znodes[f"{ROOT}/maxtxid"]) == (b"1", b"12")
        assert not [path for path in znodes if "member_" in path or "inprogress" in path]

    in_namespace(act)


@STORES
def test_rolls_continue_in_the_next_segment(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        log = await place.log()
        async with log.lead(roll_size=200) as writer:
            positions = [await writer.append(b"x" * 90) for _ in range(7)]
            await writer.roll()
            positions.append(await writer.append(b"last"))
        assert positions == sorted(positions)
        segments = await log.segments()
        assert [segment.lssn for segment in segments] == list(range(1, len(segments) + 1))
        assert len(segments) == 4 + 1
        assert sum(segment.record_count for segment in segments) == 8
        assert [segment.start_sequence_id for segment in segments] == [0, 2, 4, 6, 7]
        assert await log.count() == 8
        async with log.open() as reader:
            assert [record.sequence_id async for record in reader.read()] == list(range(8))

    in_namespace(act, has_zookeeper=has_zookeeper)


def test_a_segment_is_rolled_by_age() -> None:
    async def act(place: Place) -> None:
        log = await place.log()
        async with log.lead(roll_age=100.0) as writer:
            await writer.append(b"early")
            await asyncio.sleep(101)
            await writer.append(b"late")
        assert [segment.record_count for segment in await log.segments()] == [1, 1]

    in_namespace(act)


def test_a_segment_is_completed_by_age_though_no_record_follows() -> None:
    async def act(place: Place) -> None:
        log = await place.log()
        async with log.lead(roll_age=100.0) as writer:
            await writer.append(b"only")
            await asyncio.sleep(90)
            assert [segment.is_completed for segment in await log.segments()] == [False]
            await asyncio.sleep(20)
            assert [segment.is_completed for segment in await log.segments()] == [True]
            assert writer.segment is None
            await asyncio.sleep(200)  # No record starts no segment.
            assert len(await log.segments()) == 1
            await writer.append(b"late")
        assert [segment.record_count for segment in await log.segments()] == [1, 1]

    in_namespace(act)


@STORES
def test_a_new_leader_stops_the_present_one_and_keeps_its_records(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        old_log, new_log = await place.log(), await place.log()
        old = await old_log.lead(lock=False)
        assert await old.append(b"old") == Dlsn(1, 0, 0)
        async with new_log.lead(lock=False) as new:
            assert await new.append(b"new") == Dlsn(2, 0, 0)
            with pytest.raises(LogFenced, match="taking log orders over"):
                await old.append(b"lost")
            with pytest.raises(LogFenced, match="was not sent"):
                await old.append(b"later")
            await old.abandon()
        assert await payloads(new_log) == [b"old", b"new"]

    in_namespace(act, has_zookeeper=has_zookeeper)


@STORES
def test_a_leader_without_a_segment_is_stopped_when_it_starts_one(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        log = await place.log()
        idle = await log.lead(lock=False)
        async with log.lead(lock=False) as busy:
            await busy.append(b"1")
            with pytest.raises(LogFenced):
                await idle.append(b"lost")
            await busy.append(b"2")
        await idle.abandon()
        assert await payloads(log) == [b"1", b"2"]

    in_namespace(act, has_zookeeper=has_zookeeper)


def test_an_entry_that_cannot_be_packed_ends_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """No append waits for ever, and the log goes on with the next leader."""

    def unable(records: object, written: int, codec: int) -> bytes:
        raise MemoryError

    async def act(place: Place) -> None:
        log = await place.log()
        writer = await log.lead()
        await writer.append(b"a")
        with monkeypatch.context() as patch:
            patch.setattr(dlog_writer, "pack_entry", unable)
            appends = [writer.append_nowait(b"lost") for _ in range(2)]
            for append in appends:
                with pytest.raises(LogError, match=r"has failed: MemoryError\(\): the record is not in log orders"):
                    await append
        await writer.abandon()
        async with log.lead() as following:
            await following.append(b"b")
        assert await payloads(log) == [b"a", b"b"]

    in_namespace(act)


def test_the_lock_makes_writers_take_turns() -> None:
    async def act(place: Place) -> None:
        log, other = await place.log(owner="w1"), await place.log(owner="w2")
        writer = await log.lead()
        await writer.append(b"1")
        with pytest.raises(LogInUse, match="w1 has the lock"):
            await other.lead(lock_timeout=0)
        with pytest.raises(LogInUse, match="w1 has the lock"):
            await other.lead(lock_timeout=5)
        waiting = asyncio.create_task(other.lead(lock_timeout=60).begin())
        await asyncio.sleep(1)
        assert not waiting.done()
        await writer.close()
        async with await waiting as following:
            await following.append(b"2")
        assert await payloads(log) == [b"1", b"2"]

    in_namespace(act)


@pytest.mark.parametrize("kind", ["lost_replies", "lost_requests"])
def test_a_lost_answer_leaves_no_member_in_the_lock(kind: str) -> None:
    async def act(place: Place) -> None:
        log = await place.log()
        await log.create()
        setattr(place.server, kind, 1)
        async with log.lead() as writer:
            await writer.append(b"1")
            assert len([path for path in place.znodes() if "member_" in path]) == 1
        assert not [path for path in place.znodes() if "member_" in path]

    in_namespace(act)


def test_a_lost_session_is_no_loss_unless_another_takes_the_lock() -> None:
    async def act(place: Place) -> None:
        log, other = await place.log(owner="w1"), await place.log(owner="w2")
        writer = await log.lead()
        await writer.append(b"1")
        assert place.server is not None
        zookeeper = place.server.sessions[1]
        zookeeper.expire()
        zookeeper.session_ended()
        await writer.append(b"2")
        await asyncio.sleep(1)
        async with await other.lead(lock_timeout=0) as new:
            await new.append(b"3")
            with pytest.raises(LogFenced):
                await writer.append(b"lost")
        await writer.abandon()
        assert await payloads(log) == [b"1", b"2", b"3"]

    in_namespace(act)


@pytest.mark.parametrize("kind", ["lost_replies", "lost_requests"])
def test_a_change_whose_outcome_is_unknown_is_carried_out_once(kind: str) -> None:
    """The reservation and the completion of a segment meet a lost answer, or a lost request."""

    async def act(place: Place) -> None:
        log = await place.log()
        writer = await log.lead(lock=False)
        assert place.server is not None
        setattr(place.server, kind, 1)
        await writer.append(b"1")
        assert getattr(place.server, kind) == 0
        setattr(place.server, kind, 1)
        await writer.close()
        assert getattr(place.server, kind) == 0
        assert await payloads(log) == [b"1"]
        (segment,) = await log.segments()
        assert (segment.record_count, segment.is_completed) == (1, True)
        setattr(place.server, kind, 2)
        async with log.lead(lock=False) as following:
            await following.append(b"2")
        assert await log.count() == 2

    in_namespace(act)


def test_an_embedded_namespace_has_no_locks() -> None:
    async def act(place: Place) -> None:
        log = await place.log()
        with pytest.raises(NotSupported, match="lock=False"):
            await log.lead(lock=True)

    in_namespace(act, has_zookeeper=False)


@STORES
def test_a_failure_of_bookies_loses_and_repeats_no_record(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        log = await place.log()
        async with log.lead(ensemble=3, ack_quorum=2) as writer:
            await writer.append(b"0")
            await place.world.take_down(BookieId("b1"))
            await place.world.take_down(BookieId("b2"))
            appends = [asyncio.create_task(writer.append(b"%d" % number)) for number in range(1, 20)]
            await asyncio.sleep(3)
            await place.world.listen(BookieId("b1"))
            await place.world.listen(BookieId("b2"))
            positions = await asyncio.gather(*appends)
        assert positions == sorted(positions)
        assert await payloads(log) == [b"%d" % number for number in range(20)]
        assert sum(segment.record_count for segment in await log.segments()) == 20

    in_namespace(act, has_zookeeper=has_zookeeper)


@STORES
def test_a_sealed_log_accepts_nothing_more(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        log = await place.log()
        writer = await log.lead()
        await writer.append(b"only")
        await writer.seal()
        with pytest.raises(LogEnded):
            await writer.append(b"more")
        with pytest.raises(LogEnded, match="can only be read"):
            await log.lead()
        assert await log.is_ended()
        assert await payloads(log) == [b"only"]
        async with log.open() as reader:
            assert [record.payload async for record in reader.tail(Dlsn(1, 0, 0))] == [b"only"]
        (segment,) = await log.segments()
        assert (segment.record_count, segment.last_txid, segment.last_dlsn) == (1, (1 << 63) - 1, Dlsn(1, 1, 0))

    in_namespace(act, has_zookeeper=has_zookeeper)


def test_a_crash_after_the_end_ends_the_log_too() -> None:
    async def act(place: Place) -> None:
        log = await place.log()
        writer = await log.lead(lock=False)
        await writer.append(b"only")
        sealing = asyncio.create_task(writer.seal())
        await asyncio.sleep(0.002)
        await writer.abandon()
        await asyncio.gather(sealing, return_exceptions=True)
        await log.recover()
        if await log.is_ended():
            with pytest.raises(LogEnded):
                await log.lead(lock=False)
        assert await payloads(log) == [b"only"]

    in_namespace(act)


def test_bad_arguments_are_refused() -> None:
    async def act(place: Place) -> None:
        log = await place.log()
        with pytest.raises(LogNotFound, match="create it first"):
            await log.lead(create=False)
        async with log.lead() as writer:
            await writer.append(b"x", txid=100)
            with pytest.raises(TxidOutOfOrder, match="less than 100"):
                await writer.append(b"x", txid=99)
            with pytest.raises(InvalidArgument, match="txid=-1"):
                await writer.append(b"x", txid=-1)
            with pytest.raises(InvalidArgument, match="1,040,364"):
                await writer.append(bytes(1 << 20))
            with pytest.raises(InvalidArgument, match="at least one"):
                await writer.append_many([])
            assert await writer.append(b"y", txid=100) == Dlsn(1, 1, 0)
        with pytest.raises(LedgerClosed, match="was not sent"):
            await writer.append(b"x")
        with pytest.raises(InvalidArgument, match="compression"):
            log.lead(compression="zip")
        with pytest.raises(InvalidArgument, match="roll_age"):
            log.lead(roll_age=0)
        async with log.lead() as writer:
            with pytest.raises(TxidOutOfOrder):
                await writer.append(b"x", txid=5)

    in_namespace(act)


@STORES
def test_a_reservation_of_a_dead_writer_is_deleted(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        namespace = await place.namespace()
        log = namespace.log("orders")
        await log.create()
        ledger = await namespace.client.create(digest="crc32")
        parts = log._parts
        dead = Ownership(parts.runtime, parts.store)
        await dead.load()
        assert await dead.reserve(ledger.ledger_id) is None
        async with log.lead() as writer:
            await writer.append(b"x")
        ids = [record.ledger_id async for record in namespace.client.ledgers()]
        assert ids == [segment.ledger_id for segment in await log.segments()]

    in_namespace(act, has_zookeeper=has_zookeeper)


def test_memory_is_bounded_and_appends_keep_their_order() -> None:
    async def act(place: Place) -> None:
        log = (await place.namespace(memory_limit=1 << 20)).log("orders")
        async with log.lead(ensemble=1) as writer:
            appends = [asyncio.ensure_future(writer.append(b"%d" % number + bytes(100_000))) for number in range(60)]
            await asyncio.sleep(0)
            with pytest.raises(BookieBusy, match="wait to be sent"):
                writer.append_nowait(b"x")
            positions = await asyncio.gather(*appends)
            assert await writer.append_nowait(b"60") > positions[-1]
        assert positions == sorted(positions)
        assert [int(payload.rstrip(b"\0")) for payload in await payloads(log)] == list(range(61))

    in_namespace(act)


class Slow:
    """A client whose deletion of a ledger returns late."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.has_deleted, self.may_return = asyncio.Event(), asyncio.Event()

    def recover(self, ledger_id: int, *, password: bytes = b"") -> Opening[LedgerReader]:
        return self._client.recover(ledger_id, password=password)

    async def delete(self, ledger_id: int) -> None:
        await self._client.delete(ledger_id)
        self.has_deleted.set()
        await self.may_return.wait()


@STORES
def test_a_slow_recovery_removes_no_segment_of_another_leader(has_zookeeper: bool) -> None:
    """It found the segment empty. Another process did too, leads, and uses the number again: the same znode."""

    async def act(place: Place) -> None:
        namespace = await place.namespace()
        log = namespace.log("orders")
        await log.create()
        parts = log._parts
        dead = Ownership(parts.runtime, parts.store)
        await dead.load()
        ledger = await namespace.client.create(digest="crc32", password=parts.password)
        await dead.reserve(ledger.ledger_id)
        await dead.start(started((), dead.highest, 1, ledger.ledger_id, 1))
        slow = Slow(namespace.client)
        ownership = Ownership(parts.runtime, parts.store)
        await ownership.load()
        late = asyncio.ensure_future(recover(replace(parts, client=slow), ownership))  # type: ignore[arg-type]
        await slow.has_deleted.wait()
        async with (await place.log()).lead(lock=False) as writer:
            await writer.append(b"kept")
            slow.may_return.set()
            with pytest.raises(LogFenced):
                await late
        assert await payloads(log) == [b"kept"]

    in_namespace(act, has_zookeeper=has_zookeeper)
