"""What a task did, as a line of JSON in its log: for whoever asks why a query was slow, or which replica was bad.

Spark counts the rows and bytes of a Python source and nothing else. With `spark.sql.pyspark.worker.logging.enabled` it
collects what its workers log, and `spark.tvf.python_worker_logs()` shows that. Source: spark 1.2, 7.3.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookies.client.read.fetch import FetchCounts

logger = logging.getLogger("bookies.spark.tasks")
# Spark's collector takes what the loggers let through. Without it nobody listens at this level, and nothing is written.
logger.setLevel(logging.INFO)


def _fetch_counts() -> FetchCounts:
    from bookies.client.read.fetch import FetchCounts  # The planner has no use for all that comes with it.

    return FetchCounts()


@dataclass(slots=True)
class TaskCounts:
    """Of one task that reads. `size`: bytes as bookies sent them; `wait_s`: for the next batch, ahead of the rows."""

    ranges: int = 0
    gaps: int = 0
    batches: int = 0
    entries: int = 0
    size: int = 0
    wait_s: float = 0.0
    fetch: FetchCounts = field(default_factory=_fetch_counts)

    def log(self) -> None:
        """Write the line."""
        if not logger.isEnabledFor(logging.INFO) or not logger.hasHandlers():
            return
        found: dict[str, str | int] = {"event": "read", **_place()}
        found |= {"ranges": self.ranges, "gaps": self.gaps, "batches": self.batches, "entries": self.entries}
        found |= {"bytes": self.size, **asdict(self.fetch), "wait_ms": round(1000 * self.wait_s)}
        logger.info(json.dumps(found))


def _place() -> dict[str, int]:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return {}
    return {"stage": context.stageId(), "partition": context.partitionId(), "attempt": context.attemptNumber()}
