"""The findings of the scrub: added, logged, checked again, and their logs set aside. On the loop's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bookies.runtime.events import Events
from bookies.storage.scrub.scrub_format import Finding
from bookies.storage.scrub.scrub_listing import LogList, ProgressFiles
from bookies.storage.scrub.scrub_logs import LogScrub
from bookies.storage.scrub.scrub_plan import Plan

REMEDY = "copy them from other replicas: `bk ledger repair LEDGER`; many ledgers: `bk spark scrub`, `bk spark repair`"


class LogHolder(Protocol):
    """The collector, which deletes and compacts entry logs."""

    def put_aside(self, log_id: int, reason: str) -> None: ...

    def take_back(self, log_id: int, reason: str) -> None: ...


class Findings:
    """The findings of `plan`. `holder`: None if entry logs are never collected."""

    def __init__(
        self,
        plan: Plan,
        files: ProgressFiles,
        log_list: LogList,
        logs: LogScrub,
        events: Events,
        holder: LogHolder | None,
    ) -> None:
        self._plan = plan
        self._files = files
        self._list = log_list
        self._logs = logs
        self._events = events
        self._holder = holder
        self._held: dict[int, str] = {}

    async def report(self, findings: Sequence[Finding]) -> None:
        """Add findings, make them durable, and log the new ones."""
        fresh = self._plan.add_findings(findings)
        if fresh:
            await self._files.save(self._plan.progress)
            self.log(fresh)

    def log(self, fresh: Sequence[Finding]) -> None:
        """Log new findings, which are durable."""
        for finding in fresh:
            path = self._list.listing.paths.get(finding.log_id, self._list.directories.name(finding.log_id))
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
        self.hold()

    def hold(self) -> None:
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

    async def recheck(self) -> None:
        """Check every finding again. Its entries may be intact, moved, or deleted."""
        if not self._plan.progress.findings:
            return
        await self._list.update()
        changed = False
        for finding in list(self._plan.progress.findings):
            if finding.ledger_id < 0:
                still_stands = finding.log_id in self._list.listing.paths and not self._was_checked_since(finding)
                left = [finding] if still_stands else []
            else:
                left = await self._logs.recheck(finding)
            if left != [finding] and finding in self._plan.progress.findings:
                changed = True
                self._plan.replace(finding, left)
                if not left:
                    label = self._list.directories.label(finding.log_id)
                    self._events.info("scrub.settled", log=label, ledger=finding.ledger_id, first=finding.first)
        if changed:
            await self._files.save(self._plan.progress)
        self.hold()

    def _was_checked_since(self, finding: Finding) -> bool:
        """Report whether a complete check of the log, begun after the finding, did not find it again."""
        log = self._plan.progress.logs.get(finding.log_id)
        return log is None or log.good_ms > finding.found_ms
