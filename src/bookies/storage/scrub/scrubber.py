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
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from bookies.config import BookieConfig
from bookies.errors import DiskFull
from bookies.protocol.pacing import RateLimit
from bookies.protocol.pacing.rate_limit import BURST_S
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime
from bookies.runtime.throttle import throttle
from bookies.storage.disks.durable_files import SyncFailed, replace_copies, run_last
from bookies.storage.engine import StorageParts
from bookies.storage.entry_log import entry_log_format
from bookies.storage.gc.ledger_records import LedgerRecords
from bookies.storage.scrub import scrub_format
from bookies.storage.scrub.scrub_files import IndexScrub, JournalScrub, PassReplaced
from bookies.storage.scrub.scrub_format import Finding, Progress
from bookies.storage.scrub.scrub_listing import Listing, measure, read_copies
from bookies.storage.scrub.scrub_logs import DigestTypeCache, LogScrub
from bookies.storage.scrub.scrub_plan import Plan

START_DELAY_S = 10.0  # from the start of the bookie
RETRY_S = 60.0  # before parts that could not be read are retried
LIST_S = 10.0  # between two listings of the directories, and updates of the pace, while logs are checked
RECHECK_S = 600.0  # between two checks of the findings, while no pass is running
REMEDY = "copy them from other replicas: `bk spark scrub` finds and `bk spark repair` copies what is missing"


