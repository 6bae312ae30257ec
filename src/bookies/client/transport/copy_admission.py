"""Copies to bookies that have little room, one after the other.

Copies of many ledgers at once would fill such a bookie with the beginnings of all of them and the whole of none, and
what no record names is of no use. So a large copy asks its targets first how much room they have, and if it is not
enough for many of its kind, takes its turn; and after a bookie has refused a copy for want of room all copies do for a
while, also those under way, since what it refused goes to others now.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from math import inf

from bookies.errors import BookieReadOnly, BookKeeperError, WriteFailed
from bookies.model import BookieId

LARGE = 1 << 20  # bytes: what smaller copies leave is not worth a question
KEPT_SHARE = 0.1  # of a disk, that a bookie keeps for itself
TIMES = 16  # so many times its size has to be free: eight copies at once, each in a journal and an entry log
KNOWN_S = 5.0  # that an answer is good for
TIGHT_S = 60.0  # that copies take turns after one was refused


class CopyTurns:
    """Of all copies of one client. `ask`: (total, free) bytes of a bookie's disks."""

    def __init__(self, ask: Callable[[BookieId], Awaitable[tuple[int, int]]]) -> None:
        self._ask = ask
        self._known: dict[BookieId, tuple[float, float]] = {}  # loop time of the answer, bytes that can be used
        self._tight_until_s = -inf  # loop time
        self._turns: dict[BookieId, asyncio.Lock] = {}

    @property
    def is_tight(self) -> bool:
        """Whether a copy was refused for want of room just now."""
        return asyncio.get_running_loop().time() < self._tight_until_s

    def refused(self, error: BookKeeperError) -> None:
        """What a target answered to a copy."""
        if isinstance(error, BookieReadOnly | WriteFailed):
            self._tight_until_s = asyncio.get_running_loop().time() + TIGHT_S

    async def have_room(self, targets: Collection[BookieId], size: int) -> bool:
        """Whether many copies of so many bytes can go to each of them at once, as far as they say."""
        if size < LARGE:
            return True
        return all([await self._room(target) >= TIMES * size for target in targets])

    async def _room(self, target: BookieId) -> float:
        now = asyncio.get_running_loop().time()
        asked_s, room = self._known.get(target, (-inf, inf))
        if now - asked_s >= KNOWN_S:
            room = inf
            with contextlib.suppress(BookKeeperError):  # Its health, and the copy, tell what that means.
                total, free = await self._ask(target)
                room = free - KEPT_SHARE * total
            self._known[target] = now, room
        return room

    @contextlib.asynccontextmanager
    async def turn(self, targets: Collection[BookieId]) -> AsyncIterator[None]:
        """Wait until no other copy that takes turns goes to any of these. Once for each copy, and in the order of
        their names, so that nobody has some and waits for somebody who waits for those."""
        async with contextlib.AsyncExitStack() as held:
            for target in sorted(set(targets)):
                await held.enter_async_context(self._turns.setdefault(target, asyncio.Lock()))
            yield
