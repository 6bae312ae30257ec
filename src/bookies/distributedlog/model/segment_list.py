"""The list of a log's segments: its order, its legal changes, and where a reader begins. Source: distributedlog 2.6.

Pure: a function takes the list and returns the new segments. `SegmentStore` writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from bookies.distributedlog.formats.dlsn import Dlsn
from bookies.distributedlog.formats.entries import TXID_MAX
from bookies.distributedlog.formats.segment import (
    ACTIVE,
    PARTLY_TRUNCATED,
    SEQUENCE_IDS_SINCE,
    TRUNCATED,
    VERSION,
    Segment,
    segment_name,
)
from bookies.errors import LogError, LogFenced, MetadataCorrupt

Segments = tuple[Segment, ...]
CHANGE_ATTEMPTS_MAX = 8  # of a change that other processes overtake


class LastRecord(NamedTuple):
    """The end of a segment. `entry`, `slot`: of its last record, -1: none. `records`: user records."""

    txid: int
    entry: int
    slot: int
    records: int


class Change(NamedTuple):
    """A segment's znode that is replaced."""

    old: Segment
    new: Segment


def ordered(segments: Sequence[Segment]) -> Segments:
    """Return the list that a reader sees: sorted, without the in-progress twin of a completed segment.

    Raises `MetadataCorrupt` if a segment is missing in between.
    """
    completed = {segment.ledger_id for segment in segments if segment.is_completed}
    kept = [segment for segment in segments if segment.is_completed or segment.ledger_id not in completed]
    if all(segment.lssn for segment in kept):
        kept.sort(key=lambda segment: (segment.lssn, segment.is_completed))
    else:  # Segments of version 1 have no number.
        kept.sort(key=lambda segment: (segment.first_txid, segment.is_completed))
    for one, following in pairwise(kept):
        if following.version >= 2 and one.lssn and following.lssn != one.lssn + 1:
            raise MetadataCorrupt(f"segment {following.lssn} follows segment {one.lssn}: there is a gap, or one twice")
    for index, segment in enumerate(kept):
        if not segment.is_completed:
            kept[index] = replace(segment, start_sequence_id=start_sequence_id(kept[:index], segment.lssn))
            break
    return tuple(kept)


def start_sequence_id(segments: Sequence[Segment], lssn: int) -> int:
    """Return the number of user records before a segment. Raises `LogError` if the preceding one is in progress."""
    for segment in segments:
        if segment.lssn == lssn - 1:
            if not segment.is_completed:
                raise LogError(f"segment {segment.lssn} is in progress, so segment {lssn} cannot be completed")
            if segment.version >= SEQUENCE_IDS_SINCE:
                return segment.exposed_start_sequence_id + segment.record_count
    return 0


def started(segments: Segments, highest: int, first_lssn: int, ledger_id: int, txid: int) -> Segment:
    """Return the next segment. `highest`: the greatest number ever assigned, as the list's znode has it.

    Raises `LogFenced` if the two disagree: another process has changed the list.
    """
    if segments:
        lssn = segments[-1].lssn + 1
        if highest and lssn not in (highest, highest + 1):
            raise LogFenced(f"segment {lssn} would follow, but {highest} was assigned: another process leads")
    else:  # A first segment that stayed empty was deleted: its number is used again.
        lssn = first_lssn if highest <= first_lssn else highest + 1
    return Segment(segment_name(lssn, is_completed=False), VERSION, ledger_id, lssn, txid)


def completed(segments: Segments, segment: Segment, last: LastRecord, now_ms: int) -> Segment:
    """Return a segment in progress with its end. Raises `LogError` unless it is the first in progress."""
    return replace(
        segment,
        name=segment_name(segment.lssn, is_completed=True),
        last_txid=last.txid,
        completed_ms=now_ms,
        record_count=last.records,
        last_entry=last.entry,
        last_slot=last.slot,
        start_sequence_id=start_sequence_id(segments, segment.lssn),
    )


def appended(
    segments: Segments, highest: int, first_lssn: int, ledgers: Sequence[tuple[int, LastRecord]], now_ms: int
) -> Segments:
    """Return the completed segments that sealed ledgers become, in their order, after those that exist.

    See `started`. All segments are completed.
    """
    listed = list(segments)
    for ledger_id, last in ledgers:
        segment = started(tuple(listed[-1:]), highest, first_lssn, ledger_id, last.txid)
        listed.append(completed(tuple(listed[-1:]), segment, last, now_ms))
        highest = segment.lssn
    return tuple(listed[len(segments) :])


def truncations(segments: Segments, before: Dlsn) -> list[Change]:
    """Return the changes that make records before an address unreadable. A truncation never moves back."""
    changes = []
    for segment in segments:
        if not segment.is_completed or before.segment < segment.lssn:
            break
        if segment.last_dlsn < before:
            if segment.truncation != TRUNCATED:
                changes.append(Change(segment, replace(segment, status=_with(segment, TRUNCATED))))
            continue
        is_further = segment.truncation == ACTIVE or (
            segment.truncation == PARTLY_TRUNCATED and segment.min_dlsn < before
        )
        if segment.first_dlsn < before and is_further:
            status = _with(segment, PARTLY_TRUNCATED)
            new = replace(segment, status=status, min_entry=before.entry, min_slot=before.slot)
            changes.append(Change(segment, new))
        break
    return changes


def _with(segment: Segment, truncation: int) -> int:
    return segment.status & ~3 | truncation


def removable(segments: Segments, completed_before_ms: int, *, only_truncated: bool) -> Segments:
    """Return the leading segments that retention may delete. The newest completed one stays: its count is needed."""
    leading = []
    for segment in segments:
        if segment.completed_ms is None:
            break
        leading.append(segment)
    chosen: list[Segment] = []
    for segment in leading[:-1]:
        assert segment.completed_ms is not None
        if segment.completed_ms >= completed_before_ms or (only_truncated and segment.truncation != TRUNCATED):
            break
        chosen.append(segment)
    return tuple(chosen)


def removable_by_txid(segments: Segments, txid: int) -> Segments:
    """Return the leading segments whose records all have a lower transaction id, except the newest completed one."""
    leading = removable(segments, 1 << 62, only_truncated=False)
    count = 0
    while count < len(leading) and (leading[count].last_txid or 0) < txid:
        count += 1
    return leading[:count]


def readable(segments: Segments) -> Segments:
    """Return the segments that are not truncated as a whole."""
    return tuple(segment for segment in segments if segment.truncation != TRUNCATED)


def first_to_read(segments: Segments, start: Dlsn) -> Segment | None:
    """Return the segment in which a reader begins; None: it has to wait for one."""
    return next((segment for segment in readable(segments) if segment.lssn >= start.segment), None)


def is_ended(max_txid: int) -> bool:
    """Report whether a log has its end-of-stream record."""
    return max_txid == TXID_MAX


# -- positions by transaction id ---------------------------------------------------------------------------------------


def segments_from_txid(segments: Segments, txid: int) -> Segments:
    """Return the segments to search for the first record of a transaction id, or a greater one.

    Source: distributedlog 5.2.
    """
    listed = readable(segments)
    index = max((at for at, segment in enumerate(listed) if segment.first_txid <= txid), default=0)
    if not listed or listed[index].first_txid > txid:
        return listed
    if listed[index].first_txid == txid:  # A roll can repeat a transaction id at the end of the segment before.
        while index > 0 and (listed[index - 1].last_txid or -1) >= txid:
            index -= 1
    elif listed[index].is_completed and index + 1 < len(listed) and (listed[index].last_txid or 0) < txid:
        index += 1
    return listed[index:]
