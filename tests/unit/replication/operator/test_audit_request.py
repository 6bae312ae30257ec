"""A request for an audit changes nothing else."""

from __future__ import annotations

import asyncio

from bookies.config import RecoveryConfig
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.model import BookieId
from bookies.replication.operator.audit_request import request_audit


def test_a_request_keeps_the_delay_and_sets_none_of_its_own() -> None:
    """A delay of 0 would let each restart of a bookie cause copies."""

    async def main() -> None:
        driver = MemoryDriver(MemoryStore())
        await driver.open()
        store, name = driver.recovery, BookieId("b1")
        candidacy = await store.campaign(name, lambda: None)
        assert await request_audit(driver) == name
        assert await store.lost_bookie_delay_s() == RecoveryConfig().lost_bookie_delay_s > 0
        await store.set_lost_bookie_delay_s(7)
        await request_audit(driver)
        assert await store.lost_bookie_delay_s() == 7
        await candidacy.resign()
        await driver.close()

    asyncio.run(main())
