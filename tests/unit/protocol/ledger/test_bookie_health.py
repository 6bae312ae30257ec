"""Breakers open, let one probe through, close; nobody is excluded; late is relative to what bookies usually take."""

from __future__ import annotations

import math

import pytest

from bookies.model import BookieId
from bookies.protocol.ledger.bookie_health import (
    MEMORY_S,
    OBSERVED_MAX,
    OBSERVED_MIN,
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    PROBE_S,
    SLOWER_MAX,
    CircuitBreakers,
    Rank,
    ResponseTimes,
)

A, B, C = BookieId("a"), BookieId("b"), BookieId("c")


def test_a_failure_opens_and_a_success_after_the_pause_closes() -> None:
    breakers = CircuitBreakers()
    assert breakers.rank(A, 100.0) is Rank.HEALTHY
    assert not breakers.take_probe(A, 100.0)
    breakers.succeeded(A, 100.0)
    breakers.failed(A, 100.0)
    assert breakers.rank(A, 100.0) is Rank.OPEN
    breakers.succeeded(A, 101.0)
    assert breakers.rank(A, 101.0) is Rank.OPEN, "it may have been asked before the failure"
    assert not breakers.take_probe(A, 101.0)
    at = 100.0 + PAUSE_FIRST_S
    assert breakers.rank(A, at) is Rank.SUSPECT
    assert breakers.take_probe(A, at)
    assert not breakers.take_probe(A, at + 1), "one at a time"
    breakers.succeeded(A, at + 1)
    assert breakers.rank(A, at + 1) is Rank.HEALTHY
    assert breakers.rank(B, at + 1) is Rank.HEALTHY


def test_those_that_are_not_healthy() -> None:
    breakers = CircuitBreakers()
    assert breakers.ailing(0.0) == {}
    breakers.failed(A, 0.0)
    breakers.failed(B, 0.0)
    breakers.failed(C, 0.0)
    breakers.succeeded(C, PAUSE_FIRST_S)
    breakers.failed(A, PAUSE_FIRST_S)
    assert list(breakers.ailing(PAUSE_FIRST_S).items()) == [(B, Rank.SUSPECT), (A, Rank.OPEN)]


def test_a_lost_probe_is_repeated() -> None:
    breakers = CircuitBreakers()
    breakers.failed(A, 0.0)
    assert breakers.take_probe(A, PAUSE_FIRST_S)
    assert not breakers.take_probe(A, PAUSE_FIRST_S + PROBE_S - 0.1)
    assert breakers.take_probe(A, PAUSE_FIRST_S + PROBE_S)


def pause_of(breakers: CircuitBreakers, now: float) -> float:
    """Fail at `now`; how long the bookie is the last choice."""
    breakers.failed(A, now)
    step = 0.5
    while breakers.rank(A, now + step) is Rank.OPEN:
        step += 0.5
    return step


def test_pauses_double_up_to_seconds_not_weeks() -> None:
    breakers = CircuitBreakers()
    now, pauses = 0.0, []
    for _ in range(8):
        pauses.append(pause_of(breakers, now))
        now += pauses[-1]
    assert pauses == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    assert pauses[0] == PAUSE_FIRST_S
    assert pauses[-1] == PAUSE_MAX_S
    # A bookie that answers probes but not work stays distrusted, one that has worked for a while does not.
    breakers.succeeded(A, now)
    now += MEMORY_S - 1
    assert pause_of(breakers, now) == PAUSE_MAX_S
    now += PAUSE_MAX_S
    breakers.succeeded(A, now)
    assert pause_of(breakers, now + MEMORY_S) == PAUSE_FIRST_S


def test_failures_within_a_pause_count_once() -> None:
    breakers = CircuitBreakers()
    assert not breakers
    assert not breakers.knows(A)
    for now in (0.0, 0.1, 0.2, 1.9):
        breakers.failed(A, now)
    assert breakers
    assert breakers.knows(A)
    assert breakers.rank(A, PAUSE_FIRST_S) is Rank.SUSPECT


