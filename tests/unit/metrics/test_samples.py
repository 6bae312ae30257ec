"""The ring of samples: rates, percentiles, gaps, and its end."""

from __future__ import annotations

from typing import Any

from bookies.metrics import bookie_table, process_table, recovery_table
from bookies.metrics.collections import BOOKIE_TABLES
from bookies.metrics.metric import Collection
from bookies.metrics.samples import COUNT, INTERVAL_S, SERIES, Samples
from bookies.runtime.histogram import Outcomes


class Served:
    def __init__(self) -> None:
        self.adds = Outcomes()
        self.reads = Outcomes()
        self.read_size = 0


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return round(1000 * self.now_s)


def samples_of(part: Any) -> tuple[Samples, Clock]:
    clock = Clock()
    collection = Collection((bookie_table.REQUESTS,), {"served": lambda: part}, clock.monotonic)
    return Samples(collection, clock), clock  # type: ignore[arg-type]


def values_of(samples: Samples, name: str) -> list[float | None]:
    series: Any = samples.since(0)["series"]
    return next((row["values"] for row in series if row["name"] == name), [])


def test_series_name_metrics_that_exist() -> None:
    names = {row.name for table in (*BOOKIE_TABLES, process_table.TABLE, recovery_table.TABLE) for row in table}
    assert {series.metric for series in SERIES} <= names
    assert len({series.name for series in SERIES}) == len(SERIES)


def test_counters_become_rates_and_durations_percentiles() -> None:
    served = Served()
    samples, clock = samples_of(served)
    samples.take()
    served.adds.succeeded.record(0.010, 500)
    served.read_size = 4096
    clock.now_s += INTERVAL_S
    samples.take()
    assert values_of(samples, "adds") == [None, 50.0]
    assert values_of(samples, "read_bytes") == [None, 409.6]
    first, second = values_of(samples, "add_p99")
    assert first is None
    assert second is not None
    assert 9.5 < second <= 10
    assert values_of(samples, "read_p99") == []  # a series without any value is left out
    assert samples.since(100_000)["at_ms"] == [110_000]


def test_the_ring_keeps_the_latest_samples() -> None:
    samples, clock = samples_of(Served())
    for _ in range(COUNT + 5):
        samples.take()
        clock.now_s += INTERVAL_S
    times: Any = samples.since(0)["at_ms"]
    assert len(times) == COUNT
    assert times == sorted(times)
    assert times[0] == 150_000


def test_a_part_that_does_not_exist_leaves_gaps() -> None:
    samples, _ = samples_of(None)
    samples.take()
    assert samples.since(0)["series"] == []
