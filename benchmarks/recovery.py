"""A bookie dies: Apache's AutoRecovery and ours, one after the other on one machine, each with a ZooKeeper of its own.

    python -m benchmarks.recovery [--quick] [--runs 1] [--ledgers 10000] [--systems apache ours] [--json FILE]

What is done, and what the figures mean, says `bk bench recovery`: five bookies, small ledgers, one bookie killed under
adds at half the rate that the cluster takes. Here both keep their metadata in ZooKeeper, both run auto-recovery in the
bookies' processes, with the same session timeout and the same delay before a bookie counts as lost, and our client
fills and loads both. Everything else of Apache's is its default.

* `bytes_copied`: by each system's own count, payload, header and digest of each entry.
* `metadata_operations`: requests that ZooKeeper's server received from the kill until all was whole, from everybody
  but this program; less those that came anyway, at the rate of the seconds before (heartbeats of sessions).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import re
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from benchmarks.suite import ending, java
from benchmarks.suite.servers import ApacheCluster, Cluster, OurCluster

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import add_options
from bookies.admin.shared.common import run_async
from bookies.client.client import Client
from bookies.errors import BookKeeperError
from bookies.lab.bench.bench_recovery import (
    BOOKIES,
    DELAY_S,
    LEASE_MS,
    OPTIONS,
    REPORT_MS,
    Bench,
    Counted,
    Space,
    limit,
)
from bookies.metadata.uri import connect
from bookies.metadata.zookeeper import ZooKeeperDriver
from bookies.model import ENTRY_HEADER_SIZE, BookieId, DigestType
from bookies.runtime import aio

T = TypeVar("T")
SYSTEMS = ("apache", "ours")
QUIET_S = 3.0  # that requests are counted before the kill
FIGURES = (
    "noticed_after_s",
    "whole_after_s",
    "copied_over_needed",
    "metadata_operations_per_ledger",
    "p99_us_before",
    "p99_us_during",
    "p99_during_over_before",
    "adds_per_s",
    "adds_failed",
)
OURS: Mapping[str, object] = {
    "auto_recovery": True,
    "lost_bookie_delay_s": DELAY_S,
    "lease_ms": LEASE_MS,
    "recovery_report_interval_ms": REPORT_MS,
}
APACHES = {
    "autoRecoveryDaemonEnabled": "true",
    "lostBookieRecoveryDelay": str(DELAY_S),
    "zkTimeout": str(LEASE_MS),
    "statsProviderClass": "Counts",
    "countsFile": "counts",
}
OVERHEAD = ENTRY_HEADER_SIZE + DigestType.CRC32C.size  # bytes of an entry beside its payload


class Requests:
    """What a ZooKeeper server was asked by others than the session of a driver."""

    def __init__(self, driver: ZooKeeperDriver) -> None:
        self._driver = driver
        self._address = driver.uri.partition("://")[2].partition("/")[0].split(":")
        self._per_s = 0.0
        self._since = time.monotonic()

    def _ask(self, word: str) -> list[str]:
        """The lines that it answers to one of its words of four letters."""
        with socket.create_connection((self._address[0], int(self._address[1])), 10) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode().splitlines()

    def _received(self) -> int:
        counters = dict(line.split("\t", 1) for line in self._ask("mntr") if "\t" in line)
        session = f"sid={self._driver.zookeeper.session_id:#x},"
        [own] = [line for line in self._ask("cons") if session in line]
        found = re.search(r"recved=(\d+)", own)
        assert found is not None, own
        return int(counters["zk_packets_received"]) - int(found[1])

    def begin(self) -> None:
        """Learn how many there are while nothing happens: takes `QUIET_S`."""
        before = self._received()
        time.sleep(QUIET_S)
        self._since = time.monotonic()
        self._per_s = (self._received() - before) / QUIET_S

    def count(self) -> float:
        """So far, without those that would have come anyway since `begin`."""
        return self._received() - self._per_s * (time.monotonic() - self._since)


class Killing:
    """Of a bookie by the id that the cluster knows it by."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def kill(self, bookie_id: str) -> None:
        next(each for each in self._cluster.bookies if bookie_id in (each.name, f"127.0.0.1:{each.port}")).kill()


