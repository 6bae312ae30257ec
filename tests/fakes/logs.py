"""A world with one log, for the tests of logs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests.fakes.world import World, play

from bookies.client.client import Client
from bookies.client.log import Log
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.interface import Watch
from bookies.protocol.log import Position

Act = Callable[[World, Client, Log], Awaitable[None]]
QUICK = {"add_timeout_ms": 300, "read_timeout_ms": 300}


def in_log(act: Act, record_format: str = "raw", compaction: str = "", **settings: object) -> None:
    """Run `act` with a client and its log "orders", on three bookies and virtual time. `settings`: of the client."""

    async def main(world: World) -> None:
        client = await world.client(**settings)
        log = client.log("orders")
        await log.create(record_format=record_format, compaction=compaction)
        await act(world, client, log)

    play(main, 3)


async def payloads(log: Log) -> list[bytes]:
    """Return all entries as they are stored."""
    async with log.open() as reader:
        return [entry.payload async for entry in reader.read()]


async def fill(log: Log, *counts: int) -> list[Position]:
    """Append payloads 0, 1, ... in ledgers of so many entries, by a leader each; return the positions."""
    positions: list[Position] = []
    for count in counts:
        async with log.lead() as writer:
            for _ in range(count):
                positions.append(await writer.append(b"%d" % len(positions)))
    return positions


def lose_notifications(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the memory store notify nobody of changes of ledgers."""
    watch_ledger = MemoryDriver.watch_ledger

    def late(driver: MemoryDriver, ledger_id: int, _: object) -> Watch:
        return watch_ledger(driver, ledger_id, lambda _: None)

    monkeypatch.setattr(MemoryDriver, "watch_ledger", late)
