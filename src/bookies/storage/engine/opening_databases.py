"""The start of a bookie whose index is in databases: open them, and rebuild what was lost with one.

Source: storage 6.3, 6.4, 10.2.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from bookies.errors import StorageError
from bookies.runtime.events import Events
from bookies.storage.engine.rebuild import ledgers_in_logs
from bookies.storage.engine.storage_parts import StorageParts
from bookies.storage.engine.torn_logs import is_behind
from bookies.storage.entry_log.log_usage import find_logs
from bookies.storage.index.catalog_format import Contents
from bookies.storage.journal import LogMark
from bookies.storage.rocksdb.database_files import OpenDatabases, OpenedDatabases
from bookies.storage.rocksdb.rocksdb_format import LEDGERS, NAMES


async def open_databases(
    parts: StorageParts, catalog: Contents | None, marks: Sequence[Sequence[LogMark]], events: Events
) -> OpenedDatabases:
    """Open the databases of the index; without any return an empty result. Raises: StorageError, OSError."""
    if parts.databases is None:
        if catalog is not None and catalog.versions:
            raise StorageError(
                f"{parts.directories.indexes[0]}: the index was in RocksDB databases, which are missing, and "
                "ledger_index = files. Restore them, or set ledger_index = rocksdb: the start rebuilds the index from "
                "the entry logs"
            )
        return OpenedDatabases()
    opened = await parts.checkpointer.worker.run(_open, parts, parts.databases, catalog, marks)
    for path, problem in opened.lost.items():
        events.error(
            "storage.database_lost",
            path=path,
            problem=problem,
            consequence="what it had is rebuilt from the entry logs; until then no entry is reported as missing",
        )
    return opened


def _open(
    parts: StorageParts,
    databases: Sequence[OpenDatabases],
    catalog: Contents | None,
    marks: Sequence[Sequence[LogMark]],
) -> OpenedDatabases:
    versions = catalog.versions if catalog is not None else ()
    size = 2 * len(NAMES)  # of the versions of a directory
    if versions and len(versions) != size * len(databases):
        raise StorageError(
            f"{parts.directories.indexes[0]}: the index is in databases of {len(versions) // size} directories, and "
            f"the settings name {len(databases)}. Their number decides where each ledger is. Nothing was changed. Name "
            "the same directories as before"
        )
    for pair in databases:
        pair.check_order()
    synced = catalog.synced if catalog is not None and not catalog.problem else None
    run_id = parts.directories.run_id
    is_own = bool(run_id) and synced is not None and synced.run_id == run_id and not is_behind(synced, marks, run_id)
    is_new = not versions and not find_logs(parts.runtime.disk, parts.logs)
    opened = OpenedDatabases()
    for number, pair in enumerate(databases):
        noted = versions[size * number : size * (number + 1)]
        opened.add(pair.open(noted, is_new=is_new, may_be_cut=is_own and bool(versions)))
    return opened


def note_uncertain(parts: StorageParts, opened: OpenedDatabases) -> None:
    """Note the ledgers in limbo, and continue rebuilding those that a process has left unfinished."""
    for ledger_id, header in opened.uncertain.items():
        if ledger_id in parts.index.places.paths:
            parts.index.catalog.limbo.follow(ledger_id, header)
            if header.is_rebuilding:
                parts.index.rebuilds.want(ledger_id)


async def rebuild_lost(parts: StorageParts, opened: OpenedDatabases) -> None:
    """Have ledgers rebuilt whose locations or data were lost. Raises: StorageError, OSError."""
    index, indexes = parts.index, parts.directories.indexes
    lost = {indexes.index(posixpath.dirname(path)): None for path in opened.lost}
    for ledger_id in list(index.ledger_ids()):  # without `ledgers`, those that the replay has named
        if parts.logs.space_of(ledger_id) in lost:
            await index.mark_uncertain(ledger_id)
    if any(posixpath.basename(path) == LEDGERS for path in opened.lost):
        worker, disk = parts.checkpointer.worker, parts.runtime.disk
        for ledger_id in await worker.run(ledgers_in_logs, disk, parts.logs):
            if parts.logs.space_of(ledger_id) in lost and not parts.removals.is_deleted(ledger_id):
                await index.rebuild_if_missing(ledger_id)
