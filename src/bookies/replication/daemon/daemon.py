"""`AutoRecovery`: the auditor (if elected) and the worker of one process, supervised, with a status for operators.

It uses its own client, with its own session, connections and memory. So its failures do not affect a bookie in the same
process. A part that fails is restarted; no exception of a part leaves this class.
Source: metadata 8 (the roles of one process). Unlike Apache's it restarts when its session ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

from bookies.client.client import Client
from bookies.config import RecoveryConfig
from bookies.errors import BookKeeperError, MetadataError
from bookies.metadata.interface import MetadataDriver
from bookies.model import BookieId
from bookies.protocol.pacing.adaptive_rate import AdaptiveRate
from bookies.replication.auditor import Auditor
from bookies.replication.auditor.election import lead
from bookies.replication.base import Membership
from bookies.replication.base.recovery_switch import Switch
from bookies.replication.base.task_parts import TaskParts
from bookies.replication.daemon.supervision import Supervised, supervise
from bookies.replication.operator.status import (
    ProcessStatus,
    StatusRecord,
    pack,
    pass_facts,
    remove_old,
    report_facts,
)
from bookies.replication.repair import Worker
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import all_of

# Facts that change permanently, and are no reason to write a status.
RESTLESS = ("busy", "metadata_operations", "metadata_operations_by_name")
REWRITE_S = 120.0  # after which an unchanged status is rewritten, as a sign that the process lives
SILENCE_S = 180.0  # without an answer of the store, after which a new session is tried
STOP_S = 5.0  # for an orderly release; after that the end of the session releases everything


class AutoRecovery:
    """Auto-recovery of one process.

    client, driver: open; not closed here. `client`: all copies and checks go through it.
    bookie: id under which it campaigns for auditor.
    owner: name in its locks.
    """

    def __init__(
        self,
        runtime: Runtime,
        client: Client,
        driver: MetadataDriver,
        config: RecoveryConfig,
        bookie: BookieId,
        owner: str,
    ) -> None:
        self.client = client
        self.pace = AdaptiveRate(config.recovery_rate_size or None)
        self._runtime = runtime
        self._driver = driver
        self._config = config
        self._bookie = bookie
        self._name = f"{bookie}@{owner}" if owner != bookie else owner
        self._events = Events("recovery", runtime.clock)
        self.membership = Membership(driver, runtime.clock, config, self._events)
        self._switch = Switch(driver.recovery)
        parts = TaskParts(runtime, client, driver, config, owner, self.membership, self._switch, self._events)
        self.auditor = Auditor(parts)
        self.worker = Worker(parts, self.pace)
        self._tasks = [Supervised("auditor"), Supervised("worker"), Supervised("status")]
        self._record = StatusRecord(driver, self._name)

    async def run(self) -> None:
        """Run until cancelled. Then release locks and candidacy, and remove the status, if the store answers.

        Raises `MetadataError` when the store has not answered for `SILENCE_S`: another session may reach it.
        """
        try:
            await self._begin()
            jitter = self._runtime.random.uniform
            work = [
                lambda: lead(self._driver.recovery, self._bookie, self.auditor.run),
                self.worker.run,
                self._publish,
            ]
            supervised = [
                supervise(task, run_task, self._events, jitter)
                for task, run_task in zip(self._tasks, work, strict=True)
            ]
            await all_of((self._watch_session(), *supervised))
        finally:
            self.membership.stop()
            self._switch.stop()
            with contextlib.suppress(BookKeeperError, TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._record.delete()

    async def _begin(self) -> None:
        """Start membership and switch; retry until the store answers."""
        while True:
            try:
                await self.membership.start()
                await self._switch.start()
                return
            except MetadataError as error:
                self.membership.stop()
                self._switch.stop()
                self._events.warning("recovery.waits_for_store", error=error)
                await asyncio.sleep(self._runtime.random.uniform(0.5, 1.5))

    async def _watch_session(self) -> None:
        loop = asyncio.get_running_loop()
        answered_at = loop.time()
        while True:
            await asyncio.sleep(SILENCE_S / 6)
            try:
                await self._driver.recovery.is_enabled()
                answered_at = loop.time()
            except MetadataError as error:
                if loop.time() - answered_at >= SILENCE_S:
                    raise MetadataError(
                        f"the metadata store has not answered for {SILENCE_S:.0f} s: {error}"
                    ) from error

    @property
    def config(self) -> RecoveryConfig:
        return self._config

    @property
    def is_enabled(self) -> bool:
        """Report whether repairs are allowed, as far as this process knows."""
        return self._switch.is_on

    @property
    def failures(self) -> dict[str, int]:
        """Return how often each task has failed."""
        return {task.name: task.failures for task in self._tasks}

    @property
    def driver(self) -> MetadataDriver:
        """Return the session with the metadata store."""
        return self._driver

    # -- status --------------------------------------------------------------------------------------------------
    def status(self) -> ProcessStatus:
        """Return what this process does, and which ledgers it could not repair."""
        worker, loop = self.worker, asyncio.get_running_loop()
        reports = sorted(
            worker.reports.values(), key=lambda report: (-len(report.losses), report.fewest or 0, report.since_ms)
        )
        doing = {"auditor": self.auditor.doing, "worker": worker.activity.doing, "status": "writes this"}
        tasks: list[dict[str, Any]] = [
            {
                "task": task.name,
                "doing": doing[task.name],
                "starts": task.starts,
                "failures": task.failures,
                "error": task.error,
            }
            for task in self._tasks
        ]
        passes = {id(report): report for report in self.auditor.last.values()}
        facts = {
            "waiting": worker.waiting_count,
            "busy": {str(ledger_id): round(loop.time() - since, 1) for ledger_id, since in worker.busy.items()},
            "ledgers_repaired": worker.totals.ledgers,
            "fragments_repaired": worker.totals.fragments,
            "ledgers_sealed": worker.totals.sealed,
            "entries_copied": worker.totals.entries,
            "bytes_copied": worker.totals.size,
            "bytes_per_s_allowed": round(self.pace.bytes_per_s),
            "metadata_operations": self._driver.operations.total,
            "metadata_operations_by_name": self._driver.operations.by_name(),
            "acted_ms": worker.activity.acted_ms,
            "trouble": worker.activity.trouble,
        }
        now_ms = self._runtime.clock.wall_ms()
        return ProcessStatus(
            self._name,
            self._bookie,
            now_ms,
            tasks,
            [pass_facts(report) for report in passes.values()],
            facts,
            [report_facts(report) for report in reports],
            lost=tuple(self.membership.lost()),
        )

    async def _publish(self) -> None:
        """Update the status record in the metadata store periodically."""
        interval_s = self._config.recovery_report_interval_ms / 1000
        tidy = partial(remove_old, self._driver)
        written: dict[str, Any] = {}
        written_at = -1e9
        loop = asyncio.get_running_loop()
        await tidy(self._runtime.clock.wall_ms())
        while True:
            status = self.status()
            news = {"tasks": status.tasks, "auditor": status.auditor, "reports": status.reports, "lost": status.lost}
            news |= status.worker
            for name in RESTLESS:
                news.pop(name)
            if news != written or loop.time() - written_at >= REWRITE_S:
                await self._record.write(pack(status))
                written, written_at = news, loop.time()
            await asyncio.sleep(interval_s * self._runtime.random.uniform(0.75, 1.25))
