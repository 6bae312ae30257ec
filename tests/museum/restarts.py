"""Exhibits of the storage that need more than one life: replay, identity, flushes before a restart."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.museum import exhibits

from bookies.errors import BookieBusy, StorageError
from bookies.kernels import Records
from bookies.lab.sim.world.disk import PROCESS_DIES, SimDisk
from bookies.storage.cache.write_cache import Generation, Run
from bookies.storage.checkpoint import Checkpointer
from bookies.storage.checkpoint.mark_files import Marks
from bookies.storage.engine import opening
from bookies.storage.engine.replay import Restorer
from bookies.storage.entry_log import entry_log
from bookies.storage.index import LedgerIndex, index_format
from bookies.storage.index.catalog import CatalogFile
from bookies.storage.index.index_format import IndexHeader
from bookies.storage.journal import Journal
from bookies.storage.store import LedgerStore

exhibit, issue, some = exhibits.exhibit, exhibits.issue, exhibits.some
CrashSweep, Lives = exhibits.CrashSweep, exhibits.Lives
Patch = pytest.MonkeyPatch
JIRA = exhibits.JIRA


async def nothing(store: LedgerStore, promises: Any) -> None:
    """Start, and do nothing else."""


async def look(store: LedgerStore, promises: Any) -> None:
    await promises.check(store)


def without_catalog(patch: Patch) -> None:
    """Disable the catalog. As in the reference implementation, index files are then the only index."""
    patch.setattr(CatalogFile, "load", lambda self, last=(): None)
    patch.setattr(CatalogFile, "append", lambda self, data, *, is_durable: None)
    patch.setattr(opening, "ledgers_in_logs", lambda disk, logs: [])


def forsake(machine: Any, script: Any) -> None:
    """Run a life with `script` that ends with the death of the process."""
    assert machine.live(script, stops=False)
    machine.crash(PROCESS_DIES)


# -- fences -----------------------------------------------------------------------------------------------------------
async def fences_during_a_checkpoint(store: LedgerStore, promises: Any) -> None:
    """Fence ledgers that are already in files while checkpoints run; then run another checkpoint."""
    ledgers = range(10, 26)
    await asyncio.gather(*[promises.write_lac(store, ledger_id, 5) for ledger_id in ledgers])
    await store.checkpoint()
    await promises.add(store, 1, some(1, 0, 16))

    async def fence_all() -> None:
        for ledger_id in ledgers:
            await promises.fence(store, ledger_id)

    fencing = asyncio.ensure_future(fence_all())
    while not fencing.done():
        await store.checkpoint()
    await store.checkpoint()
    await promises.add(store, 1, some(1, 16, 2))


@exhibit(
    "header-evicted",
    "A fence in the cache of open files",
    (f"{JIRA}815",),
    CrashSweep(fences_during_a_checkpoint, 302),
    "The fence flag was set in the object of the open index file, to be written later. When too many files were open, "
    "the object was evicted, and the flag was lost with it.",
    "After a checkpoint unused ledgers are evicted, including those that changed meanwhile.",
)
def _(patch: Patch) -> None:
    def forget_idle(self: LedgerIndex, is_idle: Any) -> None:
        for ledger_id, ledger in list(self._ledgers.items()):
            is_used = ledger.pages or ledger.users or ledger.is_fence_pending
            if ledger_id in self.places.paths and not is_used and is_idle(ledger_id):
                del self._ledgers[ledger_id]
                self._dirty.pop(ledger_id, None)

    patch.setattr(LedgerIndex, "forget_idle", forget_idle)
    without_catalog(patch)


# -- replay -----------------------------------------------------------------------------------------------------------
async def meta_records(store: LedgerStore, promises: Any) -> None:
    await asyncio.gather(promises.fence(store, 3), promises.write_lac(store, 4, 17), promises.fence(store, 5))
    await store.checkpoint()


@exhibit(
    "replay-believes-the-index",
    "Ledgers that replay believed to be stored",
    issue(867),
    CrashSweep(meta_records, 93, comes_back=True),
    "Replay did not recreate a ledger that it found in the index. The index had been written and not synced; only the "
    "process had died. The journal was dropped, and the next power failure lost the ledger's fence and key.",
    "Replay skips entries that the index already contains.",
)
def _(patch: Patch) -> None:
    original = LedgerIndex.set_header

    def set_header(self: LedgerIndex, ledger: Any, header: IndexHeader) -> None:
        if ledger.header != header or ledger.path is None:
            original(self, ledger, header)

    patch.setattr(LedgerIndex, "set_header", set_header)


def killed_twice(machine: Any) -> None:
    """The process dies with a full journal, and again immediately after its restart."""
    forsake(machine, lambda store, promises: promises.add(store, 1, some(1, 0, 8)))
    forsake(machine, nothing)

    async def expect_nothing_to_replay(store: LedgerStore, promises: Any) -> None:
        count = store.stats()["replayed_entries"]
        assert count == 0, f"{count} entries that had been replayed and flushed are replayed and written again"

    assert machine.live(expect_nothing_to_replay)
    machine.check(lives=1)


@exhibit(
    "replayed-for-ever",
    "A start that repeats the previous replay",
    issue(2087, 2105),
    Lives(killed_twice),
    "The mark was not moved after a replay. A bookie that found its disk full and was restarted repeatedly wrote its "
    "whole journal into the entry logs each time, and filled the disk further.",
    "The checkpoint after a replay persists no mark.",
)
def _(patch: Patch) -> None:
    original = Checkpointer.checkpoint

    async def checkpoint(self: Checkpointer, marks: Marks | None = None) -> None:
        if marks is None:
            await original(self)
        else:
            await self.flusher.flush_all(())
            await self.index_writer.write()
            self.persisted = tuple(found[-1] for found in await self.worker.run(self.mark_files.read) if found)

    patch.setattr(Checkpointer, "checkpoint", checkpoint)


def replay_of_two_ledgers(machine: Any) -> None:
    async def load(store: LedgerStore, promises: Any) -> None:
        await asyncio.gather(promises.add(store, 1, some(1, 0, 8)), promises.add(store, 2, some(2, 0, 8)))

    forsake(machine, load)
    machine.check(lives=2)


@exhibit(
    "borrowed-buffer",
    "A memtable of borrowed memory",
    issue(1737),
    Lives(replay_of_two_ledgers),
    "The memtable kept the caller's buffer instead of a copy. Replay read every record into the same buffer, so all "
    "entries became the last one.",
    "Replay inserts entries that lie in one reused buffer. The storage compares what it writes to the log with what it "
    "should be, so the start fails and the journal stays. The reference implementation continued.",
)
def _(patch: Patch) -> None:
    original = Restorer._insert
    shared = bytearray(1 << 16)

    async def insert(self: Restorer, ledger: Any, entry_ids: Any, records: Records) -> None:
        shared[: len(records.data)] = records.data
        borrowed: Any = shared
        await original(self, ledger, entry_ids, Records(borrowed, records.starts))

    patch.setattr(Restorer, "_insert", insert)


# -- identity ---------------------------------------------------------------------------------------------------------
def an_empty_journal_disk(machine: Any) -> None:
    """The process dies and restarts with another disk in place of its journal disk."""
    forsake(machine, lambda store, promises: promises.add(store, 1, some(1, 0, 8)))
    directory = "/journal0/current"
    for name in machine.disk.list(directory):
        if name.endswith(".txn"):
            machine.disk.unlink(f"{directory}/{name}")
    try:
        machine.live(look)
    except StorageError:
        return  # It does not start, so it reports no entry as missing.
    raise AssertionError("the bookie starts without its journal, and no entry is missing")


@exhibit(
    "taken-for-new",
    "An empty journal disk mistaken for a new one",
    (*issue(544), f"{JIRA}619", *issue(2305)),
    Lives(an_empty_journal_disk),
    "A journal disk was not mounted, a metadata store was the wrong one, or a cookie had been removed. Each case made "
    "a bookie believe that it was new, and report all entries that it had acknowledged as missing.",
    "A start does not check whether the journal must exist.",
)
def _(patch: Patch) -> None:
    find_losses = opening._find_losses

    def find_no_lost_journal(disk: Any, directories: Any, logs: Any) -> Any:
        return find_losses(disk, SimpleNamespace(all=directories.all, ledgers=directories.ledgers, journals=()), logs)

    patch.setattr(opening, "_find_losses", find_no_lost_journal)


def ids_from_sixteen_on(machine: Any) -> None:
    async def load(store: LedgerStore, promises: Any) -> None:
        for ledger_id in (3, 16, 26, 0x1A2B):
            await promises.add(store, ledger_id, some(ledger_id, 0, 4))
        await store.checkpoint()

    assert machine.live(load)
    machine.check(lives=1)


@exhibit(
    "ids-in-decimal",
    "File names written in one base and read in another",
    issue(2944),
    Lives(ids_from_sixteen_on),
    "Index files carry ledger ids in hexadecimal. A crash left files in the middle of a move to another directory. "
    "Their ids were read as decimal numbers, and the bookie did not start.",
    "The ids in the names of index files are read as decimal numbers.",
)
def _(patch: Patch) -> None:
    def parse_path(path: str) -> int | None:
        match = index_format._PATH.fullmatch(path)
        is_one = match is not None and not match[4] and match[3].isdecimal()
        return int(match[3]) if match is not None and is_one else None

    patch.setattr(index_format, "parse_path", parse_path)
    without_catalog(patch)


def three_logs_in_three_lives(machine: Any) -> None:
    for first in (0, 8, 16):

        async def load(store: LedgerStore, promises: Any, first: int = first) -> None:
            await promises.add(store, 1, some(1, first, 8))
            await store.checkpoint()

        assert machine.live(load)
    machine.check(lives=1)


@exhibit(
    "log-ids-used-again",
    "Two entry loggers that number their files independently",
    issue(4040, 4041),
    Lives(three_logs_in_three_lives),
    "After a switch to another implementation of the entry log and back, a stale counter assigned ids of existing "
    "logs, and these logs were overwritten.",
    "The ids of entry logs start at 0 in each process, and a log may replace one of the same name. The first alone "
    "loses no entry: no flush succeeds, and the journal keeps everything.",
)
def _(patch: Patch) -> None:
    original = SimDisk.open
    patch.setattr(entry_log, "greatest_log_id", lambda disk, logs, among: -1)
    patch.setattr(SimDisk, "open", lambda self, path, mode: original(self, path, "w+" if mode == "x+" else mode))


# -- flushes ----------------------------------------------------------------------------------------------------------
@exhibit(
    "half-a-checkpoint",
    "A mark for directories that had not been flushed",
    issue(3329),
    CrashSweep(
        exhibits.many_small_logs,
        484,
        settings=(("entry_log_size_max", 4096), ("write_cache_size", 8192), ("ledgers", 2)),
    ),
    "A bookie with several ledger directories flushed each of them independently. The first one that finished moved "
    "the mark for all. Journals were deleted whose entries the others still had in memory.",
    "A checkpoint syncs only the first of two ledger directories.",
)
def _(patch: Patch) -> None:
    for name in ("sync_data", "sync_all"):
        original = getattr(entry_log, name)
        patch.setattr(
            entry_log, name, lambda file, sync=original: None if file.path.startswith("/ledgers1") else sync(file)
        )


def flushed_and_read(machine: Any) -> None:
    async def load(store: LedgerStore, promises: Any) -> None:
        await asyncio.gather(promises.add(store, 1, some(1, 0, 8)), promises.add(store, 2, some(2, 0, 8)))
        await store.checkpoint()

    assert machine.live(load)
    machine.check(lives=1)


@exhibit(
    "garbage-from-the-cache",
    "Entries overwritten in the write cache",
    issue(1279),
    Lives(flushed_and_read),
    "The write cache consists of segments, and the arithmetic that locates an entry in them was wrong for large "
    "caches. Entries were overwritten in memory, and the wrong bytes were written to the entry log.",
    "One of two ledgers in the cache is flushed with the other's bytes, and the comparison of written and expected "
    "bytes is disabled. With the comparison the bookie stops, and its journal still has everything.",
)
def _(patch: Patch) -> None:
    original = Generation.runs

    def runs(self: Generation) -> Any:
        found = list(original(self))
        return [(ledger_id, Run(run.entry_ids, found[0][1].records)) for ledger_id, run in found]

    patch.setattr(Generation, "runs", runs)
    patch.setattr(entry_log, "_check_run", lambda ledger_id, run: None)


def a_journal_that_fails(machine: Any) -> None:
    """A write to the journal fails. Later adds must fail, and the bookie must end."""

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, some(1, 0, 4))
        machine.disk.fail("pwritev", ".txn", lambda: OSError(5, "Input/output error"))
        promises.add(store, 1, {4: exhibits.lives.entry_body(1, 4, size=5_000)})
        await asyncio.sleep(1)
        try:
            await asyncio.wait_for(promises.add(store, 1, some(1, 5, 1)), 60)
        except (StorageError, BookieBusy):
            assert machine.failures, "the failure of the journal was not reported"
            return
        except TimeoutError:
            raise AssertionError("the bookie continues without a journal and answers no add") from None

    assert machine.live(script, stops=False)


@exhibit(
    "lives-on-without-a-journal",
    "A bookie without its journal thread",
    issue(2879),
    Lives(a_journal_that_fails),
    "The journal thread died of an error. The bookie stayed registered and accepted requests, and answered no add.",
    "A failed journal informs no one.",
)
def _(patch: Patch) -> None:
    def fail(self: Journal, error: BaseException) -> None:
        self._has_failed = True
        self._go_idle()

    patch.setattr(Journal, "_fail", fail)
