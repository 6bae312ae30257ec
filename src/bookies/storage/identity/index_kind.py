"""Whether an index is one of index files: what every start asks, without all that can convert it (`conversion.py`)."""

from __future__ import annotations

import posixpath

from bookies.errors import StorageError
from bookies.runtime.ports import Disk

RECORD = "CONVERSION"  # a file in the first index directory's `current`: a conversion is under way
LOCATIONS = "locations"  # a database in each index directory's `current` where the index is in RocksDB


def refuse_unconverted(disk: Disk, directories: list[str]) -> None:
    """Raises StorageError if these index directories are not ones of index files, or not yet."""
    for directory in directories:
        if disk.exists(posixpath.join(directory, RECORD)):
            raise StorageError(
                f"{directory}: a conversion of the index has not ended. Nothing was changed. Finish it with the same "
                "bk bookie convert --to ... as before, or, if it has not yet switched, --cancel it"
            )
        if disk.is_directory(posixpath.join(directory, LOCATIONS)):
            raise StorageError(
                f"{directory}: the index is in RocksDB databases (Apache's DbLedgerStorage, as Pulsar runs it). "
                f"Nothing was changed. Convert it: bk bookie convert {posixpath.dirname(directory)} --to index-files; "
                "entry logs stay where they are"
            )
