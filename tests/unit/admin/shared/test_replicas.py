from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookies.admin.shared.replicas import count_overlaps


def as_ranges(ids: set[int]) -> list[range]:
    runs: list[range] = []
    for each in sorted(ids):
        if runs and runs[-1].stop == each:
            runs[-1] = range(runs[-1].start, each + 1)
        else:
            runs.append(range(each, each + 1))
    return runs


@given(st.lists(st.sets(st.integers(0, 40)), max_size=4), st.integers(0, 30), st.integers(0, 15))
def test_overlaps_against_counting_one_by_one(holders: list[set[int]], first: int, extra: int) -> None:
    last = first + extra
    found = count_overlaps(first, last, [as_ranges(ids) for ids in holders])
    for replicas in range(len(holders) + 1):
        assert found[replicas] == sum(
            sum(entry in ids for ids in holders) == replicas for entry in range(first, last + 1)
        )
