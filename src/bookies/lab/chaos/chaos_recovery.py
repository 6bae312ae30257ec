"""Auto-recovery in `bk chaos`: the processes that take part beside the bookies, and what must hold in the end.

healed   every ledger is on all bookies of its write sets, or is marked, and a process says why it could not be repaired
tidy     nothing else is marked, and nothing is locked
thrift   what was copied is bounded by what bookies that were away for long hold
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import time
from collections.abc import Sequence
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
HEALERS = 2
QUIET_S = 180.0  # until everything has to be whole, when nothing is broken any more
LOOK_S = 2.0
AT_ONCE = 8  # ledgers that are looked at
SHARES_MAX = 3.0  # copies of what a bookie holds, for each time that one was away for long
FREE_SIZE = 64 << 20  # bytes that need no reason: replicas that were never written, copies that broke off


class HealerProcesses:
    """Those that take part and are no bookies, and the one that adds up what all have done."""

    def __init__(self, directory: pathlib.Path, metadata_uri: str, lease_ms: int) -> None:
        self._directory = directory
        self._arguments = ["--metadata", metadata_uri, "--lease-ms", str(lease_ms)]
        self.healers: list[ChaosProcess] = []
        self.stopped: dict[int, None] = {}  # numbers of healers that stand still
        self._watcher: ChaosProcess | None = None

    def start(self) -> None:
        self.healers = [self._started(number) for number in range(HEALERS)]
        self._watcher = ChaosProcess(
            "bookies.lab.chaos.chaos_healer",
            ["watch", *self._arguments],
            self._directory / "watcher.log",
            has_output=True,
        )

    def _started(self, number: int) -> ChaosProcess:
        name = f"healer{number + 1}"
        arguments = ["heal", "--name", name, *self._arguments]
        return ChaosProcess("bookies.lab.chaos.chaos_healer", arguments, self._directory / f"{name}.log")

    def restart(self, number: int) -> None:
        """Kill it, wherever it is, and let another one take its place."""
        self.healers[number].kill()
        self.healers[number] = self._started(number)

    def ended(self) -> list[int]:
        """Numbers of those that have ended by themselves."""
        return [number for number, healer in enumerate(self.healers) if healer.has_ended()]

    def finish(self, patience_s: float) -> tuple[dict[str, int], list[str]]:
        """End all in the orderly way: the sums, and what went wrong."""
        problems = []
        for healer in self.healers:
            healer.end_input()
        deadline = time.monotonic() + patience_s
        for number, healer in enumerate(self.healers, 1):
            if not healer.wait(deadline - time.monotonic()):
                problems.append(f"healer{number} does not end")
        assert self._watcher is not None
        self._watcher.end_input()
        assert self._watcher.process.stdout is not None
        line = self._watcher.process.stdout.readline()
        if not line:
            problems.append(f"the watcher ended: {self._watcher.last_words()}")
        return (json.loads(line) if line else {}), problems

    def kill(self) -> None:
        for process in (*self.healers, self._watcher):
            if process is not None:
                process.kill()


class HealingCheck:
    """`ledgers`: to look at; every one of them is sealed. `took_s`: until all were whole."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._reasons: dict[int, str] = {}
        self.took_s = 0.0
        self.explained = 0
        self.size = 0  # bytes of all replicas that there have to be

    async def run(self, client: Client, driver: MetadataDriver, records: Sequence[LedgerMetadata]) -> None:
        """Wait until nothing is wrong, or has had time enough; then it is a violation."""
        self.size = sum(each.length * each.write_quorum for each in records)
        begun = time.monotonic()
        left = [each.ledger_id for each in records]
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
            await asyncio.sleep(LOOK_S)

    async def _not_whole(self, administration: Administration, ledger_ids: Sequence[int]) -> list[int]:
        waiting = iter(ledger_ids)
        found: list[int] = []

        async def look() -> None:
            for ledger_id in waiting:
                problem = await self._problem_of(administration, ledger_id)
                if problem:
                    self._reasons[ledger_id] = problem
                    found.append(ledger_id)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(look())
        return sorted(found)

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

        marked = [each async for ids in driver.recovery.marked_ids() for each in ids]
        reported = {report["ledger_id"] for each in await read_processes(driver) for report in each.reports}
        found = [
            ("tidy", f"ledger {each} is locked by {owner}") for each, owner in (await driver.recovery.locks()).items()
        ]
        found += [("tidy", f"ledger {each} is marked, and nobody says why") for each in marked if each not in reported]
        self.explained = sum(each in reported and each in marked for each in left)
        found += [
            ("healed", f"{self._reasons[each]}, and nobody says why")
            for each in left
            if each not in marked or each not in reported
        ]
        return found

    def check_thrift(self, copied: int, absences: int, bookies: int) -> None:
        """`copied`: bytes; `absences`: how often a bookie was away for so long that others had to be found."""
        most = SHARES_MAX * (absences + 1) * self.size / bookies + FREE_SIZE
        if copied > most:
            text = f"{copied:,} bytes were copied, for {absences} long absences in a cluster of {self.size:,} bytes"
            self._checker.violated("thrift", f"{text}; {most:,.0f} would be understandable")
