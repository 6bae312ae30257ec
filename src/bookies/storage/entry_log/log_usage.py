"""Live bytes of each sealed entry log, by ledger, from its ledgers map or from a scan.

R-20: before a log is deleted because of its header, require a complete valid map with a non-zero count; otherwise scan.
A log without a map is scanned once and then *completed*: it gets its map, so no later start scans it again. Bytes after
its last good record are truncated if no index slot names them: a crash left them. Otherwise the log is damaged and
stays unchanged.

The blocking functions are confined to the collector's worker. Source: storage 3.3 to 3.5, 7.4.
"""

from __future__ import annotations

import posixpath
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct, field

from bookies.errors import CorruptRecord
from bookies.runtime.ports import Disk
from bookies.storage.disks.durable_files import sync_data, sync_directory
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.entry_log.log_directories import LogDirectories
from bookies.storage.records import Batch
from bookies.storage.records.record_scan import ScanEnd


class LogUsage(Struct):
    """Usage of one log. `ledger_ids`, ascending, and `sizes`, bytes of each, cover the ledgers that still exist.

    `total`: bytes of all its records, including those that no slot names any more. `dropped`: ids of the ledgers of
    which it has bytes and that do not exist any more.
    """

    log_id: int
    path: str
    total: int
    ledger_ids: array[int]
    sizes: array[int]
    remaining: int = 0
    dropped: array[int] = field(default_factory=partial(array, "q"))

    @classmethod
    def of(cls, log_id: int, path: str, sizes: Mapping[int, int], total: int = 0) -> LogUsage:
        """Build from bytes by ledger. `total`: bytes of all its records, if that is more."""
        ledger_ids = array("q", sorted(ledger_id for ledger_id, size in sizes.items() if size))
        size = sum(sizes.values())
        ledger_sizes = array("q", [sizes[ledger_id] for ledger_id in ledger_ids])
        return cls(log_id, path, max(size, total), ledger_ids, ledger_sizes, size)

    @property
    def share(self) -> float:
        """Return the share of the remaining bytes in all bytes, 0 to 1."""
        return self.remaining / self.total if self.total else 0.0

    def size_of(self, ledger_id: int) -> int:
        """Return the bytes of one ledger; 0 if it has none in this log, or was dropped."""
        at = bisect_left(self.ledger_ids, ledger_id)
        return self.sizes[at] if at < len(self.ledger_ids) and self.ledger_ids[at] == ledger_id else 0

    def keep(self, is_known: Callable[[int], bool]) -> None:
        """Drop ledgers that no longer exist."""
        kept = [index for index, ledger_id in enumerate(self.ledger_ids) if is_known(ledger_id)]
        if len(kept) < len(self.ledger_ids):
            all_ids, self.ledger_ids = self.ledger_ids, array("q", [self.ledger_ids[index] for index in kept])
            self.dropped.extend(sorted(set(all_ids).difference(self.ledger_ids)))
            self.sizes = array("q", [self.sizes[index] for index in kept])
            self.remaining = sum(self.sizes)


def find_logs(disk: Disk, logs: LogDirectories, among: Sequence[str] | None = None) -> dict[int, str]:
    """Return log id -> path of all files with an entry log's name, ascending by id.

    `among`: search only these directories. Raises: OSError, StorageError.
    """
    paths: dict[int, str] = {}
    for directory in logs.paths if among is None else among:
        for name in disk.list(directory):
            if (file_id := layout.parse_file_name(name)) is not None:
                paths.setdefault(logs.id_in(directory, file_id), posixpath.join(directory, name))
    return {log_id: paths[log_id] for log_id in sorted(paths)}


def twins_of(
    disk: Disk, logs: LogDirectories, log_ids: Sequence[int], paths: Mapping[int, str]
) -> dict[int, list[int]]:
    """Return for each of these logs the logs of the same file name and size, itself included. Raises: OSError.

    A conversion to databases gives one file a name in several directories. `paths`: of all logs.
    """
    twins: dict[int, list[int]] = {}
    for log_id in log_ids:
        same = [other for other in paths if logs.file_id(other) == logs.file_id(log_id)]
        sizes = {other: _size_of(disk, paths[other]) for other in same}
        twins[log_id] = [other for other in same if sizes[other] == sizes[log_id]]
    return twins


def _size_of(disk: Disk, path: str) -> int:
    file = disk.open(path, "r")
    try:
        return file.size()
    finally:
        file.close()


def read_map(disk: Disk, path: str) -> dict[int, int] | None:
    """Return the log's ledgers map; None if it must be scanned. Raises: OSError; CorruptRecord (unknown version)."""
    file = disk.open(path, "r")
    try:
        first = file.pread(layout.HEADER_SIZE, 0)
        if first.startswith(layout.MAGIC):
            layout.parse_header(first, path=path)
        return layout.read_ledgers_map(file.pread, file.size())
    finally:
        file.close()


def records_size(disk: Disk, path: str) -> int:
    """Return the bytes of records before the map of a log; 0 for one without a map. Raises: OSError."""
    file = disk.open(path, "r")
    try:
        header = layout.parse_header(file.pread(layout.HEADER_SIZE, 0), path=path)
    except CorruptRecord:
        return 0
    finally:
        file.close()
    return max(0, header.map_offset - layout.HEADER_SIZE) if header is not None else 0


def keys_of(disk: Disk, path: str) -> tuple[int, ...]:
    """Return the keys that the entries of a log may be sealed with; empty: they are not.

    Raises: OSError, CorruptRecord.
    """
    file = disk.open(path, "r")
    try:
        header = layout.parse_header(file.pread(layout.HEADER_SIZE, 0), path=path)
    finally:
        file.close()
    return () if header is None else header.keys


class LogScan:
    """A scan of a log, one batch at a time: call `read` until it returns a `ScanEnd`."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._file = disk.open(path, "r")
        self._items: Iterator[Batch | ScanEnd] = layout.scan(self._file.pread, self._file.size())

    def read(self) -> Batch | ScanEnd:
        """Return the next batch, or the end. Raises: OSError."""
        return next(self._items)

    def close(self) -> None:
        self._file.close()


def complete(disk: Disk, path: str, end: int, sizes: Mapping[int, int], *, may_be_sealed: bool = False) -> None:
    """Write the ledgers map of a log whose records end at `end`; truncate the rest.

    Rewrites the whole header, because a crash may have left none. `may_be_sealed`: the header is required, because only
    it tells whether the entries are sealed. Raises: OSError, SyncFailed, CorruptRecord.
    """
    file = disk.open(path, "r+")
    try:
        first = file.pread(layout.HEADER_SIZE, 0)
        header = layout.parse_header(first, path=path) if may_be_sealed or layout.is_sealed(first) else None
        keys = () if header is None else header.keys
        if file.size() > end:
            file.truncate(end)
        file.pwrite(layout.pack_ledgers_map(sorted(sizes.items())), end)
        sync_data(file)
        file.pwrite(layout.pack_header(end, len(sizes), keys), 0)
        sync_data(file)
    finally:
        file.close()
    sync_directory(disk, posixpath.dirname(path))
