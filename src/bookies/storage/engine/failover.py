"""What follows when a ledger or index directory has failed: it takes only itself out.

`DirectoryHealth` knows which have, `WatchedDisk` sees to it that nothing is written there any more. Here the loop draws
the conclusions, once for each: it says so, notes it durably in the directories that are left, and has the index files
that were there built again elsewhere. Entry logs there stay where they are: what can be read is served. What was
written there and not synced, the entry log's writer writes again elsewhere.

The note is for the next start, when the directory may be back: index files and the catalog there are older than those
elsewhere. Source: storage 8.2 to 8.4.
"""

from __future__ import annotations

import asyncio
import json
import posixpath
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bookies.errors import DiskFull
from bookies.runtime.events import Events
from bookies.runtime.ports import Disk, Runtime, Worker
from bookies.storage.disks import DirectoryHealth
from bookies.storage.disks.durable_files import SyncFailed, replace_copies, sync_all, unlink_all
from bookies.storage.entry_log.entry_log_format import HEADER_SIZE, file_name, pack_header
from bookies.storage.index import LedgerIndex
from bookies.storage.index.catalog_format import FILE_NAME as CATALOG
from bookies.storage.index.index_files import find_index_files

NOTE = "failed.directories"


@dataclass(frozen=True)
class Note:
    """`failed`: directories. `lost`: id of an entry log there to where its synced part ends; the rest is elsewhere."""

    failed: Sequence[str] = ()
    lost: Mapping[int, int] = field(default_factory=dict)


def pack_note(note: Note) -> bytes:
    """A line of JSON, and the crc32 of that line in another."""
    facts = {"failed": list(note.failed), "lost": {f"{log_id:x}": end for log_id, end in note.lost.items()}}
    line = json.dumps(facts).encode() + b"\n"
    return line + f"{zlib.crc32(line):08x}\n".encode()


def parse_note(data: bytes) -> Note:
    """An empty one if that is no note."""
    line = data[: data.find(b"\n") + 1]
    if not line or data[len(line) :] != f"{zlib.crc32(line):08x}\n".encode():
        return Note()
    facts = json.loads(line)
    return Note(facts["failed"], {int(log_id, 16): end for log_id, end in facts["lost"].items()})


def read_notes(disk: Disk, directories: Sequence[str]) -> Note:
    """What any copy of the note says; the directories may be all right now. Blocks. Raises: OSError."""
    failed: dict[str, None] = {}
    lost: dict[int, int] = {}
    for directory in directories:
        path = posixpath.join(directory, NOTE)
        if disk.exists(path):
            note = parse_note(disk.read_bytes(path))
            failed.update(dict.fromkeys(note.failed))
            lost.update(note.lost)
    return Note(list(failed), lost)


def cut_lost(disk: Disk, directories: Sequence[str], lost: Mapping[int, int]) -> None:
    """Give lost logs the end of their synced part. No slot that is durable names more. Blocks. Raises: OSError."""
    for log_id, end in lost.items():
        for directory in directories:
            path = posixpath.join(directory, file_name(log_id))
            if not disk.exists(path):
                continue
            if end <= HEADER_SIZE:
                unlink_all(disk, [path])
                continue
            file = disk.open(path, "r+")
            try:
                if file.size() > end:
                    file.truncate(end)
                file.pwrite(pack_header(), 0)  # without a map: that was behind
                sync_all(file)
            finally:
                file.close()


def drop_stale(disk: Disk, noted: Sequence[str], paths: dict[int, str], catalog: str) -> int:
    """Remove what is older, in directories that had failed, than what is elsewhere: index files, the catalog. Blocks.

    `paths`: of the index files that count; `catalog`: of the one that counts. How many. Raises: OSError; SyncFailed.
    """
    stale: list[str] = []
    for directory in noted:
        found = find_index_files(disk, [directory])
        stale += [path for ledger_id, path in found.items() if paths.get(ledger_id, path) != path]
        old = posixpath.join(directory, CATALOG)
        if old != catalog and disk.exists(old) and disk.exists(catalog):
            stale.append(old)
    unlink_all(disk, stale)
    return len(stale)


def remove_notes(disk: Disk, directories: Sequence[str]) -> None:
    """The directories are as good as all others again. Blocks. Raises: OSError; SyncFailed."""
    paths = [posixpath.join(directory, NOTE) for directory in directories]
    unlink_all(disk, [path for path in paths if disk.exists(path)])


class Failover:
    """Owned by the loop's thread; files are the checkpoint's worker's, which must not wait for the caller."""

    def __init__(
        self, runtime: Runtime, directories: Sequence[str], health: DirectoryHealth, index: LedgerIndex
    ) -> None:
        self._disk = runtime.disk
        self._directories = list(dict.fromkeys(directories))
        self._health = health
        self._index = index
        self._events = Events("storage.disks", runtime.clock)
        self._lock = asyncio.Lock()
        self._lost: dict[int, int] = {}

    async def react(self, worker: Worker, lost: Mapping[int, int] | None = None) -> None:
        """Draw the conclusions from what has failed since the last call. Raises: StorageError, without any of them.

        `lost`: logs whose sync has failed, with where their synced part ends; all of them so far.
        """
        async with self._lock:
            is_new = lost is not None and lost != self._lost
            if lost is not None:
                self._lost = dict(lost)
            if not (self._health.has_new_failures or is_new):
                return
            # First the note: from here on files elsewhere are newer than those there.
            await worker.run(self._write_note)
            for directory in self._health.take_new_failures():
                count = self._index.abandon(directory)
                self._events.error(
                    "storage.directory_failed",
                    path=directory,
                    reason=self._health.failed[directory],
                    index_files=count,
                    consequence="nothing is written there any more; entries of its logs are served if they can be "
                    "read, and never denied",
                )

    def _write_note(self) -> None:
        """On the worker."""
        paths = [posixpath.join(each, NOTE) for each in self._health.healthy(self._directories)]
        try:
            replace_copies(self._disk, paths, pack_note(Note(list(self._health.failed), self._lost)))
        except OSError as error:
            raise DiskFull(f"no directory takes {NOTE}: {error}") from error

    async def survives(self, error: Exception, worker: Worker) -> bool:
        """Whether the error is that of a directory that is given up now: then what failed may be tried again."""
        had_news = self._health.has_new_failures
        try:
            await self.react(worker)
        except (OSError, DiskFull) as problem:
            self._events.error("storage.failover_failed", error=problem)
            return False
        return had_news or self.covers(error)

    def covers(self, error: Exception) -> bool:
        """Whether the error comes from a directory that was given up."""
        path = error.path if isinstance(error, SyncFailed) else getattr(error, "filename", None)
        return isinstance(path, str) and isinstance(error, SyncFailed | OSError) and self._health.is_failed(path)
