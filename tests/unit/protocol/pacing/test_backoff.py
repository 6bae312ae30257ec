"""Pauses between attempts grow to a limit, and begin again after a success."""

from __future__ import annotations

from bookies.protocol.pacing import Backoff, doubled


def test_doubled_up_to_the_limit() -> None:
    assert [doubled(0.5, 3.0, failures) for failures in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert doubled(0.5, 30.0, 100_000) == 30.0


def test_pauses_grow_until_a_success() -> None:
    backoff = Backoff(0.5, 2.0)
    assert [backoff.next_s() for _ in range(4)] == [0.5, 1.0, 2.0, 2.0]
    backoff.reset()
    assert backoff.longest_s == 0.5
    assert backoff.next_s() == 0.5


def test_jitter_is_between_half_a_pause_and_all_of_it() -> None:
    asked: list[tuple[float, float]] = []

    def least(low: float, high: float) -> float:
        asked.append((low, high))
        return low

    backoff = Backoff(1.0, 2.0, least)
    assert [backoff.next_s(), backoff.next_s()] == [0.5, 1.0]
    assert asked == [(0.5, 1.0), (1.0, 2.0)]
