"""The budget of the scrub's reads: bytes per second, none while suspended or while the bookie is congested."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bookies.protocol.pacing import RateLimit
from bookies.protocol.pacing.rate_limit import BURST_S
from bookies.runtime.tasks import throttle
from bookies.storage.scrub.scrub_files import PassReplaced
from bookies.storage.scrub.scrub_plan import Plan


class ScrubBudget:
    """The bytes that a pass may read now. `pass_number`: of the pass to which the running code belongs.

    `wait_calm()`: returns when the bookie is not congested.
    """

    def __init__(self, plan: Plan, wait_calm: Callable[[], Awaitable[None]]) -> None:
        self.limit = RateLimit(plan.rate_max, BURST_S)
        self.pass_number = 0
        self.is_open = asyncio.Event()  # not suspended
        self.is_open.set()
        self._plan = plan
        self._wait_calm = wait_calm

    async def pay(self, size: int) -> None:
        """Wait until `size` bytes may be read. Raises: PassReplaced when an operator has started another pass."""
        await self.is_open.wait()
        await self._wait_calm()
        await throttle(self.limit, size)
        self.check()
        self._plan.progress.counts.read += size

    def check(self) -> None:
        """Raise PassReplaced if an operator has started another pass."""
        if self.pass_number != self._plan.progress.number:
            raise PassReplaced("another pass was begun")
