"""Metrics of a bookie's server: requests, connections, memory, registration. Source: operations 2.2, 2.3, 2.6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bookies.bookie.server import BookieServer
from bookies.metrics.metric import Kind, Metric
from bookies.model import BookieMode

_SERVER = "bookkeeper_server_"
_THREAD = ("thread", "threadPool")


def _on_thread(pool: str, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Label a value with the thread that Apache's bookie would have for it. Ours has one, the event loop."""
    return lambda part: {(f"{pool}-0", pool): read(part)}


def _request(name: str, help: str, read: Callable[[Any], Any]) -> Metric:
    return Metric(f"{_SERVER}{name}", Kind.SUMMARY, "served", help, read, unit="ms")


def _status(server: BookieServer) -> int:
    mode = server.state.registered_as
    return -1 if mode is None else int(mode is BookieMode.WRITABLE)


def _queues(load: dict[str, int]) -> dict[str, int]:
    return {
        "BookieReadThreadPool-0": load["reads_waiting"],
        "BookieWriteThreadPool-0": load["records_queued"],
        "BookieHighPriorityThread-0": 0,
        "BookieLongPollThread-0": load["long_polls"],
    }


REQUESTS: tuple[Metric, ...] = (
    _request("ADD_ENTRY_REQUEST", "entries added: decoded to answered", lambda served: served.adds),
    Metric(
        f"{_SERVER}ADD_ENTRY",
        Kind.SUMMARY,
        "served",
        "the same durations as ADD_ENTRY_REQUEST: no worker's queue lies between the two",
        _on_thread("BookieWriteThreadPool", lambda served: served.adds),
        _THREAD,
        "ms",
    ),
    Metric(
        "bookies_add_request_seconds",
        Kind.HISTOGRAM,
        "served",
        "entries added: decoded to answered",
        lambda served: served.adds,
        unit="seconds",
    ),
    _request(
        "ADD_ENTRY_RECOVERY_REQUEST", "entries added by recovery and replication", lambda served: served.recovery_adds
    ),
    Metric(
        f"{_SERVER}ADD_ENTRY_IN_PROGRESS",
        Kind.GAUGE,
        "served",
        "entries accepted and not answered",
        lambda served: served.adds_received - served.adds_answered,
    ),
    Metric(
        f"{_SERVER}ADD_ENTRY_REJECTED",
        Kind.COUNTER,
        "served",
        "entries answered TOO_MANY_REQUESTS",
        lambda served: served.adds_rejected,
    ),
    _request("READ_ENTRY_REQUEST", "reads, single and in batches: decoded to answered", lambda served: served.reads),
    Metric(
        f"{_SERVER}READ_ENTRY",
        Kind.SUMMARY,
        "served",
        "the same durations as READ_ENTRY_REQUEST",
        _on_thread("BookieReadThreadPool", lambda served: served.reads),
        _THREAD,
        "ms",
    ),
    Metric(
        "bookies_read_request_seconds",
        Kind.HISTOGRAM,
        "served",
        "reads, single and in batches: decoded to answered",
        lambda served: served.reads,
        unit="seconds",
    ),
    Metric(
        f"{_SERVER}READ_ENTRY_REJECTED",
        Kind.COUNTER,
        "served",
        "reads answered TOO_MANY_REQUESTS",
        lambda served: served.reads_rejected,
    ),
    _request("READ_ENTRY_FENCE_REQUEST", "reads that fence a ledger", lambda served: served.fencing_reads),
    _request("READ_ENTRY_LONG_POLL_REQUEST", "reads that wait for a new entry", lambda served: served.long_polls),
    _request("FORCE_LEDGER_REQUEST", "forced syncs of a ledger", lambda served: served.forces),
    _request("WRITE_LAC_REQUEST", "writes of an explicit LAC", lambda served: served.lac_writes),
    _request("READ_LAC_REQUEST", "reads of the LAC", lambda served: served.lac_reads),
    _request("GET_BOOKIE_INFO_REQUEST", "queries of free space", lambda served: served.info_requests),
    _request("GET_LIST_OF_ENTRIES_OF_LEDGER_REQUEST", "lists of a ledger's entries", lambda served: served.lists),
    Metric("bookie_READ_BYTES", Kind.COUNTER, "served", "bytes of entries read", lambda s: s.read_size, unit="bytes"),
    Metric("bookie_add_entry", Kind.SUMMARY, "served", "the durations of ADD_ENTRY", lambda s: s.adds, unit="ms"),
    Metric(
        "bookie_read_entry",
        Kind.SUMMARY,
        "served",
        "the durations of READ_ENTRY",
        lambda served: {"BookieReadThreadPool-0": served.reads},
        ("thread",),
        "ms",
    ),
)


def _stages(request: str, help: str, read: Callable[[Any], Any]) -> Metric:
    return Metric(f"bookies_{request}_stage_seconds", Kind.HISTOGRAM, "latency", help, read, ("stage",), "seconds")


STAGES: tuple[Metric, ...] = (
    _stages("add", "entries added, by stage: queue, sync (journal write included), answer", lambda part: part.adds),
    _stages(
        "read",
        "reads by stage: budget, index, log, answer; memory: whole reads of entries in memory",
        lambda part: part.reads,
    ),
    Metric(
        "bookies_slow_requests_total",
        Kind.COUNTER,
        "latency",
        "requests, pauses and stalls that took longer than slow_request_ms",
        lambda part: part.slow.count,
    ),
    Metric(
        "bookies_slow_request_seconds_total",
        Kind.COUNTER,
        "latency",
        "seconds of them",
        lambda part: part.slow.seconds,
        unit="seconds",
    ),
)

