"""Three zones: what reads from near replicas save, and how soon a slow near replica is left.

    sudo python -m benchmarks.zones [--seconds 10] [--delay-ms 1] [--readers 1] [--json FILE]

Zones are groups of network namespaces of this machine. Packets between two zones are delayed by `--delay-ms` each way;
within a zone they are not. Each zone has two bookies and one client. Clients find their own zone in a file of
locations, by their address. Ledgers are placed by zones, so every entry has a replica in each zone.

* Reads: every client reads random entries, `--readers` at a time, then all ledgers in order, at the same time as the
  others; first with `near_reads` false, then with the default. `requests` and `bytes` are the shares of what came from
  other zones, by the clients' own metrics, from the first byte on.
* Slow replicas: one client reads on while the bookies of its zone answer it late, or are stopped. `left after` is the
  time from then until reads avoid them, `longest read` the longest of all reads from then on, and `taken again after`
  the time from the end of the fault until reads use them again.

Exits with 1 if more than 2 % of the requests or bytes came from other zones, or if it took a second to leave a slow
replica.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bookies import connect
from bookies.admin.cluster import LocalCluster
from bookies.admin.shared.common import run_async
from bookies.lab.chaos.chaos_child import input_ends, run_child
from bookies.lab.chaos.chaos_namespaces import NETWORK, enter
from bookies.lab.chaos.chaos_processes import OrderedProcess, Program
from bookies.lab.chaos.chaos_switch import HUB

ZONES = ("z1", "z2", "z3")
BOOKIES = {f"b{number}": ZONES[number % len(ZONES)] for number in range(1, 7)}
CLIENTS = {f"c-{zone}": zone for zone in ZONES}
NODES = BOOKIES | CLIENTS
NEAR = ("host", "rack", "region")
LEDGERS, ENTRIES, ENTRY_SIZE = 6, 2_000, 1024
SHARE_MAX, LEFT_MAX_S = 0.02, 1.0
LATE_S = 0.3  # by which the near bookies of the first fault answer late
FAULT_S, CALM_S = 4.0, 3.0
TICK_S = 0.005


# -- a client, in its namespace ----------------------------------------------------------------------------------------
async def client(parameters: argparse.Namespace) -> int:
    """Read as the parameters say, and print what was measured as one JSON object."""
    settings = {"placement": "zone", "near_reads": parameters.near, "locations_file": parameters.locations}
    async with connect(parameters.uri, **settings) as store:
        readers = [await store.open(ledger_id) for ledger_id in parameters.ledgers]
        durations: list[tuple[float, float]] = []
        changes: list[tuple[float, int]] = []

        async def read_one() -> None:
            begun = time.monotonic()
            await random.choice(readers).read_entry(random.randrange(ENTRIES))
            durations.append((begun, time.monotonic() - begun))

        async def watch() -> None:
            slow = 0
            while True:
                if (now_slow := store.usage().slow_bookies) != slow:
                    slow = now_slow
                    changes.append((time.monotonic(), slow))
                await asyncio.sleep(TICK_S)

        scanned_s = 0.0
        if parameters.seconds:
            end = time.monotonic() + parameters.seconds

            async def read_until_end() -> None:
                while time.monotonic() < end:
                    await read_one()

            await asyncio.gather(*(read_until_end() for _ in range(parameters.readers)))
            begun = time.monotonic()
            for reader in readers:
                async for _ in reader.read_batches():
                    pass
            scanned_s = time.monotonic() - begun
        else:
            watching, ending = asyncio.ensure_future(watch()), asyncio.ensure_future(input_ends())
            while not ending.done():
                await read_one()
            watching.cancel()
        counts = store.usage().counts
        print(
            json.dumps(
                {
                    "durations": durations,
                    "changes": changes,
                    "scanned_s": scanned_s,
                    "requests": counts.reads_by_nearness,
                    "bytes": {
                        near: size for (near, way), size in counts.bytes_by_nearness.items() if way == "received"
                    },
                    "hedges": counts.fetches.hedges,
                }
            ),
            flush=True,
        )
    return 0


# -- the conductor -----------------------------------------------------------------------------------------------------
class Zones:
    """The cluster, the network and the clients.

    `delay_s`: of packets between zones, one way. `readers`: random reads of each client at a time.
    """

    def __init__(self, directory: pathlib.Path, delay_s: float, readers: int) -> None:
        self._directory, self._delay_s, self._readers = directory, delay_s, readers
        self._addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate((HUB, *NODES), 1)}
        self._locations = directory / "locations"
        self._switch: OrderedProcess | None = None
        self._cluster = LocalCluster(directory / "cluster", len(BOOKIES))
        self._ledgers: list[int] = []
        self._faults = 0

    def start(self) -> None:
        parameters = {"nodes": self._addresses, "seed": 0}
        self._switch = OrderedProcess("bookies.lab.chaos.chaos_switch", self._directory / "switch.log", parameters)
        for zone in ZONES:
            here = [name for name in NODES if NODES[name] == zone]
            self._impair(here, [name for name in NODES if NODES[name] != zone], self._delay_s)
        for bookie in self._cluster.bookies:
            bookie.prefix = self._inside(bookie.id)
            location = f"/{BOOKIES[bookie.id]}/{bookie.id}"
            bookie.settings |= {"host": self._addresses[bookie.id], "location": location}
        lines = [f"{self._addresses[name]} /{zone}/clients\n" for name, zone in CLIENTS.items()]
        self._locations.write_text("".join(lines))
        self._cluster.start()
        run_async(self._fill)

    async def _fill(self) -> None:
        async with connect(self._cluster.metadata_uri, placement="zone", placement_rule=True, zones_min=3) as store:
            for _ in range(LEDGERS):
                async with store.create() as ledger:
                    await ledger.append_many([random.randbytes(ENTRY_SIZE)] * ENTRIES)
                self._ledgers.append(ledger.ledger_id)

    def stop(self) -> None:
        self._cluster.stop()
        if self._switch is not None:
            self._switch.kill()

    def _inside(self, node: str) -> tuple[str, ...]:
        return ("nsenter", f"--net=/run/netns/bk-{node}", "--")

    def _impair(self, sources: Sequence[str], targets: Sequence[str], delay_s: float) -> int:
        assert self._switch is not None
        self._faults += 1
        self._switch.order("begin", fault=self._faults, sources=sources, targets=targets, delay_s=delay_s)
        return self._faults

    def _client(self, name: str, *, near: bool, seconds: float) -> Program:
        parameters = {
            "uri": self._cluster.metadata_uri,
            "ledgers": self._ledgers,
            "locations": str(self._locations),
            "near": near,
            "seconds": seconds,
            "readers": self._readers,
        }
        command = [*self._inside(name), sys.executable, "-m", "benchmarks.zones", "client", json.dumps(parameters)]
        return Program(command, self._directory / f"{name}.log", has_output=True)

    def _result(self, process: Program) -> dict[str, Any]:
        try:
            line = process.read_line()
            if not line:
                raise SystemExit(f"a client failed: {process.last_words()}")
            result: dict[str, Any] = json.loads(line)
            return result
        finally:
            process.kill()

    def reads(self, seconds: float, *, near: bool) -> dict[str, float]:
        """Let all clients read. Returns shares and times."""
        processes = [self._client(name, near=near, seconds=seconds) for name in CLIENTS]
        results = [self._result(process) for process in processes]
        row: dict[str, float] = {}
        for kind in ("requests", "bytes"):
            parts = [(near_name, count) for result in results for near_name, count in result[kind].items()]
            row[kind] = sum(count for name, count in parts if name not in NEAR) / sum(count for _, count in parts)
        times = sorted(duration for result in results for _, duration in result["durations"])
        size = LEDGERS * ENTRIES * ENTRY_SIZE / 1e6
        row |= {"p50_ms": 1e3 * times[len(times) // 2], "p99_ms": 1e3 * times[len(times) * 99 // 100]}
        row["mb_per_s"] = sum(size / result["scanned_s"] for result in results) / len(results)
        row["hedges"] = sum(result["hedges"] for result in results) / len(times)
        return row

    def slow(self, fault: str) -> dict[str, float]:
        """Let the bookies of the first zone be slow for its client for a while. Returns what that client noticed."""
        zone = ZONES[0]
        slow = [name for name in BOOKIES if BOOKIES[name] == zone]
        process = self._client(f"c-{zone}", near=True, seconds=0)
        time.sleep(CALM_S)
        bookies = [bookie for bookie in self._cluster.bookies if bookie.id in slow]
        begun = time.monotonic()
        if fault == "late":
            number = self._impair(slow, [f"c-{zone}"], LATE_S)
        else:
            for bookie in bookies:
                bookie.send(signal.SIGSTOP)
        time.sleep(FAULT_S)
        healed = time.monotonic()
        if fault == "late":
            assert self._switch is not None
            self._switch.order("end", fault=number)
        else:
            for bookie in bookies:
                bookie.send(signal.SIGCONT)
        time.sleep(CALM_S)
        process.end_input()
        result = self._result(process)
        left = [at for at, count in result["changes"] if count and begun < at < healed]
        again = [at for at, count in result["changes"] if not count and at > healed]
        during = sorted(duration for at, duration in result["durations"] if begun + LEFT_MAX_S < at < healed)
        return {
            "left_s": max(left) - begun if left else float("inf"),
            "longest_s": max(duration for at, duration in result["durations"] if at + duration > begun),
            "p50_ms": 1e3 * during[len(during) // 2],
            "p99_ms": 1e3 * during[len(during) * 99 // 100],
            "again_s": again[-1] - healed if again else float("inf"),
        }


def lines_of(report: dict[str, Any]) -> Iterator[str]:
    """Yield the tables."""
    yield "| reads | requests from other zones | bytes | p50 | p99 | in order | hedged |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for name, row in report["reads"].items():
        yield (
            f"| {name} | {row['requests']:.1%} | {row['bytes']:.1%} | {row['p50_ms']:.2f} ms | {row['p99_ms']:.2f} ms "
            f"| {row['mb_per_s']:.0f} MB/s | {row['hedges']:.2%} |"
        )
    yield ""
    yield "| near bookies | left after | longest read | p50, p99 meanwhile | taken again after |"
    yield "|---|---:|---:|---:|---:|"
    for name, row in report["slow"].items():
        yield (
            f"| {name} | {row['left_s']:.2f} s | {row['longest_s']:.2f} s | {row['p50_ms']:.2f} ms, "
            f"{row['p99_ms']:.2f} ms | {row['again_s']:.2f} s |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.zones", description="What reads from near replicas save.")
    parser.add_argument("--seconds", type=float, default=10.0, help="of random reads")
    parser.add_argument("--delay-ms", type=float, default=1.0, help="of packets between zones, one way")
    parser.add_argument("--readers", type=int, default=1, help="random reads of each client at a time")
    parser.add_argument("--json", help="file for the figures")
    arguments = parser.parse_args()
    enter()
    with tempfile.TemporaryDirectory(prefix="bk-zones-") as directory:
        zones = Zones(pathlib.Path(directory), arguments.delay_ms / 1000, arguments.readers)
        try:
            zones.start()
            in_turn = zones.reads(arguments.seconds, near=False)
            near = zones.reads(arguments.seconds, near=True)
            late, stopped = zones.slow("late"), zones.slow("stopped")
        finally:
            zones.stop()
    slow = {f"answer {LATE_S:g} s late": late, "stopped": stopped}
    report = {"reads": {"all replicas in turn": in_turn, "near replicas first": near}, "slow": slow}
    print("\n".join(lines_of(report)))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(report, indent=1))
    kept = max(near["requests"], near["bytes"]) <= SHARE_MAX
    return 0 if kept and all(row["left_s"] < LEFT_MAX_S for row in slow.values()) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        del sys.argv[1]
        run_child(client)
    sys.exit(main())
