"""The list of entry logs for the scrub, and the copies of its progress. The scrub's worker reads and writes them."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from bookies.errors import DiskFull
from bookies.protocol.pacing import RateLimit
from bookies.runtime.events import Events
from bookies.runtime.ports import Disk, Runtime, Worker
from bookies.storage.disks.durable_files import replace_copies
from bookies.storage.engine import StorageParts
from bookies.storage.entry_log.log_directories import LogDirectories
from bookies.storage.entry_log.log_usage import find_logs
from bookies.storage.scrub import scrub_format
from bookies.storage.scrub.scrub_format import Progress
from bookies.storage.scrub.scrub_plan import Plan

LIST_S = 10.0  # between two listings of the directories, and updates of the pace, while logs are checked


class Listing(NamedTuple):
    """The entry logs of a bookie: paths and sizes by id, and the synced bytes of the active ones (`extents`).

    `is_whole`: every ledger directory could be listed.
    """

    paths: dict[int, str]
    sizes: dict[int, int]
    extents: Mapping[int, int] = MappingProxyType({})
    is_whole: bool = True


class LogList:
    """The entry logs of a bookie, as last listed by `update`, which also sets the pace: the rate of `limit`."""

    def __init__(self, runtime: Runtime, parts: StorageParts, worker: Worker, plan: Plan, limit: RateLimit) -> None:
        self.directories = parts.logs
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
        extents = await log.worker.run(log.writer.extents)
        before = self.listing
        known = {log_id: size for log_id, size in before.sizes.items() if log_id not in before.extents}
        directories = self._parts.directories.ledgers
        good = self._parts.health.healthy(directories)
        paths, sizes, is_listed = await self._worker.run(measure, self._disk, self._parts.logs, good, known)
        sizes |= {log_id: min(sizes[log_id], extent) for log_id, extent in extents.items() if log_id in sizes}
        is_whole = is_listed and len(good) == len(directories)
        self._listed_s = asyncio.get_running_loop().time()
        self.listing = Listing(paths, sizes, extents, is_whole)
        now_ms = self._clock.wall_ms()
        self._plan.update_logs(paths, now_ms, is_new_pass=False, is_whole=is_whole)
        self._limit.rate = self._plan.rate(now_ms, sizes)


def measure(
    disk: Disk, directories: LogDirectories, among: Sequence[str], known: dict[int, int]
) -> tuple[dict[int, str], dict[int, int], bool]:
    """Return (paths, sizes, whether all could be listed) of entry logs. `known`: sizes that cannot change any more."""
    paths, sizes, is_whole = dict[int, str](), dict[int, int](), True
    for directory in among:
        try:
            logs = find_logs(disk, directories, [directory])
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
