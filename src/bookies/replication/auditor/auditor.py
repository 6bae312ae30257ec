"""Auditor: detects lost bookies, marks the ledgers that need them, and checks replicas periodically.

It runs four tasks. One follows the bookies. When a bookie counts as lost, or is to be emptied, the task reads every
ledger's record and marks those that name the bookie. When several bookies are away that are not lost yet, it marks the
ledgers with one replica left (`protocol/repair/absence.py` says why only these). The second task runs the periodic
checks that are due, which ask bookies and take long, in one pass over the records. The third applies the retention
of logs, the fourth balances data.

A mark is a claim that workers verify: a wrong mark costs them a check, not a copy. Everything the auditor writes can be
repeated, so an auditor that crashes, or two at a time, do no harm. Source: metadata 8.1 to 8.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from bookies.metadata.interface.driver import READ_AT_ONCE, Versioned
from bookies.metadata.interface.recovery_store import AuditKind
from bookies.metadata.ledger_counts import LIVE_MAX, LedgerCounts, keep_counts
from bookies.model import BookieId
from bookies.protocol.pacing import RateLimit
from bookies.protocol.repair.absence import HURRY_S, due_in_s
from bookies.replication.auditor.automatic_balance import AutomaticBalance
from bookies.replication.auditor.checks import Check, Endangered, Listings, LostBookies, PassReport, Placement, Replicas
from bookies.replication.auditor.log_retention import LogRetention
from bookies.replication.base.replication_records import Coverage, records
from bookies.replication.base.task_parts import TaskParts
from bookies.runtime.histogram import Distribution
from bookies.runtime.tasks import all_of

WAITING = "waiting for its election"
PATROL_S = 60.0  # longest wait before it determines again which checks are due
RENEWED_S = 86_400.0  # between two writes of a mark for damage that stays
REPORTED_MAX = 50_000  # ledgers with reports of damage whose times are kept; marks of others are always written


class Auditor:
    """Elected auditor. `run` it; `last`: its last pass by the name of each check."""

    def __init__(self, parts: TaskParts) -> None:
        self.last: dict[str, PassReport] = {}
        self.doing = WAITING
        self.passes: dict[str, Distribution] = {}  # seconds of completed passes, by the name of each check
        self.marked = Distribution()  # ledgers that a pass has marked
        self.checked_count = 0  # ledgers, by all passes
        self.retention = LogRetention(parts.client, parts.switch, parts.config, parts.events)
        self.balance = AutomaticBalance(parts, self._note)
        self._parts = parts
        self._rate = RateLimit(parts.config.audit_metadata_rate)
        self._bookies_changed = asyncio.Event()
        # Each with the start of its absence before the pass: one that returned and was lost again is checked again.
        self._audited: Mapping[BookieId, object] = {}
        self._hurried: Mapping[BookieId, object] = {}
        self._reported_ms: dict[int, int] = {}  # by ledger: time of the mark that was written for damage

    @property
    def is_at_work(self) -> bool:
        """Report whether this auditor is the elected one."""
        return self.doing != WAITING

    async def run(self) -> None:
        """Audit until cancelled. Raises `MetadataError`; then call it again later."""
        self._audited, self._hurried = {}, {}
        self._parts.membership.listen(self._bookies_changed.set)
        try:
            await all_of((self._follow_bookies(), self._patrol(), self.retention.run(), self.balance.run()))
        finally:
            self._parts.membership.unlisten(self._bookies_changed.set)
            self.doing = WAITING

    def _note(self, report: PassReport) -> None:
        self.last.update(dict.fromkeys(report.checks, report))

    # -- lost and absent bookies ---------------------------------------------------------------------------------
    async def _follow_bookies(self) -> None:
        loop = asyncio.get_running_loop()
        membership, config = self._parts.membership, self._parts.config
        triggers = membership.triggered
        next_check: float = loop.time()
        while True:
            self._bookies_changed.clear()
            await self._parts.switch.wait_on()
            await membership.refresh()
            if membership.triggered != triggers:
                triggers = membership.triggered
                membership.absence.declare(loop.time())
                next_check = loop.time()
            lost = membership.lost_or_draining()
            is_periodic = loop.time() >= next_check
            if is_periodic or not lost.items() <= self._audited.items():
                if await self._find_ledgers_of(lost) and is_periodic:
                    interval_s = config.audit_bookies_interval_s
                    next_check = loop.time() + interval_s if interval_s else float("inf")
                continue
            self._audited = lost
            if await self._mark_endangered():
                continue
            await self._wait(next_check - loop.time())

    async def _find_ledgers_of(self, lost: Mapping[BookieId, object]) -> bool:
        """Mark the ledgers that name these bookies, which are lost or to be emptied. False: switched off meanwhile."""
        check = LostBookies(list(lost))
        if not await self._pass([check], self._rate):
            return False
        self._parts.membership.note_named(check.named)
        self._audited = lost
        return True

    async def _mark_endangered(self) -> bool:
        """Mark the ledgers that cannot wait for the delay; report whether there was anything to check."""
        absence = self._parts.membership.absence
        away = {bookie: absence.away_since(bookie) for bookie in absence.endangering(asyncio.get_running_loop().time())}
        if away != self._hurried:
            self._hurried = {}
        if not away or away == self._hurried or away.items() <= self._audited.items():
            return False
        if await self._pass([Endangered(tuple(away))], self._rate):
            self._hurried = away
        return True

    async def _wait(self, timeout_s: float) -> None:
        next_loss_s = self._parts.membership.next_loss_s()
        if next_loss_s is not None:
            timeout_s = min(timeout_s, next_loss_s, HURRY_S)
        self.doing = "watching the bookies"
        try:
            async with asyncio.timeout(None if timeout_s == float("inf") else max(0.001, timeout_s)):
                await self._bookies_changed.wait()
        except TimeoutError:
            return

    # -- periodic checks -----------------------------------------------------------------------------------------
    async def _patrol(self) -> None:
        config, store = self._parts.config, self._parts.driver.recovery
        intervals = {
            AuditKind.ALL_LEDGERS: config.audit_ledgers_interval_s,
            AuditKind.REPLICAS: config.audit_replicas_interval_s,
            AuditKind.PLACEMENT: config.audit_placement_interval_s,
        }
        rate = RateLimit(config.audit_metadata_rate)
        while True:
            await self._parts.switch.wait_on()
            due = {
                kind: due_in_s(interval_s, await store.checked_at_ms(kind), self._parts.runtime.clock.wall_ms())
                for kind, interval_s in intervals.items()
                if interval_s
            }
            now_due = [kind for kind, wait_s in due.items() if wait_s is not None and wait_s <= 0]
            if not now_due:
                times = [wait_s for wait_s in due.values() if wait_s is not None]
                await asyncio.sleep(min([PATROL_S, *times]))
            elif await self._pass([self._check_of(kind) for kind in now_due], rate):
                for kind in now_due:
                    await store.set_checked_at_ms(kind, self._parts.runtime.clock.wall_ms())

    def _check_of(self, kind: AuditKind) -> Check:
        administration = self._parts.client.administration()
        if kind is AuditKind.REPLICAS:
            return Listings(administration, self._parts.membership)
        if kind is AuditKind.PLACEMENT:
            return Placement(administration, self._parts.config.recovery_repairs_placement)
        return Replicas(administration, self._parts.membership, self._parts.config.audit_verification_percentage)

    # -- one pass ------------------------------------------------------------------------------------------------
    async def _pass(self, checks: Sequence[Check], rate: RateLimit) -> bool:
        """Run these checks on every record, and mark ledgers accordingly. False: switched off meanwhile."""
        report = PassReport(tuple(check.name for check in checks), self._parts.runtime.clock.wall_ms())
        self._note(report)
        self.doing = f"looking for {' and '.join(report.checks)}"
        coverage, counts = Coverage(), LedgerCounts(report.began_ms)
        due_ms = report.began_ms - RENEWED_S * 1000
        self._reported_ms = {ledger_id: at_ms for ledger_id, at_ms in self._reported_ms.items() if at_ms > due_ms}
        async for page in records(self._parts.driver, rate, coverage):
            if await self._parts.switch.is_off():
                return False
            await self._inspect_page(page, checks, report)
            for ledger in page:
                counts.add(ledger.metadata)
            report.ledgers, report.unreadable = coverage.ledgers, coverage.unreadable_count
            report.unreadable_ids = coverage.unreadable
        report.facts = {name: value for check in checks for name, value in check.facts().items()}
        report.ended_ms = self._parts.runtime.clock.wall_ms()
        self._count(report)
        counts.states["unreadable"] = report.unreadable
        if counts.total > LIVE_MAX:  # `bk status` counts fewer itself.
            await keep_counts(self._parts.driver, counts)
        self._parts.events.info(
            "audit.passed", checks="+".join(report.checks), ledgers=report.ledgers, marked=report.marked
        )
        if report.unreadable:
            self._parts.events.error("audit.unreadable_records", count=report.unreadable, first=coverage.unreadable[0])
        return True

    def _count(self, report: PassReport) -> None:
        """Count a completed pass, for metrics."""
        self.marked.record(report.marked)
        self.checked_count += report.ledgers
        for name in report.checks:
            seconds = ((report.ended_ms or report.began_ms) - report.began_ms) / 1000
            self.passes.setdefault(name, Distribution()).record(seconds)

    async def _inspect_page(self, page: Sequence[Versioned], checks: Sequence[Check], report: PassReport) -> None:
        waiting = iter(page)

        async def work() -> None:
            for ledger in waiting:
                marked = await self._inspect(ledger, checks)
                report.marked += marked

        asks_bookies = any(check.asks_bookies for check in checks)
        lanes = min(len(page), self._parts.config.audit_ledgers_at_once if asks_bookies else READ_AT_ONCE)
        await all_of(work() for _ in range(lanes))

    async def _inspect(self, ledger: Versioned, checks: Sequence[Check]) -> int:
        """Run the checks on one ledger; return the number of marks written, 0 or 1."""
        replicas: dict[BookieId, None] = {}
        is_bad = is_damage = False
        for check in checks:
            bad = await check.inspect(ledger)
            if bad is not None:
                is_bad = True
                is_damage |= check.asks_bookies
                replicas.update(dict.fromkeys(bad))
        if not is_bad:
            return 0
        ledger_id, now_ms = ledger.metadata.ledger_id, self._parts.runtime.clock.wall_ms()
        marked = await self._parts.driver.recovery.mark(
            ledger_id, list(replicas), now_ms, is_damage=is_damage, stands_ms=self._reported_ms.get(ledger_id)
        )
        if marked and is_damage and len(self._reported_ms) < REPORTED_MAX:
            self._reported_ms[ledger_id] = now_ms
        return int(marked)
