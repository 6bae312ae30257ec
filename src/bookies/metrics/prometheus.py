"""A client's metrics in the application's own registry of `prometheus_client`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from bookies.errors import InvalidArgument, NotSupported
from bookies.metrics.client_table import TABLE
from bookies.metrics.metric import Collection, Kind, Metric

if TYPE_CHECKING:
    from bookies.client.transport.client_counts import ClientUsage

TOTAL = "_total"  # end of the names of counters


class HasUsage(Protocol):
    """A client, with asyncio or blocking."""

    def usage(self) -> ClientUsage: ...


def register(client: HasUsage, registry: Any = None, *, labels: dict[str, str] | None = None) -> Any:
    """Add a client's metrics to a registry of `prometheus_client` and return the collector.

    * `client`: from `bookies.connect` or `bookies.blocking.connect`.
    * `registry`: a `CollectorRegistry`; None: the default one.
    * `labels`: added to every sample, to tell several clients of one process apart.

    Counts are kept anyway; they are read when the registry is scraped. `registry.unregister(collector)` ends that. A
    closed client keeps its last values.

    Raises `NotSupported` without the package `prometheus_client` (extra `prometheus`), and `InvalidArgument` for an
    object that is no client.
    """
    if not callable(getattr(client, "usage", None)):
        raise InvalidArgument(f"register({client!r}): expected a client, as bookies.connect returns it")
    return add_collector(TABLE, "client", client.usage, registry, labels)


class Usage(Protocol):
    """Figures of a part, from which its metrics are read. `now_s`: the monotonic clock."""

    @property
    def now_s(self) -> float: ...


def add_collector(
    table: Sequence[Metric], part: str, usage: Callable[[], Usage], registry: Any, labels: dict[str, str] | None
) -> Any:
    """Add the metrics of one part to a registry, None: the default one, and return the collector.

    Raises `NotSupported` without the package `prometheus_client`.
    """
    try:
        from prometheus_client import REGISTRY
        from prometheus_client.core import Metric as Samples
    except ImportError as error:
        raise NotSupported(
            f"metrics of a {part} need the package prometheus_client: pip install 'bookies[prometheus]'"
        ) from error
    extra = dict(labels or {})

    class UsageCollector:
        """Reads the counts when the registry is scraped."""

        def __init__(self) -> None:
            self._collection = Collection((table,), {part: self._usage}, lambda: self._now_s)
            self._now_s = 0.0

        def _usage(self) -> Usage:
            now = usage()
            self._now_s = now.now_s
            return now

        def collect(self) -> Iterator[Any]:
            for family in self._collection.families():
                # The library writes a counter as NAME_total; Apache's counters have other names.
                is_plain = family.kind is Kind.COUNTER and not family.name.endswith(TOTAL)
                kind = "unknown" if is_plain else family.kind.value
                metric = Samples(family.name.removesuffix(TOTAL), family.help, kind)
                for name, sample_labels, value in family.samples:
                    metric.add_sample(name, dict(sample_labels) | extra, value)
                yield metric

        def describe(self) -> list[Any]:
            """Report no names in advance, so that several parts may share a registry."""
            return []

    collector = UsageCollector()
    (REGISTRY if registry is None else registry).register(collector)
    return collector
