"""Many logs at once: memory, and operations of the metadata store a second, as the number of logs grows.

One of ten logs is written, and has two consumers. Bookies apply the retention of all logs. One process is the client of
all leaders and consumers. `make bench-logs ARGS='--logs 1000,3000,10000'` prints the table.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from bookies.admin.cluster.local_cluster import LocalCluster
from bookies.client.client import Client
from bookies.client.connect import connect
from bookies.client.log.log_writer import LogWriter
from bookies.config import RecoveryConfig
from bookies.errors import LeaseLost
from bookies.replication.auditor.log_retention import LogRetention
from bookies.replication.base.recovery_switch import Switch
from bookies.runtime.events import Events

WRITTEN, CONSUMERS = 10, 2  # one of so many logs is written; consumers of a written log
APPEND_S = 60.0  # between two appends to a log
SETTLE_S = 20.0
TTL_S = 60.0  # of consumers
WINDOW_S = 60.0
STARTS_MAX = 64  # logs and consumers that are started at a time


class Row(Struct, frozen=True):
    """Result for one number of logs.

    `client_cpu`: processors. `late`: entries that consumers have not handled. `ended`: consumers that lost their lease.
    `kinds`: operations a second.
    `housekeeping`: operations of one pass over all logs.
    """

    logs: int
    client_mib: float
    bookies_mib: float
    client_cpu: float
    kinds: dict[str, float]
    housekeeping: dict[str, float]
    appends: float
    late: int
    ended: int
    starts_s: float
    housekeeping_s: float


def resident_mib(pid: int | str) -> float:
    """Return the resident memory of a process."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def rates(after: Mapping[str, float], before: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return what has been counted in between, a second."""
    return {name: (count - before.get(name, 0)) / seconds for name, count in after.items()}


def counted(client: Client) -> dict[str, float]:
    """Return the client's requests to the metadata store, by kind."""
    totals = collections.Counter[str]()
    for (_, kind), count in client._driver.operations.counts.items():
        totals[kind] += count
    return dict(totals)


# -- the client's process ----------------------------------------------------------------------------------------------


async def each(items: Iterable[str], act: Callable[[str], Awaitable[None]]) -> None:
    """Call `act` for all items, `STARTS_MAX` at a time."""
    turns = asyncio.Semaphore(STARTS_MAX)

    async def one(item: str) -> None:
        async with turns:
            await act(item)

    await asyncio.gather(*map(one, items))


