"""Adaptive copy rate: copies run as fast as possible without slowing the requests of writers and readers.

The caller reports the latency of ordinary requests (`observe_request`), the time until copies were durable on their
targets (`observe_copy`), and the bytes copied (`charge`). Time is divided into windows of a quarter of a second. The
slowest latency of a window counts, averaged over about the last second, because a single slow window may be chance.

* If requests or copies took much longer than usual, the rate is lowered.
* Otherwise, if the rate was used, it grows: slightly, so that it is seldom too high; by a quarter if there are no
  ordinary requests.
* The usual latency (baseline) is learnt while nothing is copied. It follows the load slowly at other times, so the rate
  does not stay low because of traffic that copies did not cause.

Ordinary requests show the load of this process's own bookie. Copies show the load of their targets, whose requests are
not seen here.

Besides its bytes, a copy costs requests to bookies and to the metadata store, equivalent to about `COPY_COST` bytes;
otherwise the rate would not limit copies of many small ledgers.

Use one object for all copies of a process: together they keep to one rate. Source: pains 29 and 31.
"""

from __future__ import annotations

from collections.abc import Callable

from bookies.protocol.pacing.rate_limit import RateLimit

WINDOW_S = 0.25
SLOWDOWN = 1.7  # allowed multiple of the usual latency: an average of slowest values, so that p99 is not doubled
SLOWER, FASTER, FASTER_ALONE = 0.7, 1.08, 1.25
RATE_FIRST, RATE_MIN, RATE_MAX = 16e6, 1e6, 4e9  # bytes per second
COPY_COST = 256 * 1024  # bytes that take about as long as the overhead of one copy
COPY_COST_S = 0.01  # upper limit of that overhead, at the highest rate allowed
LATENCY_MIN_S, COPY_MIN_S = 0.002, 0.050  # never too slow; a copy transfers about a megabyte
CALM_WEIGHT, BUSY_WEIGHT = 0.1, 0.01  # of a window's latency in the usual one, while nothing is copied and otherwise
PRESENT_WEIGHT = 0.3  # of a window's latency in the present one


class _Meter:
    """Latencies of one sort of operation, window by window.

    least_s: a latency up to which nothing is too slow.
    slowdown: allowed multiple of the usual latency.
    """

    def __init__(self, least_s: float, slowdown: float) -> None:
        self._least_s = least_s
        self._slowdown = slowdown
        self._worst_s = 0.0
        self.count = 0
        self.usual_s: float | None = None
        self._present_s: float | None = None

    def observe(self, seconds: float) -> None:
        self.count += 1
        self._worst_s = max(self._worst_s, seconds)

    def end_window(self, *, is_calm: bool) -> bool:
        """End the window; report whether latencies are too long."""
        count, worst_s = self.count, self._worst_s
        self.count, self._worst_s = 0, 0.0
        if not count:
            return False
        self.usual_s = _mixed(self.usual_s, worst_s, CALM_WEIGHT if is_calm else BUSY_WEIGHT)
        self._present_s = _mixed(self._present_s, worst_s, PRESENT_WEIGHT)
        return self._present_s > max(self._least_s, self._slowdown * self.usual_s)


def _mixed(average: float | None, value: float, weight: float) -> float:
    return value if average is None else (1 - weight) * average + weight * value


class AdaptiveRate(RateLimit):
    """Rate limit that yields to ordinary requests.

    bytes_per_s_max: upper limit; None: only requests limit it.
    slowdown: allowed multiple of the usual latency.
    """

    def __init__(self, bytes_per_s_max: float | None = None, slowdown: float = SLOWDOWN) -> None:
        self._rate_max = RATE_MAX if bytes_per_s_max is None else bytes_per_s_max
        super().__init__(min(RATE_FIRST, self._rate_max))
        self._copy_cost = min(COPY_COST, int(COPY_COST_S * self._rate_max))
        self._window_end = 0.0
        self._copied = 0.0
        self.on_charge: Callable[[], None] | None = None  # called before each charge, so directly after each copy
        self._requests, self._copies = _Meter(LATENCY_MIN_S, slowdown), _Meter(COPY_MIN_S, slowdown)

    @property
    def bytes_per_s(self) -> float:
        """Return the present rate."""
        assert self.rate is not None
        return self.rate

    @property
    def usual_s(self) -> float | None:
        """Return the usual latency of a window's slowest request, seconds; None: not known yet."""
        return self._requests.usual_s

    def observe_request(self, seconds: float, now: float) -> None:
        """Report the latency of an ordinary request."""
        self._advance_window(now)
        self._requests.observe(seconds)

    def start_copy(self, now: float) -> float:
        return self.charge(self._copy_cost, now)

    def observe_copy(self, seconds: float, now: float) -> None:
        self._advance_window(now)
        self._copies.observe(seconds)

    def charge(self, amount: float, now: float) -> float:
        if self.on_charge is not None:
            self.on_charge()
        self._advance_window(now)
        self._copied += amount
        return super().charge(amount, now)

    def _advance_window(self, now: float) -> None:
        """Evaluate a window that has ended, and start the next."""
        if now < self._window_end:
            return
        lasted_s = now - self._window_end + WINDOW_S
        is_calm, has_requests = not self._copied, self._requests.count > 0
        are_slow = [meter.end_window(is_calm=is_calm) for meter in (self._requests, self._copies)]
        if self._copied:
            is_used = self._copied >= 0.5 * self.bytes_per_s * min(lasted_s, WINDOW_S)
            growth = FASTER if has_requests else FASTER_ALONE
            factor = SLOWER if any(are_slow) else growth if is_used else 1.0
            self.rate = min(self._rate_max, max(min(RATE_MIN, self._rate_max), self.bytes_per_s * factor))
        self._window_end = now + WINDOW_S
        self._copied = 0.0
