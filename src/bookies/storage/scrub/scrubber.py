"""The scrub: a reader in the background that goes over everything once per period, before a client meets the damage.

A pass takes the journals that a replay would need, the index files, and then the entry logs (`scrub_logs`), each part
guarded: what cannot be read now is tried again. What it finds

- in a journal is put right by a checkpoint: nothing needs that journal then;
- in the index is put right by what it does anyway about a page that is not what the catalog says (`rebuild`);
- in an entry log is told and kept on a list until the entry is fine again, elsewhere, or gone. Collection neither
  deletes nor compacts such a log. Other replicas have the entry.

Invariants
- A finding is durable before the progress that lies behind it, and both before anybody is told.
- Progress only moves forward, over restarts too, until a new pass begins.
- Never more than the budget is read in a second, and nothing while the bookie is congested.

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
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime
from bookies.storage.disks.durable_files import SyncFailed, replace_copies, run_last
from bookies.storage.disks.rate_limit import DiskRateLimit
from bookies.storage.engine import StorageParts
from bookies.storage.entry_log import entry_log_format
from bookies.storage.gc.deleted_ledgers import LedgerRecords
from bookies.storage.scrub import scrub_format
from bookies.storage.scrub.scrub_files import IndexScrub, JournalScrub, Replaced
from bookies.storage.scrub.scrub_format import Finding, Progress
from bookies.storage.scrub.scrub_listing import Listing, measure, read_copies
from bookies.storage.scrub.scrub_logs import DigestKinds, LogScrub
from bookies.storage.scrub.scrub_plan import Plan

START_DELAY_S = 10.0  # from the start of the bookie
RETRY_S = 60.0  # before parts that could not be read are tried again
LIST_S = 10.0  # between two looks at the directories, and at the pace, while logs are checked
RECHECK_S = 600.0  # between two looks at what was found, while no pass is under way
REMEDY = "other replicas should have them: bk spark scrub finds and bk spark repair copies what is missing"


class LogHolder(Protocol):
    """Who deletes and compacts entry logs."""

    def put_aside(self, log_id: int, reason: str) -> None: ...

    def take_back(self, log_id: int, reason: str) -> None: ...


class Scrubber:
    """The loop, and what operators ask of it. `run` is a task of the storage; `close` ends the worker.

    `holder`: None when nothing is ever collected. `wait_calm()`: returns when the bookie has time for this.
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
        self._throttle = DiskRateLimit(config.scrub_rate_size)
        self._kinds = DigestKinds(records, config.gc_metadata_rate)
        size_max = config.frame_size_max + 64 * 1024
        self._logs = LogScrub(runtime, parts, self._worker, self._kinds, self._pay, size_max)
        self._index = IndexScrub(parts, self._pay, self._events)
        self._journals = JournalScrub(runtime.disk, parts, self._worker, self._pay, size_max)
        self._sequence = 0
        self._listing = Listing({}, {})
        self._listed = 0.0
        self._held: dict[int, str] = {}
        self._is_loaded = asyncio.Event()
        self._wanted = asyncio.Event()
        self._go_on = asyncio.Event()
        self._go_on.set()
        self._pass_number = 0  # of the pass that the code under way belongs to
        self._waiters: list[asyncio.Future[None]] = []

    def close(self) -> None:
        """End the worker after what it does. Blocks."""
        run_last(self._worker, self._close_files)

    def _close_files(self) -> None:
        self._logs.close_files()
        self._journals.close_files()

    # -- the loop ------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Scrub for ever."""
        await self._load()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(START_DELAY_S, self._config.scrub_period_ms / 1000)):
                await self._wanted.wait()
        while True:
            self._wanted.clear()
            wait_ms = self._plan.wait_ms(self._clock.wall_ms())
            if wait_ms == 0:
                await self._go_on.wait()
                await self._guard("pass", self._work())
                wait_ms = int(RETRY_S * 1000) if self._plan.is_running else 0
            else:
                await self._guard("findings", self._recheck())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait_ms / 1000, RECHECK_S)):
                    await self._wanted.wait()

    async def _work(self) -> None:
        """Begin a pass, or go on with it, until it is done or nothing of it can be done now."""
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
        self._kinds.forget()
        self._plan.begin(now_ms)
        self._plan.see(self._listing.paths, now_ms, is_new_pass=True, is_whole=self._listing.is_whole)
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
            damaged_entries=sum(each.entry_count for each in progress.findings) + progress.dropped_count,
        )
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    async def _guard(self, part: str, work: Awaitable[None]) -> bool:
        """Do a part of a pass; its failure is not that of the others. Whether it succeeded."""
        try:
            await work
        except SyncFailed as error:
            if not self._parts.failover.covers(error):
                raise
            self.failure_count += 1
            return False
        except Replaced:
            return False
        except Exception as error:  # noqa: BLE001  (counted, named, and done again)
            self.failure_count += 1
            self._events.error("scrub.part_failed", part=part, error=error)
            return False
        return True

    async def _pay(self, size: int) -> None:
        """Return when so many bytes may be read. Raises: Replaced when an operator has begun another pass."""
        await self._go_on.wait()
        await self._wait_calm()
        await self._throttle.take(size)
        if self._pass_number != self._plan.progress.number:
            raise Replaced("another pass was begun")
        self._plan.progress.counts.read += size

    # -- the parts of a pass -------------------------------------------------------------------------------------
    async def _list(self) -> None:
        """Look which entry logs there are, and set the pace."""
        active_id, extent = await self._parts.checkpointer.active_log()
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
        self._plan.see(paths, now_ms, is_new_pass=False, is_whole=is_whole)
        self._throttle.rate = self._plan.rate(now_ms, sizes)

    async def _check_journals(self) -> None:
        for path, problem in await self._journals.check():
            # The storage has everything that is in it, so a checkpoint makes it superfluous.
            self._events.error(
                "scrub.journal_damaged", path=path, problem=problem, consequence="none", remedy="a checkpoint, now"
            )
            await self._parts.checkpointer.checkpoint()
        self._plan.progress.are_journals_done = True
        await self._save()

    async def _check_index(self) -> None:
        """Every index file from the cursor on, then the catalog itself."""
        progress = self._plan.progress
        async for ledger_id, log_ids in self._index.check(progress.index_cursor or 0):
            for log_id in [each for each in log_ids if each not in self._listing.paths]:
                await self._check_missing(log_id, ledger_id)
            progress.index_cursor = ledger_id
            if self._index.is_save_due():
                await self._save()
        await self._index.check_catalog()
        progress.index_good_ms = max(progress.index_good_ms, progress.began_ms)
        progress.index_cursor = None
        await self._save()

    async def _check_missing(self, log_id: int, ledger_id: int) -> None:
        """A ledger seems to have entries in a log that is not there."""
        await self._list()
        if log_id in self._listing.paths or not self._listing.is_whole:
            return  # Of a directory that has failed, everybody knows.
        places = await self._logs.places(log_id, [ledger_id], [(0, 1 << 32)])
        await self._report([self._logs.finding(log_id, place, "its entry log is gone") for place in places])

    async def _check_log(self, log_id: int) -> None:
        if log_id == self._listing.active_id:
            await self._list()  # More of it may be synced, or it may be complete.
        path = self._listing.paths.get(log_id)
        if path is None:
            return  # It was removed meanwhile.
        position = self._plan.start_log(log_id, self._clock.wall_ms())
        extent = self._listing.extent if log_id == self._listing.active_id else None

        async def settled(position: int, findings: list[Finding]) -> None:
            if self._pass_number != self._plan.progress.number:
                raise Replaced("another pass was begun")
            fresh = self._plan.found(findings)
            self._plan.reached(log_id, position)
            await self._save()
            self._tell(fresh)

        try:
            await self._logs.check(log_id, path, position, extent, settled)
        except FileNotFoundError:
            await self._list()
            if log_id in self._listing.paths:
                raise
            return  # It was removed meanwhile.
        self._plan.finish_log(log_id)
        await self._save()

    async def _report(self, findings: Sequence[Finding]) -> None:
        fresh = self._plan.found(findings)
        if fresh:
            await self._save()
            self._tell(fresh)

    def _tell(self, fresh: Sequence[Finding]) -> None:
        """Of what is new, and durable."""
        for each in fresh:
            path = self._listing.paths.get(each.log_id, entry_log_format.file_name(each.log_id))
            if each.ledger_id < 0:
                self._events.warning(
                    "scrub.log_damaged",
                    path=path,
                    problem=each.problem,
                    consequence="none for entries",
                    remedy="bk bookie gc --force, or the next start, writes it again if it cannot be read",
                )
                continue
            self._events.error(
                "scrub.entries_damaged",
                path=path,
                offset=each.offset,
                ledger=each.ledger_id,
                first=each.first,
                last=each.last,
                problem=each.problem,
                consequence=f"{each.entry_count:,} entries cannot be read here",
                remedy=REMEDY,
            )
        self._hold()

    def _hold(self) -> None:
        """Keep collection away from logs with damaged entries, and let go of others."""
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

    # -- what was found ------------------------------------------------------------------------------------------
    async def _recheck(self) -> None:
        """Look again at everything on the list: it may be fine again, elsewhere, or gone."""
        if not self._plan.progress.findings:
            return
        await self._list()
        changed = False
        for each in list(self._plan.progress.findings):
            if each.ledger_id < 0:
                is_there = each.log_id in self._listing.paths and not self._is_newly_done(each)
                left = [each] if is_there else []
            else:
                left = await self._logs.look_again(each)
            if left != [each] and each in self._plan.progress.findings:
                changed = True
                self._plan.replace(each, left)
                if not left:
                    self._events.info("scrub.settled", log=f"{each.log_id:x}", ledger=each.ledger_id, first=each.first)
        if changed:
            await self._save()
        self._hold()

    def _is_newly_done(self, finding: Finding) -> bool:
        """Whether the log was read to its end, without that, since the finding was made."""
        log = self._plan.progress.logs.get(finding.log_id)
        return log is None or log.good_ms > finding.found_ms

    # -- persistence ---------------------------------------------------------------------------------------------
    async def _load(self) -> None:
        copies = await self._worker.run(read_copies, self._disk, self._copies())
        self._sequence, progress, damaged = scrub_format.newest(copies)
        for error in damaged:
            self._events.error("scrub.progress_damaged", path=error.path, error=error, consequence="it begins anew")
        if progress is not None:
            self._plan.progress = progress
            self._pass_number = progress.number
            self.suspend(is_suspended=progress.is_suspended)
            self._hold()
        self._is_loaded.set()

    def _copies(self) -> list[str]:
        good = self._parts.health.healthy(self._parts.directories.ledgers)
        return [posixpath.join(each, scrub_format.FILE_NAME) for each in good]

    async def _save(self) -> None:
        """Make progress and findings durable. A disk that takes neither is no reason to stop."""
        self._sequence += 1
        data = scrub_format.pack(self._sequence, self._plan.progress)
        try:
            await self._worker.run(replace_copies, self._disk, self._copies(), data)
        except (OSError, DiskFull) as error:
            self._events.warning("scrub.progress_not_kept", error=error)

    # -- what operators ask --------------------------------------------------------------------------------------
    async def start_pass(self) -> asyncio.Future[None]:
        """Begin a pass now, at the greatest rate, in place of one that is under way; done when it has ended."""
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
        """Read nothing until this is withdrawn; over restarts too, once it is kept."""
        self._plan.progress.is_suspended = is_suspended
        if is_suspended:
            self._go_on.clear()
        else:
            self._go_on.set()

    async def hold_up(self, *, is_suspended: bool) -> None:
        """`suspend`, durably."""
        await self._is_loaded.wait()
        self.suspend(is_suspended=is_suspended)
        self._events.warning("scrub.suspended", by="operator", suspended=is_suspended)
        await self._save()

    def gauges(self) -> dict[str, int]:
        """Of the present pass, or the last one; ages in seconds, sizes in bytes."""
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
            "scrub_damaged_entries": sum(each.entry_count for each in progress.findings) + progress.dropped_count,
            "scrub_failures": self.failure_count,
        }

    def status(self) -> dict[str, object]:
        """How far it is, what was verified, and what was found: `damage` has what a repair needs."""
        progress, counts = self._plan.progress, self._plan.progress.counts
        gauges = self.gauges()
        return {
            "pass": progress.number,
            "is_running": self._plan.is_running,
            "is_suspended": progress.is_suspended,
            "next_pass_s": None if self._plan.is_running else self._plan.wait_ms(self._clock.wall_ms()) // 1000,
            "oldest_unverified_s": gauges["scrub_oldest_unverified_s"],
            "rate_bytes": int(self._throttle.rate),
            "read_bytes": counts.read,
            "left_bytes": gauges["scrub_left_size"],
            "verified_bytes": counts.verified,
            "not_checkable_bytes": counts.unchecked,
            "not_checkable_entries": counts.unchecked_entries,
            "metadata_unavailable": self._kinds.unknown_count,
            "damaged_entries": gauges["scrub_damaged_entries"],
            "damaged_records_of_no_use": counts.dead_damaged,
            "index_files_damaged": counts.indexes_damaged,
            "journals_damaged": counts.journals_damaged,
            "parts_failed": self.failure_count,
            "damage": [
                {
                    "log": entry_log_format.file_name(each.log_id),
                    "offset": each.offset,
                    "ledger": each.ledger_id if each.ledger_id >= 0 else None,
                    "first": each.first,
                    "last": each.last,
                    "problem": each.problem,
                }
                for each in progress.findings
            ],
        }
