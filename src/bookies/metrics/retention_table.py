"""Metrics of the retention of logs, in the process that applies it: auto-recovery, or a bookie."""

from __future__ import annotations

from bookies.metrics.metric import Kind, Metric

TABLE: tuple[Metric, ...] = (
    Metric(
        "bookies_log_retention_ledgers_total",
        Kind.COUNTER,
        "retention",
        "ledgers that this process removed from logs because of their limits",
        lambda retention: retention.removed.ledgers,
    ),
    Metric(
        "bookies_log_retention_entries_total",
        Kind.COUNTER,
        "retention",
        "entries of these ledgers",
        lambda retention: retention.removed.entries,
    ),
    Metric(
        "bookies_log_retention_bytes_total",
        Kind.COUNTER,
        "retention",
        "bytes of payload in these ledgers",
        lambda retention: retention.removed.size,
        unit="bytes",
    ),
)
