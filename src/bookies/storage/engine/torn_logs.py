"""Torn parts of entry logs after a power failure, which may be ignored.

An entry log is synced before the index slots that name it. Bytes written after its last sync may be complete, partial
or missing after a power failure, which looks like damage in the middle of a log. No durable slot names these bytes.
Replay writes the entries again elsewhere, and copies by a compaction still have their source. So a rebuild of index
files skips these bytes, and only damage before them makes a ledger uncertain.

The catalog records how far the logs were synced (`Synced`). The record does not count if a mark is greater than the
catalog has announced: another program has run on these directories, or the end of the catalog is lost. Nor does it
count if its run id differs from that of the ledger directories: then it belongs to another bookie or another time.

Blocks; confined to the checkpoint's worker. Source: storage 2.9, 3.5, 5.5.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from bookies.runtime.ports import Disk
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.entry_log.log_directories import LogDirectories
from bookies.storage.entry_log.log_usage import find_logs
from bookies.storage.index.catalog_format import Synced
from bookies.storage.journal import LogMark


def torn_logs(
    disk: Disk,
    directories: LogDirectories,
    returned: Sequence[str],
    before: Mapping[int, int],
    synced: Synced,
) -> dict[int, int]:
    """Return entry log -> offset from which on it does not count, for existing logs. Raises: OSError.

    `returned`: directories that had failed, whose logs may have ids that were unknown then. `before`: the result of
    earlier starts with the same run id.
    """
    logs = find_logs(disk, directories)
    torn = {log_id: end for log_id, end in before.items() if log_id in logs}
    torn |= {log_id: min(end, torn.get(log_id, end)) for log_id, end in synced.ends.items() if log_id in logs}
    complete = complete_outputs(disk, directories)
    for log_id, path in logs.items():
        if log_id > synced.greatest_id and log_id not in complete and posixpath.dirname(path) not in returned:
            torn[log_id] = 0
    return torn


def empty_logs(disk: Disk, directories: LogDirectories, before: Mapping[int, int], first: int) -> dict[int, int]:
    """Return log -> 0 for logs without a complete header that need not have had one. Raises: OSError.

    `first`: the first log that this program did not sync. `before`: as in `torn_logs`; its empty logs stay.
    """
    empty: dict[int, int] = {}
    for log_id, path in find_logs(disk, directories).items():
        if log_id >= first or before.get(log_id) == 0:
            file = disk.open(path, "r")
            try:
                if file.size() < layout.HEADER_SIZE:
                    empty[log_id] = 0
            finally:
                file.close()
    return empty


def is_behind(synced: Synced | None, marks: Sequence[Sequence[LogMark]], run_id: bytes) -> bool:
    """Report whether the catalog is out of date: a mark is greater than it has announced, or it has another run id.

    `marks`: the marks in the mark files, by journal. `run_id`: of the directories, empty if unknown. Without `synced`
    the answer is unknown, and False.
    """
    if synced is None:
        return False
    if len(synced.marks) != len(marks) or (run_id and run_id != synced.run_id):
        return True
    return any(max(copies, default=LogMark()) > known for copies, known in zip(marks, synced.marks, strict=True))


def complete_outputs(disk: Disk, directories: LogDirectories) -> dict[int, None]:
    """Return the ids of complete compaction outputs, whose compactions the collector will finish."""
    outputs: dict[int, None] = {}
    for directory in directories.paths:
        for name in disk.list(directory):
            if (ids := layout.parse_compacted_name(name)) is not None and ids[1] is not None:
                outputs[directories.id_in(directory, ids[0])] = None
    return outputs
