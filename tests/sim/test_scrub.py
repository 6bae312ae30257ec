"""The scrub on a simulated disk: what it finds, whom it leaves alone, and what a crash cannot take from it."""

from __future__ import annotations

import asyncio
import os
import posixpath
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec.structs import astuple
from tests.fakes.records import BOOKIE, FakeRecords

from bookies.errors import ReadFailed
from bookies.kernels import digest
from bookies.lab.sim.run import simulate
from bookies.lab.sim.world.disk import LOSSES, PROCESS_DIES
from bookies.model import DigestType
from bookies.storage.engine import log_check
from bookies.storage.entry_log.entry_log_format import parse_file_name, scan
from bookies.storage.gc.collection_policy import Compaction
from bookies.storage.records import Batch, record_scan
from bookies.storage.scrub import scrub_format, scrub_logs
from bookies.storage.store import LedgerStore

KINDS = {1: DigestType.CRC32C, 2: DigestType.CRC32, 3: DigestType.HMAC, 4: DigestType.DUMMY, 5: DigestType.CRC32C}
SIZES = {1: 300, 2: 700, 3: 400, 4: 200, 5: 40}
PASS_S = 3600.0
SEEDS = int(os.environ.get("BK_SCRUB_SEEDS", "1"))  # of the tests that draw what they damage
WAYS = (*LOSSES, PROCESS_DIES)
BOTH_INDEXES_BUT = {
    "test_a_directory_that_cannot_be_listed_holds_up_nothing_else",
    "test_a_crash_takes_neither_progress_nor_findings",
    "test_damage_of_the_index_is_rebuilt_and_of_the_journal_made_superfluous",
}


def body_of(ledger_id: int, entry_id: int, version: int = 0) -> bytes:
    kind, size = KINDS[ledger_id], SIZES[ledger_id]
    header = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, size * (entry_id + 1))
    payload = Random(f"{ledger_id}/{entry_id}/{version}").randbytes(size)
    return header + digest(kind, b"m" * 20, header, payload) + payload


def records_of(*ledger_ids: int) -> FakeRecords:
    records = FakeRecords.of(*(ledger_ids or KINDS))
    for ledger_id, each in records.ledgers.items():
        each.metadata = each.metadata.__class__(
            **{
                **{name: getattr(each.metadata, name) for name in each.metadata.__struct_fields__},
                "digest_type": KINDS.get(ledger_id, DigestType.CRC32C),
            }
        )
    return records


@pytest.fixture
def small(machine: Any) -> Callable[..., Any]:
    """A machine with small entry logs, whose collection only runs when it is asked to."""

    def make(seed: object = 0, **settings: object) -> Any:
        chosen: dict[str, object] = {
            "entry_log_size_max": 1 << 14,
            "gc_interval_ms": 1 << 40,
            "gc_quarantine_ms": 0,
            "minor_compaction_interval_ms": 0,
            "major_compaction_interval_ms": 0,
            "scrub_period_ms": 86_400_000,
        }
        return machine(seed, **(chosen | settings))

    return make


async def fill(store: LedgerStore, promises: Any, rounds: int = 12, first: int = 0, but: int = 0) -> None:
    """Logs that all ledgers share, four entries of each at a time; the last one is still being written."""
    for number in range(first, first + rounds):
        ids = range(4 * number, 4 * number + 4)
        await asyncio.gather(
            *(
                promises.add(store, each, {entry: body_of(each, entry) for entry in ids})
                for each in KINDS
                if each != but
            )
        )
        await store.checkpoint()


async def scrub(store: LedgerStore) -> dict[str, Any]:
    """One pass, from its beginning; its outcome."""
    assert store.scrubber is not None
    async with asyncio.timeout(PASS_S):
        await (await store.scrubber.start_pass())
    return store.scrubber.status()


def begin(store: LedgerStore, records: FakeRecords) -> None:
    store.collect(records, BOOKIE)
    store.scrub(records)


def logs_of(made: Any) -> dict[str, bytes]:
    return {path: data for path, data in made.disk.files().items() if path.endswith(".log")}


def records_in(data: bytes) -> list[tuple[int, int, int, int]]:
    """(start, end, ledger, entry) of the records of a log."""
    found = []
    for item in scan(lambda size, offset: data[offset : offset + size], len(data)):
        if isinstance(item, Batch):
            starts = item.records.starts
            found += [
                (item.offset + starts[index], item.offset + starts[index + 1], *ids)
                for index, ids in enumerate(item.ids)
            ]
    return found


