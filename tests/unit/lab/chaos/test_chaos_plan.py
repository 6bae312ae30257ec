"""The plan of faults of `bk chaos`."""

from __future__ import annotations

from bookies.lab.chaos.chaos_plan import plan_faults

WEIGHTS = {"cut": 3.0, "stall": 1.0}


def plan(seed: int, seconds: float) -> list[tuple[float, str, float]]:
    return [(at_s, fault, choices.random()) for at_s, fault, choices in plan_faults(seed, seconds, 0.5, WEIGHTS)]


def test_a_seed_determines_the_plan_and_a_longer_run_begins_with_the_shorter() -> None:
    short, long = plan(7, 30.0), plan(7, 60.0)
    assert long[: len(short)] == short
    assert plan(8, 30.0) != short
    assert 30 < len(short) < 90
    times = [at_s for at_s, _, _ in short]
    assert times == sorted(times)
    assert times[-1] < 30.0
    assert {fault for _, fault, _ in short} == set(WEIGHTS)
