"""A bookie's directory sets: creation, locks, and the marker files for unclean stops and suspended compaction.

Source: storage 1.1, 1.2, 9.6.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Sequence

from bookies.config import BookieConfig
from bookies.errors import DiskFull
from bookies.runtime.ports import Disk, Lock
from bookies.storage.disks.durable_files import remove, sync_data, sync_directory
from bookies.storage.disks.status_format import FILE_NAME as STATUS

CONTROL_FILE = "control.json"  # beside every ledger directory's `current`: how to talk to the running bookie
HELD = "COMPACTION_HELD"  # an empty file in every ledger directory while an operator has suspended compaction
DIRTY = (
    "DIRTY"  # a file in every ledger directory from the start until an orderly stop; has the `run_id` in hexadecimal
)
RUN_ID_SIZE = 16  # bytes


def parse_run_id(data: bytes) -> bytes:
    """Return the run id in a `DIRTY` file; empty for the empty files of Apache and older releases, and for garbage."""
    return bytes.fromhex(data.decode()) if re.fullmatch(rb"[0-9a-f]{%d}\n" % (2 * RUN_ID_SIZE), data) else b""


def current(directory: str) -> str:
    """Return the sub-directory of a configured directory that holds the files."""
    return posixpath.join(directory, "current")


class Directories:
    """The three sets of `current` directories. Methods block; confined to the checkpoint's worker.

    `run_id`: random bytes of this bookie, the same from one orderly stop to the next, across crashes; empty if unknown.
    Files that a crash left in different directories belong together if both directories have the same run id.
    """

    def __init__(self, disk: Disk, config: BookieConfig) -> None:
        self.journals = [current(path) for path in config.journal_directories]
        self.ledgers = [current(path) for path in config.ledger_directories]
        self.indexes = [current(path) for path in config.index_directories or config.ledger_directories]
        self.was_clean = True
        self.run_id = b""
        self._disk = disk
        self._locks: list[Lock] = []

    @property
    def all(self) -> list[str]:
        """Return every directory once."""
        return list(dict.fromkeys((*self.journals, *self.ledgers, *self.indexes)))

    def acquire(self) -> None:
        """Create missing directories and lock all of them. Raises DirectoryInUse, SyncFailed, OSError.

        F-1: hold an exclusive lock on every `current` directory. Syncs each directory before its names are used,
        because an earlier process may have died between a rename and its sync.
        """
        for directory in self.all:
            self._disk.make_directories(directory)
            self._locks.append(self._disk.lock_directory(directory))
            sync_directory(self._disk, directory)
        paths = [posixpath.join(directory, DIRTY) for directory in self.ledgers]
        marks = [self._disk.read_bytes(path) for path in paths if self._disk.exists(path)]
        self.was_clean = not marks
        run_ids = {run_id: None for data in marks if (run_id := parse_run_id(data))}
        self.run_id = next(iter(run_ids)) if len(run_ids) == 1 else b""

    def mark_dirty(self, run_id: bytes) -> None:
        """Create `DIRTY` with the run id in every ledger directory. Raises: OSError, SyncFailed.

        Only `mark_clean` removes it. A full disk still has space for the file, perhaps not for its content.
        """
        data = run_id.hex().encode() + b"\n"
        for directory in self.ledgers:
            path = posixpath.join(directory, DIRTY)
            if self._disk.exists(path) and self._disk.read_bytes(path) == data:
                continue
            file = self._disk.open(path, "w+")
            try:
                file.truncate(0)
                with contextlib.suppress(DiskFull):
                    file.pwrite(data, 0)
                    sync_data(file)
            finally:
                file.close()
            sync_directory(self._disk, directory)

    def mark_clean(self, directories: Sequence[str]) -> None:
        """Remove `DIRTY`: all data is in the entry logs and in the index. `directories`: ledger directories in use.

        If a removal fails, the marker stays, and the next start checks more than it needs to.
        """
        for directory in directories:
            with contextlib.suppress(OSError):
                if self._disk.exists(posixpath.join(directory, DIRTY)):
                    self._disk.unlink(posixpath.join(directory, DIRTY))
                    sync_directory(self._disk, directory)

    def remove_leftovers(self) -> None:
        """Remove temporary files that a process did not rename before it died or its disk failed."""
        for directory in dict.fromkeys([*self.journals, *self.ledgers, *self.indexes]):
            for name in self._disk.list(directory):
                if name.startswith(".") and name.endswith(".tmp") and name != f".{STATUS}.tmp":
                    remove(self._disk, posixpath.join(directory, name))

    def is_held(self, directories: Sequence[str]) -> bool:
        """Report whether any of these directories has the marker for suspended compaction. Raises: OSError."""
        return any(self._disk.exists(posixpath.join(directory, HELD)) for directory in directories)

    def hold(self, directories: Sequence[str], *, is_held: bool) -> None:
        """Store across restarts whether compaction is suspended. Raises: OSError, DiskFull, SyncFailed."""
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
