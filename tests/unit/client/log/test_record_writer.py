"""Logs keep to their record format: what writers and transactions store, what they refuse, and what readers get."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest
from tests.fakes.logs import QUICK, Act, in_log, payloads
from tests.fakes.world import World

from bookies.client.client import Client
from bookies.client.log import Log
from bookies.encoding.envelope import Record, pack_record, parse_record
from bookies.errors import AckQuorumTimeout, InvalidArgument, LogRecordCorrupt
from bookies.protocol.log import Position
from bookies.protocol.log.log_model import ENVELOPE, RAW
from bookies.protocol.log.record_json import row_of
from bookies.protocol.log.records import LogRecord
from bookies.spark.base import envelope


def with_log(act: Act, record_format: str = ENVELOPE) -> None:
    in_log(act, record_format, **QUICK)


async def records(log: Log, start: Position | None = None) -> list[LogRecord]:
    async with log.open() as reader:
        return [record async for record in reader.read(start).records()]


def test_a_payload_is_wrapped_with_the_time_of_the_clock() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            before_us = 1000 * world.runtime("any").clock.wall_ms()
            first = await writer.append(b"bare")
            await writer.append(bytearray(b"v"), key=b"k", headers={"h": b"1", "n": None}, timestamp=1.5)
            await writer.append(Record(None, b"gone"), timeout=60)
            last = await writer.append_many([b"a", Record(b"b", b"k", timestamp_us=7)])
        found = await records(log)
        assert [record.position for record in found] == [Position(first.ledger_id, at) for at in range(5)]
        assert found[-1].position == last
        assert [(record.value, record.key) for record in found] == [
            (b"bare", None), (b"v", b"k"), (None, b"gone"), (b"a", None), (b"b", b"k"),
        ]  # fmt: skip
        assert found[1].headers == [("h", b"1"), ("n", None)]
        assert (found[1].timestamp_us, found[4].timestamp_us) == (1_500_000, 7)
        for at in (0, 2, 3):
            assert before_us <= (found[at].timestamp_us or 0) <= before_us + 60_000_000
        assert (await records(log, last))[0] == found[-1]

    with_log(act)


def test_raw_logs_store_values_and_refuse_what_they_cannot_hold() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            await writer.append(b"a")
            await writer.append(Record(b"b"))
            await writer.append(Record(b"c"), timeout=60)
            await writer.append_many([b"d", Record(b"e")])
            for refused in (
                writer.append(b"x", key=b"k"),
                writer.append(b"x", headers={}, timeout=60),
                writer.append(b"x", timestamp=1.0),
                writer.append(Record(b"x", b"k")),
                writer.append_many([b"x", Record(b"x", headers=[])]),
            ):
                with pytest.raises(InvalidArgument, match=r'log orders keeps raw values.*record_format="envelope"'):
                    await refused
            for wrong in (writer.append("x"), writer.append_many([b"x", "y"]), writer.append_many([])):  # type: ignore[arg-type, list-item]
                with pytest.raises(InvalidArgument, match=r"a payload is bytes|needs at least one payload"):
                    await wrong
        assert await payloads(log) == [b"a", b"b", b"c", b"d", b"e"]
        assert [(record.value, record.key, record.timestamp) for record in await records(log)][:1] == [
            (b"a", None, None)
        ]

    with_log(act, RAW)


def test_records_keep_their_order_and_are_whole_while_ledgers_change() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead(roll_size=200) as writer:
            appends = [asyncio.ensure_future(writer.append(b"%d" % number, key=b"k")) for number in range(20)]
            await asyncio.gather(writer.roll(), *appends)
            appends += [asyncio.ensure_future(writer.append(b"%d" % number, key=b"k")) for number in range(20, 40)]
            await asyncio.gather(*appends)
        assert len({task.result().ledger_id for task in appends}) > 1
        assert [(record.value, record.key) for record in await records(log)] == [(b"%d" % n, b"k") for n in range(40)]

    with_log(act)


def test_a_raw_record_that_waits_at_the_gate_is_its_value() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            async with writer._gate:
                waiting = [asyncio.ensure_future(writer.append(payload)) for payload in (Record(b"0"), b"1")]
                await asyncio.sleep(0)
                assert await payloads(log) == []
            await asyncio.gather(*waiting)
        assert await payloads(log) == [b"0", b"1"]

    with_log(act, RAW)


def test_entries_that_are_packed_already_stay_as_they_are() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        packed = pack_record(Record(b"v", b"k", [("text", b"bk-sequence")], 5))
        async with log.lead() as writer:
            await writer.append_entries([packed])
            await writer.append_entries([packed], timeout=60)
            with pytest.raises(AckQuorumTimeout):
                await writer.append_entries([packed], timeout=0)
        assert (await payloads(log))[:2] == [packed, packed]

    with_log(act)


@pytest.mark.parametrize("record_format", [ENVELOPE, RAW])
def test_transactions_keep_to_the_format(record_format: str) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.transaction("loader", 1) as txn:
            await txn.append(b"a")
            await txn.append_many([b"b", bytearray(b"c")])
            entry = Record(b"d", timestamp_us=1)
            await txn.append_entries([entry.value or b"" if record_format == RAW else pack_record(entry)])
            if record_format == RAW:
                await txn.append_many([Record(b"e")])
                for refused in (txn.append(b"x", key=b"k"), txn.append_many([Record(b"x", b"k")])):
                    with pytest.raises(InvalidArgument, match="log orders keeps raw values, without key"):
                        await refused
            else:
                await txn.append(b"e", key=b"k", headers={"h": b"1"}, timestamp=2)
        found = await records(log)
        assert [record.value for record in found][:4] == [b"a", b"b", b"c", b"d"]
        assert all(record.timestamp_us for record in found) == (record_format == ENVELOPE)
        if record_format == ENVELOPE:
            assert found[4] == LogRecord(found[4].position, b"e", b"k", [("h", b"1")], 2_000_000)
        else:
            assert await payloads(log) == [b"a", b"b", b"c", b"d", b"e"]

    with_log(act, record_format)


def test_an_entry_that_is_no_record_is_one_error_and_reading_goes_on() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            await writer.append_many([b"a", b"b"])
            await writer.append_entries([b"bare"])
            last = await writer.append_many([b"c", b"d"])
        bad = Position(last.ledger_id, 2)
        async with log.open() as reader:
            for iteration in (reader.read().records(), reader.tail(Position(last.ledger_id, 0)).records()):
                assert [(await anext(iteration)).value for _ in range(2)] == [b"a", b"b"]
                with pytest.raises(
                    LogRecordCorrupt,
                    match=rf"log orders has no record at ledger .*, entry 2: .* read on from {bad.next}$",
                ):
                    await anext(iteration)
                assert [(await anext(iteration)).value for _ in range(2)] == [b"c", b"d"]
        assert [record.value for record in await records(log, bad.next)] == [b"c", b"d"]

    with_log(act)


def test_a_tail_of_records_goes_on_after_a_timeout() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer, log.open() as reader:
            tail = reader.tail(timeout=5).records()
            with pytest.raises(TimeoutError):
                await anext(tail)
            position = await writer.append(b"v", key=b"k")
            await writer.append(b"w")
            found = await anext(tail)
            assert (found.position, found.value, found.key) == (position, b"v", b"k")

    with_log(act)


@pytest.mark.parametrize(
    "record",
    [
        Record(b"v", b"k", [("h", b"1"), ("n", None)], 1_700_000_000_123_456),
        Record(b"\0\xff", None, [], 0),
        Record(None, b"k", None, -1),
    ],
)
def test_every_reader_sees_the_same_record(record: Record) -> None:
    """Of the client, of Spark's decoder, and as JSON, which the command and the gateway print."""

    async def act(world: World, client: Client, log: Log) -> None:
        columns: dict[str, Any] = {
            "value": pa.array([record.value], pa.binary()),
            "key": pa.array([record.key], pa.binary()),
            "headers": pa.array(
                [None if record.headers is None else [{"key": k, "value": v} for k, v in record.headers]],
                envelope.HEADERS_TYPE,
            ),
            "timestamp": pa.array([record.timestamp_us], pa.int64()).cast(envelope.TIMESTAMP_TYPE),
        }
        by_spark = envelope.encode(**columns)[0].as_py()
        async with log.lead() as writer:
            await writer.append(record)
            await writer.append_entries([by_spark])
        own, theirs = await payloads(log)
        assert own == theirs
        assert parse_record(own) == record
        assert {name: column.to_pylist() for name, column in envelope.decode(pa.array([own], pa.binary())).items()} == {
            name: column.to_pylist() for name, column in columns.items()
        }
        first, second = await records(log)
        assert row_of("0:0", first) == row_of("0:0", second) == row_of("0:0", record)

    with_log(act)
