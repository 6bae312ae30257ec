"""Ring of samples of a process: its load and durations of the last hours, for plots that need no other server.

The ring holds `COUNT` samples, `INTERVAL_S` apart, of each series of `SERIES` that the process has: 8 bytes each, so
three hours of all series take less than 150 KB.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping
from math import nan
from typing import Any

from msgspec import Struct

from bookies.metrics.metric import Collection
from bookies.runtime.histogram import Distribution, Outcomes
from bookies.runtime.ports import Clock

INTERVAL_S = 10.0
COUNT = 1080  # three hours


class Series(Struct, frozen=True):
    """One series. `metric`: of the tables of metrics. `unit`: of the samples. `form`: returns a number of its value.

    `is_rate`: the number counts since the start, and the samples are its growth per second.
    """

    name: str
    title: str
    unit: str
    metric: str
    form: Callable[[Any, float], float]
    is_rate: bool = False


def _distribution(value: Any) -> Distribution:
    distribution: Distribution = value.succeeded if isinstance(value, Outcomes) else value
    return distribution


def _count(value: Any, now_s: float) -> float:
    return float(_distribution(value).count)


def _p99_ms(value: Any, now_s: float) -> float:
    """Return the 99th percentile of at least the last minute in milliseconds; not a number: no values."""
    shares = _distribution(value).quantiles([0.99], now_s)
    return 1000 * shares[0] if shares else nan


def _number(value: Any, now_s: float) -> float:
    return float(value)


def _worst(value: Any, now_s: float) -> float:
    """Return the largest value of several directories or journals."""
    return max(map(float, value.values()), default=nan)


def _worst_p99_ms(value: Any, now_s: float) -> float:
    return max((_p99_ms(item, now_s) for item in value.values()), default=nan)


SERIES = (
    Series("adds", "Entries added", "1/s", "bookkeeper_server_ADD_ENTRY_REQUEST", _count, is_rate=True),
    Series("add_p99", "Add, 99th percentile", "ms", "bookkeeper_server_ADD_ENTRY_REQUEST", _p99_ms),
    Series("reads", "Reads", "1/s", "bookkeeper_server_READ_ENTRY_REQUEST", _count, is_rate=True),
    Series("read_p99", "Read, 99th percentile", "ms", "bookkeeper_server_READ_ENTRY_REQUEST", _p99_ms),
    Series("added_bytes", "Bytes added", "B/s", "bookie_WRITE_BYTES", _number, is_rate=True),
    Series("read_bytes", "Bytes read", "B/s", "bookie_READ_BYTES", _number, is_rate=True),
    Series("sync_p99", "Journal sync, 99th percentile", "ms", "bookie_journal_JOURNAL_SYNC", _worst_p99_ms),
    Series("disk", "Fullest disk", "share", "bookies_disk_used_ratio", _worst),
    Series("marked", "Ledgers that lack replicas", "", "bookies_underreplicated_ledgers", _number),
    Series("loop_p99", "Event loop delay, 99th percentile", "ms", "bookies_loop_lag_seconds", _p99_ms),
    Series("cpu", "Processor time", "share", "process_cpu_seconds_total", _number, is_rate=True),
    Series("memory", "Resident memory", "B", "process_resident_memory_bytes", _number),
)


class Samples:
    """The samples of one process. `run` takes them until it is cancelled."""

    def __init__(self, metrics: Collection, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._taken_ms = array("q", [0]) * COUNT  # wall clock; a ring as each series
        self._values = {series.name: array("d", [nan]) * COUNT for series in SERIES}
        self._before: dict[str, float] = {}
        self._before_s = 0.0
        self._taken = 0  # samples since the start

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            self.take()
            await asyncio.sleep(INTERVAL_S)

    def take(self) -> None:
        """Take one sample now."""
        now_s, at = self._clock.monotonic(), self._taken % COUNT
        values = self._metrics.values([series.metric for series in SERIES])
        passed_s = now_s - self._before_s if self._taken else 0.0
        self._taken_ms[at] = self._clock.wall_ms()
        for series in SERIES:
            value = values.get(series.metric)
            number = nan if value is None else series.form(value, now_s)
            if series.is_rate:
                before, self._before[series.name] = self._before.get(series.name, nan), number
                number = (number - before) / passed_s if passed_s > 0 else nan
            self._values[series.name][at] = number
        self._before_s = now_s
        self._taken += 1

    def since(self, wall_ms: int) -> Mapping[str, object]:
        """Return the samples after this time, the oldest first; None where a series had no value."""
        places = [place % COUNT for place in range(max(0, self._taken - COUNT), self._taken)]
        places = [place for place in places if self._taken_ms[place] > wall_ms]
        series = []
        for row in SERIES:
            numbers = [self._values[row.name][place] for place in places]
            values = [None if number != number else round(number, 4) for number in numbers]
            if any(value is not None for value in values):
                series.append({"name": row.name, "title": row.title, "unit": row.unit, "values": values})
        return {
            "interval_s": INTERVAL_S,
            "kept_s": INTERVAL_S * COUNT,
            "at_ms": [self._taken_ms[place] for place in places],
            "series": series,
        }
