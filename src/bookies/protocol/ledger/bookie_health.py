"""Order in which to ask bookies, and the time after which an answer is late. Pure: time is an argument.

A circuit breaker per bookie
----------------------------
    HEALTHY --failed--> OPEN --pause over--> SUSPECT --probe or any answer--> HEALTHY
                          ^                     |
                          +-------failed--------+      each time with twice the pause, up to `PAUSE_MAX_S`

OPEN is the last choice, SUSPECT (half-open) comes before it. One cheap probe at a time finds out whether the bookie has
recovered, so that no user request has to. A pause lasts seconds, never weeks. Its length is reset only when the bookie
has been healthy for `MEMORY_S`, so a bookie that answers probes but not work stays limited. A success while the breaker
is open is ignored: its request may be older than the failure.

Ranks only order bookies and exclude none. When every breaker is open, the caller's own order applies, so neither
failures nor a defect in this module can leave a ledger without bookies.

Response times
--------------
Each bookie has one histogram per kind of request, in steps of the square root of two; old answers lose weight as new
ones arrive. An answer is late beyond the 95th percentile of that bookie's own times. A slow bookie must not set its own
standard, so the limit is at most `SLOWER_MAX` times the percentile of the quickest bookie that is at least as far away:
a bookie in another region is not held to the standard of one in the next rack.

Source: client-protocol 3.3 (order) and 7.8.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable

from bookies.model import BookieId
from bookies.protocol.pacing import Backoff

PAUSE_FIRST_S = 2.0
PAUSE_MAX_S = 30.0
MEMORY_S = 60.0
PROBE_S = 15.0  # a probe without a reported outcome counts as lost after this time

TIME_MIN_S = 50e-6  # shorter times count as this
BUCKET_COUNT = 48  # up to 14 minutes
OBSERVED_MIN = 16  # answers before there is an estimate, and between two new ones
OBSERVED_MAX = 512  # then every count is halved
PERCENTILE = 0.95
SLOWER_MAX = 3.0


class Rank(enum.IntEnum):
    """Preference for a bookie; sorts the best first."""

    HEALTHY = 0
    SUSPECT = 1
    OPEN = 2


class _Breaker:
    """Circuit breaker of a bookie that has failed. `backoff`: reset when it was healthy for long."""

    __slots__ = ("backoff", "healthy_since", "is_tripped", "open_until", "probe_until")

    def __init__(self) -> None:
        self.is_tripped = False
        self.open_until = 0.0
        self.probe_until = 0.0
        self.backoff = Backoff(PAUSE_FIRST_S, PAUSE_MAX_S)
        self.healthy_since = 0.0


class CircuitBreakers:
    """Circuit breakers of the bookies that ever failed. `now`: seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._breakers: dict[BookieId, _Breaker] = {}

    def failed(self, bookie: BookieId, now: float) -> None:
        """Record that a bookie was unreachable or did not answer in time. Failures within one pause count once."""
        breaker = self._breakers.get(bookie)
        if breaker is None:
            breaker = self._breakers[bookie] = _Breaker()
        if breaker.is_tripped and now < breaker.open_until:
            return
        if not breaker.is_tripped and now - breaker.healthy_since >= MEMORY_S:
            breaker.backoff.reset()
        breaker.is_tripped = True
        breaker.open_until = now + breaker.backoff.next_s()
        breaker.probe_until = 0.0

    def succeeded(self, bookie: BookieId, now: float) -> None:
        """Record any answer of a bookie, also an error."""
        breaker = self._breakers.get(bookie)
        if breaker is not None and breaker.is_tripped and now >= breaker.open_until:
            breaker.is_tripped = False
            breaker.healthy_since = now

    def __bool__(self) -> bool:
        """Report whether any bookie has ever failed."""
        return bool(self._breakers)

    def knows(self, bookie: BookieId) -> bool:
        """Report whether the bookie has ever failed."""
        return bookie in self._breakers

    def rank(self, bookie: BookieId, now: float) -> Rank:
        breaker = self._breakers.get(bookie)
        if breaker is None or not breaker.is_tripped:
            return Rank.HEALTHY
        return Rank.OPEN if now < breaker.open_until else Rank.SUSPECT

    def ailing(self, now: float) -> dict[BookieId, Rank]:
        """Return the bookies that are not healthy, best rank first. Cost: the number of bookies that ever failed."""
        ranks = {bookie: self.rank(bookie, now) for bookie, breaker in self._breakers.items() if breaker.is_tripped}
        return dict(sorted(ranks.items(), key=lambda item: item[1]))

    def take_probe(self, bookie: BookieId, now: float) -> bool:
        """Report whether the caller has to probe this bookie now: it is suspect, and no other probe is in flight."""
        if self.rank(bookie, now) is not Rank.SUSPECT:
            return False
        breaker = self._breakers[bookie]
        if now < breaker.probe_until:
            return False
        breaker.probe_until = now + PROBE_S
        return True


