"""A rate limit, in bytes or calls per second, for background work."""

from __future__ import annotations

import asyncio

BURST_S = 0.05  # seconds of unused rate that may be made up for


class DiskRateLimit:
    """Limits one user to `rate` units a second by waiting. The rate may be changed at any time."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._paid_until = 0.0

    async def take(self, amount: float) -> None:
        """Wait until `amount` units may be used."""
        now = asyncio.get_running_loop().time()
        self._paid_until = max(self._paid_until, now - BURST_S) + amount / self.rate
        if self._paid_until > now:
            await asyncio.sleep(self._paid_until - now)
