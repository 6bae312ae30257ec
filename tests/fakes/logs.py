"""A world with one log, for the tests of logs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.fakes.world import World, play

from bookies.client.client import Client
from bookies.client.log import Log

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
