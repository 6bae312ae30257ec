"""What collection decides, without anything around it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.records import record

from bookies.errors import MetadataCorrupt
from bookies.storage.gc.collection_policy import Comparison, is_implausible, is_surplus

IDS = st.sets(st.integers(0, 60))


@given(IDS, IDS, st.lists(st.integers(1, 9), max_size=60))
def test_the_comparison_finds_what_a_set_difference_finds(local: set[int], listed: set[int], sizes: list[int]) -> None:
    comparison = Comparison(sorted(local))
    missing: list[int] = []
    ids = sorted(listed)
    while ids:
        size = sizes.pop() if sizes else 3
        missing += comparison.listed(ids[:size])
        ids = ids[size:]
        missing += comparison.listed([])
    missing += comparison.rest()
    assert missing == sorted(local - listed)
    assert comparison.rest() == []


@pytest.mark.parametrize("ranges", [[[5, 4]], [[1, 2], [2, 3]], [[7], [6]]])
def test_a_scan_out_of_order_proves_nothing(ranges: list[list[int]]) -> None:
    comparison = Comparison([1, 2, 3])
    for each in ranges[:-1]:
        comparison.listed(each)
    with pytest.raises(MetadataCorrupt):
        comparison.listed(ranges[-1])


@pytest.mark.parametrize(
    ("count", "local", "share", "expected"),
    [(100, 100, 10, False), (101, 1010, 10, False), (101, 1009, 10, True), (5000, 5000, 100, False), (0, 0, 0, False)],
)
def test_much_at_once_is_not_believed(count: int, local: int, share: int, expected: bool) -> None:
    assert is_implausible(count, local, share) is expected


def test_only_closed_ledgers_that_list_this_bookie_nowhere_are_surplus() -> None:
    assert is_surplus(record(1, "other", is_closed=True).metadata, "b1")
    assert not is_surplus(record(1, "other").metadata, "b1")
    assert not is_surplus(record(1, "b1", is_closed=True).metadata, "b1")
