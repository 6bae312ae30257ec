"""Auto-recovery in `bk chaos`: its processes besides the bookies, and the promises that are checked at the end.

healed   every ledger is on all bookies of its write sets, or it is marked and a process reports why it is not repaired
tidy     no other ledger is marked, and none is locked
thrift   the copied bytes are bounded by the contents of bookies with a long absence
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bookies.errors import BookKeeperError
from bookies.lab.chaos.chaos_checker import Checker
from bookies.lab.chaos.chaos_healer import SETTINGS
from bookies.lab.chaos.chaos_processes import ChaosProcess
from bookies.model import LedgerMetadata

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.client.repair import Administration
    from bookies.metadata.interface import MetadataDriver

BOOKIE_SETTINGS = {"auto_recovery": True, **SETTINGS}
HEALERS = ("healer1", "healer2")
QUIET_S = 180.0  # time after the healing until every ledger must be fully replicated
POLL_S = 2.0
AT_ONCE = 8  # ledgers checked concurrently
SHARES_MAX = 3.0  # copies of a bookie's contents that one long absence may cause
FREE_SIZE = 64 << 20  # bytes that need no absence: replicas that were never written, interrupted copies


class HealerProcesses:
    """Processes of auto-recovery without a bookie, and the watcher that adds up the work of all."""

    def __init__(
        self, directory: pathlib.Path, metadata_uri: str, lease_ms: int, prefix: Callable[[str], list[str]]
    ) -> None:
        self._directory = directory
        self._prefix = prefix
        self._parameters = {"metadata": metadata_uri, "lease_ms": lease_ms}
        self.healers: list[ChaosProcess] = []
        self.stopped: dict[int, None] = {}  # numbers of healers stopped by SIGSTOP
        self._watcher: ChaosProcess | None = None

    def start(self) -> None:
        self.healers = [self._start_healer(number) for number in range(len(HEALERS))]
        log = self._directory / "watcher.log"
        self._watcher = ChaosProcess(
            "bookies.lab.chaos.chaos_healer", log, {"what": "watch", **self._parameters}, has_output=True
        )

    def _start_healer(self, number: int) -> ChaosProcess:
        name = HEALERS[number]
        parameters = {"what": "heal", "name": name, **self._parameters}
        log = self._directory / f"{name}.log"
        return ChaosProcess("bookies.lab.chaos.chaos_healer", log, parameters, prefix=self._prefix(name))

    def restart(self, number: int) -> None:
        """Kill a healer and start another one in its place."""
        self.healers[number].kill()
        self.healers[number] = self._start_healer(number)

    def ended(self) -> list[int]:
        """Return the numbers of healers that have ended unexpectedly."""
        return [number for number, healer in enumerate(self.healers) if healer.has_ended()]

    def finish(self, timeout_s: float) -> tuple[dict[str, int], list[str]]:
        """End all processes in an orderly way. Return the totals, and problems as sentences."""
        problems = []
        for healer in self.healers:
            healer.end_input()
        deadline = time.monotonic() + timeout_s
        for number, healer in enumerate(self.healers, 1):
            if not healer.wait(deadline - time.monotonic()):
                problems.append(f"healer{number} does not end")
        assert self._watcher is not None
        self._watcher.end_input()
        line = self._watcher.read_line()
        if not line:
            problems.append(f"the watcher ended: {self._watcher.last_words()}")
        return (json.loads(line) if line else {}), problems

    def kill(self) -> None:
        for process in (*self.healers, self._watcher):
            if process is not None:
                process.kill()


async def check_healing(
    check: HealingCheck, client: Client, metadata_uri: str, records: Sequence[LedgerMetadata]
) -> None:
    """Run the check on the cluster of a metadata store."""
    from bookies.metadata.uri import connect
    from bookies.runtime import aio

    driver = connect(metadata_uri, aio.runtime(), may_create=False)
    await driver.open()
    try:
        await check.run(client, driver, records)
    finally:
        await driver.close()


class HealingCheck:
    """Check that all ledgers are repaired. They must be sealed. `took_s`: seconds until all were fully replicated."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._reasons: dict[int, str] = {}
        self.took_s = 0.0
        self.explained = 0
        self.size = 0  # bytes of all required replicas

    async def run(self, client: Client, driver: MetadataDriver, records: Sequence[LedgerMetadata]) -> None:
        """Wait until no problem is left. Problems that remain after `QUIET_S` are violations."""
        self.size = sum(record.length * record.write_quorum for record in records)
        begun = time.monotonic()
        left = [record.ledger_id for record in records]
        while True:
            left = await self._not_whole(client.administration(), left)
            problems = await self._problems(driver, left)
            self.took_s = time.monotonic() - begun
            if not problems:
                break
            if self.took_s > QUIET_S:
                for promise, text in problems:
                    self._checker.violated(promise, text)
                break
            await asyncio.sleep(POLL_S)

    async def _not_whole(self, administration: Administration, ledger_ids: Sequence[int]) -> list[int]:
        waiting = iter(ledger_ids)
        incomplete: list[int] = []

        async def check() -> None:
            for ledger_id in waiting:
                problem = await self._problem_of(administration, ledger_id)
                if problem:
                    self._reasons[ledger_id] = problem
                    incomplete.append(ledger_id)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(check())
        return sorted(incomplete)

    async def _problem_of(self, administration: Administration, ledger_id: int) -> str:
        try:
            record = (await administration.record(ledger_id)).metadata
            for bookie in record.bookies:
                missing = await administration.missing_entries(bookie, ledger_id)
                if missing:
                    return f"{bookie} lacks entries {', '.join(map(str, missing[:5]))} of ledger {ledger_id}"
        except BookKeeperError as error:
            return f"ledger {ledger_id}: {error}"
        return ""

    async def _problems(self, driver: MetadataDriver, left: Sequence[int]) -> list[tuple[str, str]]:
        from bookies.replication.operator.status import read_processes

        marked = [ledger_id async for ids in driver.recovery.marked_ids() for ledger_id in ids]
        reported = {report["ledger_id"] for process in await read_processes(driver) for report in process.reports}
        problems = [
            ("tidy", f"ledger {ledger_id} is locked by {owner}")
            for ledger_id, owner in (await driver.recovery.locks()).items()
        ]
        problems += [
            ("tidy", f"ledger {ledger_id} is marked, and no process reports why")
            for ledger_id in marked
            if ledger_id not in reported
        ]
        self.explained = sum(ledger_id in reported and ledger_id in marked for ledger_id in left)
        problems += [
            ("healed", f"{self._reasons[ledger_id]}, and no process reports why")
            for ledger_id in left
            if ledger_id not in marked or ledger_id not in reported
        ]
        return problems

    def check_thrift(self, copied: int, absences: int, bookies: int) -> None:
        """Check `thrift`. `copied`: bytes; `absences`: number of absences after which replicas had to be copied."""
        most = SHARES_MAX * (absences + 1) * self.size / bookies + FREE_SIZE
        if copied > most:
            text = f"{copied:,} bytes were copied, for {absences} long absences in a cluster of {self.size:,} bytes"
            self._checker.violated("thrift", f"{text}; the bound is {most:,.0f}")
