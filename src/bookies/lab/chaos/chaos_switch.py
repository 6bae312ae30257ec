"""Network of `bk chaos --namespaces`: a switch between network namespaces, which impairs packets on request.

The parameter `nodes` maps names to IPv4 addresses. Each node gets a network namespace `bk-NAME` with one TUN device,
except `HUB`, whose device stays in the namespace of this process. Every packet between two nodes passes this process.
So no module of the kernel for delay, loss or filters is needed.

Prints one line `{}` when the network exists, then reads one JSON object per line from standard input:

    {"do": "begin", "fault": N, "sources": [names], "targets": [names], ...}   fields of `Impairment`
    {"do": "end", "fault": N}
    {"do": "heal"}                                                             end all

When its input ends it prints its statistics and ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import heapq
import ipaddress
import itertools
import json
import os
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from bookies.admin.shared.lines import read_lines
from bookies.lab.chaos.chaos_child import run_child

HUB = "hub"
PACKET_SIZE_MAX = 65_535
MTU = 9_000
WAITING_MAX = 20_000  # delayed packets; further ones are lost, as in a full queue
BATCH = 64  # packets read from one device before the next one gets its turn
REORDERED_S = 0.002  # further delay of a reordered packet where there is no other delay
_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
_DESTINATION = slice(16, 20)  # of an IPv4 header


class Impairment(Struct, frozen=True):
    """Impairment of packets from any of `sources` to any of `targets`. Shares are 0 to 1."""

    sources: frozenset[str]
    targets: frozenset[str]
    is_cut: bool = False
    delay_s: float = 0.0
    loss: float = 0.0
    duplicated: float = 0.0
    reordered: float = 0.0


class Fabric:
    """Decides what becomes of a packet: pure, and determined by the random source."""

    def __init__(self, choices: random.Random) -> None:
        self.statistics: Counter[str] = Counter()
        self._random = choices
        self._active: dict[int, Impairment] = {}
        self._by_pair: dict[tuple[str, str], list[Impairment]] = {}

    def begin(self, number: int, impairment: Impairment) -> None:
        self._active[number] = impairment
        self._by_pair.clear()

    def end(self, number: int) -> None:
        self._active.pop(number, None)
        self._by_pair.clear()

    def heal(self) -> None:
        self._active.clear()
        self._by_pair.clear()

    def delays(self, source: str, target: str) -> list[float]:
        """Return after how many seconds each copy of the next packet arrives; empty: it is lost."""
        self.statistics["packets"] += 1
        pair = (source, target)
        impairments = self._by_pair.get(pair)
        if impairments is None:
            impairments = self._by_pair[pair] = [
                one for one in self._active.values() if source in one.sources and target in one.targets
            ]
        if not impairments:
            return [0.0]
        delay_s, copies = 0.0, 1
        for one in impairments:
            if one.is_cut or self._random.random() < one.loss:
                self.statistics["packets cut off" if one.is_cut else "packets lost"] += 1
                return []
            copies += self._random.random() < one.duplicated
            delay_s += one.delay_s
        self.statistics["packets delayed"] += delay_s > 0
        self.statistics["packets duplicated"] += copies - 1
        if any(self._random.random() < one.reordered for one in impairments):
            # It overtakes those before it, which are delayed, or is overtaken by those after it.
            self.statistics["packets reordered"] += 1
            delay_s = 0.0 if delay_s else REORDERED_S
        return [delay_s] * copies


class Switch:
    """The devices, and packets that wait for their time."""

    def __init__(self, nodes: Mapping[str, str], fabric: Fabric) -> None:
        self._fabric = fabric
        self._nodes = {ipaddress.ip_address(address).packed: name for name, address in nodes.items()}
        self._devices = {name: _device(name, address) for name, address in nodes.items()}
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()
        self._loop = asyncio.get_running_loop()
        for name, device in self._devices.items():
            self._loop.add_reader(device, self._read, name, device)

    def _read(self, name: str, device: int) -> None:
        for _ in range(BATCH):
            try:
                packet = os.read(device, PACKET_SIZE_MAX)
            except OSError:
                return
            target = self._nodes.get(packet[_DESTINATION])
            if target is None:
                continue
            for delay_s in self._fabric.delays(name, target):
                self._forward(self._devices[target], packet, delay_s)

    def _forward(self, device: int, packet: bytes, delay_s: float) -> None:
        if not delay_s:
            with contextlib.suppress(OSError):
                os.write(device, packet)
        elif len(self._waiting) < WAITING_MAX:
            due = self._loop.time() + delay_s
            heapq.heappush(self._waiting, (due, next(self._numbers), device, packet))
            if self._waiting[0][0] == due:
                self._loop.call_at(due, self._deliver)

    def _deliver(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._loop.time():
            _, _, device, packet = heapq.heappop(self._waiting)
            self._forward(device, packet, 0.0)
        if self._waiting:
            self._loop.call_at(self._waiting[0][0], self._deliver)

    def obey(self, order: dict[str, object]) -> None:
        match order.pop("do"):
            case "begin":
                number = int(str(order.pop("fault")))
                names = {side: frozenset(order.pop(side)) for side in ("sources", "targets")}  # type: ignore[call-overload]
                self._fabric.begin(number, Impairment(**names, **order))  # type: ignore[arg-type]
            case "end":
                self._fabric.end(int(str(order["fault"])))
            case action:
                assert action == "heal", action
                self._fabric.heal()


def _device(name: str, address: str) -> int:
    """Create the namespace and the device of a node. Raises `CalledProcessError`, OSError."""
    device = f"bk-{name}"
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _TUN_WITHOUT_HEADER))
    inside = ["ip"]
    if name != HUB:
        _run("ip", "netns", "add", device)
        _run("ip", "link", "set", device, "netns", device)
        inside += ["-n", device]
    _run(*inside, "link", "set", "lo", "up")
    _run(*inside, "address", "add", f"{address}/24", "dev", device)
    _run(*inside, "link", "set", device, "mtu", str(MTU), "up")
    return descriptor


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


async def main(arguments: argparse.Namespace) -> int:
    fabric = Fabric(random.Random(arguments.seed))
    switch = Switch(arguments.nodes, fabric)
    print("{}", flush=True)
    async for lines in read_lines(sys.stdin.fileno()):
        for line in lines:
            switch.obey(json.loads(line))
    print(json.dumps(fabric.statistics), flush=True)
    return 0


if __name__ == "__main__":
    run_child(main)
