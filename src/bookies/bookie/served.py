"""Counts and durations of the requests that a bookie serves, for its metrics.

A request is timed from the moment at which it is decoded to the moment at which its answer is handed to its connection.
Requests that arrive together share one reading of the clock, and adds that become durable together are one record, so
the cost is per batch and not per entry. A bookie without an HTTP server keeps none of this.

With the setting `spans`, requests that clients trace (`wire/v3_context.py`) become spans of OpenTelemetry, below the
client's, each with its stages (`latency.py`) as spans below it. A request only leaves its times behind; its spans are
made some time after it was answered, and no more than `MADE_MAX` requests' at a time, so that traced requests do not
delay others.

Source: operations 2.2, 3.2, 3.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from bookies.bookie.latency import Latency
from bookies.errors import ConfigError
from bookies.kernels import Adds
from bookies.model import BookieId
from bookies.runtime.histogram import Outcomes
from bookies.runtime.ports import Clock
from bookies.wire.messages import AddRequest, BatchReadRequest, ListEntriesRequest, ReadLacRequest, ReadRequest
from bookies.wire.v3_context import ids_of

Reading = ReadRequest | BatchReadRequest | ReadLacRequest | ListEntriesRequest
PAUSE_S = 0.1  # between requests and their spans
MADE_MAX = 50  # requests per pause; spans of further ones are not made
CLOCK_S = 0.001  # resolution of the wall clock


class Served:
    """The requests of one bookie. `clock`: seconds; `began_s`: when the requests at hand were decoded.

    `latency`: their stages.
    """

    def __init__(self, clock: Callable[[], float], latency: Latency) -> None:
        self.clock = clock
        self.latency = latency
        self.began_s = 0.0
        self.adds = Outcomes()
        self.recovery_adds = Outcomes()
        self.reads = Outcomes()
        self.fencing_reads = Outcomes()
        self.long_polls = Outcomes()
        self.forces = Outcomes()
        self.lac_writes = Outcomes()
        self.lac_reads = Outcomes()
        self.info_requests = Outcomes()
        self.lists = Outcomes()
        self.adds_received = 0  # entries
        self.adds_answered = 0
        self.adds_rejected = 0  # answered TOO_MANY_REQUESTS
        self.reads_rejected = 0
        self.read_size = 0  # bytes of entries
        self.answered_now = 0  # reads at hand that were answered from memory, and are not recorded yet
        self.spans: Spans | None = None  # of requests that clients trace

    def end_reads(self) -> None:
        """Record the reads at hand that were answered from memory."""
        now_s = self.clock()
        self.reads.succeeded.record(now_s - self.began_s, self.answered_now)
        self.latency.read_now(self.began_s, now_s, self.answered_now)
        self.answered_now = 0

    def read_now(self, size: int) -> None:
        """Count a read of `size` bytes that was answered from memory."""
        self.answered_now += 1
        self.read_size += size

    def added(self, began_s: float, part: Adds, peer: str, request: AddRequest, *, has_failed: bool) -> None:
        """Record adds of a request that are answered."""
        count, now_s, is_recovery = len(part), self.clock(), request.is_recovery
        self.adds_answered += count
        outcomes = self.recovery_adds if is_recovery else self.adds
        (outcomes.failed if has_failed else outcomes.succeeded).record(now_s - began_s, count)
        if not is_recovery and not has_failed:
            self.latency.added(began_s, now_s, count, part.records.size, part.first_ledger_id, peer)
        if request.trace and self.spans is not None:
            stages = {} if has_failed else self.latency.add_stages(began_s, now_s)
            ids = part.first_ledger_id, part.entry_ids[0]
            self.spans.keep("add", request.trace, ids, (began_s, now_s), stages, has_failed=has_failed)

    def finished(self, outcomes: Outcomes, began_s: float, *, has_failed: bool) -> None:
        """Record a request that is answered."""
        (outcomes.failed if has_failed else outcomes.succeeded).record(self.clock() - began_s)

    def read_ended(self, request: Reading, began_s: float, peer: str, *, has_failed: bool) -> None:
        """Record a reading request that is answered."""
        outcomes, now_s = self.outcomes_of(request), self.clock()
        (outcomes.failed if has_failed else outcomes.succeeded).record(now_s - began_s)
        stages: Mapping[str, float] = {}
        if outcomes is self.reads and not has_failed:
            assert isinstance(request, ReadRequest | BatchReadRequest)
            stages = self.latency.read_ended(began_s, now_s, request.ledger_id, request.entry_id, peer)
        else:
            self.latency.forget_read()
        if self.spans is not None and isinstance(request, ReadRequest) and request.trace:
            ids = request.ledger_id, request.entry_id
            self.spans.keep("read", request.trace, ids, (began_s, now_s), stages, has_failed=has_failed)

    def outcomes_of(self, request: Reading) -> Outcomes:
        """Return where a reading request belongs."""
        if isinstance(request, ReadLacRequest):
            return self.lac_reads
        if isinstance(request, ListEntriesRequest):
            return self.lists
        if request.is_fencing:
            return self.fencing_reads
        is_long_poll = isinstance(request, ReadRequest) and request.previous_lac is not None
        return self.long_polls if is_long_poll else self.reads


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
