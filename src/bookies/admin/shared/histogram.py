"""Histogram of latencies: logarithmic buckets of three significant digits, bounded memory for any number of values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
        total = len(self)
        values: list[int] = []
        seen = 0
        for value in sorted(self._counts):
            seen += self._counts[value]
            while len(values) < len(shares) and seen >= shares[len(values)] * total:
                values.append(value)
        return values + [0] * (len(shares) - len(values))

    def summary(self) -> dict[str, int]:
        """Return the named percentiles and the maximum, in microseconds."""
        values = self.percentiles([share for _, share in PERCENTILES])
        return {name: value for (name, _), value in zip(PERCENTILES, values, strict=True)} | {"max_us": self._largest}
