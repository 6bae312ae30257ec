"""What the records of a restored cluster say, when the backup lacks a log's last ledgers. No Spark, no cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fakes.world import World, play

from bookies.client.client import Client
from bookies.errors import InvalidArgument, LedgerNotFound, LogExists
from bookies.metadata.interface.driver import GivenIds
from bookies.model import BookieId, DigestType, LedgerMetadata, LedgerState
from bookies.protocol.ledger.backup import Omitted
from bookies.protocol.log import Manifest, Position, log_segments
from bookies.protocol.log.cursors import Cursor, pack_cursors, parse_cursors
from bookies.protocol.log.log_model import Extent, parse_manifest
from bookies.protocol.log.log_times import Point, pack_times, parse_times
from bookies.protocol.log.migration import FROM
from bookies.protocol.log.sequences import CURSOR, Run, Sequences
from bookies.spark.jobs.backup import _reading, _report
from bookies.spark.jobs.restore_cluster import Backup, _beginning, _ending, records_brought_back
from bookies.spark.jobs.shared.common import JobConfig

LIST = Manifest(
    "tok",
    1,
    1,
    1,
    1,
    DigestType.CRC32C,
    epoch=4,
    next_seq=3,
    extents=(Extent(0, 60, 0, 9, 10, 100), Extent(1, 61, 0, 3, 4, 40), Extent(2, 62)),
)


def record(ledger_id: int, last: int, length: int) -> LedgerMetadata:
    return LedgerMetadata(ledger_id, 1, 1, 1, ((0, (BookieId("a"),)),), LedgerState.CLOSED, last, length)


def backup(named: dict[str, bytes], manifest: Manifest = LIST) -> Backup:
    layout = log_segments.stored("orders", manifest)
    records = {60: record(60, 9, 100), 61: record(61, 3, 40)}
    lists = {name: content for name, (content, _) in layout.new.items()} | {"logs/orders": layout.head}
    return Backup("/safe/c1", "c1", "monday", [], records, lists | named, GivenIds(0, ()), {62: "it is open"})


def followers(snapshot: Position, late: Position) -> dict[str, bytes]:
    cursors = {"web": Cursor("web", late, 5), CURSOR: Cursor(CURSOR, snapshot, 5)}
    return {
        "cursors/orders": pack_cursors("tok", cursors),
        "sequences/orders": Sequences().pack("tok", snapshot),
        "log-times/orders": pack_times("tok", [Point(Position(61, 2), 7), Point(Position(62, 1), 9)]),
        "locks/nightly": b"{}",
        "bookie-notes": b"{}",
        "autorecovery/b1": b"{}",
        "elections/bk-log-housekeeping": b"{}",
        "log-segments/orders/old": b"",
    }


def test_a_log_ends_where_the_backup_does_and_its_cursors_with_it() -> None:
    records, [row] = records_brought_back(backup(followers(Position(60, 3), Position(62, 8))))
    assert set(records) == {
        *("logs/orders", "cursors/orders", "sequences/orders", "log-times/orders"),
        "locks/nightly",
    }
    manifest = parse_manifest("orders", records["logs/orders"])
    assert manifest.ledger_ids == [60, 61]
    cursors = parse_cursors("orders", "tok", records["cursors/orders"])
    assert {name: cursor.position for name, cursor in cursors.items()} == {
        "web": Position(61, 4),
        CURSOR: Position(60, 3),
    }
    assert [point.ms for point in parse_times("orders", "tok", records["log-times/orders"])] == [7]
    assert row == ("log", "orders", "done", 14, 140, "ends at 61:4, before ledger 62 (it is open)")


def test_numbers_of_lost_entries_are_forgotten() -> None:
    """Else a writer that repeats them would hear that the log has them."""
    ahead = Sequences()  # of its position: an append was in flight when it was stored
    ahead.add("w", Run(0, 1, Position(62, 0)), 5)
    named = followers(Position(61, 2), Position(60, 1)) | {"sequences/orders": ahead.pack("tok", Position(61, 2))}
    for each in (followers(Position(62, 0), Position(60, 1)), named):
        records, _ = records_brought_back(backup(each))
        assert "sequences/orders" not in records
        assert set(parse_cursors("orders", "tok", records["cursors/orders"])) == {"web"}


def test_a_log_says_which_ledgers_it_lacks() -> None:
    extents = (Extent(0, 50, 0, 0, 1, 1), *(replace(extent, seq=extent.seq + 1) for extent in LIST.extents))
    manifest = replace(LIST, extents=(*extents, Extent(4, 63)), next_seq=5)
    records, [row] = records_brought_back(backup({}, manifest))
    assert row[5] == (
        "begins after 1 ledger (50), which the backup lacks; ends at 61:4, before ledger 62 (it is open); not listed "
        "either: 1 later ledger (63)"
    )
    assert parse_manifest("orders", records["logs/orders"]).rows_truncated == 1


def test_a_log_ends_before_a_batch_that_the_backup_has_in_part() -> None:
    extents = (LIST.extents[0], *(replace(extent, last=3, txn="load:7") for extent in LIST.extents[1:]))
    txns = {"load": {"query": "", "version": 7, "at": 1}}
    records, [row] = records_brought_back(backup({}, replace(LIST, extents=extents, txns=txns)))
    assert row[5] == (
        "ends at 60:10, before ledger 61 (its transaction is not whole: the backup lacks ledger 62); "
        "not listed either: 1 later ledger (62)"
    )
    assert parse_manifest("orders", records["logs/orders"]).txns == {}


def test_a_long_list_has_segments_of_its_own() -> None:
    count = 3 * log_segments.HEAD_EXTENTS_MAX
    manifest = replace(LIST, next_seq=count, extents=tuple(Extent(seq, seq, 0, 0, 1, 1) for seq in range(count)))
    whole = backup({}, manifest)
    whole = replace(whole, records={seq: record(seq, 0, 1) for seq in range(1, count)})
    records, [row] = records_brought_back(whole)
    [segment] = [name for name in records if name.startswith("log-segments/")]
    assert segment not in whole.named  # it begins with another ledger
    assert row[3] == count - 1

    async def main(world: World) -> None:
        client = await world.client()
        driver = client.administration().access.driver
        await driver.create_record("restoration", json.dumps({}).encode())
        await _ending(records, whole)(client)
        assert len((await client.log("orders").manifest()).extents) == count - 1
        assert "restoration" not in await driver.record_names("")

    play(main, bookie_count=1)


def test_a_log_without_a_part_of_its_list_is_not_restored() -> None:
    count = 3 * log_segments.HEAD_EXTENTS_MAX
    manifest = replace(LIST, next_seq=count, extents=tuple(Extent(seq, seq, 0, 0, 1, 1) for seq in range(count)))
    whole = backup({}, manifest)
    named = {name: data for name, data in whole.named.items() if not name.startswith("log-segments/")}
    records, [row] = records_brought_back(replace(whole, named=named))
    assert records == {}
    assert row == ("log", "orders", "failed", 0, 0, "a part of its list is not in the backup: choose another run")


def test_a_ledger_that_a_log_has_lost_is_named() -> None:
    async def main(world: World) -> None:
        client = await world.client()
        log = client.log("orders")
        await log.create(ensemble=1)
        async with log.lead() as leader:
            await leader.append(b"one")
        [ledger_id] = (await log.manifest()).ledger_ids
        await client.delete(ledger_id)
        source = await _reading(None, JobConfig("memory:world", options={"open": False}))(client)
        assert source.failed == [Omitted(ledger_id, "a log lists it, and it does not exist")]

    play(main, bookie_count=1)


def test_a_log_whose_list_lacks_a_part_fails_the_backup() -> None:
    count = 3 * log_segments.HEAD_EXTENTS_MAX
    manifest = replace(LIST, next_seq=count, extents=tuple(Extent(seq, seq, 0, 0, 1, 1) for seq in range(count)))

    async def main(world: World) -> None:
        client = await world.client()
        layout = log_segments.stored("orders", manifest)
        await client.administration().access.driver.create_record("logs/orders", layout.head)
        asked = JobConfig("memory:world", options={"open": False})
        assert (await _reading(None, asked)(client)).broken == ["orders"]
        report = _report(asked, [], ["orders"], is_good=True)
        assert not report.is_good
        assert "a part is missing of the list of 1 log (orders), so the run cannot restore it" in report.lead

    play(main, bookie_count=1)


def test_confirmed_entries_of_open_ledgers_count_as_all() -> None:
    async def main(world: World) -> None:
        client = await world.client()
        async with client.create(ensemble=1) as writer, client.create(ensemble=1) as empty:
            await writer.append_many([b"one", b"two", b"three"])
            asked = JobConfig("memory:world", options={"open": True})
            source = await _reading(None, asked)(client)
            record = source.sealed[writer.ledger_id]
            assert (record.is_closed, record.last_entry_id, record.length) in ((True, 1, 6), (True, 2, 11))
            assert source.sealed[empty.ledger_id].last_entry_id == -1
            await world.take_down(record.last_ensemble[0])
            source = await _reading(None, asked)(client)
            assert "its end cannot be read" in source.failed[0].reason
            source = await _reading(None, JobConfig("memory:world", options={"open": False}))(client)
            assert [one.reason for one in source.omitted] == ["it is open", "it is open"]
            await world.listen(record.last_ensemble[0])

    play(main, bookie_count=1)


def test_what_was_restored_is_read() -> None:
    """The next leader continues after the end, with a number that no lost ledger had."""

    async def main(world: World) -> None:
        client = await world.client()
        old = client.log("orders")
        await old.create(ensemble=1)
        async with old.lead() as leader:
            await leader.append(b"one")
        named = {"logs/orders": (await client.administration().access.driver.read_record("logs/orders"))[0]}
        [extent] = (await old.manifest()).extents
        records = {extent.ledger_id: (await client.administration().record(extent.ledger_id)).metadata}
        whole = Backup("/safe/c1", "c1", "monday", [], records, named, GivenIds(0, ()), {7: "it was skipped"})
        await lose_log(client)
        driver = client.administration().access.driver
        await driver.create_record("restoration", b"{}")
        labels = {FROM: "c1/7"}
        async with client.create(ensemble=1, write_quorum=1, labels=labels, ledger_id=7) as writer:
            await writer.append(b"of an earlier attempt")
        await _ending(records_brought_back(whole)[0], whole)(client)
        with pytest.raises(LedgerNotFound):
            await client.metadata(7)
        async with client.log("orders").lead() as leader:
            await leader.append(b"two")
        async with client.log("orders").open() as reader:
            assert [entry.payload async for entry in reader.read()] == [b"one", b"two"]

    play(main, bookie_count=1)


def test_a_log_in_use_is_not_restored_again() -> None:
    """The run that ends a restoration is killed, clients append and read, and the run is repeated."""

    async def main(world: World) -> None:
        client = await world.client()
        driver = client.administration().access.driver
        log = client.log("orders")
        await log.create(ensemble=1)
        async with log.lead() as leader:
            last = await leader.append(b"one")
        await log.move_cursor("web", last)
        named = {name: (await driver.read_record(name))[0] for name in ("logs/orders", "cursors/orders")}
        records = {last.ledger_id: (await client.administration().record(last.ledger_id)).metadata}
        whole = Backup("/safe/c1", "c1", "monday", [], records, named, GivenIds(0, ()), {})
        await lose_log(client)
        await driver.create_record("restoration", b"{}")
        brought_back, _ = records_brought_back(whole)
        await _ending(brought_back, whole)(client)
        async with log.lead() as leader:
            after = await leader.append(b"two")
        await log.move_cursor("web", after.next)
        await _ending(brought_back, whole)(client)
        async with log.open() as reader:
            assert [entry.payload async for entry in reader.read()] == [b"one", b"two"]
        assert (await log.cursors())["web"].position == after.next
        await log.delete()
        await log.create(ensemble=1)
        with pytest.raises(LogExists, match="has another log orders, created since"):
            await _ending(brought_back, whole)(client)

    play(main, bookie_count=1)


def test_two_restorations_at_once_are_of_one_backup() -> None:
    async def main(world: World) -> None:
        client = await world.client()
        driver = client.administration().access.driver
        create = type(driver).create_record

        async def late(self: Any, name: str, data: bytes) -> int:
            await create(self, name, b'{"cluster": "c1", "run": "sunday"}')
            return await create(self, name, data)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(driver), "create_record", late)
            with pytest.raises(InvalidArgument, match=r"half restored from .*sunday"):
                await _beginning(replace(backup({}), records={}), is_dry=False)(client)

    play(main, bookie_count=1)


def test_what_an_earlier_attempt_restored_is_looked_for() -> None:
    """Its results may be those of a cluster that was deleted since."""

    async def main(world: World) -> None:
        client = await world.client()
        whole = replace(backup({}), records={seq: record(seq, 0, 1) for seq in (1, 2, 3, 4)})
        assert await _beginning(whole, is_dry=False)(client) == ([str(one.id) for one in await client.bookies()], set())
        for seq, labels, is_closed in ((1, {FROM: "c1/1"}, True), (2, {}, True), (3, {FROM: "c1/3"}, False)):
            writer = await client.create(ensemble=1, labels=labels, ledger_id=seq)
            await writer.append(b"1")
            if is_closed:
                await client.administration().recover(seq)
        async with client.create(ensemble=1, ledger_id=9) as writer:
            await writer.append(b"of no backup")
        _, present = await _beginning(whole, is_dry=False)(client)
        assert present == {1}

    play(main, bookie_count=1)


async def lose_log(client: Client) -> None:
    driver = client.administration().access.driver
    _, version = await driver.read_record("logs/orders")
    await driver.delete_record("logs/orders", version)


def test_a_ledger_without_a_copy_stays_out() -> None:
    named = followers(Position(60, 0), Position(60, 0))
    records, [row] = records_brought_back(replace(backup(named), records={}))
    assert parse_manifest("orders", records["logs/orders"]).extents == ()
    assert parse_cursors("orders", "tok", records["cursors/orders"]) == {}
    assert row[5].startswith("ends at its beginning, before ledger 60 (it was created after")
