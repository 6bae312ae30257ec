"""From where on journals are replayed: what mark files and catalog say, and which of it can be believed.

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
from bookies.storage.journal.page_cache import PassingHoles
from bookies.storage.records import EndKind
from bookies.storage.records.record_scan import ScanEnd


def find_marks(
    disk: Disk,
    directories: Sequence[str],
    found: Sequence[Sequence[LogMark]],
    noted: Sequence[LogMark],
    record_size_max: int,
) -> list[LogMark]:
    """From where to replay each journal. `found`: what the mark files say of each. `noted`: what the catalog says."""
    if len(noted) == len(found):
        found = [[*marks, mark] for marks, mark in zip(found, noted, strict=True)]
    return [
        credible_mark(disk, directory, marks, record_size_max)
        for directory, marks in zip(directories, found, strict=True)
    ]


def credible_mark(disk: Disk, directory: str, found: Sequence[LogMark], record_size_max: int) -> LogMark:
    """From where to replay a journal. `found`: what the mark files and the catalog say.

    They differ by a crash at most, or one is damaged, or another program has run here since. So the smallest one from
    which on all journals are there, as replaying too much does no harm; and from the beginning of its file, if no
    record begins where it says.
    """
    ids = journal_ids(disk, directory)
    for mark in sorted(found):
        first = mark.journal_id or min(ids, default=0)
        there = [number for number in ids if number >= first]
        if there and there == list(range(first, first + len(there))):
            return mark if _is_between_records(disk, directory, mark, record_size_max) else LogMark(mark.journal_id)
    return max(found, default=LogMark())


def _is_between_records(disk: Disk, directory: str, mark: LogMark, record_size_max: int) -> bool:
    """Whether a record begins there that is what was written, or nothing comes any more."""
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
            search=PassingHoles(file),
        )
        found = next(batches)
        return not isinstance(found, ScanEnd) or found.kind is EndKind.CLEAN
    except CorruptRecord:
        return False
    finally:
        file.close()
