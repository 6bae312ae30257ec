"""Garbage collection: one loop that finds deleted ledgers, and gives back the entry logs that nothing lives in.

A run: which ledgers are gone (`_Ledgers`), what is in the sealed entry logs (`_Logs`), and away with the empty ones.
Each part is guarded: what fails is counted, named and tried again in the next run, and stops nothing else. A run that
gets nowhere is ended and begun anew.

Invariants
- The ledgers stored here are noted before the metadata is read (`collection.Comparison`).
- An entry log is looked at only when a checkpoint has covered it, so every slot that will ever name it is set.
- A ledger of which a log has bytes, but the index nothing, is not taken for garbage on the index's word alone.
- A log leaves the books only after its file is gone (R-29).

On the loop's thread, with a worker of its own for files. Source: storage 7.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol

from bookies.config import BookieConfig
from bookies.errors import BookKeeperError, CorruptRecord, LedgerNotFound, MetadataError, StorageError
from bookies.model import LedgerMetadata
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime, Worker
from bookies.storage.collection import Comparison, is_implausible, is_surplus
from bookies.storage.durable import SyncFailed, run_last, unlink_all
from bookies.storage.log_usage import LogScan, LogUsage, complete, find_logs, read_map
from bookies.storage.opening import Opened
from bookies.storage.record_scan import EndKind, ScanEnd
from bookies.storage.removal_format import RemovalState
from bookies.storage.throttle import Throttle

START_DELAY_S = 5.0  # from the start of the bookie to the first look at its entry logs
METADATA_S = 30.0  # for one operation of the metadata store
REMEMBERED_MS = 7 * 86_400_000  # that a ledger was deleted
RECHECK_S = 1.0  # between two looks at the records of quarantined ledgers that somebody wants to write
BATCH = 1000  # ledgers deleted at once
STALL_S = 900.0  # a run without any progress for so long is begun anew


class Stored(Protocol):
    """A ledger's record as a metadata store has it."""

    @property
    def metadata(self) -> LedgerMetadata: ...


class LedgerRecords(Protocol):
    """What collection needs of a metadata store; see `MetadataDriver`, which is one."""

    async def instance_id(self) -> str | None: ...

    def ledger_ids(self) -> AsyncIterator[Sequence[int]]: ...

    async def read_ledger(self, ledger_id: int) -> Stored: ...


