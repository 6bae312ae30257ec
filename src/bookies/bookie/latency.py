"""Stages of the adds and reads of a bookie, and its slow requests with what else it did meanwhile.

The stages share their borders, so they sum up to the duration of the request:

    add    queue    decoded to the start of its journal group: write cache, the group before it
           sync     write and sync of the group
           answer   durable to answered
    read   budget   decoded to the look-up: wait for memory for the answer
           index    look-up in the index
           log      read of the entry log
           answer   read to answered
           memory   the whole read, if the entry was in the memory of bookie or system

An add costs some additions for each batch of entries; the rest is done once per journal group, or for slow requests.
A bookie keeps none of this unless its settings ask for it: `http_port`, `slow_request_ms`, `spans`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from bookies.config import BookieConfig
from bookies.protocol.latency import SlowRequests
from bookies.runtime.activities import Activities, LoopLag
from bookies.runtime.events import Events
from bookies.runtime.histogram import Distribution
from bookies.runtime.ports import Clock

SLOW_MS = 1000  # bound of a bookie that has an HTTP server and no bound of its own
ADD_STAGES = ("queue", "sync", "answer")
READ_STAGES = ("budget", "index", "log", "answer", "memory")
SAMPLED = 8  # one in this many batches of adds counts for the shares of ledgers
LEDGERS_MAX = 1000  # ledgers whose shares are known
LEDGERS_SHOWN = 5


def is_timed(config: BookieConfig) -> bool:
    """Report whether the bookie times its requests."""
    return config.http_port >= 0 or config.slow_request_ms > 0 or config.spans


class _Group(Struct):
    """A journal group: when it began and was durable, its bytes.

    `count`: entries of it that are answered; `queue_s`, `answer_s`: sums of their seconds in two stages.
    """

    began_s: float
    durable_s: float
    size: int
    count: int = 0
    queue_s: float = 0.0
    answer_s: float = 0.0

    def stages(self, decoded_s: float, now_s: float) -> tuple[float, float, float]:
        """Return the seconds of queue, sync and answer of one of its adds. All three are 0 or more."""
        began_s = min(max(self.began_s, decoded_s), now_s)
        durable_s = min(max(self.durable_s, began_s), now_s)
        return began_s - decoded_s, durable_s - began_s, now_s - durable_s


class Latency:
    """The stages of one bookie's requests. Times are those of the monotonic clock, in seconds. `lag`: to be run."""

    def __init__(self, config: BookieConfig, clock: Clock, activities: Activities, events: Events) -> None:
        self.bound_s = (config.slow_request_ms or SLOW_MS) / 1000
        self.activities = activities
        self.lag = LoopLag(activities, self.stalled)
        self.slow = SlowRequests()
        self.began_ms = clock.wall_ms()
        self._adds = {stage: Distribution() for stage in ADD_STAGES}
        self._reads = {stage: Distribution() for stage in READ_STAGES}
        self.metadata: dict[str, Distribution] = {}  # seconds of requests to the metadata store, by name
        self._clock = clock
        self._events = events
        self._group = _Group(0.0, 0.0, 0)  # whose adds are being answered
        self._read: tuple[float, float, float] | None = None  # look-up began, log read began and ended: the last read
        self._batches = 0
        self._ledger_sizes: Counter[int] = Counter()  # bytes of sampled adds

    # -- adds ----------------------------------------------------------------------------------------------------
    def group_durable(self, began_s: float, durable_s: float, size: int) -> None:
        """Learn the times of the journal group whose adds are answered next."""
        self._end_group()
        self._group = _Group(began_s, durable_s, size)

    def added(self, decoded_s: float, now_s: float, count: int, size: int, ledger_id: int, peer: str) -> None:
        """Record a batch of `count` entries, which is answered."""
        group = self._group
        group.count += count
        group.queue_s += (group.began_s - decoded_s) * count
        group.answer_s += (now_s - group.durable_s) * count
        self._batches += 1
        if not self._batches % SAMPLED:
            self._ledger_sizes[ledger_id] += size
            if len(self._ledger_sizes) > LEDGERS_MAX:
                self._ledger_sizes = Counter(dict(self._ledger_sizes.most_common(LEDGERS_MAX // 2)))
        if now_s - decoded_s >= self.bound_s:
            stages = self.add_stages(decoded_s, now_s)
            facts = {"ledger": ledger_id, "entries": count, "peer": peer, "group_size": group.size}
            self._keep("add", decoded_s, now_s, stages, facts)

    def add_stages(self, decoded_s: float, now_s: float) -> dict[str, float]:
        """Return the seconds by stage of an add that is answered now."""
        return dict(zip(ADD_STAGES, self._group.stages(decoded_s, now_s), strict=True))

    def _end_group(self) -> None:
        """Record the stages of the group's adds: their means, which count as often as the group has entries."""
        group = self._group
        if (count := group.count) == 0:
            return
        means = group.queue_s / count, group.durable_s - group.began_s, group.answer_s / count
        for distribution, seconds in zip(self._adds.values(), means, strict=True):
            distribution.record(seconds, count)
        group.count, group.queue_s, group.answer_s = 0, 0.0, 0.0

    # -- reads ---------------------------------------------------------------------------------------------------
    def log_read(self, began_s: float, found_s: float, ended_s: float) -> None:
        """Learn the times of a read from index and entry log. Its task continues at once, and ends it."""
        self._read = began_s, found_s, ended_s

    def read_ended(
        self, decoded_s: float, now_s: float, ledger_id: int, entry_id: int, peer: str
    ) -> Mapping[str, float]:
        """Record a read, which is answered. Return its seconds by stage."""
        times, self._read = self._read, None
        if times is None or times[0] < decoded_s:  # the latter: of a read whose client has disconnected
            self._reads["memory"].record(now_s - decoded_s)
            stages: dict[str, float] = {"memory": now_s - decoded_s}
        else:
            began_s, found_s, ended_s = times
            stages = {
                "budget": began_s - decoded_s,
                "index": found_s - began_s,
                "log": ended_s - found_s,
                "answer": now_s - ended_s,
            }
            for stage, seconds in stages.items():
                self._reads[stage].record(seconds)
        if now_s - decoded_s >= self.bound_s:
            self._keep("read", decoded_s, now_s, stages, {"ledger": ledger_id, "entry": entry_id, "peer": peer})
        return stages

    def read_now(self, decoded_s: float, now_s: float, count: int) -> None:
        """Record reads that were answered from memory at once."""
        self._reads["memory"].record(now_s - decoded_s, count)

    def forget_read(self) -> None:
        """Drop the times of a read that was a part of another request."""
        self._read = None

    # -- what holds up all requests ------------------------------------------------------------------------------
    def paused(self, began_s: float, ended_s: float, reason: str) -> None:
        """Record that no requests were read. `reason`: cache, intake."""
        self.activities.note(reason, began_s, ended_s)
        if ended_s - began_s >= self.bound_s:
            self._keep("pause", began_s, ended_s, {reason: ended_s - began_s}, {})

    def stalled(self, began_s: float, ended_s: float, stages: Mapping[str, float]) -> None:
        """Record that the event loop stood still. See `LoopLag`."""
        if ended_s - began_s >= self.bound_s:
            self._keep("stall", began_s, ended_s, stages, {})

    def metadata_answered(self, name: str, began_s: float, ended_s: float) -> None:
        """Record a request to the metadata store."""
        self.activities.note("metadata", began_s, ended_s)
        self.metadata.setdefault(name, Distribution()).record(ended_s - began_s)
        if ended_s - began_s >= self.bound_s:
            self._keep("metadata", began_s, ended_s, {"metadata": ended_s - began_s}, {"request": name})

    # -- reports -------------------------------------------------------------------------------------------------
    @property
    def adds(self) -> Mapping[str, Distribution]:
        """Return the seconds by stage."""
        self._end_group()
        return self._adds

    @property
    def reads(self) -> Mapping[str, Distribution]:
        """Return the seconds by stage."""
        return self._reads

    def report(self, process: str, since_s: float) -> dict[str, Any]:
        """Return what was recorded in the last `since_s` seconds: see `protocol.latency.Report`."""
        now_s, now_ms = self._clock.monotonic(), self._clock.wall_ms()
        began_ms = max(self.began_ms, now_ms - since_s * 1000)
        total = self._ledger_sizes.total()
        return self.slow.report(
            process,
            (began_ms, now_s, now_ms),
            self.bound_s,
            self.activities.between(now_s - (now_ms - began_ms) / 1000, now_s),
            ledger_shares={str(ledger): size / total for ledger, size in self._ledger_sizes.most_common(LEDGERS_SHOWN)},
        )

    def _keep(
        self, kind: str, began_s: float, now_s: float, stages: Mapping[str, float], facts: Mapping[str, Any]
    ) -> None:
        times, overlaps = (began_s, now_s, self._clock.wall_ms()), self.activities.overlaps
        request = self.slow.observe(kind, times, stages, overlaps, facts)
        if request is not None:
            fields = {**facts, **{f"{stage}_ms": round(seconds * 1000) for stage, seconds in stages.items()}}
            self._events.info("request.slow", kind=kind, ms=round(request.seconds * 1000), **fields)
