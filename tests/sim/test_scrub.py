"""The scrub on a simulated disk: what it finds, whom it leaves alone, and what a crash cannot take from it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.fakes.records import BOOKIE, FakeRecords

from bookies.kernels import digest
from bookies.model import DigestType
from bookies.sim.disk import LOSSES, PROCESS_DIES
from bookies.storage.entry_log_format import scan
from bookies.storage.ledger_store import LedgerStore
from bookies.storage.record_scan import Batch

KINDS = {1: DigestType.CRC32C, 2: DigestType.CRC32, 3: DigestType.HMAC, 4: DigestType.DUMMY, 5: DigestType.CRC32C}
SIZES = {1: 300, 2: 700, 3: 400, 4: 200, 5: 40}
PASS_S = 3600.0
WAYS = (*LOSSES, PROCESS_DIES)


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
                **{name: getattr(each.metadata, name) for name in each.metadata.__dataclass_fields__},
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


async def fill(store: LedgerStore, promises: Any, rounds: int = 12, first: int = 0) -> None:
    """Logs that all ledgers share, four entries of each at a time; the last one is still being written."""
    for number in range(first, first + rounds):
        ids = range(4 * number, 4 * number + 4)
        await asyncio.gather(
            *(promises.add(store, each, {entry: body_of(each, entry) for entry in ids}) for each in KINDS)
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


@pytest.mark.parametrize("seed", range(3))
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
