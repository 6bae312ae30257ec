"""Metrics of every process: processor, memory, event loop, metadata store.

The names of the first group are those that every Prometheus client writes for its process. Source: operations 2.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bookies.metrics.metric import Kind, Metric


def _usage(name: str, kind: Kind, help: str, field: str, unit: str = "") -> Metric:
    return Metric(name, kind, "process", help, lambda usage: getattr(usage, field), unit=unit)


def _requests(operations: Any) -> Mapping[tuple[str, str], int]:
    return dict(operations.counts)


TABLE: tuple[Metric, ...] = (
    _usage("process_cpu_seconds_total", Kind.COUNTER, "processor time of the process", "cpu_s", "seconds"),
    _usage("process_start_time_seconds", Kind.GAUGE, "start of the process, since 1970", "start_s", "seconds"),
    _usage("process_resident_memory_bytes", Kind.GAUGE, "resident memory", "resident_size", "bytes"),
    _usage("process_virtual_memory_bytes", Kind.GAUGE, "virtual memory", "virtual_size", "bytes"),
    _usage("process_open_fds", Kind.GAUGE, "open file descriptors", "open_files"),
    _usage("process_max_fds", Kind.GAUGE, "limit of open file descriptors", "open_files_max"),
    _usage("bookies_threads", Kind.GAUGE, "threads", "threads"),
    Metric(
        "bookies_gc_collections_total",
        Kind.COUNTER,
        "process",
        "collections of garbage in the interpreter",
        lambda usage: {str(generation): count for generation, count in enumerate(usage.collections)},
        ("generation",),
    ),
    Metric(
        "bookies_loop_lag_seconds",
        Kind.HISTOGRAM,
        "loop",
        "delay of timers of the event loop, measured four times a second",
        lambda lag: lag.delays,
        unit="seconds",
    ),
    Metric(
        "bookies_build_info",
        Kind.GAUGE,
        "build",
        "always 1; the labels describe the program",
        lambda labels: {labels: 1},
        ("version", "python", "metadata"),
    ),
    Metric(
        "bookies_metadata_requests_total",
        Kind.COUNTER,
        "metadata",
        "requests to the metadata store, by the part of the program that asks and by the request",
        _requests,
        ("asker", "request"),
    ),
    Metric(
        "bookies_ready",
        Kind.GAUGE,
        "health",
        "1: the condition of /healthz holds; started, running, journal and directories decide /readyz",
        lambda conditions: {condition.name: int(condition.holds) for condition in conditions},
        ("condition",),
    ),
)
