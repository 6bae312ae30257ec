"""A bookie's directories as a whole: made, locked, marked as in use; and how full their file systems are.

Source: storage 1.1, 1.2, 8.1 to 8.3, 9.6.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Sequence

from bookies.config import BookieConfig
from bookies.errors import StorageError
from bookies.runtime.ports import Disk, Lock, Runtime, Worker
from bookies.storage.durable import sync_directory

CONTROL_FILE = "control.json"  # beside the first ledger directory's `current`: how to talk to the running bookie
DIRTY = "DIRTY"  # an empty file in every ledger directory from the start until an orderly stop
CHECK_INTERVAL_S = 10.0
FULL_SHARE = 0.05  # of a file system: with less than that usable, and less than FULL_SIZE, it takes no ordinary adds
FULL_SIZE = 2 << 30  # bytes; on large disks a twentieth is more than anybody has to keep free
RESUME_FACTOR = 1.25  # so much more has to be usable before adds are taken again


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

    def mark_clean(self) -> None:
        """Everything is in the entry logs and in the index."""
        for directory in self.ledgers:
            if self._disk.exists(posixpath.join(directory, DIRTY)):
                self._disk.unlink(posixpath.join(directory, DIRTY))
                sync_directory(self._disk, directory)

    def release(self) -> None:
        for lock in self._locks:
            lock.release()
        self._locks.clear()


class DiskWatch:
    """How full the disks are, measured now and then. Owned by the loop's thread; measuring runs on a worker.

    Level, not edge: `is_full` follows from the last measurement alone, but for a margin before it is withdrawn.
    Journal directories count as well (F-35). `on_change` is called when `is_full` has changed.
    """

    def __init__(self, runtime: Runtime, config: BookieConfig, on_change: Callable[[], None]) -> None:
        self.is_full = False
        self.total = 0
        self.free = 0
        self._disk = runtime.disk
        self._on_change = on_change
        directories = Directories(runtime.disk, config)
        self._ledgers = list(dict.fromkeys(directories.ledgers))
        self._all = list(dict.fromkeys([*directories.ledgers, *directories.indexes, *directories.journals]))

    async def measure(self, worker: Worker) -> None:
        """Look at every file system. Raises: OSError."""
        usages = await worker.run(self._measure)
        # Directories of one file system report the same numbers, and count once.
        of_ledgers = list(dict.fromkeys(usages[: len(self._ledgers)]))
        self.total = sum(total for total, _ in of_ledgers)
        self.free = sum(free for _, free in of_ledgers)
        was_full = self.is_full
        self.is_full = any(free < self._needed(total) for total, free in usages)
        if self.is_full != was_full:
            self._on_change()

    def _measure(self) -> Sequence[tuple[int, int]]:
        return [self._disk.usage(each) for each in self._all]

    def _needed(self, total: int) -> float:
        return min(FULL_SIZE, total * FULL_SHARE) * (RESUME_FACTOR if self.is_full else 1)

    async def run(self, worker: Worker) -> None:
        """Measure for ever. A directory that cannot be measured has failed."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                await self.measure(worker)
            except OSError as error:
                raise StorageError(f"a directory has failed: {error}") from error
