"""Memory bounds of a bookie: `Intake` for adds, `ReadBudget` for read answers.

Both bound memory in bytes by making peers wait, not by refusing: adds stay in the senders' sockets, reads start
later, connections take turns. Only reads beyond a very long queue are refused. Source: wire-protocol 5.11.

`PartialFrames` bounds requests whose end may never arrive, for which waiting does not help.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from bookies.runtime.histogram import Distribution

# reads that wait for memory; each takes some kilobytes. More only while there are few connections
READS_WAITING_MAX = 10_000
READS_WAITING_EACH = 10  # of a connection
READS_AT_DISK_MAX = 64  # reads whose answer sizes are not known yet
FIRST_SIZE_GUESS = 1024 * 1024  # bytes; assumed size of an entry on a connection that has read none
SIZE_GUESS_MIN = 16 * 1024
PARTIAL_SIZE_MIN = 64 * 1024  # bytes; smaller parts of an incomplete request are not counted


class Reader(Protocol):
    """A connection, as the intake sees it."""

    def update_reading(self) -> None:
        """Check `Intake.is_paused` again."""

    def close(self) -> None: ...

    def abort(self) -> None: ...

    @property
    def task_count(self) -> int:
        """Return the number of its requests that run in the background."""


class PartialFrames:
    """Requests of which a large part is here and the rest is not: above `size_max` bytes the oldest are closed.

    An honest client sends the rest at once, so the request that has taken longest is the least likely to be
    completed.
    """

    def __init__(self, size_max: int) -> None:
        self.size = 0
        self.size_max = size_max
        self._held: dict[Reader, int] = {}  # in the order in which the requests began

    def changed(self, connection: Reader, size: int, *, is_new: bool) -> None:
        """Note that the connection holds `size` bytes of an incomplete request. `is_new`: another request than
        before."""
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


class Pauses:
    """The pauses of an intake. `seconds`: their durations. `now`: a monotonic clock, in seconds.

    `on_end`: called with a pause's beginning and end in seconds, and "cache" (congestion) or "intake".
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.seconds = Distribution()
        self.on_end: Callable[[float, float, str], None] | None = None
        self._now = now
        self._began_s = 0.0
        self._reason = ""

    def begin(self, reason: str) -> None:
        self._began_s, self._reason = self._now(), reason

    def end(self) -> None:
        now_s = self._now()
        self.seconds.record(now_s - self._began_s)
        if self.on_end is not None:
            self.on_end(self._began_s, now_s, self._reason)


