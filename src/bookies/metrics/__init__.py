"""Metrics: tables of names, from which exposition and documentation derive.

`register` adds a client's metrics to an application's registry of `prometheus_client`, and `trace` wraps a client so
that its calls are spans of OpenTelemetry. A bookie and auto-recovery export their metrics over HTTP: see `bookies.web`.
"""

from __future__ import annotations

from bookies.metrics.prometheus import register

__all__ = ["register", "trace"]


def __getattr__(name: str) -> object:
    """Import `trace`, and with it the client, when it is asked for."""
    if name == "trace":
        from bookies.metrics.tracing import trace

        return trace
    raise AttributeError(name)
