from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookies.runtime.histogram import Histogram


@given(st.lists(st.integers(0, 10**8), min_size=1, max_size=200))
def test_percentiles_are_those_of_the_sorted_values(values: list[int]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value / 1e6)
    assert len(histogram) == len(values)
    ordered = sorted(values)
    for share, found in zip((0.5, 0.9, 1.0), histogram.percentiles((0.5, 0.9, 1.0)), strict=True):
        exact = ordered[max(0, -(-int(share * 1000) * len(values) // 1000) - 1)]
        assert abs(found - exact) <= exact / 256 + 1


def test_empty_histogram_says_zero() -> None:
    assert Histogram().summary() == {"p50_us": 0, "p95_us": 0, "p99_us": 0, "p999_us": 0, "max_us": 0}


def test_two_make_one() -> None:
    one, other, both = Histogram(), Histogram(), Histogram()
    for value in (1e-6, 5e-3):
        one.record(value, 3)
        both.record(value, 3)
    for value in (5e-3, 0.25):
        other.record(value)
        both.record(value)
    one.merge(other)
    assert (len(one), one.summary()) == (len(both), both.summary())
