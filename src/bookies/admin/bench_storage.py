"""`bk bench storage`: what disk use falls to when ledgers are deleted, what that costs, and what adds feel of it.

One bookie of its own, with small entry logs. First ledgers are written side by side, nine of ten are deleted at
random, and one collection and one major compaction run: bytes in logs, live bytes, bytes read and written. Then the
same again, while entries are added at half of the rate that the bookie takes: latencies without and with a compaction,
and then with a scrub that reads as fast as it may.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pathlib
import random
import shutil
import tempfile
import time
from typing import TYPE_CHECKING, Any

from bookies.admin.common import print_json, print_table, run_async
from bookies.admin.control import ask
from bookies.admin.histogram import Histogram
from bookies.storage.directories import CONTROL_FILE

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.client.writer import LedgerWriter

DELETED_SHARE = 0.9
TICK_S = 0.005  # between two bursts of paced adds
POLL_S = 0.2  # between two looks whether the scrub is done
CHECKPOINT_MS = 200
SETTINGS: dict[str, object] = {
    "gc_quarantine_ms": 0,
    "gc_share_max": 100,
    "gc_interval_ms": 86_400_000,
    "minor_compaction_interval_ms": 0,
    "major_compaction_interval_ms": 0,
    "checkpoint_interval_ms": CHECKPOINT_MS,
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--growth", action="store_true", help="instead: the cost of many ledgers and entries")
    parser.add_argument("--ledgers", type=int, default=50_000, help="of --growth, in all (default 50000)")
    parser.add_argument("--open-ledgers", type=int, default=10_000, help="written to in turn (default 10000)")
    parser.add_argument("--entries", type=int, default=10_000_000, help="of --growth (default 10000000)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, within a minute")
    parser.add_argument(
        "--rate", type=int, default=32 << 20, help="compaction_rate_size, bytes a second (default 32 MiB)"
    )
    parser.add_argument(
        "--kind",
        choices=("transactional", "plain"),
        default="transactional",
        help="of compaction (default transactional)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    if arguments.growth:
        from bookies.admin import bench_growth

        return bench_growth.run(arguments)
    from bookies.admin.local_cluster import LocalCluster

    scale = 1 if arguments.quick else 10
    settings = {
        **SETTINGS,
        "compaction": arguments.kind,
        "compaction_rate_size": arguments.rate,
        "entry_log_size_max": 4 * scale << 20,
    }
    directory = tempfile.mkdtemp(prefix="bk-bench-", dir=os.environ.get("BK_BENCH_DIRECTORY"))
    cluster = LocalCluster(os.path.join(directory, "bk-data"), bookies=1, settings=settings)
    try:
        cluster.start()
        bench = _Bench(cluster.metadata_uri, cluster.bookies[0].directory / "ledgers", scale)
        result = run_async(bench.run)
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)
    if arguments.json:
        print_json(result)
    else:
        rows = [(name, f"{value:,.2f}" if isinstance(value, float) else f"{value:,}") for name, value in result.items()]
        print_table(rows, ("figure", "value"), right=(1,))
    return 0


class _Bench:
    def __init__(self, uri: str, ledgers: pathlib.Path, scale: int) -> None:
        self._uri = uri
        self._ledgers = ledgers
        self._scale = scale
        self._random = random.Random(1)

    async def run(self) -> dict[str, Any]:
        from bookies.client.connect import connect

        await self._call("suspend_scrub", suspended=True)  # until its turn comes
        async with connect(self._uri) as client:
            space = await self._space(client)
            return space | await self._latencies(client)

    async def _call(self, call: str, **given: object) -> Any:
        return (await asyncio.to_thread(ask, self._ledgers / CONTROL_FILE, call, given))[1]

    def _disk_size(self) -> int:
        return sum(path.stat().st_size for path in (self._ledgers / "current").glob("*.log*"))

    async def _fill(self, client: Client, size: int) -> None:
        """Ledgers side by side, about so many bytes in all; then nine of ten are deleted."""
        count, payload = 200, os.urandom(1000)
        ledgers = [await client.create(ensemble=1) for _ in range(count)]
        for _ in range(max(1, size // (count * 10 * len(payload)))):
            await asyncio.gather(*(ledger.append_many([payload] * 10) for ledger in ledgers))
        for ledger in ledgers:
            await ledger.seal()
        await asyncio.sleep(5 * CHECKPOINT_MS / 1000)  # so that a checkpoint covers the logs
        for ledger in self._random.sample(ledgers, int(count * DELETED_SHARE)):
            await client.delete(ledger.ledger_id)

    async def _space(self, client: Client) -> dict[str, Any]:
        await self._fill(client, self._scale * 40_000_000)
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

    async def _latencies(self, client: Client) -> dict[str, Any]:
        await self._fill(client, self._scale * 40_000_000)
        ledger = await client.create(ensemble=1)
        rate = await _rate(ledger) / 2
        idle = await _paced(ledger, rate, time.perf_counter() + 2 + self._scale / 2)
        busy_from = time.perf_counter()
        compaction = asyncio.ensure_future(self._call("compact", kind="major", wait=True))
        busy = await _paced(ledger, rate, busy_from + 600, compaction)
        await compaction
        scrub_from = time.perf_counter()
        scrub = asyncio.ensure_future(self._scrub())
        scrubbed = await _paced(ledger, rate, scrub_from + 600, scrub)
        scrub_seconds, scrub_size = time.perf_counter() - scrub_from, await scrub
        await ledger.seal()
        result: dict[str, Any] = {"adds per second": rate, "seconds of compaction": time.perf_counter() - busy_from}
        result |= {"seconds of scrub": scrub_seconds, "scrub read bytes": scrub_size}
        for name, histogram in (("without compaction", idle), ("with compaction", busy), ("with scrub", scrubbed)):
            figures = histogram.summary()
            result |= {f"{figure} {name}": figures[figure] for figure in ("p50_us", "p99_us", "max_us")}
        result["p99 with / without"] = result["p99_us with compaction"] / max(1, result["p99_us without compaction"])
        result["p99 with scrub / without"] = result["p99_us with scrub"] / max(1, result["p99_us without compaction"])
        return result

    async def _scrub(self) -> int:
        """A whole pass, at the greatest rate that is allowed; the bytes it has read."""
        await self._call("suspend_scrub", suspended=False)
        status = await self._call("scrub", now=True)
        while status["is_running"]:
            await asyncio.sleep(POLL_S)
            status = await self._call("scrub")
        return int(status["read_bytes"])


async def _rate(ledger: LedgerWriter) -> float:
    """Entries a second with a thousand in flight."""
    batch, count = [os.urandom(1000)] * 100, 0
    begin = time.perf_counter()
    while time.perf_counter() < begin + 1.5:
        await asyncio.gather(*(ledger.append_many(batch) for _ in range(10)))
        count += 1000
    return count / (time.perf_counter() - begin)


async def _paced(ledger: LedgerWriter, rate: float, end: float, until: asyncio.Future[Any] | None = None) -> Histogram:
    """Latencies of adds that are sent at this rate, a burst a tick, until the end or that something is done."""
    clock, payload, latencies = time.perf_counter, os.urandom(1000), Histogram()
    pending: dict[asyncio.Task[None], None] = {}

    async def add(count: int, start: float) -> None:
        await ledger.append_many([payload] * count)
        latencies.record(clock() - start, count)

    due, last = 0.0, clock()
    while clock() < end and not (until is not None and until.done()):
        now = clock()
        due, last = due + (now - last) * rate, now
        if count := int(due):
            due -= count
            task = asyncio.ensure_future(add(count, now))
            pending[task] = None
            task.add_done_callback(lambda done: pending.pop(done, None))
        await asyncio.sleep(TICK_S)
    await asyncio.gather(*pending)
    return latencies
