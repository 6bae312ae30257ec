"""Rates of a user: what waits, what is too much, and how rates change."""

from __future__ import annotations

from bookies.protocol.rights import Allowance


def test_without_rates_nothing_waits() -> None:
    allowance = Allowance()
    allowance.charge(1 << 40, 1 << 40, 0.0)
    assert allowance.wait_s(0.0) == 0
    assert allowance.holds(1 << 40, 1 << 40)


def test_a_second_may_be_made_up_for_and_then_both_rates_count() -> None:
    allowance = Allowance(1000, 10)
    allowance.charge(1000, 1, 100.0)
    assert allowance.wait_s(100.0) == 0
    allowance.charge(500, 1, 100.0)
    assert allowance.wait_s(100.0) == 0.5
    assert allowance.wait_s(100.5) == 0
    allowance.charge(0, 20, 100.5)
    assert allowance.wait_s(100.5) == 1
    assert allowance.holds(1000, 10)
    assert not allowance.holds(1001, 10)
    assert not allowance.holds(1000, 11)


def test_rates_change() -> None:
    allowance = Allowance(1000, None)
    allowance.charge(3000, 1, 100.0)
    allowance.renew(None, None)
    assert allowance.wait_s(100.0) == 0
    allowance.renew(1000, None)
    assert allowance.wait_s(100.0) == 2
