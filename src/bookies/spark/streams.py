"""Figures of streaming queries for Prometheus, from the reports that Spark makes after each batch."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from bookies.metrics.stream_table import StreamFigures, StreamsUsage

NOTHING = {"rows": 0.0, "bytes": 0.0, "seconds": 0.0}
QUERIES_MAX = 100  # that are remembered; of more, those that ended first are forgotten


class StreamMetrics(StreamingQueryListener):
    """Listener that keeps the figures of each query of a session. A query without a name counts under its id."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._queries: dict[str, StreamFigures] = {}
        self._names: dict[str, str] = {}  # by id

    def usage(self) -> StreamsUsage:
        """Return the figures of all queries."""
        return StreamsUsage(dict(self._queries), self._now_s())

    def onQueryStarted(self, event: Any) -> None:
        name = self._names[str(event.id)] = event.name or str(event.id)
        before = self._queries.pop(name, None)
        self._queries[name] = figures = before or StreamFigures()
        figures.is_active = True
        ended = [other for other, query in self._queries.items() if not query.is_active]
        for other in ended[: max(0, len(self._queries) - QUERIES_MAX)]:
            del self._queries[other]

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        figures = self._queries.get(progress.name or str(progress.id))
        if figures is None:
            return
        figures.rows += max(0, progress.numInputRows)
        figures.input_rate, figures.processed_rate = (
            _rate(progress.inputRowsPerSecond),
            _rate(progress.processedRowsPerSecond),
        )
        figures.batches.record(progress.durationMs.get("triggerExecution", 0) / 1000)
        self._note_lag(figures, [lag for source in progress.sources if (lag := lag_of(source)) is not None])

    def onQueryIdle(self, event: Any) -> None:
        """A query that has nothing to read reports that instead of progress."""
        if (figures := self._queries.get(self._names.get(str(event.id), ""))) is not None:
            self._note_lag(figures, [NOTHING])

    def onQueryTerminated(self, event: Any) -> None:
        if (figures := self._queries.get(self._names.pop(str(event.id), ""))) is not None:
            figures.is_active = False
            figures.failures += event.exception is not None

    def _note_lag(self, figures: StreamFigures, lags: Sequence[Mapping[str, float]]) -> None:
        """Note what all sources together have left. No lags: none of them is of logs or ledgers."""
        figures.reported_s = self._now_s()
        figures.behind_entries = sum(int(lag["rows"]) for lag in lags) if lags else None
        figures.behind_bytes = sum(int(lag["bytes"]) for lag in lags) if lags else None
        figures.behind_s = max((float(lag["seconds"]) for lag in lags), default=0.0)


def _rate(rows_per_s: float | None) -> float:
    """Return a rate as Spark reports it; 0.0 if it could not be computed."""
    return float(rows_per_s) if rows_per_s is not None and math.isfinite(rows_per_s) else 0.0


def lag_of(source: Any) -> Mapping[str, float] | None:
    """Return `rows`, `bytes` and `seconds` of a source's progress that are left; None: of another kind of source."""
    try:
        lag = json.loads(source.latestOffset)["lag"]
        return {name: float(lag[name]) for name in NOTHING}
    except (KeyError, ValueError, TypeError):
        return None
