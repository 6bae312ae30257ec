"""The ledger directories of a bookie, and the ids of the entry logs in them.

With an index in files, an id is unique in all directories, and a log may have entries of any ledger. With databases,
each directory has ids of its own (two of them may have a `0.log`), and the entries of certain ledgers only: those whose
id modulo the number of directories is the number of the directory.

In memory an id is unique in any case: the id in the file's name, times the number of spaces of ids, plus the number of
the space. So a log that is allocated later than all others has a greater id than any of them, in each directory.

Source: storage 3.1, 6.3.
"""

from __future__ import annotations

import posixpath
import sys
from array import array
from collections.abc import Callable, Sequence

from msgspec import Struct

from bookies.errors import StorageError
from bookies.storage.entry_log.entry_log_format import LOG_ID_MAX, file_name


def directory_of(ledger_id: int, count: int) -> int:
    """Return the number of the directory that a ledger belongs to, of `count` directories."""
    return ledger_id % count


class LogDirectories(Struct, frozen=True):
    """Ledger directories' `current`. `is_split`: each one has a space of ids of its own; otherwise there is one space.

    Ids are those in memory, unless they are called a file's.
    """

    paths: Sequence[str]
    is_split: bool = False

    @property
    def count(self) -> int:
        """Return the number of spaces of ids."""
        return len(self.paths) if self.is_split else 1

    def space_of(self, ledger_id: int) -> int:
        """Return the number of the space that the logs of a ledger are in."""
        return directory_of(ledger_id, self.count)

    def holds(self, log_id: int, ledger_id: int) -> bool:
        """Report whether entries of the ledger in this log count."""
        return log_id % self.count == self.space_of(ledger_id)

    def of_space(self, number: int) -> Sequence[str]:
        """Return the directories with logs of a space."""
        return self.paths[number : number + 1] if self.is_split else self.paths

    def of_log(self, log_id: int) -> Sequence[str]:
        """Return the directories where a log may be."""
        return self.of_space(log_id % self.count)

    def id_in(self, directory: str, file_id: int) -> int:
        """Return the id of the log with a file's id in a directory. Raises StorageError."""
        return self.inward(self.paths.index(directory) if self.is_split else 0, file_id)

    def inward(self, number: int, file_id: int) -> int:
        """Return the id of the log with a file's id in a space. Raises StorageError."""
        log_id = file_id * self.count + number
        if self.is_split and log_id > LOG_ID_MAX:
            raise StorageError(f"{file_name(file_id)}: the id is too large for {self.count} ledger directories")
        return log_id

    def file_id(self, log_id: int) -> int:
        """Return the id in the name of the file."""
        return log_id // self.count

    def file_name(self, log_id: int) -> str:
        return file_name(self.file_id(log_id))

    def name(self, log_id: int) -> str:
        """Return the name of the file or, if several directories may have one of that name, its path."""
        name = self.file_name(log_id)
        return name if self.count == 1 else posixpath.join(self.paths[log_id % self.count], name)

    def label(self, log_id: int) -> str:
        """Return what events call the log: its id or, if that is ambiguous, its path."""
        return f"{log_id:x}" if self.count == 1 else self.name(log_id)

    def next_id(self, last_id: int, number: int) -> int:
        """Return the id of a new log in a space. `last_id`: the greatest one of all spaces; -1: none."""
        file_id = last_id // self.count + 1
        return file_id % ((LOG_ID_MAX + 1) // self.count) * self.count + number

    def slots_inward(self, number: int, slots: bytes) -> bytes:
        """Return slots with ids, none of them missing, from those of a space with files' ids. Raises StorageError."""
        return slots if self.count == 1 else _renumbered(slots, lambda file_id: self.inward(number, file_id))

    def slots_outward(self, slots: bytes) -> bytes:
        """Return slots with files' ids."""
        return slots if self.count == 1 else _renumbered(slots, self.file_id)


def _renumbered(slots: bytes, change: Callable[[int], int]) -> bytes:
    words = array("I", slots)
    if sys.byteorder == "little":
        words.byteswap()
    new = {log_id: change(log_id) for log_id in dict.fromkeys(words[::2])}
    words[::2] = array("I", [new[log_id] for log_id in words[::2]])
    if sys.byteorder == "little":
        words.byteswap()
    return words.tobytes()
