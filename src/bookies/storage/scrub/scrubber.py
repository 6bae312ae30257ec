"""The scrub: a background reader that checks all stored data once per period, before clients read damaged entries.

A pass checks the journals that a replay would need, the index files, and then the entry logs (`scrub_logs`). Failures
are isolated: a part that cannot be read now is retried. Damage

- in a journal is repaired by a checkpoint, which makes that journal unnecessary;
- in the index is repaired by the index itself, which rebuilds files with damaged pages (`rebuild`);
- in an entry log is reported and listed until the entry is intact, moved, or deleted. Collection neither deletes nor
  compacts such a log. Other replicas have the entry.

Invariants
- A finding is durable before the progress past it, and both before they are reported.
- Progress only moves forward, over restarts too, until a new pass begins.
- The scrub never reads more than its budget per second, and does not read while the bookie is congested.

On the loop's thread, with a worker of its own for files. Source: storage 2.10, 3.5, 5.8.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from bookies.config import BookieConfig
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime
from bookies.storage.disks.durable_files import SyncFailed, run_last
from bookies.storage.engine import StorageParts
from bookies.storage.gc.ledger_records import LedgerRecords
from bookies.storage.scrub.scrub_budget import ScrubBudget
from bookies.storage.scrub.scrub_files import IndexScrub, JournalScrub, PassReplaced
from bookies.storage.scrub.scrub_findings import Findings, LogHolder
from bookies.storage.scrub.scrub_format import Finding, Progress
from bookies.storage.scrub.scrub_listing import LogList, ProgressFiles
from bookies.storage.scrub.scrub_logs import DigestTypeCache, LogScrub
from bookies.storage.scrub.scrub_plan import Plan

START_DELAY_S = 10.0  # from the start of the bookie
RETRY_S = 60.0  # before parts that could not be read are retried
RECHECK_S = 600.0  # between two checks of the findings, while no pass is running


class _Requests:
    """Requests of operators to begin a pass. `due`: set by a new one."""

    def __init__(self) -> None:
        self.due = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []

    def add(self) -> asyncio.Future[None]:
        """Return a future that is done when a pass has ended."""
        self.due.set()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def ended(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class Scrubber:
    """The scrub loop and its operator commands. `run` is a task of the storage; `close` ends the worker.

    `holder`: None if entry logs are never collected. `wait_calm()`: returns when the bookie is not congested.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        parts: StorageParts,
        records: LedgerRecords,
        holder: LogHolder | None,
        wait_calm: Callable[[], Awaitable[None]],
    ) -> None:
        self.failure_count = 0
        self._clock = runtime.clock
        self._parts = parts
        self._events = Events("storage.scrub", runtime.clock)
        self._worker = runtime.workers.start("scrub")
        self._plan = plan = Plan(Progress(), config.scrub_period_ms, config.scrub_rate_size)
        self._budget = budget = ScrubBudget(plan, wait_calm)
        self._list = LogList(runtime, parts, self._worker, plan, budget.limit)
        self._files = ProgressFiles(runtime.disk, parts, self._worker, self._events)
        size_max = config.frame_size_max + 64 * 1024
        digest_types = DigestTypeCache(records, config.gc_metadata_rate)
        self._logs = LogScrub(runtime, parts, self._worker, digest_types, budget.pay, size_max)
        self._index = IndexScrub(parts, budget.pay, self._events)
        self._journals = JournalScrub(runtime.disk, parts, self._worker, budget.pay, size_max)
        self._findings = Findings(plan, self._files, self._list, self._logs, self._events, holder)
        self._requests = _Requests()

    def close(self) -> None:
        """Finish the worker's current call and end it. Blocks."""
        run_last(self._worker, self._close_files)

    def _close_files(self) -> None:
        self._logs.close_files()
        self._journals.close_files()

    # -- the loop ------------------------------------------------------------------------------------------------
    def reconfigure(self, config: BookieConfig) -> None:
        """Use these settings. The rate follows with the next log."""
        self._plan.period_ms, self._plan.rate_max = config.scrub_period_ms, config.scrub_rate_size

    async def run(self) -> None:
        """Scrub forever."""
        await self._load()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(START_DELAY_S, self._plan.period_ms / 1000)):
                await self._requests.due.wait()
        while True:
            self._requests.due.clear()
            wait_ms = self._plan.wait_ms(self._clock.wall_ms())
            if wait_ms == 0:
                await self._budget.is_open.wait()
                await self._guard("pass", self._work())
                wait_ms = int(RETRY_S * 1000) if self._plan.is_running else 0
            else:
                await self._guard("findings", self._findings.recheck())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait_ms / 1000, RECHECK_S)):
                    await self._requests.due.wait()

    async def _work(self) -> None:
        """Begin or continue a pass, until it is done or no part of it can be checked now."""
        await self._list.update()
        if not self._plan.is_running:
            self._begin()
            await self._files.save(self._plan.progress)
        progress = self._plan.progress
        self._budget.pass_number = progress.number
        self._logs.counts = self._index.counts = self._journals.counts = progress.counts
        await self._guard("findings", self._findings.recheck())
        if not progress.are_journals_done:
            await self._guard("journals", self._check_journals())
        if progress.index_cursor is not None:
            await self._guard("index", self._check_index())
        skipped: list[int] = []
        while (log_id := self._plan.next_log(self._list.listing.paths, skipped)) is not None:
            if self._budget.pass_number != progress.number:
                return
            if not await self._guard(f"log {self._parts.logs.label(log_id)}", self._check_log(log_id)):
                skipped.append(log_id)
            if self._list.is_old:
                await self._list.update()
        if not skipped and progress.are_journals_done and progress.index_cursor is None:
            await self._end()

    def _begin(self) -> None:
        now_ms = self._clock.wall_ms()
        self._logs.digest_types.forget()
        self._plan.begin(now_ms)
        self._plan.update_logs(self._list.listing.paths, now_ms, is_new_pass=True, is_whole=self._list.listing.is_whole)
        number, logs = self._plan.progress.number, len(self._list.listing.paths)
        self._events.info("scrub.begins", number=number, logs=logs, bytes=sum(self._list.listing.sizes.values()))

    async def _end(self) -> None:
        progress = self._plan.progress
        self._plan.end(self._clock.wall_ms())
        await self._files.save(self._plan.progress)
        counts = progress.counts
        self._events.info(
            "scrub.ended",
            number=progress.number,
            verified=counts.verified,
            unchecked_entries=counts.unchecked_entries,
            damaged_entries=sum(finding.entry_count for finding in progress.findings) + progress.dropped_count,
        )
        self._requests.ended()

    async def _guard(self, part: str, work: Awaitable[None]) -> bool:
        """Run one part of a pass and isolate its failure. Return whether it succeeded. Raises: SyncFailed."""
        try:
            await work
        except SyncFailed as error:
            if not self._parts.checkpointer.index_writer.failover.covers(error):
                raise
            self.failure_count += 1
            return False
        except PassReplaced:
            return False
        except Exception as error:  # noqa: BLE001  (counted, logged, and retried)
            self.failure_count += 1
            self._events.error("scrub.part_failed", part=part, error=error)
            return False
        return True

    # -- the parts of a pass -------------------------------------------------------------------------------------
    async def _check_journals(self) -> None:
        for path, problem in await self._journals.check():
            # the storage already has everything that is journaled, so a checkpoint makes the journal unnecessary.
            self._events.error(
                "scrub.journal_damaged", path=path, problem=problem, consequence="none", remedy="a checkpoint runs now"
            )
            await self._parts.checkpointer.checkpoint()
        self._plan.progress.are_journals_done = True
        await self._files.save(self._plan.progress)

    async def _check_index(self) -> None:
        """Check every index file from the cursor on, then the catalog."""
        progress = self._plan.progress
        async for ledger_id, log_ids in self._index.check(progress.index_cursor or 0):
            for log_id in [named for named in log_ids if named not in self._list.listing.paths]:
                await self._check_missing(log_id, ledger_id)
            progress.index_cursor = ledger_id
            if self._index.is_save_due():
                await self._files.save(self._plan.progress)
        await self._index.check_catalog()
        progress.index_good_ms = max(progress.index_good_ms, progress.began_ms)
        progress.index_cursor = None
        await self._files.save(self._plan.progress)

    async def _check_missing(self, log_id: int, ledger_id: int) -> None:
        """Report the entries of a ledger in a log that does not exist."""
        await self._list.update()
        if log_id in self._list.listing.paths or not self._list.listing.is_whole:
            return  # A failed directory is reported elsewhere.
        places = await self._logs.places(log_id, [ledger_id], [(0, 1 << 32)])
        await self._findings.report([self._logs.finding(log_id, place, "its entry log is missing") for place in places])

    async def _check_log(self, log_id: int) -> None:
        if log_id in self._list.listing.extents:
            await self._list.update()  # More of it may be synced, or it may be sealed.
        path = self._list.listing.paths.get(log_id)
        if path is None:
            return  # It has been removed.
        position = self._plan.start_log(log_id, self._clock.wall_ms())
        extent = self._list.listing.extents.get(log_id)

        async def settled(position: int, findings: list[Finding]) -> None:
            self._budget.check()
            fresh = self._plan.add_findings(findings)
            self._plan.reached(log_id, position)
            await self._files.save(self._plan.progress)
            self._findings.log(fresh)

        try:
            await self._logs.check(log_id, path, position, extent, settled)
        except FileNotFoundError:
            await self._list.update()
            if log_id in self._list.listing.paths:
                raise
            return  # It has been removed.
        self._plan.finish_log(log_id)
        await self._files.save(self._plan.progress)

    async def _load(self) -> None:
        progress = await self._files.load()
        if progress is not None:
            self._plan.progress = progress
            self._budget.pass_number = progress.number
            self.suspend(is_suspended=progress.is_suspended)
            self._findings.hold()
        self._files.is_loaded.set()

    # -- operator commands ---------------------------------------------------------------------------------------
    async def start_pass(self) -> asyncio.Future[None]:
        """Begin a pass now at the greatest rate, replacing one in progress. The future is done when it has ended."""
        await self._files.is_loaded.wait()
        await self._list.update()
        self._begin()
        self._plan.is_hurried = True
        await self._files.save(self._plan.progress)
        return self._requests.add()

    def suspend(self, *, is_suspended: bool) -> None:
        """Suspend or resume reading. The next save makes it durable."""
        self._plan.progress.is_suspended = is_suspended
        if is_suspended:
            self._budget.is_open.clear()
        else:
            self._budget.is_open.set()

    async def hold_up(self, *, is_suspended: bool) -> None:
        """Do as `suspend`, durably."""
        await self._files.is_loaded.wait()
        self.suspend(is_suspended=is_suspended)
        self._events.warning("scrub.suspended", by="operator", suspended=is_suspended)
        await self._files.save(self._plan.progress)

    def gauges(self) -> dict[str, int]:
        """Return metrics of the present or last pass; ages in seconds, sizes in bytes."""
        progress, now_ms = self._plan.progress, self._clock.wall_ms()
        oldest_ms = self._plan.oldest_ms()
        return {
            "scrub_pass": progress.number,
            "scrub_is_running": int(self._plan.is_running),
            "scrub_read_size": progress.counts.read,
            "scrub_left_size": self._plan.size_left(self._list.listing.sizes),
            "scrub_verified_size": progress.counts.verified,
            "scrub_unchecked_entries": progress.counts.unchecked_entries,
            "scrub_oldest_unverified_s": 0 if oldest_ms is None else max(0, now_ms - oldest_ms) // 1000,
            "scrub_damaged_entries": sum(finding.entry_count for finding in progress.findings) + progress.dropped_count,
            "scrub_failures": self.failure_count,
        }

    def damaged_ledgers(self) -> list[int]:
        """Return the ids of the ledgers that have damaged entries here, as far as findings are kept."""
        ids = (finding.ledger_id for finding in self._plan.progress.findings)
        return list(dict.fromkeys(ledger_id for ledger_id in ids if ledger_id >= 0))

    def status(self) -> dict[str, object]:
        """Return progress, results and findings. `damage` has what a repair needs."""
        progress, counts = self._plan.progress, self._plan.progress.counts
        gauges = self.gauges()
        return {
            "pass": progress.number,
            "is_running": self._plan.is_running,
            "is_suspended": progress.is_suspended,
            "next_pass_s": None if self._plan.is_running else self._plan.wait_ms(self._clock.wall_ms()) // 1000,
            "oldest_unverified_s": gauges["scrub_oldest_unverified_s"],
            "rate_bytes": int(self._budget.limit.rate or 0),
            "read_bytes": counts.read,
            "left_bytes": gauges["scrub_left_size"],
            "verified_bytes": counts.verified,
            "not_checkable_bytes": counts.unchecked,
            "not_checkable_entries": counts.unchecked_entries,
            "metadata_unavailable": self._logs.digest_types.unknown_count,
            "damaged_entries": gauges["scrub_damaged_entries"],
            "damaged_records_of_no_use": counts.dead_damaged,
            "index_files_damaged": counts.indexes_damaged,
            "journals_damaged": counts.journals_damaged,
            "parts_failed": self.failure_count,
            "damage": [
                {
                    "log": self._parts.logs.name(finding.log_id),
                    "offset": finding.offset,
                    "ledger": finding.ledger_id if finding.ledger_id >= 0 else None,
                    "first": finding.first,
                    "last": finding.last,
                    "problem": finding.problem,
                }
                for finding in progress.findings
            ],
        }
