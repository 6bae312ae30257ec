"""How long a writer bears with a bookie that is busy.

A bookie that answers TOO_MANY_REQUESTS has stored nothing and is not broken: it says that it will take the entry
later. So it is sent the same entries again, later and later, and counts as failed only when it has taken nothing for as
long as it may leave an add unanswered. Source: wire-protocol 5.11; client-protocol 2.5 counts it as failed at once,
which ends a writer when no other bookie is there.
"""

from __future__ import annotations

DELAY_MIN_S, DELAY_MAX_S = 0.1, 5.0  # before entries go to a bookie again; doubled each time


def delay_s(attempt: int) -> float:
    """Seconds before the next attempt; `attempt`: from 0 on, how many came before it without any success."""
    return min(DELAY_MAX_S, DELAY_MIN_S * 2.0 ** min(attempt, 30))


def maybe_delay_s(attempt: int, waited_s: float, limit_s: float) -> float | None:
    """Seconds before a busy bookie is asked again; None: it has been busy for too long.

    `waited_s`: since it first refused something without having taken anything since. It is always asked once more.
    """
    delay = delay_s(attempt)
    return delay if attempt == 0 or waited_s + delay <= limit_s else None
