"""Garbage collection: the loop that gives back space, and what operators ask of it.

A run finishes compactions that were interrupted (`compaction.py`), finds deleted ledgers (`garbage.py`), learns what is
in the entry logs and removes the empty ones (`sealed_logs.py`), and compacts others if that is due. Each part is
guarded: what fails is counted, named and tried again in the next run, and stops nothing else. A run that gets nowhere
is ended and begun anew.

On the loop's thread, with a worker of its own for files. Source: storage 7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from bookies.config import BookieConfig
from bookies.errors import BookieBusy, StorageError
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime
from bookies.storage.disks.durable_files import SyncFailed, run_last
from bookies.storage.disks.rate_limit import DiskRateLimit
from bookies.storage.engine import StorageParts
from bookies.storage.engine.quarantine_format import QuarantineState
from bookies.storage.entry_log import LogUsage
from bookies.storage.entry_log.log_usage import find_logs
from bookies.storage.gc.collection_policy import Compaction, Schedule, choose_logs
from bookies.storage.gc.compaction import Compactor
from bookies.storage.gc.deleted_ledgers import LedgerCollection, LedgerRecords
from bookies.storage.gc.sealed_logs import SealedLogs

START_DELAY_S = 5.0  # from the start of the bookie to the first look at its entry logs
RECHECK_S = 1.0  # between two looks at the records of quarantined ledgers that somebody wants to write
COPY_ROOM = 1 << 20  # bytes that a copy takes beyond its entries: headers, maps, index pages
LOGS_WAIT_S = 60.0  # for a rebuild of index files, which needs the logs that are there, before that counts as progress
STALL_S = 900.0  # a run without any progress for so long is begun anew


class CollectionLoop:
    """The loop, and what operators ask of it. `run` is a task of the storage; `close` ends the worker.

    `instance_id`: of the bookie's cluster; None: whatever the first pass finds.
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
        self._clock = runtime.clock
        self._config = config
        self._parts = parts
        self._events = Events("storage.gc", runtime.clock)
        self._worker = runtime.workers.start("collect")
        self._ledgers = LedgerCollection(runtime, config, parts, records, bookie, self._events)
        self._ledgers.instance_id = instance_id
        throttle = DiskRateLimit(config.compaction_rate_size)
        self._logs = SealedLogs(runtime, parts, self._worker, throttle, self._events)
        self._compactor = Compactor(
            runtime, parts, self._worker, self._logs, throttle, self._events, self._ledgers.is_unwanted
        )
        self._logs.on_progress = self._progressed
        self._ledgers.on_returned = self._logs.known.clear
        self._progress_count = 0
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
        self._waiting_logs = 0  # that the last compaction passed over: the disks had no room for the copy
        self._waiters: list[asyncio.Future[None]] = []
        self._refused: dict[int, None] = {}
        parts.removals.on_refused = self._was_refused

    def close(self) -> None:
        """End the worker after what it does. Blocks."""
        run_last(self._worker, self._close_files)

    def _close_files(self) -> None:
        self._logs.close_files()
        self._compactor.close_files()

    # -- the loop ------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Collect for ever."""
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
            await self._supervise(self._run_once(is_forced=is_forced, with_surplus=with_surplus))
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
        is_judged = await self._guard("usage", self._logs.drop_ledgers(self._ledgers.is_unwanted))
        await self._guard("lost ledgers", self._ledgers.look_for(self._logs.doubtful))
        await self._guard("deletion", self._removing(self._logs.delete_empty))
        if is_recovered and is_judged and await self._compact():
            await self._guard("entry logs", self._logs.examine())

    async def _compact(self) -> bool:
        """Compact, the emptiest logs first, if somebody asked for it or it is due; whether there was anything to do."""
        kind = self._due()
        if kind is None:
            return False
        self._compaction_wanted = None
        if not self._is_full:
            self._schedule.started(kind, self._clock.monotonic())
        is_major = kind is Compaction.MAJOR
        threshold = self._config.major_compaction_threshold if is_major else self._config.minor_compaction_threshold
        chosen = choose_logs(self._logs.known.values(), threshold)
        self._waiting_logs = 0
        if self._is_full:  # What needs least room first: each gives back what the next may need.
            chosen.sort(key=lambda each: (each.remaining, each.log_id))
        self._events.info("gc.compaction", kind=kind.value, logs=len(chosen), is_full=self._is_full)
        for usage in chosen:
            if self._is_suspended:
                break
            if self._logs.is_doubtful(usage):
                self._events.warning("gc.log_kept", log=f"{usage.log_id:x}", reason="the index lacks a ledger of it")
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
        """Whether a full disk has room for the copy of a log. It comes back, with what is not wanted, at once."""
        return usage.remaining + COPY_ROOM <= max(self._parts.health.usable.values(), default=0)

    def _due(self) -> Compaction | None:
        """The compaction that a run has to do. A full disk makes a major one due, in every run, as long as it is."""
        if self._is_suspended:
            return None
        if self._is_full and self._config.major_compaction_interval_ms:
            return Compaction.MAJOR
        return self._compaction_wanted or self._schedule.due(self._clock.monotonic())

    @property
    def _is_full(self) -> bool:
        return self._parts.disks.is_full

    async def _removing(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do what removes entry logs while nobody builds an index file from them."""
        lock = self._parts.logs_lock
        while True:
            try:
                async with asyncio.timeout(LOGS_WAIT_S):
                    await lock.acquire()
                break
            except TimeoutError:
                self._progressed()  # Waiting is no standstill.
        try:
            await work()
        finally:
            lock.release()

    async def _guard(self, job: str, work: Awaitable[None]) -> bool:
        """Do a part of a run; its failure is not that of the others. Whether it succeeded."""
        is_done = False
        try:
            await work
            is_done = True
        except SyncFailed as error:
            if not self._parts.failover.covers(error):
                raise
            self._failed(job, error)
        except Exception as error:  # noqa: BLE001  (counted, named, and done again in the next run)
            self._failed(job, error)
        self._progressed()
        return is_done

    def _failed(self, job: str, error: Exception) -> None:
        self.failure_count += 1
        self._events.error("gc.job_failed", job=job, error=error)

    async def _supervise(self, work: Coroutine[Any, Any, None]) -> None:
        """Let a run go on for as long as it gets anywhere. Raises: SyncFailed."""
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

    def _was_refused(self, ledger_id: int) -> None:
        """Somebody uses a ledger in quarantine: perhaps it is in the metadata again."""
        self._refused[ledger_id] = None
        self._wanted.set()

    # -- what operators ask --------------------------------------------------------------------------------------
    async def collect(self, *, is_forced: bool, is_awaited: bool, with_surplus: bool = False) -> None:
        """Run now, or as soon as the present run has ended. `is_forced`: an implausible number of ledgers may go.
        `with_surplus`: copies that no record names go at once."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_forced = self._is_forced or is_forced
        self._with_surplus = self._with_surplus or with_surplus
        self._waiters.append(future)
        self._wanted.set()
        if is_awaited:
            await future

    async def compact(self, kind: Compaction, *, is_awaited: bool) -> None:
        """Compact in a run that begins now, whatever is due. Raises BookieBusy while compaction is suspended."""
        if self._is_suspended:
            raise BookieBusy("compaction is suspended; go on with it: bk bookie gc --resume")
        self._compaction_wanted = kind
        await self.collect(is_forced=False, is_awaited=is_awaited)

    def suspend(self, *, is_suspended: bool) -> None:
        """Start no compaction of another log until this is withdrawn. Whole logs are removed all the same."""
        self._is_suspended = is_suspended
        self._events.warning("gc.compaction_held", by="operator", held=is_suspended)

    async def hold_up(self, *, is_suspended: bool) -> None:
        """`suspend`, durably."""
        self.suspend(is_suspended=is_suspended)
        try:
            await self._worker.run(
                partial(self._parts.directories.hold, self._good_directories(), is_held=is_suspended)
            )
        except (OSError, StorageError) as error:
            self._events.warning("gc.hold_not_kept", error=error, consequence="the next start knows nothing of it")

    async def _load_held(self) -> None:
        if await self._worker.run(self._parts.directories.is_held, self._good_directories()):
            self.suspend(is_suspended=True)

    def _good_directories(self) -> list[str]:
        return self._parts.health.healthy(self._parts.directories.ledgers)

    def disks_changed(self) -> None:
        """Disks that have become full are a reason to look for space at once. Source: 7.7."""
        if self._is_full and not self._was_full:
            self._wanted.set()
        self._was_full = self._is_full

    def put_aside(self, log_id: int, reason: str) -> None:
        """Neither delete nor compact a log, because somebody found damage in it."""
        if log_id not in self._logs.set_aside:
            self._logs.put_aside(log_id, reason)

    def take_back(self, log_id: int, reason: str) -> None:
        """The opposite of `put_aside`; whoever else has put it aside meanwhile keeps it there."""
        self._logs.take_back(log_id, reason)

    async def undelete(self, ledger_id: int) -> None:
        """Bring a ledger back from quarantine and keep it. Raises InvalidArgument."""
        await self._parts.removals.pin(ledger_id, self._clock.wall_ms())

    def space(self) -> dict[str, object]:
        """Where the bytes are, and what stands in the way of giving them back. None: not known yet, after a start."""
        logs, is_known = self._logs.known.values(), self._logs.was_examined
        removals = self._parts.removals
        quarantined = removals.in_state(QuarantineState.QUARANTINED, QuarantineState.SURPLUS)
        return {
            "ledgers": sum(1 for _ in self._parts.index.ledger_ids()),
            "ledgers_in_quarantine": len(quarantined),
            "ledgers_pinned": len(removals.in_state(QuarantineState.PINNED)),
            "ledgers_deleted": self._ledgers.deleted_count,
            "entry_logs": len(logs) if is_known else None,
            "entry_log_bytes": sum(each.total for each in logs) if is_known else None,
            "live_bytes": sum(each.remaining for each in logs) if is_known else None,
            "logs_deleted": self._logs.deleted_count,
            "logs_compacted": self._compactor.compacted_count,
            "compaction_read_bytes": self._compactor.read_size,
            "compaction_written_bytes": self._compactor.copied_size,
            "bytes_given_back": self._logs.deleted_size - self._compactor.copied_size,
            "logs_set_aside": {f"{log_id:x}": reason for log_id, reason in self._logs.set_aside.items()},
            "runs": self.run_count,
            "is_running": self._is_running,
            "is_compaction_held": self._is_suspended,
            "logs_without_room": self._waiting_logs,
            "jobs_failed": self.failure_count,
            "runs_restarted": self.restart_count,
            "alarm": self._ledgers.alarm,
        }

    async def has_log(self, log_id: int) -> bool:
        """Whether there is a file of that entry log. Raises: OSError."""
        return log_id in await self._worker.run(find_logs, self._parts.runtime.disk, self._good_directories())

    def why(self, log_id: int) -> list[str]:
        """Why an entry log is still there, one reason a line."""
        if (reason := self._logs.set_aside.get(log_id)) is not None:
            return [f"it is damaged and was set aside: {reason}", "`bk bookie gc --force` looks at it again"]
        if log_id >= self._parts.checkpointer.covered_log_id:
            return ["it is being written, or no checkpoint has covered it since; one does within minutes"]
        usage = self._logs.known.get(log_id)
        if usage is None:
            return ["this bookie has no such entry log, or has not looked at it yet: bk bookie gc --wait"]
        if usage.remaining == 0:
            return ["nothing lives in it; the next run deletes it: bk bookie gc --wait"]
        lines = [f"{usage.remaining:,} of {usage.total:,} bytes belong to {len(usage.ledger_ids):,} ledgers that exist"]
        by_size = sorted(usage.ledger_ids, key=lambda each: (-usage.size_of(each), each))
        lines += [f"ledger {each}: {usage.size_of(each):,} bytes{self._state_of(each)}" for each in by_size[:10]]
        if self._ledgers.alarm:
            lines.append(self._ledgers.alarm)
        return lines

    def _state_of(self, ledger_id: int) -> str:
        removal = self._parts.removals.get(ledger_id)
        if removal is None:
            is_known = self._parts.index.is_known(ledger_id)
            return "" if is_known else ", of which the index has nothing, and the metadata may want it"
        if removal.state is QuarantineState.PINNED:
            return ", kept by `bk bookie undelete`"
        left_s = self._ledgers.quarantine_left_ms(ledger_id, removal) // 1000
        return f", in quarantine for another {left_s:,} s"
