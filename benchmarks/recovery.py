"""A bookie dies: Apache's AutoRecovery and ours, one after the other on one machine, each with a ZooKeeper of its own.

    python benchmarks/recovery.py [--quick] [--runs 1] [--ledgers 10000] [--systems apache ours] [--json FILE]

What is done, and what the figures mean, says `bk bench recovery`: five bookies, small ledgers, one bookie killed under
adds at half the rate that the cluster takes. Here both keep their metadata in ZooKeeper, both run auto-recovery in the
bookies' processes, with the same session timeout and the same delay before a bookie counts as lost, and our client
fills and loads both. Everything else of Apache's is its default.

* `bytes_copied`: of payload, by each system's own count (Apache's `NUM_BYTES_WRITTEN`).
* `metadata_operations`: requests that ZooKeeper's server received from the kill until all was whole, from everybody
  but this program; less those that came anyway, at the rate of the seconds before (heartbeats of sessions).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from apache_cluster import ApacheCluster, ZooKeeper

from bookies.admin.bench_recovery import (
    BOOKIES,
    DELAY_S,
    LEASE_MS,
    REPORT_MS,
    Bench,
    Cluster,
    Counted,
    configure,
    limit,
)
from bookies.admin.common import run_async
from bookies.admin.local_cluster import LocalCluster
from bookies.client.client import Client
from bookies.metadata.uri import connect
from bookies.metadata.zookeeper import ZooKeeperDriver
from bookies.model import BookieId
from bookies.runtime import aio

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
OURS = {"auto_recovery": True, "lost_bookie_delay_s": DELAY_S, "recovery_report_interval_ms": REPORT_MS}
APACHES = {
    "autoRecoveryDaemonEnabled": "true",
    "lostBookieRecoveryDelay": DELAY_S,
    "zkTimeout": LEASE_MS,
    "statsProviderClass": "Counts",
    "countsFile": "{home}/counts",
}


class Requests:
    """What a ZooKeeper server was asked by others than one session."""

    def __init__(self, server: ZooKeeper, driver: ZooKeeperDriver) -> None:
        self._server, self._driver = server, driver
        self._per_s = 0.0
        self._since = time.monotonic()

    def _received(self) -> int:
        counters = dict(line.split("\t", 1) for line in self._server.ask("mntr").splitlines() if "\t" in line)
        session = f"sid={self._driver.session_id:#x},"
        [own] = [line for line in self._server.ask("cons").splitlines() if session in line]
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


class ZooKeeperBench(Bench):
    """Both systems counted by the same server."""

    def __init__(self, directory: str, requests: Requests, *parts: Any) -> None:
        super().__init__(*parts)
        self._directory = pathlib.Path(directory)
        self._requests: Requests | None = requests
        self._is_counting = False

    async def counted(self, dead: BookieId) -> Counted:
        assert self._requests is not None
        if not self._is_counting:
            await asyncio.to_thread(self._requests.begin)
            self._is_counting = True
        operations = await asyncio.to_thread(self._requests.count)
        files = list(self._directory.glob("bookie-*/counts"))
        if not files:
            return Counted((await super().counted(dead)).size, operations)
        lines = [line.split(" ") for file in files for line in file.read_text().splitlines()]
        return Counted(sum(int(value) for name, value in lines if name == "NUM_BYTES_WRITTEN"), operations)


@contextlib.contextmanager
def running(system: str, directory: str, server: ZooKeeper) -> Iterator[Cluster]:
    if system == "apache":
        with ApacheCluster(directory, BOOKIES, settings=APACHES, zookeeper=server) as apache:
            yield apache
        return
    ours = LocalCluster(directory, BOOKIES, lease_ms=LEASE_MS, metadata_uri=server.metadata_uri, settings=OURS)
    try:
        ours.start()
        yield ours
    finally:
        ours.stop()


def measure(system: str, directory: str, arguments: argparse.Namespace) -> dict[str, Any]:
    with ZooKeeper(os.path.join(directory, "zookeeper"), tick_ms=LEASE_MS // 3) as server:
        home = os.path.join(directory, "bookies")
        with running(system, home, server) as cluster:

            async def main() -> dict[str, Any]:
                runtime = aio.runtime()
                driver = connect(server.metadata_uri, runtime, may_create=False)
                assert isinstance(driver, ZooKeeperDriver)
                async with Client(runtime, driver) as client:
                    requests = Requests(server, driver)
                    return await ZooKeeperBench(home, requests, cluster, client, driver, arguments).run()

            return run_async(main)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    configure(parser)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--json", metavar="FILE", help="every run, one JSON document")
    parser.add_argument("--directory", default=None, help="where both keep their data (default: temporary)")
    arguments = parser.parse_args()
    limit(arguments)
    runs: list[dict[str, Any]] = []
    for number in range(arguments.runs):
        for system in arguments.systems:
            with tempfile.TemporaryDirectory(prefix="bk-recovery-", dir=arguments.directory) as directory:
                found = measure(system, directory, arguments)
            runs.append({"system": system, "run": number, **found})
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(runs, indent=1))
    print_table(runs, arguments.systems)
    return int(any(run["whole_after_s"] is None for run in runs))


def print_table(runs: list[dict[str, Any]], systems: list[str]) -> None:
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
