"""How long the work will take, from two looks at it."""

from __future__ import annotations

from bookies.admin.verbs.recovery_work import Sample, remaining_s


def test_what_is_left_takes_as_long_as_what_was_done() -> None:
    first = Sample(10.0, 100, 0, 0, 0)
    assert remaining_s(first, first) is None
    assert remaining_s(first, Sample(20.0, 100, 0, 0, 0)) is None
    assert remaining_s(first, Sample(20.0, 75, 25, 100, 100)) == 30.0
    assert remaining_s(first, Sample(20.0, 0, 100, 100, 100)) == 0.0
