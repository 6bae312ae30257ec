"""Network of `bk chaos`: a TCP proxy in front of each bookie, which injects faults on request.

Prints one line `{"ports": {bookie: port}}`, then reads one JSON object per line from standard input:

    {"do": "backend", "bookie": B, "port": P}   the bookie listens on this port now
    {"do": "cut", "bookie": B, "torn": bool}    close every connection, now or in the middle of the next data
    {"do": "half-open", "bookie": B, "side": "client" or "bookie"}   close only that side; the other is not notified
    {"do": "stall", "bookie": B, "ways": ["requests", "answers"]}    forward no data; TCP makes the senders wait
    {"do": "slow", "bookie": B, "delay_s": D}   delay every piece of data by D seconds
    {"do": "refuse", "bookie": B}               close new connections at once
    {"do": "heal", "bookie": B}                 end all of these; half-open connections are closed
    {"do": "stopped" or "continued", "pid": P}  a stopped process, to be continued if the conductor dies

When its input ends, also by the conductor's death, it continues stopped processes, prints its statistics and ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from bookies.admin.shared.lines import read_lines
from bookies.lab.chaos.chaos_child import run_child

PIECE_SIZE = 64 * 1024
HOST = "127.0.0.1"
REQUESTS, ANSWERS = "requests", "answers"


class Relay:
    """One connection of a client and the corresponding connection to the bookie."""

    def __init__(self, link: Link, client: asyncio.StreamWriter, bookie: asyncio.StreamWriter) -> None:
        self._link = link
        self.client, self.bookie = client, bookie
        self.is_half_open = False
        self.is_torn_next = False

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        """Forward one direction until it ends."""
        try:
            while data := await reader.read(PIECE_SIZE):
                await self._link.wait_passable(way)
                if self.is_half_open:
                    continue  # Data sent into a half-open connection is lost.
                if self.is_torn_next:
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    break
                writer.write(data)
                await writer.drain()
            else:
                if not self.is_half_open:
                    writer.write_eof()
                return
        except (OSError, RuntimeError):
            pass  # One side has closed, or a fault closed it: close the other too.
        if not self.is_half_open:
            self.abort()

    def abort(self) -> None:
        for writer in (self.client, self.bookie):
            writer.transport.abort()


class Link:
    """Connections to one bookie, and their faults."""

    def __init__(self, statistics: dict[str, int]) -> None:
        self.backend: int | None = None
        self.is_refusing = False
        self.delay_s = 0.0
        self.relays: dict[Relay, None] = {}
        self._statistics = statistics
        self._passable = {REQUESTS: asyncio.Event(), ANSWERS: asyncio.Event()}
        self.heal()

    def heal(self) -> None:
        self.is_refusing = False
        self.delay_s = 0.0
        for event in self._passable.values():
            event.set()
        for relay in list(self.relays):
            if relay.is_half_open:
                relay.abort()

    def stall(self, ways: list[str]) -> None:
        for way in ways:
            self._passable[way].clear()

    def cut(self, *, is_torn: bool) -> None:
        for relay in list(self.relays):
            relay.is_torn_next = True
            if not is_torn:
                relay.abort()
        self._statistics["cut"] += len(self.relays)

    def half_open(self, side: str) -> None:
        for relay in list(self.relays):
            relay.is_half_open = True
            (relay.client if side == "client" else relay.bookie).transport.abort()
        self._statistics["half-open"] += len(self.relays)

    async def wait_passable(self, way: str) -> None:
        await self._passable[way].wait()
        if self.delay_s:
            await asyncio.sleep(self.delay_s)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client until it ends."""
        self._statistics["connections"] += 1
        try:
            if self.is_refusing or self.backend is None:
                raise ConnectionRefusedError
            from_bookie, to_bookie = await asyncio.open_connection(HOST, self.backend)
        except OSError:
            self._statistics["refused"] += 1
            writer.transport.abort()
            return
        relay = Relay(self, writer, to_bookie)
        self.relays[relay] = None
        try:
            await asyncio.gather(relay.pump(reader, to_bookie, REQUESTS), relay.pump(from_bookie, writer, ANSWERS))
        finally:
            relay.abort()
            del self.relays[relay]


class Proxy:
    """All links, and the orders from standard input."""

    def __init__(self, bookies: list[str]) -> None:
        self.statistics = {"connections": 0, "refused": 0, "cut": 0, "half-open": 0}
        self.links = {bookie: Link(self.statistics) for bookie in bookies}
        self.stopped: dict[int, None] = {}

    def obey(self, order: Mapping[str, Any]) -> None:
        match order["do"]:
            case "stopped":
                self.stopped[order["pid"]] = None
            case "continued":
                self.stopped.pop(order["pid"], None)
            case action:
                self._change(self.links[order["bookie"]], action, order)

    @staticmethod
    def _change(link: Link, action: str, order: Mapping[str, Any]) -> None:
        match action:
            case "backend":
                link.backend = order["port"]
            case "cut":
                link.cut(is_torn=order["torn"])
            case "half-open":
                link.half_open(order["side"])
            case "stall":
                link.stall(order["ways"])
            case "slow":
                link.delay_s = order["delay_s"]
            case "refuse":
                link.is_refusing = True
            case _:
                assert action == "heal", action
                link.heal()

    async def run(self) -> int:
        servers = {name: await asyncio.start_server(link.accept, HOST, 0) for name, link in self.links.items()}
        ports = {name: server.sockets[0].getsockname()[1] for name, server in servers.items()}
        print(json.dumps({"ports": ports}), flush=True)
        async for lines in read_lines(sys.stdin.fileno()):
            for line in lines:
                self.obey(json.loads(line))
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        for server in servers.values():
            server.close()
        for link in self.links.values():
            for relay in list(link.relays):
                relay.abort()
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(self.statistics), flush=True)
        return 0


async def main(arguments: argparse.Namespace) -> int:
    return await Proxy(arguments.bookies).run()


if __name__ == "__main__":
    run_child(main)
