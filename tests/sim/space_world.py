"""Collection and compaction on a simulated disk, and a crash at one of their disk calls after which all has to hold."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.fakes.records import BOOKIE, FakeRecords, record

from bookies.errors import DataUnknown, LedgerUnknownToBookie
from bookies.lab.sim.world.disk import LOSSES, PROCESS_DIES
from bookies.storage.gc.collection_policy import Compaction
from bookies.storage.sealing.sealed_format import OVERHEAD
from bookies.storage.store import LedgerStore

Body = Callable[..., bytes]
Script = Callable[[LedgerStore, Any, FakeRecords], Awaitable[None]]
WAYS = (*LOSSES, PROCESS_DIES)
ALL = range(1, 7)
GONE = (1, 2, 3, 4)


def small_machine(machine: Callable[..., Any], seed: object = 0, **settings: object) -> Any:
    """A machine with small entry logs, whose collection only runs when it is asked to."""
    chosen: dict[str, object] = {
        "entry_log_size_max": 1 << 12,
        "gc_interval_ms": 1 << 40,
        "gc_quarantine_ms": 0,
        "minor_compaction_interval_ms": 0,
        "major_compaction_interval_ms": 0,
    }
    return machine(seed, **(chosen | settings))


async def fill(store: LedgerStore, promises: Any, body: Body, rounds: int = 3, size: int = 500) -> None:
    """Logs that all ledgers share, each with two entries of everyone."""
    for number in range(rounds):
        ids = (2 * number, 2 * number + 1)
        await asyncio.gather(
            *(promises.add(store, each, {entry: body(each, entry, size=size) for entry in ids}) for each in ALL)
        )
        await store.checkpoint()


async def collect(store: LedgerStore) -> None:
    assert store.collector is not None
    await store.collector.collect(is_forced=False, is_awaited=True)


async def compact(store: LedgerStore, kind: Compaction = Compaction.MAJOR) -> None:
    assert store.collector is not None
    await store.collector.compact(kind, is_awaited=True)


def logs_of(made: Any) -> dict[str, int]:
    return {posixpath.basename(path): len(data) for path, data in made.disk.files().items() if ".log" in path}


def forget(promises: Any, *ledger_ids: int) -> None:
    """Nothing is promised of deleted ledgers any more."""
    for kept in (promises.acknowledged, promises.submitted):
        for key in [key for key in kept if key[0] in ledger_ids]:
            del kept[key]
    for ledger_id in ledger_ids:
        promises.fences.pop(ledger_id, None)


# -- what runs until the crash ---------------------------------------------------------------------------------------
async def deletion_script(store: LedgerStore, promises: Any, records: FakeRecords) -> None:
    """Ledgers go through quarantine and away, logs become empty."""
    store.collect(records, BOOKIE)
    records.delete(1, 2)
    await collect(store)
    await promises.fence(store, 5)
    records.ledgers.clear()
    records.ledgers[5] = record(5)
    await collect(store)


def compaction_script(body: Body) -> Script:
    """A compaction of all logs, with a fence, some entries, and a checkpoint."""

    async def compact_all(store: LedgerStore, promises: Any, records: FakeRecords) -> None:
        store.collect(records, BOOKIE)
        records.delete(*GONE)
        compacting = asyncio.ensure_future(compact(store))
        await promises.fence(store, 6)
        await promises.add(store, 5, {entry: body(5, entry, size=700) for entry in range(20, 24)})
        await compacting
        await store.checkpoint()

    return compact_all


# -- the crash -------------------------------------------------------------------------------------------------------
class SpaceSweep:
    """Crashes of a life with `script`, each on a disk of its own. `make`: a machine for a seed and settings."""

    def __init__(self, make: Callable[..., Any], body: Body, script: Script, **settings: object) -> None:
        self._script = script
        made = make("sweep", **settings)
        assert made.live(lambda store, promises: fill(store, promises, body), stops=False)
        made.crash(PROCESS_DIES)
        self._copy = made.copies()

    def count_calls(self) -> int:
        """Disk calls of the life when nothing happens to it."""
        made, records = self._fresh()
        before: int = made.disk.call_count
        assert made.live(lambda store, promises: self._script(store, promises, records))
        return int(made.disk.call_count) - before

    def crash(self, number: int) -> bool:
        """Crash at this disk call; then nothing is lost, nothing is leaked. Whether the life was over before."""
        made, records = self._fresh()
        is_over = made.live(lambda store, promises: self._script(store, promises, records), crash_at=number)
        made.crash(WAYS[number % len(WAYS)])
        if number % 3 == 0:  # and once more while it takes the compaction further
            made.live(lambda store, promises: reclaim(store, promises, records), crash_at=20 + number * 7 % 90)
            made.crash(WAYS[number // 3 % len(WAYS)])
        assert made.live(lambda store, promises: check_entries(store, promises, records))
        assert made.live(lambda store, promises: reclaim(store, promises, records))
        assert made.live(lambda store, promises: check_reclaimed(store, promises, records, made))
        assert not made.failures, made.failures
        assert not made.disk.open_files
        return bool(is_over)

    def _fresh(self) -> tuple[Any, FakeRecords]:
        return self._copy(), FakeRecords.of(*ALL)


async def check_entries(store: LedgerStore, promises: Any, records: FakeRecords) -> None:
    """Ledgers that exist have everything; the others have what was written, or are gone."""
    for (ledger_id, entry_id), expected in promises.acknowledged.items():
        try:
            found = await store.read(ledger_id, entry_id)
            submitted = promises.submitted[ledger_id, entry_id]
            # What was sent later may have been stored although the answer was lost.
            assert found in submitted[submitted.index(expected) :], f"ledger {ledger_id} entry {entry_id} is older"
        except (LedgerUnknownToBookie, DataUnknown):  # A crash may have interrupted its deletion.
            assert ledger_id not in records.ledgers, f"ledger {ledger_id} is lost"


async def reclaim(store: LedgerStore, promises: Any, records: FakeRecords) -> None:
    """Collect and compact all there is, and look again."""
    store.collect(records, BOOKIE)
    assert store.collector is not None
    if store.config.encryption_keys_file:  # what a crash has left is stale
        await store.collector.re_encrypt(is_awaited=True)
    for _ in range(2):
        await compact(store)
    assert store.collector.steps.failure_count == 0
    await check_entries(store, promises, records)


def submitted_size(promises: Any, records: FakeRecords, overhead: int) -> int:
    """Bytes in logs of one copy of everything that was sent to ledgers that there are."""
    sent = promises.submitted.items()
    return sum(4 + overhead + max(map(len, bodies)) for (ledger_id, _), bodies in sent if ledger_id in records.ledgers)


async def check_reclaimed(store: LedgerStore, promises: Any, records: FakeRecords, made: Any) -> None:
    """What is not wanted is not there any more, and everything else is in the books."""
    await reclaim(store, promises, records)
    assert store.collector is not None
    space: Any = store.collector.space()
    check_names(made)
    assert space["logs_set_aside"] == {}
    assert space["entry_logs"] == len(logs_of(made)), logs_of(made)
    assert space["entry_log_bytes"] <= space["live_bytes"] / 0.8
    overhead = OVERHEAD if store.config.encryption_keys_file else 0
    assert space["live_bytes"] <= submitted_size(promises, records, overhead)
    check_ledgers(store, records)
    forget(promises, *{ledger_id: None for ledger_id, _ in promises.acknowledged if ledger_id not in records.ledgers})
    await promises.check(store)


def check_names(made: Any) -> None:
    """No compaction has left anything."""
    for name in logs_of(made):
        assert name.endswith(".log"), name


def check_ledgers(store: LedgerStore, records: FakeRecords) -> None:
    """The ledgers here are those of the metadata."""
    here: Sequence[int] = sorted(store.ledger_ids())
    assert here == sorted(records.ledgers), f"ledgers {here} are here, {sorted(records.ledgers)} exist"
