"""Compactions as a run of the collection does them: whether one is due, of which logs, and whether they are suspended.

Source: storage 7.5, 7.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bookies.errors import BookieBusy, StorageError
from bookies.runtime.events import Events
from bookies.runtime.ports import Worker
from bookies.storage.engine import StorageParts
from bookies.storage.entry_log import LogUsage
from bookies.storage.gc.collection_policy import Compaction, Schedule, choose_logs
from bookies.storage.gc.compaction import Compactor
from bookies.storage.gc.recoding import Recoding
from bookies.storage.gc.sealed_logs import SealedLogs
from bookies.storage.gc.supervision import Supervision

COPY_ROOM = 1 << 20  # bytes that a copy needs beyond its entries: headers, maps, index pages


class DueCompactions:
    """The compactions of a bookie, requested or due."""

    def __init__(
        self, parts: StorageParts, worker: Worker, logs: SealedLogs, compactor: Compactor, steps: Supervision
    ) -> None:
        self.counts = dict.fromkeys(Compaction, 0)
        self.ended_at_ms = dict.fromkeys(Compaction, 0)  # wall clock of the last one
        self.present: Compaction | None = None
        self.is_suspended = False
        self.waiting_logs = 0  # logs that the last compaction skipped: no disk had free space for the copy
        self.recoding = Recoding(parts, worker)
        self._requested: Compaction | None = None
        now = parts.runtime.clock.monotonic()
        config = parts.config
        self._schedule = Schedule(
            config.minor_compaction_interval_ms / 1000, config.major_compaction_interval_ms / 1000, now, now
        )
        self._parts = parts
        self._worker = worker
        self._logs = logs
        self._compactor = compactor
        self._steps = steps
        self._events = Events("storage.gc", parts.runtime.clock)

    def reconfigure(self) -> None:
        """Use the settings that `StorageParts.config` has now."""
        config = self._parts.config
        self._schedule.minor_interval_s = config.minor_compaction_interval_ms / 1000
        self._schedule.major_interval_s = config.major_compaction_interval_ms / 1000

    def check_not_suspended(self) -> None:
        """Raise BookieBusy while compaction is suspended."""
        if self.is_suspended:
            raise BookieBusy("compaction is suspended. Resume it with `bk bookie gc --resume`")

    def request(self, level: Compaction) -> None:
        """Let the next run compact, due or not. Raises BookieBusy while compaction is suspended."""
        self.check_not_suspended()
        self._requested = level

    def due(self) -> Compaction | None:
        """Return the compaction that this run has to do. While a disk is full, every run does a major one."""
        if self.is_suspended:
            return None
        if self._parts.disks.is_full and self._parts.config.major_compaction_interval_ms:
            return Compaction.MAJOR
        return self._requested or self._schedule.due(self._parts.runtime.clock.monotonic())

    async def run(self, *, re_encrypts: bool = False) -> bool:
        """Compact if it was requested or is due, and with `re_encrypts` every stale log.

        Return whether there were candidates.
        """
        is_recoded = re_encrypts and not self.is_suspended and await self._recode()
        level = self.due()
        if level is None:
            return is_recoded
        self._requested = None
        self.present = level
        try:
            with self._parts.checkpointer.activities.during("compaction"):
                return await self._compact(level)
        finally:
            self.present = None
            self.counts[level] += 1
            self.ended_at_ms[level] = self._parts.runtime.clock.wall_ms()

    async def _compact(self, level: Compaction) -> bool:
        config, disks = self._parts.config, self._parts.disks
        if not disks.is_full:
            self._schedule.started(level, self._parts.runtime.clock.monotonic())
        is_major = level is Compaction.MAJOR
        threshold = config.major_compaction_threshold if is_major else config.minor_compaction_threshold
        chosen = choose_logs(self._logs.known.values(), threshold)
        self.waiting_logs = 0
        if disks.is_full:  # The smallest copy first: its source frees space that the next copy may need.
            chosen.sort(key=lambda usage: (usage.remaining, usage.log_id))
        self._events.info("gc.compaction", kind=level.value, logs=len(chosen), is_full=disks.is_full)
        await self._copy(chosen)
        return bool(chosen)

    async def _recode(self) -> bool:
        """Copy the live entries of every stale log. Return whether there was one."""
        stale = await self.recoding.stale(list(self._logs.known.values()))
        self._events.info("gc.re_encryption", logs=len(stale), bytes=sum(usage.remaining for usage in stale))
        with self._parts.checkpointer.activities.during("re-encryption"):
            await self._copy(stale)
        return bool(stale)

    async def _copy(self, chosen: Sequence[LogUsage]) -> None:
        """Compact these logs, one after the other, until compaction is suspended."""
        config, disks = self._parts.config, self._parts.disks
        for usage in chosen:
            if self.is_suspended:
                break
            label = self._parts.logs.label(usage.log_id)
            if self._logs.has_unindexed(usage):
                reason = "the index lacks a ledger that has entries in it"
                self._events.warning("gc.log_kept", log=label, reason=reason)
                continue
            await self._steps.guard("disks", disks.measure(self._worker))
            if disks.is_full and not self._has_room(usage):
                self.waiting_logs += 1
                continue
            compact = partial(self._compactor.compact, usage, is_transactional=config.compaction == "transactional")
            await self._steps.guard(f"compaction of log {label}", self._steps.removing(compact))

    def _has_room(self, usage: LogUsage) -> bool:
        """Report whether a full disk has free space for the copy of a log. Deleting the source frees more at once."""
        usable, places = self._parts.health.usable, self._parts.logs.of_log(usage.log_id)
        return usage.remaining + COPY_ROOM <= max(usable.get(path, 0) for path in places)

    # -- suspension ----------------------------------------------------------------------------------------------
    def suspend(self, *, is_suspended: bool) -> None:
        """Suspend or resume compaction. A compaction in progress completes its log. Empty logs are still deleted."""
        self.is_suspended = is_suspended
        self._events.warning("gc.compaction_held", by="operator", held=is_suspended)

    async def hold_up(self, *, is_suspended: bool) -> None:
        """Do as `suspend`, durably."""
        self.suspend(is_suspended=is_suspended)
        hold = partial(self._parts.directories.hold, self._good_directories(), is_held=is_suspended)
        try:
            await self._worker.run(hold)
        except (OSError, StorageError) as error:
            self._events.warning("gc.hold_not_kept", error=error, consequence="the setting is lost at the next start")

    async def load_held(self) -> None:
        """Suspend compaction if an operator did so before the start."""
        if await self._worker.run(self._parts.directories.is_held, self._good_directories()):
            self.suspend(is_suspended=True)

    def _good_directories(self) -> Sequence[str]:
        return self._parts.health.healthy(self._parts.directories.ledgers)
