"""What the plan of `restore` says before anything has been written."""

from __future__ import annotations

from tests.fakes.offloaded import coming_back, forgotten, named

from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.spark.jobs.restore import items_of
from bookies.spark.jobs.shared.packing import START_S, estimate, pack

ENSEMBLE = (BookieId("gone-1"), BookieId("gone-2"))
WRITABLE = ["a", "b", "c"]


def record(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(ledger_id, 2, 2, 1, ((0, ENSEMBLE),), LedgerState.CLOSED, 2, 3_000_000)


def test_every_bookie_that_takes_entries_has_a_share() -> None:
    records = [record(1), named(record(2)), forgotten(record(3)), coming_back(record(4))]
    items = items_of(records, WRITABLE)
    assert [(item.name, item.size) for item in items] == [("3", 6_000_000), ("4", 6_000_000)]
    plan = estimate("restore", pack(items), cores=2, bytes_per_s=1e6)
    assert plan.by_bookie == {"a": 4_000_000, "b": 4_000_000, "c": 4_000_000}
    assert plan.seconds == START_S + 4.0


def test_a_cluster_without_bookies_has_a_plan_too() -> None:
    plan = estimate("restore", pack(items_of([forgotten(record(3))], [])), cores=2, bytes_per_s=1e6)
    assert (plan.size, plan.by_bookie) == (6_000_000, {})
