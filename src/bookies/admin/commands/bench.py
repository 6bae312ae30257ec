"""`bk bench`: measure appends and reads, closed loop, with the CPU time and memory of everybody who took part.

Without `--metadata` it starts three bookies of its own in a temporary directory and removes them afterwards. Figures
of one run are single samples of a noisy machine; compare systems by alternating runs (docs/benchmarks.md).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from bookies.admin.cli import UsageError
from bookies.admin.common import add_common, print_json, print_table, run_async
from bookies.admin.histogram import Histogram

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.client.writer import LedgerWriter

TICKS = os.sysconf("SC_CLK_TCK")


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, text: str, example: str) -> argparse.ArgumentParser:
        each = verbs.add_parser(name, help=text, epilog=f"example:  {example}")
        add_common(each)
        each.add_argument("--size", type=int, default=1024, help="payload, bytes (default 1024)")
        each.add_argument("--seconds", type=float, default=8, help="measured (default 8)")
        each.add_argument("--warmup", type=float, default=2, help="before, not counted (default 2)")
        each.add_argument("--wire", choices=("v2", "v3"), default="v2")
        each.add_argument("--digest", default="crc32c", choices=("crc32c", "crc32", "hmac", "dummy"))
        each.add_argument("--ensemble", type=int, default=3)
        each.add_argument("--write-quorum", type=int, default=3)
        each.add_argument("--ack-quorum", type=int, default=2)
        each.add_argument("--state", metavar="DIR", help="directory of a local cluster (cluster.json)")
        each.add_argument("--bookies", type=int, default=3, help="of the cluster it starts itself (default 3)")
        return each

    append = verb("append", "append entries", "bk bench append --size 100 --window 1000")
    append.add_argument("--window", type=int, default=1000, help="entries in flight in all (default 1000)")
    append.add_argument("--ledgers", type=int, default=1, help="written at the same time (default 1)")
    append.add_argument(
        "--api", choices=("single", "many"), default="single", help="one call an entry, or a batch a call"
    )
    read = verb("read", "read a ledger from its beginning, again and again", "bk bench read --size 1024")
    read.add_argument("--entries", type=int, default=200_000, help="of the ledger to read (default 200000)")
    read.add_argument("--ledger", type=int, default=None, help="an existing one")
    read.add_argument("--api", choices=("entries", "batches", "arrow"), default="entries")
    fill = verb("fill", "append a number of entries, seal the ledger, print its id", "bk bench fill --entries 500000")
    fill.add_argument("--entries", type=int, default=200_000)
    suite = verb("suite", "the table of docs/benchmarks.md", "bk bench suite --seconds 5")
    suite.add_argument("--runs", type=int, default=3, help="of each case; medians are printed (default 3)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.size < 0 or arguments.seconds <= 0:
        raise UsageError("--size must be 0 or more and --seconds above 0")
    with _cluster(arguments) as (uri, pids):
        if arguments.verb == "suite":
            from bookies.admin import bench_suite

            return bench_suite.run(arguments, lambda case: _measure(case, uri, pids))
        result = _measure(arguments, uri, pids)
    if arguments.json:
        print_json(result)
    elif arguments.verb == "fill":
        print(result["ledger"])
    else:
        print_table([(name, _text(value)) for name, value in result.items()], ("figure", "value"))
    return int(bool(result.get("errors")))


def _text(value: Any) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


@contextlib.contextmanager
def _cluster(arguments: argparse.Namespace) -> Iterator[tuple[str, list[int]]]:
    """The cluster to measure and the process ids of its bookies, if they are ours to see."""
    from bookies.admin.local_cluster import LocalCluster

    if arguments.state:
        state = LocalCluster.load(arguments.state)
        yield state.metadata_uri, state.pids()
    elif arguments.metadata:
        yield arguments.metadata, []
    else:
        directory = tempfile.mkdtemp(prefix="bk-bench-", dir=os.environ.get("BK_BENCH_DIRECTORY"))
        cluster = LocalCluster(os.path.join(directory, "bk-data"), bookies=arguments.bookies)
        try:
            cluster.start()
            yield cluster.metadata_uri, cluster.pids()
        finally:
            cluster.stop()
            shutil.rmtree(directory, ignore_errors=True)


def _measure(arguments: argparse.Namespace, uri: str, pids: list[int]) -> dict[str, Any]:
    bodies: dict[str, Callable[[Client, argparse.Namespace, list[int]], Awaitable[dict[str, Any]]]] = {
        "append": _append,
        "read": _read,
        "fill": _fill,
    }

    async def main() -> dict[str, Any]:
        from bookies.client.connect import connect

        async with connect(uri, wire=arguments.wire) as client:
            return await bodies[arguments.verb](client, arguments, pids)

    return run_async(main)


class Window:
    """What was counted between `begin` and `end`: entries, latencies, processor time."""

    def __init__(self, pids: list[int], size: int) -> None:
        self.entries = 0
        self.errors = 0
        self.latencies = Histogram()
        self._pids, self._size = pids, size
        self.is_counting = False

    def begin(self) -> None:
        self.is_counting = True
        self._cpu = time.process_time(), [cpu_seconds(pid) for pid in self._pids]
        self._time = time.monotonic()

    def end(self) -> dict[str, Any]:
        self.is_counting = False
        elapsed = time.monotonic() - self._time
        client = time.process_time() - self._cpu[0]
        servers = [cpu_seconds(pid) - before for pid, before in zip(self._pids, self._cpu[1], strict=True)]
        entries = max(1, self.entries)
        return {
            "entries_per_s": round(self.entries / elapsed),
            "mb_per_s": round(self.entries * self._size / elapsed / 1e6, 1),
            **self.latencies.summary(),
            "client_cpu_s": round(client, 2),
            "server_cpu_s": [round(each, 2) for each in servers],
            "server_rss_mb": [rss_mb(pid) for pid in self._pids],
            "client_cpu_us_per_entry": round(1e6 * client / entries, 2),
            "server_cpu_us_per_entry": round(1e6 * sum(servers) / entries, 2),
            "cores_used": round((client + sum(servers)) / elapsed, 2),
            "entries": self.entries,
            "errors": self.errors,
        }


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mb(pid: int) -> int:
    """Resident memory of a process, MB."""
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 // 1_000_000
    return 0


async def _create(client: Client, arguments: argparse.Namespace) -> LedgerWriter:
    return await client.create(
        ensemble=arguments.ensemble,
        write_quorum=arguments.write_quorum,
        ack_quorum=arguments.ack_quorum,
        digest=arguments.digest,
        labels={"bench": "1"},
    )


async def _append(client: Client, arguments: argparse.Namespace, pids: list[int]) -> dict[str, Any]:
    """Keep `window` entries in flight for `warmup` and then `seconds`; one latency per entry."""
    window = Window(pids, arguments.size)
    payload = os.urandom(arguments.size)
    ledgers = [await _create(client, arguments) for _ in range(arguments.ledgers)]
    share = max(1, arguments.window // arguments.ledgers)
    drive = _drive_single if arguments.api == "single" else _drive_many
    stop = asyncio.Event()
    drivers = [asyncio.ensure_future(drive(ledger, payload, share, window, stop)) for ledger in ledgers]
    waiting = asyncio.ensure_future(stop.wait())
    await asyncio.wait([waiting, *drivers], timeout=arguments.warmup, return_when=asyncio.FIRST_COMPLETED)
    window.begin()
    await asyncio.wait([waiting, *drivers], timeout=arguments.seconds, return_when=asyncio.FIRST_COMPLETED)
    result = window.end()
    stop.set()
    await asyncio.gather(waiting, *drivers)
    for ledger in ledgers:
        await ledger.seal()
        await client.delete(ledger.ledger_id)
    return result


async def _drive_single(
    ledger: LedgerWriter, payload: bytes, in_flight: int, window: Window, stop: asyncio.Event
) -> None:
    """One call an entry: each confirmed entry is followed by the next append."""
    clock = time.perf_counter
    began: dict[asyncio.Future[int], float] = {}
    idle = asyncio.get_running_loop().create_future()

    def submit() -> None:
        future = ledger.append_nowait(payload)
        began[future] = clock()
        future.add_done_callback(confirmed)

    def confirmed(future: asyncio.Future[int]) -> None:
        start = began.pop(future)
        if future.exception() is not None:
            window.errors += 1
            stop.set()
        elif window.is_counting:
            window.entries += 1
            window.latencies.record(clock() - start)
        if not stop.is_set():
            submit()
        elif not began and not idle.done():
            idle.set_result(None)

    for _ in range(in_flight):
        submit()
    await idle


async def _drive_many(
    ledger: LedgerWriter, payload: bytes, in_flight: int, window: Window, stop: asyncio.Event
) -> None:
    """A batch a call: the window is kept full with ten batches (one, if it is smaller than ten)."""
    lanes = min(10, in_flight)
    batch = [payload] * (in_flight // lanes)

    async def lane() -> None:
        while not stop.is_set():
            start = time.perf_counter()
            try:
                await ledger.append_many(batch)
            except Exception:  # noqa: BLE001 - any failure is counted, shown, and ends the run
                window.errors += 1
                stop.set()
                return
            if window.is_counting:
                window.entries += len(batch)
                window.latencies.record(time.perf_counter() - start, len(batch))

    await asyncio.gather(*(lane() for _ in range(lanes)))


async def _fill(client: Client, arguments: argparse.Namespace, pids: list[int]) -> dict[str, Any]:
    payload = os.urandom(arguments.size)
    batch = [payload] * 200
    ledger = await _create(client, arguments)
    remaining = arguments.entries
    while remaining > 0:
        await ledger.append_many(batch[:remaining])
        remaining -= len(batch)
    await ledger.seal()
    return {"ledger": ledger.ledger_id, "entries": arguments.entries, "size": arguments.size}


async def _read(client: Client, arguments: argparse.Namespace, pids: list[int]) -> dict[str, Any]:
    """Read the whole ledger in order, over and over, until the time is up."""
    ledger_id, is_ours = arguments.ledger, arguments.ledger is None
    if is_ours:
        ledger_id = (await _fill(client, arguments, pids))["ledger"]
    window = Window(pids, arguments.size)
    begun = time.monotonic()
    end = begun + arguments.warmup + arguments.seconds
    passes = {"entries": _pass_entries, "batches": _pass_batches, "arrow": _pass_arrow}[arguments.api]
    async with client.open(ledger_id) as ledger:
        while time.monotonic() < end:
            if not window.is_counting and time.monotonic() >= begun + arguments.warmup:
                window.begin()
            await passes(ledger, window, end)
        result = window.end() if window.is_counting else {}
    if is_ours:
        await client.delete(ledger_id)
    if not result:
        raise UsageError("--seconds is too short for one pass over the ledger: raise it or lower --entries")
    return result


async def _pass_entries(ledger: Any, window: Window, end: float) -> None:
    count = 0
    async for _ in ledger.read():
        count += 1
        if not count & 0x3FF:
            if window.is_counting:
                window.entries += 0x400
            if time.monotonic() > end:
                return


async def _pass_batches(ledger: Any, window: Window, end: float) -> None:
    async for batch in ledger.read_batches():
        if window.is_counting:
            window.entries += len(batch)
        if time.monotonic() > end:
            return


async def _pass_arrow(ledger: Any, window: Window, end: float) -> None:
    last = ledger.last_add_confirmed
    for first in range(0, last + 1, 50_000):
        table = await ledger.read_arrow(first, min(last, first + 49_999))
        if window.is_counting:
            window.entries += table.num_rows
        if time.monotonic() > end:
            return
