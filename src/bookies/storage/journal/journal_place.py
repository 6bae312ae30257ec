"""`journal.place`: our file in a journal directory with the number of that journal.

Every journal has its own mark in the ledger directories, named by the journal's number. A ledger's records are in one
journal. Swapped journal disks have equal cookies, and may have files with the same ids: replay would begin at the mark
of the other journal and skip records. A bookie with a single journal needs no such file.

    "journal 1 of 2" newline, crc32 of that line, newline

A damaged file is ignored and written again. Blocks. Source: storage 1.1, 1.4, 2.11.
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
    """Return the file's content. `number`: the journal, from 0 on."""
    line = b"journal %d of %d\n" % (number + 1, count)
    return line + b"%08x\n" % zlib.crc32(line)


def parse(data: bytes) -> tuple[int, int] | None:
    """Return (number from 0 on, number of journals); None for invalid content."""
    match = _LINE.match(data)
    if match is None or data[match.end() :] != b"%08x\n" % zlib.crc32(match[0]):
        return None
    return int(match[1]) - 1, int(match[2])


def read_place(disk: Disk, directory: str) -> tuple[int, int] | None:
    """Return the content of the file in a journal's `current`; None if it is missing or invalid. Raises: OSError."""
    path = posixpath.join(directory, FILE_NAME)
    return parse(disk.read_bytes(path)) if disk.exists(path) else None


def check_places(disk: Disk, directories: Sequence[str]) -> None:
    """Check that every directory holds the journal of its position in the list. Raises: StorageError, OSError."""
    if len(directories) < 2:
        return
    for number, directory in enumerate(directories):
        place = read_place(disk, directory)
        if place is not None and place[0] != number:
            right = directories[place[0]] if place[0] < len(directories) else f"journal {place[0] + 1}"
            raise StorageError(
                f"{directory}: its {FILE_NAME} names journal {place[0] + 1} of {place[1]} of this bookie, but it is "
                f"configured as journal {number + 1}: disks were swapped, or it is a copy. Nothing was changed. "
                f"Replay would start at another journal's mark and skip acknowledged entries. Mount it as {right} again"
            )


def note_place(disk: Disk, directory: str, number: int, count: int) -> None:
    """Write the file durably unless it is up to date. Raises: DiskFull, OSError."""
    if count > 1 and read_place(disk, directory) != (number, count):
        replace_bytes(disk, posixpath.join(directory, FILE_NAME), pack(number, count))
