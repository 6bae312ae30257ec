"""Readers: order, tails, truncation, gaps, lost segments, the lock of readers. Source: distributedlog 5."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from tests.fakes.distributedlog import Place, in_namespace

from bookies.client.read import LedgerReader
from bookies.distributedlog import BEFORE_FIRST, Dlog, Dlsn, Record, parts
from bookies.distributedlog.dlog_reader import DlogReader
from bookies.errors import (
    InvalidArgument,
    LedgerClosed,
    LedgerNotFound,
    LogFenced,
    LogInUse,
    LogNotFound,
    LogRecordCorrupt,
    LogTruncated,
)

STORES = pytest.mark.parametrize("has_zookeeper", [True, False], ids=["zookeeper", "embedded"])


async def written(place: Place, count: int = 10, name: str = "orders") -> Dlog:
    """A log of segments with two records each, one entry a record."""
    log = await place.log(name)
    async with log.lead(roll_size=150) as writer:
        for number in range(count):
            await writer.append(b"%d" % number + bytes(50), txid=10 * number)
    return log


async def numbers(log: Dlog, start: Dlsn | None = None, on_gap: str = "skip") -> list[int]:
    async with log.open() as reader:
        return [int(record.payload.rstrip(b"\0")) async for record in reader.read(start, on_gap=on_gap)]


class Tail:
    """What a tail gets, in the background."""

    def __init__(self, log: Dlog, start: Dlsn | None = None, on_gap: str = "skip") -> None:
        self.seen: list[Record] = []
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._follow(log, start, on_gap))

    async def _follow(self, log: Dlog, start: Dlsn | None, on_gap: str) -> None:
        async with log.open() as reader:
            async for record in reader.tail(start, on_gap=on_gap):
                self.seen.append(record)
                self._news.set()

    async def wait_for(self, *payloads: bytes) -> None:
        async with asyncio.timeout(60):
            while [record.payload for record in self.seen] != list(payloads):
                self._news.clear()
                await self._news.wait()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@STORES
def test_a_tail_sees_a_record_without_further_ones(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        log = await place.log()
        await log.create()
        tail = Tail(log)
        async with log.lead() as writer:
            await writer.append(b"1")
            await tail.wait_for(b"1")
            await writer.roll()
            await writer.append(b"2")
            await tail.wait_for(b"1", b"2")
        other = await place.log()
        async with other.lead() as writer:
            await writer.append(b"3")
            await tail.wait_for(b"1", b"2", b"3")
            late = Tail(other)
            await asyncio.sleep(1)
            await writer.append(b"4")
            await late.wait_for(b"4")
            await late.stop()
            await tail.wait_for(b"1", b"2", b"3", b"4")
        assert [record.sequence_id for record in tail.seen] == [0, 1, 2, 3]
        await tail.stop()

    in_namespace(act, has_zookeeper=has_zookeeper)


def test_a_lazy_writer_shows_its_last_record_at_a_flush() -> None:
    async def act(place: Place) -> None:
        log = (await place.namespace(explicit_lac_interval_ms=0)).log("orders")
        await log.create()
        tail = Tail(log, Dlsn(1, 0, 0))
        async with log.lead(eager=False) as writer:
            await writer.append(b"1")
            await asyncio.sleep(5)
            assert tail.seen == []
            await writer.flush()
            await tail.wait_for(b"1")
        await tail.stop()

    in_namespace(act)


@STORES
def test_a_tail_passes_a_segment_that_stayed_empty(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        log = await place.log()
        writer = await log.lead(lock=False)
        tail = Tail(log, Dlsn(1, 0, 0))
        for bookie in place.world.bookies:
            await place.world.take_down(bookie)
        append = asyncio.create_task(writer.append(b"lost"))
        await asyncio.sleep(0.1)
        await writer.abandon()
        await asyncio.gather(append, return_exceptions=True)
        for bookie in place.world.bookies:
            await place.world.listen(bookie)
        async with log.lead(lock=False) as following:
            assert await following.append(b"1") == Dlsn(1, 0, 0)
            await tail.wait_for(b"1")
        await tail.stop()

    in_namespace(act, has_zookeeper=has_zookeeper)


@STORES
def test_truncated_records_are_skipped_or_an_error(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        log = await written(place)
        assert await numbers(log) == list(range(10))
        assert await numbers(log, Dlsn(2, 1, 0)) == list(range(3, 10))
        await log.truncate(Dlsn(2, 1, 0))
        assert await numbers(log) == await numbers(log, Dlsn(1, 1, 0)) == list(range(3, 10))
        with pytest.raises(LogTruncated, match="begins at 2:1:0: 1:1:0 was truncated"):
            await numbers(log, Dlsn(1, 1, 0), on_gap="error")
        assert await numbers(log, Dlsn(2, 1, 0), on_gap="error") == list(range(3, 10))
        first = await log.first()
        assert first is not None
        assert (first.position, first.sequence_id) == (Dlsn(2, 1, 0), 3)
        await log.truncate(Dlsn(1, 0, 0))
        assert await numbers(log) == list(range(3, 10))
        with pytest.raises(InvalidArgument, match="on_gap"):
            await numbers(log, on_gap="ignore")

    in_namespace(act, has_zookeeper=has_zookeeper)


@STORES
def test_retention_deletes_ledgers_and_the_list_goes_on(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        namespace = await place.namespace()
        await written(place)
        log = namespace.log("orders")
        assert len(await log.apply_retention(max_age=0, only_truncated=True)) == 0
        await asyncio.sleep(1)
        assert [segment.lssn for segment in await log.apply_retention(below_txid=30, dry_run=True)] == [1]
        assert [segment.lssn for segment in await log.apply_retention(max_age=0)] == [1, 2, 3, 4]
        ids = [record.ledger_id async for record in namespace.client.ledgers()]
        assert ids == [segment.ledger_id for segment in await log.segments()]
        assert await numbers(log) == [8, 9]
        with pytest.raises(LogTruncated):
            await numbers(log, Dlsn(1, 0, 0), on_gap="error")
        async with log.lead() as writer:
            await writer.append(b"10", txid=1000)
        assert await numbers(log) == [8, 9, 10]
        last = await log.last()
        assert last is not None
        assert last.sequence_id == 10
        with pytest.raises(InvalidArgument, match="max_age"):
            await log.apply_retention()

    in_namespace(act, has_zookeeper=has_zookeeper)


class SlowClient:
    """A client of a reader. `before`: is called before it opens the ledger with an ordinal, from 0."""

    def __init__(self, client: Any, before: dict[int, Callable[[], Awaitable[object]]]) -> None:
        self._client = client
        self._before = before
        self._count = 0

    async def open(self, ledger_id: int, *, password: bytes) -> LedgerReader:
        before = self._before.get(self._count)
        self._count += 1
        if before is not None:
            await before()
        return await self._client.open(ledger_id, password=password)


@pytest.mark.parametrize(
    ("before", "start", "where", "skipped"),
    [
        (1, None, None, [0, 1, 4, 5, 6, 7, 8, 9]),  # deleted between the list and the ledger
        (0, Dlsn(2, 1, 0), None, [4, 5, 6, 7, 8, 9]),  # the same, where the reader resumes
        (0, None, Dlsn(2, 0, 3), [0, 1, 3, 4, 5, 6, 7, 8, 9]),  # in the first entry of a segment
    ],
)
def test_what_is_truncated_while_a_reader_is_on_its_way_is_a_gap(
    before: int, start: Dlsn | None, where: Dlsn | None, skipped: list[int]
) -> None:
    async def act(place: Place) -> None:
        for on_gap in ("error", "skip"):
            log = await written(place, name=on_gap)

            async def remove(log: Dlog = log) -> None:
                await (log.apply_retention(below_txid=50) if where is None else log.truncate(where))

            client: Any = SlowClient(log._parts.client, {before: remove})
            async with DlogReader(replace(log._parts, client=client)) as reader:
                records = reader.read(start, on_gap=on_gap)
                if on_gap == "skip":
                    assert [int(record.payload.rstrip(b"\0")) async for record in records] == skipped
                else:
                    with pytest.raises(LogTruncated, match="begins at"):
                        [record async for record in records]

    in_namespace(act)


def test_positions_by_transaction_id_and_counts() -> None:
    async def act(place: Place) -> None:
        log = await written(place)
        assert await log.find(0) == Dlsn(1, 0, 0)
        assert await log.find(31) == await log.find(40) == Dlsn(3, 0, 0)
        assert await log.find(90) == Dlsn(5, 1, 0)
        assert await log.find(91) == Dlsn(5, 1, 1)
        assert [
            await log.count(at)
            for at in (None, Dlsn(1, 1, 0), Dlsn(3, 0, 0), Dlsn(5, 1, 0), Dlsn(5, 1, 1), Dlsn(9, 0, 0))
        ] == [10, 9, 6, 1, 0, 0]
        assert not await log.is_ended()
        empty = await place.log("empty")
        await empty.create()
        assert await empty.find(5) == Dlsn(1, 0, 0)
        assert (await empty.first(), await empty.last(), await empty.count()) == (None, None, 0)

    in_namespace(act)


def test_a_lost_ledger_is_an_error() -> None:
    async def act(place: Place) -> None:
        namespace = await place.namespace()
        await written(place)
        log = namespace.log("orders")
        segments = await log.segments()
        await namespace.client.delete(segments[1].ledger_id)
        with pytest.raises(LedgerNotFound, match="segment 2 of log orders has lost its ledger"):
            await numbers(log)

    in_namespace(act)


def test_an_entry_that_is_no_record_is_an_error_of_its_place() -> None:
    async def act(place: Place) -> None:
        namespace = await place.namespace()
        log = namespace.log("orders")
        writer = await log.lead()
        await writer.append(b"7")
        assert writer._open is not None
        await writer._open.ledger.append(b"bad")
        await writer.abandon()
        await (await namespace.client.recover(writer._open.ledger.ledger_id)).close()
        with pytest.raises(LogRecordCorrupt, match=r"segment 1: the entry has 3 bytes.*entry 1"):
            await numbers(log)
        with pytest.raises(LogRecordCorrupt, match=r"orders accepts no writer.*3 bytes.*log recover orders.*entry 1"):
            await log.lead()
        with pytest.raises(LogRecordCorrupt, match="--skip-damaged"):
            await log.recover()
        [skipped] = await log.recover(skip_damaged=True)
        assert (skipped.ledger_id, skipped.entry_id) == (writer._open.ledger.ledger_id, 1)
        assert await log.recover(skip_damaged=True) == ()
        [segment] = await log.segments()
        assert (segment.is_completed, segment.last_entry, segment.record_count) == (True, 0, 1)
        last = await log.last()
        assert last is not None
        assert (last.payload, await log.find(last.txid), await log.count(Dlsn(1, 0, 0))) == (b"7", last.position, 1)
        async with log.lead() as following:
            await following.append(b"8")
        with pytest.raises(LogRecordCorrupt, match=r"read on from 1:2:0"):
            await numbers(log)
        async with log.open() as reader:
            assert [record.payload async for record in reader.read(Dlsn(1, 2, 0))] == [b"8"]

    in_namespace(act)


def test_a_segment_without_an_intact_record_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def act(place: Place) -> None:
        namespace = await place.namespace()
        await written(place)
        log = namespace.log("orders")
        writer = await log.lead()
        await writer.append(b"7")
        await writer.abandon()
        before = await log.segments()
        with monkeypatch.context() as patch:
            patch.setattr(parts, "records_of", Mock(side_effect=LogRecordCorrupt("no record")))
            with pytest.raises(LogRecordCorrupt, match="no record of that segment is intact"):
                await log.recover(skip_damaged=True)
        assert await log.segments() == before
        assert (await namespace.client.metadata(before[-1].ledger_id)).is_closed
        async with log.lead() as following:  # The damage was of the test.
            assert (await following.append(b"8")).segment > before[-1].lssn

    in_namespace(act)


def test_a_reader_with_the_lock_excludes_another() -> None:
    async def act(place: Place) -> None:
        log, other = await place.log(owner="r1"), await place.log(owner="r2")
        await log.create()
        reader = await log.open_exclusively()
        with pytest.raises(LogInUse, match="r1 has the lock"):
            await other.open_exclusively(lock_timeout=1)
        assert place.server is not None
        zookeeper = place.server.sessions[1]
        zookeeper.expire()
        zookeeper.session_ended()
        async with await other.open_exclusively(lock_timeout=0):
            with pytest.raises(LogFenced):
                await anext(reader.tail(Dlsn(1, 0, 0), timeout=30))
        await reader.close()

    in_namespace(act)


def test_a_closed_reader_ends_its_iterations() -> None:
    async def act(place: Place) -> None:
        log = await written(place, 1)
        reader = await log.open()
        tail = reader.tail(timeout=60)
        waiting = asyncio.create_task(tail._more())
        await asyncio.sleep(1)
        await reader.close()
        with pytest.raises(LedgerClosed, match="open the log again"):
            await waiting
        with pytest.raises(LogNotFound, match="create it first"):
            await (await place.log("missing")).open()

    in_namespace(act)


@STORES
def test_cursors_are_positions_of_subscribers(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        log = await written(place, 4)
        assert await log.cursors() == {}
        assert await log.cursor("billing") == BEFORE_FIRST
        await log.move_cursor("billing", Dlsn(2, 0, 1))
        await log.move_cursor("shipping", Dlsn(1, 0, 1))
        await log.move_cursor("billing", Dlsn(2, 1, 1))
        assert await log.cursors() == {"billing": Dlsn(2, 1, 1), "shipping": Dlsn(1, 0, 1)}
        assert await numbers(log, await log.cursor("shipping")) == [1, 2, 3]
        await log.delete_cursor("billing")
        await log.delete_cursor("billing")
        assert await log.cursors() == {"shipping": Dlsn(1, 0, 1)}
        for name in ("", "a/b", "a b"):
            with pytest.raises(InvalidArgument, match="is not the name of a cursor"):
                await log.move_cursor(name, Dlsn(1, 0, 0))
        with pytest.raises(LogNotFound):
            await (await place.log("missing")).move_cursor("billing", Dlsn(1, 0, 0))

    in_namespace(act, has_zookeeper=has_zookeeper)
