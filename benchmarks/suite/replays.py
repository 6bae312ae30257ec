"""How much of its journal a bookie has replayed when it started: a restart that had little to replay says nothing."""

from __future__ import annotations

import pathlib
import re
import struct

from benchmarks.suite.servers import Bookie

SHARE_MIN = 0.9  # of what was added
RECORD_OVERHEAD = 40  # bytes of a journal record beside the payload: its size, the entry's header, CRC32C
CHUNK_SIZE = 1 << 20
MARK = struct.Struct(">qq")  # journal id, position in it


class OurReplay:
    """Of a bookie of ours that does not run, at its next start: it says so itself."""

    def __init__(self, bookie: Bookie) -> None:
        self._log = bookie.log
        self._said = self._log.stat().st_size

    def size(self) -> int:
        """Bytes, once it serves. Raises `RuntimeError` when it has said nothing about them."""
        with open(self._log, "rb") as file:
            file.seek(self._said)
            found = re.search(r"storage\.replayed\b.*\bbytes=([\d,_]+)", file.read().decode(errors="replace"))
        if found is None:
            raise RuntimeError("the bookie has replayed nothing, or says nothing about it")
        return int(re.sub("[,_]", "", found[1]))


class ApachesReplay:
    """Of a bookie of Apache's that does not run, at its next start: all behind the mark of its last checkpoint."""

    def __init__(self, bookie: Bookie) -> None:
        self._size = size_behind_mark(bookie.home)

    def size(self) -> int:
        """Bytes."""
        return self._size


def size_behind_mark(home: pathlib.Path) -> int:
    """Bytes in the journal of Apache's bookie from `lastMark` on; without one all of them."""
    mark = home / "ledgers" / "current" / "lastMark"
    journal_id, position = MARK.unpack(mark.read_bytes()[: MARK.size]) if mark.exists() else (-1, 0)
    size = 0
    for path in (home / "journal" / "current").glob("*.txn"):
        number = int(path.stem, 16)
        if number >= journal_id:
            size += max(0, written_size(path) - (position if number == journal_id else 0))
    return size


def written_size(path: pathlib.Path) -> int:
    """Bytes of a file without the zeros at its end, which were put there in advance."""
    with open(path, "rb") as file:
        end = file.seek(0, 2)
        while end:
            start = max(0, end - CHUNK_SIZE)
            file.seek(start)
            found = file.read(end - start).rstrip(b"\0")
            if found:
                return start + len(found)
            end = start
    return 0


def checked(replayed: int, added: int) -> int:
    """Bytes. Raises `RuntimeError` when those that were replayed are less than nine tenths of those that were added."""
    if replayed < SHARE_MIN * added:
        raise RuntimeError(f"only {replayed / 1e6:,.0f} of {added / 1e6:,.0f} MB were replayed: there was a checkpoint")
    return replayed
