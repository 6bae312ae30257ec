"""Changes of a condition are reported when they have lasted."""

from __future__ import annotations

from bookies.metrics.health import STEADY_S, Condition, Steady


def test_a_condition_that_flaps_is_reported_as_before() -> None:
    now = 0.0
    steady = Steady(lambda: now)
    good, bad = Condition("journal", True), Condition("journal", False, "stuck")
    assert steady.settle(good).holds
    now = 1.0
    assert steady.settle(bad).holds
    now = 2.0
    assert steady.settle(good).holds
    now = 3.0
    assert steady.settle(bad).holds  # the change counts from here
    now = 3.0 + STEADY_S
    assert not steady.settle(bad).holds
    now += 0.1
    assert not steady.settle(good).holds
    now += STEADY_S
    assert steady.settle(good).holds


def test_the_first_report_is_immediate() -> None:
    assert not Steady(lambda: 0.0).settle(Condition("journal", False)).holds
