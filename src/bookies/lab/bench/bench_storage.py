"""`bk bench storage`: disk use after deletions, the cost of compaction, and the latency of adds meanwhile.

One bookie with small entry logs. First ledgers are written concurrently, nine of ten are deleted at random, and one
collection and one major compaction run: bytes in logs, live bytes, bytes read and written. Then the same is repeated
while entries are added at half of the rate that a bookie sustains: latencies during continuous checkpoints, collection,
compaction, and a scrub at the highest allowed rate. Each is compared with the latencies of a second, idle bookie.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pathlib
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from bookies.admin.shared.command_line import Option
from bookies.admin.shared.common import run_async
from bookies.admin.shared.report import Report
from bookies.admin.verbs.control import ask
from bookies.config import LEDGER_INDEXES
from bookies.lab.bench.bench_common import data_directory, figures, own_cluster
from bookies.runtime.histogram import Histogram
from bookies.storage.disks.directories import CONTROL_FILE

if TYPE_CHECKING:
    from bookies.admin.cluster import LocalCluster
    from bookies.client.client import Client
    from bookies.client.write import LedgerWriter

DELETED_SHARE = 0.9
TICK_S = 0.005  # between two bursts of paced adds
POLL_S = 0.2  # between two checks whether the scrub has ended
CHECKPOINT_MS, NEVER_MS = 200, 86_400_000
SETTINGS: dict[str, object] = {
    "gc_quarantine_ms": 0,
    "gc_share_max": 100,
    "gc_interval_ms": NEVER_MS,
    "minor_compaction_interval_ms": 0,
    "major_compaction_interval_ms": 0,
    "checkpoint_interval_ms": CHECKPOINT_MS,
}


OPTIONS = (
    Option("--growth", "measure the cost of many ledgers and entries instead", bool),
    Option("--ledgers", "--growth: number of ledgers (default 50000)", int, default=50_000),
    Option("--open-ledgers", "--growth: number of ledgers written in turn (default 10000)", int, default=10_000),
    Option("--entries", "--growth: number of entries (default 10000000)", int, default=10_000_000),
    Option(
        "--index",
        "--growth: kind of index, or both, one after the other (default files)",
        default="files",
        choices=(*LEDGER_INDEXES, "both"),
    ),
    Option("--quick", "use a tenth of the data; takes less than a minute", bool),
    Option("--rate", "compaction_rate_size, in bytes per second (default 32 MiB)", int, default=32 << 20),
    Option(
        "--kind",
        "kind of compaction (default transactional)",
        default="transactional",
        choices=("transactional", "plain"),
    ),
)


def run(arguments: argparse.Namespace) -> Report:
    """Measure. Return the table."""
    if arguments.growth:
        from bookies.lab.bench import bench_growth

        return bench_growth.run(arguments)
    scale = 1 if arguments.quick else 10
    settings = {
        **SETTINGS,
        "compaction": arguments.kind,
        "compaction_rate_size": arguments.rate,
        "entry_log_size_max": 4 * scale << 20,
    }
    still = settings | {"checkpoint_interval_ms": NEVER_MS}
    with (
        data_directory() as directory,
        own_cluster(f"{directory}/quiet", 1, settings=still) as quiet,
        own_cluster(f"{directory}/busy", 1, settings=settings) as busy,
    ):
        return figures(run_async(partial(_measure, quiet, busy, scale)))


async def _measure(quiet: LocalCluster, busy: LocalCluster, scale: int) -> dict[str, Any]:
    from bookies.client.connect import connect

    async with connect(quiet.metadata_uri) as other, connect(busy.metadata_uri) as client:
        bench = _Bench(client, busy.bookies[0].directory / "ledgers", scale)
        still = _Bench(other, quiet.bookies[0].directory / "ledgers", scale)
        for member in (bench, still):
            await member.suspend_scrub(suspended=True)  # until the scrub is measured
        result = await bench.space()
        await bench.fill()
        async with await other.create(ensemble=1) as reference, await client.create(ensemble=1) as ledger:
            return result | await bench.latencies(reference, ledger)


class _Bench:
    """Measurements on one bookie. `ledgers`: its ledger directory."""

    def __init__(self, client: Client, ledgers: pathlib.Path, scale: int) -> None:
        self._client = client
        self._ledgers = ledgers
        self._scale = scale
        self._random = random.Random(1)

    async def suspend_scrub(self, *, suspended: bool) -> None:
        await self._call("suspend_scrub", suspended=suspended)

    async def _call(self, call: str, **given: object) -> Any:
        return (await asyncio.to_thread(ask, self._ledgers / CONTROL_FILE, call, given))[1]

    def _disk_size(self) -> int:
        return sum(path.stat().st_size for path in (self._ledgers / "current").glob("*.log*"))

    async def fill(self) -> None:
        """Write ledgers concurrently, then delete nine of ten."""
        client, size = self._client, self._scale * 40_000_000
        count, payload = 200, os.urandom(1000)
        ledgers = [await client.create(ensemble=1) for _ in range(count)]
        for _ in range(max(1, size // (count * 10 * len(payload)))):
            await asyncio.gather(*(ledger.append_many([payload] * 10) for ledger in ledgers))
        for ledger in ledgers:
            await ledger.seal()
        await asyncio.sleep(5 * CHECKPOINT_MS / 1000)  # so that a checkpoint covers the logs
        for ledger in self._random.sample(ledgers, int(count * DELETED_SHARE)):
            await client.delete(ledger.ledger_id)

    async def space(self) -> dict[str, Any]:
        """Measure the bytes that a collection and a compaction leave, read and write."""
        await self.fill()
        before = self._disk_size()
        await self._call("gc", wait=True)
        collected = self._disk_size()
        begin = time.perf_counter()
        space = await self._call("compact", kind="major", wait=True)
        seconds = time.perf_counter() - begin
        after = self._disk_size()
        live = before * (1 - DELETED_SHARE)  # all ledgers have the same size
        return {
            "log bytes before": before,
            "live bytes": int(live),
            "log bytes after collection": collected,
            "log bytes after one major compaction": after,
            "log bytes / live bytes": after / live,
            "compaction read bytes": space["compaction_read_bytes"],
            "compaction written bytes": space["compaction_written_bytes"],
            "compaction seconds": seconds,
        }

    async def latencies(self, quiet: LedgerWriter, busy: LedgerWriter) -> dict[str, Any]:
        """Measure adds to `busy`, on this bookie, during each task, and to `quiet` right before and after it."""
        rate = min(await _rate(quiet), await _rate(busy)) / 2
        result: dict[str, Any] = {"adds per second": rate}
        seconds = 2.0 + self._scale
        tasks: dict[str, Callable[[], Awaitable[None]]] = {
            "checkpoints": partial(asyncio.sleep, seconds),  # they run continuously
            "collection": partial(self._collect_until, seconds),
            "compaction": self._compact,
            "scrub": partial(self._scrub, seconds),
        }
        for name, task in tasks.items():
            idle = await _paced(quiet, rate, asyncio.ensure_future(asyncio.sleep(seconds / 2)))
            latencies = await _paced(busy, rate, asyncio.ensure_future(task()))
            idle.merge(await _paced(quiet, rate, asyncio.ensure_future(asyncio.sleep(seconds / 2))))
            for prefix, histogram in (("without", idle), ("with", latencies)):
                figures = histogram.summary()
                result |= {f"{figure} {prefix} {name}": figures[figure] for figure in ("p50_us", "p99_us", "max_us")}
            result[f"p99 with / without {name}"] = result[f"p99_us with {name}"] / max(
                1, result[f"p99_us without {name}"]
            )
        return result

    async def _collect_until(self, seconds: float) -> None:
        """Run collections, one after the other, for this time."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            await self._call("gc", wait=True)

    async def _compact(self) -> None:
        await self._call("compact", kind="major", wait=True)

    async def _scrub(self, seconds: float) -> None:
        """Run a pass at the highest allowed rate, for at most this time."""
        end = time.perf_counter() + seconds
        await self.suspend_scrub(suspended=False)
        status = await self._call("scrub", now=True)
        while status["is_running"] and time.perf_counter() < end:
            await asyncio.sleep(POLL_S)
            status = await self._call("scrub")
        await self.suspend_scrub(suspended=True)


async def _rate(ledger: LedgerWriter) -> float:
    """Return the entries per second with a thousand in flight."""
    batch, count = [os.urandom(1000)] * 100, 0
    begin = time.perf_counter()
    while time.perf_counter() < begin + 1.5:
        await asyncio.gather(*(ledger.append_many(batch) for _ in range(10)))
        count += 1000
    return count / (time.perf_counter() - begin)


async def _paced(ledger: LedgerWriter, rate: float, until: asyncio.Future[None]) -> Histogram:
    """Add at this rate, one burst per tick, until `until` is done. Return the latencies."""
    clock, payload, latencies = time.perf_counter, os.urandom(1000), Histogram()
    pending: dict[asyncio.Task[None], None] = {}

    async def add(count: int, start: float) -> None:
        await ledger.append_many([payload] * count)
        latencies.record(clock() - start, count)

    due, last = 0.0, clock()
    while not until.done():
        now = clock()
        due, last = due + (now - last) * rate, now
        if count := int(due):
            due -= count
            task = asyncio.ensure_future(add(count, now))
            pending[task] = None
            task.add_done_callback(lambda done: pending.pop(done, None))
        await asyncio.sleep(TICK_S)
    await asyncio.gather(*pending, until)
    return latencies
