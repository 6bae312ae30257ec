"""The tables as a whole: names, and the questions of public dashboards."""

from __future__ import annotations

import re
from types import SimpleNamespace

from bookies.client.transport.client_counts import ClientCounts
from bookies.metrics.collections import BOOKIE_TABLES, recovery_tables, retention_tables
from bookies.metrics.every_table import TABLES
from bookies.metrics.metric import Collection, Kind, Metric, families_of
from bookies.replication.auditor.log_retention import Removed

METRICS: list[Metric] = [metric for table in TABLES.values() for metric in table]
BY_NAME = {metric.name: metric for metric in METRICS}
UNITS = {"", "ms", "seconds", "bytes", "percent", "ratio"}


def test_names_are_unique_and_legal() -> None:
    assert len(BY_NAME) == len(METRICS)
    for name in BY_NAME:
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name.replace("<path>", "x"))


def test_each_metric_says_what_it_is() -> None:
    for metric in METRICS:
        assert metric.help
        assert "\n" not in metric.help
        assert metric.unit in UNITS
        assert metric.kind is not Kind.HISTOGRAM or metric.unit == "seconds"


def test_our_own_names_follow_prometheus() -> None:
    for metric in METRICS:
        if not metric.name.startswith("bookies_"):
            continue
        assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER), metric.name
        if metric.unit in ("seconds", "bytes", "ratio"):
            assert metric.name.removesuffix("_total").endswith(f"_{metric.unit}"), metric.name
        assert all(label == label.lower() for label in metric.labels), metric.name


def test_the_tables_of_a_process_are_among_all() -> None:
    for table in (*BOOKIE_TABLES, *recovery_tables()):
        assert table in TABLES.values()


def test_what_retention_removed_is_counted() -> None:
    current: list[SimpleNamespace] = []
    tables = retention_tables()
    names = [metric.name for table in tables for metric in table]
    collection = Collection(tables, {"retention": lambda: current[0] if current else None}, lambda: 0.0)
    assert collection.values(names) == {}
    current.append(SimpleNamespace(removed=Removed(ledgers=2, entries=30, size=4_000)))
    assert list(collection.values(names).values()) == [2, 30, 4_000]


def test_the_traffic_of_auto_recovery_is_counted_by_nearness() -> None:
    counts = ClientCounts()
    recovery = SimpleNamespace(client=SimpleNamespace(usage=lambda: SimpleNamespace(counts=counts)))
    row = BY_NAME["bookies_recovery_traffic_bytes_total"]
    assert next(iter(families_of(row, row.read(recovery), 0.0))).samples == []
    counts.traffic("region", 100, 30, 2)
    counts.traffic("region", 1, 0, 0)
    (family,) = families_of(row, row.read(recovery), 0.0)
    values = {labels: value for _, labels, value in family.samples}
    assert values == {
        (("nearness", "region"), ("direction", "received")): 101,
        (("nearness", "region"), ("direction", "sent")): 30,
    }
