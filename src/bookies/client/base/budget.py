"""A hard memory limit in bytes, granted in order of arrival."""

from __future__ import annotations

import asyncio
from collections import deque

from bookies.errors import InvalidArgument


class MemoryBudget:
    """Memory of the entries that the writers of one client hold until every replica has answered.

    An entry counts from `append` until each replica has answered or was replaced, not only until the ack quorum is
    reached: a slow bookie must stop the writer, not fill the memory.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiters: deque[tuple[int, asyncio.Future[int]]] = deque()

    def __repr__(self) -> str:
        return f"<MemoryBudget {self.used:,} of {self.limit:,} bytes used, {len(self._waiters)} waiting>"

    def try_acquire(self, size: int) -> bool:
        """Take `size` bytes if they are free and no other caller waits; report whether it did."""
        if self._waiters or self.used + size > self.limit:
            return False
        self.used += size
        return True

    def take(self, size: int) -> None:
        """Take `size` bytes even beyond the limit: for an entry that the current holders of memory wait for."""
        self.used += size

    async def acquire(self, size: int, granted: asyncio.Future[int] | None = None) -> None:
        """Wait for `size` free bytes and take them. Raises `InvalidArgument` if they exceed the limit.

        `granted`: the future to wait for. Another error that it gets ends the wait, and is raised.
        """
        if size > self.limit:
            raise InvalidArgument(f"{size:,} bytes in one operation exceed memory_limit = {self.limit:,}")
        if self.try_acquire(size):
            return
        granted = granted or asyncio.get_running_loop().create_future()
        self._waiters.append((size, granted))
        try:
            await granted
        except BaseException:
            if not granted.cancelled() and granted.done() and granted.exception() is None:
                self.release(size)
            else:
                self._waiters = deque(waiter for waiter in self._waiters if waiter[1] is not granted)
                self._grant()
            raise

    def release(self, size: int) -> None:
        """Return bytes and wake the callers that wait for them."""
        self.used -= size
        assert self.used >= 0
        self._grant()

    def _grant(self) -> None:
        while self._waiters:
            size, granted = self._waiters[0]
            if granted.done():
                self._waiters.popleft()
                continue
            if self.used + size > self.limit:
                return
            self._waiters.popleft()
            self.used += size
            granted.set_result(size)
