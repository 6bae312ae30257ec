"""Load of `bk bench` on a cluster, and its measurement."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from bookies.admin.shared import UsageError
from bookies.admin.shared.common import run_async
from bookies.errors import BookieBusy, BookKeeperError
from bookies.runtime.histogram import Histogram

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.client.write import LedgerWriter

TICKS = os.sysconf("SC_CLK_TCK")


def measure(arguments: argparse.Namespace, uri: str, pids: list[int]) -> dict[str, Any]:
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
    """Figures of the time between `begin` and `end`: entries, latencies, processor time."""

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
            "server_cpu_s": [round(seconds, 2) for seconds in servers],
            "server_rss_mb": [rss_mb(pid) for pid in self._pids],
            "client_cpu_us_per_entry": round(1e6 * client / entries, 2),
            "server_cpu_us_per_entry": round(1e6 * sum(servers) / entries, 2),
            "cores_used": round((client + sum(servers)) / elapsed, 2),
            "entries": self.entries,
            "errors": self.errors,
        }


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process so far, in seconds."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mb(pid: int) -> int:
    """Return the resident memory of a process, in MB."""
    return memory_kib(pid, "VmRSS") * 1024 // 1_000_000


def memory_kib(pid: int, field: str) -> int:
    """Return a field of `/proc/PID/status`, in KiB; 0 if it is absent. Raises `OSError`."""
    with open(f"/proc/{pid}/status") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(f"{field}:")), 0)


async def _create(client: Client, arguments: argparse.Namespace) -> LedgerWriter:
    return await client.create(
        ensemble=arguments.ensemble,
        write_quorum=arguments.write_quorum,
        ack_quorum=arguments.ack_quorum,
        digest=arguments.digest,
        labels={"bench": "1"},
    )


async def _append(client: Client, arguments: argparse.Namespace, pids: list[int]) -> dict[str, Any]:
    """Keep `window` entries in flight for `warmup` and then `seconds`. Record one latency per entry."""
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
    """Append with one call per entry: each confirmed entry is followed by the next append."""
    clock = time.perf_counter
    began: dict[asyncio.Future[int], float] = {}
    idle = asyncio.get_running_loop().create_future()
    held: list[asyncio.Task[None]] = []  # one task, while the client's memory limit is reached
    held_count = 0

    async def resume() -> None:
        nonlocal held_count
        try:
            await ledger.wait_writable()
        except BookKeeperError:
            window.errors += 1
            stop.set()
        held.clear()
        count, held_count = held_count, 0
        for _ in range(0 if stop.is_set() else count):
            submit()
        if stop.is_set():
            maybe_end()

    def maybe_end() -> None:
        if not began and not held and not idle.done():
            idle.set_result(None)

    def submit() -> None:
        nonlocal held_count
        try:
            future = ledger.append_nowait(payload)
        except BookieBusy:  # A replica lags: its unanswered adds fill the client's memory limit.
            held_count += 1
            if not held:
                held.append(asyncio.ensure_future(resume()))
            return
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
        else:
            maybe_end()

    for _ in range(in_flight):
        submit()
    await idle


async def _drive_many(
    ledger: LedgerWriter, payload: bytes, in_flight: int, window: Window, stop: asyncio.Event
) -> None:
    """Append with one call per batch: ten batches fill the window (single entries, if it is below ten)."""
    lanes = min(10, in_flight)
    batch = [payload] * (in_flight // lanes)

    async def lane() -> None:
        while not stop.is_set():
            start = time.perf_counter()
            try:
                await ledger.append_many(batch)
            except Exception:  # noqa: BLE001 - every failure is counted, reported, and ends the run
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
    """Read the whole ledger in order, repeatedly, until the time is up."""
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
