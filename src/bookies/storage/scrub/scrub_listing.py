"""The list of entry logs for the scrub, and the copies of its progress. The scrub's worker reads and writes them."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from collections.abc import Sequence
from typing import NamedTuple

from bookies.errors import DiskFull
from bookies.protocol.pacing import RateLimit
from bookies.runtime.events import Events
from bookies.runtime.ports import Disk, Runtime, Worker
from bookies.storage.disks.durable_files import replace_copies
from bookies.storage.engine import StorageParts
from bookies.storage.entry_log.log_usage import find_logs
from bookies.storage.scrub import scrub_format
from bookies.storage.scrub.scrub_format import Progress
from bookies.storage.scrub.scrub_plan import Plan

LIST_S = 10.0  # between two listings of the directories, and updates of the pace, while logs are checked


class Listing(NamedTuple):
    """The entry logs of a bookie: paths and sizes by id, the active log, and its synced bytes (`extent`).

    `is_whole`: every ledger directory could be listed.
    """

    paths: dict[int, str]
    sizes: dict[int, int]
    active_id: int = -1
    extent: int = 0
    is_whole: bool = True


class LogList:
    """The entry logs of a bookie, as last listed by `update`, which also sets the pace: the rate of `limit`."""

    def __init__(self, runtime: Runtime, parts: StorageParts, worker: Worker, plan: Plan, limit: RateLimit) -> None:
        self.listing = Listing({}, {})
        self._clock = runtime.clock
        self._disk = runtime.disk
        self._plan = plan
        self._limit = limit
        self._parts = parts
        self._worker = worker
        self._listed_s = 0.0

    @property
    def is_old(self) -> bool:
        return asyncio.get_running_loop().time() - self._listed_s > LIST_S

    async def update(self) -> None:
        """List the directories, and set the pace. Raises: OSError."""
        log = self._parts.checkpointer.log
        active_id, extent = await log.worker.run(log.writer.extent)
        known = {log_id: size for log_id, size in self.listing.sizes.items() if log_id != self.listing.active_id}
        directories = self._parts.directories.ledgers
        good = self._parts.health.healthy(directories)
        paths, sizes, is_listed = await self._worker.run(measure, self._disk, good, known)
        if active_id in sizes:
            sizes[active_id] = min(sizes[active_id], extent)
        is_whole = is_listed and len(good) == len(directories)
        self._listed_s = asyncio.get_running_loop().time()
        self.listing = Listing(paths, sizes, active_id, extent, is_whole)
        now_ms = self._clock.wall_ms()
        self._plan.update_logs(paths, now_ms, is_new_pass=False, is_whole=is_whole)
        self._limit.rate = self._plan.rate(now_ms, sizes)


def measure(
    disk: Disk, directories: Sequence[str], known: dict[int, int]
) -> tuple[dict[int, str], dict[int, int], bool]:
    """Return (paths, sizes, whether all could be listed) of entry logs. `known`: sizes that cannot change any more."""
    paths, sizes, is_whole = dict[int, str](), dict[int, int](), True
    for directory in directories:
        try:
            logs = find_logs(disk, [directory])
        except OSError:
            is_whole = False
            continue
        for log_id, path in logs.items():
            size = known.get(log_id)
            if size is None:
                try:
                    size = _size_of(disk, path)
                except FileNotFoundError:
                    continue  # It has been removed.
                except OSError:
                    size = 0  # The check of the log will report the error.
            paths[log_id], sizes[log_id] = path, size
    return paths, sizes, is_whole


def _size_of(disk: Disk, path: str) -> int:
    file = disk.open(path, "r")
    try:
        return file.size()
    finally:
        file.close()


def read_copies(disk: Disk, paths: Sequence[str]) -> list[tuple[str, bytes]]:
    """Return (path, content) of each copy that can be read."""
    copies = []
    for path in paths:
        with contextlib.suppress(OSError):
            copies.append((path, disk.read_bytes(path)))
    return copies


class ProgressFiles:
    """The copies of the scrub's progress, one in each healthy ledger directory. `is_loaded`: set by `load`."""

    def __init__(self, disk: Disk, parts: StorageParts, worker: Worker, events: Events) -> None:
        self.is_loaded = asyncio.Event()
        self._disk = disk
        self._parts = parts
        self._worker = worker
        self._events = events
        self._sequence = 0

    def _paths(self) -> list[str]:
        good = self._parts.health.healthy(self._parts.directories.ledgers)
        return [posixpath.join(directory, scrub_format.FILE_NAME) for directory in good]

    async def load(self) -> Progress | None:
        """Return the newest progress; None without any."""
        copies = await self._worker.run(read_copies, self._disk, self._paths())
        self._sequence, progress, damaged = scrub_format.newest(copies)
        for error in damaged:
            self._events.error(
                "scrub.progress_damaged", path=error.path, error=error, consequence="the scrub starts over"
            )
        return progress

    async def save(self, progress: Progress) -> None:
        """Make progress and findings durable. A failed write is logged and does not stop the scrub."""
        self._sequence += 1
        data = scrub_format.pack(self._sequence, progress)
        try:
            await self._worker.run(replace_copies, self._disk, self._paths(), data)
        except (OSError, DiskFull) as error:
            self._events.warning("scrub.progress_not_kept", error=error)
