"""Spans of OpenTelemetry for the requests that clients trace, each with its stages (`latency.py`) as spans below it.

A client sends the identity of its span with such a request (`wire/v3_context.py`). The bookie's span is a child of that
one. A request only leaves its times behind; its spans are made some time after it was answered, and no more than
`MADE_MAX` requests' at a time, so that traced requests do not delay others. Source: operations 3.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from bookies.errors import ConfigError
from bookies.model import BookieId
from bookies.runtime.ports import Clock
from bookies.wire.v3_context import ids_of

PAUSE_S = 0.1  # between requests and their spans
MADE_MAX = 50  # requests per pause; spans of further ones are not made
CLOCK_S = 0.001  # resolution of the wall clock


class _Request(Struct):
    """A traced request. `stages`: seconds, in order; none if it failed."""

    kind: str
    trace: str
    ids: tuple[int, int]
    began_s: float
    ended_s: float
    stages: Mapping[str, float]
    has_failed: bool


class Spans:
    """The spans of one bookie. Times are those of the monotonic clock, in seconds.

    Raises `ConfigError` if the process has no implementation of OpenTelemetry, or one that is not set up.
    """

    def __init__(self, bookie_id: BookieId, clock: Clock) -> None:
        remedy = "install one and start the bookie with its command `opentelemetry-instrument`, or set spans = false"
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise ConfigError(f"spans = true needs an SDK of OpenTelemetry and the extra otel; {remedy}") from error
        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):
            raise ConfigError(f"spans = true, but no SDK of OpenTelemetry is set up in this process; {remedy}")
        self._api = trace
        self._tracer = provider.get_tracer("bookies")
        self._bookie_id = bookie_id
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._offset_s = 0.0  # from the monotonic to the wall clock
        self._requests: list[_Request] = []
        self._dropped = 0  # requests, since spans were made

    def keep(
        self,
        kind: str,
        trace: str,
        ids: tuple[int, int],
        times: tuple[float, float],
        stages: Mapping[str, float],
        *,
        has_failed: bool,
    ) -> None:
        """Keep an answered request until its spans are made. `kind`: add or read. `ids`: ledger and entry."""
        if len(self._requests) >= MADE_MAX:
            self._dropped += 1
            return
        if not self._requests:
            self._loop.call_later(PAUSE_S, self.make)
        self._requests.append(_Request(kind, trace, ids, *times, stages, has_failed))
        # The wall clock is cut off to its resolution, so the largest of some differences is the best one.
        offset_s = self._clock.wall_ms() / 1000 - self._clock.monotonic()
        if not self._offset_s - CLOCK_S <= offset_s <= self._offset_s:
            self._offset_s = offset_s

    def make(self) -> None:
        """Make the spans of the kept requests."""
        requests, self._requests = self._requests, []
        for request in requests:
            self._make(request)

    def _make(self, request: _Request) -> None:
        api = self._api
        trace_id, span_id = ids_of(request.trace)
        parent = api.SpanContext(trace_id, span_id, True, api.TraceFlags(api.TraceFlags.SAMPLED))
        ledger_id, entry_id = request.ids
        name = f"Bookie.{request.kind}"
        attributes: dict[str, Any] = {
            "bookies.bookie": self._bookie_id,
            "bookies.ledger": ledger_id,
            "bookies.entry": entry_id,
        }
        if self._dropped:
            attributes["bookies.dropped"], self._dropped = self._dropped, 0
        span = self._tracer.start_span(
            name,
            api.set_span_in_context(api.NonRecordingSpan(parent)),
            kind=api.SpanKind.SERVER,
            attributes=attributes,
            start_time=self._wall_ns(request.began_s),
        )
        if request.has_failed:
            span.set_status(api.StatusCode.ERROR)
        below, at = api.set_span_in_context(span), request.began_s
        for stage, seconds in request.stages.items():
            part = self._tracer.start_span(f"{name}.{stage}", below, start_time=self._wall_ns(at))
            at += seconds
            part.end(self._wall_ns(at))
        span.end(self._wall_ns(request.ended_s))

    def _wall_ns(self, moment_s: float) -> int:
        return int((moment_s + self._offset_s) * 1e9)
