"""The Disk port with failure detection: records failures by directory and refuses writes to failed directories.

Callers need not know which call failed first, and no later success counts on a device that has lost a write. Reads
still pass: readable data of a failed directory is served. Source: storage 8.4.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TypeVar

from bookies.runtime.ports import Buffer, Disk, File, Lock, ReadEnded, Submit, SubmitRead, Written
from bookies.storage.disks.directory_health import DirectoryHealth

T = TypeVar("T")

# Errors of a device or file system that is broken, removed or read-only. Others are the process's or the caller's.
BROKEN = frozenset(
    {
        errno.EIO,
        errno.EROFS,
        errno.ENODEV,
        errno.ENXIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        getattr(errno, "EUCLEAN", errno.EIO),
        getattr(errno, "ENOMEDIUM", errno.EIO),
        getattr(errno, "EREMOTEIO", errno.EIO),
    }
)


class WatchedFile:
    """A `ports.File` that reports failures. `root`: the directory that it belongs to, None if that is not watched."""

    __slots__ = ("_health", "path", "root", "unwatched")

    def __init__(self, file: File, root: str | None, health: DirectoryHealth) -> None:
        self.path = file.path
        self.root = root
        self.unwatched = file
        self._health = health

    def pread(self, size: int, offset: int) -> bytes:
        try:
            return self.unwatched.pread(size, offset)
        except OSError as error:
            _read_failed(self._health, self.path, offset, error)
            raise

    def pread_resident(self, size: int, offset: int) -> bytes | None:
        return self.unwatched.pread_resident(size, offset)

    def begin_read(self, submit: SubmitRead, size: int, offset: int, ended: ReadEnded) -> bool:
        return self.unwatched.begin_read(submit, size, offset, ended)  # `pread` finds and reports what fails

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._write(self.unwatched.pwrite, data, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._write(self.unwatched.pwritev, buffers, offset)

    def write_durably(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._write(self.unwatched.write_durably, buffers, offset)

    def begin_durable(self, submit: Submit, buffers: Sequence[Buffer], offset: int, done: Written) -> bool:
        if self.root in self._health.failed:
            return False  # `write_durably` raises the reason

        def written(outcome: bool | Exception) -> None:
            if isinstance(outcome, OSError):
                _write_failed(self._health, self.path, outcome)
            done(outcome)

        return self.unwatched.begin_durable(submit, buffers, offset, written)

    def fdatasync(self) -> None:
        self._write(self.unwatched.fdatasync)

    def fsync(self) -> None:
        self._write(self.unwatched.fsync)

    def truncate(self, size: int) -> None:
        self._write(self.unwatched.truncate, size)

    def allocate(self, offset: int, size: int) -> None:
        self._write(self.unwatched.allocate, offset, size)

    def size(self) -> int:
        return self._read(self.unwatched.size)

    def next_data(self, offset: int) -> int:
        return self._read(self.unwatched.next_data, offset)

    def drop_cache(self, offset: int, size: int) -> None:
        self.unwatched.drop_cache(offset, size)

    def close(self) -> None:
        self.unwatched.close()

    def _read(self, call: Callable[..., int], *arguments: object) -> int:
        try:
            return call(*arguments)
        except OSError as error:
            _read_failed(self._health, self.path, 0, error)
            raise

    def _write(self, call: Callable[..., None], *arguments: object) -> None:
        if self.root in self._health.failed:
            raise _refusal(self.path)
        try:
            call(*arguments)
        except OSError as error:
            _write_failed(self._health, self.path, error)
            raise


class WatchedDisk:
    """A `ports.Disk` that reports failures to `health`."""

    def __init__(self, disk: Disk, health: DirectoryHealth) -> None:
        self._disk = disk
        self._health = health

    # -- reading -------------------------------------------------------------------------------------------------
    def list(self, path: str) -> list[str]:
        return self._read(path, self._disk.list, path)

    def exists(self, path: str) -> bool:
        return self._read(path, self._disk.exists, path)

    def is_directory(self, path: str) -> bool:
        return self._read(path, self._disk.is_directory, path)

    def is_private(self, path: str) -> bool:
        return self._read(path, self._disk.is_private, path)

    def read_bytes(self, path: str) -> bytes:
        return self._read(path, self._disk.read_bytes, path)

    def usage(self, path: str) -> tuple[int, int]:
        return self._disk.usage(path)

    def device(self, path: str) -> int:
        return self._disk.device(path)

    def lock_directory(self, path: str) -> Lock:
        return self._disk.lock_directory(path)

    # -- writing -------------------------------------------------------------------------------------------------
    def open(self, path: str, mode: str) -> File:
        call = self._read if mode == "r" else self._write
        file = call(path, self._disk.open, path, mode)
        return WatchedFile(file, self._health.root_of(path), self._health)

    def make_directories(self, *paths: str) -> None:
        for path in paths:
            if self._health.is_failed(path):
                raise _refusal(path)
        try:
            self._disk.make_directories(*paths)
        except OSError as error:
            _write_failed(self._health, error.filename or paths[0], error)
            raise

    def rename(self, source: str, target: str) -> None:
        self._write(source, self._disk.rename, source, target)

    def link(self, source: str, target: str) -> None:
        self._write(source, self._disk.link, source, target)

    def remove_directory(self, path: str) -> None:
        self._write(path, self._disk.remove_directory, path)

    def unlink(self, path: str) -> None:
        self._write(path, self._disk.unlink, path)

    def sync_directory(self, path: str) -> None:
        self._write(path, self._disk.sync_directory, path)

    def sync_many(self, files: Sequence[File], directories: Sequence[str]) -> None:
        """Sync one watched directory at a time, so that a failure is attributed to its directory."""
        groups: dict[str | None, tuple[list[File], list[str]]] = {}
        for file in files:
            assert isinstance(file, WatchedFile)
            groups.setdefault(file.root, ([], []))[0].append(file.unwatched)
        for path in directories:
            groups.setdefault(self._health.root_of(path), ([], []))[1].append(path)
        for root, (group_files, paths) in groups.items():
            first = group_files[0].path if group_files else paths[0]
            if root in self._health.failed:
                raise _refusal(first)
            try:
                self._disk.sync_many(group_files, paths)
            except OSError as error:
                error.filename = error.filename or first
                _write_failed(self._health, first, error)
                raise

    def replace_bytes(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        def replace() -> None:
            self._disk.replace_bytes(path, data, is_private=is_private)

        self._write(path, replace)

    def _read(self, path: str, call: Callable[..., T], *arguments: object) -> T:
        try:
            return call(*arguments)
        except OSError as error:
            _read_failed(self._health, path, 0, error)
            raise

    def _write(self, path: str, call: Callable[..., T], *arguments: object) -> T:
        if self._health.failed and self._health.is_failed(path):
            raise _refusal(path)
        try:
            return call(*arguments)
        except OSError as error:
            _write_failed(self._health, path, error)
            raise


def _refusal(path: str) -> OSError:
    return OSError(errno.EIO, "its directory has failed; the bookie refuses writes to it", path)


def _write_failed(health: DirectoryHealth, path: str, error: OSError) -> None:
    if error.errno in BROKEN:
        health.fail(path, f"{path}: {error.strerror or error}")


def _read_failed(health: DirectoryHealth, path: str, offset: int, error: OSError) -> None:
    if error.errno in BROKEN:
        health.read_failed(path, offset, f"{path}: reads fail: {error.strerror or error}")
