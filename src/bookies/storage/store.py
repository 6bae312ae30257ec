"""The storage of a bookie: start, stop and state here, writes in `store_writes`, reads in `store_reads`.

The path of an entry: it is checked against its ledger (key, fence), inserted into the write cache, queued for the
journal, and answered when its group is synced. Later it is flushed to an entry log, its slot is set in the index, and
after a checkpoint its journal is deleted.

R-15: the death of a journal or sync thread stops the bookie. After any failure that leaves the content of the device
unknown, no request is answered, writing stops, and `on_fatal` is called.

Everything here is owned by the loop's thread. Workers get immutable buffers and return results through futures.

Source: storage 9.5, 9.6.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import posixpath
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

from bookies.config import BookieConfig
from bookies.errors import DataUnknown, DiskFull, LedgerUnknownToBookie, ReadFailed, StorageError
from bookies.runtime.activities import Activities
from bookies.runtime.ports import Runtime
from bookies.storage.checkpoint.index_writes import StorageObserver
from bookies.storage.disks.directories import Directories
from bookies.storage.disks.durable_files import replace_copies
from bookies.storage.engine import StorageParts, open_storage
from bookies.storage.engine.opening import open_journals
from bookies.storage.engine.opening_sealed import forget_encryption
from bookies.storage.engine.store_reads import StoreReads
from bookies.storage.engine.store_writes import StoreWrites
from bookies.storage.gc import CollectionLoop
from bookies.storage.gc.ledger_records import LedgerRecords
from bookies.storage.identity import former_ledgers_format
from bookies.storage.index.index_format import STATE_LIMBO, STATE_REBUILDING, IndexHeader
from bookies.storage.index.limbo import Limbo
from bookies.storage.index.rebuild_states import RebuildEvent, RebuildState
from bookies.storage.index.slot_scans import runs_in_logs
from bookies.storage.index.slots import merged
from bookies.storage.offline.offline_bookie import kept_page_size
from bookies.storage.rocksdb.rocksdb_format import Databases
from bookies.storage.rocksdb.rocksdb_port import RocksDatabases
from bookies.storage.scrub import Scrubber

JOURNAL_RETRY_S = 5.0  # seconds between attempts to open a journal whose disk has no space
STOP_S = 60.0  # seconds that an orderly stop waits for its last checkpoint


class _Callbacks:
    """Calls that changes of the storage's state cause: of its mode every time, of the end of a congestion once."""

    def __init__(self) -> None:
        self.was_writable = True
        self.of_modes: list[Callable[[], None]] = []
        self.of_calm: list[Callable[[], None]] = []

    def calmed(self) -> None:
        callbacks, self.of_calm = self.of_calm, []
        for callback in callbacks:
            callback()

    def mode_is(self, *, is_writable: bool) -> None:
        if is_writable != self.was_writable:
            self.was_writable = is_writable
            for callback in self.of_modes:
                callback()


