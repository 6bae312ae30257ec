"""Counters of tasks: why a query was slow, which replica was bad.

A task that reads rows logs its counters as one line of JSON. Those of the tasks of a job are added up for its report.

Spark counts only the rows and bytes of a Python source. With `spark.sql.pyspark.worker.logging.enabled` it collects
its workers' logs, and `spark.tvf.python_worker_logs()` shows them. Source: spark 1.2, 7.3.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field, to_builtins

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.client.transport.client_counts import FetchCounts

logger = logging.getLogger("bookies.spark.tasks")
# Spark's collector receives what the loggers let through. Without the collector no line is written.
logger.setLevel(logging.INFO)


def _fetch_counts() -> FetchCounts:
    from bookies.client.transport.client_counts import FetchCounts  # The planner does not need its imports.

    return FetchCounts()


class TaskCounts(Struct):
    """Counters of one task that reads. `size`: bytes as bookies sent them; `wait_s`: waiting for the next batch.

    `malformed`: payloads and records that did not decode.
    """

    ranges: int = 0
    gaps: int = 0
    batches: int = 0
    entries: int = 0
    size: int = 0
    wait_s: float = 0.0
    malformed: int = 0
    fetch: FetchCounts = field(default_factory=_fetch_counts)

    def log(self) -> None:
        """Log the counters as one line."""
        if not logger.isEnabledFor(logging.INFO) or not logger.hasHandlers():
            return
        counts: dict[str, str | int] = {"event": "read", **_place()}
        counts |= {"ranges": self.ranges, "gaps": self.gaps, "batches": self.batches, "entries": self.entries}
        counts |= {"bytes": self.size, **to_builtins(self.fetch), "wait_ms": round(1000 * self.wait_s)}
        counts["malformed"] = self.malformed
        logger.info(json.dumps(counts))


def _place() -> dict[str, int]:
    if (pyspark := sys.modules.get("pyspark")) is None or (context := pyspark.TaskContext.get()) is None:
        return {}  # `bookies.dataset` reads without Spark.
    return {"stage": context.stageId(), "partition": context.partitionId(), "attempt": context.attemptNumber()}


class Sums:
    """Addition of counters by name: the parameter of an accumulator of Spark."""

    def zero(self, value: Mapping[str, int]) -> dict[str, int]:
        return {}

    def addInPlace(self, one: dict[str, int], other: Mapping[str, int]) -> dict[str, int]:
        for name, value in other.items():
            one[name] = one.get(name, 0) + value
        return one


def work_of(client: Client) -> dict[str, int]:
    """Return what a task's own client has done. Bytes are those of the connections with bookies."""
    counts = client.usage().counts
    both = {"received": 0, "sent": 0}
    for (_, direction), size in counts.bytes_by_nearness.items():
        both[direction] += size
    return {
        "tasks": 1,
        "read_requests": sum(counts.reads_by_nearness.values()),
        "bytes_received": both["received"],
        "bytes_sent": both["sent"],
        "replicas_sent": counts.replicas_sent,
        "read_failures": counts.fetches.failures,
        "digest_failures": counts.fetches.digest_failures,
        "timeouts": counts.timeouts,
        "ensemble_changes": counts.ensemble_changes,
    }
