"""`bk bench storage`: what disk use falls to when ledgers are deleted, what that costs, and what adds feel of it.

One bookie of its own, with small entry logs. First ledgers are written side by side, nine of ten are deleted at
random, and one collection and one major compaction run: bytes in logs, live bytes, bytes read and written. Then the
same again, and entries are added at half of the rate that a bookie takes: latencies while it does one checkpoint after
the other, collects, compacts, and scrubs as fast as it may; each time beside those of a second bookie that does nothing
of all this.
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
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from bookies.admin.shared.common import print_json, print_table, run_async
from bookies.admin.shared.histogram import Histogram
from bookies.admin.verbs.control import ask
from bookies.storage.disks.directories import CONTROL_FILE

if TYPE_CHECKING:
    from bookies.admin.cluster import LocalCluster
    from bookies.client.client import Client
    from bookies.client.write import LedgerWriter

DELETED_SHARE = 0.9
TICK_S = 0.005  # between two bursts of paced adds
POLL_S = 0.2  # between two looks whether the scrub is done
CHECKPOINT_MS, NEVER_MS = 200, 86_400_000
SETTINGS: dict[str, object] = {
    "gc_quarantine_ms": 0,
    "gc_share_max": 100,
    "gc_interval_ms": NEVER_MS,
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
        from bookies.lab.bench import bench_growth

        return bench_growth.run(arguments)
    from bookies.admin.cluster import LocalCluster

    scale = 1 if arguments.quick else 10
    settings = {
        **SETTINGS,
        "compaction": arguments.kind,
        "compaction_rate_size": arguments.rate,
        "entry_log_size_max": 4 * scale << 20,
    }
    directory = tempfile.mkdtemp(prefix="bk-bench-", dir=os.environ.get("BK_BENCH_DIRECTORY"))
    quiet = LocalCluster(
        os.path.join(directory, "quiet"), bookies=1, settings=settings | {"checkpoint_interval_ms": NEVER_MS}
    )
    busy = LocalCluster(os.path.join(directory, "busy"), bookies=1, settings=settings)
    try:
        quiet.start()
        busy.start()
        result = run_async(partial(_measure, quiet, busy, scale))
    finally:
        quiet.stop()
        busy.stop()
        shutil.rmtree(directory, ignore_errors=True)
    if arguments.json:
        print_json(result)
    else:
        rows = [(name, f"{value:,.2f}" if isinstance(value, float) else f"{value:,}") for name, value in result.items()]
        print_table(rows, ("figure", "value"), right=(1,))
    return 0


async def _measure(quiet: LocalCluster, busy: LocalCluster, scale: int) -> dict[str, Any]:
    from bookies.client.connect import connect

    async with connect(quiet.metadata_uri) as other, connect(busy.metadata_uri) as client:
        bench = _Bench(client, busy.bookies[0].directory / "ledgers", scale)
        still = _Bench(other, quiet.bookies[0].directory / "ledgers", scale)
        for each in (bench, still):
            await each.suspend_scrub(suspended=True)  # until its turn comes
        result = await bench.space()
        await bench.fill()
        async with await other.create(ensemble=1) as reference, await client.create(ensemble=1) as ledger:
            return result | await bench.latencies(reference, ledger)


class _Bench:
    """One bookie. `ledgers`: its directory."""

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
        """Ledgers side by side; then nine of ten are deleted."""
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
        """What a collection and a compaction leave, read and write."""
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
        """Of adds to `busy`, of this bookie, while it does each of its tasks, and right before and after to `quiet`."""
        rate = min(await _rate(quiet), await _rate(busy)) / 2
        result: dict[str, Any] = {"adds per second": rate}
        seconds = 2.0 + self._scale
        tasks: dict[str, Callable[[], Awaitable[None]]] = {
            "checkpoints": partial(asyncio.sleep, seconds),  # they come all the time
            "collection": partial(self._collect_until, seconds),
            "compaction": self._compact,
            "scrub": partial(self._scrub, seconds),
        }
        for name, task in tasks.items():
            idle = await _paced(quiet, rate, asyncio.ensure_future(asyncio.sleep(seconds / 2)))
            latencies = await _paced(busy, rate, asyncio.ensure_future(task()))
            idle.merge(await _paced(quiet, rate, asyncio.ensure_future(asyncio.sleep(seconds / 2))))
            for kind, histogram in (("without", idle), ("with", latencies)):
                figures = histogram.summary()
                result |= {f"{figure} {kind} {name}": figures[figure] for figure in ("p50_us", "p99_us", "max_us")}
            result[f"p99 with / without {name}"] = result[f"p99_us with {name}"] / max(
                1, result[f"p99_us without {name}"]
            )
        return result

    async def _collect_until(self, seconds: float) -> None:
        """Collections, one after the other."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            await self._call("gc", wait=True)

    async def _compact(self) -> None:
        await self._call("compact", kind="major", wait=True)

    async def _scrub(self, seconds: float) -> None:
        """A pass at the greatest rate that is allowed, so long or until it is done."""
        end = time.perf_counter() + seconds
        await self.suspend_scrub(suspended=False)
        status = await self._call("scrub", now=True)
        while status["is_running"] and time.perf_counter() < end:
            await asyncio.sleep(POLL_S)
            status = await self._call("scrub")
        await self.suspend_scrub(suspended=True)


async def _rate(ledger: LedgerWriter) -> float:
    """Entries a second with a thousand in flight."""
    batch, count = [os.urandom(1000)] * 100, 0
    begin = time.perf_counter()
    while time.perf_counter() < begin + 1.5:
        await asyncio.gather(*(ledger.append_many(batch) for _ in range(10)))
        count += 1000
    return count / (time.perf_counter() - begin)


async def _paced(ledger: LedgerWriter, rate: float, until: asyncio.Future[None]) -> Histogram:
    """Latencies of adds that are sent at this rate, a burst a tick, until something is done."""
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
