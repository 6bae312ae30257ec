"""Planning without Spark: every entry in exactly one partition, in order, within the limits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import InvalidArgument
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.spark.base import plan

BOOKIES = [BookieId(f"b{number}") for number in range(5)]


def ledger(ledger_id: int, entries: int, bounds: list[int], ensemble: int = 1, quorum: int = 1) -> LedgerMetadata:
    """With an ensemble change at each of the bounds."""
    ensembles = tuple(
        (first, tuple(BOOKIES[(index + place) % 5] for place in range(ensemble)))
        for index, first in enumerate(sorted({0, *bounds}))
    )
    return LedgerMetadata(
        ledger_id,
        ensemble,
        quorum,
        1,
        ensembles,
        state=LedgerState.CLOSED,
        last_entry_id=entries - 1,
        length=100 * entries,
    )


def ranges_of(metadata: LedgerMetadata, size_max: int, log: str | None = None) -> list[plan.Range]:
    last = metadata.last_entry_id
    if last < 0:
        return []
    whole = plan.Range(metadata, 0, last, 0, log, 3, 1000)
    return plan.ranges_of(whole, [(0, 0), (last + 1, metadata.length)], size_max)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 500),
            st.lists(st.integers(1, 500), max_size=3),
            st.sampled_from([(1, 1), (3, 3), (3, 2), (5, 3)]),
            st.sampled_from([None, "x", "y"]),
        ),
        max_size=6,
    ),
    st.integers(1, 60_000),
    st.one_of(st.none(), st.integers(1, 300)),
    st.integers(1, 20),
)
def test_partitions_cover_every_entry_once(
    shapes: list[tuple[int, list[int], tuple[int, int], str | None]],
    size_max: int,
    count_max: int | None,
    parts_min: int,
) -> None:
    total = sum((100 + plan.ENTRY_OVERHEAD) * entries for entries, _, _, _ in shapes)
    limit = plan.size_limit(total, size_max, parts_min)
    ranges = [
        each
        for number, (entries, bounds, shape, log) in enumerate(shapes)
        for each in ranges_of(ledger(number, entries, bounds, *shape), limit, log)
    ]
    partitions = plan.with_replicas(plan.pack(ranges, size_max=limit, count_max=count_max))
    found = sorted(
        (each.metadata.ledger_id, entry)
        for part in partitions
        for each in part
        for entry in range(each.first, each.last + 1)
    )
    assert found == [(number, entry) for number, (entries, *_) in enumerate(shapes) for entry in range(entries)]
    for part in partitions:
        assert part
        if count_max is not None:
            assert sum(each.count for each in part) <= count_max
        assert len(part) == 1 or sum(each.size for each in part) <= limit
        for one, two in itertools.pairwise(part):
            assert one.metadata.ledger_id <= two.metadata.ledger_id or one.log != two.log
        for each in part:
            assert each.metadata.fragment_index(each.first) == each.metadata.fragment_index(each.last)
            assert each.count == 1 or each.size <= limit
            assert each.row == 1000 + each.first
            assert (each.replica >= 0) == (each.metadata.ensemble_size == each.metadata.write_quorum)


def test_a_minimum_of_partitions_is_reached_when_there_are_entries_enough() -> None:
    metadata = ledger(1, 1000, [])
    limit = plan.size_limit(164_000, 256 << 20, 8)
    assert len(plan.pack(ranges_of(metadata, limit), size_max=limit)) >= 8
    assert plan.size_limit(0, 100, 8) == plan.size_limit(50, 100, 1) == 100


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="maxRecordsPerPartition"):
        plan.pack([], size_max=1, count_max=0)


def test_small_logs_share_partitions_and_large_ones_stay_in_order() -> None:
    ranges = [
        each
        for number, (entries, log) in enumerate([(100, "a"), (10, "b"), (100, "c"), (20, "b2"), (5, "d")])
        for each in ranges_of(ledger(number, entries, []), 100 * 164, log)
    ]
    partitions = plan.pack(ranges, size_max=100 * 164)
    assert [[each.log for each in part] for part in partitions] == [["a"], ["b", "b2", "d"], ["c"]]


def test_the_load_is_spread_over_the_replicas() -> None:
    ranges = ranges_of(ledger(1, 900, [], 3, 3), 164 * 10)
    partitions = plan.with_replicas(plan.pack(ranges, size_max=164 * 10))
    chosen = [each.replica for part in partitions for each in part]
    assert [chosen.count(position) for position in range(3)] == [len(chosen) // 3] * 3


def test_cuts_follow_the_bytes() -> None:
    """The first 10 entries are large, the 990 behind them small."""
    curve = [(0, 0), (10, 100_000), (1000, 199_000)]
    parts = plan.cut(curve, 0, 999, 50_000)
    sizes = [plan.size_between(curve, first, last) for first, last in parts]
    assert max(sizes) <= 50_000
    assert parts[0][1] < 5
    assert [low for low, _ in parts][1:] == [high + 1 for _, high in parts][:-1]
    assert plan.sample_points([(0, 0), (1000, 199_000)], 0, 999, 100_000, 32)
    assert plan.sample_points([(0, 0), (1000, 199_000)], 0, 999, 1_000_000, 32) == []
    assert len(plan.sample_points([(0, 0), (1000, 199_000)], 0, 999, 1_000, 8)) <= 8


def test_bookies_that_are_down_have_no_address() -> None:
    part = ranges_of(ledger(1, 10, [], 3, 3), 10_000)
    assert plan.bookies_of(part, {"b1": ("h", 1), "b4": ("h", 4)}) == {"b1": ("h", 1)}


def test_any_bookie_of_a_compacted_extent_may_have_its_entries() -> None:
    striped = ledger(1, 10, [4], 3, 3)
    compacted = plan.Range(striped, 500, 900, named=7, kept=9)
    assert set(plan.bookies_of([compacted], dict.fromkeys(striped.bookies, ("h", 1)))) == {*striped.bookies}
    assert (compacted.ledger_id, plan.Range(striped, 0, 9).ledger_id) == (7, 1)