class _Histogram:
    """Response times of one bookie and kind of request. `percentile_s`: seconds; None: too few observations."""

    __slots__ = ("_counts", "_fresh", "_total", "percentile_s")

    def __init__(self) -> None:
        self._counts = [0] * BUCKET_COUNT
        self._total = 0
        self._fresh = 0
        self.percentile_s: float | None = None

    def add(self, seconds: float) -> bool:
        """Count one time; report whether there is a new estimate."""
        steps = math.ceil(2 * math.log2(max(seconds, TIME_MIN_S) / TIME_MIN_S))
        self._counts[min(steps, BUCKET_COUNT - 1)] += 1
        self._total += 1
        self._fresh += 1
        if self._fresh < OBSERVED_MIN:
            return False
        self._fresh = 0
        self._estimate()
        return True

    def _estimate(self) -> None:
        if self._total > OBSERVED_MAX:
            self._counts = [count // 2 for count in self._counts]
            self._total = sum(self._counts)
        rest = self._total * PERCENTILE
        bucket = 0
        while (rest := rest - self._counts[bucket]) > 0:
            bucket += 1
        self.percentile_s = TIME_MIN_S * 2 ** (bucket / 2)


def no_rank(bookie: BookieId) -> int:
    """Return the same rank for every bookie."""
    return 0


class ResponseTimes:
    """Response times of bookies by kind of request (any name). `distance`: of a bookie, any number."""

    def __init__(self, distance: Callable[[BookieId], int] = no_rank) -> None:
        self._distance = distance
        self._histograms: dict[str, dict[BookieId, _Histogram]] = {}
        self._longest: dict[str, list[tuple[int, float]]] = {}  # see `_limits`, by kind; read with every request

    def observe(self, bookie: BookieId, kind: str, seconds: float) -> None:
        histograms = self._histograms.setdefault(kind, {})
        histogram = histograms.get(bookie)
        if histogram is None:
            histogram = histograms[bookie] = _Histogram()
        if histogram.add(seconds):
            self._longest[kind] = self._limits(histograms)

    def _limits(self, histograms: dict[BookieId, _Histogram]) -> list[tuple[int, float]]:
        """Return (distance, limit for bookies up to that distance), by ascending distance."""
        quickest: dict[int, float] = {}
        for bookie, known in histograms.items():
            if known.percentile_s:
                distance = self._distance(bookie)
                quickest[distance] = min(quickest.get(distance, math.inf), known.percentile_s)
        limits: list[tuple[int, float]] = []
        limit = math.inf
        for distance in sorted(quickest, reverse=True):
            limit = min(limit, SLOWER_MAX * quickest[distance])
            limits.append((distance, limit))
        return limits[::-1]

    def percentile_s(self, bookie: BookieId, kind: str) -> float | None:
        """Return the 95th percentile in seconds, rounded up by at most 42 %; None: too few observations."""
        histogram = self._histograms.get(kind, {}).get(bookie)
        return histogram.percentile_s if histogram else None

    def late_after_s(self, bookie: BookieId, kind: str) -> float | None:
        """Return the seconds after which an answer is late; None: too few observations of bookies as far away."""
        distance = self._distance(bookie)
        for far, longest in self._longest.get(kind, ()):
            if far >= distance:
                histogram = self._histograms[kind].get(bookie)
                return min(histogram.percentile_s or longest, longest) if histogram else longest
        return None
