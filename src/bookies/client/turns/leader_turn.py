"""`LeaderTurn`: the lease of a log's leader that takes turns with others (`Log.lead(wait=True)`).

The lease keeps others from taking over while the leader lives; the log is safe without it. So a leader that loses the
lease, because the store was unavailable or the process was suspended, goes on until another one takes over. Meanwhile
it enters the queue again, at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bookies.client.turns.lease import Contest, Lease
from bookies.errors import BookKeeperError, LogFenced, LogNotFound

RETRY_S = 5.0  # seconds after a permanent error of the store, such as a record that cannot be read


class LeaderTurn:
    """The turn of one leader, from `enter` to `release`. `text`: names it; None: its host and process id."""

    def __init__(self, contest: Contest, text: str | None = None) -> None:
        self._contest = contest
        self._text = text
        self._lease: Lease | None = None

    async def enter(self) -> None:
        """Wait until this process may lead. Raises `LeaseHeld` (too many wait)."""
        self._lease = await self._contest.opening(text=self._text)

    async def keep(self, check_lead: Callable[[], Awaitable[None]]) -> None:
        """Keep the turn until cancelled. `release` comes afterwards.

        `check_lead`: called when the turn was lost, and when it is there again; raises `LogFenced` if another process
        has led meanwhile, and `LogNotFound` if the log was deleted, which ends this.
        """
        while True:
            await self._wait_lost()
            try:
                await self.release()
                await check_lead()  # With a deleted log its turns are gone: an entry would create them again.
                await self.enter()
                await check_lead()
            except BookKeeperError as error:
                await self.release()
                if isinstance(error, LogFenced | LogNotFound):
                    return
                await asyncio.sleep(RETRY_S)

    async def _wait_lost(self) -> None:
        lost = asyncio.Event()
        lease = self._lease
        if lease is not None and lease.is_held:
            lease.on_lost(lost.set)
            await lost.wait()

    async def release(self) -> None:
        """Give the turn to the next process. Idempotent."""
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.release()
