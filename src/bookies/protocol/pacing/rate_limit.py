"""Rate limit for background work, in bytes, records or calls per second."""

from __future__ import annotations

from bookies.errors import InvalidArgument

BURST_S = 0.05  # seconds of unused rate that a user of a disk may make up for


class RateLimit:
    """Limits its users together to `rate` units a second. `rate`: may be changed at any time; None: unlimited.

    `burst_s`: seconds of unused rate that may be made up for. `part_size`: most bytes that a copy transfers at a time.
    """

    part_size = 1 << 20

    def __init__(self, rate: float | None, burst_s: float = 0.0) -> None:
        if rate is not None and rate <= 0:
            raise InvalidArgument(f"rate={rate}: must be above 0, or None for no limit")
        self.rate = rate
        self._burst_s = burst_s
        self._free_at = 0.0

    def charge(self, amount: float, now: float) -> float:
        """Count `amount` units; return the seconds to wait before the next."""
        if self.rate is None:
            return 0.0
        self._free_at = max(self._free_at, now - self._burst_s) + amount / self.rate
        return max(0.0, self._free_at - now)

    def start_copy(self, now: float) -> float:
        """Count the overhead of a copy; return the seconds to wait before it. For adaptive rates."""
        return 0.0

    def observe_copy(self, seconds: float, now: float) -> None:
        """Report the seconds until a copy was durable. For adaptive rates."""
