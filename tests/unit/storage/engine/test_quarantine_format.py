"""The list of removed ledgers: what is written comes back, anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import CorruptRecord
from bookies.storage.engine.quarantine_format import QuarantineRecord, QuarantineState, identity_of, pack, parse

REMOVALS = st.dictionaries(
    st.integers(0, (1 << 63) - 1),
    st.builds(QuarantineRecord, st.sampled_from(QuarantineState), st.integers(0, 1 << 50)),
)


@given(st.integers(0, 1 << 60), REMOVALS)
def test_it_comes_back(sequence: int, removals: dict[int, QuarantineRecord]) -> None:
    assert parse(pack(sequence, removals)) == (sequence, removals)


@given(REMOVALS, st.data())
def test_a_change_anywhere_is_found(removals: dict[int, QuarantineRecord], data: st.DataObject) -> None:
    packed = bytearray(pack(7, removals))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptRecord):
        parse(bytes(packed))


@given(REMOVALS, st.data())
def test_a_part_is_not_taken_for_the_whole(removals: dict[int, QuarantineRecord], data: st.DataObject) -> None:
    packed = pack(7, removals)
    with pytest.raises(CorruptRecord):
        parse(packed[: data.draw(st.integers(0, len(packed) - 1))])


@given(st.integers(0, 1 << 60), REMOVALS)
def test_one_of_another_bookie_is_refused(sequence: int, removals: dict[int, QuarantineRecord]) -> None:
    own = identity_of("b1", "cluster")
    packed = pack(sequence, removals, own)
    assert parse(packed) == parse(packed, identity=own) == (sequence, removals)
    assert parse(pack(sequence, removals), identity=own) == (sequence, removals)  # as older releases wrote it
    for other in (identity_of("b2", "cluster"), identity_of("b1", "other"), identity_of("b1", None)):
        with pytest.raises(CorruptRecord, match="another bookie"):
            parse(packed, identity=other)
