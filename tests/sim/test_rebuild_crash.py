"""Index files are built again from the entry logs: a crash at each disk call of that life; ledgers and logs that go.

The sweep takes every `BK_SWEEP_STEP`-th disk call, counted from another one each time; 1 is all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.fakes.records import BOOKIE, FakeRecords

from bookies.errors import DataUnknown, ReadFailed
from bookies.lab.sim.world.disk import LOSSES, NOTHING_SURVIVES, PROCESS_DIES
from bookies.storage.entry_log import entry_log_format
from bookies.storage.gc.collection_policy import Compaction
from bookies.storage.index import catalog_format
from bookies.storage.index.catalog_format import Synced
from bookies.storage.journal import journal_trailer, log_mark_format
from bookies.storage.records import EndKind
from bookies.storage.records.record_scan import ScanEnd
from bookies.storage.store import LedgerStore

Body = Callable[..., bytes]
WAYS = (*LOSSES, PROCESS_DIES)
STEP = int(os.environ.get("BK_SWEEP_STEP", "17"))
ALL = range(1, 6)
BOTH_INDEXES_BUT = {
    "test_a_fence_that_damage_has_set_is_answered_only_when_it_is_durable",
    "test_a_slot_that_names_no_log_there_ever_was_is_no_entry",
    "test_an_emptied_log_of_ours_denies_nothing",  # the rest of the index is the witness
}


def damaged(data: bytes, how: str) -> bytes:
    if how == "header":
        return b"\xff" * 40 + data[40:]
    if how == "page":
        return data[:1030] + bytes([data[1030] ^ 0x10]) + data[1031:]
    return data[:1100]  # cut off


def break_index(made: Any, how: str) -> int:
    """Damage the index files of all ledgers but the last; how many. Or remove the database of all locations."""
    if made.config.ledger_index == "rocksdb":
        made.disk.unlink("/ledgers0/current/locations")
        made.disk.sync_directory("/ledgers0/current")
        return 100
    paths = [path for path in made.disk.files() if path.endswith(".idx")][:-1]
    for path in paths:
        if how == "gone":
            made.disk.put(path, b"")
            made.disk.unlink(path)
            made.disk.sync_directory(path.rsplit("/", 1)[0])
        else:
            made.disk.put(path, damaged(made.disk.read_bytes(path), how))
    return len(paths)


@pytest.mark.parametrize("ledgers", [1, 2])
@pytest.mark.parametrize("how", ["gone", "header", "page", "cut off"])
def test_a_crash_while_index_files_are_built_again(machine: Any, body: Body, how: str, ledgers: int) -> None:
    async def before(store: LedgerStore, promises: Any) -> None:
        for first in (0, 40):
            for ledger_id in ALL:
                entries = {entry: body(ledger_id, entry, size=90) for entry in range(first, first + 40)}
                await promises.add(store, ledger_id, entries)
            await store.checkpoint()
        await promises.fence(store, 2)
        await promises.write_lac(store, 3, 70)

    async def during(store: LedgerStore, promises: Any) -> None:
        adding = promises.add(store, 9, {entry: body(9, entry) for entry in range(20)})
        await asyncio.gather(store.repair(), store.checkpoint(), adding)
        await promises.fence(store, 4)
        await store.checkpoint()

    settled: list[bool] = []

    async def after(store: LedgerStore, promises: Any) -> None:
        """A crash may have torn the catalog too, and then nobody knows what else a damaged file had."""
        settled.append(not (await store.repair())["uncertain"])
        if settled[-1]:
            await promises.check(store)
            return
        for (ledger_id, entry_id), expected in promises.acknowledged.items():
            with contextlib.suppress(DataUnknown):
                assert await store.read(ledger_id, entry_id) == expected

    broken = machine("rebuild", ledgers=ledgers, entry_log_size_max=1 << 13)
    assert broken.live(before)
    assert break_index(broken, how) >= len(ALL) - 1
    fresh = broken.copies()
    first = fresh()
    begin = first.disk.call_count
    assert first.live(during)
    count = first.disk.call_count - begin
    for number, victim in fresh().victims(during, 1 + count % STEP, STEP):
        made = victim()
        made.crash(WAYS[number % len(WAYS)])
        try:
            if number % 3 == 0:  # and once more while it is done again
                made.live(during, crash_at=10 + number * 7 % 60)
                made.crash(WAYS[number // 3 % len(WAYS)])
            assert made.live(after)
            assert made.live(after)
            assert not made.failures
            assert not made.disk.open_files
        except BaseException as error:
            error.add_note(f"crash at disk call {number} of {count}")
            raise
    assert sum(settled) > 0.9 * len(settled)
    print(f"{count} disk calls")


@pytest.mark.parametrize("kind", ["transactional", "plain"])
@pytest.mark.parametrize("seed", range(0, 24, 4))
def test_ledgers_and_logs_go_while_index_files_are_built_again(machine: Any, body: Body, kind: str, seed: int) -> None:
    """Of those that stay nothing becomes uncertain, and the bookie goes on."""
    made = machine(
        f"gone {seed}", entry_log_size_max=1 << 12, gc_interval_ms=1 << 40, gc_quarantine_ms=0, compaction=kind
    )
    records = FakeRecords.of(*range(1, 13))

    async def before(store: LedgerStore, promises: Any) -> None:
        for some in (range(1, 7), range(7, 13)):  # in logs of their own
            for first in range(0, 40, 4):
                for ledger_id in some:
                    entries = {entry: body(ledger_id, entry) for entry in range(first, first + 4)}
                    await promises.add(store, ledger_id, entries)
                await store.checkpoint()

    async def during(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        records.delete(3, 7, 8, 10, 11)
        assert store.collector is not None
        for path in [path for path in made.disk.files() if path.endswith(".idx")][:6]:
            made.disk.unlink(path)

        async def later() -> None:
            assert store.collector is not None
            while not store.collector.space()["is_running"]:  # noqa: ASYNC110  (nothing tells)
                await asyncio.sleep(0.001)
            await asyncio.sleep(seed * 0.001)
            await store.repair()

        await asyncio.gather(store.collector.compact(Compaction.MAJOR, is_awaited=True), later())
        await store.collector.compact(Compaction.MAJOR, is_awaited=True)
        for kept in (promises.acknowledged, promises.submitted):
            for key in [key for key in kept if key[0] not in records.ledgers]:
                del kept[key]
        assert (await store.repair())["uncertain"] == 0
        await promises.check(store)

    assert made.live(before)
    assert made.live(during)
    assert not made.failures
    made.check()


@pytest.mark.parametrize("slot", [b"\x10" + bytes(7), b"\0\0\0\x09\0\0\x40\0", b"\0\0\0\0\0\0\x03\xf8"])
def test_a_slot_that_names_no_log_there_ever_was_is_no_entry(machine: Any, body: Body, slot: bytes) -> None:
    """Bits flipped in an empty slot, or a log nobody made: the ledger has to stay recoverable."""
    made = machine("phantom")

    async def before(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(20)})  # in pages of eight

    assert made.live(before)
    [path] = [path for path in made.disk.files() if path.endswith("/1.idx")]
    data = bytearray(made.disk.read_bytes(path)).ljust(1024 + 24 * 8, b"\0")
    data[1024 + 20 * 8 : 1024 + 21 * 8] = slot
    made.disk.put(path, bytes(data))

    async def after(store: LedgerStore, promises: Any) -> None:
        assert not (await store.repair())["uncertain"]
        await promises.check(store)

    assert made.live(after)
    made.check()


# -- logs that a power failure has torn ------------------------------------------------------------------------------
CATALOG = "/ledgers0/current/index.catalog"


def synced_of(made: Any) -> Synced:
    """How far the catalog says that the logs were synced."""
    synced = catalog_format.parse(made.disk.read_bytes(CATALOG), 64).synced
    assert synced is not None
    return synced


def with_torn_log(machine: Any, body: Body) -> tuple[Any, str, int]:
    """(machine, log, its synced end) after a power failure: what was flushed since the last checkpoint is torn.

    The index files of all ledgers but one are gone, too, and the journal has what was torn.
    """
    made = machine("torn", write_cache_size=1 << 13)

    async def before(store: LedgerStore, promises: Any) -> None:
        for ledger_id in ALL:
            await promises.add(store, ledger_id, {entry: body(ledger_id, entry, size=90) for entry in range(20)})
        await store.checkpoint()
        for first in range(20, 60, 10):
            for ledger_id in (1, 3, 5):
                entries = {entry: body(ledger_id, entry, size=90) for entry in range(first, first + 10)}
                await promises.add(store, ledger_id, entries)
        assert store.stats()["flushes"] > 1

    assert made.live(before, stops=False)
    made.crash(PROCESS_DIES)
    synced = synced_of(made)
    path = f"/ledgers0/current/{synced.log_id:x}.log"
    data = made.disk.read_bytes(path)
    assert len(data) > synced.end + 3000
    made.disk.put(path, data[: synced.end + 600] + bytes(1024) + data[synced.end + 1624 :])
    assert break_index(made, "gone") >= 3
    return made, path, synced.end


async def repaired(store: LedgerStore, promises: Any) -> None:
    assert (await store.repair())["uncertain"] == 0
    await promises.check(store)


def test_what_a_power_failure_tears_makes_nothing_uncertain(machine: Any, body: Body) -> None:
    made, path, _ = with_torn_log(machine, body)
    data = made.disk.read_bytes(path)
    *_, end = entry_log_format.scan(lambda size, at: data[at : at + size], len(data))
    assert isinstance(end, ScanEnd)
    assert end.kind is EndKind.CORRUPT
    assert made.live(repaired)
    assert made.live(repaired)  # from index files that are whole
    made.check()


@pytest.mark.parametrize("crash_at", [45, 60, 90, 120, None])
def test_that_is_not_forgotten_by_starts_that_end_early(machine: Any, body: Body, crash_at: int | None) -> None:
    """The life after the failure has synced logs of its own, and what it knows of the torn one has to stay."""
    made, _, _ = with_torn_log(machine, body)

    async def nothing(store: LedgerStore, promises: Any) -> None:
        """Only start."""

    made.live(nothing, crash_at=crash_at, stops=False)
    made.crash(PROCESS_DIES)
    made.live(nothing, crash_at=30, stops=False)
    made.crash(PROCESS_DIES)
    break_index(made, "gone")
    assert made.live(repaired)
    made.check()


def uncertain_after(made: Any) -> int:
    """How many ledgers, when nothing is denied and nothing is wrong."""
    found: list[int] = []

    async def script(store: LedgerStore, promises: Any) -> None:
        found.append((await store.repair())["uncertain"])
        for (ledger_id, entry_id), expected in promises.acknowledged.items():
            with contextlib.suppress(DataUnknown, ReadFailed):
                assert (await store.read(ledger_id, entry_id))[:16] == expected[
                    :16
                ]  # the rest is the reader's to check

    assert made.live(script)
    return found[0]


def test_damage_of_what_was_synced_is_damage(machine: Any, body: Body) -> None:
    made, path, end = with_torn_log(machine, body)
    data = made.disk.read_bytes(path)
    made.disk.put(path, data[: end - 700] + bytes(600) + data[end - 100 :])
    assert uncertain_after(made) > 0
    made, path, end = with_torn_log(machine, body)
    made.disk.put(path, made.disk.read_bytes(path)[: end - 10])
    assert uncertain_after(made) > 0


def test_nothing_is_believed_after_another_program(machine: Any, body: Body) -> None:
    """Its mark is greater than any that was announced: perhaps it has compacted into the log, and sources are gone."""
    made, _, _ = with_torn_log(machine, body)
    mark = log_mark_format.parse(made.disk.read_bytes("/ledgers0/current/lastMark"))
    assert mark is not None
    made.disk.put("/ledgers0/current/lastMark", log_mark_format.pack(mark._replace(offset=mark.offset + 512)))
    assert uncertain_after(made) > 0


async def fill(body: Body, store: LedgerStore, promises: Any) -> None:
    """Add twenty more entries to every ledger."""
    for ledger_id in ALL:
        held = sum(ledger == ledger_id for ledger, _ in promises.acknowledged)
        entries = {entry: body(ledger_id, entry, size=90) for entry in range(held, held + 20)}
        await promises.add(store, ledger_id, entries)


@pytest.mark.parametrize("has_catalog", [True, False])
def test_an_empty_log_of_apache_s_bookie_makes_nothing_uncertain(machine: Any, body: Body, has_catalog: bool) -> None:
    """Its bookies leave logs without a header. They stay harmless after our own logs have passed their ids."""
    made = machine("empty")

    assert made.live(partial(fill, body))
    synced = synced_of(made)
    if has_catalog:
        mark = log_mark_format.parse(made.disk.read_bytes("/ledgers0/current/lastMark"))
        assert mark is not None
        made.disk.put("/ledgers0/current/lastMark", log_mark_format.pack(mark._replace(offset=mark.offset + 512)))
    else:
        made.disk.unlink(CATALOG)
    for path in [path for path in made.disk.files() if path.endswith(".txn")]:
        made.disk.put(path, made.disk.read_bytes(path).replace(journal_trailer.MAGIC, b"none"))
    made.disk.put(f"/ledgers0/current/{synced.greatest_id + 1:x}.log", b"")
    for _ in range(2):
        assert made.live(partial(fill, body))
    break_index(made, "gone")
    assert made.live(repaired)
    synced = synced_of(made)
    made.disk.put(f"/ledgers0/current/{synced.greatest_id:x}.log", b"")
    break_index(made, "gone")
    assert uncertain_after(made) > 0


@pytest.mark.parametrize(
    ("catalog", "index"),
    [
        *((catalog, index) for catalog in ("gone", "cut", "torn") for index in ("page", "whole")),
        ("cut", "gone"),  # with another catalog no witness of the log's entries is left
    ],
)
def test_an_emptied_log_of_ours_denies_nothing(machine: Any, body: Body, catalog: str, index: str) -> None:
    """Also if the catalog has lost its end: the journal has groups with trailers, so Apache's bookie has not run."""
    made = machine("emptied")

    assert made.live(partial(fill, body))
    before = made.disk.read_bytes(CATALOG)
    assert made.live(partial(fill, body))
    synced = synced_of(made)
    made.disk.put(f"/ledgers0/current/{synced.greatest_id:x}.log", b"")
    if catalog == "gone":
        made.disk.unlink(CATALOG)
    else:
        made.disk.put(CATALOG, before if catalog == "cut" else made.disk.read_bytes(CATALOG)[:-3])
    if index != "whole":
        break_index(made, index)
    uncertain = uncertain_after(made)  # which reads all entries
    assert uncertain > 0 or index != "gone"


