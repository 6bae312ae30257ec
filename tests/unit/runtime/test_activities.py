"""Intervals of background work, and who had the processor while the event loop stood still."""

from __future__ import annotations

import asyncio
import gc

import pytest

from bookies.runtime.activities import (
    KEPT_MAX,
    LAG_INTERVAL_S,
    SHORTEST_S,
    Activities,
    LoopLag,
    ProcessorTimes,
    thread_times,
)


def test_overlaps_add_up_by_name_and_include_work_in_progress() -> None:
    now = 10.0
    activities = Activities(lambda: now)
    activities.note("flush", 1.0, 3.0)
    activities.note("flush", 4.0, 5.0)
    activities.note("short", 4.0, 4.0 + SHORTEST_S / 2)
    with activities.during("checkpoint"):
        assert activities.overlaps(2.0, 12.0) == {"flush": 2.0, "checkpoint": 2.0}
        now = 11.0
    assert activities.overlaps(2.0, 4.5) == {"flush": 1.5}
    assert activities.between(10.0, 20.0) == [("checkpoint", 10.0, 11.0)]


def test_concurrent_work_of_one_name_covers_the_time_at_most() -> None:
    activities = Activities(lambda: 0.0)
    for _ in range(KEPT_MAX + 5):
        activities.note("flush", 0.0, 10.0)
    assert activities.overlaps(1.0, 2.0) == {"flush": 1.0}
    assert len(activities.between(0.0, 1.0)) == KEPT_MAX


@pytest.mark.parametrize(
    ("delay", "ran", "waited", "process", "stages", "noted"),
    [
        (0.0, 0.05, 0.0, 0.05, None, {}),
        (0.0, LAG_INTERVAL_S, 0.0, LAG_INTERVAL_S, None, {"loop": LAG_INTERVAL_S}),
        (1.0, 0.0, 0.0, 0.0, {"stopped": 1.0, "processor": 0.0, "loop": 0.0}, {"stopped": 1.0}),
        (1.0, 0.1, 0.9, 0.1, {"stopped": 0.0, "processor": 0.9, "loop": 0.1}, {"processor": 0.9}),
        (1.0, 1.2, 0.0, 1.2, {"stopped": 0.0, "processor": 0.0, "loop": 1.0}, {"loop": 1.25}),
        (1.0, 0.0, 0.0, 0.9, {"stopped": 0.0, "processor": 0.0, "loop": 1.0}, {}),  # another thread of the process
    ],
)
def test_a_late_timer_is_examined(
    delay: float, ran: float, waited: float, process: float, stages: dict[str, float] | None, noted: dict[str, float]
) -> None:
    activities, stalls = Activities(lambda: 0.0), []
    lag = LoopLag(activities, lambda began, ended, parts: stalls.append((round(ended - began, 6), parts)))
    lag.examine(activities, 0.0, LAG_INTERVAL_S + delay, delay, ProcessorTimes(ran, waited, waited, process))
    rounded = [(seconds, {name: round(part, 6) for name, part in parts.items()}) for seconds, parts in stalls]
    assert rounded == ([] if stages is None else [(delay, stages)])
    assert {name: round(part, 6) for name, part in activities.overlaps(0.0, 2.0).items()} == noted


def test_the_delay_and_collections_of_garbage_are_measured_until_cancelled() -> None:
    async def body() -> list[object]:
        now = iter(range(1000))
        activities = Activities(lambda: float(next(now)))
        lag = LoopLag(activities)
        before = list(gc.callbacks)
        task = asyncio.ensure_future(lag.run())
        while not lag.delays.count:
            await asyncio.sleep(0.01)
            gc.collect()
        names = {name for name, _, _ in activities.between(0.0, 1000.0)}
        task.cancel()
        await asyncio.wait([task])
        assert gc.callbacks == before
        return [lag.delays.count >= 1, "interpreter" in names]

    assert asyncio.run(body()) == [True, True]


def test_thread_times_are_those_of_the_first_thread() -> None:
    before = thread_times()
    sum(range(2_000_000))
    ran_s, waited_s, all_waited_s = thread_times()
    assert ran_s >= before[0] > 0
    assert all_waited_s >= before[2] >= before[1]
    assert waited_s >= before[1]
