"""How full the disks are, measured now and then. What follows from it is decided in `disk_space`.

Journal directories count as well (F-35). Owned by the loop's thread; measuring runs on a worker.

Source: storage 8.2.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from bookies.config import BookieConfig
from bookies.errors import StorageError
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime, Worker
from bookies.storage.disks.directories import Directories
from bookies.storage.disks.directory_health import DirectoryHealth
from bookies.storage.disks.disk_space import DiskSpace, Marks, Space

HURRY = 10  # times as often as usual while a disk is almost full: it may be full before the next look


class DiskWatch:
    """`on_change` is called when `space` has come to another conclusion than before."""

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        directories: Directories,
        health: DirectoryHealth,
        on_change: Callable[[], None],
    ) -> None:
        self.marks = Marks.of(config)
        self._hurry = asyncio.Event()
        self.space = DiskSpace()
        self.is_full = False  # no ordinary adds
        self.has_priority_room = True
        self.full_reason = ""  # why there is no room, and when there is again
        self._disk = runtime.disk
        self._on_change = on_change
        self._health = health
        self._directories = directories
        self._any_full = config.read_only_on_any_disk_full
        self._interval_s = config.disk_check_interval_ms / 1000
        self._events = Events("storage.disks", runtime.clock)

    async def measure(self, worker: Worker) -> None:
        """Look at every file system. Raises: StorageError if that of a journal cannot be looked at."""
        directories = self._directories
        paths = list(dict.fromkeys([*directories.ledgers, *directories.indexes, *directories.journals]))
        usages = await worker.run(self._measure, [path for path in paths if path not in self._health.failed])
        before, spaces = self.space, {}
        for path, usage in usages:
            if isinstance(usage, OSError):
                if not self._health.fail(path, f"its file system cannot be looked at: {usage}"):
                    raise StorageError(f"a directory has failed: {usage}") from usage
                continue
            was_full = path in before.spaces and before.spaces[path].is_full
            spaces[path] = Space.of(path, *usage, self.marks, was_full=was_full)
        self.space = DiskSpace(
            spaces, directories.ledgers, directories.indexes, directories.journals, any_full=self._any_full
        )
        self._health.crowded = self.space.crowded
        self._health.usable = {path: each.usable for path, each in spaces.items()}
        self._tell(before)
        self._conclude()

    def _conclude(self) -> None:
        was = self.is_full, self.has_priority_room
        self.is_full, self.has_priority_room = self.space.is_full, self.space.has_priority_room
        self.full_reason = self.space.reason(self.marks)
        if was != (self.is_full, self.has_priority_room) or self._health.has_news:
            self._on_change()

    def look_now(self) -> None:
        """A reservation has failed somewhere: do not wait for the next look."""
        self._hurry.set()

    def _measure(self, paths: Sequence[str]) -> list[tuple[str, tuple[int, int] | OSError]]:
        """On the worker."""
        found: list[tuple[str, tuple[int, int] | OSError]] = []
        for path in paths:
            try:
                found.append((path, self._disk.usage(path)))
            except OSError as error:
                found.append((path, error))
        return found

    def _tell(self, before: DiskSpace) -> None:
        for path, each in self.space.spaces.items():
            old = before.spaces.get(path)
            if each.is_full and not (old and old.is_full):
                self._events.warning("storage.disk_full", path=path, usable=each.usable, total=each.total)
            elif old and old.is_full and not each.is_full:
                self._events.info("storage.disk_has_room", path=path, usable=each.usable, total=each.total)
            elif each.is_almost_full and not (old and old.is_almost_full):
                self._events.warning("storage.disk_almost_full", path=path, usable=each.usable, total=each.total)

    async def run(self, worker: Worker) -> None:
        """Measure for ever. Raises: StorageError."""
        while True:
            is_urgent = self.space.is_almost_full and not self.space.is_full
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s / HURRY if is_urgent else self._interval_s):
                    await self._hurry.wait()
            self._hurry.clear()
            await self.measure(worker)
