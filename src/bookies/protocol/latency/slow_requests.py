"""The slowest requests of a process, kept with their stages and with the work that overlapped them.

A bookie or client keeps a bounded number, and adds at most `RATE_MAX` in a second: when every request is slow, some of
them explain the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from msgspec import Struct, field, to_builtins

KEPT_MAX = 200
RATE_MAX = 20  # requests kept in one second


class SlowRequest(Struct, frozen=True):
    """One request that took longer than the bound, or a time in which the process could serve none.

    * `kind`: add, read, append, metadata; pause: no requests were read from the sockets; stall: the event loop stood.
    * `ended_ms`: wall clock. `seconds`: whole duration.
    * `stages`: seconds by stage; they sum up to `seconds`.
    * `meanwhile`: seconds for which other work of the process overlapped the request, by the name of the work.
    * `facts`: ledger, entries, peer, the late bookie, bytes of the journal group.
    """

    kind: str
    ended_ms: int
    seconds: float
    stages: Mapping[str, float]
    meanwhile: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def began_ms(self) -> float:
        return self.ended_ms - self.seconds * 1000

    def as_facts(self) -> dict[str, Any]:
        """Return the request for JSON."""
        return dict(to_builtins(self))

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Return the request of `as_facts`. Raises KeyError, TypeError."""
        return cls(**facts)


class SlowRequests:
    """The slow requests of one process. `count`: all of them; `seconds`: their sum."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self._kept: deque[SlowRequest] = deque(maxlen=KEPT_MAX)
        self._second = -1  # in which `_in_second` requests were kept
        self._in_second = 0

    def _admits(self, now_s: float, seconds: float) -> bool:
        """Count a slow request, and report whether it should be kept too."""
        self.count += 1
        self.seconds += seconds
        if int(now_s) != self._second:
            self._second, self._in_second = int(now_s), 0
        self._in_second += 1
        return self._in_second <= RATE_MAX

    def since(self, wall_ms: float) -> list[SlowRequest]:
        """Return the kept requests that ended at this time or later, oldest first."""
        return [request for request in self._kept if request.ended_ms >= wall_ms]

    def observe(
        self,
        kind: str,
        times: tuple[float, float, int],
        stages: Mapping[str, float],
        overlaps: Callable[[float, float], dict[str, float]],
        facts: Mapping[str, Any],
    ) -> SlowRequest | None:
        """Count a slow request, and return it if it is kept.

        `times`: monotonic seconds of beginning and end, wall clock in ms at the end. `overlaps`: returns by name the
        seconds of other work between two times; not that of the stages themselves.
        """
        began_s, ended_s, wall_ms = times
        if not self._admits(ended_s, ended_s - began_s):
            return None
        meanwhile = {name: seconds for name, seconds in overlaps(began_s, ended_s).items() if name not in stages}
        request = SlowRequest(kind, wall_ms, ended_s - began_s, stages, meanwhile, facts)
        self._kept.append(request)
        return request

    def report(
        self,
        process: str,
        times: tuple[float, float, int],
        bound_s: float,
        activities: Sequence[tuple[str, float, float]],
        **facts: object,
    ) -> dict[str, Any]:
        """Return a `Report` for JSON. `times`: wall clock since when, monotonic seconds and wall clock in ms now."""
        began_ms, now_s, now_ms = times
        return {
            "process": process,
            "began_ms": began_ms,
            "ended_ms": now_ms,
            "bound_s": bound_s,
            "requests": [request.as_facts() for request in self.since(began_ms)],
            "activities": [
                (name, now_ms - (now_s - start) * 1000, now_ms - (now_s - end) * 1000)
                for name, start, end in activities
            ],
            **facts,
        }
