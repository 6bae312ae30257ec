"""Lists of the ids of deleted ledgers: what is written comes back, and what nobody writes is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import MetadataCorrupt
from bookies.metadata.spent import SPENT_SIZE, pack_spent, parse_spent
from bookies.protocol.intervals import IdSet


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