class Load:
    """Leaders and consumers of one process."""

    def __init__(self, client: Client, logs: int) -> None:
        self._client = client
        self._names = [f"log-{number}" for number in range(logs)]
        self._writers: list[LogWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.appended = self.handled = 0

    async def start(self) -> None:
        """Create the logs, take the lead of those that are written, and begin to consume them."""
        written = self._names[::WRITTEN]
        await each(self._names, lambda name: self._client.log(name).create(retention={"age": 86_400.0}))
        await each(written, self._lead)
        await each([f"{name} {number}" for name in written for number in range(CONSUMERS)], self._consume)
        for number, writer in enumerate(self._writers):
            self._tasks.append(asyncio.ensure_future(self._append(writer, APPEND_S * number / len(self._writers))))

    async def _lead(self, name: str) -> None:
        self._writers.append(await self._client.log(name).lead())

    async def _consume(self, text: str) -> None:
        name, _, consumer = text.partition(" ")
        rows = await self._client.log(name).consumer(f"consumer-{consumer}", ttl=TTL_S)

        async def follow() -> None:
            async for _ in rows:
                self.handled += 1

        self._tasks.append(asyncio.ensure_future(follow()))

    async def _append(self, writer: LogWriter, pause_s: float) -> None:
        while True:
            await asyncio.sleep(pause_s)
            await writer.append(b"x" * 100)
            self.appended += 1
            pause_s = APPEND_S

    @property
    def ended(self) -> int:
        """Return how many consumers have ended, because their lease was not renewed in time."""
        return sum(task.done() and isinstance(task.exception(), LeaseLost) for task in self._tasks)


async def measured(uri: str, logs: int, window_s: float) -> None:
    """Print the result of one client, but for what `run` adds, as JSON."""
    async with connect(uri) as client:
        load, began = Load(client, logs), time.monotonic()
        await load.start()
        starts_s = time.monotonic() - began
        await asyncio.sleep(SETTLE_S)
        before, cpu_s, appended, began = counted(client), time.process_time(), load.appended, time.monotonic()
        await asyncio.sleep(window_s)
        seconds = time.monotonic() - began
        result = {
            "client_mib": resident_mib("self"),
            "client_cpu": (time.process_time() - cpu_s) / seconds,
            "kinds": rates(counted(client), before, seconds),
            "appends": (load.appended - appended) / seconds,
            "late": CONSUMERS * load.appended - load.handled,
            "ended": load.ended,
            "starts_s": starts_s,
        }
        print(json.dumps(result), flush=True)
        await asyncio.Event().wait()  # The load goes on until `run` ends this process.


async def housekeeping(uri: str) -> dict[str, object]:
    """Apply the retention of all logs once, as the elected bookie does."""
    async with connect(uri) as client:
        switch = Switch(client._driver.recovery)
        await switch.start()
        before, began = counted(client), time.monotonic()
        await LogRetention(client, switch, RecoveryConfig(), Events("recovery", client._runtime.clock)).apply()
        switch.stop()
        seconds = time.monotonic() - began
        return {"housekeeping": rates(counted(client), before, 1.0), "housekeeping_s": seconds}


# -- the cluster -------------------------------------------------------------------------------------------------------


def run(directory: str, logs: int, window_s: float) -> Row:
    """Measure one number of logs on a new cluster."""
    with LocalCluster(f"{directory}/{logs}", 3, settings={"log_housekeeping": True}) as cluster:
        command = [sys.executable, "-m", "benchmarks.many_logs", cluster.metadata_uri, str(logs), str(window_s)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
            try:
                assert client.stdout is not None
                result = json.loads(client.stdout.readline())
                result |= asyncio.run(housekeeping(cluster.metadata_uri))
            finally:
                client.kill()
        return Row(logs=logs, bookies_mib=sum(map(resident_mib, cluster.pids())), **result)


def print_table(rows: Iterable[Row]) -> None:
    """Print a column for each number of logs."""
    rows = list(rows)

    def line(title: str, values: Iterable[float], form: str = ",.0f") -> None:
        print(f"{title:<44}" + "".join(f"{value:>12{form}}" for value in values))

    line("logs", [row.logs for row in rows])
    line("written logs", [row.logs // WRITTEN for row in rows])
    line("consumers", [row.logs // WRITTEN * CONSUMERS for row in rows])
    line("memory of the client, MiB", [row.client_mib for row in rows])
    line("memory of three bookies, MiB", [row.bookies_mib for row in rows])
    line("processors that the client uses", [row.client_cpu for row in rows], ".2f")
    line("appends/s", [row.appends for row in rows], ",.1f")
    line("entries that are not handled yet", [row.late for row in rows])
    line("consumers that lost their lease", [row.ended for row in rows])
    line("creation and start, s", [row.starts_s for row in rows], ",.1f")
    kinds_of(line, "operations/s", [row.kinds for row in rows])
    kinds_of(line, "operations of a pass of housekeeping", [row.housekeeping for row in rows])
    line("a pass of housekeeping, s", [row.housekeeping_s for row in rows], ",.1f")


def kinds_of(line: Callable[[str, Iterable[float]], None], title: str, tables: Sequence[Mapping[str, float]]) -> None:
    """Print the operations of each number of logs, and those of each kind."""
    line(title, [sum(table.values()) for table in tables])
    for kind in sorted({kind for table in tables for kind, value in table.items() if value >= 0.5}):
        line(f"  {kind}", [table.get(kind, 0.0) for table in tables])


def table(directory: str, counts: Iterable[int], window_s: float = WINDOW_S) -> None:
    """Measure every number of logs, and print the table."""
    print(f"load before: {os.getloadavg()[0]:.1f}; window: {window_s:.0f} s; an append to a log every {APPEND_S:.0f} s")
    rows: list[Row] = []
    for count in counts:
        rows.append(run(directory, count, window_s))
        print(rows[-1], file=sys.stderr)
    print_table(rows)


if __name__ == "__main__":
    asyncio.run(measured(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
