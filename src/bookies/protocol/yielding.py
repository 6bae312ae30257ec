"""A pace that gives way: copies go as fast as they can without being felt by those who write and read.

The shell reports how long ordinary requests took (`felt`), and what was copied (`spent`). In windows of a quarter of
a second: if requests took more than twice what they usually take, the rate goes down by a third; if not, and the rate
was used, it goes up by a quarter. What requests usually take is learnt while nothing is copied, and drifts slowly
otherwise, so that a load which grows by itself is not taken for our doing for ever. Without requests nobody feels
anything.

One object for all copies of a process: together they keep to one rate. Source: pains 29 and 31.
"""

from __future__ import annotations

from bookies.protocol.replicate import Pace

WINDOW_S = 0.25
SLOWDOWN = 2.0  # times the usual latency that we may cause
SLOWER, FASTER = 0.67, 1.25
RATE_FIRST, RATE_MIN, RATE_MAX = 16e6, 1e6, 4e9  # bytes a second
LATENCY_MIN_S = 0.002  # nobody feels less
CALM_WEIGHT, BUSY_WEIGHT = 0.2, 0.01  # of a window's latency in what is usual, while nothing is copied and otherwise


class YieldingPace(Pace):
    """`bytes_per_s_max`: never more than that; None: whatever is not felt."""

    def __init__(self, bytes_per_s_max: float | None = None) -> None:
        self._rate_max = RATE_MAX if bytes_per_s_max is None else bytes_per_s_max
        super().__init__(min(RATE_FIRST, self._rate_max))
        self._window_end = 0.0
        self._worst_s = 0.0
        self._count = 0
        self._copied = 0
        self._usual_s: float | None = None

    @property
    def bytes_per_s(self) -> float:
        """The present rate."""
        assert self._bytes_per_s is not None
        return self._bytes_per_s

    @property
    def usual_s(self) -> float | None:
        """What the slowest request of a window usually takes, seconds; None: not known yet."""
        return self._usual_s

    def felt(self, seconds: float, now: float) -> None:
        """An ordinary request took so long."""
        self._turn(now)
        self._count += 1
        self._worst_s = max(self._worst_s, seconds)

    def spent(self, size: int, now: float) -> float:
        self._turn(now)
        self._copied += size
        return super().spent(size, now)

    def _turn(self, now: float) -> None:
        """Judge the window that has ended, and begin another."""
        if now < self._window_end:
            return
        lasted_s = now - self._window_end + WINDOW_S
        if self._count and (self._usual_s is None or not self._copied):
            self._usual_s = self._mixed(CALM_WEIGHT)
        elif self._count:
            self._usual_s = self._mixed(BUSY_WEIGHT)
        if self._copied:
            is_felt = self._count > 0 and self._worst_s > max(LATENCY_MIN_S, SLOWDOWN * (self._usual_s or 0.0))
            is_used = self._copied >= 0.5 * self.bytes_per_s * min(lasted_s, WINDOW_S)
            factor = SLOWER if is_felt else FASTER if is_used else 1.0
            self._bytes_per_s = min(self._rate_max, max(min(RATE_MIN, self._rate_max), self.bytes_per_s * factor))
        self._window_end = now + WINDOW_S
        self._worst_s, self._count, self._copied = 0.0, 0, 0

    def _mixed(self, weight: float) -> float:
        return self._worst_s if self._usual_s is None else (1 - weight) * self._usual_s + weight * self._worst_s
