"""From where a journal is replayed, when what says so disagrees."""

from __future__ import annotations

from random import Random

import pytest

from bookies.lab.sim.world.disk import SimDisk
from bookies.storage.journal import LogMark, journal_format
from bookies.storage.journal.log_marks import credible_mark

DIRECTORY = "/journal/current"


def disk_with(*journal_ids: int) -> SimDisk:
    """Journals of one entry each, in a sector of its own, and room for more."""
    disk = SimDisk(Random(0))
    for journal_id in journal_ids:
        start = journal_format.HEADER_SIZE
        record = journal_format.pack_fence(3)
        group = record + journal_format.pack_group_end(journal_id, start, [record], len(record), 512)
        data = (journal_format.pack_header() + group).ljust(4096, b"\0")
        disk.put(f"{DIRECTORY}/{journal_id:x}.txn", data)
    return disk


@pytest.mark.parametrize(
    ("journals", "found", "wanted"),
    [
        ((7, 8), [LogMark(7, 512)], LogMark(7, 512)),
        ((7, 8), [LogMark(7, 512), LogMark(7, 1024), LogMark(8, 0)], LogMark(7, 512)),  # too much does no harm
        ((8, 9), [LogMark(7, 512), LogMark(8, 512)], LogMark(8, 512)),  # those from 7 on are not all there
        ((7, 9), [LogMark(7, 512), LogMark(9, 512)], LogMark(9, 512)),
        ((7, 8), [LogMark(7, 512), LogMark(8, 512 | 1 << 30)], LogMark(7, 512)),
        ((7, 8), [LogMark(8, 512 | 1 << 30)], LogMark(8, 0)),  # a flipped bit, and nothing else that says anything
        ((7, 8), [LogMark(8, 4096)], LogMark(8, 4096)),  # at the end of its file
        ((7, 8), [LogMark(8, 1024)], LogMark(8, 1024)),  # behind all that was written
        ((7, 8), [LogMark(8, 520)], LogMark(8, 0)),  # in the middle of a record
        ((7, 8), [LogMark(7, 520), LogMark(8, 512)], LogMark(7, 0)),
        ((7, 8), [LogMark(0, 0), LogMark(8, 512)], LogMark(0, 0)),  # noted before anything was checkpointed
        ((7, 8), [LogMark(9, 512)], LogMark(9, 512)),  # the start says that it is missing
        ((7, 8), [], LogMark(0, 0)),
    ],
)
def test_the_smallest_from_which_on_all_is_there(
    journals: tuple[int, ...], found: list[LogMark], wanted: LogMark
) -> None:
    assert credible_mark(disk_with(*journals), DIRECTORY, found, None, 1 << 20) == wanted


@pytest.mark.parametrize(
    ("copies", "noted", "wanted"),
    [
        ([LogMark(7, 512), LogMark(8, 512)], LogMark(8, 512), LogMark(8, 512)),  # one disk was full
        ([LogMark(7, 512), LogMark(8, 1024)], LogMark(8, 512), LogMark(8, 512)),
        ([LogMark(7, 512)], LogMark(8, 512), LogMark(7, 512)),  # nothing agrees with the catalog
        ([LogMark(7, 512), LogMark(7, 1024)], LogMark(8, 512), LogMark(7, 512)),
        ([LogMark(8, 512), LogMark(8, 1024)], LogMark(7, 512), LogMark(7, 512)),
        ([LogMark(7, 512), LogMark(9, 0)], LogMark(9, 0), LogMark(7, 512)),  # that journal is missing
        ([], LogMark(8, 512), LogMark(8, 512)),
    ],
)
def test_a_mark_that_was_left_behind_does_not_count(copies: list[LogMark], noted: LogMark, wanted: LogMark) -> None:
    assert credible_mark(disk_with(7, 8), DIRECTORY, copies, noted, 1 << 20) == wanted
