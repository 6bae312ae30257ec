"""A bookie's directories as a whole: made, locked, marked as in use.

Source: storage 1.1, 1.2, 9.6.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Sequence

from bookies.config import BookieConfig
from bookies.runtime.ports import Disk, Lock
from bookies.storage.durable import sync_directory

CONTROL_FILE = "control.json"  # beside every ledger directory's `current`: how to talk to the running bookie
HELD = "COMPACTION_HELD"  # an empty file in every ledger directory while an operator has suspended compaction
DIRTY = "DIRTY"  # an empty file in every ledger directory from the start until an orderly stop


def current(directory: str) -> str:
    """Where in a configured directory the files are."""
    return posixpath.join(directory, "current")


class Directories:
    """The three sets of `current` directories. Blocks, except for its fields; confined to the checkpoint's worker."""

    def __init__(self, disk: Disk, config: BookieConfig) -> None:
        self.journals = [current(each) for each in config.journal_directories]
        self.ledgers = [current(each) for each in config.ledger_directories]
        self.indexes = [current(each) for each in config.index_directories or config.ledger_directories]
        self.was_clean = True
        self._disk = disk
        self._locks: list[Lock] = []

    def acquire(self) -> None:
        """Make what is missing and lock everything (F-1). Raises DirectoryInUse, SyncFailed, OSError.

        Names that an earlier process left are made durable before anything is concluded from them: it may have died
        between a rename and its sync.
        """
        for directory in dict.fromkeys([*self.journals, *self.ledgers, *self.indexes]):
            self._disk.make_directories(directory)
            self._locks.append(self._disk.lock_directory(directory))
            sync_directory(self._disk, directory)
        self.was_clean = not any(self._disk.exists(posixpath.join(each, DIRTY)) for each in self.ledgers)

    def mark_dirty(self) -> None:
        """From now on only `mark_clean` tells of an orderly stop."""
        for directory in self.ledgers:
            self._disk.open(posixpath.join(directory, DIRTY), "w+").close()
            sync_directory(self._disk, directory)

    def mark_clean(self, directories: Sequence[str]) -> None:
        """Everything is in the entry logs and in the index. `directories`: of the ledgers, but for failed ones.

        Where that fails the mark stays, and the next start only has more to look at.
        """
        for directory in directories:
            with contextlib.suppress(OSError):
                if self._disk.exists(posixpath.join(directory, DIRTY)):
                    self._disk.unlink(posixpath.join(directory, DIRTY))
                    sync_directory(self._disk, directory)

    def is_held(self, directories: Sequence[str]) -> bool:
        """Whether any of these says that compaction is suspended. Raises: OSError."""
        return any(self._disk.exists(posixpath.join(each, HELD)) for each in directories)

    def hold(self, directories: Sequence[str], *, is_held: bool) -> None:
        """Keep over restarts whether compaction is suspended. Raises: OSError, DiskFull, SyncFailed."""
        for directory in directories:
            path = posixpath.join(directory, HELD)
            if is_held:
                self._disk.open(path, "w+").close()
            elif self._disk.exists(path):
                self._disk.unlink(path)
            sync_directory(self._disk, directory)

    def release(self) -> None:
        for lock in self._locks:
            lock.release()
        self._locks.clear()
