"""Durable file operations whose sync failures have an exception of their own.

A failed write may be retried elsewhere. A failed sync must not: the kernel may have dropped the dirty pages, and
would then report success. `SyncFailed` stops the bookie; replay of the journal restores what was lost.

Source: storage 2.7, 8.4.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Sequence

from bookies.errors import DiskFull, StorageError
from bookies.runtime.ports import Disk, File, Worker


class SyncFailed(StorageError):
    """A sync failed, so it is unknown whether the written bytes are on the device. `path`: the file or directory."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


def sync_data(file: File) -> None:
    """Call `fdatasync`. Raises SyncFailed."""
    try:
        file.fdatasync()
    except (OSError, DiskFull) as error:
        raise SyncFailed(file.path, f"sync failed: {error}") from error


def sync_all(file: File) -> None:
    """Call `fsync`. Raises SyncFailed."""
    try:
        file.fsync()
    except (OSError, DiskFull) as error:
        raise SyncFailed(file.path, f"sync failed: {error}") from error


def sync_directory(disk: Disk, path: str) -> None:
    """Make names durable. Raises SyncFailed."""
    try:
        disk.sync_directory(path)
    except (OSError, DiskFull) as error:
        raise SyncFailed(path, f"sync of the directory failed: {error}") from error


def sync_many(disk: Disk, files: Sequence[File], directories: Sequence[str] = ()) -> None:
    """Sync files and directories with as few system calls as possible. Raises SyncFailed."""
    try:
        disk.sync_many(files, directories)
    except (OSError, DiskFull) as error:
        first = getattr(error, "filename", None) or (files[0].path if files else directories[0])
        raise SyncFailed(first, f"sync of this and others failed: {error}") from error


def replace_bytes(disk: Disk, path: str, data: bytes) -> None:
    """Call `Disk.replace_bytes`; on failure remove its temporary file. Raises: DiskFull, OSError."""
    try:
        disk.replace_bytes(path, data)
    except (OSError, DiskFull):
        directory, name = posixpath.split(path)
        remove(disk, posixpath.join(directory, f".{name}.tmp"))
        raise


def replace_copies(disk: Disk, paths: Sequence[str], data: bytes) -> None:
    """Replace every one of these files with `data`; one success is enough.

    Raises the first failure, DiskFull or OSError, if all fail.
    """
    failures: list[Exception] = []
    for path in paths:
        try:
            replace_bytes(disk, path, data)
        except (OSError, DiskFull) as error:
            failures.append(error)
    if len(failures) == len(paths):
        raise failures[0]


def remove(disk: Disk, path: str) -> None:
    """Remove an unneeded file if it exists. Failures are ignored: a leftover does no harm."""
    with contextlib.suppress(OSError, DiskFull):
        disk.unlink(path)


def unlink_all(disk: Disk, paths: Sequence[str]) -> None:
    """Remove files durably; missing files are skipped. Raises: OSError, SyncFailed."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path)
    for directory in dict.fromkeys(posixpath.dirname(path) for path in paths):
        sync_directory(disk, directory)


def run_last(worker: Worker, call: Callable[[], None]) -> None:
    """Run a call that closes files, then end the worker. Its failure is ignored: the files are no longer used."""
    future = worker.run(call)
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    worker.close()
