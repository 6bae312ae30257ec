"""Listing of entry logs for the scrub, and the copies of its progress. Blocks; runs on the scrub's worker."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from bookies.runtime.ports import Disk
from bookies.storage.entry_log.log_usage import find_logs


class Listing(NamedTuple):
    """The entry logs of a bookie: paths and sizes by id, the active log, and its synced bytes (`extent`).

    `is_whole`: every ledger directory could be listed.
    """

    paths: dict[int, str]
    sizes: dict[int, int]
    active_id: int = -1
    extent: int = 0
    is_whole: bool = True


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
