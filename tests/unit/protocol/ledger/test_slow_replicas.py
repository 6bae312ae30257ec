"""When reads leave a slow replica, and when they return to it."""

from __future__ import annotations

from bookies.model import BookieId
from bookies.protocol.ledger.slow_replicas import (
    LOSSES_MAX,
    LOSSES_MAX_S,
    TRIAL_INTERVAL_S,
    TRIAL_S,
    TRIALS_WELL,
    SlowReplicas,
)

A, B = BookieId("a"), BookieId("b")


def slow_at(now: float) -> SlowReplicas:
    replicas = SlowReplicas()
    replicas.lost(A, LOSSES_MAX_S, now)
    return replicas


def test_lost_races_in_a_row() -> None:
    replicas = SlowReplicas()
    for _ in range(LOSSES_MAX - 1):
        replicas.lost(A, 0.01, 0.0)
    replicas.won(B)
    replicas.won(A)
    for _ in range(LOSSES_MAX - 1):
        replicas.lost(A, 0.01, 0.0)
    assert not replicas.slow
    replicas.lost(A, 0.01, 0.0)
    assert list(replicas.slow) == [A]
    assert not replicas.losses
    replicas.lost(A, 0.01, 0.0)
    assert not replicas.losses, "known to be slow"


def test_few_races_lost_by_far() -> None:
    assert list(slow_at(0.0).slow) == [A]
    replicas = SlowReplicas()
    replicas.lost(A, 0.6 * LOSSES_MAX_S, 0.0)
    assert not replicas.slow
    replicas.lost(A, 0.4 * LOSSES_MAX_S, 0.0)
    assert list(replicas.slow) == [A]


def test_trials_in_time_end_it() -> None:
    replicas, now = slow_at(0.0), 0.0
    assert not replicas.take_trial(B, 100.0)
    for number in range(TRIALS_WELL):
        assert A in replicas.slow, number
        assert not replicas.take_trial(A, now + TRIAL_INTERVAL_S - 0.01)
        now += TRIAL_INTERVAL_S
        assert replicas.take_trial(A, now)
        assert not replicas.take_trial(A, now + 1), "one at a time"
        replicas.tried(A, True, now)
    assert not replicas.slow
    replicas.tried(A, True, now)
    assert not replicas.slow


def test_a_late_or_lost_trial_begins_again() -> None:
    replicas, now = slow_at(0.0), TRIAL_INTERVAL_S
    assert replicas.take_trial(A, now)
    replicas.tried(A, True, now)
    now += TRIAL_INTERVAL_S
    assert replicas.take_trial(A, now)
    replicas.tried(A, False, now)
    now += TRIAL_INTERVAL_S
    assert replicas.take_trial(A, now)
    assert not replicas.take_trial(A, now + TRIAL_S - 1)
    assert replicas.take_trial(A, now + TRIAL_S), "the outcome of the other was not reported"
    replicas.tried(A, True, now + TRIAL_S)
    assert A in replicas.slow, "one in a row"
