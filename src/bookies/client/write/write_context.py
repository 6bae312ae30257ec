"""`WriteContext`: the parts that the writers of one client share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from msgspec import Struct

from bookies.client.base.budget import MemoryBudget
from bookies.client.transport.open_ledgers import OpenLedgers
from bookies.client.write.adds import AddPool
from bookies.client.write.lac_announcer import LacAnnouncer
from bookies.client.write.send_scheduler import SendScheduler
from bookies.config import ClientConfig
from bookies.metadata.interface import MetadataDriver
from bookies.model import BookieId
from bookies.runtime.ports import Runtime


class WriteContext(Struct, frozen=True):
    """The parts that the writers of one client share. `candidates`: writable bookies in order of preference."""

    runtime: Runtime
    config: ClientConfig
    pool: AddPool
    driver: MetadataDriver
    candidates: Callable[[], Sequence[BookieId]]
    budget: MemoryBudget
    announcer: LacAnnouncer
    scheduler: SendScheduler
    open_ledgers: OpenLedgers

    @classmethod
    def of(
        cls,
        runtime: Runtime,
        config: ClientConfig,
        pool: AddPool,
        driver: MetadataDriver,
        candidates: Callable[[], Sequence[BookieId]],
    ) -> Self:
        """Return the context of a new client, with the parts that are its own."""
        announcer = LacAnnouncer(config.explicit_lac_interval_ms / 1000)
        budget = MemoryBudget(config.memory_limit)
        open_ledgers = OpenLedgers(runtime, driver, lambda: pool.connection_count)
        return cls(runtime, config, pool, driver, candidates, budget, announcer, SendScheduler(), open_ledgers)
