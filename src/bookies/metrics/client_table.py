"""Metrics of a client, for the application that it is a part of. Source: operations 2.5.

No series is per ledger. The only one per bookie is `bookies_client_pending_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bookies.metrics.metric import Kind, Metric

if TYPE_CHECKING:
    from bookies.client.transport.client_counts import ClientUsage


def _row(
    name: str,
    kind: Kind,
    help: str,
    read: Callable[[ClientUsage], Any],
    unit: str = "",
    labels: tuple[str, ...] = (),
) -> Metric:
    return Metric(name, kind, "client", help, read, labels, unit)


BY_NEARNESS = (
    "by nearness of the bookie (host, rack, region, preferred, unknown, other, banned) and direction (received, sent), "
    "without TLS's own"
)
_SAMPLED = "sending to confirmation, of one batch of each writer at a time"

TABLE: tuple[Metric, ...] = (
    _row("bookkeeper_client_ADD_ENTRY", Kind.SUMMARY, _SAMPLED, lambda usage: usage.counts.appends, "ms"),
    _row("bookies_client_append_seconds", Kind.HISTOGRAM, _SAMPLED, lambda usage: usage.counts.appends, "seconds"),
    _row(
        "bookies_client_entries_confirmed_total",
        Kind.COUNTER,
        "entries appended and confirmed",
        lambda usage: usage.counts.entries_confirmed,
    ),
    _row(
        "bookies_client_entries_failed_total",
        Kind.COUNTER,
        "entries whose append failed; they may or may not be stored",
        lambda usage: usage.counts.entries_failed,
    ),
    _row(
        "bookkeeper_client_NUM_ENSEMBLE_CHANGE",
        Kind.COUNTER,
        "replacements of failed bookies",
        lambda usage: usage.counts.ensemble_changes,
    ),
    _row(
        "bookies_client_replicas_sent_total",
        Kind.COUNTER,
        "entries sent, once for each replica",
        lambda usage: usage.counts.replicas_sent,
    ),
    _row("bookies_client_sent_bytes_total", Kind.COUNTER, "bytes sent", lambda usage: usage.counts.bytes_sent, "bytes"),
    _row(
        "bookies_client_traffic_bytes_total",
        Kind.COUNTER,
        f"bytes exchanged with bookies, {BY_NEARNESS}",
        lambda usage: usage.counts.bytes_by_nearness,
        "bytes",
        ("nearness", "direction"),
    ),
    _row(
        "bookies_client_replica_reads_total",
        Kind.COUNTER,
        "requests to read entries, also of recoveries and copies, by nearness of the bookie",
        lambda usage: usage.counts.reads_by_nearness,
        labels=("nearness",),
    ),
    _row(
        "bookies_client_slow_bookies",
        Kind.GAUGE,
        "bookies that reads avoid because other replicas are quicker",
        lambda usage: usage.slow_bookies,
    ),
    _row(
        "bookies_client_read_requests_total",
        Kind.COUNTER,
        "requests of readers, each for one or more entries",
        lambda usage: usage.counts.fetches.requests,
    ),
    _row(
        "bookies_client_read_failures_total",
        Kind.COUNTER,
        "requests of readers that delivered no entry",
        lambda usage: usage.counts.fetches.failures,
    ),
    _row(
        "bookkeeper_client_READ_ENTRY_DM",
        Kind.COUNTER,
        "entries that did not match their digest",
        lambda usage: usage.counts.fetches.digest_failures,
    ),
    _row(
        "bookkeeper_client_SPECULATIVE_READ_COUNT",
        Kind.COUNTER,
        "reads sent to another replica because one was late",
        lambda usage: usage.counts.fetches.hedges,
    ),
    _row(
        "bookies_client_timeouts_total",
        Kind.COUNTER,
        "times that a bookie did not answer in time or could not be reached",
        lambda usage: usage.counts.timeouts,
    ),
    _row(
        "bookies_client_recovery_stage_seconds",
        Kind.HISTOGRAM,
        "recoveries of ledgers by stage: announce, fence, read (writes run beside it), write, close",
        lambda usage: usage.counts.recoveries.by_name,
        "seconds",
        ("stage",),
    ),
    _row("bookies_client_connections", Kind.GAUGE, "connections to bookies", lambda usage: usage.connections),
    _row(
        "bookies_client_connections_opened_total",
        Kind.COUNTER,
        "connections opened or tried",
        lambda usage: usage.counts.connections_opened,
    ),
    _row(
        "bookies_client_connections_lost_total",
        Kind.COUNTER,
        "connections that failed or were lost",
        lambda usage: usage.counts.connections_lost,
    ),
    _row(
        "bookies_client_memory_bytes",
        Kind.GAUGE,
        "entries that not every replica has answered",
        lambda usage: usage.memory_used,
        "bytes",
    ),
    _row(
        "bookies_client_memory_limit_bytes",
        Kind.GAUGE,
        "the setting memory_limit",
        lambda usage: usage.memory_limit,
        "bytes",
    ),
    _row(
        "bookies_client_pending_bytes",
        Kind.GAUGE,
        "adds that a bookie has not answered",
        lambda usage: usage.pending,
        "bytes",
        ("bookie",),
    ),
    _row(
        "bookies_client_metadata_requests_total",
        Kind.COUNTER,
        "requests to the metadata store, by the part of the program that asks and by the request",
        lambda usage: usage.metadata_requests,
        labels=("asker", "request"),
    ),
)
