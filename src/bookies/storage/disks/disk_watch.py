"""Periodic measurement of free disk space. `disk_space` decides what follows from it.

F-35: journal directories are monitored too. Owned by the loop's thread; measuring runs on a worker.

Source: storage 8.2.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from bookies.config import ROCKSDB, BookieConfig
from bookies.errors import StorageError
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime, Worker
from bookies.storage.disks.directories import Directories
from bookies.storage.disks.directory_health import DirectoryHealth
from bookies.storage.disks.disk_space import DiskSpace, Marks, Space

URGENT_FACTOR = 10  # times as often as usual while a disk is almost full: it may fill up within the usual interval


class DiskWatch:
    """Measures free space and calls `on_change` when a decision changes or a directory fails."""

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        directories: Directories,
        health: DirectoryHealth,
        on_change: Callable[[], None],
    ) -> None:
        self.reconfigure(config)
        self._measure_requested = asyncio.Event()
        self.space = DiskSpace()
        self.is_full = False  # ordinary adds are refused
        self.has_priority_room = True
        self.full_reason = ""  # why adds are refused, and the usable bytes that end it
        self._disk = runtime.disk
        self._on_change = on_change
        self.health = health
        self._directories = directories
        self._events = Events("storage.disks", runtime.clock)

    def reconfigure(self, config: BookieConfig) -> None:
        """Use these settings from the next check on."""
        self.marks = Marks.of(config)
        self._needs_each = config.ledger_index == ROCKSDB
        self._any_full = config.read_only_on_any_disk_full or self._needs_each
        self._interval_s = config.disk_check_interval_ms / 1000

    async def measure(self, worker: Worker) -> None:
        """Measure every file system. Raises: StorageError if one that the bookie needs cannot be measured."""
        directories = self._directories
        paths = list(dict.fromkeys([*directories.ledgers, *directories.indexes, *directories.journals]))
        usages = await worker.run(self._measure, [path for path in paths if path not in self.health.failed])
        before, spaces = self.space, {}
        for path, usage in usages:
            if isinstance(usage, OSError):
                if not self.health.fail(path, f"its free space cannot be measured: {usage}"):
                    raise StorageError(f"{path}: its free space cannot be measured: {usage}") from usage
                continue
            was_full = path in before.spaces and before.spaces[path].is_full
            spaces[path] = Space.of(path, *usage, self.marks, was_full=was_full)
        self.space = DiskSpace(
            spaces,
            directories.ledgers,
            directories.indexes,
            directories.journals,
            any_full=self._any_full,
            needs_each=self._needs_each,
        )
        self.health.crowded = self.space.crowded
        self.health.usable = {path: space.usable for path, space in spaces.items()}
        self._log_changes(before)
        self._update()

    def _update(self) -> None:
        before = self.is_full, self.has_priority_room
        self.is_full, self.has_priority_room = self.space.is_full, self.space.has_priority_room
        self.full_reason = self.space.reason(self.marks)
        if before != (self.is_full, self.has_priority_room) or self.health.has_new_failures:
            self._on_change()

    def measure_now(self) -> None:
        """Measure at once instead of at the end of the interval: the journal could not reserve blocks."""
        self._measure_requested.set()

    def _measure(self, paths: Sequence[str]) -> list[tuple[str, tuple[int, int] | OSError]]:
        """Measure each directory, on the worker."""
        usages: list[tuple[str, tuple[int, int] | OSError]] = []
        for path in paths:
            try:
                usages.append((path, self._disk.usage(path)))
            except OSError as error:
                usages.append((path, error))
        return usages

    def _log_changes(self, before: DiskSpace) -> None:
        for path, space in self.space.spaces.items():
            old = before.spaces.get(path)
            if space.is_full and not (old and old.is_full):
                self._events.warning("storage.disk_full", path=path, usable=space.usable, total=space.total)
            elif old and old.is_full and not space.is_full:
                self._events.info("storage.disk_has_room", path=path, usable=space.usable, total=space.total)
            elif space.is_almost_full and not (old and old.is_almost_full):
                self._events.warning("storage.disk_almost_full", path=path, usable=space.usable, total=space.total)

    async def run(self, worker: Worker) -> None:
        """Measure periodically until cancelled. Raises: StorageError."""
        while True:
            is_urgent = self.space.is_almost_full and not self.space.is_full
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s / URGENT_FACTOR if is_urgent else self._interval_s):
                    await self._measure_requested.wait()
            self._measure_requested.clear()
            await self.measure(worker)
