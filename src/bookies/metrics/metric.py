"""Metrics as a table: each row declares one metric and how its value is read when a scraper asks.

A row's `read` gets one *part* of the process, such as its storage or its garbage collection. A part that does not exist
now, such as the storage during a start, leaves out its rows. So does a read that fails: a scrape never fails as a whole
(operations 2.1). The product only counts; names, labels and units exist in the tables alone, and the documentation is
generated from them.

A duration is exported in two forms: a summary in milliseconds, under Apache's name, and a histogram in seconds, which
can be added up over several bookies.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from bookies.errors import BookKeeperError
from bookies.runtime.histogram import Distribution, Outcomes

QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)
BOUNDS_S = (*[digit * 10**power for power in range(-4, 2) for digit in (1, 2, 5)][:17], 60.0)  # 100 us to 60 s
IN_NAME = "<path>"  # in the name of a metric that exists once for each directory

_UNREADABLE = (BookKeeperError, OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError)
Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]  # (name, labels, value)


class Kind(enum.Enum):
    """Types of metrics, as Prometheus names them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"
    HISTOGRAM = "histogram"


class Sums(Struct, frozen=True):
    """A summary without quantiles: number and sum of the values."""

    count: float
    sum: float


class Metric(Struct, frozen=True):
    """One metric. `part`: what `read` gets. `unit`: of the value, empty for numbers of things.

    `read` returns a number, or with `labels` a mapping from the values of the labels to numbers; None: no sample.
    Summaries and histograms are read as `Distribution`, `Outcomes` or `Sums`. A summary has the label `success`, and so
    has a histogram of `Outcomes`.
    """

    name: str
    kind: Kind
    part: str
    help: str
    read: Callable[[Any], Any]
    labels: tuple[str, ...] = ()
    unit: str = ""


class Family(Struct, frozen=True):
    """The samples of one metric at one moment."""

    name: str
    kind: Kind
    help: str
    samples: Sequence[Sample]


Parts = Mapping[str, Callable[[], Any]]
"""Parts of a process by name. Each is asked for once per scrape; None: it does not exist now."""


class Collection:
    """The metrics of one process. `failed`: samples that could not be read."""

    def __init__(self, tables: Sequence[Sequence[Metric]], parts: Parts, now_s: Callable[[], float]) -> None:
        self.failed = 0
        self._metrics = [metric for table in tables for metric in table if metric.part in parts]
        self._parts = parts
        self._now_s = now_s

    def families(self) -> Iterator[Family]:
        """Read every metric. The caller may pause between two of them."""
        parts: dict[str, Any] = {}
        for metric in self._metrics:
            try:
                value = self._read(metric, parts)
                families = [] if value is None else list(families_of(metric, value, self._now_s()))
            except _UNREADABLE:
                parts.setdefault(metric.part, None)
                self.failed += 1
                continue
            yield from families
        yield Family(
            "bookies_metrics_failed_total",
            Kind.COUNTER,
            "samples that could not be read and were left out",
            [("bookies_metrics_failed_total", (), self.failed)],
        )

    def values(self, names: Sequence[str]) -> dict[str, Any]:
        """Read some metrics by name: as their rows return them, without those that have no value now."""
        parts: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for metric in self._metrics:
            if metric.name in names and metric.name not in values:
                try:
                    value = self._read(metric, parts)
                except _UNREADABLE:
                    parts.setdefault(metric.part, None)
                    continue
                if value is not None:
                    values[metric.name] = value
        return values

    def _read(self, metric: Metric, parts: dict[str, Any]) -> Any:
        if metric.part not in parts:
            parts[metric.part] = self._parts[metric.part]()
        part = parts[metric.part]
        return None if part is None else metric.read(part)


def families_of(metric: Metric, value: Any, now_s: float) -> Iterator[Family]:
    """Yield the family of a metric, or one for each directory if its name contains one."""
    if value is None:
        return
    if IN_NAME in metric.name:
        for path, number in value.items():
            name = metric.name.replace(IN_NAME, legal_name(path))
            yield Family(name, metric.kind, metric.help, [(name, (), number)])
        return
    samples: list[Sample] = []
    for key, item in value.items() if metric.labels else [((), value)]:
        texts = (key,) if isinstance(key, str) else key
        labels: Labels = tuple(zip(metric.labels, texts, strict=True))
        if metric.kind is Kind.SUMMARY:
            samples += _summary(metric, labels, item, now_s)
        elif metric.kind is Kind.HISTOGRAM:
            samples += _histogram(metric.name, labels, item)
        elif item is not None:
            samples.append((metric.name, labels, item))
    yield Family(metric.name, metric.kind, metric.help, samples)


def _by_success(succeeded: Any, failed: Any) -> tuple[tuple[Labels, Any], ...]:
    return ((("success", "false"),), failed), ((("success", "true"),), succeeded)


def _summary(metric: Metric, labels: Labels, value: Any, now_s: float) -> Iterator[Sample]:
    """Yield a summary as Apache writes it: `success`, then the quantiles, then other labels.

    Every summary has the label `success`, because queries name it; what cannot fail has values only under `true`.
    Source: operations 2.1.
    """
    factor = 1000.0 if metric.unit == "ms" else 1.0
    outcomes = (value.succeeded, value.failed) if isinstance(value, Outcomes) else (value, Sums(0, 0))
    for success, part in _by_success(*outcomes):
        quantiles = part.quantiles(QUANTILES, now_s) if isinstance(part, Distribution) else []
        for number, share in enumerate(QUANTILES):
            quantile = quantiles[number] * factor if quantiles else float("nan")
            yield metric.name, (*success, ("quantile", str(share)), *labels), quantile
        yield f"{metric.name}_count", (*success, *labels), part.count
        yield f"{metric.name}_sum", (*success, *labels), part.sum * factor


def _histogram(name: str, labels: Labels, value: Any) -> Iterator[Sample]:
    is_split = isinstance(value, Outcomes)
    for success, part in _by_success(value.succeeded, value.failed) if is_split else (((), value),):
        own = (*labels, *success)
        for bound, count in zip(BOUNDS_S, part.at_most(BOUNDS_S), strict=True):
            yield f"{name}_bucket", (*own, ("le", f"{bound:g}")), count
        count = part.count
        yield f"{name}_bucket", (*own, ("le", "+Inf")), count
        yield f"{name}_count", own, count
        yield f"{name}_sum", own, part.sum


def legal_name(text: str) -> str:
    """Return the text as a part of a metric's name: every other character becomes `_`. Source: operations 2.1."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_:") else "_" for letter in text)