class LogHolder(Protocol):
    """The collector, which deletes and compacts entry logs."""

    def put_aside(self, log_id: int, reason: str) -> None: ...

    def take_back(self, log_id: int, reason: str) -> None: ...


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
        self._disk = runtime.disk
        self._config = config
        self._parts = parts
        self._holder = holder
        self._wait_calm = wait_calm
        self._events = Events("storage.scrub", runtime.clock)
        self._worker = runtime.workers.start("scrub")
        self._plan = Plan(Progress(), config.scrub_period_ms, config.scrub_rate_size)
        self._throttle = RateLimit(config.scrub_rate_size, BURST_S)
        self._digest_types = DigestTypeCache(records, config.gc_metadata_rate)
        size_max = config.frame_size_max + 64 * 1024
        self._logs = LogScrub(runtime, parts, self._worker, self._digest_types, self._pay, size_max)
        self._index = IndexScrub(parts, self._pay, self._events)
        self._journals = JournalScrub(runtime.disk, parts, self._worker, self._pay, size_max)
        self._sequence = 0
        self._listing = Listing({}, {})
        self._listed = 0.0
        self._held: dict[int, str] = {}
        self._is_loaded = asyncio.Event()
        self._wanted = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._pass_number = 0  # of the pass to which the running code belongs
        self._waiters: list[asyncio.Future[None]] = []

    def close(self) -> None:
        """Finish the worker's current call and end it. Blocks."""
        run_last(self._worker, self._close_files)

    def _close_files(self) -> None:
        self._logs.close_files()
        self._journals.close_files()

    # -- the loop ------------------------------------------------------------------------------------------------
    def reconfigure(self, config: BookieConfig) -> None:
        """Use these settings. The rate follows with the next log."""
        self._config = config
        self._plan.period_ms, self._plan.rate_max = config.scrub_period_ms, config.scrub_rate_size

    async def run(self) -> None:
        """Scrub forever."""
        await self._load()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(START_DELAY_S, self._config.scrub_period_ms / 1000)):
                await self._wanted.wait()
        while True:
            self._wanted.clear()
            wait_ms = self._plan.wait_ms(self._clock.wall_ms())
            if wait_ms == 0:
                await self._may_read.wait()
                await self._guard("pass", self._work())
                wait_ms = int(RETRY_S * 1000) if self._plan.is_running else 0
            else:
                await self._guard("findings", self._recheck())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait_ms / 1000, RECHECK_S)):
                    await self._wanted.wait()

    async def _work(self) -> None:
        """Begin or continue a pass, until it is done or no part of it can be checked now."""
        await self._list()
        if not self._plan.is_running:
            self._begin()
            await self._save()
        progress = self._plan.progress
        self._pass_number = progress.number
        self._logs.counts = self._index.counts = self._journals.counts = progress.counts
        await self._guard("findings", self._recheck())
        if not progress.are_journals_done:
            await self._guard("journals", self._check_journals())
        if progress.index_cursor is not None:
            await self._guard("index", self._check_index())
        skipped: list[int] = []
        while (log_id := self._plan.next_log(self._listing.paths, skipped)) is not None:
            if self._pass_number != progress.number:
                return
            if not await self._guard(f"log {log_id:x}", self._check_log(log_id)):
                skipped.append(log_id)
            if asyncio.get_running_loop().time() - self._listed > LIST_S:
                await self._list()
        if not skipped and progress.are_journals_done and progress.index_cursor is None:
            await self._end()

    def _begin(self) -> None:
        now_ms = self._clock.wall_ms()
        self._digest_types.forget()
        self._plan.begin(now_ms)
        self._plan.update_logs(self._listing.paths, now_ms, is_new_pass=True, is_whole=self._listing.is_whole)
        number, logs = self._plan.progress.number, len(self._listing.paths)
        self._events.info("scrub.begins", number=number, logs=logs, bytes=sum(self._listing.sizes.values()))

    async def _end(self) -> None:
        progress = self._plan.progress
        self._plan.end(self._clock.wall_ms())
        await self._save()
        counts = progress.counts
        self._events.info(
            "scrub.ended",
            number=progress.number,
            verified=counts.verified,
            unchecked_entries=counts.unchecked_entries,
            damaged_entries=sum(finding.entry_count for finding in progress.findings) + progress.dropped_count,
        )
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    async def _guard(self, part: str, work: Awaitable[None]) -> bool:
        """Run one part of a pass and isolate its failure. Return whether it succeeded. Raises: SyncFailed."""
        try:
            await work
        except SyncFailed as error:
            if not self._parts.failover.covers(error):
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

    async def _pay(self, size: int) -> None:
        """Wait until `size` bytes may be read. Raises: PassReplaced when an operator has started another pass."""
        await self._may_read.wait()
        await self._wait_calm()
        await throttle(self._throttle, size)
        if self._pass_number != self._plan.progress.number:
            raise PassReplaced("another pass was begun")
        self._plan.progress.counts.read += size

    # -- the parts of a pass -------------------------------------------------------------------------------------
    async def _list(self) -> None:
        """List the entry logs, and set the pace."""
        log = self._parts.checkpointer.log
        active_id, extent = await log.worker.run(log.writer.extent)
        known = {log_id: size for log_id, size in self._listing.sizes.items() if log_id != self._listing.active_id}
        directories = self._parts.directories.ledgers
        good = self._parts.health.healthy(directories)
        paths, sizes, is_listed = await self._worker.run(measure, self._disk, good, known)
        if active_id in sizes:
            sizes[active_id] = min(sizes[active_id], extent)
        is_whole = is_listed and len(good) == len(directories)
        self._listed = asyncio.get_running_loop().time()
        self._listing = Listing(paths, sizes, active_id, extent, is_whole)
        now_ms = self._clock.wall_ms()
        self._plan.update_logs(paths, now_ms, is_new_pass=False, is_whole=is_whole)
        self._throttle.rate = self._plan.rate(now_ms, sizes)

    async def _check_journals(self) -> None:
        for path, problem in await self._journals.check():
            # the storage already has everything that is journaled, so a checkpoint makes the journal unnecessary.
            self._events.error(
                "scrub.journal_damaged", path=path, problem=problem, consequence="none", remedy="a checkpoint runs now"
            )
            await self._parts.checkpointer.checkpoint()
        self._plan.progress.are_journals_done = True
        await self._save()

    async def _check_index(self) -> None:
        """Check every index file from the cursor on, then the catalog."""
        progress = self._plan.progress
        async for ledger_id, log_ids in self._index.check(progress.index_cursor or 0):
            for log_id in [named for named in log_ids if named not in self._listing.paths]:
                await self._check_missing(log_id, ledger_id)
            progress.index_cursor = ledger_id
            if self._index.is_save_due():
                await self._save()
        await self._index.check_catalog()
        progress.index_good_ms = max(progress.index_good_ms, progress.began_ms)
        progress.index_cursor = None
        await self._save()

    async def _check_missing(self, log_id: int, ledger_id: int) -> None:
        """Report the entries of a ledger in a log that does not exist."""
        await self._list()
        if log_id in self._listing.paths or not self._listing.is_whole:
            return  # A failed directory is reported elsewhere.
        places = await self._logs.places(log_id, [ledger_id], [(0, 1 << 32)])
        await self._report([self._logs.finding(log_id, place, "its entry log is missing") for place in places])

    async def _check_log(self, log_id: int) -> None:
        if log_id == self._listing.active_id:
            await self._list()  # More of it may be synced, or it may be sealed.
        path = self._listing.paths.get(log_id)
        if path is None:
            return  # It has been removed.
        position = self._plan.start_log(log_id, self._clock.wall_ms())
        extent = self._listing.extent if log_id == self._listing.active_id else None

        async def settled(position: int, findings: list[Finding]) -> None:
            if self._pass_number != self._plan.progress.number:
                raise PassReplaced("another pass was begun")
            fresh = self._plan.add_findings(findings)
            self._plan.reached(log_id, position)
            await self._save()
            self._log_findings(fresh)

        try:
            await self._logs.check(log_id, path, position, extent, settled)
        except FileNotFoundError:
            await self._list()
            if log_id in self._listing.paths:
                raise
            return  # It has been removed.
        self._plan.finish_log(log_id)
        await self._save()

    async def _report(self, findings: Sequence[Finding]) -> None:
        fresh = self._plan.add_findings(findings)
        if fresh:
            await self._save()
            self._log_findings(fresh)

    def _log_findings(self, fresh: Sequence[Finding]) -> None:
        """Log new findings, which are durable."""
        for finding in fresh:
            path = self._listing.paths.get(finding.log_id, entry_log_format.file_name(finding.log_id))
            if finding.ledger_id < 0:
                self._events.warning(
                    "scrub.log_damaged",
                    path=path,
                    problem=finding.problem,
                    consequence="none for entries",
                    remedy="`bk bookie gc --force` or the next start rewrites it if it cannot be read",
                )
                continue
            self._events.error(
                "scrub.entries_damaged",
                path=path,
                offset=finding.offset,
                ledger=finding.ledger_id,
                first=finding.first,
                last=finding.last,
                problem=finding.problem,
                consequence=f"{finding.entry_count:,} entries cannot be read from this bookie",
                remedy=REMEDY,
            )
        self._hold()

    def _hold(self) -> None:
        """Set logs with damaged entries aside, and release the others."""
        if self._holder is None:
            return
        damaged = self._plan.damaged_logs()
        for log_id, reason in damaged.items():
            if log_id not in self._held:
                self._holder.put_aside(log_id, reason)
        for log_id, reason in self._held.items():
            if log_id not in damaged:
                self._holder.take_back(log_id, reason)
        self._held = {log_id: self._held.get(log_id, reason) for log_id, reason in damaged.items()}

    # -- findings ------------------------------------------------------------------------------------------------
    async def _recheck(self) -> None:
        """Check every finding again. Its entries may be intact, moved, or deleted."""
        if not self._plan.progress.findings:
            return
        await self._list()
        changed = False
        for finding in list(self._plan.progress.findings):
            if finding.ledger_id < 0:
                still_stands = finding.log_id in self._listing.paths and not self._was_checked_since(finding)
                left = [finding] if still_stands else []
            else:
                left = await self._logs.recheck(finding)
            if left != [finding] and finding in self._plan.progress.findings:
                changed = True
                self._plan.replace(finding, left)
                if not left:
                    self._events.info(
                        "scrub.settled", log=f"{finding.log_id:x}", ledger=finding.ledger_id, first=finding.first
                    )
        if changed:
            await self._save()
        self._hold()

    def _was_checked_since(self, finding: Finding) -> bool:
        """Report whether a complete check of the log, begun after the finding, did not find it again."""
        log = self._plan.progress.logs.get(finding.log_id)
        return log is None or log.good_ms > finding.found_ms

    # -- persistence ---------------------------------------------------------------------------------------------
    async def _load(self) -> None:
        copies = await self._worker.run(read_copies, self._disk, self._copies())
        self._sequence, progress, damaged = scrub_format.newest(copies)
        for error in damaged:
            self._events.error(
                "scrub.progress_damaged", path=error.path, error=error, consequence="the scrub starts over"
            )
        if progress is not None:
            self._plan.progress = progress
            self._pass_number = progress.number
            self.suspend(is_suspended=progress.is_suspended)
            self._hold()
        self._is_loaded.set()

    def _copies(self) -> list[str]:
        good = self._parts.health.healthy(self._parts.directories.ledgers)
        return [posixpath.join(directory, scrub_format.FILE_NAME) for directory in good]

    async def _save(self) -> None:
        """Make progress and findings durable. A failed write is logged and does not stop the scrub."""
        self._sequence += 1
        data = scrub_format.pack(self._sequence, self._plan.progress)
        try:
            await self._worker.run(replace_copies, self._disk, self._copies(), data)
        except (OSError, DiskFull) as error:
            self._events.warning("scrub.progress_not_kept", error=error)

    # -- operator commands ---------------------------------------------------------------------------------------
    async def start_pass(self) -> asyncio.Future[None]:
        """Begin a pass now at the greatest rate, replacing one in progress. The future is done when it has ended."""
        await self._is_loaded.wait()
        await self._list()
        self._begin()
        self._plan.is_hurried = True
        await self._save()
        self._wanted.set()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        return future

    def suspend(self, *, is_suspended: bool) -> None:
        """Suspend or resume reading. The next save makes it durable."""
        self._plan.progress.is_suspended = is_suspended
        if is_suspended:
            self._may_read.clear()
        else:
            self._may_read.set()

    async def hold_up(self, *, is_suspended: bool) -> None:
        """Do as `suspend`, durably."""
        await self._is_loaded.wait()
        self.suspend(is_suspended=is_suspended)
        self._events.warning("scrub.suspended", by="operator", suspended=is_suspended)
        await self._save()

    def gauges(self) -> dict[str, int]:
        """Return metrics of the present or last pass; ages in seconds, sizes in bytes."""
        progress, now_ms = self._plan.progress, self._clock.wall_ms()
        oldest_ms = self._plan.oldest_ms()
        return {
            "scrub_pass": progress.number,
            "scrub_is_running": int(self._plan.is_running),
            "scrub_read_size": progress.counts.read,
            "scrub_left_size": self._plan.size_left(self._listing.sizes),
            "scrub_verified_size": progress.counts.verified,
            "scrub_unchecked_entries": progress.counts.unchecked_entries,
            "scrub_oldest_unverified_s": 0 if oldest_ms is None else max(0, now_ms - oldest_ms) // 1000,
            "scrub_damaged_entries": sum(finding.entry_count for finding in progress.findings) + progress.dropped_count,
            "scrub_failures": self.failure_count,
        }

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
            "rate_bytes": int(self._throttle.rate or 0),
            "read_bytes": counts.read,
            "left_bytes": gauges["scrub_left_size"],
            "verified_bytes": counts.verified,
            "not_checkable_bytes": counts.unchecked,
            "not_checkable_entries": counts.unchecked_entries,
            "metadata_unavailable": self._digest_types.unknown_count,
            "damaged_entries": gauges["scrub_damaged_entries"],
            "damaged_records_of_no_use": counts.dead_damaged,
            "index_files_damaged": counts.indexes_damaged,
            "journals_damaged": counts.journals_damaged,
            "parts_failed": self.failure_count,
            "damage": [
                {
                    "log": entry_log_format.file_name(finding.log_id),
                    "offset": finding.offset,
                    "ledger": finding.ledger_id if finding.ledger_id >= 0 else None,
                    "first": finding.first,
                    "last": finding.last,
                    "problem": finding.problem,
                }
                for finding in progress.findings
            ],
        }
