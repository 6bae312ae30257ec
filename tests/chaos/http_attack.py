"""Adds of a bookie while its HTTP server is attacked: `make http-attack`.

One client appends at a quarter of the rate that it reached at first (`--share`; 1: as fast as it can, so that the
attackers' own processor time counts too where processors are few). Windows without an attack and with one follow each
other in pairs. The attackers, each a process, hold connections with requests that never end, send bodies that are too
large, malformed requests, unknown tokens, and floods of scrapes and lists. The result is the median of the pairs'
ratios of confirmed entries, the p99 of appends, and how much the bookie's memory has grown. The exit status is 0 from
98 % on and below 16 MiB of growth: figures of a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import pathlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from typing import Any

import bookies
from bookies.admin.cluster import LocalCluster
from bookies.admin.cluster.monitoring import http_address
from bookies.protocol.rights.users import hash_of

SHARE_MIN = 0.98
GROWTH_MAX = 16 << 20  # bytes
CONNECTIONS = 150  # of an attacker that holds them; more than the server accepts
LANES, BATCH = 4, 50  # appends at a time, entries of one
PAUSE_S = 0.005  # between two requests of a flood: some 200 a second


async def _send(address: tuple[str, int], data: bytes, *, waits: bool = True) -> None:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(data)
        await writer.drain()
        if waits:
            async with asyncio.timeout(10):
                await reader.read(1 << 20)
    finally:
        writer.close()


async def slow_requests(address: tuple[str, int]) -> None:
    """Send a header a byte a second, on many connections."""

    async def drip() -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(*address)
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ")
                for _ in range(60):
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(1)
            await asyncio.sleep(0.1)

    await asyncio.gather(*(drip() for _ in range(CONNECTIONS)))


async def slow_readers(address: tuple[str, int]) -> None:
    """Ask for all metrics, again and again, and read none."""

    async def ask() -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(*address)
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
                await asyncio.sleep(20)
                writer.close()
            await asyncio.sleep(0.1)

    await asyncio.gather(*(ask() for _ in range(CONNECTIONS // 3)))


async def _flood(address: tuple[str, int], requests: list[bytes]) -> None:
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            await _send(address, random.choice(requests))
        await asyncio.sleep(PAUSE_S)


async def huge_bodies(address: tuple[str, int]) -> None:
    head = b"PUT /api/v1/bookie/gc HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
    body = bytes(4 << 20)
    await _flood(
        address,
        [
            head + b"4194304\r\n\r\n" + body,
            head + b"99999999999999\r\n\r\n" + body,
            b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000,
        ],
    )


async def malformed_requests(address: tuple[str, int]) -> None:
    await _flood(
        address,
        [
            bytes(random.Random(1).randbytes(1000)),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
            b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: elsewhere\r\n\r\n",
            b"POST /api/v1/bookies/-/gc HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
            b"GET /%00/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
        ],
    )


async def floods(address: tuple[str, int]) -> None:
    plain = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer %d\r\n\r\n"
    paths = (b"/metrics", b"/api/v1/ledgers", b"/api/v1/ledger/list", b"/openapi.json", b"/nothing", b"/healthz")
    requests = [b"GET " + path + plain % number for number, path in enumerate(paths)]
    await asyncio.gather(*(_flood(address, requests) for _ in range(4)))


ATTACKS: dict[str, Callable[[tuple[str, int]], Coroutine[Any, Any, None]]] = {
    attack.__name__: attack for attack in (slow_requests, slow_readers, huge_bodies, malformed_requests, floods)
}


def _attack(name: str, address: tuple[str, int]) -> None:
    asyncio.run(ATTACKS[name](address))


class Appender:
    """Appends all the time; `count`: entries confirmed. `rate`: entries a second, 0 for as many as possible."""

    def __init__(self, uri: str, rate: float) -> None:
        self.count = 0
        self.latencies_s: list[float] = []  # of appends of `BATCH` entries
        self._uri, self._pause_s = uri, LANES * BATCH / rate if rate else 0.0

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        async with bookies.connect(self._uri) as store, store.create(ensemble=1) as ledger:

            async def lane() -> None:
                due_s = clock()
                while True:
                    due_s = max(due_s + self._pause_s, clock() - 1)  # A lane makes up for a second at most.
                    await asyncio.sleep(max(0.0, due_s - clock()))
                    began_s = clock()
                    await ledger.append_many([bytes(1024)] * BATCH)
                    self.latencies_s.append(clock() - began_s)
                    self.count += BATCH

            await asyncio.gather(*(lane() for _ in range(LANES)))

    def p99_ms(self) -> float:
        """Return the p99 of the appends since the last call."""
        latencies_s, self.latencies_s = sorted(self.latencies_s), []
        return 1000 * latencies_s[len(latencies_s) * 99 // 100] if latencies_s else 0.0


async def measure(
    cluster: LocalCluster, names: list[str], pairs: int, window_s: float, rate: float
) -> tuple[list[float], float]:
    """Return the ratio of entries with the attack to those without for each pair of windows, and the highest rate
    without the attack.
    """
    address = http_address(cluster.bookies[0])
    assert address is not None
    appender = Appender(cluster.metadata_uri, rate)
    appending = asyncio.create_task(appender.run())
    ratios, rate_max = list[float](), 0.0
    try:
        await asyncio.sleep(2)
        for number in range(pairs):
            counts, p99_ms = dict[bool, int](), dict[bool, float]()
            for is_attacked in (False, True) if number % 2 == 0 else (True, False):
                attackers = [
                    multiprocessing.get_context("spawn").Process(target=_attack, args=(name, address), daemon=True)
                    for name in (names if is_attacked else ())
                ]
                for attacker in attackers:
                    attacker.start()
                await asyncio.sleep(1)
                before, _ = appender.count, appender.p99_ms()
                await asyncio.sleep(window_s)
                counts[is_attacked], p99_ms[is_attacked] = appender.count - before, appender.p99_ms()
                for attacker in attackers:
                    attacker.kill()
                    attacker.join()
                assert not appending.done(), appending.exception()
            ratios.append(counts[True] / counts[False])
            rate_max = max(rate_max, counts[False] / window_s)
            rates = ", ".join(f"{counts[key] / window_s:,.0f}/s p99 {p99_ms[key]:.1f} ms" for key in (False, True))
            print(f"pair {number + 1}: {rates} ({ratios[-1]:.1%})", flush=True)
    finally:
        appending.cancel()
        await asyncio.gather(appending, return_exceptions=True)
    return ratios, rate_max


def resident(pid: int) -> int:
    """Return the bytes of memory of a process."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"attacks: {', '.join(ATTACKS)} (default: each alone, then all)")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a window")
    parser.add_argument("--share", type=float, default=0.25, help="of the rate that is possible without any attack")
    arguments = parser.parse_args()
    groups = [arguments.names] if arguments.names else [*([name] for name in ATTACKS), list(ATTACKS)]
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        users = pathlib.Path(folder, "users")
        users.write_text(f"admin administrator {hash_of('secret')}\n")
        settings = {"http_port": 0, "users_file": str(users), "http_open_metrics": True}
        with LocalCluster(pathlib.Path(folder, "bk-data"), 1, settings=settings) as cluster:
            pid = cluster.pids()[0]
            print("without any attack, so that the bookie's memory has grown as it does anyway:")
            _, peak = asyncio.run(measure(cluster, [], 2, arguments.seconds, 0))
            rate = arguments.share * peak if arguments.share < 1 else 0.0
            for names in groups:
                time.sleep(1)
                before = resident(pid)
                ratios, _ = asyncio.run(measure(cluster, names, arguments.pairs, arguments.seconds, rate))
                ratio = statistics.median(ratios)
                grown = resident(pid) - before
                is_good &= ratio >= SHARE_MIN and grown <= GROWTH_MAX
                print(f"{' + '.join(names)}: {ratio:.1%} of the adds, memory {grown / (1 << 20):+.1f} MiB", flush=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
