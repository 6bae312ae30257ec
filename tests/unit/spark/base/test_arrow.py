"""Record batches: a bound in bytes, whatever the entries' sizes are; and every column what the entries say."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.examples import scaled

from bookies.client.base import EntryBatch
from bookies.kernels import Records
from bookies.model import BookieId, LedgerMetadata
from bookies.spark.base import arrow
from bookies.spark.base.plan import Gap, Range


@given(
    sizes=st.lists(st.one_of(st.integers(1, 300), st.integers(0, 30)), min_size=1, max_size=60),
    first=st.integers(0, 1 << 40),
    limit=st.integers(1, 1000),
)
@scaled(200)
def test_no_batch_is_larger_than_the_limit_but_for_one_entry(sizes: list[int], first: int, limit: int) -> None:
    starts = array("q", accumulate(sizes, initial=5))
    batch = EntryBatch(7, first, bytes(starts[-1]), starts, 0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(arrow, "BATCH_SIZE_MAX", limit)
        parts = list(arrow.parts(batch))
    assert all(part.size <= limit or len(part) == 1 for part in parts)
    assert [entry_id for part in parts for entry_id in part.entry_ids] == list(batch.entry_ids)
    assert [part.starts[0] for part in parts[1:]] == [part.starts[-1] for part in parts[:-1]]


def metadata(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(ledger_id, 1, 1, 1, ((0, (BookieId("b"),)),))


def batch_of(ledger_id: int, first: int, payloads: list[bytes], skip: int) -> EntryBatch:
    """As it comes from a bookie, with something in front. `length`: the id times 10; LAC: the id less 1."""
    bodies = []
    for entry_id, payload in enumerate(payloads, first):
        header = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 10 * entry_id)
        bodies.append(header + struct.pack(">i", -entry_id % 1000) + payload)
    records = Records.of(bodies)
    starts = array("q", [start + skip for start in records.starts])
    return EntryBatch(ledger_id, first, bytes(skip) + records.data, starts, 36)


ranges = st.lists(
    st.tuples(
        st.sampled_from([None, "orders", "flights"]),
        st.integers(0, 1 << 40),
        st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=9), min_size=1, max_size=5),
        st.booleans(),
    ),
    max_size=5,
)


@given(ranges=ranges, size_max=st.integers(1, 2000))
@scaled(200)
def test_rows_are_what_the_entries_say(ranges: Any, size_max: int) -> None:
    expected: list[dict[str, Any]] = []

    def items() -> Iterator[Any]:
        for ledger_id, (log, first, groups, has_gap) in enumerate(ranges):
            count = sum(map(len, groups))
            row = None if log is None else first // 2
            origin = Range(metadata(ledger_id), first, first + count - 1, 0, log, 0, row)
            at = first
            for number, payloads in enumerate(groups):
                yield origin, batch_of(ledger_id, at, payloads, 3 * number)
                for entry_id, payload in enumerate(payloads, at):
                    known = {"log": log, "ledger_id": ledger_id, "entry_id": entry_id, "value": payload}
                    known |= {"offset": None if row is None else row + entry_id - first, "crc32c": -entry_id % 1000}
                    expected.append(known | {"length": 10 * entry_id, "lac": entry_id - 1, "gap": None})
                at += len(payloads)
            if has_gap:
                yield Gap(log, ledger_id, None, at, None, at + 5, 5, None, "gone")
                expected.append({"log": log, "ledger_id": ledger_id, "gap": "gone"})

    schema = arrow.arrow_schema(list(arrow.COLUMNS))
    found: list[dict[str, Any]] = []
    for rows in arrow.stretches(items(), size_max):
        if isinstance(rows, Gap):
            made = arrow.gap_batch(rows, schema)
        else:
            made = arrow.record_batch(rows, schema)
            assert len(rows) == made.num_rows
            assert len(rows.batches) == 1 or sum(each.size for each in rows.batches) <= size_max
        made.validate(full=True)
        found += pa.Table.from_batches([made]).to_pylist()
    for each in found:
        each["gap"] = None if each["gap"] is None else each["gap"]["reason"]
    assert found == [dict.fromkeys(arrow.COLUMNS) | each for each in expected]


def test_entries_of_a_compacted_extent_have_their_own_ids() -> None:
    ids = array("q", [2, 3, 7, 90])
    origin = Range(metadata(20), 1, 99, 0, "orders", 0, 101, named=5, kept=4, ids=ids)
    rows = arrow.Stretch(origin, [batch_of(20, 1, [b"x"], 0), batch_of(20, 2, [b"y", b"z"], 1)])
    assert [arrow.column(rows, name).to_pylist() for name in ("ledger_id", "entry_id", "offset")] == [
        [5, 5, 5], [3, 7, 90], [103, 107, 190],
    ]  # fmt: skip
    assert [rows.entry_of(index) for index in range(len(rows))] == [3, 7, 90]


def test_constants_are_made_once_and_kept_within_bounds() -> None:
    for number in range(3 * arrow.CONSTANTS_MAX):
        origin = Range(metadata(number), 0, 9, 0, f"log-{number}", 0, 0)
        rows = arrow.Stretch(origin, [batch_of(number, 0, [b"x"] * 10, 0)])
        assert arrow.column(rows, "log").to_pylist() == [f"log-{number}"] * 10
        assert arrow.column(rows, "ledger_id").to_pylist() == [number] * 10
        assert len(arrow._constants) <= arrow.CONSTANTS_MAX
