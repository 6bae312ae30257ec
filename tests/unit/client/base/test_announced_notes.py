"""Bookies that are in maintenance or being drained get no new data, as far as there are others."""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes.world import World, in_world

from bookies.client.client import Client
from bookies.metadata.shared import BookieNotes
from bookies.metadata.shared.bookie_notes import NAME
from bookies.model import BookieId

B1, B2 = BookieId("b1"), BookieId("b2")


def notes_of(world: World) -> BookieNotes:
    return BookieNotes(world._drivers[0], world.runtime("operator").clock.wall_ms)


async def chosen(store: Client, count: int = 20) -> list[BookieId]:
    """Everybody in the ensembles of some new ledgers."""
    found: dict[BookieId, None] = {}
    for _ in range(count):
        async with store.create(ensemble=3) as ledger:
            found |= dict.fromkeys(ledger.metadata.last_ensemble)
    return sorted(found)


@in_world(bookie_count=5)
async def test_what_is_announced_is_avoided_at_once_and_until_it_ends(world: World) -> None:
    notes, store = notes_of(world), await world.client()
    assert await chosen(store) == sorted(world.bookies)
    await notes.begin_draining(B1, "somebody")
    await notes.begin_maintenance(B2, world.runtime("operator").clock.wall_ms() + 60_000, "somebody")
    await asyncio.sleep(1)  # for the watch
    assert await chosen(store) == ["b3", "b4", "b5"]
    assert await chosen(await world.client()) == ["b3", "b4", "b5"]  # known before it chooses
    await asyncio.sleep(60)
    assert await chosen(store) == ["b2", "b3", "b4", "b5"]  # The lease has run out, and nobody wrote that.
    await notes.end_draining(B1)
    await asyncio.sleep(1)
    assert await chosen(store) == sorted(world.bookies)


@in_world()
async def test_they_are_taken_when_there_are_no_others(world: World) -> None:
    await notes_of(world).begin_draining(B1, "somebody")
    assert await chosen(await world.client(), 3) == ["b1", "b2", "b3"]


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format": 9, "bookies": {}}'])
@in_world(bookie_count=4)
async def test_notes_that_cannot_be_read_are_none(world: World, data: bytes) -> None:
    await world._drivers[0].create_record(NAME, data)
    assert await chosen(await world.client()) == sorted(world.bookies)
