"""Slow requests: what is kept of them, and the causes that explain them."""

from __future__ import annotations

from bookies.protocol.latency.causes import Cause, Report, rank_causes
from bookies.protocol.latency.slow_requests import SlowRequest, SlowRequests

__all__ = ["Cause", "Report", "SlowRequest", "SlowRequests", "rank_causes"]
