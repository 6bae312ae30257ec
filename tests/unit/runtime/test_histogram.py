from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.runtime.histogram import WINDOW_S, Distribution, Histogram


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


@given(st.lists(st.tuples(st.floats(1e-9, 1e4) | st.just(0.0), st.integers(1, 50)), min_size=1, max_size=50))
def test_a_distribution_knows_count_sum_and_quantiles(values: list[tuple[float, int]]) -> None:
    distribution = Distribution()
    for value, count in values:
        distribution.record(value, count)
    ordered = sorted(value for value, count in values for _ in range(count))
    assert distribution.count == len(ordered)
    assert distribution.sum == pytest.approx(sum(value * count for value, count in values))
    (median, largest) = distribution.quantiles((0.5, 1.0), 0.0)
    for found, exact in ((median, ordered[(len(ordered) + 1) // 2 - 1]), (largest, ordered[-1])):
        assert exact * 31 / 32 - 1e-9 <= found <= exact * (1 + 1e-9)


def test_quantiles_forget_what_is_older_than_two_windows_and_counts_do_not() -> None:
    distribution = Distribution()
    distribution.record(1)
    assert distribution.quantiles((1.0,), WINDOW_S) == [1]
    distribution.record(2)
    assert distribution.quantiles((0.5,), WINDOW_S + 1) == [1]
    assert distribution.quantiles((1.0,), 2 * WINDOW_S) == [2]
    assert distribution.quantiles((1.0,), 3 * WINDOW_S) == []
    assert (distribution.count, distribution.sum) == (2, 3)
    assert distribution.at_most((1.5, 5.0)) == [1, 2]


def test_an_empty_distribution() -> None:
    assert Distribution().quantiles((0.5,), 0.0) == []
    assert Distribution().at_most((1.0,)) == [0]
