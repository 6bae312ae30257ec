"""Background work and standstills of a process, as intervals of the monotonic clock.

A slow request is kept with the activities that overlapped it. Recording one costs some microseconds, so only work that
takes milliseconds or more is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bookies.runtime.histogram import Distribution

KEPT_MAX = 1000
SHORTEST_S = 0.01  # activities that are kept
LAG_INTERVAL_S = 0.25  # between two measurements of the event loop's delay
LATE_S = 0.02  # a timer that fires this late is examined: who had the processor
HALF_OF_DELAY = 0.5  # ... for which no part of the process ran, from which it was stopped
BUSY_SHARE = 0.85  # of the interval, from which the event loop's thread counts as busy


class Activities:
    """Intervals by name, of work in progress and of the last `KEPT_MAX` that have ended."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self._running: dict[object, tuple[str, float]] = {}
        self._ended: deque[tuple[str, float, float]] = deque(maxlen=KEPT_MAX)

    @contextlib.contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Record the time of the block."""
        key = object()
        self._running[key] = name, self.now_s()
        try:
            yield
        finally:
            self.note(*self._running.pop(key), self.now_s())

    def note(self, name: str, began_s: float, ended_s: float) -> None:
        """Record work that has ended, unless it was short."""
        if ended_s - began_s >= SHORTEST_S:
            self._ended.append((name, began_s, ended_s))

    def between(self, began_s: float, ended_s: float) -> list[tuple[str, float, float]]:
        """Return the intervals within these times, those that still run included, in the order of their ends."""
        all_of_them = [*self._ended, *((name, start, ended_s) for name, start in self._running.values())]
        return [
            (name, max(start, began_s), min(end, ended_s))
            for name, start, end in all_of_them
            if start < ended_s and end > began_s
        ]

    def overlaps(self, began_s: float, ended_s: float) -> dict[str, float]:
        """Return by name for how many seconds activities overlapped the time between the two."""
        seconds: dict[str, float] = {}
        for name, start, end in self.between(began_s, ended_s):
            seconds[name] = min(ended_s - began_s, seconds.get(name, 0.0) + end - start)
        return seconds


def thread_times() -> tuple[float, float, float]:
    """Return seconds: for which the process's first thread has run, for which it and for which all threads together
    have waited for a processor. All are 0 where the system does not count them."""
    try:
        ran_s, waited_s = _times_of("/proc/self")
        threads = os.listdir("/proc/self/task")
    except (OSError, ValueError):
        return 0.0, 0.0, 0.0
    all_waited_s = 0.0
    for thread in threads:
        with contextlib.suppress(OSError, ValueError):  # it has ended
            all_waited_s += _times_of(f"/proc/self/task/{thread}")[1]
    return ran_s, waited_s, all_waited_s


def _times_of(directory: str) -> tuple[float, float]:
    with open(f"{directory}/schedstat", "rb") as file:
        ran, waited, _ = file.read().split()
    return int(ran) / 1e9, int(waited) / 1e9


class ProcessorTimes(NamedTuple):
    """Seconds of the first thread, of the waits of all, as `thread_times` returns them, and of the process."""

    ran_s: float
    waited_s: float
    all_waited_s: float
    process_s: float


class LoopLag:
    """Delay of the event loop: how much later than requested a timer fires. `run` it.

    With `activities` it also finds out who had the processor: `processor`: other programs; `loop`: the loop itself, or
    other threads of the process; `stopped`: no part of the process ran. And it records collections of garbage as
    `interpreter`. `on_stall`: called with beginning, end and the seconds by these names if a timer was late.
    """

    def __init__(
        self,
        activities: Activities | None = None,
        on_stall: Callable[[float, float, dict[str, float]], None] | None = None,
        times: Callable[[], tuple[float, float, float]] = thread_times,
        process_s: Callable[[], float] = time.process_time,
    ) -> None:
        self.delays = Distribution()
        self._activities = activities
        self._on_stall = on_stall
        self._times = times
        self._process_s = process_s
        self._collection_began_s = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        if self._activities is not None:
            gc.callbacks.append(self._collected)
        try:
            while True:
                began_s, before = loop.time(), ProcessorTimes(*self._times(), self._process_s())
                await asyncio.sleep(LAG_INTERVAL_S)
                ended_s = loop.time()
                delay_s = max(0.0, ended_s - began_s - LAG_INTERVAL_S)
                self.delays.record(delay_s)
                if self._activities is not None:
                    after = (*self._times(), self._process_s())
                    meanwhile = ProcessorTimes(*(now - then for now, then in zip(after, before, strict=True)))
                    self.examine(self._activities, began_s, ended_s, delay_s, meanwhile)
        finally:
            if self._activities is not None:
                gc.callbacks.remove(self._collected)

    def examine(
        self, activities: Activities, began_s: float, ended_s: float, delay_s: float, times: ProcessorTimes
    ) -> None:
        """Record who had the processor between two times, by the `times` that passed meanwhile.

        A request passes from thread to thread, so the waits of all threads count for it.
        """
        activities.note("processor", ended_s - min(times.all_waited_s, ended_s - began_s), ended_s)
        if times.ran_s >= BUSY_SHARE * (ended_s - began_s):
            activities.note("loop", began_s, ended_s)
        if delay_s < LATE_S:
            return
        waited_s = min(delay_s, times.waited_s)
        own_s = min(delay_s - waited_s, max(times.ran_s, times.process_s))
        stopped_s = delay_s - waited_s - own_s
        if stopped_s < HALF_OF_DELAY * delay_s:
            own_s, stopped_s = own_s + stopped_s, 0.0  # a read of a file by the loop's thread, or the like
        activities.note("stopped", ended_s - stopped_s, ended_s)
        if self._on_stall is not None:
            self._on_stall(ended_s - delay_s, ended_s, {"processor": waited_s, "loop": own_s, "stopped": stopped_s})

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        """Learn that a collection of garbage begins or ends."""
        assert self._activities is not None
        now_s = self._activities.now_s()
        if phase == "start":
            self._collection_began_s = now_s
        else:
            self._activities.note("interpreter", self._collection_began_s, now_s)
