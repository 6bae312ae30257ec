"""Admission of copies to bookies with little free space: one copy after the other.

Concurrent copies of many ledgers would fill such a bookie with incomplete copies, which no record names and which are
useless. So a large copy first asks its targets for their free space. If that is not enough for many copies of its size,
the copy waits for its turn. After a bookie has refused a copy for lack of space, all copies take turns for a while,
including those in progress, because the refused copy now goes to other bookies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from math import inf

from bookies.errors import BookieReadOnly, BookKeeperError, WriteFailed
from bookies.model import BookieId

LARGE = 1 << 20  # bytes; smaller copies are admitted without asking
KEPT_SHARE = 0.1  # share of a disk that a bookie reserves
TIMES = 16  # free space needed, in sizes of the copy: eight copies at once, each in a journal and an entry log
KNOWN_S = 5.0  # seconds that an answer is valid
TIGHT_S = 60.0  # seconds that all copies take turns after one was refused


class CopyAdmission:
    """Admission of all copies of one client. `ask`: (total, free) bytes of a bookie's disks."""

    def __init__(self, ask: Callable[[BookieId], Awaitable[tuple[int, int]]]) -> None:
        self._ask = ask
        self._known: dict[BookieId, tuple[float, float]] = {}  # loop time of the answer, usable bytes
        self._limited_until_s = -inf  # loop time
        self._locks: dict[BookieId, asyncio.Lock] = {}

    @property
    def is_limited(self) -> bool:
        """Report whether a copy was refused for lack of space within the last `TIGHT_S` seconds."""
        return asyncio.get_running_loop().time() < self._limited_until_s

    def refused(self, error: BookKeeperError) -> None:
        """Note why a target refused a copy."""
        if isinstance(error, BookieReadOnly | WriteFailed):
            self._limited_until_s = asyncio.get_running_loop().time() + TIGHT_S

    async def have_free_space(self, targets: Collection[BookieId], size: int) -> bool:
        """Report whether each target has free space for many copies of `size` bytes at once."""
        if size < LARGE:
            return True
        return all([await self._free_space(target) >= TIMES * size for target in targets])

    async def _free_space(self, target: BookieId) -> float:
        now = asyncio.get_running_loop().time()
        asked_s, free = self._known.get(target, (-inf, inf))
        if now - asked_s >= KNOWN_S:
            free = inf
            with contextlib.suppress(BookKeeperError):  # The bookie's health, and the copy itself, handle the failure.
                total, free = await self._ask(target)
                free = free - KEPT_SHARE * total
            self._known[target] = now, free
        return free

    @contextlib.asynccontextmanager
    async def turn(self, targets: Collection[BookieId]) -> AsyncIterator[None]:
        """Wait until no other copy that takes turns goes to any of these targets. Call once for each copy.

        Locks are taken in the order of the targets' names, which rules out deadlocks.
        """
        async with contextlib.AsyncExitStack() as held:
            for target in sorted(set(targets)):
                await held.enter_async_context(self._locks.setdefault(target, asyncio.Lock()))
            yield
