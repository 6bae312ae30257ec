"""Waiting for a rate limit."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Limit(Protocol):
    """Rate limit, as `protocol/pacing/rate_limit.py` has it."""

    def charge(self, amount: float, now: float) -> float:
        """Count `amount` units; return the seconds to wait."""
        ...


async def throttle(limit: Limit, amount: float) -> None:
    """Count `amount` units, and wait as long as the limit demands."""
    await pause(limit.charge(amount, asyncio.get_running_loop().time()))


async def pause(seconds: float) -> None:
    """Sleep, or go on at once if there is nothing to wait for."""
    if seconds > 0:
        await asyncio.sleep(seconds)
