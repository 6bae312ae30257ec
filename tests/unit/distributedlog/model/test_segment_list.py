"""The list of segments: order, changes, truncation, retention, readers. Source: distributedlog 2.5, 2.6."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bookies.distributedlog.formats.dlsn import Dlsn
from bookies.distributedlog.formats.entries import TXID_MAX
from bookies.distributedlog.formats.segment import PARTLY_TRUNCATED, TRUNCATED, Segment, segment_name
from bookies.distributedlog.model.segment_list import (
    LastRecord,
    completed,
    first_to_read,
    is_ended,
    ordered,
    readable,
    removable,
    removable_by_txid,
    segments_from_txid,
    started,
    truncations,
)
from bookies.errors import LogError, LogFenced, MetadataCorrupt


def done(lssn: int, first: int, last: int, *, count: int = 10, start: int = 0, entries: int = 4) -> Segment:
    return Segment(
        segment_name(lssn, is_completed=True), 5, lssn, lssn, first, last, lssn * 1000, count, entries, 0,
        start_sequence_id=start,
    )  # fmt: skip


def growing(lssn: int, first: int, ledger: int | None = None) -> Segment:
    return Segment(segment_name(lssn, is_completed=False), 5, ledger or lssn, lssn, first)


FOUR = (done(1, 0, 9), done(2, 9, 20, start=10), done(3, 20, 30, start=20), growing(4, 30))


def test_the_list_is_sorted_and_knows_the_start_of_the_segment_in_progress() -> None:
    listed = ordered(FOUR[::-1])
    assert [segment.lssn for segment in listed] == [1, 2, 3, 4]
    assert listed[-1].start_sequence_id == 30
    assert ordered([growing(1, 0)])[0].start_sequence_id == 0
    assert ordered(()) == ()


def test_a_completed_segment_hides_its_twin() -> None:
    assert ordered([done(1, 0, 9), growing(1, 0)]) == (done(1, 0, 9),)


def test_a_gap_is_refused() -> None:
    with pytest.raises(MetadataCorrupt, match="segment 4 follows segment 2"):
        ordered([FOUR[0], FOUR[1], FOUR[3]])
    with pytest.raises(MetadataCorrupt, match="twice"):
        ordered([done(1, 0, 9), growing(1, 0, ledger=77)])


def test_segments_of_version_1_are_ordered_by_transaction_id() -> None:
    old = [replace(done(0, first, first + 5), version=1, ledger_id=first, lssn=0) for first in (50, 10, 30)]
    assert [segment.first_txid for segment in ordered(old)] == [10, 30, 50]


def test_only_the_first_in_progress_gets_a_start() -> None:
    first, second = ordered([growing(1, 0), growing(2, 5)])
    assert (first.start_sequence_id, second.start_sequence_id) == (0, -1)


@pytest.mark.parametrize(("highest", "lssn"), [(3, 4), (4, 4), (0, 4)])
def test_a_segment_follows_the_newest(highest: int, lssn: int) -> None:
    segment = started(FOUR[:3], highest, 1, 77, 30)
    assert (segment.lssn, segment.ledger_id, segment.first_txid) == (lssn, 77, 30)
    assert segment.pack() == b"5;77;30;4;0;0;-1"


@pytest.mark.parametrize("highest", [2, 5])
def test_a_segment_is_refused_when_the_list_has_changed(highest: int) -> None:
    with pytest.raises(LogFenced, match="another process leads"):
        started(FOUR[:3], highest, 1, 77, 30)


@pytest.mark.parametrize(("highest", "first", "lssn"), [(0, 1, 1), (1, 1, 1), (0, 7, 7), (7, 7, 7), (5, 1, 6)])
def test_the_first_segment_has_the_first_number(highest: int, first: int, lssn: int) -> None:
    assert started((), highest, first, 77, 0).lssn == lssn


def test_a_completed_segment_counts_from_the_one_before() -> None:
    segment = completed(FOUR, FOUR[3], LastRecord(35, 2, 1, 6), 99)
    assert segment.name == "logrecs_000000000000000004"
    assert segment.pack() == b"%d;4;30;35;99;4;2;1;0;0;30" % (6 << 32 | 5)
    with pytest.raises(LogError, match="segment 4 is in progress"):
        completed((*FOUR, growing(5, 35)), growing(5, 35), LastRecord(36, 0, 0, 1), 99)
    old = replace(FOUR[2], version=4)
    assert completed((old, FOUR[3]), FOUR[3], LastRecord(35, 2, 1, 6), 99).start_sequence_id == 0


def test_truncation_marks_whole_segments_and_one_in_part() -> None:
    first, second = truncations(FOUR, Dlsn(2, 3, 1))
    assert (first.new.truncation, first.new.min_dlsn) == (TRUNCATED, Dlsn(1, 0, 0))
    assert (second.new.truncation, second.new.min_dlsn) == (PARTLY_TRUNCATED, Dlsn(2, 3, 1))
    after = (first.new, second.new, *FOUR[2:])
    assert (
        truncations(after, Dlsn(2, 3, 1))
        == truncations(after, Dlsn(2, 1, 0))
        == truncations(after, Dlsn(1, 0, 0))
        == []
    )
    assert [change.new.min_dlsn for change in truncations(after, Dlsn(2, 3, 2))] == [Dlsn(2, 3, 2)]
    assert [segment.lssn for segment in readable(after)] == [2, 3, 4]


def test_truncation_leaves_the_segment_in_progress_alone() -> None:
    assert [change.old.lssn for change in truncations(FOUR, Dlsn(4, 100, 0))] == [1, 2, 3]
    assert truncations(FOUR, Dlsn(1, 0, 0)) == []
    assert truncations((), Dlsn(1, 5, 0)) == []


def test_retention_keeps_the_newest_completed_segment() -> None:
    assert removable(FOUR, 10_000, only_truncated=False) == FOUR[:2]
    assert removable(FOUR, 2000, only_truncated=False) == FOUR[:1]
    assert removable(FOUR, 10_000, only_truncated=True) == ()
    marked = (truncations(FOUR, Dlsn(2, 0, 0))[0].new, *FOUR[1:])
    assert removable(marked, 10_000, only_truncated=True) == marked[:1]
    assert removable_by_txid(FOUR, 21) == FOUR[:2]
    assert removable_by_txid(FOUR, 20) == FOUR[:1]
    assert removable((), 10, only_truncated=False) == ()


def test_a_reader_begins_in_the_first_segment_that_is_left() -> None:
    marked = (truncations(FOUR, Dlsn(2, 0, 0))[0].new, *FOUR[1:])
    assert first_to_read(marked, Dlsn(1, 0, 0)) == FOUR[1]
    assert first_to_read(marked, Dlsn(3, 2, 0)) == FOUR[2]
    assert first_to_read(marked, Dlsn(5, 0, 0)) is None


@pytest.mark.parametrize(
    ("txid", "lssn"), [(0, 1), (5, 1), (9, 1), (10, 2), (20, 2), (25, 3), (30, 3), (31, 4), (99, 4)]
)
def test_the_segment_of_a_transaction_id(txid: int, lssn: int) -> None:
    assert segments_from_txid(FOUR, txid)[0].lssn == lssn


def test_a_search_begins_at_the_front_or_finds_no_segment() -> None:
    assert segments_from_txid(FOUR[1:], 3) == FOUR[1:]
    assert segments_from_txid((), 3) == ()
    assert segments_from_txid((FOUR[0], done(2, 15, 20)), 12)[0].lssn == 2


def test_the_greatest_transaction_id_ends_a_log() -> None:
    assert is_ended(TXID_MAX)
    assert not is_ended(5)
