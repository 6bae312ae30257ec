"""Metrics: tables of names, from which exposition and documentation derive.

`register` adds a client's metrics to an application's registry of `prometheus_client`. A bookie and auto-recovery
export theirs over HTTP: see `bookies.web`.
"""

from __future__ import annotations

from bookies.metrics.prometheus import register

__all__ = ["register"]