def damaged(status: dict[str, Any]) -> set[tuple[int, int]]:
    """(ledger, entry) of what was found."""
    return {
        (each["ledger"], entry)
        for each in status["damage"]
        if each["ledger"] is not None
        for entry in range(each["first"], each["last"] + 1)
    }


def test_a_healthy_bookie_is_verified_and_nobody_blamed(small: Any) -> None:
    made, records = small(), records_of()

    async def script(store: LedgerStore, promises: Any) -> None:
        begin(store, records)
        await fill(store, promises)
        status = await scrub(store)
        assert status["damage"] == []
        assert status["damaged_records_of_no_use"] == status["parts_failed"] == status["index_files_damaged"] == 0
        open_count = 2 * 4 * 12
        assert status["not_checkable_entries"] == open_count
        expected = {True: 0, False: 0}
        for ledger_id, kind in KINDS.items():
            size = sum(4 + len(body_of(ledger_id, entry)) for entry in range(48))
            expected[kind in (DigestType.CRC32C, DigestType.CRC32)] += size
        assert (status["verified_bytes"], status["not_checkable_bytes"]) == (expected[True], expected[False])
        assert status["left_bytes"] == 0
        assert not status["is_running"]
        assert store.stats()["scrub_verified_size"] == expected[True]

    assert made.live(script)
    made.check()


def flip(made: Any, random: Random, count: int) -> dict[tuple[int, int], list[int]]:
    """Flip so many bits of records; by (ledger, entry) where in the record."""
    places = [
        (path, start + at, ledger_id, entry_id, at)
        for path, data in logs_of(made).items()
        for start, end, ledger_id, entry_id in records_in(data)
        for at in range(end - start)
    ]
    hit: dict[tuple[int, int], list[int]] = {}
    for path, offset, ledger_id, entry_id, at in random.sample(places, count):
        made.disk.flip_bit(path, offset, random.randrange(8))
        hit.setdefault((ledger_id, entry_id), []).append(at)
    return hit


def must_be_found(hit: dict[tuple[int, int], list[int]]) -> set[tuple[int, int]]:
    """Whatever is in a digest that needs no key, and of others lengths and ids."""
    return {
        (ledger_id, entry_id)
        for (ledger_id, entry_id), places in hit.items()
        if KINDS[ledger_id] in (DigestType.CRC32C, DigestType.CRC32) or min(places) < 20
    }


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_thousand_flipped_bits_are_all_found(small: Any, seed: int) -> None:
    made, records = small(seed, entry_log_size_max=1 << 17), records_of()

    async def script(store: LedgerStore, promises: Any) -> None:
        begin(store, records)
        await fill(store, promises, 300)
        hit = flip(made, Random(f"{seed}/bits"), 1000)
        expected = must_be_found(hit)
        assert 500 < len(expected) < len(hit) < 1000
        status = await scrub(store)
        assert status["parts_failed"] == 0
        assert damaged(status) == expected
        assert status["damaged_entries"] == len(expected)
        again = await scrub(store)
        assert damaged(again) == expected

    assert made.live(script, stops=False)


def path_of(made: Any, entry: tuple[int, int]) -> tuple[str, int]:
    """(log, offset) of the last record of an entry."""
    found = [
        (path, start)
        for path, data in logs_of(made).items()
        for start, _, *ids in records_in(data)
        if tuple(ids) == entry
    ]
    return found[-1]


def spoil(made: Any, entry: tuple[int, int], at: int = 100) -> str:
    """Flip a bit of an entry's record; the log's name."""
    path, start = path_of(made, entry)
    made.disk.flip_bit(path, start + at)
    return posixpath.basename(path).removesuffix(".log")


async def compact(store: LedgerStore) -> None:
    assert store.collector is not None
    await store.collector.compact(Compaction.MAJOR, is_awaited=True)


