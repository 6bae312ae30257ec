"""The list of removed ledgers: what is written comes back, anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import CorruptRecord
from bookies.storage.removal_format import Removal, RemovalState, pack, parse

REMOVALS = st.dictionaries(
    st.integers(0, (1 << 63) - 1), st.builds(Removal, st.sampled_from(RemovalState), st.integers(0, 1 << 50))
)


@given(st.integers(0, 1 << 60), REMOVALS)
def test_it_comes_back(sequence: int, removals: dict[int, Removal]) -> None:
    assert parse(pack(sequence, removals)) == (sequence, removals)


@given(REMOVALS, st.data())
def test_a_change_anywhere_is_found(removals: dict[int, Removal], data: st.DataObject) -> None:
    packed = bytearray(pack(7, removals))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptRecord):
        parse(bytes(packed))


@given(REMOVALS, st.data())
def test_a_part_is_not_taken_for_the_whole(removals: dict[int, Removal], data: st.DataObject) -> None:
    packed = pack(7, removals)
    with pytest.raises(CorruptRecord):
        parse(packed[: data.draw(st.integers(0, len(packed) - 1))])
