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
    if len(noted) == len(marks_found):
        marks_found = [[*marks, mark] for marks, mark in zip(marks_found, noted, strict=True)]
    return [
        credible_mark(disk, directory, marks, record_size_max)
        for directory, marks in zip(directories, marks_found, strict=True)
    ]


def credible_mark(disk: Disk, directory: str, candidates: Sequence[LogMark], record_size_max: int) -> LogMark:
    """Return the replay position of a journal. `candidates`: the marks in the mark files and the catalog.

    The marks differ after a crash, if one is damaged, or if another program has run on these directories since. The
    smallest mark counts from which on all journal files exist, because replaying too much does no harm. If no record
    begins there, replay starts at the beginning of that file.
    """
    ids = journal_ids(disk, directory)
    for mark in sorted(candidates):
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
