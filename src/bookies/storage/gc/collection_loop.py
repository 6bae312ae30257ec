"""Garbage collection: the loop that frees disk space, and its operator commands.

A run completes interrupted compactions (`compaction.py`), finds deleted ledgers (`deleted_ledgers.py`), reads what
entry logs contain, deletes the empty ones (`sealed_logs.py`), and compacts others if that is due. Failures are
isolated: a failed step is counted, logged and retried in the next run; other steps continue. A stalled run is
cancelled, and a new one begins.

On the loop's thread, with a worker of its own for files. Source: storage 7.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct, field

from bookies.runtime.events import Events
from bookies.runtime.histogram import Distribution
from bookies.storage.disks.durable_files import run_last
from bookies.storage.engine import StorageParts
from bookies.storage.engine.quarantine_format import QuarantineState
from bookies.storage.entry_log.log_usage import find_logs
from bookies.storage.gc.collection_policy import Compaction
from bookies.storage.gc.compaction import Compactor
from bookies.storage.gc.deleted_ledgers import LedgerCollection
from bookies.storage.gc.due_compactions import DueCompactions
from bookies.storage.gc.ledger_records import LedgerRecords
from bookies.storage.gc.sealed_logs import SealedLogs
from bookies.storage.gc.supervision import Supervision

START_DELAY_S = 5.0  # from the start of the bookie to the first scan of its entry logs
RECHECK_S = 1.0  # between two reads of the records of quarantined ledgers that clients try to write


class Request(Struct):
    """A run that operators have requested: see `CollectionLoop.collect`. The waiters learn its end."""

    is_forced: bool = False
    with_surplus: bool = False
    re_encrypts: bool = False
    waiters: list[asyncio.Future[None]] = field(default_factory=list)


class CollectionLoop:
    """The collection loop and its operator commands. `run` is a task of the storage; `close` ends the worker.

    `instance_id`: of the bookie's cluster; None: accept the first one that a run reads.
    """

    def __init__(self, parts: StorageParts, records: LedgerRecords, bookie: str, instance_id: str | None) -> None:
        self.runs = Distribution()  # seconds
        self._parts = parts
        self._worker = parts.runtime.workers.start("collect")
        events = Events("storage.gc", parts.runtime.clock)
        self.steps = Supervision(parts, events)
        self._ledgers = LedgerCollection(parts, records, bookie, instance_id, events)
        self._logs = SealedLogs(parts, self._worker, events)
        self._compactor = Compactor(parts, self._worker, self._logs, events, self._ledgers.is_unwanted)
        self.compactions = DueCompactions(parts, self._worker, self._logs, self._compactor, self.steps)
        self._logs.on_progress = self.steps.progressed
        self._ledgers.on_returned = self._logs.known.clear
        self._wanted = asyncio.Event()
        self._next = Request()
        self._present = Request()  # the run in progress
        self._was_full = False
        self._refused: dict[int, None] = {}
        parts.removals.on_refused = self._on_refused

    def reconfigure(self) -> None:
        """Use the settings that `StorageParts.config` has now. A new interval counts from the next run on."""
        self._logs.reconfigure()
        self._ledgers.reconfigure()
        self.compactions.reconfigure()

    def close(self) -> None:
        """Finish the worker's current call and end it. Blocks."""
        run_last(self._worker, self._close_files)

    def _close_files(self) -> None:
        self._logs.close_files()
        self._compactor.close_files()

    # -- the loop ------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Collect forever."""
        clock = self._parts.runtime.clock
        await self.steps.guard("suspension", self.compactions.load_held())
        await asyncio.sleep(min(START_DELAY_S, self._parts.config.gc_interval_ms / 1000))
        await self.steps.guard("entry logs", self._logs.examine())
        while True:
            try:
                async with asyncio.timeout(self._parts.config.gc_interval_ms / 1000):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            if self._refused:
                refused, self._refused = self._refused, {}
                await self.steps.guard("quarantine", self._ledgers.lift(refused))
                if not self._next.waiters:
                    await asyncio.sleep(RECHECK_S)
                    continue
            self._present, self._next = self._next, Request()
            began_s = clock.monotonic()
            with self._parts.checkpointer.activities.during("collection"):
                await self.steps.run(self._run_once(self._present))
            self.runs.record(clock.monotonic() - began_s)
            waiters, self._present = self._present.waiters, Request()
            for future in waiters:
                if not future.done():
                    future.set_result(None)

    async def _run_once(self, request: Request) -> None:
        guard, removing = self.steps.guard, self.steps.removing
        if request.is_forced:
            self._logs.set_aside.clear()
        is_recovered = await guard("interrupted compactions", removing(self._compactor.recover))
        collect = self._ledgers.collect(is_forced=request.is_forced, with_surplus=request.with_surplus)
        await guard("ledgers", collect)
        if request.re_encrypts:
            await guard("re-encryption", self.compactions.recoding.prepare())
        if self.compactions.due() is Compaction.MAJOR:
            threshold = self._parts.config.major_compaction_threshold
            await guard("active entry log", self._parts.checkpointer.roll_log(threshold))
        await guard("entry logs", self._logs.examine())
        is_counted = await guard("usage", self._logs.drop_ledgers(self._ledgers.is_unwanted))
        if is_counted:
            await guard("old deletions", self._ledgers.forget_old(self._logs.may_hold))
        await guard("lost ledgers", self._ledgers.rebuild_lost(self._logs.unindexed))
        await guard("deletion", removing(self._logs.delete_empty))
        if is_recovered and is_counted and await self.compactions.run(re_encrypts=request.re_encrypts):
            await guard("entry logs", self._logs.examine())

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
        self._next.is_forced |= is_forced
        self._next.with_surplus |= with_surplus
        self._next.waiters.append(future)
        self._wanted.set()
        if is_awaited:
            await future

    async def compact(self, level: Compaction, *, is_awaited: bool) -> None:
        """Compact in a run that begins now, due or not. Raises BookieBusy while compaction is suspended."""
        self.compactions.request(level)
        await self.collect(is_forced=False, is_awaited=is_awaited)

    async def re_encrypt(self, *, is_awaited: bool) -> None:
        """Bring every entry log into the form in which the bookie stores entries now, in a run that begins now.

        Raises: InvalidArgument for a bookie without keys; BookieBusy while compaction is suspended.
        """
        self.compactions.recoding.check()
        self.compactions.check_not_suspended()
        self._next.re_encrypts = True
        await self.collect(is_forced=False, is_awaited=is_awaited)

    def disks_changed(self) -> None:
        """Start a run when a disk has become full. Source: storage 7.7."""
        is_full = self._parts.disks.is_full
        if is_full and not self._was_full:
            self._wanted.set()
        self._was_full = is_full

    def put_aside(self, log_id: int, reason: str) -> None:
        """Set aside a log with damage: it is neither deleted nor compacted."""
        if log_id not in self._logs.set_aside:
            self._logs.put_aside(log_id, reason)

    def take_back(self, log_id: int, reason: str) -> None:
        """Undo `put_aside`, unless the log was set aside for another reason since."""
        self._logs.take_back(log_id, reason)

    async def undelete(self, ledger_id: int) -> None:
        """Restore a ledger from quarantine and pin it. Raises InvalidArgument."""
        await self._parts.removals.pin(ledger_id, self._parts.runtime.clock.wall_ms())

    async def orphans(self) -> list[dict[str, object]]:
        """Return the ledgers with entries here and without a record, see `LedgerCollection.orphans`."""
        return await self._ledgers.orphans()

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
            "logs_set_aside": {
                self._parts.logs.label(log_id): reason for log_id, reason in self._logs.set_aside.items()
            },
            "runs": self.runs.count,
            "is_running": self.steps.is_running,
            "is_compaction_held": self.compactions.is_suspended,
            "logs_without_room": self.compactions.waiting_logs,
            "jobs_failed": self.steps.failure_count,
            "runs_restarted": self.steps.restart_count,
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
    def is_forced(self) -> bool:
        """Report whether an operator requested the run in progress with `is_forced`."""
        return self._present.is_forced

    async def logs_named(self, file_id: int) -> dict[int, str]:
        """Return the entry logs with a file's id, and their paths. Raises: OSError."""
        good = self._parts.health.healthy(self._parts.directories.ledgers)
        logs = self._parts.logs
        paths = await self._worker.run(find_logs, self._parts.runtime.disk, logs, good)
        return {log_id: path for log_id, path in paths.items() if logs.file_id(log_id) == file_id}

    def why(self, log_id: int) -> list[str]:
        """Return the reasons why an entry log still exists, one per line."""
        if (reason := self._logs.set_aside.get(log_id)) is not None:
            return [f"it is damaged and was set aside: {reason}", "`bk bookie gc --force` checks it again"]
        if not self._parts.checkpointer.log.is_covered(log_id):
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
        left_s = self._ledgers.quarantine.left_ms(ledger_id, removal) // 1000
        return f", in quarantine for {left_s:,} s more"
