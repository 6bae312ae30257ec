"""Since when a query is behind, by when it saw the ends of what it reads."""

from __future__ import annotations

from bookies.spark.base.head_times import SIGHTINGS_MAX, HeadTimes


def test_the_time_begins_when_the_end_was_first_seen_past_the_position() -> None:
    times = HeadTimes()
    assert times.behind_s(5.0, {}) == 0.0
    for now_s, entry in ((10.0, 5), (11.0, 5), (20.0, 8), (30.0, 12)):
        times.note(now_s, {"orders": (1, entry)})
    assert times.behind_s(40.0, {"orders": (1, 4)}) == 30.0
    assert times.behind_s(40.0, {"orders": (1, 5)}) == 20.0
    assert times.behind_s(40.0, {"orders": (1, 9)}) == 10.0
    assert times.behind_s(40.0, {"orders": (2, 0)}) == 0.0
    times.note(50.0, {"orders": (1, 12)})
    assert times.behind_s(60.0, {"orders": (1, 12)}) == 0.0


def test_every_log_counts_also_one_that_has_not_begun() -> None:
    times = HeadTimes()
    times.note(1.0, {"orders": (1, 5)})
    times.note(2.0, {"orders": (1, 5), "returns": (0, 3)})
    assert times.behind_s(10.0, {"orders": (1, 5)}) == 8.0
    assert times.behind_s(10.0, {"orders": (1, 5), "returns": (0, 2)}) == 8.0
    assert times.behind_s(10.0, {"orders": (1, 5), "returns": (0, 3)}) == 0.0


def test_logs_that_are_deleted_or_made_again_do_not_count_for_ever() -> None:
    times = HeadTimes()
    times.note(1.0, {"orders": (1, 5), "returns": (7, 3)})
    times.note(2.0, {"returns": (0, 2)})
    assert times.behind_s(10.0, {"returns": (0, 1)}) == 9.0
    assert times.behind_s(10.0, {"returns": (0, 2)}) == 0.0


def test_of_many_sightings_some_are_kept_and_the_first_one_always() -> None:
    times = HeadTimes()
    for second in range(5 * SIGHTINGS_MAX):
        times.note(float(second), {17: (0, second)})
    end = 5.0 * SIGHTINGS_MAX
    assert times.behind_s(end, {17: (0, -1)}) == end
    assert end / 2 - 64 < times.behind_s(end, {17: (0, end // 2)}) <= end / 2