class _Ledgers:
    """Which ledgers are garbage, and their way out. `alarm`: why nothing is removed at present, if so."""

    def __init__(
        self, runtime: Runtime, config: BookieConfig, parts: Opened, records: LedgerRecords, bookie: str, events: Events
    ) -> None:
        self.instance_id: str | None = None
        self.alarm: str | None = None
        self.deleted_count = 0
        self._clock = runtime.clock
        self._config = config
        self._index = parts.index
        self._removals = parts.removals
        self._records = records
        self._bookie = bookie
        self._events = events
        self._throttle = Throttle(config.gc_metadata_rate)
        self._surplus_since: dict[int, float] = {}

    async def collect(self, *, is_forced: bool) -> None:
        """One pass. Raises: MetadataError, StorageError, OSError; what was not decided by then is kept."""
        local = sorted(self._index.ledger_ids())
        await self._check_instance()
        missing, reappeared = await self._compare(local)
        self._events.info("gc.compared", ledgers=len(local), missing=len(missing))
        garbage = [each for each in missing if self._removals.get(each) is None and await self._is_gone(each)]
        surplus = await self._find_surplus(local)
        if is_implausible(len(garbage) + len(surplus), len(local), self._config.gc_share_max) and not is_forced:
            self.alarm = (
                f"{len(garbage) + len(surplus):,} of {len(local):,} ledgers are not in the metadata any more; nothing "
                "was removed. If that is right: bk bookie gc --force"
            )
            self._events.error("gc.implausible", missing=len(garbage), surplus=len(surplus), ledgers=len(local))
            return
        self.alarm = None
        now_ms = self._clock.wall_ms()
        await self._removals.quarantine(garbage, RemovalState.QUARANTINED, now_ms)
        await self._removals.quarantine(surplus, RemovalState.SURPLUS, now_ms)
        if garbage or surplus:
            self._events.info("gc.quarantined", ledgers=len(garbage), surplus=len(surplus))
        await self.lift(reappeared)
        await self._delete_expired(set(missing), now_ms)

    async def _check_instance(self) -> None:
        """Raises MetadataError if this is not the cluster that the bookie belongs to."""
        async with asyncio.timeout(METADATA_S):
            found = await self._records.instance_id()
        self.instance_id = self.instance_id or found
        if found is None or found != self.instance_id:
            raise MetadataError(f"the metadata store is of cluster {found}, not of {self.instance_id}: nothing removed")

    async def _compare(self, local: Sequence[int]) -> tuple[list[int], list[int]]:
        """(local ledgers that the metadata does not list, ledgers on their way out that it lists)"""
        leaving = (RemovalState.QUARANTINED, RemovalState.PINNED, RemovalState.DELETED)
        on_their_way = set(self._removals.in_state(*leaving))
        comparison = Comparison(local)
        missing: list[int] = []
        reappeared: list[int] = []
        ranges = aiter(self._records.ledger_ids())
        while True:
            await self._throttle.take(1)
            try:
                async with asyncio.timeout(METADATA_S):
                    ledger_ids = await anext(ranges)
            except StopAsyncIteration:
                return missing + comparison.rest(), reappeared
            missing += comparison.listed(ledger_ids)
            if on_their_way:
                reappeared += [each for each in ledger_ids if each in on_their_way]

    async def read(self, ledger_id: int) -> LedgerMetadata | None:
        """A ledger's record; None only when the store says that there is none. Raises: MetadataError, TimeoutError."""
        await self._throttle.take(1)
        try:
            async with asyncio.timeout(METADATA_S):
                return (await self._records.read_ledger(ledger_id)).metadata
        except LedgerNotFound:
            return None

    async def _is_gone(self, ledger_id: int) -> bool:
        try:
            return await self.read(ledger_id) is None
        except (BookKeeperError, TimeoutError):
            return False  # Whatever it is, it is no proof.

    async def is_unwanted(self, ledger_id: int) -> bool:
        """Whether the metadata wants nothing of this ledger here, for certain."""
        try:
            metadata = await self.read(ledger_id)
        except (BookKeeperError, TimeoutError):
            return False
        return metadata is None or is_surplus(metadata, self._bookie)

    async def _find_surplus(self, local: Sequence[int]) -> list[int]:
        """Ledgers that have been closed and without this bookie for long enough."""
        if not self._config.gc_surplus_ms:
            return []
        now = self._clock.monotonic()
        since: dict[int, float] = {}
        for ledger_id in local:
            try:
                metadata = await self.read(ledger_id) if self._removals.get(ledger_id) is None else None
            except (BookKeeperError, TimeoutError):
                continue
            if metadata is not None and is_surplus(metadata, self._bookie):
                since[ledger_id] = self._surplus_since.get(ledger_id, now)
        self._surplus_since = since
        return [each for each, start in since.items() if (now - start) * 1000 >= self._config.gc_surplus_ms]

    async def lift(self, ledger_ids: Iterable[int]) -> None:
        """Let go of those that the metadata wants here again."""
        for ledger_id in ledger_ids:
            removal = self._removals.get(ledger_id)
            try:
                metadata = await self.read(ledger_id)
            except (BookKeeperError, TimeoutError):
                continue
            is_surplus_still = removal is not None and removal.state is RemovalState.SURPLUS
            if metadata is None or (is_surplus_still and is_surplus(metadata, self._bookie)):
                continue
            self._events.warning("gc.ledger_reappeared", ledger=ledger_id)
            if self._removals.is_deleted(ledger_id):
                await self._removals.forget([ledger_id])
            else:
                await self._removals.lift([ledger_id])

    async def _delete_expired(self, missing: set[int], now_ms: int) -> None:
        """Delete what was in quarantine long enough, and is proven gone once more; forget what was deleted long ago."""
        due: list[int] = []
        for ledger_id, removal in self._removals.in_state(RemovalState.QUARANTINED, RemovalState.SURPLUS).items():
            is_listed = removal.state is RemovalState.QUARANTINED and ledger_id not in missing
            if is_listed or now_ms - removal.since_ms < self._config.gc_quarantine_ms:
                continue
            if removal.state is RemovalState.QUARANTINED and await self._is_gone(ledger_id):
                due.append(ledger_id)
            elif removal.state is RemovalState.SURPLUS:
                await self.lift([ledger_id])
                if self._removals.get(ledger_id) is not None and await self.is_unwanted(ledger_id):
                    due.append(ledger_id)
        for start in range(0, len(due), BATCH):
            deleted = await self._removals.delete(due[start : start + BATCH], now_ms)
            self.deleted_count += len(deleted)
            self._events.info("gc.ledgers_deleted", count=len(deleted))
        deleted_before = self._removals.in_state(RemovalState.DELETED)
        await self._removals.forget(
            [each for each, removal in deleted_before.items() if now_ms - removal.since_ms > REMEMBERED_MS]
        )


