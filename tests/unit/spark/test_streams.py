"""Figures of streaming queries, from the reports that Spark makes."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

pytest.importorskip("pyspark")

from bookies.metrics.prometheus import add_collector
from bookies.metrics.stream_table import TABLE
from bookies.spark.streams import StreamMetrics, lag_of


def behind(rows: int, seconds: float = 0.0) -> str:
    """The end of a log, as the source reports it."""
    return json.dumps({"logs": {"orders": [1, 9]}, "lag": {"rows": rows, "bytes": 10 * rows, "seconds": seconds}})


def source(newest: str | None) -> Any:
    return SimpleNamespace(latestOffset=newest)


@pytest.mark.parametrize("newest", [None, '{"topic": {"0": 9}}', "7", "no JSON", '{"lag": {"rows": 7}}', '{"lag": 7}'])
def test_other_sources_have_no_lag(newest: str | None) -> None:
    assert lag_of(source(newest)) is None
    assert lag_of(source(behind(7, 1.5))) == {"rows": 7.0, "bytes": 70.0, "seconds": 1.5}


class Query:
    """A query whose reports a test makes."""

    def __init__(self, metrics: StreamMetrics, name: str | None = "q") -> None:
        self.metrics = metrics
        self.facts = {"id": "id-1", "name": name}

    def start(self) -> None:
        self.metrics.onQueryStarted(SimpleNamespace(**self.facts))

    def report(self, rows: int, *newest: str | None, arriving: float | None = None) -> None:
        progress = SimpleNamespace(
            **self.facts,
            numInputRows=rows,
            inputRowsPerSecond=arriving,
            processedRowsPerSecond=4.0 * rows,
            durationMs={"triggerExecution": 250},
            sources=[source(each) for each in newest],
        )
        self.metrics.onQueryProgress(SimpleNamespace(progress=progress))

    def end(self, error: str | None = None) -> None:
        self.metrics.onQueryTerminated(SimpleNamespace(**self.facts, exception=error))


def samples(metrics: StreamMetrics) -> dict[str, str]:
    registry = CollectorRegistry()
    add_collector(TABLE, "stream", metrics.usage, registry, None)
    lines = generate_latest(registry).decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_a_query_that_falls_behind_and_catches_up() -> None:
    now = 100.0
    metrics = StreamMetrics(lambda: now)
    query = Query(metrics)
    query.start()
    query.report(5, behind(15), behind(0), None, arriving=math.nan)
    assert samples(metrics)['bookies_stream_lag_seconds{query="q"}'] == "0.0"
    query.report(5, behind(20, 58.0), behind(10, 3.0), arriving=2.5)
    now = 102.0
    shown = samples(metrics)
    assert shown['bookies_stream_rows_total{query="q"}'] == "10.0"
    assert shown['bookies_stream_lag_entries{query="q"}'] == "30.0"
    assert shown['bookies_stream_lag_bytes{query="q"}'] == "300.0"
    assert shown['bookies_stream_lag_seconds{query="q"}'] == "60.0"
    assert shown['bookies_stream_input_rows_per_second{query="q"}'] == "2.5"
    assert shown['bookies_stream_processed_rows_per_second{query="q"}'] == "20.0"
    assert shown['bookies_stream_batch_seconds_count{query="q"}'] == "2.0"
    metrics.onQueryIdle(SimpleNamespace(id="id-1"))
    shown = samples(metrics)
    assert (shown['bookies_stream_lag_entries{query="q"}'], shown['bookies_stream_lag_seconds{query="q"}']) == (
        "0.0",
        "0.0",
    )


def test_ends_are_counted_by_outcome_and_a_query_that_starts_again_continues() -> None:
    metrics = StreamMetrics(lambda: 1.0)
    query = Query(metrics, None)
    query.start()
    query.report(3, behind(0))
    query.end("it failed")
    assert samples(metrics)['bookies_stream_active{query="id-1"}'] == "0.0"
    query.start()
    query.end()
    shown = samples(metrics)
    assert shown['bookies_stream_failures_total{query="id-1"}'] == "1.0"
    assert shown['bookies_stream_rows_total{query="id-1"}'] == "3.0"


def test_reports_of_a_query_that_was_not_seen_to_start_are_left_out() -> None:
    metrics = StreamMetrics(lambda: 1.0)
    Query(metrics).report(3, behind(0))
    assert not metrics.usage().queries
