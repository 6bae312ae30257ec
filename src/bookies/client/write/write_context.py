"""`WriteContext`: the parts that the writers of one client share."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, Self, TypeVar

from msgspec import Struct

from bookies.client.base.budget import MemoryBudget
from bookies.client.transport.open_ledgers import OpenLedgers
from bookies.client.write.adds import AddPool
from bookies.client.write.lac_announcer import LacAnnouncer
from bookies.client.write.send_scheduler import SendScheduler
from bookies.config import ClientConfig
from bookies.errors import MetadataError, NotEnoughBookies
from bookies.metadata.interface import MetadataDriver
from bookies.model import BookieId
from bookies.runtime.ports import Runtime

T = TypeVar("T")


class WritableBookies(Protocol):
    """Bookies of the cluster that accept writes: `BookieWatcher`."""

    def candidates(self) -> Sequence[BookieId]:
        """Return those known now in order of preference."""

    async def refresh(self) -> None:
        """Read them from the metadata store. Raises `MetadataError`."""


async def with_candidates(bookies: WritableBookies, use: Callable[[Sequence[BookieId]], Awaitable[T]]) -> T:
    """Return the result of `use` with the candidates; if they are not enough, read them from the store and repeat.

    The watch may be late, and without a replacement the writer ends. Raises what `use` raises.
    """
    try:
        return await use(bookies.candidates())
    except NotEnoughBookies:
        with contextlib.suppress(MetadataError):
            await bookies.refresh()
        return await use(bookies.candidates())


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
        announcer = LacAnnouncer(config.explicit_lac_interval_ms / 1000, runtime.random.uniform)
        budget = MemoryBudget(config.memory_limit)
        open_ledgers = OpenLedgers(runtime, driver, lambda: pool.connection_count)
        return cls(runtime, config, pool, driver, bookies, budget, announcer, SendScheduler(pool.flushes), open_ledgers)
