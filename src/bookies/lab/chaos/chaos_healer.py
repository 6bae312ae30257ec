"""Auto-recovery processes of `bk chaos`: healers and a watcher. They run until their standard input ends.

`heal` is `bk recovery run` with the settings of the chaos run. `watch` adds up the reports of all processes of
auto-recovery, also of killed ones, and prints the totals at the end as one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

from bookies.errors import BookKeeperError
from bookies.lab.chaos.chaos_child import input_ends, run_child

if TYPE_CHECKING:
    from bookies.replication.operator.status import ProcessStatus

SETTINGS = {
    "lost_bookie_delay_s": 4,
    "audit_replicas_interval_s": 15,
    "recovery_open_ledger_grace_ms": 5_000,
    "recovery_backoff_ms": 500,
    "recovery_backoff_max_ms": 5_000,
    "recovery_report_interval_ms": 1_000,
}
POLL_S = 1.0
COUNTED = {
    "bytes_copied": "bytes copied by repairs",
    "entries_copied": "entries copied by repairs",
    "ledgers_repaired": "ledgers repaired",
    "ledgers_sealed": "ledgers sealed by repairs",
}


async def heal(arguments: argparse.Namespace) -> int:
    from bookies.bookie.main import configure_logging
    from bookies.config import ClientConfig, RecoveryConfig
    from bookies.metadata.uri import connect
    from bookies.model import BookieId
    from bookies.replication.daemon.process import Participant, RecoveryProcess
    from bookies.runtime import aio

    configure_logging()
    runtime = aio.runtime()
    participant = Participant(
        runtime,
        lambda: connect(arguments.metadata, runtime, lease_ms=arguments.lease_ms, may_create=False),
        RecoveryConfig(**SETTINGS),  # type: ignore[arg-type]
        ClientConfig(),
        BookieId(arguments.name),
        arguments.name,
    )
    work = asyncio.create_task(RecoveryProcess(participant).run())
    await input_ends()
    work.cancel()
    await asyncio.wait((work,))
    return 0


class Sums:
    """Totals of every process over all its restarts: a counter that decreases has restarted at 0."""

    def __init__(self) -> None:
        self.total = dict.fromkeys(COUNTED.values(), 0)
        self.auditors: list[str] = []
        self._seen: dict[tuple[str, str], int] = {}

    def add(self, process: ProcessStatus) -> None:
        for name, title in COUNTED.items():
            now, before = int(process.worker.get(name, 0)), self._seen.get((process.name, name), 0)
            self.total[title] += now - before if now >= before else now
            self._seen[process.name, name] = now

    def leads(self, auditor: str | None) -> None:
        if auditor is not None and self.auditors[-1:] != [auditor]:
            self.auditors.append(auditor)


async def watch(arguments: argparse.Namespace) -> int:
    from bookies.metadata.uri import connect
    from bookies.replication.operator.status import read_processes
    from bookies.runtime import aio

    driver = connect(arguments.metadata, aio.runtime(), may_create=False)
    sums = Sums()
    await driver.open()
    try:
        ending = asyncio.create_task(input_ends())
        while not ending.done():
            with contextlib.suppress(BookKeeperError):  # The store is stopped at times; later reports are cumulative.
                sums.leads(await driver.recovery.auditor())
                for process in await read_processes(driver):
                    sums.add(process)
            await asyncio.wait((ending,), timeout=POLL_S)
    finally:
        await driver.close()
    print(json.dumps({**sums.total, "auditors elected": len(sums.auditors)}), flush=True)
    return 0


async def main(arguments: argparse.Namespace) -> int:
    return await (heal if arguments.what == "heal" else watch)(arguments)


if __name__ == "__main__":
    run_child(main)
