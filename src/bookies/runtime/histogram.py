"""Distributions of many values in bounded memory: logarithmic buckets.

`Histogram` has three significant digits, for benchmarks. `Distribution` is for metrics: two digits, the exact sum, and
quantiles of the recent past. Recording costs about as much as a function call and never reads a clock, so the shells
record once per batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import log2
from operator import mul

PERCENTILES = (("p50_us", 0.5), ("p95_us", 0.95), ("p99_us", 0.99), ("p999_us", 0.999))


class Histogram:
    """Counts of latencies in microseconds, each rounded down by at most 1/512 of its value."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._largest = 0

    def record(self, seconds: float, count: int = 1) -> None:
        value = int(seconds * 1e6)
        shift = max(0, value.bit_length() - 10)
        self._counts[value >> shift << shift] += count
        if value > self._largest:
            self._largest = value

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        self._counts.update(other._counts)
        self._largest = max(self._largest, other._largest)

    def __len__(self) -> int:
        return self._counts.total()

    def percentiles(self, shares: Sequence[float]) -> list[int]:
        """Return, for each share (0..1, ascending), the smallest value (µs) that this share does not exceed."""
        values = _quantiles(self._counts, shares)
        return values + [0] * (len(shares) - len(values))

    def summary(self) -> dict[str, int]:
        """Return the named percentiles and the maximum, in microseconds."""
        values = self.percentiles([share for _, share in PERCENTILES])
        return {name: value for (name, _), value in zip(PERCENTILES, values, strict=True)} | {"max_us": self._largest}


def _quantiles(counts: Mapping[int, int], shares: Sequence[float]) -> list[int]:
    """Return the smallest value that each share (0..1, ascending) does not exceed; nothing without values."""
    total = sum(counts.values())
    values: list[int] = []
    seen = 0
    for value in sorted(counts):
        seen += counts[value]
        while len(values) < len(shares) and seen >= shares[len(values)] * total:
            values.append(value)
    return values


WINDOW_S = 60.0  # shortest time that quantiles of a `Distribution` cover, except in the first minute
_STEPS = 32  # buckets for each doubling of a value
_OFFSET = 1024  # makes the numbers of buckets positive: values down to 2**-32 are told apart
_PENDING_MAX = 256  # values that are not in a bucket yet
_ZERO = -1  # bucket of values that are 0 or less


class Distribution:
    """Counts of values, each rounded down by at most 1/32, with their exact sum. For durations in seconds and sizes.

    Values are sorted into buckets some hundred at a time: code that runs once in a while is several times slower than
    a loop.
    """

    __slots__ = ("_before", "_counts", "_recent", "_sum", "_total", "_values", "_window_at_s")

    def __init__(self) -> None:
        self._values: list[float] = []  # that are not in a bucket yet
        self._counts: list[int] = []  # of each of them
        self._sum = 0.0
        self._recent: dict[int, int] = {}  # of the window that is being filled
        self._before: dict[int, int] = {}  # of the window before it
        self._total: Counter[int] = Counter()  # of all earlier windows
        self._window_at_s = 0.0

    def record(self, value: float, count: int = 1) -> None:
        """Count `count` equal values."""
        counts = self._counts
        self._values.append(value)
        counts.append(count)
        if len(counts) >= _PENDING_MAX:
            self._sort()

    def _sort(self) -> None:
        """Sort the pending values into buckets."""
        values, counts, recent = self._values, self._counts, self._recent
        self._values, self._counts = [], []
        self._sum = sum(map(mul, values, counts), self._sum)
        buckets = [int(log2(value) * _STEPS + _OFFSET) if value > 0 else _ZERO for value in values]
        for bucket, count in zip(buckets, counts, strict=True):
            recent[bucket] = recent.get(bucket, 0) + count

    @property
    def count(self) -> int:
        self._sort()
        return self._total.total() + sum(self._recent.values())

    @property
    def sum(self) -> float:
        self._sort()
        return self._sum

    def quantiles(self, shares: Sequence[float], now_s: float) -> list[float]:
        """Return the values that these shares (0..1, ascending) of the recent values do not exceed; none: no values.

        Recent is what was recorded since the window before the present one began, so at least `WINDOW_S` seconds
        unless the readers are further apart than that. `now_s`: the monotonic clock.
        """
        self._sort()
        if now_s - self._window_at_s >= WINDOW_S:
            self._total.update(self._recent)
            self._before, self._recent, self._window_at_s = self._recent, {}, now_s
        counts = Counter(self._before)
        counts.update(self._recent)
        return [_value_of(bucket) for bucket in _quantiles(counts, shares)]

    def at_most(self, bounds: Sequence[float]) -> list[int]:
        """Return, for each bound (ascending), how many values since the start do not exceed it."""
        self._sort()
        counts = Counter(self._total)
        counts.update(self._recent)
        counted, buckets = 0, sorted(counts, reverse=True)
        below: list[int] = []
        for bound in bounds:
            while buckets and _value_of(buckets[-1]) <= bound:
                counted += counts[buckets.pop()]
            below.append(counted)
        return below


def _value_of(bucket: int) -> float:
    """Return the smallest value of a bucket of a `Distribution`."""
    return 0.0 if bucket == _ZERO else float(2.0 ** ((bucket - _OFFSET) / _STEPS))


class Outcomes:
    """Durations of one type of request, in seconds: of those that succeeded and of those that failed."""

    __slots__ = ("failed", "succeeded")

    def __init__(self) -> None:
        self.succeeded = Distribution()
        self.failed = Distribution()


class Stages:
    """Durations of the stages of one type of work, in seconds. The stages of one piece of work share their borders."""

    __slots__ = ("by_name",)

    def __init__(self, *names: str) -> None:
        self.by_name = {name: Distribution() for name in names}

    def end(self, name: str, began_s: float, now_s: float) -> float:
        """Record a stage that ends now. Return `now_s`, at which the next one begins."""
        self.by_name[name].record(now_s - began_s)
        return now_s
