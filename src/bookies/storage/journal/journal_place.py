"""Which of a bookie's journals a directory is: `journal.place`, a file of ours beside the journal's files.

Every journal has a mark of its own in the ledger directories, by its number, and a ledger's records are in one of them.
Two whose disks were swapped have the same cookie, and may have files of the same ids: replay would begin at the other's
mark, and pass over what it should read. A bookie with a single journal needs no such file.

    "journal 1 of 2" newline, crc32 of that line, newline

One that is damaged says nothing, and is written again. Blocks. Source: storage 1.1, 1.4, 2.11.
"""

from __future__ import annotations

import posixpath
import re
import zlib
from collections.abc import Sequence

from bookies.errors import StorageError
from bookies.runtime.ports import Disk
from bookies.storage.disks.durable_files import replace_bytes

FILE_NAME = "journal.place"

_LINE = re.compile(rb"journal ([1-9][0-9]*) of ([1-9][0-9]*)\n")


def pack(number: int, count: int) -> bytes:
    """`number`: from 0 on."""
    line = b"journal %d of %d\n" % (number + 1, count)
    return line + b"%08x\n" % zlib.crc32(line)


def parse(data: bytes) -> tuple[int, int] | None:
    """(number from 0 on, how many there are); None for what is no such file."""
    match = _LINE.match(data)
    if match is None or data[match.end() :] != b"%08x\n" % zlib.crc32(match[0]):
        return None
    return int(match[1]) - 1, int(match[2])


def read_place(disk: Disk, directory: str) -> tuple[int, int] | None:
    """What stands in a journal's `current`; None: nothing, or nothing that can be believed. Raises: OSError."""
    path = posixpath.join(directory, FILE_NAME)
    return parse(disk.read_bytes(path)) if disk.exists(path) else None


def check_places(disk: Disk, directories: Sequence[str]) -> None:
    """Raises StorageError if one of these journals, in their order, is another one. Raises: OSError."""
    if len(directories) < 2:
        return
    for number, directory in enumerate(directories):
        place = read_place(disk, directory)
        if place is not None and place[0] != number:
            right = directories[place[0]] if place[0] < len(directories) else f"journal {place[0] + 1}"
            raise StorageError(
                f"{directory}: this is journal {place[0] + 1} of {place[1]} of this bookie (says its {FILE_NAME}), and "
                f"stands where journal {number + 1} should be: disks were swapped, or it is a copy. Nothing was "
                f"changed. Each journal has a mark by its number, so replay would pass over acknowledged entries: "
                f"mount it as {right} again"
            )


def note_place(disk: Disk, directory: str, number: int, count: int) -> None:
    """Say it durably, unless it stands there. Raises: DiskFull, OSError."""
    if count > 1 and read_place(disk, directory) != (number, count):
        replace_bytes(disk, posixpath.join(directory, FILE_NAME), pack(number, count))
