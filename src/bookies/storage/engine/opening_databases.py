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
from bookies.storage.rocksdb.database_files import OpenedDatabases
from bookies.storage.rocksdb.rocksdb_format import LEDGERS


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
    opened = await parts.checkpointer.worker.run(_open, parts, catalog, marks)
    for name, problem in opened.lost.items():
        events.error(
            "storage.database_lost",
            path=posixpath.join(parts.databases.directory, name),
            problem=problem,
            consequence="what it had is rebuilt from the entry logs; until then no entry is reported as missing",
        )
    return opened


def _open(parts: StorageParts, catalog: Contents | None, marks: Sequence[Sequence[LogMark]]) -> OpenedDatabases:
    assert parts.databases is not None
    versions = catalog.versions if catalog is not None else ()
    synced = catalog.synced if catalog is not None and not catalog.problem else None
    run_id = parts.directories.run_id
    is_own = bool(run_id) and synced is not None and synced.run_id == run_id and not is_behind(synced, marks, run_id)
    is_new = not versions and not find_logs(parts.runtime.disk, parts.directories.ledgers)
    return parts.databases.open(versions, is_new=is_new, may_be_cut=is_own and bool(versions))


def note_uncertain(parts: StorageParts, opened: OpenedDatabases) -> None:
    """Note the ledgers in limbo, and continue rebuilding those that a process has left unfinished."""
    for ledger_id, header in opened.uncertain.items():
        if ledger_id in parts.index.places.paths:
            parts.index.catalog.limbo.follow(ledger_id, header)
            if header.is_rebuilding:
                parts.index.rebuilds.want(ledger_id)


async def rebuild_lost(parts: StorageParts, opened: OpenedDatabases) -> None:
    """Have ledgers rebuilt whose locations or data were lost. Raises: StorageError, OSError."""
    index = parts.index
    for ledger_id in list(index.ledger_ids()):  # without `ledgers`, those that the replay has named
        await index.mark_uncertain(ledger_id)
    if LEDGERS in opened.lost:
        worker, disk = parts.checkpointer.worker, parts.runtime.disk
        for ledger_id in await worker.run(ledgers_in_logs, disk, parts.directories.ledgers):
            if not parts.removals.is_deleted(ledger_id):
                await index.rebuild_if_missing(ledger_id)
