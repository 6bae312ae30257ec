"""Counts of ledgers: at once, or kept for later."""

from __future__ import annotations

from tests.fakes.world import World, in_world

from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.ledger_counts import (
    RECORD,
    LedgerCounts,
    count_ledgers,
    keep_counts,
    kept_counts,
    parse_counts,
)


@in_world()
async def test_ledgers_are_counted_unless_there_are_too_many(world: World) -> None:
    client = await world.client()
    for number in range(5):
        async with client.create(ensemble=2) as ledger:
            await ledger.append(b"x")
            if number < 2:
                await ledger.seal()
    driver = MemoryDriver(world.store, world.runtime("counter"))
    await driver.open()
    counts = await count_ledgers(driver, 7)
    assert counts is not None
    assert (counts.counted_ms, counts.total, sum(counts.fragments.values())) == (7, 5, 10)
    assert await count_ledgers(driver, 7, at_most=4) is None
    assert await count_ledgers(driver, 7, at_most=5) == counts
    assert await kept_counts(driver) is None
    await keep_counts(driver, counts)
    await keep_counts(driver, counts)
    assert await kept_counts(driver) == counts
    _, version = await driver.read_record(RECORD)
    await driver.write_record(RECORD, b"{}", version)
    assert await kept_counts(driver) is None
    await driver.close()


def test_records() -> None:
    counts = LedgerCounts(1)
    counts.states["open"] = 3
    counts.fragments["b1"] = 3
    assert parse_counts(counts.pack()) == counts
    for damaged in (b"", b"[]", b'{"states":{}}', counts.pack().replace(b"3", b"null")):
        assert parse_counts(damaged) is None
