"""Free disk space of bookies, polled in the background for placement by weight. Source: metadata 9.6."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from bookies.errors import BookKeeperError
from bookies.model import BookieId
from bookies.protocol.placement.free_space_weights import weights_of
from bookies.runtime.tasks import all_of

ASKED_AT_ONCE = 8
RETRY_S = 60.0  # until a bookie that has not answered is asked again


class FreeSpace:
    """Free disk space of bookies.

    `ask`: (total, free) bytes of a bookie. `interval_s`: seconds that an answer is valid.
    """

    def __init__(
        self, ask: Callable[[BookieId], Awaitable[tuple[int, int]]], interval_s: float, multiple_max: float
    ) -> None:
        self._ask = ask
        self._interval_s = interval_s
        self._multiple_max = multiple_max
        self._free: dict[BookieId, int] = {}
        self._due_s: dict[BookieId, float] = {}  # loop time
        self._weights: tuple[Sequence[BookieId], dict[BookieId, float]] | None = None

    def due(self, bookies: Sequence[BookieId]) -> list[BookieId]:
        """List the bookies to ask now."""
        now = asyncio.get_running_loop().time()
        return [bookie for bookie in bookies if self._due_s.get(bookie, now) <= now]

    async def learn(self, bookies: Sequence[BookieId]) -> None:
        """Ask these bookies. A bookie that does not answer is asked again later; its last answer still counts."""
        now = asyncio.get_running_loop().time()
        self._due_s.update(dict.fromkeys(bookies, now + RETRY_S))
        limit = asyncio.Semaphore(ASKED_AT_ONCE)
        await all_of(self._learn(bookie, limit) for bookie in bookies)
        self._weights = None

    async def _learn(self, bookie: BookieId, limit: asyncio.Semaphore) -> None:
        async with limit:
            try:
                _, free = await self._ask(bookie)
            except (BookKeeperError, OSError):
                return  # The bookie's health reflects the failure too.
        self._free[bookie] = free
        self._due_s[bookie] = asyncio.get_running_loop().time() + self._interval_s

    def weights(self, bookies: Sequence[BookieId]) -> dict[BookieId, float]:
        """Return each bookie's probability of being preferred; empty until a bookie has answered."""
        if self._weights is None or self._weights[0] is not bookies:
            self._weights = bookies, weights_of(bookies, self._free, self._multiple_max)
        return self._weights[1]
