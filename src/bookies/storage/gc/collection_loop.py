"""Garbage collection: the loop that frees disk space, and its operator commands.

A run completes interrupted compactions (`compaction.py`), finds deleted ledgers (`deleted_ledgers.py`), reads what
entry logs contain, deletes the empty ones (`sealed_logs.py`), and compacts others if that is due. Failures are
isolated: a failed step is counted, logged and retried in the next run; other steps continue. A stalled run is
cancelled, and a new one begins.

On the loop's thread, with a worker of its own for files. Source: storage 7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from bookies.config import BookieConfig
from bookies.errors import BookieBusy, StorageError
from bookies.protocol.pacing import RateLimit
from bookies.protocol.pacing.rate_limit import BURST_S
from bookies.runtime.events import Events
from bookies.runtime.histogram import Distribution
from bookies.runtime.ports import Runtime
from bookies.storage.disks.durable_files import SyncFailed, run_last
from bookies.storage.engine import StorageParts
from bookies.storage.engine.quarantine_format import QuarantineState
from bookies.storage.entry_log import LogUsage
from bookies.storage.entry_log.log_usage import find_logs
from bookies.storage.gc.collection_policy import Compaction, Schedule, choose_logs
from bookies.storage.gc.compaction import Compactor
from bookies.storage.gc.deleted_ledgers import LedgerCollection, LedgerRecords
from bookies.storage.gc.sealed_logs import SealedLogs

START_DELAY_S = 5.0  # from the start of the bookie to the first scan of its entry logs
RECHECK_S = 1.0  # between two reads of the records of quarantined ledgers that clients try to write
COPY_ROOM = 1 << 20  # bytes that a copy needs beyond its entries: headers, maps, index pages
LOGS_WAIT_S = 60.0  # wait for a rebuild of index files, which uses the same logs; each such period counts as progress
STALL_S = 900.0  # a run without progress for this time is cancelled


class CollectionLoop:
    """The collection loop and its operator commands. `run` is a task of the storage; `close` ends the worker.

    `instance_id`: of the bookie's cluster; None: accept the first one that a run reads.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        parts: StorageParts,
        records: LedgerRecords,
        bookie: str,
        instance_id: str | None,
    ) -> None:
        self.run_count = 0
        self.failure_count = 0
        self.restart_count = 0
        self.runs = Distribution()  # seconds
        self.compactions = dict.fromkeys(Compaction, 0)
        self.compacting: Compaction | None = None
        self.compacted_at_ms = dict.fromkeys(Compaction, 0)  # wall clock of the last one
        self._clock = runtime.clock
        self._config = config
        self._parts = parts
        self._events = Events("storage.gc", runtime.clock)
        self._worker = runtime.workers.start("collect")
        self._ledgers = LedgerCollection(runtime, config, parts, records, bookie, self._events)
        self._ledgers.instance_id = instance_id
        throttle = RateLimit(config.compaction_rate_size, BURST_S)
        self._logs = SealedLogs(runtime, parts, self._worker, throttle, self._events)
        self._compactor = Compactor(
            runtime, parts, self._worker, self._logs, throttle, self._events, self._ledgers.is_unwanted
        )
        self._logs.on_progress = self._progressed
        self._ledgers.on_returned = self._logs.known.clear
        self._progress_count = 0
        self.is_forced = False  # the run in progress was requested by an operator with `is_forced`
        self._is_running = False
        self._wanted = asyncio.Event()
        self._is_forced = False
        self._with_surplus = False
        self._is_suspended = False
        self._compaction_wanted: Compaction | None = None
        now = runtime.clock.monotonic()
        self._schedule = Schedule(
            config.minor_compaction_interval_ms / 1000, config.major_compaction_interval_ms / 1000, now, now
        )
        self._was_full = False
        self._waiting_logs = 0  # logs that the last compaction skipped: no disk had free space for the copy
        self._waiters: list[asyncio.Future[None]] = []
        self._refused: dict[int, None] = {}
        parts.removals.on_refused = self._on_refused

    def close(self) -> None:
        """Finish the worker's current call and end it. Blocks."""
        run_last(self._worker, self._close_files)

    def _close_files(self) -> None:
        self._logs.close_files()
        self._compactor.close_files()

    # -- the loop ------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Collect forever."""
        interval_s = self._config.gc_interval_ms / 1000
        await self._guard("suspension", self._load_held())
        await asyncio.sleep(min(START_DELAY_S, interval_s))
        await self._guard("entry logs", self._logs.examine())
        while True:
            try:
                async with asyncio.timeout(interval_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            if self._refused:
                refused, self._refused = self._refused, {}
                await self._guard("quarantine", self._ledgers.lift(refused))
                if not self._waiters:
                    await asyncio.sleep(RECHECK_S)
                    continue
            is_forced, self._is_forced = self._is_forced, False
            with_surplus, self._with_surplus = self._with_surplus, False
            waiters, self._waiters = self._waiters, []
            began_s, self.is_forced = self._clock.monotonic(), is_forced
            with self._parts.activities.during("collection"):
                await self._supervise(self._run_once(is_forced=is_forced, with_surplus=with_surplus))
            self.runs.record(self._clock.monotonic() - began_s)
            self.is_forced = False
            self.run_count += 1
            for future in waiters:
                if not future.done():
                    future.set_result(None)

    async def _run_once(self, *, is_forced: bool, with_surplus: bool) -> None:
        if is_forced:
            self._logs.set_aside.clear()
        is_recovered = await self._guard("interrupted compactions", self._removing(self._compactor.recover))
        await self._guard("ledgers", self._ledgers.collect(is_forced=is_forced, with_surplus=with_surplus))
        if self._due() is Compaction.MAJOR:
            threshold = self._config.major_compaction_threshold
            await self._guard("active entry log", self._parts.checkpointer.roll_log(threshold))
        await self._guard("entry logs", self._logs.examine())
        is_counted = await self._guard("usage", self._logs.drop_ledgers(self._ledgers.is_unwanted))
        await self._guard("lost ledgers", self._ledgers.rebuild_lost(self._logs.unindexed))
        await self._guard("deletion", self._removing(self._logs.delete_empty))
        if is_recovered and is_counted and await self._compact():
            await self._guard("entry logs", self._logs.examine())

    async def _compact(self) -> bool:
        """Compact if it was requested or is due. Return whether there were candidates."""
        level = self._due()
        if level is None:
            return False
        self._compaction_wanted = None
        self.compacting = level
        try:
            with self._parts.activities.during("compaction"):
                return await self._compact_logs(level)
        finally:
            self.compacting = None
            self.compactions[level] += 1
            self.compacted_at_ms[level] = self._clock.wall_ms()

    async def _compact_logs(self, level: Compaction) -> bool:
        if not self._is_full:
            self._schedule.started(level, self._clock.monotonic())
        is_major = level is Compaction.MAJOR
        threshold = self._config.major_compaction_threshold if is_major else self._config.minor_compaction_threshold
        chosen = choose_logs(self._logs.known.values(), threshold)
        self._waiting_logs = 0
        if self._is_full:  # The smallest copy first: its source frees space that the next copy may need.
            chosen.sort(key=lambda usage: (usage.remaining, usage.log_id))
        self._events.info("gc.compaction", kind=level.value, logs=len(chosen), is_full=self._is_full)
        for usage in chosen:
            if self._is_suspended:
                break
            if self._logs.has_unindexed(usage):
                self._events.warning(
                    "gc.log_kept", log=f"{usage.log_id:x}", reason="the index lacks a ledger that has entries in it"
                )
                continue
            await self._guard("disks", self._parts.disks.measure(self._worker))
            if self._is_full and not self._has_room(usage):
                self._waiting_logs += 1
                continue
            is_transactional = self._config.compaction == "transactional"
            compact = partial(self._compactor.compact, usage, is_transactional=is_transactional)
            await self._guard(f"compaction of log {usage.log_id:x}", self._removing(compact))
        return bool(chosen)

    def _has_room(self, usage: LogUsage) -> bool:
        """Report whether a full disk has free space for the copy of a log. Deleting the source frees more at once."""
        return usage.remaining + COPY_ROOM <= max(self._parts.health.usable.values(), default=0)

    def _due(self) -> Compaction | None:
        """Return the compaction that this run has to do. While a disk is full, every run does a major one."""
        if self._is_suspended:
            return None
        if self._is_full and self._config.major_compaction_interval_ms:
            return Compaction.MAJOR
        return self._compaction_wanted or self._schedule.due(self._clock.monotonic())

    @property
    def _is_full(self) -> bool:
        return self._parts.disks.is_full

    async def _removing(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a step that removes entry logs, while no rebuild of an index file reads them."""
        lock = self._parts.rebuilder.logs_lock
        while True:
            try:
                async with asyncio.timeout(LOGS_WAIT_S):
                    await lock.acquire()
                break
            except TimeoutError:
                self._progressed()  # The wait does not count as a stall.
        try:
            await work()
        finally:
            lock.release()

    async def _guard(self, job: str, work: Awaitable[None]) -> bool:
        """Run one step and isolate its failure. Return whether it succeeded. Raises: SyncFailed."""
        is_done = False
        try:
            await work
            is_done = True
        except SyncFailed as error:
            if not self._parts.failover.covers(error):
                raise
            self._failed(job, error)
        except Exception as error:  # noqa: BLE001  (counted, logged, and retried in the next run)
            self._failed(job, error)
        self._progressed()
        return is_done

    def _failed(self, job: str, error: Exception) -> None:
        self.failure_count += 1
        self._events.error("gc.job_failed", job=job, error=error)

    async def _supervise(self, work: Coroutine[Any, Any, None]) -> None:
        """Run until the work is done, or has made no progress for `STALL_S`. Raises: SyncFailed."""
        task = asyncio.ensure_future(work)
        self._is_running = True
        try:
            while not task.done():
                before = self._progress_count
                await asyncio.wait([task], timeout=STALL_S)
                if not task.done() and self._progress_count == before:
                    self.restart_count += 1
                    self._events.error("gc.stalled", seconds=STALL_S)
                    break
        finally:
            self._is_running = False
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    def _progressed(self) -> None:
        self._progress_count += 1

    def _on_refused(self, ledger_id: int) -> None:
        """Schedule a check of a quarantined ledger that a client uses. It may be in the metadata again."""
        self._refused[ledger_id] = None
        self._wanted.set()

    # -- operator commands ---------------------------------------------------------------------------------------
    async def collect(self, *, is_forced: bool, is_awaited: bool, with_surplus: bool = False) -> None:
        """Run now, or as soon as the present run has ended.

        `is_forced`: allow an implausible number of removals, and check set-aside logs again. `with_surplus`: delete
        copies without quarantine that no record names.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_forced = self._is_forced or is_forced
        self._with_surplus = self._with_surplus or with_surplus
        self._waiters.append(future)
        self._wanted.set()
        if is_awaited:
            await future

    async def compact(self, level: Compaction, *, is_awaited: bool) -> None:
        """Compact in a run that begins now, due or not. Raises BookieBusy while compaction is suspended."""
        if self._is_suspended:
            raise BookieBusy("compaction is suspended. Resume it with `bk bookie gc --resume`")
        self._compaction_wanted = level
        await self.collect(is_forced=False, is_awaited=is_awaited)

    def suspend(self, *, is_suspended: bool) -> None:
        """Suspend or resume compaction. A compaction in progress completes its log. Empty logs are still deleted."""
        self._is_suspended = is_suspended
        self._events.warning("gc.compaction_held", by="operator", held=is_suspended)

    async def hold_up(self, *, is_suspended: bool) -> None:
        """Do as `suspend`, durably."""
        self.suspend(is_suspended=is_suspended)
        try:
            await self._worker.run(
                partial(self._parts.directories.hold, self._good_directories(), is_held=is_suspended)
            )
        except (OSError, StorageError) as error:
            self._events.warning("gc.hold_not_kept", error=error, consequence="the setting is lost at the next start")

    async def _load_held(self) -> None:
        if await self._worker.run(self._parts.directories.is_held, self._good_directories()):
            self.suspend(is_suspended=True)

    def _good_directories(self) -> list[str]:
        return self._parts.health.healthy(self._parts.directories.ledgers)

    def disks_changed(self) -> None:
        """Start a run when a disk has become full. Source: storage 7.7."""
        if self._is_full and not self._was_full:
            self._wanted.set()
        self._was_full = self._is_full

    def put_aside(self, log_id: int, reason: str) -> None:
        """Set aside a log with damage: it is neither deleted nor compacted."""
        if log_id not in self._logs.set_aside:
            self._logs.put_aside(log_id, reason)

    def take_back(self, log_id: int, reason: str) -> None:
        """Undo `put_aside`, unless the log was set aside for another reason since."""
        self._logs.take_back(log_id, reason)

    async def undelete(self, ledger_id: int) -> None:
        """Restore a ledger from quarantine and pin it. Raises InvalidArgument."""
        await self._parts.removals.pin(ledger_id, self._clock.wall_ms())

    def space(self) -> dict[str, object]:
        """Report disk usage, and why space is not freed. None: not known yet, after a start."""
        return {"ledgers": sum(1 for _ in self._parts.index.ledger_ids()), **self.figures()}

    def figures(self) -> dict[str, object]:
        """Return what `space` reports, without the number of ledgers, which takes a pass over all of them."""
        logs, is_known = self._logs.known.values(), self._logs.was_examined
        removals = self._parts.removals
        quarantined = removals.in_state(QuarantineState.QUARANTINED, QuarantineState.SURPLUS)
        return {
            "ledgers_in_quarantine": len(quarantined),
            "ledgers_pinned": len(removals.in_state(QuarantineState.PINNED)),
            "ledgers_deleted": self._ledgers.deleted_count,
            "entry_logs": len(logs) if is_known else None,
            "entry_log_bytes": sum(usage.total for usage in logs) if is_known else None,
            "live_bytes": sum(usage.remaining for usage in logs) if is_known else None,
            "logs_deleted": self._logs.deleted_count,
            "logs_compacted": self._compactor.compacted_count,
            "compaction_read_bytes": self._compactor.read_size,
            "compaction_written_bytes": self._compactor.copied_size,
            "bytes_given_back": self._logs.deleted_size - self._compactor.copied_size,
            "bytes_given_back_by_compaction": self._compactor.reclaimed_size,
            "logs_set_aside": {f"{log_id:x}": reason for log_id, reason in self._logs.set_aside.items()},
            "runs": self.run_count,
            "is_running": self._is_running,
            "is_compaction_held": self._is_suspended,
            "logs_without_room": self._waiting_logs,
            "jobs_failed": self.failure_count,
            "runs_restarted": self.restart_count,
            "alarm": self.alarm,
        }

    def logs_by_share(self) -> list[int]:
        """Return the number of entry logs by their share of live bytes, in ten steps: up to 10 %, up to 20 %, ..."""
        counts = [0] * 10
        for usage in self._logs.known.values():
            counts[min(9, int(usage.share * 10))] += 1
        return counts

    @property
    def alarm(self) -> str | None:
        """Return why no ledger is removed at present, or None."""
        return self._ledgers.alarm

    @property
    def is_suspended(self) -> bool:
        """Report whether an operator has suspended compaction."""
        return self._is_suspended

    async def has_log(self, log_id: int) -> bool:
        """Report whether a file of that entry log exists. Raises: OSError."""
        return log_id in await self._worker.run(find_logs, self._parts.runtime.disk, self._good_directories())

    def why(self, log_id: int) -> list[str]:
        """Return the reasons why an entry log still exists, one per line."""
        if (reason := self._logs.set_aside.get(log_id)) is not None:
            return [f"it is damaged and was set aside: {reason}", "`bk bookie gc --force` checks it again"]
        if log_id >= self._parts.checkpointer.covered_log_id:
            return ["it is being written, or no checkpoint covers it yet; one will within minutes"]
        usage = self._logs.known.get(log_id)
        if usage is None:
            return ["this bookie has no such entry log, or has not scanned it yet: run `bk bookie gc --wait`"]
        if usage.remaining == 0:
            return ["it has no live entries; the next run deletes it: run `bk bookie gc --wait`"]
        lines = [f"{usage.remaining:,} of {usage.total:,} bytes belong to {len(usage.ledger_ids):,} ledgers that exist"]
        by_size = sorted(usage.ledger_ids, key=lambda ledger_id: (-usage.size_of(ledger_id), ledger_id))
        lines += [
            f"ledger {ledger_id}: {usage.size_of(ledger_id):,} bytes{self._state_of(ledger_id)}"
            for ledger_id in by_size[:10]
        ]
        if self._ledgers.alarm:
            lines.append(self._ledgers.alarm)
        return lines

    def _state_of(self, ledger_id: int) -> str:
        removal = self._parts.removals.get(ledger_id)
        if removal is None:
            is_known = self._parts.index.is_known(ledger_id)
            return "" if is_known else ", missing from the index, and the metadata may list this bookie for it"
        if removal.state is QuarantineState.PINNED:
            return ", pinned by `bk bookie undelete`"
        left_s = self._ledgers.quarantine_left_ms(ledger_id, removal) // 1000
        return f", in quarantine for {left_s:,} s more"
