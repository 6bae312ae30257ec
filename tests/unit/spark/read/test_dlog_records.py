"""Entries of DistributedLog as rows: records that count, damaged entries, and the entry that a value is from."""

from __future__ import annotations

import pyarrow as pa
import pytest
from msgspec.structs import replace
from tests.fakes.dlog_entries import Row, control, end_of_stream, packed

from bookies.client.base import EntryBatch
from bookies.distributedlog.formats.entries import SET, pack_set
from bookies.distributedlog.formats.segment import PARTLY_TRUNCATED, Segment
from bookies.model import BookieId, LedgerMetadata
from bookies.spark.base.arrow import Stretch
from bookies.spark.base.plan import Range
from bookies.spark.read.decode import Decoder, Malformed
from bookies.spark.read.dlog_records import opened

SEGMENT = Segment("logrecs_3", 5, 7, 3, 10)
ENTRIES = [
    packed([Row(10, 0, b"a"), Row(11, SET, pack_set([b"b", b"c"]), 2)], 0),
    packed([control(11)], 3),
    packed([Row(12, 0, b""), end_of_stream()], 3),
]


def stretch(segment: Segment = SEGMENT) -> Stretch:
    origin = Range(LedgerMetadata(7, 1, 1, 1, ((0, (BookieId("b"),)),)), 40, 49, segment=segment)
    return Stretch(origin, [EntryBatch(7, 40, b"", [0], 36)])


def rows(entries: list[bytes], mode: str = "PERMISSIVE", segment: Segment = SEGMENT) -> list[tuple[object, ...]]:
    decoded = opened(stretch(segment), pa.array(entries, pa.binary()), mode)
    assert decoded.taken is not None
    columns = [decoded.taken, decoded.columns["dlsn"], decoded.columns["txid"], decoded.columns["value"]]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def test_each_record_of_an_application_is_a_row() -> None:
    assert rows(ENTRIES) == [
        (0, "3:40:0", 10, b"a"),
        (0, "3:40:1", 11, b"b"),
        (0, "3:40:2", 11, b"c"),
        (2, "3:42:0", 12, b""),
    ]


def test_records_below_a_truncation_are_left_out() -> None:
    cut = replace(SEGMENT, status=PARTLY_TRUNCATED, min_entry=40, min_slot=2)
    assert [row[1] for row in rows(ENTRIES, segment=cut)] == ["3:40:2", "3:42:0"]
    later = replace(cut, min_entry=39)
    assert len(rows(ENTRIES, segment=later)) == 4


def test_segments_of_old_versions_have_no_envelope() -> None:
    bare = ENTRIES[0][13:]
    assert [row[3] for row in rows([bare], segment=replace(SEGMENT, version=3))] == [b"a", b"b", b"c"]


def test_a_damaged_entry_is_a_row_of_nulls_or_none_or_an_error() -> None:
    entries = [ENTRIES[0], b"nonsense", ENTRIES[2]]
    assert rows(entries)[3:] == [(1, None, None, None), (2, "3:42:0", 12, b"")]
    assert [row[0] for row in rows(entries, "DROPMALFORMED")] == [0, 0, 0, 2]
    with pytest.raises(Malformed, match=r"segment 3: the entry has 8 bytes.* \(ledger 7, entry 41\)"):
        rows(entries, "FAILFAST")


def test_a_value_that_does_not_decode_is_named_by_its_entry() -> None:
    entries = pa.array([*ENTRIES[:1], packed([Row(13, 0, b"\xff")], 3)], pa.binary())
    found = opened(stretch(), entries, "FAILFAST")
    taken = replace(stretch(), taken=found.taken)
    decoder = Decoder("utf8", (pa.field("value", pa.string()),), "FAILFAST")
    with pytest.raises(Malformed, match=r"\(ledger 7, entry 41\)"):
        decoder.decode(taken, found.columns["value"])
