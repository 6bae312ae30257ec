"""A rate limit returns the seconds to wait, and saves up nothing but a burst."""

from __future__ import annotations

import pytest

from bookies.errors import InvalidArgument
from bookies.protocol.pacing import RateLimit


def test_pace() -> None:
    assert RateLimit(None).charge(10**9, 0.0) == 0.0
    pace = RateLimit(1000)
    assert pace.charge(500, 100.0) == pytest.approx(0.5)
    assert pace.charge(500, 100.0) == pytest.approx(1.0)
    assert pace.charge(500, 200.0) == pytest.approx(0.5), "time that passed unused is not saved up"
    with pytest.raises(InvalidArgument, match="rate"):
        RateLimit(0)


def test_burst() -> None:
    pace = RateLimit(1000, burst_s=0.2)
    assert pace.charge(100, 100.0) == 0.0
    assert pace.charge(100, 100.0) == 0.0
    assert pace.charge(100, 100.0) == pytest.approx(0.1)


def test_a_changed_rate_applies_to_what_follows() -> None:
    pace = RateLimit(1000)
    assert pace.charge(1000, 0.0) == pytest.approx(1.0)
    pace.rate = 100.0
    assert pace.charge(100, 1.0) == pytest.approx(1.0)


def test_a_rate_that_does_not_adapt_counts_the_units_of_a_copy_and_nothing_else() -> None:
    pace = RateLimit(1000)
    assert pace.start_copy(100.0) == 0.0
    pace.observe_copy(60.0, 100.0)
    assert pace.rate == 1000
    assert pace.charge(500, 100.0) == pytest.approx(0.5)
