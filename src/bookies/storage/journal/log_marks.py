"""The choice of the position from which a journal is replayed, from the mark files and the catalog.

Blocks; confined to the checkpoint's worker. Source: storage 2.9, 2.10.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from bookies.errors import CorruptRecord
from bookies.runtime.ports import Disk
from bookies.storage.journal import journal_format
from bookies.storage.journal.journal import journal_ids
from bookies.storage.journal.log_mark_format import LogMark
from bookies.storage.journal.page_cache import SparseReader
from bookies.storage.records import EndKind
from bookies.storage.records.record_scan import ScanEnd


def find_marks(
    disk: Disk,
    directories: Sequence[str],
    marks_found: Sequence[Sequence[LogMark]],
    noted: Sequence[LogMark],
    record_size_max: int,
) -> list[LogMark]:
    """Return the replay position of each journal.

    `marks_found`: the marks in the mark files, by journal. `noted`: the marks in the catalog, one for each journal.
    """
    noted_marks = noted if len(noted) == len(marks_found) else [None] * len(marks_found)
    return [
        credible_mark(disk, directory, copies, mark, record_size_max)
        for directory, copies, mark in zip(directories, marks_found, noted_marks, strict=True)
    ]


def credible_mark(
    disk: Disk, directory: str, copies: Sequence[LogMark], noted: LogMark | None, record_size_max: int
) -> LogMark:
    """Return the replay position of a journal. `copies`: the marks in the mark files. `noted`: that in the catalog.

    The marks differ after a crash, if one is damaged, or if another program has run on these directories since. The
    smallest mark counts from which on all journal files exist, because replaying too much does no harm. If no record
    begins there, replay starts at the beginning of that file.

    The exception: a file with less than the catalog has, while another one has as much, was left behind by a full disk
    or a failed directory. From there on a torn end may follow, which would be damage now that later journals exist.
    """
    ids = journal_ids(disk, directory)
    candidates = copies if noted is None else [*copies, noted]
    least = noted if noted is not None and noted <= max(copies, default=LogMark()) else LogMark()
    for mark in sorted(candidates, key=lambda mark: (mark < least, mark)):
        first = mark.journal_id or min(ids, default=0)
        existing = [number for number in ids if number >= first]
        if existing and existing == list(range(first, first + len(existing))):
            return mark if _is_between_records(disk, directory, mark, record_size_max) else LogMark(mark.journal_id)
    return max(candidates, default=LogMark())


def _is_between_records(disk: Disk, directory: str, mark: LogMark, record_size_max: int) -> bool:
    """Report whether an intact record begins at the mark, or the data ends cleanly there."""
    if not mark.offset:
        return True
    path = posixpath.join(directory, journal_format.file_name(mark.journal_id))
    if not disk.exists(path):
        return False
    file = disk.open(path, "r")
    try:
        size = file.size()
        version, start = journal_format.parse_header(file.pread(24, 0), size, path=path)
        if not start <= mark.offset <= size:
            return False
        batches = journal_format.scan(
            file.pread,
            size,
            mark.offset,
            version,
            is_newest=True,
            journal_id=mark.journal_id,
            record_size_max=record_size_max,
            search=SparseReader(file),
        )
        first_item = next(batches)
        return not isinstance(first_item, ScanEnd) or first_item.kind is EndKind.CLEAN
    except CorruptRecord:
        return False
    finally:
        file.close()
