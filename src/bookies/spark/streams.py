"""Figures of streaming queries for Prometheus, from the reports that Spark makes after each batch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from bookies.errors import InvalidArgument
from bookies.metrics.stream_table import StreamFigures, StreamsUsage
from bookies.spark.base import offsets
from bookies.spark.base.offsets import At, Key

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
        self._queries[name] = figures = before or StreamFigures(self._now_s())
        figures.is_active, figures.caught_up_s = True, self._now_s()
        ended = [other for other, query in self._queries.items() if not query.is_active]
        for other in ended[: max(0, len(self._queries) - QUERIES_MAX)]:
            del self._queries[other]

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        figures = self._queries.get(progress.name or str(progress.id))
        if figures is None:
            return
        figures.rows += max(0, progress.numInputRows)
        figures.batches.record(progress.durationMs.get("triggerExecution", 0) / 1000)
        self._note_lag(figures, [lag for source in progress.sources if (lag := lag_of(source)) is not None])

    def onQueryIdle(self, event: Any) -> None:
        """A query that has nothing to read reports that instead of progress."""
        if (figures := self._queries.get(self._names.get(str(event.id), ""))) is not None:
            self._note_lag(figures, [0])

    def onQueryTerminated(self, event: Any) -> None:
        if (figures := self._queries.get(self._names.pop(str(event.id), ""))) is not None:
            figures.is_active = False
            figures.failures += event.exception is not None

    def _note_lag(self, figures: StreamFigures, lags: list[int]) -> None:
        figures.behind_entries = sum(lags) if lags else None
        figures.is_behind = any(lags)
        if not figures.is_behind:
            figures.caught_up_s = self._now_s()


def lag_of(source: Any) -> int | None:
    """Return how many entries a source has left after a batch, at least; None: it is no source of logs or ledgers.

    A log that is one or more ledgers ahead counts with the entries of its newest ledger, and with 1 if that is empty.
    """
    try:
        read, newest = (_positions(text) for text in (source.endOffset, source.latestOffset))
    except (InvalidArgument, ValueError, TypeError, AttributeError):
        return None
    return sum(_left(at, newest.get(key, at)) for key, at in read.items())


def _positions(text: str) -> Mapping[Key, At]:
    return offsets.parse(json.loads(text)).positions


def _left(at: At, newest: At) -> int:
    if newest <= at:
        return 0
    return newest[1] - at[1] if newest[0] == at[0] else max(1, newest[1])
