"""The mark files: the places in the journals from which a replay begins."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from bookies.errors import DiskFull
from bookies.runtime.ports import Disk
from bookies.storage.disks.durable_files import replace_copies
from bookies.storage.journal import LogMark, log_mark_format

Marks = tuple[LogMark, ...]


class MarkFiles:
    """The mark files in the ledger directories. Blocks; confined to the checkpoint's worker once the bookie serves."""

    def __init__(self, disk: Disk, directories: Sequence[str], journal_count: int) -> None:
        self._disk = disk
        self._directories = list(directories)
        self._names = [log_mark_format.file_name(index, journal_count) for index in range(journal_count)]
        self._written: list[LogMark] = []

    def read(self) -> list[list[LogMark]]:
        """Return the distinct marks of each journal in all directories, ascending, without torn copies."""
        marks = []
        for name in self._names:
            paths = (posixpath.join(directory, name) for directory in self._directories)
            marks.append(
                log_mark_format.distinct(self._disk.read_bytes(path) for path in paths if self._disk.exists(path))
            )
        return marks

    def assume(self, marks: Sequence[LogMark]) -> None:
        """Take these marks, from which replay begins, as the persisted ones; only greater marks are written."""
        self._written = list(marks)

    def reset(self, index: int) -> None:
        """Let the replay of a journal whose files are lost begin with the first file there is. Raises: DiskFull."""
        self._replace(index, LogMark())

    def write(self, marks: Marks) -> Marks:
        """Persist the marks that are greater than the persisted ones; return the persisted marks.

        Raises DiskFull if no directory accepts one of them.
        """
        for index, mark in enumerate(marks):
            if mark <= self._written[index]:
                continue
            self._replace(index, mark)
            self._written[index] = mark
        return tuple(self._written)

    def _replace(self, index: int, mark: LogMark) -> None:
        name = self._names[index]
        paths = [posixpath.join(directory, name) for directory in self._directories]
        try:
            replace_copies(self._disk, paths, log_mark_format.pack(mark))
        except (OSError, DiskFull) as error:
            raise DiskFull(f"no ledger directory accepts {name}: {error}") from error
