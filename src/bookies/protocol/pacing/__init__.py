"""When to go on: rate limits, and growing pauses after failures."""

from __future__ import annotations

from bookies.protocol.pacing.backoff import Backoff, doubled
from bookies.protocol.pacing.rate_limit import RateLimit

__all__ = ["Backoff", "RateLimit", "doubled"]
