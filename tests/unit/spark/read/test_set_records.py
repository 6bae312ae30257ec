"""Record sets as rows of Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from bookies.client.base import EntryBatch
from bookies.encoding.envelope import Record
from bookies.encoding.record_sets import pack_set, pack_sets
from bookies.model import BookieId, LedgerMetadata
from bookies.spark.base.arrow import Stretch
from bookies.spark.base.envelope import COLUMNS
from bookies.spark.base.plan import Range
from bookies.spark.read.decode import Malformed
from bookies.spark.read.set_records import opened

STRETCH = Stretch(
    Range(LedgerMetadata(7, 1, 1, 1, ((0, (BookieId("b"),)),)), 40, 49, is_sets=True),
    [EntryBatch(7, 40, b"", [0], 36)],
)
NAMES = list(COLUMNS)
HEADERS = [("h", b"1"), ("n", None)]
RECORDS = [Record(b"a", b"k", HEADERS, 5_000_000), Record(None, b"", None, None), Record(b"b", None, None, 7_000_000)]
PLAIN = [Record(b"c", None, None, 9_000_000)] * 2
HURT = pack_set(
    (8 + 4, 2, 0, b"\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0\1xyz"), 0
)  # The headers of its first record are damaged.


def entries(*sets: bytes) -> pa.Array:
    return pa.array(sets, pa.binary())


def packed(records: list[Record], codec: int = 0) -> bytes:
    [(_, entry)] = pack_sets(records, codec, records[0].timestamp_us or 0)
    return entry


@pytest.mark.parametrize("codec", [0, 1, 2])
def test_each_record_is_a_row(codec: int) -> None:
    found = opened(STRETCH, entries(packed(RECORDS, codec), packed(PLAIN, codec)), NAMES, "FAILFAST")
    assert found.taken is not None
    assert found.taken.to_pylist() == [0, 0, 0, 1, 1]
    columns = {name: column.to_pylist() for name, column in found.columns.items()}
    assert columns["value"] == [b"a", None, b"b", b"c", b"c"]
    assert columns["key"] == [b"k", b"", None, None, None]
    pairs = [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    assert columns["headers"] == [pairs, None, None, None, None]
    moments = [datetime(1970, 1, 1, 0, 0, second, tzinfo=UTC) for second in (5, 7, 9, 9)]
    assert columns["timestamp"] == [moments[0], None, *moments[1:]]
    assert list(opened(STRETCH, entries(), ["value"], "FAILFAST").columns) == ["value"]


def test_damage_is_a_row_of_nulls_or_none_or_an_error() -> None:
    damaged = entries(packed(PLAIN), b"nonsense", HURT)
    found = opened(STRETCH, damaged, ["value", "headers"], "PERMISSIVE")
    assert found.columns["value"].to_pylist() == [b"c", b"c", None, None, b"z"]
    found = opened(STRETCH, damaged, ["value", "headers"], "DROPMALFORMED")
    assert found.taken is not None
    assert (found.columns["value"].to_pylist(), found.taken.to_pylist()) == ([b"c", b"c", b"z"], [0, 0, 2])
    with pytest.raises(Malformed, match=r"is not a record set: choose mode.* \(ledger 7, entry 41\)"):
        opened(STRETCH, damaged, ["value"], "FAILFAST")
    with pytest.raises(Malformed, match=r"record 0 of the set: headers .* \(ledger 7, entry 40\)"):
        opened(STRETCH, entries(HURT), ["value", "headers"], "FAILFAST")
