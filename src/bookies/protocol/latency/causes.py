"""Decision: why requests were slow. Reports of processes in, causes out, the one with the most seconds first.

The seconds of every slow request are divided among causes. First come the times in which the process stood still, then
the stages of the request. The journal's time is blamed on background work if that ran during the slow requests and
clearly less at other times (`LIFT`), otherwise on the device. A client only knows which replica was late: its seconds
are divided as those of the bookie's slow requests at that time are, and what the bookie does not explain is the
network's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from bookies.protocol.latency.slow_requests import SlowRequest

DEVICE_RATE = 50e6  # bytes per second that a journal's device should write: more time than that is the device's fault
HALF = 0.5  # share of the time for which other work must overlap slow requests to be their cause
LIFT = 1.5  # ... and by which factor that must exceed the share of all time for which the work ran
HOT_SHARE = 0.5  # of the bytes added, from which one ledger is hot

STANDSTILLS = ("stopped", "interpreter", "processor", "cache", "intake")  # activities in which no request progresses
BACKGROUND = {"compaction": "compaction", "checkpoint": "checkpoint", "flush": "checkpoint"}
STAGE_CAUSES = {"answer": "load", "loop": "load", "budget": "readers"}  # others: a cause of the same name, or "replica"
DEVICE_STAGES = ("queue", "sync", "index", "log")

_SENTENCES = {  # cause: (what was slow, what to do)
    "stopped": (
        "the process of {subject} stood still for {longest}: it neither ran nor waited for a processor",
        "look for SIGSTOP, swapping, or a virtual machine that was suspended",
    ),
    "interpreter": (
        "the interpreter of {subject} collected garbage for up to {longest}",
        "lower the number of ledgers and requests in flight of this process",
    ),
    "processor": (
        "{subject} waited for a processor that other programs used, up to {longest} of one request",
        "move those programs elsewhere, or give the process its own processors",
    ),
    "cache": (
        "the write cache of {subject} was full: it read no requests for up to {longest}",
        "raise write_cache_size; if flushes are slow, use a faster ledger disk",
    ),
    "intake": (
        "{subject} had adds_in_progress_size_max bytes of adds in progress: it read no requests for up to {longest}",
        "raise adds_in_progress_size_max",
    ),
    "memory": (
        "appends of {subject} waited up to {longest} for memory_limit while the bookies answered in time",
        "raise memory_limit of the client",
    ),
    "metadata": (
        "the metadata store answered {subject} after up to {longest}",
        "check the metadata store's disk and load: `bk status`",
    ),
    "compaction": (
        "compaction ran on {subject} during the slow requests, the slowest of which took {longest}",
        "lower compaction_rate_size, or run `bk bookie gc --suspend` for the peak",
    ),
    "checkpoint": (
        "a checkpoint of {subject} flushed the write cache during the slow requests, up to {longest}",
        "use separate disks for journal and ledgers, or a smaller write_cache_size",
    ),
    "disk": (
        "the disk of {subject} was slow: up to {longest} for one request, without other work to explain it",
        "check the device: `bk doctor`, `bk bookie disks`, the kernel's log",
    ),
    "hot ledger": (
        "ledger {subject} had most of the bytes that its bookie received, up to {longest} for one request",
        "spread its writers over several ledgers, or stripe it over more bookies",
    ),
    "load": (
        "{subject} was busy with its own requests, up to {longest} for one of them",
        "add bookies: this one has no processor time or disk bandwidth left",
    ),
    "readers": (
        "reads of {subject} waited up to {longest} because clients did not consume the answers to earlier ones",
        "raise reads_in_progress_size_max, or find the client that does not read its answers",
    ),
    "network": (
        "the network between client and {subject} took up to {longest}: the bookie itself was quick",
        "check the path to the bookie for loss and delay",
    ),
    "unreachable": (
        "{subject} was late by up to {longest}, and does not answer now",
        "check whether its process runs: it may be stopped, or its machine may be down",
    ),
    "unknown": (
        "{subject} was slow by up to {longest} for no reason that was recorded",
        "lower slow_request_ms of the bookie, to record more requests",
    ),
}


class Report(Struct, frozen=True):
    """Record of one process.

    * `process`: id of the bookie, or a name of the client.
    * `began_ms`, `ended_ms`: the time that the report covers, wall clock.
    * `activities`: (name, began_ms, ended_ms) of background work and of standstills.
    * `bound_s`: requests that took longer were recorded.
    * `ledger_shares`: share of the bytes added by ledger.
    * `is_reachable`: the process answered. `is_client`: it is an application's.
    """

    process: str
    began_ms: float = 0.0
    ended_ms: float = 0.0
    requests: Sequence[SlowRequest] = ()
    activities: Sequence[tuple[str, float, float]] = ()
    bound_s: float = 0.0
    ledger_shares: Mapping[str, float] = field(default_factory=dict)
    is_reachable: bool = True
    is_client: bool = False

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> Report:
        """Return the report that a process sent as JSON. Raises KeyError, TypeError."""
        given = {name: value for name, value in facts.items() if name != "count"}
        return cls(**given | {"requests": [SlowRequest.of_facts(request) for request in facts["requests"]]})

    def ran_s(self, activity: str, began_ms: float, ended_ms: float) -> float:
        """Return the seconds for which this work ran between two times."""
        return (
            overlap([(began, ended) for name, began, ended in self.activities if name == activity], began_ms, ended_ms)
            / 1000
        )


class Cause(Struct):
    """A cause: the seconds of slow requests that it explains, their number, and the longest part of one of them."""

    name: str
    subject: str
    seconds: float = 0.0
    requests: int = 0
    longest_s: float = 0.0

    def sentences(self, total_s: float) -> tuple[str, str]:
        """Return the finding and the next step. `total_s`: seconds of all slow requests."""
        finding, step = _SENTENCES[self.name]
        longest = f"{self.longest_s:.2f} s"
        share = f"{100 * self.seconds / total_s:.0f} % ({self.seconds:.1f} s in {self.requests:,} slow requests)"
        return f"{share}: {finding.format(subject=self.subject, longest=longest)}", step


def overlap(intervals: Sequence[tuple[float, float]], began: float, ended: float) -> float:
    """Return how much of the time from `began` to `ended` the intervals, which may overlap, cover."""
    covered = 0.0
    for start, end in sorted(intervals):
        start, end = max(start, began), min(end, ended)
        if end > start:
            covered += end - start
            began = end
    return covered


def rank_causes(reports: Sequence[Report]) -> list[Cause]:
    """Return the causes of all slow requests, the one that explains most seconds first."""
    bookies = {report.process: _Blame(report) for report in reports}
    causes: dict[tuple[str, str], Cause] = {}
    for report in reports:
        for request in report.requests:
            parts: dict[tuple[str, str], float] = {}
            for name, subject, seconds in _parts_of(request, report, bookies):
                parts[name, subject] = parts.get((name, subject), 0.0) + seconds
            for key, seconds in parts.items():
                cause = causes.setdefault(key, Cause(*key))
                cause.seconds += seconds
                cause.requests += 1
                cause.longest_s = max(cause.longest_s, seconds)
    return sorted(causes.values(), key=lambda cause: (cause.name == "unknown", -cause.seconds))


def _parts_of(request: SlowRequest, report: Report, bookies: Mapping[str, _Blame]) -> Iterator[tuple[str, str, float]]:
    """Divide the seconds of one request: (cause, subject, seconds)."""
    own = bookies[report.process]
    if "memory" in request.stages and own.waited_for_replica(request):
        return  # The memory was held by entries that a late replica did not answer: they count themselves.
    for name, seconds in own.shares(request):
        if name != "replica":
            yield own.subject(name, request, seconds)
            continue
        late = request.facts.get("bookie", "")
        if late not in bookies:
            yield "unknown", f"bookie {late}", seconds
        elif not bookies[late].report.is_reachable:
            yield "unreachable", f"bookie {late}", seconds
        else:
            yield from bookies[late].explain(request, seconds)


class _Blame:
    """The reasons of one process's slow requests."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self._background = self._guilty()

    def _guilty(self) -> str | None:
        """Return the background work that explains slow devices: what ran mostly while requests were slow."""
        report = self.report
        at_device = [request for request in report.requests if set(request.stages) & set(DEVICE_STAGES)]
        slow_s = sum(request.seconds for request in at_device)
        window_s = max(report.ended_ms - report.began_ms, 1.0) / 1000
        best, best_lift = None, LIFT
        for activity in BACKGROUND:
            share = sum(request.meanwhile.get(activity, 0.0) for request in at_device) / max(slow_s, 1e-9)
            usual = max(report.ran_s(activity, report.began_ms, report.ended_ms) / window_s, 0.01)
            if share >= HALF and share / usual >= best_lift:
                best, best_lift = BACKGROUND[activity], share / usual
        return best

    def waited_for_replica(self, request: SlowRequest) -> bool:
        """Report whether a replica was late for most of the time in which an append waited for memory."""
        late = [(other.began_ms, float(other.ended_ms)) for other in self.report.requests if "replica" in other.stages]
        return overlap(late, request.began_ms, request.ended_ms) / 1000 >= HALF * request.seconds

    def shares(self, request: SlowRequest) -> Iterator[tuple[str, float]]:
        """Divide the seconds of a request among causes of this process; "replica" stands for another process."""
        left = request.seconds
        for activity in STANDSTILLS:
            seconds = min(left, request.meanwhile.get(activity, 0.0))
            if seconds > 0:
                left -= seconds
                yield activity, seconds
        if left <= 0:
            return
        scale = left / request.seconds
        for stage, full in request.stages.items():
            seconds = full * scale
            if stage in DEVICE_STAGES:
                yield from self._at_device(request, seconds)
            else:
                yield STAGE_CAUSES.get(stage, stage), seconds

    def _at_device(self, request: SlowRequest, seconds: float) -> Iterator[tuple[str, float]]:
        busy = request.meanwhile.get("loop", 0.0) >= HALF * request.seconds
        volume_s = seconds if busy else min(seconds, request.facts.get("group_size", 0) / DEVICE_RATE)
        if volume_s:
            yield "load", volume_s
        if seconds > volume_s:
            yield self._background or "disk", seconds - volume_s

    def subject(self, name: str, request: SlowRequest, seconds: float) -> tuple[str, str, float]:
        """Return (cause, subject, seconds)."""
        shares = self.report.ledger_shares
        if name == "load" and len(shares) > 1 and max(shares.values()) >= HOT_SHARE:
            return "hot ledger", max(shares, key=lambda ledger: shares[ledger]), seconds
        return name, self.report.process if self.report.is_client else f"bookie {self.report.process}", seconds

    def explain(self, request: SlowRequest, seconds: float) -> Iterator[tuple[str, str, float]]:
        """Divide the seconds for which a client waited for this bookie."""
        report, left = self.report, seconds
        best, best_s = None, 0.0
        for other in report.requests:
            common = overlap([(other.began_ms, other.ended_ms)], request.began_ms, request.ended_ms) / 1000
            if common > best_s:
                best, best_s = other, common
        if best is not None:
            scale = min(left, best_s) / best.seconds
            for name, part in self.shares(best):
                left -= part * scale
                yield self.subject(name, best, part * scale)
        # What a request waited for before the bookie read it from its socket has no stage.
        for activity in ("loop",) if best is not None else (*STANDSTILLS, "loop"):
            part = min(left, report.ran_s(activity, request.began_ms, request.ended_ms))
            if part > 0:
                left -= part
                yield self.subject("load" if activity == "loop" else activity, request, part)
        unrecorded = min(left, report.bound_s) if best is None else 0.0
        if left > unrecorded:
            yield "network", f"bookie {report.process}", left - unrecorded
        if unrecorded > 0:
            yield "unknown", f"bookie {report.process}", unrecorded
