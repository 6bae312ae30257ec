"""`WriteContext`: the parts that the writers of one client share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

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


class WritableBookies(Protocol):
    """Bookies of the cluster that accept writes: `BookieWatcher`."""

    def candidates(self) -> Sequence[BookieId]:
        """Return those known now in order of preference."""

    async def refresh(self) -> None:
        """Read them from the metadata store. Raises `MetadataError`."""


class WriteContext(Struct, frozen=True):
    """The parts that the writers of one client share."""

    runtime: Runtime
    config: ClientConfig
    pool: AddPool
    driver: MetadataDriver
    bookies: WritableBookies
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
        bookies: WritableBookies,
    ) -> Self:
        """Return the context of a new client, with the parts that are its own."""
        announcer = LacAnnouncer(config.explicit_lac_interval_ms / 1000)
        budget = MemoryBudget(config.memory_limit)
        open_ledgers = OpenLedgers(runtime, driver, lambda: pool.connection_count)
        return cls(runtime, config, pool, driver, bookies, budget, announcer, SendScheduler(), open_ledgers)
