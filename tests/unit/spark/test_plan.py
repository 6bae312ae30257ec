"""Planning without Spark: every entry in exactly one partition, in order, within the limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import InvalidArgument
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.spark import plan


def ledger(ledger_id: int, entries: int, bounds: list[int]) -> LedgerMetadata:
    ensembles = tuple((first, (BookieId(f"b{first}"),)) for first in sorted({0, *bounds}))
    return LedgerMetadata(
        ledger_id, 1, 1, 1, ensembles, state=LedgerState.CLOSED, last_entry_id=entries - 1, length=100 * entries
    )


@given(
    st.lists(st.tuples(st.integers(0, 500), st.lists(st.integers(1, 500), max_size=3)), max_size=5),
    st.integers(1, 60_000),
    st.one_of(st.none(), st.integers(1, 300)),
    st.integers(1, 20),
)
def test_partitions_cover_every_entry_once_in_order(
    shapes: list[tuple[int, list[int]]], size_max: int, count_max: int | None, parts_min: int
) -> None:
    ledgers = [ledger(number, entries, bounds) for number, (entries, bounds) in enumerate(shapes)]
    ranges = [
        each for metadata in ledgers for each in plan.ranges_of(metadata, 0, metadata.last_entry_id, metadata.length)
    ]
    partitions = plan.pack(ranges, size_max=size_max, count_max=count_max, parts_min=parts_min)
    found = [
        (each.metadata.ledger_id, entry)
        for part in partitions
        for each in part
        for entry in range(each.first, each.last + 1)
    ]
    assert found == [(number, entry) for number, (entries, _) in enumerate(shapes) for entry in range(entries)]
    for part in partitions:
        assert part
        if count_max is not None:
            assert sum(each.count for each in part) <= count_max
        for each in part:
            assert each.metadata.fragment_index(each.first) == each.metadata.fragment_index(each.last)
    if found:
        assert len(partitions) >= min(parts_min, 1)


def test_minimum_of_partitions_is_reached_when_there_are_entries_enough() -> None:
    metadata = ledger(1, 1000, [])
    partitions = plan.pack(plan.ranges_of(metadata, 0, 999, metadata.length), parts_min=8)
    assert len(partitions) >= 8


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="minPartitions"):
        plan.pack([], parts_min=0)
