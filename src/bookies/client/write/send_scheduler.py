"""Schedule of the writers' sends: once per event-loop iteration, in larger batches when many writers share the loop.

A batch costs about as much as fifty of its entries, so a client that writes single entries to a thousand ledgers spends
its time on batches. If more than `CROWD` writers have entries to send in one iteration, a writer that waits for
acknowledgements holds its entries back until it has them, and then sends them as one batch. The loop is so busy then
that this shortens the latency of every writer. A few writers never wait for each other.

A writer that has one entry in flight at a time, alone in its client, does not wait for the end of the iteration: no
other entry would share its batch, and the iteration costs it a wake-up.

Design for batches: one socket read, one scan for frames, one journal append, one sync, one write per connection.
Source: client-protocol 2.16.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from bookies.client.transport.connection import Flushes

CROWD = 16  # writers in one loop iteration


class FifoLock:
    """First-in-first-out lock that also reports whether anybody waits for it.

    `asyncio.Lock.locked` is false between a release and the moment when the next waiter runs. A caller that took this
    for a free lock would overtake all waiters.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._count = 0

    @property
    def is_empty(self) -> bool:
        return self._count == 0

    async def __aenter__(self) -> None:
        self._count += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._count -= 1
            raise

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._count -= 1
        self._lock.release()


class ScheduledWriter(Protocol):
    """The methods of a writer that the scheduler calls."""

    def send_queued(self, *, may_hold: bool) -> None:
        """Send the queued entries. With `may_hold` they may stay until every entry in flight is confirmed."""


class SendScheduler:
    """The writers of one client that have queued entries in this loop iteration, in order.

    `flushes`: of the connections on which they send.
    """

    def __init__(self, flushes: Flushes) -> None:
        self._loop = asyncio.get_running_loop()
        self._flushes = flushes
        self._writers: list[ScheduledWriter] = []
        self._last: ScheduledWriter | None = None  # alone in the last iteration that had any

    def send_alone(self, writer: ScheduledWriter) -> None:
        """Call `send_queued` at once if no other writer has sent since this one did, else as `join` does."""
        if writer is self._last and not self._writers:
            self._send([writer])
        else:
            self.join(writer)

    def join(self, writer: ScheduledWriter) -> None:
        """Call `send_queued` at the end of this loop iteration. At most once per iteration and writer."""
        if not self._writers:
            self._loop.call_soon(self._run)
        self._writers.append(writer)

    def _run(self) -> None:
        writers, self._writers = self._writers, []
        self._last = writers[0] if len(writers) == 1 else None
        self._send(writers)

    def _send(self, writers: Sequence[ScheduledWriter]) -> None:
        may_hold = len(writers) > CROWD
        flushes = self._flushes
        flushes.expect()
        try:
            for writer in writers:
                writer.send_queued(may_hold=may_hold)
        finally:
            flushes.flush()
