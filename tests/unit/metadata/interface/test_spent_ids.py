"""Lists of the ids of deleted ledgers: what is written comes back, and what nobody writes is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import MetadataCorrupt
from bookies.metadata.interface.spent_ids import SPENT_SIZE, divided, is_spent_list, joined, pack_spent, parse_spent
from bookies.protocol.quorums import IdSet


@given(st.sets(st.integers(0, SPENT_SIZE - 1), max_size=30))
def test_spent_ids_come_back(numbers: set[int]) -> None:
    ids = IdSet(0)
    for number in sorted(numbers):
        ids.add(number, number + 1)
    again = parse_spent("/x", pack_spent(ids))
    assert (again.bound, again.runs) == (ids.bound, ids.runs)
    assert all(number in again for number in numbers)


def test_spent_ids_as_text() -> None:
    ids = IdSet(0)
    for start, stop in ((0, 5), (7, 8), (9, 13)):
        ids.add(start, stop)
    assert pack_spent(ids) == b"0-4 7 9-12"
    assert pack_spent(IdSet(0)) == b""
    for data in (b"x", b"5-3", b"-1", b"65536", b"0-65536", b"\xff"):
        with pytest.raises(MetadataCorrupt, match="/spent/0 cannot be read"):
            parse_spent("/spent/0", data)


def test_runs_over_several_lists() -> None:
    runs = ((2, 4), (SPENT_SIZE - 6, SPENT_SIZE + 4), (3 * SPENT_SIZE, 5 * SPENT_SIZE - 1))
    parts = divided(runs)
    last = SPENT_SIZE - 1
    assert parts == {0: [(2, 4), (SPENT_SIZE - 6, last)], 1: [(0, 4)], 3: [(0, last)], 4: [(0, last)]}
    lists = {}
    for number, added in parts.items():
        lists[number] = IdSet(0)
        for first, end in added:
            lists[number].add(first, end + 1)
    assert joined(dict(reversed(lists.items()))) == runs


def test_names_of_lists() -> None:
    assert is_spent_list("00000000000a")
    assert not any(map(is_spent_list, ("", "strange", "00000000000A", "0" * 13)))
