"""Figures of streaming queries, from the reports that Spark makes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

pytest.importorskip("pyspark")

from bookies.metrics.prometheus import add_collector
from bookies.metrics.stream_table import TABLE
from bookies.spark.streams import StreamMetrics, lag_of


def log(seq: int, entry: int) -> str:
    return json.dumps({"logs": {"orders": [seq, entry]}, "v": 1})


def source(read: str, newest: str | None) -> Any:
    return SimpleNamespace(endOffset=read, latestOffset=newest)


@pytest.mark.parametrize(
    ("read", "newest", "lag"),
    [
        (log(1, 10), log(1, 10), 0),
        (log(1, 10), log(1, 15), 5),
        (log(1, 10), log(2, 0), 1),
        (log(1, 10), log(3, 7), 7),
        (log(2, 0), log(1, 10), 0),
        ('{"at": "latest", "v": 1}', log(1, 1), 0),
        (log(1, 10), None, None),
        ('{"topic": {"0": 5}}', '{"topic": {"0": 9}}', None),
        ("5", "7", None),
    ],
)
def test_the_lag_of_a_source(read: str, newest: str | None, lag: int | None) -> None:
    assert lag_of(source(read, newest)) == lag


class Query:
    """A query whose reports a test makes."""

    def __init__(self, metrics: StreamMetrics, name: str | None = "q") -> None:
        self.metrics = metrics
        self.facts = {"id": "id-1", "name": name}

    def start(self) -> None:
        self.metrics.onQueryStarted(SimpleNamespace(**self.facts))

    def report(self, rows: int, read: str, newest: str) -> None:
        sources = [source(read, newest)]
        progress = SimpleNamespace(
            **self.facts, numInputRows=rows, durationMs={"triggerExecution": 250}, sources=sources
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
    query.report(5, log(1, 5), log(1, 20))
    now = 160.0
    query.report(5, log(1, 10), log(1, 40))
    shown = samples(metrics)
    assert shown['bookies_stream_rows_total{query="q"}'] == "10.0"
    assert shown['bookies_stream_lag_entries{query="q"}'] == "30.0"
    assert shown['bookies_stream_lag_seconds{query="q"}'] == "60.0"
    assert shown['bookies_stream_batch_seconds_count{query="q"}'] == "2.0"
    metrics.onQueryIdle(SimpleNamespace(id="id-1"))
    assert samples(metrics)['bookies_stream_lag_seconds{query="q"}'] == "0.0"


def test_ends_are_counted_by_outcome_and_a_query_that_starts_again_continues() -> None:
    metrics = StreamMetrics(lambda: 1.0)
    query = Query(metrics, None)
    query.start()
    query.report(3, log(1, 3), log(1, 3))
    query.end("it failed")
    assert samples(metrics)['bookies_stream_active{query="id-1"}'] == "0.0"
    query.start()
    query.end()
    shown = samples(metrics)
    assert shown['bookies_stream_failures_total{query="id-1"}'] == "1.0"
    assert shown['bookies_stream_rows_total{query="id-1"}'] == "3.0"


def test_reports_of_a_query_that_was_not_seen_to_start_are_left_out() -> None:
    metrics = StreamMetrics(lambda: 1.0)
    Query(metrics).report(3, log(1, 3), log(1, 3))
    assert not metrics.usage().queries
