"""Values that a soak samples over time, and what they show."""

from __future__ import annotations

import csv
import pathlib
import time
from collections.abc import Sequence

from msgspec import Struct, field

BARS = "▁▂▃▄▅▆▇█"
BARS_MAX = 40


class Samples(Struct):
    """Values over time, by name. `rows`: seconds since `began_s` -> values."""

    rows: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began_s

    def summary(self) -> list[tuple[str, float, float, float, str]]:
        """Return (name, first, last, slope per minute over the second half, sparkline) for each name."""
        later = self.rows[len(self.rows) // 2 :]
        result = []
        for name in self.rows[0][1] if self.rows else ():
            values = [row[name] for _, row in self.rows]
            slope = 60 * slope_of([at_s for at_s, _ in later], [row[name] for _, row in later])
            result.append((name, values[0], values[-1], slope, sparkline(values)))
        return result

    def write(self, path: pathlib.Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["seconds", *(self.rows[0][1] if self.rows else ())])
            writer.writerows([round(at_s, 1), *row.values()] for at_s, row in self.rows)


def slope_of(times: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the least-squares line; 0 for fewer than two points."""
    count = len(times)
    if count < 2:
        return 0.0
    middle, level = sum(times) / count, sum(values) / count
    spread = sum((at_s - middle) ** 2 for at_s in times)
    return sum((at_s - middle) * (value - level) for at_s, value in zip(times, values, strict=True)) / spread


def sparkline(values: Sequence[float]) -> str:
    """Return at most `BARS_MAX` bars, from 0 to the largest value."""
    step = max(1, -(-len(values) // BARS_MAX))
    peaks = [max(values[start : start + step]) for start in range(0, len(values), step)]
    top = max(peaks, default=0) or 1
    return "".join(BARS[round(peak / top * (len(BARS) - 1))] for peak in peaks)
