"""A stopped bookie as its files tell of it: which directories it has, and whether all of them are there.

Tools that change a bookie's files go by this. Where a disk is not mounted its place is missing or empty, and whoever
took that for all there is would build indexes without what is on the disk, or write where the disk will be mounted.

Source: storage 1.2, 9.1.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field

from bookies.config import BookieConfig, from_environment
from bookies.errors import CorruptRecord, StorageError
from bookies.runtime.ports import Disk
from bookies.storage.identity import Cookie, cookie
from bookies.storage.index import catalog_format
from bookies.storage.offline.inspection import current_of


@dataclass
class Offline:
    """`journals`, `ledgers`, `indexes`: directories that are there. `problems`: path to what is wrong with others.

    `has_all_indexes`: none of those that hold index files is among the others.
    """

    journals: list[str]
    ledgers: list[str]
    indexes: list[str]
    problems: dict[str, str] = field(default_factory=dict)
    has_all_indexes: bool = True

    def config(self) -> BookieConfig:
        """Settings of the environment, and these directories. Raises StorageError for problems."""
        for path, problem in self.problems.items():
            raise StorageError(f"{path}: {problem}. Nothing was changed. Put it back, or mount the disk, first")
        return from_environment(
            BookieConfig,
            journal_directories=tuple(self.journals),
            ledger_directories=tuple(self.ledgers),
            index_directories=() if self.indexes == self.ledgers else tuple(self.indexes),
        )


def bookie_at(disk: Disk, path: str) -> Offline:
    """The bookie that `path` is one of the directories of. Reads only. Raises: OSError."""
    own, problem = _cookie_in(disk, path)
    if own is None:
        return Offline([path], [path], [path], {path: problem})
    base = _base_of(path, own)
    if base is None:
        return _elsewhere(path, own)
    found = Offline([], [], [])
    names = (own.journals, own.ledger_directories, own.directories_of_index)
    for some, there in zip(names, (found.journals, found.ledgers, found.indexes), strict=True):
        for name in some:
            place = posixpath.join(base, name)
            if problem := _problem_of(disk, place, own, path):
                found.problems[place] = problem
                found.has_all_indexes = found.has_all_indexes and there is not found.indexes
            if disk.is_directory(place):
                there.append(place)
    return found


def _base_of(path: str, own: Cookie) -> str | None:
    """As the cookie says, of the path as it was given, from the root, or where its links lead to; None: elsewhere."""
    for each in (os.path.normpath(path), os.path.abspath(path)):
        if (base := own.base_of(_without_current(each))) is not None:
            return base
    real = _without_current(os.path.realpath(path))
    return "" if any(os.path.isabs(name) and os.path.realpath(name) == real for name in own.directories) else None


def _without_current(path: str) -> str:
    return os.path.dirname(path) if os.path.basename(path) == cookie.CURRENT else path


def _elsewhere(path: str, own: Cookie) -> Offline:
    """A copy, or another mount point: never what the cookie names, a bookie may work there."""
    if len(own.directories) == 1:
        return Offline([path], [path], [path])
    problem = f"it is not what its cookie names ({', '.join(own.directories)}): a copy, or mounted elsewhere"
    return Offline([path], [path], [path], {path: problem})


def _problem_of(disk: Disk, path: str, own: Cookie, named_in: str) -> str:
    if not disk.is_directory(path):
        return f"it is not there, and the cookie in {named_in} names it: bookie {own.bookie} has files in it"
    found, problem = _cookie_in(disk, path)
    if found is None:
        return problem
    if (found.bookie, found.instance_id) != (own.bookie, own.instance_id):
        return f"it belongs to bookie {found.bookie} of cluster {found.instance_id}, not to {own.bookie}"
    return ""


def _cookie_in(disk: Disk, path: str) -> tuple[Cookie | None, str]:
    """The cookie of a directory, or why there is none."""
    file = posixpath.join(current_of(disk, path), cookie.FILE_NAME)
    try:
        return cookie.parse(disk.read_bytes(file), path=file), ""
    except FileNotFoundError:
        return (
            None,
            f"it has no {cookie.FILE_NAME}: its disk is not mounted, it was wiped, or it is no bookie's",
        )
    except CorruptRecord as error:
        return None, f"its {cookie.FILE_NAME} is damaged: {error}"


def kept_page_size(disk: Disk, directories: Sequence[str]) -> int | None:
    """The page size that the catalog was written with. `directories`: index directories' `current`. Raises: OSError."""
    for directory in directories:
        path = posixpath.join(directory, catalog_format.FILE_NAME)
        if disk.exists(path):
            file = disk.open(path, "r")
            try:
                return catalog_format.page_size_of(file.pread(catalog_format.FILE_HEADER_SIZE, 0))
            finally:
                file.close()
    return None
