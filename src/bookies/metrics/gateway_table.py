"""Metrics of a gateway. No series is per log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bookies.metrics.metric import Kind, Metric


class GatewayFacts(NamedTuple):
    """Work of a gateway so far, and its load now. `statuses`: requests by status."""

    statuses: Mapping[int, int]
    appended: int
    repeated: int
    read: int
    appends_size: int
    bodies_size: int
    tails: int
    logs: int
    ledgers: int


def _row(
    name: str,
    kind: Kind,
    help: str,
    read: Callable[[GatewayFacts], Any],
    unit: str = "",
    labels: tuple[str, ...] = (),
) -> Metric:
    return Metric(f"bookies_gateway_{name}", kind, "gateway", help, read, labels, unit)


TABLE: tuple[Metric, ...] = (
    _row(
        "requests_total",
        Kind.COUNTER,
        "requests answered, by status; 429: it had no memory for them, 503 and 504: the outcome may be unknown",
        lambda facts: {str(status): count for status, count in facts.statuses.items()},
        labels=("status",),
    ),
    _row("entries_appended_total", Kind.COUNTER, "entries appended", lambda facts: facts.appended),
    _row(
        "entries_repeated_total",
        Kind.COUNTER,
        "entries that were sent again, and that the log or ledger held already",
        lambda facts: facts.repeated,
    ),
    _row("entries_read_total", Kind.COUNTER, "entries read, in pages and tails", lambda facts: facts.read),
    _row("appends_bytes", Kind.GAUGE, "appends in progress", lambda facts: facts.appends_size, "bytes"),
    _row("bodies_bytes", Kind.GAUGE, "bodies of requests in progress", lambda facts: facts.bodies_size, "bytes"),
    _row("tails", Kind.GAUGE, "tails", lambda facts: facts.tails),
    _row("logs", Kind.GAUGE, "logs that the gateway leads", lambda facts: facts.logs),
    _row("ledgers", Kind.GAUGE, "ledgers that the gateway writes", lambda facts: facts.ledgers),
)