class LedgerStore(StoreWrites, StoreReads):
    """The storage of one bookie. All calls on the loop's thread.

    `on_fatal` is called at most once, when the storage cannot answer any more; the process should end. Until `start`
    has returned, only `abort` may be called. `databases`: of an index in databases; may be replaced until `start`.
    """

    databases: Databases = RocksDatabases()

    def __init__(self, runtime: Runtime, config: BookieConfig, on_fatal: Callable[[BaseException], None]) -> None:
        super().__init__(runtime, config)
        self._on_fatal = on_fatal
        self.activities = Activities(runtime.clock.monotonic)
        self.observer = StorageObserver()  # may be replaced until `start`
        self._running: list[asyncio.Task[None]] = []
        self.collector: CollectionLoop | None = None
        self.scrubber: Scrubber | None = None
        self._background: list[asyncio.Task[None]] = []  # collection and scrub: an orderly stop ends them first
        self._callbacks = _Callbacks()

    @property
    def config(self) -> BookieConfig:
        """Return the settings in use, without the directories that are left out."""
        return self._config

    @property
    def left_out(self) -> Sequence[str]:
        """Return the lost directories that the bookie runs without."""
        return self._config.lost_directories

    def leave_out(self, directories: Sequence[str]) -> None:
        """Use none of these lost ledger and index directories. Call it before `start`."""
        self._config = dataclasses.replace(self._config, lost_directories=tuple(directories))
        self._config = self._without_lost(self._config)

    def _without_lost(self, config: BookieConfig) -> BookieConfig:
        """Return the settings without the directories that are left out."""
        lost = self._config.lost_directories
        ledgers = tuple(path for path in config.ledger_directories if path not in lost)
        indexes = tuple(path for path in config.index_directories if path not in lost)
        return dataclasses.replace(config, ledger_directories=ledgers, index_directories=indexes, lost_directories=lost)

    # -- start and stop ------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Lock the directories, replay, checkpoint, and serve.

        Raises: DirectoryInUse; CorruptRecord and other StorageError; OSError. Then all files and locks are released.
        """
        assert self._parts is None
        try:
            await self._keep_page_size()
            self._parts = parts = StorageParts(
                self._runtime, self._config, self._changed, self._fail, self.activities, self.databases
            )
            parts.checkpointer.index_writer.observer = parts.removals.observer = self.observer
            self._running.append(parts.checkpointer.start(self._tasks))
            await open_storage(parts, self._events)
            await parts.disks.measure(parts.checkpointer.worker)
            self._running.append(parts.checkpointer.serve(self._tasks, parts.journals))
            for journal in parts.journals:
                journal.on_short = parts.disks.measure_now
            self._misses_journal = parts.report.has_losses or not self._has_journals(parts)
            if self._misses_journal:
                self._events.error("storage.journals_wait", reason=self.read_only_reason)
                self._running.append(self._tasks.start(self._open_journals(parts), "journals without room"))
            self._running.append(self._tasks.start(parts.disks.run(parts.checkpointer.worker), "disk watch"))
            self._running.append(self._tasks.start(parts.rebuilder.run(), "index rebuild"))
            if parts.keys is not None:
                self._running.append(self._tasks.start(parts.keys.watch(), "encryption keys"))
        except BaseException:
            self.abort()
            raise
        self._callbacks.was_writable = self.is_writable

    async def _keep_page_size(self) -> None:
        """Use the page size of the existing index, whose checksums are per page; the setting is for new bookies."""
        worker = self._runtime.workers.start("look")
        try:
            indexes = Directories(self._runtime.disk, self._config).indexes
            page_size = await worker.run(kept_page_size, self._runtime.disk, indexes)
        finally:
            worker.close()
        if page_size is not None and page_size != self._config.index_page_size:
            self._events.info("storage.page_size_kept", found=page_size, setting=self._config.index_page_size)
            self._config = dataclasses.replace(self._config, index_page_size=page_size)

    @staticmethod
    def _has_journals(parts: StorageParts) -> bool:
        return all(journal.is_open for journal in parts.journals)

    async def _open_journals(self, parts: StorageParts) -> None:
        """Retry until there is space for the checkpoint of the start, the first file of each journal, and the note of
        directories that were lost.
        """
        while self._misses_journal:
            await asyncio.sleep(JOURNAL_RETRY_S)
            if not parts.report.is_covered:
                with contextlib.suppress(DiskFull):
                    await parts.checkpointer.checkpoint()
                    parts.report.is_covered = True
            self._misses_journal = not (parts.report.is_covered and await open_journals(parts))
        self._events.info("storage.journals_opened")
        await parts.disks.measure(parts.checkpointer.worker)
        self._changed()

    def collect(self, records: LedgerRecords, bookie: str, instance_id: str | None = None) -> None:
        """Start garbage collection of deleted ledgers. `records`: the metadata store.

        `instance_id`: of the bookie's cluster, if it is known.
        """
        assert self.collector is None
        parts = self._open()
        parts.removals.on_deleted = lambda ledger_id: self._watchers.wake(ledger_id, None)
        parts.removals.on_forget = lambda ledger_ids: self.note_former([(number, number + 1) for number in ledger_ids])
        self.collector = CollectionLoop(parts, records, bookie, instance_id)
        self._background.append(self._tasks.start(self.collector.run(), "garbage collection"))

    async def note_former(self, runs: Sequence[tuple[int, int]]) -> None:
        """Note durably that ledgers, [start, stop) of ids, may have lost their fences here (F-44).

        Raises: DiskFull, OSError.
        """
        parts, layout = self._open(), former_ledgers_format
        self.former_ledgers = layout.union(self.former_ledgers, runs)
        self._found_open.clear()
        if self.on_fences_lost is not None:
            self.on_fences_lost(runs)
        if self.former_ledgers.bound < layout.ALL_LEDGERS:  # else the next start takes them from the metadata store
            paths = [posixpath.join(directory, layout.FILE_NAME) for directory in parts.directories.all]
            data = layout.pack(self.former_ledgers)
            await parts.checkpointer.worker.run(replace_copies, parts.runtime.disk, paths, data)

    def scrub(self, records: LedgerRecords) -> None:
        """Start the periodic verification of stored data. `records`: the metadata store."""
        assert self.scrubber is None
        parts = self._open()
        self.scrubber = Scrubber(parts.runtime, self._config, parts, records, self.collector, self._wait_calm)
        self._background.append(self._tasks.start(self.scrubber.run(), "scrub"))

    def reconfigure(self, config: BookieConfig) -> None:
        """Use these settings, of which those in `settings.LIVE` may differ from the previous ones."""
        self._config = config = self._without_lost(config)
        if self.parts is not None:
            self.parts.config = config
            self.parts.disks.reconfigure(config)
            self.parts.disks.measure_now()
        if self.collector is not None:
            self.collector.reconfigure()
        if self.scrubber is not None:
            self.scrubber.reconfigure(config)

    async def stop(self) -> None:
        """Flush, checkpoint, and release everything. Idempotent. After a failure equivalent to `abort`.

        Raises the error of the last checkpoint; the journals then still have all data.
        """
        parts = self._parts
        if parts is None or self._failure is not None:
            self.abort()
            return
        self._is_stopping = True
        try:
            for task in self._background:
                task.cancel()
            if self._background:
                await asyncio.wait(self._background)
            if self.parts is None:  # one of them has failed meanwhile
                return
            async with asyncio.timeout(STOP_S):
                for journal in parts.journals:
                    await journal.wait_idle()
                await parts.checkpointer.checkpoint()
                log = parts.checkpointer.log
                await log.worker.run(log.writer.close)  # with its ledgers map
                for journal in parts.journals:
                    await journal.discard_spares()
                good = parts.health.healthy(parts.directories.ledgers)
                await parts.checkpointer.worker.run(parts.directories.mark_clean, good)
                await self._forget_encryption(parts)
            await self._tasks.stop()
        finally:
            self.abort()

    async def _forget_encryption(self, parts: StorageParts) -> None:
        """Let Apache's bookie use the directories again, if no entry is encrypted any more."""
        is_over = parts.sealer is None or not parts.sealer.seals
        if parts.report.is_encryption_noted and is_over and not parts.health.failed:
            marks = parts.checkpointer.persisted
            worker, disk = parts.checkpointer.worker, parts.runtime.disk
            if await worker.run(forget_encryption, disk, parts.directories, parts.logs, marks):
                self._events.info("encryption.ended", consequence="Apache's bookie may use the directories again")

    def abort(self) -> None:
        """Release files, workers and locks without changing the directories. Idempotent."""
        self._is_stopping = True
        for task in (*self._running, *self._background):
            task.cancel()
        self._running.clear()
        self._background.clear()
        parts, self._parts = self._parts, None
        if parts is not None:
            if self.scrubber is not None:
                self.scrubber.close()
            if self.collector is not None:
                self.collector.close()
            parts.checkpointer.flusher.abort(self._failure or StorageError("the storage was stopped"))
            parts.close()

    def _fail(self, error: BaseException) -> None:
        """Stop the storage after a failure that leaves the content of the disks unknown."""
        if self._failure is None and self._parts is not None:
            self._failure = error
            self._parts.checkpointer.flusher.abort(error)
            self._events.error("storage.failed", error=error)
            self._on_fatal(error)

    # -- watching ------------------------------------------------------------------------------------------------
    def watch_lac(self, ledger_id: int, previous_lac: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once, on the loop, when the LAC is above `previous_lac` or the ledger is fenced.

        Returns a function that cancels. The caller has asked for the LAC before; if it is above already, the callback
        is scheduled at once.
        """
        parts = self._open()
        cancel = self._watchers.add(ledger_id, previous_lac, callback)
        ledger = parts.index.get(ledger_id)
        if ledger is not None and ledger.last_add_confirmed > previous_lac:
            self._watchers.wake(ledger_id, ledger.last_add_confirmed)
        return cancel

    # -- state ---------------------------------------------------------------------------------------------------
    @property
    def is_writable(self) -> bool:
        """Report whether ordinary adds are accepted: there is free space, and flushes succeed."""
        return (
            self._parts is not None
            and self._failure is None
            and not self._parts.disks.is_full
            and not self._parts.checkpointer.flusher.problem
            and not self._misses_journal
        )

    @property
    def takes_priority(self) -> bool:
        """Report whether adds of recovery are accepted: the last free space is for replay, deletion and compaction."""
        return self._parts is not None and self._parts.disks.has_priority_room and not self._misses_journal

    @property
    def read_only_reason(self) -> str:
        """Return why ordinary adds are refused, and the remedy; empty while they are accepted."""
        if self.is_writable:
            return ""
        parts = self._parts
        if parts is None or self._failure is not None:
            return f"the storage {'has failed: ' + str(self._failure) if self._failure else 'is not running'}"
        if self._misses_journal:
            missing = "a journal file" if not self._has_journals(parts) else "the note of a lost directory"
            missing = missing if parts.report.is_covered else "a checkpoint"
            return f"there is no free space for {missing}; free some, and the bookie writes it within seconds"
        return parts.disks.full_reason or (
            f"entries cannot be flushed: {parts.checkpointer.flusher.problem}; retried every second"
        )

    def on_mode_change(self, callback: Callable[[], None]) -> None:
        """Call `callback()` whenever `is_writable` has changed."""
        self._callbacks.of_modes.append(callback)

    @property
    def is_congested(self) -> bool:
        """Report whether the write cache is full, so that the server must not read requests for now."""
        return self._parts is not None and self._parts.cache.is_congested

    def when_uncongested(self, callback: Callable[[], None]) -> None:
        """Call `callback()` once, when the write cache is not congested."""
        if self.is_congested:
            self._callbacks.of_calm.append(callback)
        else:
            asyncio.get_running_loop().call_soon(callback)

    async def _wait_calm(self) -> None:
        """Wait until the bookie is not congested."""
        while self.is_congested:
            calm = asyncio.Event()
            self.when_uncongested(calm.set)
            await calm.wait()

    def _changed(self) -> None:
        """React to a changed state: a flush has ended, a directory has failed, or the mode may have changed."""
        if self._parts is not None and self._parts.health.has_new_failures and not self._is_stopping:
            reacting = self._parts.checkpointer.index_writer.failover.react(self._parts.checkpointer.worker)
            self._tasks.start(self._react(reacting), "giving up a directory")
        if self.collector is not None and self._parts is not None:
            self.collector.disks_changed()
        if not self.is_congested:
            self._callbacks.calmed()
        self._callbacks.mode_is(is_writable=self.is_writable)

    async def _react(self, reacting: Awaitable[None]) -> None:
        """Await a failover. A failed one is repeated by the next write that needs it, before data becomes durable."""
        try:
            await reacting
        except (OSError, StorageError) as error:
            self._events.error("storage.failover_failed", error=error)

    @property
    def has_unknown_ledgers(self) -> bool:
        """Report whether a part of a journal was lost, so that this bookie may have had ledgers it does not know."""
        return bool(self._open().index.catalog.holes)

    async def settle_unknown_ledgers(self, ledger_ids: Iterable[int]) -> int:
        """Declare that, of the unknown ledgers, only these may have had entries here; return how many were unknown.

        From now on only they are uncertain. Durable on return. Raises: StorageError, OSError.
        """
        parts = self._open()
        unknown = [ledger_id for ledger_id in ledger_ids if not parts.index.is_known(ledger_id)]
        for ledger_id in unknown:
            parts.index.create(ledger_id, IndexHeader(b""))
        await parts.checkpointer.checkpoint()
        parts.index.catalog.settle_holes()
        await parts.checkpointer.checkpoint()
        return len(unknown)

    @property
    def limbo(self) -> Limbo:
        """Return the ledgers of which entries or promises may be lost here."""
        return self._open().index.catalog.limbo

    async def held_entries(self, ledger_id: int) -> list[range]:
        """Return maximal runs of the entries that are here for certain, also of an uncertain ledger.

        Entries in lost entry logs are not here. Raises: LedgerUnknownToBookie; ReadFailed, also during a rebuild.
        """
        parts, ledger = await self._ledger(ledger_id)
        cached = [run.entry_ids for run in parts.cache.runs_of(ledger_id)]
        logs = parts.index.catalog.logs
        with ledger:
            return merged([*await parts.index.scan_slots(ledger, runs_in_logs, logs.ids, logs.greatest_id), *cached])

    async def end_limbo(self, doubts: Mapping[int, int]) -> None:
        """Declare that all entries of these closed ledgers are here that must be. Durable on return.

        `doubts`: by ledger, those of `Limbo` before what is here was determined. Ledgers with newer ones stay in limbo.

        Raises: StorageError, OSError.
        """
        parts = self._open()
        for ledger_id, count in doubts.items():
            with contextlib.suppress(LedgerUnknownToBookie):  # deleted meanwhile
                ledger = await parts.index.load(ledger_id)
                if self.limbo.doubts.get(ledger_id, 0) == count:
                    header = ledger.header.without_state(STATE_LIMBO)
                    if ledger.rebuild is RebuildState.PARTIAL:  # no entry is missing that only unread logs have
                        ledger.take(RebuildEvent.READ)
                        header = header.without_state(STATE_REBUILDING)
                    parts.index.set_header(ledger, header)
        await parts.checkpointer.checkpoint()

    async def repair(self) -> dict[str, int]:
        """Read every index file completely and rebuild damaged ones; return counts of ledgers.

        Raises: StorageError, OSError.
        """
        parts = self._open()
        uncertain, ledger_ids = 0, sorted(parts.index.ledger_ids())
        for ledger_id in ledger_ids:
            with contextlib.suppress(DataUnknown, ReadFailed, LedgerUnknownToBookie):
                await self.list_entries(ledger_id)
        await parts.rebuilder.wait_idle()
        for ledger_id in ledger_ids:
            with contextlib.suppress(LedgerUnknownToBookie):  # deleted meanwhile
                uncertain += (await parts.index.load(ledger_id)).header.is_uncertain
        return {"ledgers": len(ledger_ids), "uncertain": uncertain, "rebuilt": parts.rebuilder.count}

    def ledger_ids(self) -> Iterator[int]:
        """Return the ids of all stored ledgers, in no particular order."""
        return self._open().index.ledger_ids()

    def usage(self) -> tuple[int, int]:
        """Return (total, free) bytes of the ledger directories' file systems, as last measured, each counted once."""
        return self._open().disks.space.totals()

    def disk_status(self) -> dict[str, object]:
        """Return the mode of the bookie and the state of every directory as text."""
        parts = self._open()
        directories = {
            path: f"{space.usable:,} of {space.total:,} bytes usable"
            + (", full" if space.is_full else ", almost full" if space.is_almost_full else "")
            for path, space in parts.disks.space.spaces.items()
        }
        failed = {path: f"failed: {reason}" for path, reason in parts.health.failed.items()}
        failed |= dict.fromkeys(self.left_out, "declared lost: the bookie runs without it")
        return {
            "mode": "writable" if self.is_writable else "read-only",
            "reason": self.read_only_reason or None,
            "recoveries": "taken" if self.takes_priority else "refused",
            "directory": directories | failed,
        }

    async def checkpoint(self) -> None:
        """Flush and checkpoint now. Raises the error that prevented it; no data is lost then."""
        await self._open().checkpointer.checkpoint()

    @property
    def was_clean(self) -> bool:
        """Report whether the previous process stopped in an orderly way, or there was none."""
        return self._open().directories.was_clean

    def stats(self) -> dict[str, int]:
        """Return counters and gauges since the start; sizes in bytes."""
        parts = self._open()
        total, free = parts.disks.space.totals()
        return {
            "entries_added": self._entry_count,
            "bytes_added": self._entry_size,
            "journal_groups": sum(journal.group_count for journal in parts.journals),
            "journal_size": sum(journal.size for journal in parts.journals),
            "journal_slow_groups": sum(journal.slowness.group_count for journal in parts.journals),
            "journal_last_ms": max(journal.slowness.last_ms for journal in parts.journals),
            "journal_queued_size": sum(journal.queued_size for journal in parts.journals),
            "write_cache_size": parts.cache.size,
            "write_cache_entries": parts.cache.entry_count,
            "ledgers": len(parts.index.places.paths),
            "index_dirty_size": parts.index.cache.dirty_size,
            "index_clean_size": parts.index.cache.clean_size,
            "flushes": parts.checkpointer.flusher.times.count,
            "flushed_size": parts.checkpointer.flusher.flushed_size,
            "checkpoints": parts.checkpointer.times.count,
            "replayed_entries": parts.report.entry_count,
            "disk_total": total,
            "disk_free": free,
            "disks_full": len(parts.disks.space.full),
            "directories_failed": len(parts.health.failed),
            "directories_lost": len(self.left_out),
            "ledgers_in_limbo": len(parts.index.catalog.limbo),
            "index_files_stray": parts.index.stray_count,
        } | (self.scrubber.gauges() if self.scrubber is not None else {})

    @property
    def parts(self) -> StorageParts | None:
        """Return the components of the running storage, for metrics and status."""
        return self._parts if self._failure is None else None

    def __repr__(self) -> str:
        parts = self._parts
        if parts is None:
            return "<LedgerStore closed>"
        state = "failed" if self._failure else "writable" if self.is_writable else "read-only"
        return f"<LedgerStore {state} cache={parts.cache.size:,} checkpoints={parts.checkpointer.times.count}>"
