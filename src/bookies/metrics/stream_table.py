"""Metrics of Spark's streaming queries, for the program that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from bookies.metrics.metric import Kind, Metric
from bookies.runtime.histogram import Distribution


class StreamFigures(Struct):
    """One streaming query. `reported_s`: monotonic clock at its last report, from which the following values are.

    `behind_entries`, `behind_bytes`: what it has not read; None: unknown. `behind_s`: since when it could have been
    read. `input_rate`, `processed_rate`: rows a second, as Spark reports them.
    """

    reported_s: float = 0.0
    is_active: bool = True
    behind_entries: int | None = None
    behind_bytes: int | None = None
    behind_s: float = 0.0
    input_rate: float = 0.0
    processed_rate: float = 0.0
    rows: int = 0
    failures: int = 0
    batches: Distribution = field(default_factory=Distribution)  # seconds


class StreamsUsage(Struct, frozen=True):
    """All queries of a session by name. `now_s`: the monotonic clock."""

    queries: Mapping[str, StreamFigures]
    now_s: float


def _row(name: str, kind: Kind, help: str, read: Callable[[StreamFigures], Any], unit: str = "") -> Metric:
    def by_query(usage: StreamsUsage) -> dict[str, Any]:
        return {query: read(figures) for query, figures in usage.queries.items()}

    return Metric(f"bookies_stream_{name}", kind, "stream", help, by_query, ("query",), unit)


def _behind_s(usage: StreamsUsage) -> dict[str, float]:
    return {
        name: query.behind_s + max(0.0, usage.now_s - query.reported_s)
        if query.behind_entries and query.is_active
        else 0.0
        for name, query in usage.queries.items()
    }


TABLE: tuple[Metric, ...] = (
    _row("active", Kind.GAUGE, "1: the query runs", lambda query: int(query.is_active)),
    _row("failures_total", Kind.COUNTER, "runs of the query that ended with an error", lambda query: query.failures),
    _row("rows_total", Kind.COUNTER, "rows read, by all sources of the query", lambda query: query.rows),
    _row(
        "input_rows_per_second",
        Kind.GAUGE,
        "rows of the last batch, a second since the batch before it began",
        lambda query: query.input_rate,
    ),
    _row(
        "processed_rows_per_second",
        Kind.GAUGE,
        "rows of the last batch, a second that it took",
        lambda query: query.processed_rate,
    ),
    _row("batch_seconds", Kind.HISTOGRAM, "batches: planning to commit", lambda query: query.batches, "seconds"),
    _row(
        "lag_entries",
        Kind.GAUGE,
        "entries of logs and ledgers that the query has not read, by its last batch",
        lambda query: query.behind_entries,
    ),
    _row("lag_bytes", Kind.GAUGE, "payload of these entries, an estimate", lambda query: query.behind_bytes, "bytes"),
    Metric(
        "bookies_stream_lag_seconds",
        Kind.GAUGE,
        "stream",
        "time since the first of these entries could have been read; 0: there are none, or the query does not run",
        _behind_s,
        ("query",),
        "seconds",
    ),
)
