"""A pace that gives way: copies go as fast as they can without being felt by those who write and read.

The shell reports how long ordinary requests took (`felt`), how long copies took to be stored elsewhere (`took`), and
what was copied (`spent`). Of windows of a quarter of a second the slowest counts, on the average of the last second,
because one that is slow by chance says nothing: if either kind took much more than it usually takes, the rate is
lowered; if not, and the rate was used, it grows: by little, so that it is seldom too high, and by a quarter where there
are no requests to be disturbed. What is usual is learnt while nothing is copied, and drifts slowly otherwise, so that a
load which grows by itself is not taken for our doing for ever. Without requests nobody feels anything; copies say how
the bookies are that they go to, where ordinary requests are not seen.

A copy costs, beside its bytes, questions to bookies and to the metadata store, about as much as `COPY_COST` bytes;
otherwise many small ledgers would not be held back by a rate at all.

One object for all copies of a process: together they keep to one rate. Source: pains 29 and 31.
"""

from __future__ import annotations

from bookies.protocol.repair.replicate import RateLimit

WINDOW_S = 0.25
SLOWDOWN = 1.7  # times the usual latency that we may cause: the average of what is slow, so that p99 is not doubled
SLOWER, FASTER, FASTER_ALONE = 0.7, 1.08, 1.25
RATE_FIRST, RATE_MIN, RATE_MAX = 16e6, 1e6, 4e9  # bytes a second
COPY_COST = 256 * 1024  # bytes that take about as long as what a copy needs beside its own
COPY_COST_S = 0.01  # at most, at the highest rate that somebody allows
LATENCY_MIN_S, COPY_MIN_S = 0.002, 0.050  # nobody feels less; copies come by the megabyte
CALM_WEIGHT, BUSY_WEIGHT = 0.1, 0.01  # of a window's latency in what is usual, while nothing is copied and otherwise
PRESENT_WEIGHT = 0.3  # of a window's latency in the present one


class _Meter:
    """Latencies of one kind, window by window. `least_s`: what is never too long."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._worst_s = 0.0
        self.count = 0
        self.usual_s: float | None = None
        self._present_s: float | None = None

    def observe(self, seconds: float) -> None:
        self.count += 1
        self._worst_s = max(self._worst_s, seconds)

    def end_window(self, *, is_calm: bool) -> bool:
        """Whether it took too long."""
        count, worst_s = self.count, self._worst_s
        self.count, self._worst_s = 0, 0.0
        if not count:
            return False
        self.usual_s = _mixed(self.usual_s, worst_s, CALM_WEIGHT if is_calm else BUSY_WEIGHT)
        self._present_s = _mixed(self._present_s, worst_s, PRESENT_WEIGHT)
        return self._present_s > max(self._least_s, SLOWDOWN * self.usual_s)


def _mixed(average: float | None, value: float, weight: float) -> float:
    return value if average is None else (1 - weight) * average + weight * value


class AdaptiveRate(RateLimit):
    """`bytes_per_s_max`: never more than that; None: whatever is not felt."""

    def __init__(self, bytes_per_s_max: float | None = None) -> None:
        self._rate_max = RATE_MAX if bytes_per_s_max is None else bytes_per_s_max
        super().__init__(min(RATE_FIRST, self._rate_max))
        self._copy_cost = min(COPY_COST, int(COPY_COST_S * self._rate_max))
        self._window_end = 0.0
        self._copied = 0
        self._requests, self._copies = _Meter(LATENCY_MIN_S), _Meter(COPY_MIN_S)

    @property
    def bytes_per_s(self) -> float:
        """The present rate."""
        assert self._bytes_per_s is not None
        return self._bytes_per_s

    @property
    def usual_s(self) -> float | None:
        """What the slowest request of a window usually takes, seconds; None: not known yet."""
        return self._requests.usual_s

    def felt(self, seconds: float, now: float) -> None:
        """An ordinary request took so long."""
        self._turn(now)
        self._requests.observe(seconds)

    def begins(self, now: float) -> float:
        return self.spent(self._copy_cost, now)

    def took(self, seconds: float, now: float) -> None:
        self._turn(now)
        self._copies.observe(seconds)

    def spent(self, size: int, now: float) -> float:
        self._turn(now)
        self._copied += size
        return super().spent(size, now)

    def _turn(self, now: float) -> None:
        """Judge the window that has ended, and begin another."""
        if now < self._window_end:
            return
        lasted_s = now - self._window_end + WINDOW_S
        is_calm, has_requests = not self._copied, self._requests.count > 0
        are_felt = [meter.end_window(is_calm=is_calm) for meter in (self._requests, self._copies)]
        if self._copied:
            is_used = self._copied >= 0.5 * self.bytes_per_s * min(lasted_s, WINDOW_S)
            growth = FASTER if has_requests else FASTER_ALONE
            factor = SLOWER if any(are_felt) else growth if is_used else 1.0
            self._bytes_per_s = min(self._rate_max, max(min(RATE_MIN, self._rate_max), self.bytes_per_s * factor))
        self._window_end = now + WINDOW_S
        self._copied = 0
