"""Failover: the reaction to a failed ledger or index directory, which takes only itself out of service.

`DirectoryHealth` records failed directories, and `WatchedDisk` refuses writes to them. Here the loop reacts once to
each failure: it logs the failure, notes it durably in the remaining directories, and has the directory's index files
rebuilt elsewhere. Entry logs stay in the failed directory, and readable entries are served. The entry log writer writes
unsynced entries again elsewhere.

The note is for the next start, when the directory may be back: its index files and catalog are then older than those
elsewhere. Source: storage 8.2 to 8.4.
"""

from __future__ import annotations

import asyncio
import json
import posixpath
import zlib
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from bookies.encoding.documents import parse_json
from bookies.errors import DiskFull
from bookies.runtime.events import Events
from bookies.runtime.ports import Disk, Runtime, Worker
from bookies.storage.disks import DirectoryHealth
from bookies.storage.disks.durable_files import SyncFailed, replace_copies, sync_all, unlink_all
from bookies.storage.entry_log.entry_log_format import HEADER_SIZE, MAP_FIELDS_OFFSET, file_name, pack_map_fields
from bookies.storage.index import LedgerIndex
from bookies.storage.index.catalog_format import FILE_NAME as CATALOG
from bookies.storage.index.index_files import find_index_files

NOTE = "failed.directories"


class Note(Struct, frozen=True):
    """The note about failures. `failed`: directories. `lost`: entry log there -> end of its synced part."""

    failed: Sequence[str] = ()
    lost: Mapping[int, int] = field(default_factory=dict)


def pack_note(note: Note) -> bytes:
    """Return a line of JSON and a second line with its crc32."""
    facts = {"failed": list(note.failed), "lost": {f"{log_id:x}": end for log_id, end in note.lost.items()}}
    line = json.dumps(facts).encode() + b"\n"
    return line + f"{zlib.crc32(line):08x}\n".encode()


def parse_note(data: bytes) -> Note:
    """Parse a note; return an empty one for invalid data."""
    line = data[: data.find(b"\n") + 1]
    if not line or data[len(line) :] != f"{zlib.crc32(line):08x}\n".encode():
        return Note()
    try:
        facts = parse_json(line)
        lost = {int(log_id, 16): int(end) for log_id, end in facts["lost"].items()}
        return Note(list(map(str, facts["failed"])), lost)
    except (ValueError, TypeError, KeyError, AttributeError):
        return Note()


def read_notes(disk: Disk, directories: Sequence[str]) -> Note:
    """Merge all copies of the note; the failed directories may work again. Blocks. Raises: OSError."""
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
    """Truncate lost logs at the end of their synced part; no durable slot names more. Blocks. Raises: OSError."""
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
                file.pwrite(pack_map_fields(0, 0), MAP_FIELDS_OFFSET)  # the map was cut off; the header's keys stay
                sync_all(file)
            finally:
                file.close()


def drop_stale(disk: Disk, noted: Sequence[str], paths: dict[int, str], catalog: str) -> int:
    """Delete index files and the catalog in directories that had failed if newer ones are elsewhere. Blocks.

    `paths`: the current index files; `catalog`: the current catalog. Returns the number of files deleted.
    Raises: OSError, SyncFailed.
    """
    stale: list[str] = []
    for directory in noted:
        files = find_index_files(disk, [directory])
        stale += [path for ledger_id, path in files.items() if paths.get(ledger_id, path) != path]
        old = posixpath.join(directory, CATALOG)
        if old != catalog and disk.exists(old) and disk.exists(catalog):
            stale.append(old)
    unlink_all(disk, stale)
    return len(stale)


def remove_notes(disk: Disk, directories: Sequence[str]) -> None:
    """Remove the notes: the directories are in use again. Blocks. Raises: OSError, SyncFailed."""
    paths = [posixpath.join(directory, NOTE) for directory in directories]
    unlink_all(disk, [path for path in paths if disk.exists(path)])


class Failover:
    """The reaction to failed directories. Owned by the loop's thread.

    The checkpoint's worker writes the files; it must not wait for the caller.
    """

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
        self._noted = self._lost  # as the last note has them

    async def react(self, worker: Worker, lost: Mapping[int, int] | None = None) -> None:
        """React to the directories that have failed since the last call. Raises: StorageError; then state is unchanged.

        `lost`: all logs so far whose sync has failed -> end of their synced part.
        """
        async with self._lock:
            if lost is not None:
                self._lost = dict(lost)
            if not (self._health.has_new_failures or self._lost != self._noted):
                return
            # First the note, because from here on files elsewhere are newer than those in the directory.
            noted = self._lost
            await worker.run(self._write_note)
            self._noted = noted
            for directory in self._health.take_new_failures():
                count = self._index.directory_failed(directory)
                self._events.error(
                    "storage.directory_failed",
                    path=directory,
                    reason=self._health.failed[directory],
                    index_files=count,
                    consequence="the bookie no longer writes there; it serves readable entries of the logs there, and "
                    "reports none of them as missing",
                )

    def _write_note(self) -> None:
        """Write the note to every healthy directory, on the worker."""
        paths = [posixpath.join(directory, NOTE) for directory in self._health.healthy(self._directories)]
        try:
            replace_copies(self._disk, paths, pack_note(Note(list(self._health.failed), self._lost)))
        except OSError as error:
            raise DiskFull(f"no directory accepts {NOTE}: {error}") from error

    async def survives(self, error: Exception, worker: Worker) -> bool:
        """Report whether the error comes from a directory that is given up now, so the operation may be retried.

        A failed sync of another directory may not: the kernel has dropped what it could not write, and the next sync
        would succeed without it. That a directory has failed meanwhile says nothing about this one.
        """
        had_new_failures = self._health.has_new_failures
        try:
            await self.react(worker)
        except (OSError, DiskFull) as problem:
            self._events.error("storage.failover_failed", error=problem)
            return False
        return (had_new_failures and not isinstance(error, SyncFailed)) or self.covers(error)

    def covers(self, error: Exception) -> bool:
        """Report whether the error comes from a failed directory."""
        path = error.path if isinstance(error, SyncFailed) else getattr(error, "filename", None)
        return isinstance(path, str) and isinstance(error, SyncFailed | OSError) and self._health.is_failed(path)
