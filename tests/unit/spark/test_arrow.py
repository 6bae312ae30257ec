"""Record batches: a bound in bytes, whatever the entries' sizes are."""

from __future__ import annotations

from array import array
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookies.client.entries import EntryBatch
from bookies.spark import arrow


@given(
    sizes=st.lists(st.one_of(st.integers(1, 300), st.integers(0, 30)), min_size=1, max_size=60),
    first=st.integers(0, 1 << 40),
    limit=st.integers(1, 1000),
)
@settings(max_examples=200)
def test_no_batch_is_larger_than_the_limit_but_for_one_entry(sizes: list[int], first: int, limit: int) -> None:
    starts = array("q", accumulate(sizes, initial=5))
    batch = EntryBatch(7, first, bytes(starts[-1]), starts, 0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(arrow, "BATCH_SIZE_MAX", limit)
        parts = list(arrow.parts(batch))
    assert all(part.size <= limit or len(part) == 1 for part in parts)
    assert [entry_id for part in parts for entry_id in part.entry_ids] == list(batch.entry_ids)
    assert [part.starts[0] for part in parts[1:]] == [part.starts[-1] for part in parts[:-1]]