SERVER: tuple[Metric, ...] = (
    Metric("bookie_SERVER_STATUS", Kind.GAUGE, "bookie", "1: writable, 0: read-only, -1: not registered", _status),
    Metric(
        f"{_SERVER}ADD_ENTRY_BLOCKED",
        Kind.GAUGE,
        "load",
        "connections from which no requests are read, because too many adds are in progress",
        lambda load: load["connections_paused"],
    ),
    Metric(
        f"{_SERVER}ADD_ENTRY_BLOCKED_WAIT",
        Kind.SUMMARY,
        "bookie",
        "time for which no requests were read",
        lambda bookie: bookie.pauses,
        unit="ms",
    ),
    Metric(
        "bookie_throttled_write",
        Kind.SUMMARY,
        "bookie",
        "time for which no requests were read; the same as ADD_ENTRY_BLOCKED_WAIT",
        lambda bookie: bookie.pauses,
        unit="ms",
    ),
    Metric(
        "bookie_throttled_write_requests",
        Kind.COUNTER,
        "bookie",
        "times that reading of requests was paused",
        lambda bookie: bookie.pauses.count,
    ),
    Metric(
        f"{_SERVER}READ_ENTRY_IN_PROGRESS",
        Kind.GAUGE,
        "load",
        "reads that wait for a disk, for memory or for a new entry",
        lambda load: load["reads_in_background"],
    ),
    Metric(
        f"{_SERVER}READ_ENTRY_BLOCKED",
        Kind.GAUGE,
        "load",
        "reads that wait until other answers are sent",
        lambda load: load["reads_waiting"],
    ),
    Metric(
        f"{_SERVER}thread_executor_queue",
        Kind.GAUGE,
        "load",
        "requests that wait, under the names of Apache's thread pools",
        _queues,
        ("thread",),
    ),
    Metric(
        "bookies_owed_entries",
        Kind.GAUGE,
        "bookie",
        "entries that the bookie has lost, for example with a disk, and has not fetched yet",
        lambda bookie: bookie.owed.left.entries,
    ),
    Metric(
        "bookies_owed_bytes",
        Kind.GAUGE,
        "bookie",
        "bytes of them, estimated",
        lambda bookie: bookie.owed.left.size,
        unit="bytes",
    ),
    Metric(
        "bookies_owed_fetched_bytes_total",
        Kind.COUNTER,
        "bookie",
        "bytes of lost entries that the bookie has fetched from others",
        lambda bookie: bookie.owed.fetched_size,
        unit="bytes",
    ),
    Metric(
        "bookies_connections",
        Kind.GAUGE,
        "load",
        "open connections of clients",
        lambda load: load["connections"],
    ),
    Metric(
        "bookies_memory_bytes",
        Kind.GAUGE,
        "load",
        "memory that a limit bounds: adds in progress, answers to reads, incomplete requests",
        lambda load: {"intake": load["adds_size"], "reads": load["reads_size"], "partial": load["partial_size"]},
        ("part",),
        "bytes",
    ),
    Metric(
        "bookies_memory_limit_bytes",
        Kind.GAUGE,
        "bookie",
        "limits of bookies_memory_bytes",
        lambda bookie: {
            "intake": bookie.config.adds_in_progress_size_max,
            "reads": bookie.config.reads_in_progress_size_max,
        },
        ("part",),
        "bytes",
    ),
    Metric(
        "bookies_peers_refused_total",
        Kind.COUNTER,
        "security",
        "connections and requests that authentication or TLS refused",
        lambda security: security.refusals,
        ("reason",),
    ),
    Metric(
        "bookies_requests_denied_total",
        Kind.COUNTER,
        "rights",
        "requests of users without the right, answered UNAUTHORIZED",
        lambda rights: rights.denials.count,
    ),
    Metric(
        "bookies_requests_over_rate_total",
        Kind.COUNTER,
        "rights",
        "requests of users that exceeded their rate, answered TOO_MANY_REQUESTS",
        lambda rights: rights.refusals,
    ),
    Metric(
        "bookies_rate_delays_total",
        Kind.COUNTER,
        "rights",
        "times that requests of a user waited for its rate",
        lambda rights: rights.delays,
    ),
    Metric(
        "bookies_certificate_ends_seconds",
        Kind.GAUGE,
        "certificate",
        "end of the validity of tls_certificate, since 1970; read from the file every ten minutes",
        lambda ends_s: ends_s,
        unit="seconds",
    ),
    Metric(
        "bookies_setting_changes_total",
        Kind.COUNTER,
        "bookie",
        "settings changed while the bookie runs",
        lambda bookie: bookie.settings.change_count,
    ),
    Metric(
        "bookies_metadata_seconds",
        Kind.HISTOGRAM,
        "latency",
        "requests to the metadata store",
        lambda latency: latency.metadata,
        ("request",),
        "seconds",
    ),
    Metric(
        "bookies_registration_sessions_lost_total",
        Kind.COUNTER,
        "load",
        "sessions with the metadata store that were lost",
        lambda load: load["sessions_lost"],
    ),
)
