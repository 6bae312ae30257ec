"""`bk bookie test` on virtual time: what failed is not covered by what replaces it."""

from __future__ import annotations

import asyncio

from tests.sim.recovery_world import World, run

from bookies.model import BookieId
from bookies.replication.operator.write_and_read import write_and_read

BOOKIES = [BookieId("b1"), BookieId("b2"), BookieId("b3")]


def test_a_bookie_that_fails_after_the_first_entries_has_failed() -> None:
    async def scenario(world: World) -> None:
        payloads = [b"%05d" % number + bytes(100) for number in range(1_000)]
        testing = asyncio.create_task(world.act(write_and_read(world.user.client, BOOKIES, payloads, 60)))
        await asyncio.sleep(0.006)
        world.kill("b2")
        assert (await testing).startswith("b2 failed during the writes")
        assert world.cluster.store.record(0) is None

    run(scenario)


def test_a_bookie_that_acknowledges_entries_and_does_not_deliver_them_has_failed() -> None:
    """Others deliver them."""

    async def scenario(world: World) -> None:
        payloads = [b"%05d" % number for number in range(1_000)]
        testing = asyncio.create_task(world.act(write_and_read(world.user.client, BOOKIES, payloads, 60)))

        async def is_closed() -> bool:
            record = world.cluster.store.record(0)
            return record is not None and record.is_closed

        while not await is_closed():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        world.kill("b3")
        assert (await testing).startswith("b3 has acknowledged entries and does not deliver them")

    run(scenario)
