"""Counts and durations of the requests that a bookie serves, for its metrics.

A request is timed from the moment at which it is decoded to the moment at which its answer is handed to its connection.
Requests that arrive together share one reading of the clock, and adds that become durable together are one record, so
the cost is per batch and not per entry. A bookie without an HTTP server keeps none of this.

Source: operations 2.2, 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bookies.bookie.latency import Latency
from bookies.bookie.spans import Spans
from bookies.kernels import Adds
from bookies.runtime.histogram import Outcomes
from bookies.wire.messages import AddRequest, BatchReadRequest, ListEntriesRequest, ReadLacRequest, ReadRequest

Reading = ReadRequest | BatchReadRequest | ReadLacRequest | ListEntriesRequest


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