class Intake:
    """Decides whether the bookie accepts more input: all its connections, and the reasons to pause them.

    `adds_size`: bytes of adds accepted and not answered. Reading stops above `adds_size_max` or while
    `is_congested()` and resumes when half of that is answered and congestion has ended. Requests read by then are
    served, never refused: a busy bookie must not look like a failing one. So the bound is `adds_size_max`, the read
    that exceeded it with the request it completed, and one read of each connection that came later (see
    `Connection.data_received`).
    """

    def __init__(
        self,
        adds_size_max: int,
        is_congested: Callable[[], bool],
        when_uncongested: Callable[[Callable[[], None]], object],
        partial_size_max: int | None = None,
        now: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.adds_size = 0
        self.adds_size_max = adds_size_max
        self.is_paused = False
        self.pauses = Pauses(now)
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
        """Count an add of `size` bytes that is being written to disk."""
        self.adds_size += size

    def check(self) -> None:
        """Pause if there is a reason. Called after requests were handled."""
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
        """Stop accepting input."""
        self._is_stopped = True
        if not self.is_paused:
            self._pause()

    async def wait_idle(self) -> None:
        """Wait until every accepted add is answered. One caller."""
        if self.adds_size:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    async def wait_empty(self) -> None:
        """Wait until every connection is closed. One caller."""
        if self._connections:
            self._empty = asyncio.get_running_loop().create_future()
            await self._empty

    def connections(self) -> list[Reader]:
        """Return the connections in the order in which they were accepted."""
        return list(self._connections)

    def _pause(self) -> None:
        self.is_paused = True
        self.pauses.begin("cache" if self._is_congested() else "intake")
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
        self.pauses.end()
        for connection in self._connections:
            connection.update_reading()


class _Pool:
    """A part of the read budget and the connections that share it. Connections with waiting reads are served in
    turn."""

    def __init__(self, size_max: int, share_max: int) -> None:
        self.size = 0
        self.size_max = size_max
        self.share_max = share_max  # of one connection that already holds something
        self.at_disk = 0
        self.waiting = 0
        self.queue: deque[ReadShare] = deque()  # connections whose next read waits for others

    @property
    def is_pressed(self) -> bool:
        """Report whether reads wait until peers have consumed the answers to others."""
        return bool(self.queue) and not self.fits(self.queue[0].size_next)

    def fits(self, size: int) -> bool:
        """Report whether an answer fits. One answer always fits an empty pool."""
        return self.size == 0 or self.size + size <= self.size_max

    def serve(self) -> None:
        """Start the reads that fit now, one of each connection after the other.

        Called whenever something may have changed, so that the first in the queue always has a read that waits.
        """
        queue = self.queue
        while queue:
            share = queue[0]
            if not share.is_next():
                queue.popleft()
            elif share.maybe_begin_next():
                queue.rotate(-1)
            else:
                return


class ReadBudget:
    """Bytes of read answers in memory, from before the disk is read until the sockets have consumed them.

    Half is for connections that have consumed an answer, half for those that have not yet: many peers that request
    and consume nothing delay each other and no one else. In each half connections take turns. A connection of the
    first half gets an eighth of all, one of the second a 512th, or one answer if that is larger, and no more while it
    does not consume what is there. One answer always fits an empty half, and one fits a connection that has none.

    The size of an entry is known when it has been read. Until then it counts like the connection's last read, and
    only `READS_AT_DISK_MAX` of each half are at the disk.
    """

    def __init__(self, size_max: int) -> None:
        self._takers = _Pool(size_max // 2, size_max // 8)
        self._newcomers = _Pool(size_max // 2, size_max // 512)

    @property
    def size(self) -> int:
        return self._takers.size + self._newcomers.size

    @property
    def waiting(self) -> int:
        """Return the number of waiting reads."""
        return self._takers.waiting + self._newcomers.waiting

    def new_share(self) -> ReadShare:
        """Create the share of a connection."""
        return ReadShare(self._newcomers, self._takers)


class ReadShare:
    """One connection's share of the read budget.

    Reads whose size is known call `maybe_take`; others call `wait_begin` before and `end` after the disk read. `sent`
    reports that the peer has consumed answers, `release` that they are not wanted any more.
    """

    def __init__(self, newcomers: _Pool, takers: _Pool) -> None:
        self.size = 0
        self.size_guess = FIRST_SIZE_GUESS  # assumed size of an entry until it has been read
        self._pool = self._newcomers = newcomers
        self._takers = takers
        self._at_disk = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._is_queued = False
        self._is_stuck = False

    def is_overrun(self, count: int) -> bool:
        """Report whether another read would only time out behind the waiting ones.

        `count`: requests of this connection in progress.
        """
        waiting = self._newcomers.waiting + self._takers.waiting
        return count >= READS_WAITING_EACH and waiting >= READS_WAITING_MAX

    @property
    def is_pressed(self) -> bool:
        """Report whether reads of connections like this one wait until peers have consumed the answers to others."""
        return self._pool.is_pressed

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def must_wait(self) -> bool:
        """Report whether a read of any size has to wait for others: `is_waiting` or `is_pressed`."""
        return bool(self._waiting or (self._pool.queue and self._pool.is_pressed))

    def take(self, size: int) -> None:
        """Count bytes that are in memory already."""
        self.size += size
        self._pool.size += size

    def maybe_take(self, size: int) -> bool:
        """Count the bytes if they fit and no read waits for room."""
        pool = self._pool
        if self._waiting or (pool.queue and pool.is_pressed) or not self._has_room(size) or not pool.fits(size):
            return False
        self.take(size)
        return True

    async def wait_begin(self, size: int) -> None:
        """Wait until the disk may be read for about `size` bytes, then count them."""
        if self._pool.at_disk < READS_AT_DISK_MAX and self.maybe_take(size):
            self._at_disk += 1
            self._pool.at_disk += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._pool.waiting += 1
        self._queue()
        try:
            await turn
        except asyncio.CancelledError:
            # The read got its turn at the moment at which the client disconnected.
            if turn.done() and not turn.cancelled():
                self.end(size, 0)
            else:
                self._forget_gone()
                self._pool.serve()  # A read that waited behind it may fit.
            raise

    def end(self, guess: int, size: int) -> None:
        """Correct the count after the disk has returned `size` bytes where `guess` were counted."""
        self._at_disk -= 1
        self._pool.at_disk -= 1
        self._changed(size - guess)

    def settle(self, guess: int, size: int) -> None:
        """Correct `guess` bytes counted by `maybe_take` to `size`; if there are any, the next reads are assumed to be
        as large."""
        self._changed(size - guess)
        if size:
            self.learn(size)

    def learn(self, size: int) -> None:
        """Adjust the assumed size of an entry, which decays over time."""
        self.size_guess = max(size, self.size_guess // 2, SIZE_GUESS_MIN)

    def release(self, size: int) -> None:
        """Release bytes of answers that are not wanted any more."""
        self._changed(-size)

    def sent(self, size: int) -> None:
        """Release bytes that the peer has consumed, and note that it consumes answers."""
        if self._pool is not self._takers:
            self._move(self._takers)
        self._changed(-size)

    def stuck(self, is_stuck: bool) -> None:
        """Note whether the peer leaves its answers in our memory: then it gets no more."""
        self._is_stuck = is_stuck
        self._queue()
        self._pool.serve()

    # -- for the pool --------------------------------------------------------------------------------------------
    @property
    def size_next(self) -> int:
        """Return the bytes that the first waiting read counts for."""
        return self._waiting[0][0]

    def is_next(self) -> bool:
        """Report whether a read waits for others only; otherwise the connection leaves the queue."""
        self._forget_gone()
        self._is_queued = bool(self._waiting) and self._has_room(self.size_next)
        return self._is_queued

    def maybe_begin_next(self) -> bool:
        """Start the read if it fits."""
        size, turn = self._waiting[0]
        pool = self._pool
        if pool.at_disk >= READS_AT_DISK_MAX or not pool.fits(size):
            return False
        self._waiting.popleft()
        pool.waiting -= 1
        self._at_disk += 1
        pool.at_disk += 1
        self.take(size)
        turn.set_result(None)
        return True

    # -- inside --------------------------------------------------------------------------------------------------
    def _has_room(self, size: int) -> bool:
        """Report whether this connection's limit allows the read."""
        return not self._is_stuck and (self.size == 0 or self.size + size <= self._pool.share_max)

    def _forget_gone(self) -> None:
        """Drop closed connections from the head of the queue: clients disconnect with all their reads."""
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()
            self._pool.waiting -= 1

    def _queue(self) -> None:
        if self._waiting and not self._is_queued and self._has_room(self.size_next):
            self._is_queued = True
            self._pool.queue.append(self)

    def _changed(self, size: int) -> None:
        self.size += size
        self._pool.size += size
        assert self.size >= 0
        if self._waiting:
            self._queue()
        if self._pool.queue:
            self._pool.serve()

    def _move(self, pool: _Pool) -> None:
        old, self._pool = self._pool, pool
        if self._is_queued:
            old.queue.remove(self)
            self._is_queued = False
        for changed, sign in ((old, -1), (pool, 1)):
            changed.size += sign * self.size
            changed.at_disk += sign * self._at_disk
            changed.waiting += sign * len(self._waiting)
        old.serve()
