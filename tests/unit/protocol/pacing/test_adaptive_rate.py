"""Copies give way to those who write and read, and take what nobody wants."""

from __future__ import annotations

import pytest

from bookies.protocol.pacing.adaptive_rate import RATE_FIRST, RATE_MIN, WINDOW_S, AdaptiveRate


def windows(pace: AdaptiveRate, count: int, start: float, *, latency_s: float | None, copies: bool) -> float:
    """So many windows of requests that take so long, with copies at the full rate or without; when they end."""
    now = start
    for _ in range(count * 10):
        if latency_s is not None:
            pace.observe_request(latency_s, now)
        if copies:
            pace.charge(int(pace.bytes_per_s * WINDOW_S / 10), now)
        now += WINDOW_S / 10
    return now


def test_without_others_the_rate_grows() -> None:
    pace = AdaptiveRate()
    assert pace.bytes_per_s == RATE_FIRST
    windows(pace, 10, 1.0, latency_s=None, copies=True)
    assert pace.bytes_per_s > 5 * RATE_FIRST


def test_a_rate_that_is_not_used_does_not_grow() -> None:
    pace = AdaptiveRate()
    for window in range(20):
        pace.charge(1000, 1.0 + window * WINDOW_S)
    assert pace.bytes_per_s == RATE_FIRST


def test_it_slows_down_while_others_are_slowed_down_and_no_longer() -> None:
    pace = AdaptiveRate()
    now = windows(pace, 20, 1.0, latency_s=0.005, copies=False)
    assert pace.usual_s == pytest.approx(0.005)
    now = windows(pace, 20, now, latency_s=0.05, copies=True)
    assert pace.bytes_per_s < RATE_FIRST / 100 or pace.bytes_per_s == RATE_MIN
    now = windows(pace, 50, now, latency_s=0.006, copies=True)
    assert pace.bytes_per_s > RATE_FIRST


def test_what_is_slow_by_chance_does_not_slow_it_down() -> None:
    """One window in ten that is three times as slow is what there was before, too."""
    pace = AdaptiveRate()
    now = 1.0
    for number in range(200):
        now = windows(pace, 1, now, latency_s=0.03 if number % 10 == 0 else 0.01, copies=number >= 100)
    fast = pace.bytes_per_s
    assert fast > 10 * RATE_FIRST
    windows(pace, 10, now, latency_s=0.03, copies=True)
    assert pace.bytes_per_s < fast / 5


def test_a_little_more_than_usual_is_allowed() -> None:
    pace = AdaptiveRate()
    now = windows(pace, 20, 1.0, latency_s=0.010, copies=False)
    windows(pace, 10, now, latency_s=0.015, copies=True)
    assert pace.bytes_per_s > RATE_FIRST


def test_how_much_more_is_allowed_can_be_chosen() -> None:
    pace = AdaptiveRate(slowdown=1.2)
    now = windows(pace, 20, 1.0, latency_s=0.010, copies=False)
    now = windows(pace, 10, now, latency_s=0.011, copies=True)
    assert pace.bytes_per_s > RATE_FIRST
    windows(pace, 10, now, latency_s=0.015, copies=True)
    assert pace.bytes_per_s < RATE_FIRST


def test_what_is_usual_follows_a_load_that_grows_by_itself() -> None:
    pace = AdaptiveRate()
    now = windows(pace, 20, 1.0, latency_s=0.005, copies=False)
    now = windows(pace, 10, now, latency_s=0.05, copies=True)
    slow = pace.bytes_per_s
    now = windows(pace, 200, now, latency_s=0.05, copies=True)
    assert pace.bytes_per_s > slow


def test_many_small_copies_are_held_back_too() -> None:
    pace = AdaptiveRate()
    assert sum(pace.start_copy(1.0) > 0 for _ in range(10)) == 10
    now = windows(pace, 20, 1.0, latency_s=0.005, copies=False)
    while now < 9.0:
        pace.observe_request(0.05, now)
        now += pace.start_copy(now)
    assert pace.bytes_per_s == RATE_MIN
    assert pace.start_copy(now) > 0.2  # of each process four a second
    assert AdaptiveRate(1e5).start_copy(1.0) == pytest.approx(0.01)  # A limit is one of bytes.


def test_a_limit_is_kept() -> None:
    pace = AdaptiveRate(5e6)
    windows(pace, 40, 1.0, latency_s=None, copies=True)
    assert pace.bytes_per_s == 5e6


def test_all_copies_of_a_process_share_the_rate() -> None:
    pace = AdaptiveRate(1e6)
    assert pace.charge(500_000, 1.0) == pytest.approx(0.5)
    assert pace.charge(500_000, 1.0) == pytest.approx(1.0)


def test_copies_that_take_long_slow_it_down_though_nobody_else_is_seen() -> None:
    pace = AdaptiveRate()
    now = 1.0
    for _ in range(100):
        pace.observe_copy(0.1, now)
        pace.charge(int(pace.bytes_per_s * WINDOW_S / 10), now)
        now += WINDOW_S / 10
    before = pace.bytes_per_s
    assert before > RATE_FIRST  # always so slow: that is what is usual
    for _ in range(100):
        pace.observe_copy(1.0, now)
        pace.charge(int(pace.bytes_per_s * WINDOW_S / 10), now)
        now += WINDOW_S / 10
    assert pace.bytes_per_s < before / 2


def test_the_simulator_hears_of_every_charge_before_it_counts() -> None:
    pace = AdaptiveRate(1e6)
    heard: list[float] = []

    def slow_down() -> None:
        heard.append(pace.bytes_per_s)
        pace.rate = 1e5

    pace.on_charge = slow_down
    assert pace.charge(500_000, 1.0) == pytest.approx(5.0)
    pace.start_copy(1.0)
    assert heard == [1e6, 1e5]
