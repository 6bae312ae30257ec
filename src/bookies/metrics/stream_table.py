"""Metrics of Spark's streaming queries, for the program that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from bookies.metrics.metric import Kind, Metric
from bookies.runtime.histogram import Distribution


class StreamFigures(Struct):
    """One streaming query. `caught_up_s`: monotonic clock when it had last read everything, or when it began.

    `behind_entries`: entries that it has not read, by its last report; None: unknown.
    """

    caught_up_s: float
    is_active: bool = True
    is_behind: bool = False
    behind_entries: int | None = None
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
        name: max(0.0, usage.now_s - query.caught_up_s) if query.is_behind and query.is_active else 0.0
        for name, query in usage.queries.items()
    }


TABLE: tuple[Metric, ...] = (
    _row("active", Kind.GAUGE, "1: the query runs", lambda query: int(query.is_active)),
    _row("failures_total", Kind.COUNTER, "runs of the query that ended with an error", lambda query: query.failures),
    _row("rows_total", Kind.COUNTER, "rows read, by all sources of the query", lambda query: query.rows),
    _row("batch_seconds", Kind.HISTOGRAM, "batches: planning to commit", lambda query: query.batches, "seconds"),
    _row(
        "lag_entries",
        Kind.GAUGE,
        "entries of logs and ledgers that the query has not read, by its last batch; of a log that is one or more "
        "ledgers ahead only those of its newest ledger",
        lambda query: query.behind_entries,
    ),
    Metric(
        "bookies_stream_lag_seconds",
        Kind.GAUGE,
        "stream",
        "time since the query had read everything; 0: it has, or does not run",
        _behind_s,
        ("query",),
        "seconds",
    ),
)
