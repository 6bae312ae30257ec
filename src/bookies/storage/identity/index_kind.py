"""The start check for the kind of index, independent of the code that converts it (`conversion.py`)."""

from __future__ import annotations

import posixpath

from bookies.errors import StorageError
from bookies.runtime.ports import Disk

RECORD = "CONVERSION"  # a file in the first index directory's `current` while a conversion is in progress
LOCATIONS = "locations"  # a database in each index directory's `current` if the index is in RocksDB


def refuse_unconverted(disk: Disk, directories: list[str]) -> None:
    """Raise StorageError if these directories hold an index in RocksDB, or one whose conversion is incomplete."""
    for directory in directories:
        if disk.exists(posixpath.join(directory, RECORD)):
            raise StorageError(
                f"{directory}: a conversion of the index is incomplete. Nothing was changed. Finish it with the same "
                "bk bookie convert --to ... as before, or, if it has not switched yet, undo it with --cancel"
            )
        if disk.is_directory(posixpath.join(directory, LOCATIONS)):
            raise StorageError(
                f"{directory}: the index is in RocksDB databases (Apache's DbLedgerStorage, as Pulsar runs it). "
                f"Nothing was changed. Convert it: bk bookie convert {posixpath.dirname(directory)} --to index-files; "
                "entry logs stay where they are"
            )