class _Logs:
    """The sealed entry logs. `set_aside`: reason by log id; those are not touched until a forced run."""

    def __init__(self, runtime: Runtime, config: BookieConfig, parts: Opened, worker: Worker, events: Events) -> None:
        self.known: dict[int, LogUsage] = {}
        self.set_aside: dict[int, str] = {}
        self.deleted_count = 0
        self.deleted_size = 0
        self.on_progress: Callable[[], None] = lambda: None
        self._open: LogScan | None = None
        self._disk = runtime.disk
        self._parts = parts
        self._worker = worker
        self._events = events
        self._throttle = Throttle(config.compaction_rate_size)

    async def examine(self) -> None:
        """Learn what is in logs that are not known yet."""
        paths = await self._worker.run(find_logs, self._disk, self._parts.directories.ledgers)
        self.known = {log_id: usage for log_id, usage in self.known.items() if log_id in paths}
        unmapped: dict[int, str] = {}
        for log_id, path in paths.items():
            covered = self._parts.checkpointer.covered_log_id
            if log_id >= covered or log_id in self.known or log_id in self.set_aside:
                continue
            try:
                sizes = await self._worker.run(read_map, self._disk, path)
            except (OSError, CorruptRecord) as error:
                self.put_aside(log_id, str(error))
                continue
            if sizes is None:
                unmapped[log_id] = path
            else:
                self.known[log_id] = LogUsage.of(log_id, path, sizes)
            self.on_progress()
        await self._complete(unmapped)

    def put_aside(self, log_id: int, reason: str) -> None:
        self.set_aside[log_id] = reason
        self._events.error("gc.log_set_aside", log=f"{log_id:x}", reason=reason)

    async def _complete(self, paths: dict[int, str]) -> None:
        """Scan logs without a map, once, and give them one."""
        scanned: dict[int, tuple[dict[int, int], ScanEnd]] = {}
        for log_id, path in paths.items():
            try:
                scanned[log_id] = await self._scan(path)
            except OSError as error:
                self.put_aside(log_id, str(error))
        doubtful = [log_id for log_id, (_, end) in scanned.items() if end.kind is not EndKind.CLEAN]
        named: dict[int, int] = {}
        if doubtful:
            try:
                named = await self._parts.index.greatest_offsets(doubtful)
            except BookKeeperError as error:
                for log_id in doubtful:
                    self.put_aside(log_id, f"{scanned.pop(log_id)[1].problem}; what is behind is unknown: {error}")
        for log_id, (sizes, end) in scanned.items():
            if (behind := named.get(log_id, 0)) >= max(end.offset, 1):
                self.put_aside(log_id, f"byte {end.offset:,}: {end.problem}; an entry at {behind:,} is behind it")
                continue
            try:
                if sizes:
                    await self._worker.run(complete, self._disk, paths[log_id], end.offset, sizes)
            except SyncFailed:
                raise
            except (OSError, StorageError) as error:
                self._events.warning("gc.log_not_completed", log=f"{log_id:x}", error=error)
                continue
            self.known[log_id] = LogUsage.of(log_id, paths[log_id], sizes)

    async def _scan(self, path: str) -> tuple[dict[int, int], ScanEnd]:
        await self._worker.run(self.close_files)
        self._open = scan = await self._worker.run(LogScan, self._disk, path)
        while True:
            size, end = await self._worker.run(scan.read)
            if end is not None:
                await self._worker.run(self.close_files)
                return scan.sizes, end
            await self._throttle.take(size)
            self.on_progress()

    def close_files(self) -> None:
        """On the worker: a scan that was given up leaves its file open until then."""
        if self._open is not None:
            self._open.close()
            self._open = None

    async def drop_ledgers(self, is_unwanted: Callable[[int], Awaitable[bool]]) -> None:
        """Take ledgers that are gone out of the books."""
        here = set(self._parts.index.ledger_ids())
        gone: dict[int, bool] = {}
        for usage in list(self.known.values()):
            for ledger_id in [each for each in usage.ledger_ids if each not in here and each not in gone]:
                gone[ledger_id] = self._parts.removals.is_deleted(ledger_id) or await is_unwanted(ledger_id)
            usage.keep(lambda ledger_id: ledger_id in here or not gone[ledger_id])
            self.on_progress()
            await asyncio.sleep(0)

    async def delete_empty(self) -> None:
        """Remove logs that hold nothing of any ledger."""
        for usage in [each for each in self.known.values() if each.remaining == 0]:
            try:
                await self.delete(usage)
            except SyncFailed:
                raise
            except OSError as error:
                self._events.warning("gc.log_not_deleted", log=f"{usage.log_id:x}", error=error)

    async def delete(self, usage: LogUsage) -> None:
        """Remove a log in which nothing lives. Raises: OSError, SyncFailed."""
        await self._worker.run(unlink_all, self._disk, [usage.path])
        del self.known[usage.log_id]
        await self._parts.readers.forget_log(usage.log_id)
        self.deleted_count += 1
        self.deleted_size += usage.total
        self._events.info("gc.log_deleted", log=f"{usage.log_id:x}", bytes=usage.total)
        self.on_progress()


