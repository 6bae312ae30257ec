"""A hard limit on memory, in bytes, that waits in order of arrival instead of growing."""

from __future__ import annotations

import asyncio
from collections import deque

from bookies.errors import InvalidArgument


class MemoryBudget:
    """What the writers of one client may hold: entries that not every replica has answered.

    Counted from `append` until each replica has answered or was replaced, not only until the ack quorum is reached:
    one slow bookie must stop the writer, not fill the memory.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __repr__(self) -> str:
        return f"<MemoryBudget {self.used:,} of {self.limit:,} bytes used, {len(self._waiters)} waiting>"

    def try_acquire(self, size: int) -> bool:
        """Take `size` bytes now, unless that needs waiting."""
        if self._waiters or self.used + size > self.limit:
            return False
        self.used += size
        return True

    def take(self, size: int) -> None:
        """Take `size` bytes whether they are free or not: for what others who hold memory are waiting for."""
        self.used += size

    async def acquire(self, size: int) -> None:
        """Take `size` bytes as soon as they are free. Raises `InvalidArgument` when they never will be."""
        if size > self.limit:
            raise InvalidArgument(f"{size:,} bytes at once exceed the memory_limit of {self.limit:,}")
        if self.try_acquire(size):
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiters.append((size, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(size)
            else:
                self._waiters = deque(waiter for waiter in self._waiters if waiter[1] is not granted)
                self._grant()
            raise

    def release(self, size: int) -> None:
        """Give bytes back; wakes who waits for them."""
        self.used -= size
        assert self.used >= 0
        self._grant()

    def _grant(self) -> None:
        while self._waiters:
            size, granted = self._waiters[0]
            if granted.cancelled():
                self._waiters.popleft()
                continue
            if self.used + size > self.limit:
                return
            self._waiters.popleft()
            self.used += size
            granted.set_result(None)
