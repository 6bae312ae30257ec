"""Slow operations of one client: what they waited for, and which replica was late.

A client keeps none of this unless its setting `slow_request_ms` asks for it. Of each writer one batch at a time is
timed, as for its metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bookies.model import BookieId
from bookies.protocol.latency import SlowRequests
from bookies.runtime.activities import Activities
from bookies.runtime.ports import Clock


class ClientLatency:
    """Slow operations of one client. Times are those of the monotonic clock, in seconds; `bound_s`: from when one is
    slow."""

    def __init__(self, clock: Clock, bound_s: float) -> None:
        self.activities = Activities(clock.monotonic)
        self.slow = SlowRequests()
        self._bound_s = bound_s
        self._clock = clock
        self._began_ms = clock.wall_ms()

    def replica_answered(self, kind: str, began_s: float, bookie: BookieId, ledger_id: int) -> None:
        """Record the answer for which an append or a fetch waited last. `kind`: append, fetch."""
        self._observe(kind, "replica", began_s, {"ledger": ledger_id, "bookie": bookie})

    def memory_granted(self, began_s: float, ledger_id: int) -> None:
        """Record that an append waited for memory, or for earlier appends that did."""
        self._observe("append", "memory", began_s, {"ledger": ledger_id})

    def metadata_answered(self, name: str, began_s: float, ended_s: float) -> None:
        """Record a request to the metadata store."""
        self.activities.note("metadata", began_s, ended_s)
        self._observe("metadata", "metadata", began_s, {"request": name})

    def stalled(self, began_s: float, ended_s: float, stages: Mapping[str, float]) -> None:
        """Record that the event loop stood still: see `LoopLag`."""
        if ended_s - began_s >= self._bound_s:
            times = began_s, ended_s, self._clock.wall_ms()
            self.slow.observe("stall", times, stages, self.activities.overlaps, {})

    def report(self, process: str) -> dict[str, Any]:
        """Return what was recorded: see `protocol.latency.Report`."""
        now_s, now_ms = self._clock.monotonic(), self._clock.wall_ms()
        activities = self.activities.between(now_s - (now_ms - self._began_ms) / 1000, now_s)
        times = float(self._began_ms), now_s, now_ms
        return self.slow.report(process, times, self._bound_s, activities, is_client=True)

    def _observe(self, kind: str, stage: str, began_s: float, facts: Mapping[str, Any]) -> None:
        now_s = self._clock.monotonic()
        if now_s - began_s >= self._bound_s:
            times = began_s, now_s, self._clock.wall_ms()
            self.slow.observe(kind, times, {stage: now_s - began_s}, self.activities.overlaps, facts)
