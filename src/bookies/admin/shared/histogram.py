"""Latencies in logarithmic buckets of three significant digits: constant memory, any number of values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

PERCENTILES = (("p50_us", 0.5), ("p95_us", 0.95), ("p99_us", 0.99), ("p999_us", 0.999))


class Histogram:
    """Counts of microseconds. A value is kept to within 1/512 of itself."""

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
        """Take over what the other one has counted."""
        self._counts.update(other._counts)
        self._largest = max(self._largest, other._largest)

    def __len__(self) -> int:
        return self._counts.total()

    def percentiles(self, shares: Sequence[float]) -> list[int]:
        """The smallest recorded values, microseconds, that at least these shares (ascending) do not exceed."""
        total = len(self)
        found: list[int] = []
        seen = 0
        for value in sorted(self._counts):
            seen += self._counts[value]
            while len(found) < len(shares) and seen >= shares[len(found)] * total:
                found.append(value)
        return found + [0] * (len(shares) - len(found))

    def summary(self) -> dict[str, int]:
        """The named percentiles and the maximum, microseconds."""
        values = self.percentiles([share for _, share in PERCENTILES])
        return {name: value for (name, _), value in zip(PERCENTILES, values, strict=True)} | {"max_us": self._largest}
