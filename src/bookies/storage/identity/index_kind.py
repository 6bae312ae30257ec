"""The start check for the kind of index, independent of the code that converts it (`conversion.py`)."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from bookies.errors import StorageError
from bookies.runtime.ports import Disk

RECORD = "CONVERSION"  # a file in the first index directory's `current` while a conversion is in progress
LOCATIONS = "locations"  # a database in each index directory's `current` if the index is in RocksDB
DATABASES = (LOCATIONS, "ledgers")
REBUILD = ".rebuild"  # a file beside a database of this name: what the database had must be rebuilt


def has_databases(disk: Disk, directory: str) -> bool:
    """Report whether the index in this `current` is in RocksDB, even if one of its databases was lost."""
    paths = [posixpath.join(directory, name) for name in DATABASES]
    return any(disk.is_directory(path) or disk.exists(path + REBUILD) for path in paths)


def check_kind(disk: Disk, directories: Sequence[str], *, is_rocksdb: bool) -> None:
    """Raise StorageError if these directories hold another kind of index than the settings say.

    The same for one whose conversion is incomplete. `is_rocksdb`: `ledger_index = rocksdb`.
    """
    for directory in directories:
        whole = posixpath.dirname(directory)
        if disk.exists(posixpath.join(directory, RECORD)):
            raise StorageError(
                f"{directory}: a conversion of the index is incomplete. Nothing was changed. Finish it with the same "
                "bk bookie convert --to ... as before, or, if it has not switched yet, undo it with --cancel"
            )
        if is_rocksdb and (path := _index_file_in(disk, directory)):
            raise StorageError(
                f"{directory}: the index is in index files ({path}), and ledger_index = rocksdb. Nothing was changed. "
                f"Serve it as it is: ledger_index = files; or convert it: bk bookie convert {whole} --to rocksdb"
            )
        if not is_rocksdb and has_databases(disk, directory):
            raise StorageError(
                f"{directory}: the index is in RocksDB databases (Apache's DbLedgerStorage, as Pulsar runs it), and "
                "ledger_index = files. Nothing was changed. Serve it as it is: ledger_index = rocksdb; or convert it: "
                f"bk bookie convert {whole} --to index-files"
            )


def _index_file_in(disk: Disk, directory: str) -> str:
    """Return the name of an index file; empty without one."""
    for group in _folders_in(disk, directory):
        for part in _folders_in(disk, posixpath.join(directory, group)):
            for name in disk.list(posixpath.join(directory, group, part)):
                if name.endswith(".idx"):
                    return posixpath.join(group, part, name)
    return ""


def _folders_in(disk: Disk, path: str) -> list[str]:
    if not disk.is_directory(path):
        return []
    return [name for name in disk.list(path) if len(name) <= 2 and disk.is_directory(posixpath.join(path, name))]
