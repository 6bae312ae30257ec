"""Which bookies to ask first, and after how long an answer is late. Pure: the time comes in, nobody is ever excluded.

A circuit breaker per bookie
----------------------------
    HEALTHY --failed--> OPEN --pause over--> SUSPECT --probe or any answer--> HEALTHY
                          ^                     |
                          +-------failed--------+      each time with twice the pause, up to `PAUSE_MAX_S`

OPEN is the last choice, SUSPECT (half-open) comes before it: one cheap probe at a time finds out whether the bookie is
back, so that no request of a user has to. A pause is seconds long, never weeks. How long the last one was is forgotten
only when the bookie has been healthy for `MEMORY_S`: one that answers probes but not work does not come back at once.
A success while the breaker is open counts for nothing; it may have been asked before the failure.

The ranks only order. When every bookie is open the order is the caller's own, so no number of failures, and no mistake
in here, can leave a ledger without bookies.

Response times
--------------
One histogram per bookie and kind of request, in steps of the square root of two; old answers lose weight as new ones
come. An answer is late beyond the 95th percentile of that bookie's own times, but a bookie that is always slow must
not set its own standard: no later than `SLOWER_MAX` times the percentile of the quickest one.

Source: client-protocol 3.3 (order) and 7.8.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable

from bookies.model import BookieId

PAUSE_FIRST_S = 2.0
PAUSE_MAX_S = 30.0
MEMORY_S = 60.0
PROBE_S = 15.0  # a probe whose outcome nobody reported counts as lost after so long

TIME_MIN_S = 50e-6  # what is quicker counts as this
BUCKET_COUNT = 48  # up to 14 minutes
OBSERVED_MIN = 16  # answers before there is an estimate, and between two new ones
OBSERVED_MAX = 512  # then every count is halved
PERCENTILE = 0.95
SLOWER_MAX = 3.0


class Rank(enum.IntEnum):
    """How willingly a bookie is asked; sorts the best first."""

    HEALTHY = 0
    SUSPECT = 1
    OPEN = 2


class _Breaker:
    """A bookie that has failed. `pause_s`: the last pause; 0 when it is forgotten."""

    __slots__ = ("healthy_since", "is_tripped", "open_until", "pause_s", "probe_until")

    def __init__(self) -> None:
        self.is_tripped = False
        self.open_until = 0.0
        self.probe_until = 0.0
        self.pause_s = 0.0
        self.healthy_since = 0.0


class CircuitBreakers:
    """One breaker per bookie that ever failed. `now`: seconds on any scale that never goes back."""

    def __init__(self) -> None:
        self._breakers: dict[BookieId, _Breaker] = {}

    def failed(self, bookie: BookieId, now: float) -> None:
        """It could not be reached, or did not answer in time. Several failures of one pause count once."""
        breaker = self._breakers.get(bookie)
        if breaker is None:
            breaker = self._breakers[bookie] = _Breaker()
        if breaker.is_tripped and now < breaker.open_until:
            return
        if not breaker.is_tripped and now - breaker.healthy_since >= MEMORY_S:
            breaker.pause_s = 0.0
        breaker.pause_s = min(PAUSE_MAX_S, 2 * breaker.pause_s) or PAUSE_FIRST_S
        breaker.is_tripped = True
        breaker.open_until = now + breaker.pause_s
        breaker.probe_until = 0.0

    def succeeded(self, bookie: BookieId, now: float) -> None:
        """It answered, whatever it said."""
        breaker = self._breakers.get(bookie)
        if breaker is not None and breaker.is_tripped and now >= breaker.open_until:
            breaker.is_tripped = False
            breaker.healthy_since = now

    def knows(self, bookie: BookieId) -> bool:
        """Whether it has ever failed."""
        return bookie in self._breakers

    def rank(self, bookie: BookieId, now: float) -> Rank:
        breaker = self._breakers.get(bookie)
        if breaker is None or not breaker.is_tripped:
            return Rank.HEALTHY
        return Rank.OPEN if now < breaker.open_until else Rank.SUSPECT

    def order(self, bookies: Iterable[BookieId], now: float) -> list[BookieId]:
        """All of them, best rank first; stable, so the caller's own preference decides within a rank."""
        bookies = list(bookies)
        if not self._breakers:
            return bookies
        return sorted(bookies, key=lambda bookie: self.rank(bookie, now))

    def ailing(self, now: float) -> dict[BookieId, Rank]:
        """Those that are not healthy, the best first: few of many."""
        ranks = {bookie: self.rank(bookie, now) for bookie, breaker in self._breakers.items() if breaker.is_tripped}
        return dict(sorted(ranks.items(), key=lambda each: each[1]))

    def take_probe(self, bookie: BookieId, now: float) -> bool:
        """Whether the caller has to probe this bookie now: it is suspect, and no other probe is under way."""
        if self.rank(bookie, now) is not Rank.SUSPECT:
            return False
        breaker = self._breakers[bookie]
        if now < breaker.probe_until:
            return False
        breaker.probe_until = now + PROBE_S
        return True


class _Histogram:
    """Times of one bookie and kind. `percentile_s`: seconds, None until enough are known."""

    __slots__ = ("_counts", "_fresh", "_total", "percentile_s")

    def __init__(self) -> None:
        self._counts = [0] * BUCKET_COUNT
        self._total = 0
        self._fresh = 0
        self.percentile_s: float | None = None

    def add(self, seconds: float) -> bool:
        """Whether there is a new estimate."""
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


class ResponseTimes:
    """How long bookies take to answer, by kind of request (any name)."""

    def __init__(self) -> None:
        self._histograms: dict[str, dict[BookieId, _Histogram]] = {}
        self._longest: dict[str, float] = {}  # what the quickest one allows, by kind; asked for with every request

    def observe(self, bookie: BookieId, kind: str, seconds: float) -> None:
        of_kind = self._histograms.setdefault(kind, {})
        histogram = of_kind.get(bookie)
        if histogram is None:
            histogram = of_kind[bookie] = _Histogram()
        if histogram.add(seconds):
            known = [each.percentile_s for each in of_kind.values() if each.percentile_s]
            self._longest[kind] = SLOWER_MAX * min(known)

    def percentile_s(self, bookie: BookieId, kind: str) -> float | None:
        """The 95th percentile in seconds, rounded up by at most 42 %; None while too little is known."""
        histogram = self._histograms.get(kind, {}).get(bookie)
        return histogram.percentile_s if histogram else None

    def late_after_s(self, bookie: BookieId, kind: str) -> float | None:
        """After so many seconds an answer is late; None while too little is known of everybody."""
        longest = self._longest.get(kind)
        if longest is None:
            return None
        histogram = self._histograms[kind].get(bookie)
        return min(histogram.percentile_s or longest, longest) if histogram else longest
