"""Which ledgers and logs a job is about, as it is told."""

from __future__ import annotations

import pytest
from tests.fakes.world import World, play

from bookies.errors import InvalidArgument
from bookies.spark.jobs.exporting import pieces_of
from bookies.spark.jobs.shared.ledger_selection import numbers_of


def test_ledgers_by_number() -> None:
    assert numbers_of("17, 18,20-22,18") == [17, 18, 20, 21, 22]
    assert numbers_of("5-5") == [5]
    for text, why in (("5-3", "ends before it begins; did you mean 3-5"), ("5-", "expected numbers"), ("", "expected")):
        with pytest.raises(InvalidArgument, match=why):
            numbers_of(text)


def test_an_export_is_of_one_log() -> None:
    async def main(world: World) -> None:
        client = await world.client()
        for name in ("big", "small"):
            await client.log(name).create()
        with pytest.raises(InvalidArgument, match="'big,small' are 2 logs: export one at a time"):
            await pieces_of(client, "big,small")
        with pytest.raises(InvalidArgument, match="ends before it begins"):
            await pieces_of(client, "5-3")
        assert await pieces_of(client, "big") == ((await client.log("big").manifest()).token, False, [])

    play(main, bookie_count=1)
