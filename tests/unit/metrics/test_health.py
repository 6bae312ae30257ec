"""Changes of a condition are reported when they have lasted."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bookies.metrics.health import STEADY_S, Condition, Steady, _damage


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


class Scrub:
    """A scrubber that has found damage."""

    def __init__(self, count: int, ledgers: list[int]) -> None:
        self.count, self.ledgers = count, ledgers

    def gauges(self) -> dict[str, int]:
        return {"scrub_damaged_entries": self.count}

    def damaged_ledgers(self) -> list[int]:
        return self.ledgers


@pytest.mark.parametrize(
    ("count", "ledgers", "text", "step"),
    [
        (0, [], "", ""),
        (1, [2], "the scrub found 1 damaged entry of ledger 2", "`bk ledger repair 2` copies them from other replicas"),
        (9, [2, 5, 6, 7, 8], "9 damaged entries of ledgers 2, 5, 6 and 2 more", "`bk ledger repair 2 5 6` copies"),
        (3, [], "the scrub found 3 damaged entries", ""),
    ],
)
def test_damage_is_named_with_its_ledgers(count: int, ledgers: list[int], text: str, step: str) -> None:
    reason, remedy = _damage(cast(Any, Scrub(count, ledgers)))
    assert reason.endswith(text)
    assert bool(reason) is bool(count)
    assert remedy.startswith(step)
    assert bool(remedy) is bool(ledgers)


def test_a_bookie_without_a_scrub_has_no_known_damage() -> None:
    assert _damage(None) == ("", "")
