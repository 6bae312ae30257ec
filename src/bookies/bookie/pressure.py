"""How much a bookie has in hand, and who waits: `Intake` for adds, `ReadBudget` for read answers.

Both bound memory in bytes by making the outside wait, not by refusing: adds by leaving them in the senders' sockets,
reads by starting them later. Only a queue of reads that has become absurd is refused. Source: wire-protocol 5.11.

`PartialFrames` bounds what nobody can wait for: requests whose end may never come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

READS_WAITING_MAX = 10_000
PARTIAL_SIZE_MIN = 64 * 1024  # bytes of an incomplete request that are worth counting


class Reader(Protocol):
    """A connection, as the intake sees it."""

    def update_reading(self) -> None:
        """Look at `Intake.is_paused` again."""

    def close(self) -> None: ...

    def abort(self) -> None: ...


class PartialFrames:
    """Requests of which a large part is here and the rest is not: above `size_max` bytes the oldest are given up.

    A client that means it sends the rest at once, so one that has taken longest hardly does.
    """

    def __init__(self, size_max: int) -> None:
        self.size = 0
        self.size_max = size_max
        self._held: dict[Reader, int] = {}  # in the order in which the requests began

    def changed(self, connection: Reader, size: int, *, is_new: bool) -> None:
        """The connection holds `size` bytes of an incomplete request; `is_new`: another one than before."""
        before = self._held.pop(connection, 0) if is_new or size == 0 else self._held.get(connection, 0)
        self.size += size - before
        if size == 0:
            return
        self._held[connection] = size
        while self.size > self.size_max:
            oldest = next(iter(self._held))
            if oldest is connection:
                return  # It is the one that makes progress.
            self.size -= self._held.pop(oldest)
            oldest.abort()


class Intake:
    """Whether the bookie takes in more: all its connections, and the reasons to pause them.

    `adds_size`: bytes of adds accepted and not answered. Reading stops above `adds_size_max` or while `is_congested()`
    and goes on when half of that is answered and nothing is congested. What had been read by then is served, never
    refused: a bookie that is busy must not look like one that fails. So the bound is `adds_size_max`, the read that
    exceeded it with the request it completed, and one read of each connection that came later (see
    `Connection.data_received`).
    """

    def __init__(
        self,
        adds_size_max: int,
        is_congested: Callable[[], bool],
        when_uncongested: Callable[[Callable[[], None]], object],
        partial_size_max: int | None = None,
    ) -> None:
        self.adds_size = 0
        self.adds_size_max = adds_size_max
        self.is_paused = False
        self.partial_frames = PartialFrames(adds_size_max if partial_size_max is None else partial_size_max)
        self._connections: dict[Reader, None] = {}
        self._is_congested = is_congested
        self._when_uncongested = when_uncongested
        self._is_stopped = False
        self._idle: asyncio.Future[None] | None = None
        self._empty: asyncio.Future[None] | None = None

    def joined(self, connection: Reader) -> None:
        self._connections[connection] = None

    def left(self, connection: Reader) -> None:
        self._connections.pop(connection, None)
        self.partial_frames.changed(connection, 0, is_new=True)
        if not self._connections and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def accepted(self, size: int) -> None:
        """An add of so many bytes is on its way to the disk."""
        self.adds_size += size

    def check(self) -> None:
        """Pause if there is a reason; called after requests were handled."""
        if not self.is_paused and (self.adds_size > self.adds_size_max or self._is_congested()):
            self._pause()

    def answered(self, size: int) -> None:
        self.adds_size -= size
        assert self.adds_size >= 0
        if self.is_paused and not self._is_stopped:
            self._maybe_resume()
        if self.adds_size == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def stop(self) -> None:
        """Take in nothing any more."""
        self._is_stopped = True
        if not self.is_paused:
            self._pause()

    async def wait_idle(self) -> None:
        """Wait until every accepted add is answered. One caller."""
        if self.adds_size:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    async def wait_empty(self) -> None:
        """Wait until every connection is gone. One caller."""
        if self._connections:
            self._empty = asyncio.get_running_loop().create_future()
            await self._empty

    def connections(self) -> list[Reader]:
        """In the order in which they came."""
        return list(self._connections)

    def _pause(self) -> None:
        self.is_paused = True
        for connection in self._connections:
            connection.update_reading()
        if self._is_congested() and not self._is_stopped:
            self._when_uncongested(self._maybe_resume)

    def _maybe_resume(self) -> None:
        if self._is_stopped or not self.is_paused or self.adds_size > self.adds_size_max // 2:
            return
        if self._is_congested():
            self._when_uncongested(self._maybe_resume)
            return
        self.is_paused = False
        for connection in self._connections:
            connection.update_reading()


class ReadBudget:
    """Bytes of read answers in memory, from before the disk is asked until the socket has taken them.

    First come, first served: while anyone waits, newcomers wait behind. One answer always fits an empty budget.
    """

    def __init__(self, size_max: int) -> None:
        self.size = 0
        self.size_max = size_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_overrun(self) -> bool:
        """So many reads wait that another one would only time out."""
        return len(self._waiting) >= READS_WAITING_MAX

    @property
    def is_pressed(self) -> bool:
        """Reads wait for others to be sent."""
        return bool(self._waiting)

    def take(self, size: int) -> None:
        """Count bytes that are there already."""
        self.size += size

    def maybe_take(self, size: int) -> bool:
        """Count them if they fit and nobody waits."""
        if self._waiting or not self._fits(size):
            return False
        self.size += size
        return True

    async def wait_take(self, size: int) -> None:
        """Wait until they fit, then count them."""
        if self.maybe_take(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # It was our turn in the very moment the client left.
                self.release(size)
            raise

    def release(self, size: int) -> None:
        """The socket has taken them, or nobody wants them any more."""
        self.size -= size
        assert self.size >= 0
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(wanted):
                    return
                self.size += wanted
                turn.set_result(None)
            self._waiting.popleft()

    def _fits(self, size: int) -> bool:
        return self.size == 0 or self.size + size <= self.size_max
