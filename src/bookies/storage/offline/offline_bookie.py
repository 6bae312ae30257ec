"""The directories of a stopped bookie, from its cookies, with those that are missing.

Tools that change a bookie's files use this list. If a disk is not mounted, its path is missing or empty. A tool that
ignored that would build indexes without the disk's files, or write where the disk will be mounted.

Source: storage 1.2, 9.1.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence

from msgspec import Struct, field

from bookies.config import ROCKSDB, BookieConfig
from bookies.configuration import configured
from bookies.errors import CorruptRecord, StorageError
from bookies.runtime.ports import Disk
from bookies.storage.identity import Cookie, cookie
from bookies.storage.identity.index_kind import has_databases
from bookies.storage.index import catalog_format
from bookies.storage.offline.inspection import current_of


class Offline(Struct):
    """A stopped bookie. `journals`, `ledgers`, `indexes`: existing directories. `problems`: by path.

    `has_all_indexes`: no directory of index files has a problem. `has_databases`: the index is in RocksDB.
    """

    journals: list[str]
    ledgers: list[str]
    indexes: list[str]
    problems: dict[str, str] = field(default_factory=dict)
    has_all_indexes: bool = True
    has_databases: bool = False

    def config(self) -> BookieConfig:
        """Return the settings of the environment and of BK_CONFIG with these directories. Raises: StorageError."""
        for path, problem in self.problems.items():
            raise StorageError(f"{path}: {problem}. No file was changed. Restore it, or mount the disk, first")
        return configured(
            BookieConfig,
            ledger_index=ROCKSDB if self.has_databases and len(self.ledgers) == len(self.indexes) else "files",
            journal_directories=tuple(self.journals),
            ledger_directories=tuple(self.ledgers),
            index_directories=() if self.indexes == self.ledgers else tuple(self.indexes),
        )


def bookie_at(disk: Disk, path: str) -> Offline:
    """Return the bookie that has `path` as one of its directories. Reads only. Raises: OSError."""
    bookie = _bookie_at(disk, path)
    currents = [posixpath.join(directory, cookie.CURRENT) for directory in bookie.indexes]
    bookie.has_databases = any(has_databases(disk, directory) for directory in currents)
    return bookie


def _bookie_at(disk: Disk, path: str) -> Offline:
    own, problem = _cookie_in(disk, path)
    if own is None:
        return Offline([path], [path], [path], {path: problem})
    base = _base_of(path, own)
    if base is None:
        return _elsewhere(path, own)
    bookie = Offline([], [], [])
    names = (own.journals, own.ledger_directories, own.directories_of_index)
    for listed, existing in zip(names, (bookie.journals, bookie.ledgers, bookie.indexes), strict=True):
        for name in listed:
            place = posixpath.join(base, name)
            if problem := _problem_of(disk, place, own, path):
                bookie.problems[place] = problem
                bookie.has_all_indexes = bookie.has_all_indexes and existing is not bookie.indexes
            if disk.is_directory(place):
                existing.append(place)
    return bookie


def _base_of(path: str, own: Cookie) -> str | None:
    """Return the base of the cookie's relative paths; None if the cookie does not name `path`.

    Tries `path` as given, absolute, and with links resolved.
    """
    for form in (os.path.normpath(path), os.path.abspath(path)):
        if (base := own.base_of(_without_current(form))) is not None:
            return base
    real = _without_current(os.path.realpath(path))
    return "" if any(os.path.isabs(name) and os.path.realpath(name) == real for name in own.directories) else None


def _without_current(path: str) -> str:
    return os.path.dirname(path) if os.path.basename(path) == cookie.CURRENT else path


def _elsewhere(path: str, own: Cookie) -> Offline:
    """Return only `path`, a copy or another mount point. A bookie may run in the directories that the cookie names."""
    if len(own.directories) == 1:
        return Offline([path], [path], [path])
    problem = f"it is not what its cookie names ({', '.join(own.directories)}): a copy, or mounted elsewhere"
    return Offline([path], [path], [path], {path: problem})


def _problem_of(disk: Disk, path: str, own: Cookie, named_in: str) -> str:
    if not disk.is_directory(path):
        return f"it is missing, and the cookie in {named_in} names it: bookie {own.bookie} has files in it"
    actual, problem = _cookie_in(disk, path)
    if actual is None:
        return problem
    if (actual.bookie, actual.instance_id) != (own.bookie, own.instance_id):
        return f"it belongs to bookie {actual.bookie} of cluster {actual.instance_id}, not to {own.bookie}"
    return ""


def _cookie_in(disk: Disk, path: str) -> tuple[Cookie | None, str]:
    """Return (the cookie of a directory, ""), or (None, the problem)."""
    file = posixpath.join(current_of(disk, path), cookie.FILE_NAME)
    try:
        return cookie.parse(disk.read_bytes(file), path=file), ""
    except FileNotFoundError:
        return (
            None,
            f"it has no {cookie.FILE_NAME}: its disk is not mounted, it was wiped, or it is no bookie directory",
        )
    except CorruptRecord as error:
        return None, f"its {cookie.FILE_NAME} is damaged: {error}"


def kept_page_size(disk: Disk, directories: Sequence[str]) -> int | None:
    """Return the page size of the catalog; None without one. Raises: OSError.

    `directories`: index directories' `current`.
    """
    for directory in directories:
        path = posixpath.join(directory, catalog_format.FILE_NAME)
        if disk.exists(path):
            file = disk.open(path, "r")
            try:
                return catalog_format.page_size_of(file.pread(catalog_format.FILE_HEADER_SIZE, 0))
            finally:
                file.close()
    return None