def test_where_the_journal_has_a_hole_all_of_the_logs_counts(machine: Any, body: Body) -> None:
    """What was in the hole may be in the log."""
    made, path, end = with_torn_log(machine, body)
    whole = made.disk.read_bytes(path)
    mark = log_mark_format.parse(made.disk.read_bytes("/ledgers0/current/lastMark"))
    assert mark is not None
    made.disk.flip_bit(f"/journal0/current/{mark.journal_id + 1:x}.txn", 512 + 100)
    assert uncertain_after(made) == len(ALL)
    assert catalog_format.parse(made.disk.read_bytes(CATALOG), 64).torn == {}
    assert whole[:end] == made.disk.read_bytes(path)[:end]


def test_a_fence_that_damage_has_set_is_answered_only_when_it_is_durable(machine: Any, body: Body) -> None:
    """The index file is lost, and its logs cannot be read for a moment: so the ledger counts as fenced. A recovery
    fences it, and the bookie dies before a checkpoint. The next life reads the logs, and finds nothing of a fence."""
    made = machine("lost index")

    async def put(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 9, {number: body(9, number) for number in range(3)})

    async def fence(store: LedgerStore, promises: Any) -> None:
        await store.repair()
        header = await store.header(9)
        assert header.is_fenced
        assert header.is_in_limbo
        await promises.fence(store, 9)

    made.live(put)
    made.disk.unlink("/ledgers0/current/0/9/9.idx")
    made.disk.fail("pread", ".log", lambda: OSError(5, "Input/output error"))
    made.live(fence, stops=False)
    made.crash(NOTHING_SURVIVES)
    made.check()
