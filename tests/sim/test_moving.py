"""Bookies move to other addresses under their names: whoever reads or writes goes on, and nobody is told."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from bookies.client.client import Client
from bookies.lab.sim.run import Simulation, simulate
from bookies.lab.sim.world import SimClient
from bookies.lab.sim.world.disk import PROCESS_DIES
from bookies.model import BookieId


async def move(simulation: Simulation, name: str, port: int) -> None:
    """Start a bookie again elsewhere."""
    cluster = simulation.cluster
    bookie = cluster.bookies[name]
    cluster.crash_bookie(name, PROCESS_DIES)
    await asyncio.sleep(0.1)
    bookie.config = dataclasses.replace(bookie.config, port=port)
    await cluster.start_bookie(name)


async def connected(simulation: Simulation, name: str) -> SimClient:
    client = simulation.cluster.new_client(name)
    await client.participant.create_task(simulation.cluster.open_client(client))
    return client


@pytest.mark.parametrize("write_quorum", [3, 2])
def test_readers_and_writers_follow_bookies_that_move(write_quorum: int) -> None:
    async def scenario(simulation: Simulation) -> None:
        cluster = simulation.cluster
        await cluster.start()
        writing, reading = await connected(simulation, "writer"), await connected(simulation, "reader")
        names = list(cluster.bookies)[:3]
        entries = [b"%d" % number for number in range(300)]

        async def act(store: Client, reader: Client) -> None:
            async with store.create(ensemble=3, write_quorum=write_quorum, ack_quorum=2) as ledger:
                await ledger.append_many(entries[:50])
                async with reader.open(ledger.ledger_id) as handle:
                    for round, name in enumerate(names):
                        first = 50 * (round + 1)
                        await move(simulation, name, 4000 + round)
                        await ledger.append_many(entries[first : first + 50])
                        found = [entry.payload async for entry in handle.read(first=0, last=first - 1)]
                        assert found == entries[:first]
                    # Every bookie has moved: the old handles know none of the addresses they began with.
                    assert [entry.payload async for entry in handle.read(first=0, last=149)] == entries[:150]
            for name in cluster.bookies:
                info = await store.administration().bookie_info(BookieId(name))
                assert info is not None
                assert (info.rpc_address() or ("", 0))[1] == (4000 + names.index(name) if name in names else 3181)

        await writing.participant.create_task(act(writing.client, reading.client))

    result = simulate(7, "calm", scenario=scenario, duration_s=1.0)
    assert not result.violations, result.report()
