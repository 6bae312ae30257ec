"""Quorum arithmetic against its definition, for all small configurations; interval sets against plain sets."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.protocol.quorums import IdSet, quorum

CONFIGURATIONS = [
    (size, write, ack) for size in range(1, 7) for write in range(1, size + 1) for ack in range(1, write + 1)
]


def subsets(size: int) -> list[tuple[bool, ...]]:
    return list(product((False, True), repeat=size))


@pytest.mark.parametrize(("size", "write", "ack"), CONFIGURATIONS)
def test_coverage_is_the_absence_of_an_unknown_ack_quorum(size: int, write: int, ack: int) -> None:
    for known in subsets(size):
        an_unknown_quorum = any(
            sum(not known[position] for position in quorum.write_set(entry_id, size, write)) >= ack
            for entry_id in range(size)
        )
        assert quorum.covered(known, write, ack) == (not an_unknown_quorum)


@pytest.mark.parametrize(
    ("size", "write", "ack", "fewest", "any_suffice"),
    [
        (1, 1, 1, 1, 1),
        (2, 2, 1, 2, 2),
        (2, 2, 2, 1, 1),
        (3, 2, 2, 2, 2),
        (3, 3, 1, 3, 3),
        (3, 3, 2, 2, 2),
        (3, 3, 3, 1, 1),
        (4, 2, 2, 2, 3),
        (4, 3, 2, 3, 3),
        (5, 3, 2, 4, 4),
        (5, 3, 3, 2, 3),
        (5, 5, 3, 3, 3),
        (6, 2, 2, 3, 5),
        (6, 3, 2, 4, 5),
        (7, 3, 2, 5, 6),
        (9, 7, 5, 4, 5),
    ],
)
def test_table_of_coverage(size: int, write: int, ack: int, fewest: int, any_suffice: int) -> None:
    """Source: client-protocol 1.7. Includes X-21: no three answers cover 5/3/2, any four do."""
    by_count: dict[int, list[bool]] = {}
    for count in range(size + 1):
        by_count[count] = [
            quorum.covered([position in chosen for position in range(size)], write, ack)
            for chosen in combinations(range(size), count)
        ]
    assert min(count for count, results in by_count.items() if any(results)) == fewest
    assert min(count for count, results in by_count.items() if all(results)) == any_suffice


@pytest.mark.parametrize(("size", "write"), sorted({(size, write) for size, write, _ in CONFIGURATIONS}))
def test_stored_ids_agree_with_write_sets(size: int, write: int) -> None:
    for entry_id in [*range(4 * size), 2**31 - 1, 2**31, 2**62 + 5]:
        members = quorum.write_set(entry_id, size, write)
        assert len(set(members)) == write
        assert members[0] == entry_id % size
        for position in range(size):
            assert quorum.stores(position, entry_id, size, write) == (position in members)
    for position, first, last in product(range(size), range(size), range(2 * size)):
        expected = [e for e in range(first, last + 1) if position in quorum.write_set(e, size, write)]
        assert list(quorum.stored_ids(position, first, last, size, write)) == expected
        following = quorum.next_stored(position, first, size, write)
        assert following == next(e for e in range(first, first + size) if quorum.stores(position, e, size, write))


def test_ensemble_set_is_a_rotation() -> None:
    assert quorum.ensemble_set(7, 5) == (2, 3, 4, 0, 1)


@pytest.mark.parametrize(("size", "write", "ack"), CONFIGURATIONS)
def test_negatives_prove_absence_exactly_from_the_number_needed(size: int, write: int, ack: int) -> None:
    """With so many negatives fewer than an ack quorum can hold an entry; with one less it may have been confirmed."""
    needed = quorum.negatives_needed(write, ack)
    assert write - needed < ack
    assert write - (needed - 1) >= ack


def test_quorum_bound_is_what_enough_positions_reach() -> None:
    assert quorum.quorum_bound([5, 9, 7], 2) == 7
    assert quorum.quorum_bound([5, 9, 7], 3) == 5
    assert quorum.quorum_bound([4], 1) == 4


@given(
    st.integers(-1, 5),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=25),
    st.integers(0, 30),
)
def test_id_set_is_a_set(bound: int, adds: list[tuple[int, int]], cut_at: int) -> None:
    ids = IdSet(bound)
    model = set(range(bound))
    for start, count in adds:
        ids.add(start, start + count)
        model |= set(range(start, start + count))
        assert {e for e in range(40) if e in ids} == model
        assert all(start < stop for start, stop in ids.runs)
        ends = [ids.bound, *(end for run in ids.runs for end in run)]
        assert ends == sorted(set(ends)), "runs are disjoint, ascending, above the bound and do not touch"
        for entry_id in range(40):
            assert ids.reach(entry_id) == next(e for e in range(entry_id, 80) if e not in model)
            assert ids.next_in(entry_id) == min((e for e in model if e >= entry_id), default=None)
    taken = {e for start, stop in ids.cut(cut_at) for e in range(start, stop)}
    assert taken == {e for e in model if e >= max(cut_at, ids.bound)}
    assert {e for e in range(40) if e in ids} == model - taken
