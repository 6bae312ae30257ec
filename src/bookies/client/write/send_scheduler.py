"""When writers send: once per turn of the event loop, and in larger batches when many of them share it.

A batch costs about as much as fifty entries in it, so a client that writes to a thousand ledgers an entry at a time is
busy with batches. When more than `CROWD` writers have something to send in one turn, a writer that still waits for
answers holds back until it has them: what gathers meanwhile goes as one batch. The loop is then so busy that this
shortens everybody's way; a few writers never wait for each other.

Source: client-protocol 2.16; style 7.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol

CROWD = 16  # writers in one turn


class Queue:
    """First come, first served: a lock that says whether anybody holds it *or stands in line*.

    `asyncio.Lock.locked` is false between a release and the moment when the next in line runs; whoever took that for
    leave to go ahead would overtake all who wait.
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
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._count -= 1
        self._lock.release()


class Sending(Protocol):
    """A writer, as far as this concerns it."""

    def send_queued(self, *, may_hold: bool) -> None:
        """Send what is queued. With `may_hold` it may stay until everything on its way is confirmed."""


class SendScheduler:
    """The writers of one client that have queued something in this turn of the loop, in that order."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._writers: list[Sending] = []

    def join(self, writer: Sending) -> None:
        """Call `send_queued` at the end of this turn. At most once per turn and writer."""
        if not self._writers:
            self._loop.call_soon(self._run)
        self._writers.append(writer)

    def _run(self) -> None:
        writers, self._writers = self._writers, []
        may_hold = len(writers) > CROWD
        for writer in writers:
            writer.send_queued(may_hold=may_hold)
