"""A bounded cache of open files that closes the least recently used. Each instance is confined to one worker."""

from __future__ import annotations

from bookies.runtime.ports import Disk, File


class FileCache:
    """Open files by path. Only the cache closes them, so a file stays usable until the next `get`."""

    def __init__(self, disk: Disk, count_max: int) -> None:
        assert count_max >= 1
        self._disk = disk
        self._count_max = count_max
        self._files: dict[str, File] = {}  # the least recently used first

    def get(self, path: str, mode: str) -> File:
        """Return the open file; open it with `mode` if necessary. Raises: OSError."""
        file = self._files.pop(path, None)
        if file is None:
            file = self._disk.open(path, mode)
            while len(self._files) >= self._count_max:
                self._files.pop(next(iter(self._files))).close()
        self._files[path] = file
        return file

    def forget(self, path: str) -> None:
        """Close a file whose path is about to be removed or to name another file."""
        if (file := self._files.pop(path, None)) is not None:
            file.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