class ZooKeeperBench(Bench):
    """Both systems counted by the server that they share their metadata through."""

    def __init__(
        self, cluster: Cluster, client: Client, driver: ZooKeeperDriver, arguments: argparse.Namespace
    ) -> None:
        super().__init__(Killing(cluster), client, driver, arguments, Space(cluster.directory))
        self._directory = cluster.directory
        self._requests = Requests(driver)
        self._is_counting = False

    async def counted(self, dead: BookieId) -> Counted:
        if not self._is_counting:
            await asyncio.to_thread(self._requests.begin)
            self._is_counting = True
        operations = await asyncio.to_thread(self._requests.count)
        files = list(self._directory.glob("bookie-*/counts"))
        if not files:
            own = await super().counted(dead)
            return Counted(own.size, operations, own.names)
        lines = [line.split(" ") for file in files for line in file.read_text().splitlines()]
        sums = {name: sum(int(value) for each, value in lines if each == name) for name, _ in lines}
        copied = sums.get("NUM_BYTES_WRITTEN", 0) + OVERHEAD * sums.get("NUM_ENTRIES_WRITTEN", 0)
        return Counted(copied, operations)


def measure(system: str, directory: pathlib.Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run of "apache" or "ours" on a cluster of its own."""
    cluster: Cluster
    if system == "apache":
        cluster = ApacheCluster(directory, BOOKIES, APACHES)
    else:
        cluster = OurCluster(directory, BOOKIES, settings=OURS)
    cluster.tick_ms = LEASE_MS // 3

    async def main() -> dict[str, Any]:
        runtime = aio.runtime()
        driver = connect(cluster.metadata_uri, runtime, may_create=False)
        assert isinstance(driver, ZooKeeperDriver)
        async with Client(runtime, driver) as client:
            while sum(each.mode == "writable" for each in await client.bookies()) < BOOKIES:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            return await ZooKeeperBench(cluster, client, driver, arguments).run()

    try:
        cluster.start()
        return until_ended(main)
    finally:
        cluster.stop()


def until_ended(main: Callable[[], Awaitable[T]]) -> T:
    """As `run_async`; SIGTERM, which cancels the coroutine too, raises SystemExit of 143."""
    is_terminated = False

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None

        def terminate() -> None:
            nonlocal is_terminated
            is_terminated = True
            task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
        return await main()

    try:
        return run_async(guarded)
    except KeyboardInterrupt:
        if is_terminated:
            sys.exit(143)
        raise


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, OPTIONS)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--json", metavar="FILE", help="every run, one JSON document")
    parser.add_argument("--directory", type=pathlib.Path, help="where both keep their data (default: temporary)")
    arguments = parser.parse_args(words)
    if arguments.runs < 1:
        parser.error("--runs must be 1 or more")
    try:
        limit(arguments)
    except UsageError as error:
        parser.error(str(error))
    if arguments.directory is not None:
        try:
            arguments.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--directory {arguments.directory}: {error.strerror or error}")
    return ending.orderly(lambda: measure_all(arguments))


def measure_all(arguments: argparse.Namespace) -> int:
    """Exit status: 1 when a run has failed, or was not whole again in time. What was measured before is told always."""
    java.prepare()
    runs: list[dict[str, Any]] = []
    try:
        for number in range(arguments.runs):
            for system in arguments.systems:
                runs.append({"system": system, "run": number, **_run(system, arguments)})
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    finally:
        if runs:
            print_table(runs, arguments.systems)
            if arguments.json:
                pathlib.Path(arguments.json).write_text(json.dumps(runs, indent=1))
    return int(any(run["whole_after_s"] is None for run in runs))


def _run(system: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run in a directory of its own; of one that fails, what went wrong."""
    try:
        with tempfile.TemporaryDirectory(
            prefix="bk-recovery-", dir=arguments.directory, ignore_cleanup_errors=True
        ) as directory:
            return measure(system, pathlib.Path(directory) / system, arguments)
    except (BookKeeperError, UsageError, RuntimeError, OSError) as error:
        return {"whole_after_s": None, "failure": f"{type(error).__name__}: {error}"}


def print_table(runs: Sequence[Mapping[str, Any]], systems: Sequence[str]) -> None:
    """Medians of the runs in which everything became whole."""
    print(f"| figure | {' | '.join(systems)} |\n|---|{'---:|' * len(systems)}")
    for figure in FIGURES:
        texts = []
        for system in systems:
            values = [run[figure] for run in runs if run["system"] == system and run["whole_after_s"] is not None]
            texts.append(f"{statistics.median(values):,.2f}" if values else "-")
        print(f"| {figure.replace('_', ' ')} | {' | '.join(texts)} |")


if __name__ == "__main__":
    sys.exit(main())
