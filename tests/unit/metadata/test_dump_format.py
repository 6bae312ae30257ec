"""Dumps of a cluster that goes on meanwhile."""

from __future__ import annotations

import asyncio

from tests.unit.metadata.test_transfer import fill, memory, opened, record

from bookies.metadata.dump_format import dump_lines, ids_of
from bookies.metadata.interface.driver import GivenIds
from bookies.model import LedgerMetadata


def test_ids_that_were_given_during_the_dump_are_in_it() -> None:
    async def body() -> None:
        driver = await opened(memory())
        await fill(driver)
        ids: list[GivenIds] = []
        ledger_ids: list[int] = []
        async for item, _ in dump_lines(driver, passwords=True):
            if isinstance(item, GivenIds):
                ids.append(item)
                created = await driver.next_ledger_id()
                await driver.create_ledger(record(created))
                await driver.delete_ledger(created)
            if isinstance(item, LedgerMetadata):
                ledger_ids.append(item.ledger_id)
                if item.ledger_id == 5:  # Its line is written.
                    await driver.delete_ledger(5)
        given = ids_of(ids, ledger_ids)
        short_lived = ids[0].next_id
        assert given.next_id == short_lived + 1
        assert given.spent == (*ids[0].spent, (short_lived, short_lived))
        assert (5, 5) in ids[1].spent

    asyncio.run(asyncio.wait_for(body(), 60))
