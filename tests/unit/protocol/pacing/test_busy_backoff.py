"""When entries are sent again to a bookie that was busy, and when it counts as failed."""

from __future__ import annotations

from bookies.protocol.pacing.busy_backoff import DELAY_MAX_S, delay_s, maybe_delay_s


def test_waits_double_up_to_the_limit() -> None:
    assert [delay_s(attempt) for attempt in (0, 1, 5, 6, 1000)] == [0.1, 0.2, 3.2, DELAY_MAX_S, DELAY_MAX_S]
    assert maybe_delay_s(4, 1.5, 5.0) == 1.6
    assert maybe_delay_s(5, 3.1, 5.0) is None
    assert maybe_delay_s(0, 0.0, 0.01) == 0.1, "once in any case"