class Collector:
    """The loop, and what operators ask of it. `run` is a task of the storage; `close` ends the worker.

    `instance_id`: of the bookie's cluster; None: whatever the first pass finds.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        parts: Opened,
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
        self._ledgers = _Ledgers(runtime, config, parts, records, bookie, self._events)
        self._ledgers.instance_id = instance_id
        self._logs = _Logs(runtime, config, parts, self._worker, self._events)
        self._logs.on_progress = self._progressed
        self._progress_count = 0
        self._is_running = False
        self._wanted = asyncio.Event()
        self._is_forced = False
        self._waiters: list[asyncio.Future[None]] = []
        self._refused: dict[int, None] = {}
        parts.removals.on_refused = self._was_refused

    def close(self) -> None:
        """End the worker after what it does. Blocks."""
        run_last(self._worker, self._logs.close_files)

    # -- the loop ------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Collect for ever."""
        interval_s = self._config.gc_interval_ms / 1000
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
            waiters, self._waiters = self._waiters, []
            await self._supervise(self._run_once(is_forced=is_forced))
            self.run_count += 1
            for future in waiters:
                if not future.done():
                    future.set_result(None)

    async def _run_once(self, *, is_forced: bool) -> None:
        if is_forced:
            self._logs.set_aside.clear()
        await self._guard("ledgers", self._ledgers.collect(is_forced=is_forced))
        await self._guard("entry logs", self._logs.examine())
        await self._guard("usage", self._logs.drop_ledgers(self._ledgers.is_unwanted))
        await self._guard("deletion", self._logs.delete_empty())

    async def _guard(self, job: str, work: Awaitable[None]) -> None:
        """Do a part of a run; its failure is not that of the others."""
        try:
            await work
        except SyncFailed:
            raise
        except Exception as error:  # noqa: BLE001  (counted, named, and done again in the next run)
            self.failure_count += 1
            self._events.error("gc.job_failed", job=job, error=error)
        self._progressed()

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
    async def collect(self, *, is_forced: bool, is_awaited: bool) -> None:
        """Run now, or as soon as the present run has ended; `is_forced`: an implausible number of ledgers may go."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_forced = self._is_forced or is_forced
        self._waiters.append(future)
        self._wanted.set()
        if is_awaited:
            await future

    async def undelete(self, ledger_id: int) -> None:
        """Bring a ledger back from quarantine and keep it. Raises InvalidArgument."""
        await self._parts.removals.pin(ledger_id, self._clock.wall_ms())

    def space(self) -> dict[str, object]:
        """Where the bytes are, and what stands in the way of giving them back."""
        logs = self._logs.known.values()
        removals = self._parts.removals
        quarantined = removals.in_state(RemovalState.QUARANTINED, RemovalState.SURPLUS)
        return {
            "ledgers": sum(1 for _ in self._parts.index.ledger_ids()),
            "ledgers_in_quarantine": len(quarantined),
            "ledgers_pinned": len(removals.in_state(RemovalState.PINNED)),
            "ledgers_deleted": self._ledgers.deleted_count,
            "entry_logs": len(logs),
            "entry_log_bytes": sum(each.total for each in logs),
            "live_bytes": sum(each.remaining for each in logs),
            "logs_deleted": self._logs.deleted_count,
            "bytes_given_back": self._logs.deleted_size,
            "logs_set_aside": {f"{log_id:x}": reason for log_id, reason in self._logs.set_aside.items()},
            "runs": self.run_count,
            "is_running": self._is_running,
            "jobs_failed": self.failure_count,
            "runs_restarted": self.restart_count,
            "alarm": self._ledgers.alarm,
        }

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
        if removal.state is RemovalState.PINNED:
            return ", kept by `bk bookie undelete`"
        left_s = (removal.since_ms + self._config.gc_quarantine_ms - self._clock.wall_ms()) // 1000
        return f", in quarantine for another {max(0, left_s):,} s"
