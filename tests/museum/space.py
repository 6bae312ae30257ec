"""Exhibits of deletion, garbage collection and compaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.fakes.records import BOOKIE, FakeRecords
from tests.museum import exhibits
from tests.sim import space_world as world
from tests.sim.space_world import GONE, SpaceSweep, collect, compact, fill, logs_of

from bookies.errors import EntryNotFound, LedgerUnknownToBookie
from bookies.lab.sim.world.disk import PROCESS_DIES
from bookies.storage.checkpoint.index_writes import IndexWriter
from bookies.storage.engine.quarantine import Quarantine
from bookies.storage.engine.replay import Restorer
from bookies.storage.entry_log import log_usage
from bookies.storage.gc import compaction, sealed_logs
from bookies.storage.gc.compaction import Compactor
from bookies.storage.gc.ledger_records import RecordReader
from bookies.storage.gc.sealed_logs import SealedLogs
from bookies.storage.index import LedgerIndex, index
from bookies.storage.index.index_format import IndexHeader
from bookies.storage.store import LedgerStore

exhibit, issue = exhibits.exhibit, exhibits.issue
Lives, Reclaim = exhibits.Lives, exhibits.Reclaim
Patch = pytest.MonkeyPatch
JIRA = exhibits.JIRA
YAHOO = "https://github.com/YahooArchive/bookkeeper/pull/"
body = exhibits.lives.entry_body

SMALL = (
    ("entry_log_size_max", 1 << 12),
    ("gc_interval_ms", 1 << 40),
    ("gc_quarantine_ms", 0),
    ("minor_compaction_interval_ms", 0),
    ("major_compaction_interval_ms", 0),
)


def sweep_of(script: world.Script, settings: dict[str, object]) -> SpaceSweep:
    def make(seed: object, **changed: object) -> Any:
        return world.small_machine(exhibits.lives.Machine, seed, **changed)

    return SpaceSweep(make, body, script, **settings)


compact_all = world.compaction_script(body)


def writing_while_compacting(machine: Any) -> None:
    """Compact many logs while a recovery rewrites the entries that are being copied, and checkpoints run.

    Runs on three machines, because a write at the decisive moment is a matter of chance.
    """
    for each in (machine, *(exhibits.lives.Machine(seed, **dict(SMALL)) for seed in (1, 2))):
        write_while_compacting(each)


def write_while_compacting(machine: Any) -> None:
    records, rounds = FakeRecords.of(*world.ALL), 80

    async def script(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await fill(store, promises, body, rounds)
        records.delete(*GONE)
        await collect(store)
        assert store.collector is not None
        space = store.collector.space
        compacting = asyncio.ensure_future(compact(store))
        for entry in range(0, 2 * rounds, 2):  # of the log that is being compacted
            while not compacting.done() and int(str(space()["logs_compacted"])) < entry // 2:  # noqa: ASYNC110
                await asyncio.sleep(0.0001)
            await asyncio.sleep(0.0001 * (entry % 16))
            await promises.add(store, 5, {entry: body(5, entry, version=1, size=500)}, is_recovery=True)
            await store.checkpoint()
        await compacting
        world.forget(promises, *GONE)

    assert machine.live(script)
    assert machine.live(lambda store, promises: world.check_entries(store, promises, records))


# -- compaction ------------------------------------------------------------------------------------------------------
async def remove_unasked(self: Compactor, log_id: int) -> bool:
    """Delete a log without checking the index for slots that still name it, as the reference implementation does."""
    usage = self._logs.known.get(log_id) or await self._logs.read_usage(log_id)
    if usage is not None:
        await self._logs.delete(usage)
    return True


class Hasty:
    """A writer of the index, for compaction, that writes nothing."""

    def __init__(self, writer: IndexWriter) -> None:
        self.log = writer.log

    async def write(self) -> None:
        pass

    relieve = write


@exhibit(
    "copies-not-indexed",
    "Compaction removes the old file before the new locations are durable",
    issue(1534, 571),
    Reclaim(compact_all, 231),
    "A compacted log was deleted as soon as its entries had been copied, although the locations of the copies were "
    "still only in memory. After a crash the index led to a deleted file.",
    "Compaction does not wait for the index before it removes its source.",
)
def _(patch: Patch) -> None:
    original = Compactor.__init__

    def initialize(self: Compactor, *arguments: Any) -> None:
        original(self, *arguments)
        self._index_writer = Hasty(self._index_writer)  # type: ignore[assignment]

    patch.setattr(Compactor, "__init__", initialize)


@exhibit(
    "copies-without-a-name",
    "Compaction removes the old file before the new one has a durable name",
    (),
    Reclaim(compact_all, 226),
    "The bytes of the copies were synced. The directory in which their file got its name was not. The removal of the "
    "old file can reach the disk before that name. Found by analysis of the reference implementation; no report is "
    "known.",
    "Compaction does not sync the directory of its output.",
)
def _(patch: Patch) -> None:
    patch.setattr(compaction, "sync_directory", lambda disk, path: None)


@exhibit(
    "flush-over-moved",
    "A flush overwrites the locations of the copies",
    issue(3959),
    Lives(writing_while_compacting, SMALL),
    "Compaction wrote the new locations of entries whose flush was still in progress. The flush overwrote them with "
    "the old locations, and these led to a deleted file.",
    "A page in which entries move during its write counts as written, and the old log is deleted without a last check "
    "of the index.",
)
def _(patch: Patch) -> None:
    original = LedgerIndex.move

    async def move(self: LedgerIndex, ledger_id: int, *arguments: Any) -> None:
        ledger = self.get(ledger_id)
        frozen = {number: page for number, page in ledger.pages.items() if page.is_frozen} if ledger else {}
        await original(self, ledger_id, *arguments)
        for number, page in frozen.items():
            if ledger is not None and ledger.frozen is not None and number in ledger.frozen:
                page.is_frozen = True

    patch.setattr(LedgerIndex, "move", move)
    patch.setattr(Compactor, "_remove_source", remove_unasked)


@exhibit(
    "moved-unconditionally",
    "Compaction overwrites newer entries with older ones",
    (),
    Lives(writing_while_compacting, SMALL),
    "Compaction copies every entry of an existing ledger and sets its location, without checking for a newer copy "
    "elsewhere. An entry that was written again, for example because it was damaged, may revert to its old content. "
    "Found by analysis of the reference implementation; no report is known.",
    "A slot moves to the copy regardless of its present location.",
)
def _(patch: Patch) -> None:
    patch.setattr(index, "replaced", lambda old, new, prefix: new)


def compaction_of_a_damaged_log(machine: Any) -> None:
    """Compact a log with one wrong bit; the entries after the bit are live."""
    records = FakeRecords.of(*world.ALL)

    async def compact_it(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        records.delete(*GONE)
        await compact(store)
        await look(store, promises)

    async def look(store: LedgerStore, promises: Any) -> None:
        for entry in range(6):
            assert await store.read(5, entry) == body(5, entry, size=500)

    assert machine.live(lambda store, promises: fill(store, promises, body))
    machine.disk.flip_bit("/ledgers0/current/0.log", 1024 + 4 * 540, bit=6)
    assert machine.live(compact_it)
    assert machine.live(look)


@exhibit(
    "copied-up-to-the-damage",
    "A compacted log that could not be read to its end",
    (),
    Lives(compaction_of_a_damaged_log, SMALL),
    "A scan that meets bytes that are no record treats them as the end of the log. The entries after them are not "
    "copied, and the log is removed. Found by analysis of the reference implementation; no report is known.",
    "The log is deleted regardless of how its scan ended, without checking whether slots still name it.",
)
def _(patch: Patch) -> None:
    patch.setattr(Compactor, "_check_end", lambda self, usage, end: None)
    patch.setattr(Compactor, "_remove_source", remove_unasked)


# -- entry logs ------------------------------------------------------------------------------------------------------
def a_log_with_a_garbage_header(machine: Any) -> None:
    """The header of a sealed log contains a negative number of ledgers."""
    records = FakeRecords.of(*world.ALL)

    async def collect_twice(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        for _ in range(2):
            await collect(store)
        await promises.check(store)

    assert machine.live(lambda store, promises: fill(store, promises, body))
    machine.disk.flip_bit("/ledgers0/current/0.log", 16, bit=7)  # of the count
    assert machine.live(collect_twice)
    machine.check(lives=1)


@exhibit(
    "garbage-header",
    "An entry log with live data deleted because its header is garbage",
    issue(4607, 4658),
    Lives(a_log_with_a_garbage_header, SMALL),
    "The header of a new log was not initialized. A collector read a ledger count from it that was not positive, "
    "considered the log empty, and deleted it.",
    "A ledgers map that cannot be read counts as an empty one, and the log is deleted without checking the index.",
)
def _(patch: Patch) -> None:
    original = log_usage.read_map

    async def delete_empty(self: SealedLogs) -> None:
        for usage in [each for each in self.known.values() if each.remaining == 0]:
            await self.delete(usage)

    patch.setattr(sealed_logs, "read_map", lambda disk, path: original(disk, path) or {})
    patch.setattr(SealedLogs, "delete_empty", delete_empty)


def a_log_that_nobody_can_read(machine: Any) -> None:
    """The oldest log has an unknown version; no log has live entries."""
    records = FakeRecords.of(*world.ALL)

    async def collect_all(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        records.ledgers.clear()
        for _ in range(3):
            await collect(store)
        assert list(logs_of(machine)) == ["0.log"], f"{sorted(logs_of(machine))}: three runs returned no space"

    assert machine.live(lambda store, promises: fill(store, promises, body))
    machine.disk.flip_bit("/ledgers0/current/0.log", 4, bit=6)
    assert machine.live(collect_all)


@exhibit(
    "one-log-stops-all",
    "One corrupt log that stops all collection",
    issue(2264, 3901, 4544),
    Lives(a_log_that_nobody_can_read, SMALL),
    "An error in one entry log ended the collector's run, and every further run at the same place. No space was "
    "returned any more, until the disks were full.",
    "A log that cannot be read fails the scan of the others.",
)
def _(patch: Patch) -> None:
    def put_aside(self: SealedLogs, log_id: int, reason: str) -> None:
        raise ValueError(reason)

    patch.setattr(SealedLogs, "put_aside", put_aside)


def a_deletion_that_fails(machine: Any) -> None:
    """The first attempt to remove an empty log fails."""
    records = FakeRecords.of(*world.ALL)

    async def collect_all(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await collect(store)
        records.ledgers.clear()
        machine.disk.fail("unlink", "/0.log", lambda: OSError(5, "Input/output error"))
        for _ in range(3):
            await collect(store)
        assert not logs_of(machine), f"{sorted(logs_of(machine))}: three runs returned no space"

    assert machine.live(lambda store, promises: fill(store, promises, body))
    assert machine.live(collect_all)


@exhibit(
    "forgotten-before-deleted",
    "A log forgotten although its deletion had failed",
    issue(3965),
    Lives(a_deletion_that_fails, SMALL),
    "The collector dropped its knowledge of an entry log and then deleted the file. When the deletion failed, the file "
    "stayed and was never found again.",
    "A log is forgotten before its file is deleted, and a log that was known once is not searched for again.",
)
def _(patch: Patch) -> None:
    delete, find = SealedLogs.delete, sealed_logs.find_logs
    forgotten: dict[str, None] = {}

    async def delete_forgotten(self: SealedLogs, usage: Any) -> None:
        forgotten[usage.path] = None
        await delete(self, usage)

    def find_others(disk: Any, logs: Any, among: Sequence[str]) -> dict[int, str]:
        return {log_id: path for log_id, path in find(disk, logs, among).items() if path not in forgotten}

    patch.setattr(SealedLogs, "delete", delete_forgotten)
    patch.setattr(sealed_logs, "find_logs", find_others)


# -- ledgers ---------------------------------------------------------------------------------------------------------
def a_listing_that_leaves_out(machine: Any) -> None:
    """The metadata store has all ledgers; its listing omits some."""
    records = FakeRecords.of(*world.ALL)
    records.unlisted = {2, 6}

    async def collect_twice(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        for _ in range(2):
            await collect(store)
        await promises.check(store)

    assert machine.live(lambda store, promises: fill(store, promises, body))
    assert machine.live(collect_twice)
    machine.check(lives=1)


@exhibit(
    "one-proof",
    "Garbage collection deletes live ledgers",
    (f"{YAHOO}15", *issue(870)),
    Lives(a_listing_that_leaves_out, SMALL),
    "A listing of ledgers came back empty, or in the order of the digits instead of the numbers, which the comparison "
    "did not expect. Every ledger that it seemed to omit was deleted.",
    "A ledger that the listing omits counts as deleted; no record is read.",
)
def _(patch: Patch) -> None:
    async def is_gone(self: RecordReader, ledger_id: int) -> bool:
        return True

    patch.setattr(RecordReader, "is_proven_deleted", is_gone)


def a_listing_that_breaks_off(machine: Any) -> None:
    """The metadata store fails in the middle of its listing, and for reads of some ledgers after it."""
    records = FakeRecords.of(*world.ALL)
    records.breaks_after, records.unreadable = 1, {5, 6}

    async def collect_twice(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        for _ in range(2):
            await collect(store)
        records.breaks_after, records.unreadable = None, set()
        await promises.check(store)

    assert machine.live(lambda store, promises: fill(store, promises, body))
    assert machine.live(collect_twice)
    machine.check(lives=1)


@exhibit(
    "errors-as-gone",
    "A truncated listing mistaken for a complete one",
    (f"{YAHOO}15", f"{YAHOO}17"),
    Lives(a_listing_that_breaks_off, SMALL),
    "Ledgers are listed directory by directory. An empty directory was removed meanwhile. The listing did not find it "
    "and ended there as if it were complete. All ledgers after it were deleted.",
    "A listing that breaks off counts as complete, and a record that cannot be read as one that does not exist.",
)
def _(patch: Patch) -> None:
    listing = FakeRecords.ledger_ids

    async def ledger_ids(self: FakeRecords) -> Any:
        try:
            async for each in listing(self):
                yield each
        except Exception:  # noqa: BLE001  (the mistake)
            return

    async def read(self: RecordReader, ledger_id: int) -> Any:
        try:
            return (await self._records.read_ledger(ledger_id)).metadata
        except Exception:  # noqa: BLE001  (the mistake)
            return None

    patch.setattr(FakeRecords, "ledger_ids", ledger_ids)
    patch.setattr(RecordReader, "read", read)
    patch.setattr(RecordReader, "read_current", read)


async def expect_gone(store: LedgerStore, ledger_id: int) -> None:
    try:
        await store.read(ledger_id, 0)
    except LedgerUnknownToBookie:
        return
    except EntryNotFound:
        pass
    raise AssertionError(f"ledger {ledger_id} was deleted and exists again")


def a_deletion_before_the_flush(machine: Any) -> None:
    """Delete a ledger while entries of it are still in the cache; then run a checkpoint."""
    records = FakeRecords.of(*world.ALL)

    async def delete_it(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await fill(store, promises, body)
        await promises.add(store, 5, {20: body(5, 20)})
        records.delete(5)
        await collect(store)
        await store.checkpoint()
        await expect_gone(store, 5)
        world.forget(promises, 5)
        await promises.check(store)

    assert machine.live(delete_it)
    machine.check(lives=1)


@exhibit(
    "flush-makes-it-again",
    "A flush that recreates a deleted ledger",
    issue(1757),
    Lives(a_deletion_before_the_flush, SMALL),
    "A flush of the memtable met entries of a ledger whose index file had just been deleted, and recreated the file. "
    "The ledger existed again.",
    "A deletion does not empty the cache first, and a flush creates ledgers that it does not find.",
)
def _(patch: Patch) -> None:
    original = LedgerIndex.install

    async def finish(self: Quarantine) -> None:
        deleted = [each for each in self._states if self.is_deleted(each) and self._index.is_known(each)]
        if deleted:
            await self._checkpointer.index_writer.drop_ledgers(deleted)

    async def install(self: LedgerIndex, ledger_id: int, entry_ids: Sequence[int], slots: bytes) -> None:
        if not self.is_known(ledger_id):
            self.create(ledger_id, IndexHeader(b""))
        await original(self, ledger_id, entry_ids, slots)

    patch.setattr(Quarantine, "_finish", finish)
    patch.setattr(LedgerIndex, "install", install)


def a_deletion_before_a_restart(machine: Any) -> None:
    """The process dies after a ledger was deleted, and before a checkpoint has released the journal."""
    records = FakeRecords.of(*world.ALL)

    async def delete_it(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await promises.add(store, 5, {entry: body(5, entry) for entry in range(4)})
        records.delete(5)
        machine.disk.fail("pwritev", ".log", lambda: OSError(5, "Input/output error"), count=2)
        await collect(store)
        machine.disk.faults.clear()
        world.forget(promises, 5)

    async def later(store: LedgerStore, promises: Any) -> None:
        await expect_gone(store, 5)

    assert machine.live(delete_it, stops=False)
    machine.crash(PROCESS_DIES)
    assert machine.live(later)


@exhibit(
    "replay-of-the-deleted",
    "A replay of deleted ledgers",
    (f"{JIRA}174", f"{JIRA}198"),
    Lives(a_deletion_before_a_restart, SMALL),
    "The journal still contained entries of ledgers that had been deleted since. Replay failed on them, so that the "
    "bookie did not start, or it recreated the ledgers.",
    "Replay does not check whether a ledger was deleted.",
)
def _(patch: Patch) -> None:
    original = Restorer.__init__

    def initialize(self: Restorer, *parts: Any) -> None:
        original(self, *parts[:4], lambda ledger_id, **how: False, *parts[5:])

    patch.setattr(Restorer, "__init__", initialize)


def a_late_writer(machine: Any) -> None:
    """A ledger is fenced, recovered elsewhere and deleted; then its first writer continues."""
    records = FakeRecords.of(*world.ALL)

    async def wake_up(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        await fill(store, promises, body)
        await promises.fence(store, 5)
        records.delete(5)
        await collect(store)
        assert await promises.is_fenced(store, 5), "an entry of a ledger that was fenced and deleted is acknowledged"
        world.forget(promises, 5)

    assert machine.live(wake_up)
    machine.check(lives=1)


@exhibit(
    "late-writer",
    "A late writer that recreates a deleted ledger, unfenced",
    issue(4462),
    Lives(a_late_writer, SMALL),
    "A ledger was fenced and then deleted. For the next add of its old writer it was an unknown ledger. It was "
    "recreated without a fence. The entry was acknowledged, and lost with the next collection.",
    "A deleted ledger is forgotten immediately.",
)
def _(patch: Patch) -> None:
    original = Quarantine.delete

    async def delete(self: Quarantine, ledger_ids: Any, now_ms: int) -> list[int]:
        deleted = await original(self, ledger_ids, now_ms)
        await self.forget(deleted)
        return deleted

    patch.setattr(Quarantine, "delete", delete)