@pytest.mark.parametrize("kind", ["transactional", "plain"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_nobody_else_is_blamed_while_adds_deletion_and_compaction_run(small: Any, seed: int, kind: str) -> None:
    rates: dict[str, object] = {"scrub_rate_size": 1 << 20, "compaction_rate_size": 1 << 19}
    made = small((seed, kind), compaction=kind, major_compaction_threshold=100, **rates)
    records = records_of()
    random = Random(f"{seed}/{kind}")

    async def script(store: LedgerStore, promises: Any) -> None:
        begin(store, records)
        await fill(store, promises, 60)
        records.delete(5)
        assert store.collector is not None
        chosen = {(random.choice((1, 2)), random.randrange(240)) for _ in range(6)}
        for each in chosen:
            spoil(made, each, random.randrange(20, 300))
        scrubbing = asyncio.ensure_future(scrub(store))
        number = 60
        while not scrubbing.done() or number < 70:
            await fill(store, promises, 1, number, but=5)
            # Some entries are written again: what they leave behind is of no use to anybody.
            again = random.randrange(240)
            if (1, again) not in chosen:
                await promises.add(store, 1, {again: body_of(1, again, 1)}, is_recovery=True)
            if number % 3 == 0:
                await store.collector.collect(is_forced=False, is_awaited=True)
                await compact(store)
            number += 1
        assert damaged(await scrubbing) == chosen
        await store.checkpoint()
        status = await scrub(store)
        assert damaged(status) == chosen
        assert status["parts_failed"] == 0
        for ledger_id, entry_id in list(promises.acknowledged):
            if ledger_id == 5 or (ledger_id, entry_id) in chosen:
                del promises.acknowledged[ledger_id, entry_id]
        assert int(str(store.collector.space()["logs_compacted"])) > 0

    assert made.live(script, stops=False)


def test_what_nothing_points_to_is_counted_apart(small: Any) -> None:
    made, records = small(), records_of()

    async def script(store: LedgerStore, promises: Any) -> None:
        begin(store, records)
        await fill(store, promises)
        for entry in (3, 4):
            spoil(made, (1, entry))
            await promises.add(store, 1, {entry: body_of(1, entry, 1)}, is_recovery=True)
        await store.checkpoint()
        status = await scrub(store)
        assert (status["damage"], status["damaged_records_of_no_use"]) == ([], 2)

    assert made.live(script)
    made.check()


def test_entries_beside_those_of_deleted_ledgers_are_not_blamed(small: Any) -> None:
    """Where nobody can check a length, what stands behind it may be of no use to anybody, yet is a record."""
    made, records = small(), records_of()

    async def script(store: LedgerStore, promises: Any) -> None:
        begin(store, records)
        await fill(store, promises)
        records.delete(4, 5)
        assert store.collector is not None
        await store.collector.collect(is_forced=False, is_awaited=True)
        spoil(made, (1, 3))
        assert damaged(await scrub(store)) == {(1, 3)}

    assert made.live(script, stops=False)


def test_a_finding_stands_until_the_entry_is_written_again_or_gone(small: Any) -> None:
    made, records = small(), records_of()

    async def script(store: LedgerStore, promises: Any) -> None:
        begin(store, records)
        await fill(store, promises)
        log = spoil(made, (1, 3))
        spoil(made, (2, 5))
        assert damaged(await scrub(store)) == {(1, 3), (2, 5)}
        assert store.collector is not None
        held = store.collector.space()["logs_set_aside"]
        assert isinstance(held, dict)
        assert "found by the scrub" in held[log]
        records.delete(3, 4, 5)
        await store.collector.collect(is_forced=False, is_awaited=True)
        await compact(store)
        assert any(path.endswith(f"/{log}.log") for path in logs_of(made))  # neither deleted nor compacted
        await promises.add(store, 1, {3: body_of(1, 3, 1)}, is_recovery=True)
        await store.checkpoint()
        assert damaged(await scrub(store)) == {(2, 5)}
        records.delete(2)
        await store.collector.collect(is_forced=False, is_awaited=True)
        await store.collector.collect(is_forced=False, is_awaited=True)
        status = await scrub(store)
        assert status["damage"] == []
        assert store.collector.space()["logs_set_aside"] == {}
        await compact(store)
        assert not any(path.endswith(f"/{log}.log") for path in logs_of(made))
        for key in [key for key in promises.acknowledged if key[0] != 1]:
            del promises.acknowledged[key], promises.submitted[key]
        await promises.check(store)

    assert made.live(script, stops=False)


def test_damage_of_the_index_is_rebuilt_and_of_the_journal_made_superfluous(small: Any) -> None:
    made, records = small(), records_of()

    async def script(store: LedgerStore, promises: Any) -> None:
        begin(store, records)
        await fill(store, promises)
        files = made.disk.files()
        first, second = (next(path for path in files if path.endswith(f"/{each}.idx")) for each in (1, 2))
        made.disk.flip_bit(first, 1024 + 64 * 3 + 7)
        made.disk.flip_bit(second, 20)  # in the key
        made.disk.flip_bit("/ledgers0/current/index.catalog", 40)
        await promises.add(store, 1, {48: body_of(1, 48)})
        journal = max(path for path in made.disk.files() if path.endswith(".txn"))
        data = made.disk.files()[journal]
        made.disk.flip_bit(journal, data.rindex(body_of(1, 48)) + 50)
        status = await scrub(store)
        assert (status["index_files_damaged"], status["journals_damaged"], status["damage"]) == (3, 1, [])
        await store._open().rebuilder.wait_idle()
        await store.checkpoint()
        status = await scrub(store)
        assert (status["index_files_damaged"], status["journals_damaged"]) == (0, 0)
        await promises.check(store)

    assert made.live(script, stops=False)
    made.crash(PROCESS_DIES)
    made.check()


@pytest.mark.parametrize("how", ["gone", "cut off", "cut off at a record", "zeroed", "header", "map", "unreadable"])
def test_a_damaged_log_costs_what_lives_in_it(small: Any, how: str) -> None:
    made, records = small(how), records_of()

    async def script(store: LedgerStore, promises: Any) -> None:
        begin(store, records)
        await fill(store, promises)
        path = path_of(made, (1, 3))[0]
        data = logs_of(made)[path]
        places = records_in(data)
        middle = places[len(places) // 2]
        lost = {place[2:] for place in places}
        if how == "gone":
            made.disk.unlink(path)
        elif how == "zeroed":
            spare = made.disk.open(path, "r+")
            spare.pwrite(bytes(middle[0] - places[3][0]), places[3][0])
            spare.close()
            lost = {place[2:] for place in places[3:] if place[0] < middle[0]}
        elif how.startswith("cut off"):
            spare = made.disk.open(path, "r+")
            spare.truncate(middle[0] + (7 if how == "cut off" else 0))
            spare.close()
            lost = {place[2:] for place in places if place[0] >= middle[0]}
        elif how == "unreadable":
            made.disk.fail("pread", path, lambda: OSError(5, "Input/output error"), count=1000)
        else:
            made.disk.flip_bit(path, 2 if how == "header" else places[-1][1] + 30)
            lost = set()
        status = await scrub(store)
        assert damaged(status) == lost
        assert bool(status["damage"]) is True
        for ledger_id, entry_id in lost:
            with pytest.raises(ReadFailed):
                await store.read(ledger_id, entry_id)
        if how == "unreadable":
            made.disk.faults.clear()
            assert damaged(await scrub(store)) == set()

    assert made.live(script, stops=False)


def test_without_metadata_only_digests_that_can_be_guessed_are_checked(small: Any) -> None:
    made, records = small(), records_of()
    records.unreadable = {1, 2, 3, 4, 5}

    async def script(store: LedgerStore, promises: Any) -> None:
        begin(store, records)
        await fill(store, promises)
        spoil(made, (1, 3))
        status = await scrub(store)
        assert status["damage"] == []
        assert int(status["metadata_unavailable"]) > 0
        assert int(status["not_checkable_entries"]) > 2 * 48
        records.unreadable = set()
        await asyncio.sleep(120)
        status = await scrub(store)
        assert damaged(status) == {(1, 3)}
        assert status["not_checkable_entries"] == 2 * 48

    assert made.live(script, stops=False)


def test_the_budget_is_kept_and_suspending_lasts_over_a_restart(small: Any) -> None:
    rate = 64 << 10
    made, records = small(scrub_rate_size=rate), records_of()

    async def script(store: LedgerStore, promises: Any) -> None:
        begin(store, records)
        await fill(store, promises, 40)
        assert store.scrubber is not None
        start = asyncio.get_running_loop().time()
        status = await scrub(store)
        seconds = asyncio.get_running_loop().time() - start
        assert status["read_bytes"] >= 40 * 4 * sum(SIZES.values())
        assert status["read_bytes"] / rate * 0.9 < seconds < status["read_bytes"] / rate * 1.1 + 5
        await store.scrubber.hold_up(is_suspended=True)
        passing = await store.scrubber.start_pass()
        await asyncio.sleep(1000)
        assert not passing.done()
        assert store.scrubber.status()["read_bytes"] == 0

    async def later(store: LedgerStore, promises: Any) -> None:
        begin(store, records)
        assert store.scrubber is not None
        await asyncio.sleep(1000)
        status = store.scrubber.status()
        assert (status["is_suspended"], status["read_bytes"]) == (True, 0)
        await store.scrubber.hold_up(is_suspended=False)
        await asyncio.sleep(1000)
        assert not store.scrubber.status()["is_running"]

    assert made.live(script)
    assert made.live(later)


def test_a_congested_bookie_is_left_alone(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, records, congested = small(), records_of(), [True]
    monkeypatch.setattr(LedgerStore, "is_congested", property(lambda _: congested[0]))

    async def script(store: LedgerStore, promises: Any) -> None:
        begin(store, records)
        await fill(store, promises)
        assert store.scrubber is not None
        passing = await store.scrubber.start_pass()
        await asyncio.sleep(1000)
        assert store.scrubber.status()["read_bytes"] == 0
        congested[0] = False
        store._changed()
        await asyncio.sleep(10)
        assert passing.done()

    assert made.live(script)


def test_everything_is_verified_once_per_period(small: Any) -> None:
    made, records = small(scrub_period_ms=3_600_000), records_of()

    async def script(store: LedgerStore, promises: Any) -> None:
        begin(store, records)
        assert store.scrubber is not None
        numbers = []
        for hour in range(6):
            await fill(store, promises, 2, 2 * hour)
            await asyncio.sleep(3600)
            gauges = store.scrubber.gauges()
            assert gauges["scrub_oldest_unverified_s"] < 2 * 3600
            numbers.append(gauges["scrub_pass"])
        assert numbers == [1, 2, 3, 4, 5, 6]

    assert made.live(script)


def test_a_directory_that_cannot_be_listed_holds_up_nothing_else(small: Any) -> None:
    made, records, everything = small(ledgers=2), records_of(), list[int]()

    async def script(store: LedgerStore, promises: Any) -> None:
        begin(store, records)
        await fill(store, promises, 24)
        everything.append((await scrub(store))["verified_bytes"])
        made.disk.fail("list", "/ledgers1/current", lambda: OSError(5, "Input/output error"), count=1000)
        status = await scrub(store)
        assert 0 < int(status["verified_bytes"]) < everything[0]
        assert int(status["left_bytes"]) == 0
        assert damaged(status) == set()

    async def later(store: LedgerStore, promises: Any) -> None:
        begin(store, records)
        status = await scrub(store)
        assert int(status["verified_bytes"]) >= everything[0]
        assert damaged(status) == set()

    assert made.live(script, stops=False)
    made.disk.faults.clear()
    made.crash(PROCESS_DIES)
    assert made.live(later)


def kept(made: Any) -> scrub_format.Progress:
    """What the durable copies say; of two directories."""
    copies = [
        (path, data) for path, data in made.disk.files(is_durable=True).items() if path.endswith("scrub.progress")
    ]
    _, progress, damaged_copies = scrub_format.newest(copies)
    assert not damaged_copies
    return progress or scrub_format.Progress()


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_crash_takes_neither_progress_nor_findings(small: Any, way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub_logs, "SETTLE_SIZE", 4 << 10)
    monkeypatch.setattr(record_scan, "CHUNK_SIZE", 2 << 10)
    monkeypatch.setattr(log_check, "CHUNK_SIZE", 2 << 10)
    records = records_of()
    chosen = {(1, 3), (2, 20), (1, 30), (2, 41)}
    made = small(str(way), ledgers=2)
    where: dict[tuple[int, int], tuple[int, int]] = {}

    async def before(store: LedgerStore, promises: Any) -> None:
        await fill(store, promises)

    async def scrubbing(store: LedgerStore, promises: Any) -> None:
        begin(store, records)
        await asyncio.sleep(200)

    assert made.live(before)
    for each in chosen:
        path, start = path_of(made, each)
        log_id = parse_file_name(posixpath.basename(path))
        assert log_id is not None
        where[each] = log_id, start
        spoil(made, each)
    crash_at = Random(str(way)).randrange(8)
    last: scrub_format.Progress = kept(made)
    crashes = 0
    while not made.live(scrubbing, crash_at=40 + crash_at, stops=False):
        crashes += 1
        made.crash(way)
        now = kept(made)
        assert now.number in (0, 1)
        found = {(each.ledger_id, entry) for each in now.findings for entry in range(each.first, each.last + 1)}
        for log_id, log in now.logs.items():
            earlier = last.logs.get(log_id)
            assert earlier is None or (log.is_done, log.position) >= (earlier.is_done, earlier.position)
            for entry, (of_log, start) in where.items():
                if of_log == log_id and (log.is_done or start < log.position):
                    assert entry in found, (log_id, log, crashes, now.began_ms)
        assert {each[:5] for each in map(astuple, last.findings)} <= {each[:5] for each in map(astuple, now.findings)}
        last = now
        crash_at += 1 if crash_at < 60 else 37
    assert crashes > 5
    final = kept(made)
    assert final.number == 1
    assert final.ended_ms
    assert {(each.ledger_id, each.first) for each in final.findings} == chosen


def test_a_cluster_that_dies_and_collects_all_the_time_is_scrubbed_and_nothing_blamed() -> None:
    result = simulate(3, "collecting")
    assert not result.violations
    passes = [line for line in result.lines if "scrub.ended" in line]
    assert any("verified=0" not in line for line in passes)
    assert not [line for line in result.lines if "scrub." in line and ("_damaged " in line or "part_failed" in line)]