def test_the_percentile_needs_observations_and_follows_them() -> None:
    times = ResponseTimes()
    assert times.percentile_s(A, "read") is None
    assert times.late_after_s(A, "read") is None
    for _ in range(OBSERVED_MIN - 1):
        times.observe(A, "read", 0.010)
    assert times.percentile_s(A, "read") is None
    assert times.late_after_s(A, "read") is None
    times.observe(A, "read", 0.010)
    found = times.percentile_s(A, "read")
    assert found is not None
    assert 0.010 <= found <= 0.010 * math.sqrt(2)
    assert times.percentile_s(A, "batch") is None
    assert times.percentile_s(B, "read") is None


def test_one_slow_answer_in_thirty_is_beyond_the_percentile_and_one_in_ten_is_not() -> None:
    times = ResponseTimes()
    for index in range(300):
        times.observe(A, "read", 1.0 if index % 30 == 0 else 0.001)
        times.observe(B, "read", 1.0 if index % 10 == 0 else 0.001)
    assert times.percentile_s(A, "read") == pytest.approx(0.001, rel=0.5)
    assert times.percentile_s(B, "read") == pytest.approx(1.0, rel=0.5)


def test_old_answers_lose_weight() -> None:
    times = ResponseTimes()
    for _ in range(10 * OBSERVED_MAX):
        times.observe(A, "read", 0.5)
    for _ in range(8 * OBSERVED_MAX):
        times.observe(A, "read", 0.001)
    assert times.percentile_s(A, "read") == pytest.approx(0.001, rel=0.5)


def test_extreme_times_have_a_place() -> None:
    times = ResponseTimes()
    for _ in range(OBSERVED_MIN):
        times.observe(A, "read", 0.0)
        times.observe(B, "read", 1e9)
    assert times.percentile_s(A, "read") == pytest.approx(50e-6)
    slowest = times.percentile_s(B, "read")
    assert slowest is not None
    assert 500 < slowest < 1000


def test_a_bookie_that_is_always_slow_does_not_set_its_own_standard() -> None:
    times = ResponseTimes()
    for _ in range(OBSERVED_MIN):
        times.observe(A, "read", 0.001)
        times.observe(B, "read", 0.0012)
        times.observe(C, "read", 2.0)
    quick = times.late_after_s(A, "read")
    assert quick is not None
    assert times.late_after_s(C, "read") == SLOWER_MAX * quick
    assert times.late_after_s(B, "read") == times.percentile_s(B, "read")
    assert times.late_after_s(BookieId("new"), "read") == SLOWER_MAX * quick


def test_a_far_bookie_is_not_held_to_the_standard_of_a_near_one() -> None:
    far = {A: 0, B: 2, C: 2}
    times = ResponseTimes(lambda bookie: far.get(bookie, 3))
    for _ in range(OBSERVED_MIN):
        times.observe(A, "read", 0.001)
        times.observe(B, "read", 0.080)
    near, distant = times.percentile_s(A, "read"), times.percentile_s(B, "read")
    assert near is not None
    assert distant is not None
    assert times.late_after_s(A, "read") == near
    assert times.late_after_s(B, "read") == distant
    assert times.late_after_s(C, "read") == SLOWER_MAX * distant
    assert times.late_after_s(BookieId("farther"), "read") is None
    far[A] = 1
    for _ in range(OBSERVED_MIN):
        times.observe(C, "read", 0.010)
    quickest = times.percentile_s(C, "read")
    assert quickest is not None
    assert times.late_after_s(B, "read") == SLOWER_MAX * quickest
    far[A] = 0
    for _ in range(10 * OBSERVED_MIN):
        times.observe(A, "read", 1.0)
    assert times.late_after_s(A, "read") == SLOWER_MAX * quickest, "a near bookie is held to that of far ones"
