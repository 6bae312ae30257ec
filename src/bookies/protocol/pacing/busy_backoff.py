"""Backoff of a writer when a bookie is busy.

A bookie that answers TOO_MANY_REQUESTS has stored nothing and is not broken: it will accept the entry later. The writer
resends the same entries at growing intervals. The bookie counts as failed only when it has accepted nothing for as long
as it may leave an add unanswered. Source: wire-protocol 5.11; client-protocol 2.5 counts it as failed at once, which
ends a writer when there is no other bookie.
"""

from __future__ import annotations

from bookies.protocol.pacing.backoff import doubled

DELAY_MIN_S, DELAY_MAX_S = 0.1, 5.0  # before entries are resent to a bookie; doubled each time


def delay_s(attempt: int) -> float:
    """Return the seconds before the next attempt. `attempt`: number of consecutive attempts without success, from 0."""
    return doubled(DELAY_MIN_S, DELAY_MAX_S, attempt)


def maybe_delay_s(attempt: int, waited_s: float, limit_s: float) -> float | None:
    """Return the seconds before a resend to a busy bookie; None: it has been busy for too long.

    waited_s: seconds since its first refusal after which it accepted nothing.
    limit_s: seconds after which it counts as failed. The bookie always gets one more attempt.
    """
    delay = delay_s(attempt)
    return delay if attempt == 0 or waited_s + delay <= limit_s else None
