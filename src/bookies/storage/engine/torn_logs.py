"""What a power failure may have torn in the entry logs, and why it is not missed.

An entry log is written at leisure and synced before a slot that names it is. What was written after the last sync may
be there, in part or not at all, and in the middle of a log that looks like damage. But no durable slot names it, and
the replay writes all of it again, elsewhere; copies made by a compaction still have their source. So who reads the
logs to build index files again passes over it, and only damage before that makes a ledger uncertain.

How far the logs were synced stands in the catalog (`Synced`). That is not believed where a mark is greater than what
the catalog has announced: another program has run on these directories, or the end of the catalog is lost. Nor where
it does not name the same run as the ledger directories do: then it is another bookie's, or of another time.

Blocks; confined to the checkpoint's worker. Source: storage 2.9, 3.5, 5.5.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from bookies.runtime.ports import Disk
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.entry_log.log_usage import find_logs
from bookies.storage.index.catalog_format import Synced
from bookies.storage.journal import LogMark


def torn_logs(
    disk: Disk,
    directories: Sequence[str],
    returned: Sequence[str],
    before: Mapping[int, int],
    synced: Synced,
) -> dict[int, int]:
    """Entry log to the byte from which on it does not count, of those that are there. Raises: OSError.

    `returned`: directories that had failed, where logs may have ids that nobody knew of then. `before`: the same of
    earlier starts of the same run.
    """
    logs = find_logs(disk, directories)
    torn = {log_id: end for log_id, end in before.items() if log_id in logs}
    if synced.log_id in logs:
        torn[synced.log_id] = min(synced.end, torn.get(synced.log_id, synced.end))
    complete = _outputs(disk, directories)
    for log_id, path in logs.items():
        if log_id > synced.greatest_id and log_id not in complete and posixpath.dirname(path) not in returned:
            torn[log_id] = 0
    return torn


def is_behind(synced: Synced | None, marks: Sequence[Sequence[LogMark]], run_id: bytes) -> bool:
    """Whether the catalog lacks something: a mark is greater than what it has announced, or it is another one.

    `marks`: what the mark files say of each journal. `run_id`: what the directories say, empty if they do not. Without
    `synced` nobody knows.
    """
    if synced is None:
        return False
    if len(synced.marks) != len(marks) or (run_id and run_id != synced.run_id):
        return True
    return any(max(found, default=LogMark()) > known for found, known in zip(marks, synced.marks, strict=True))


def _outputs(disk: Disk, directories: Sequence[str]) -> dict[int, None]:
    """Complete outputs of compactions, which will be taken to their end."""
    found: dict[int, None] = {}
    for directory in directories:
        for name in disk.list(directory):
            if (ids := layout.parse_compacted_name(name)) is not None and ids[1] is not None:
                found[ids[0]] = None
    return found
