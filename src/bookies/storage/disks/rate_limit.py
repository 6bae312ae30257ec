"""A budget per second, of bytes or of calls, for work that must not get in the way of others."""

from __future__ import annotations

import asyncio

BURST_S = 0.05  # what was not used for so long may be made up for


class DiskRateLimit:
    """At most `rate` units a second, by waiting. One user at a time, who may change the rate."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._paid_until = 0.0

    async def take(self, amount: float) -> None:
        """Return when so many units may be used."""
        now = asyncio.get_running_loop().time()
        self._paid_until = max(self._paid_until, now - BURST_S) + amount / self.rate
        if self._paid_until > now:
            await asyncio.sleep(self._paid_until - now)
