"""The file format of the log mark, the position from which a journal has to be replayed.

16 bytes: int64 journal id, int64 offset in that journal. Everything before it is durable in entry logs and index. Each
writable ledger directory has a copy. A mark only moves forward, so a smaller mark is also valid, as long as the
journals from there on exist.

Source: storage 2.9.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import NamedTuple

SIZE = 16  # bytes

_MARK = struct.Struct(">qq")
_NAME = re.compile(r"lastMark(?:\.(0|[1-9][0-9]*))?")


class LogMark(NamedTuple):
    """A journal position, ordered by journal, then by offset. (0, 0): replay all journals."""

    journal_id: int = 0
    offset: int = 0


def file_name(journal_index: int, journal_count: int) -> str:
    """Return the file name in a ledger directory for journal number `journal_index` of `journal_count`."""
    return "lastMark" if journal_count == 1 else f"lastMark.{journal_index}"


def parse_file_name(name: str) -> int | None:
    """Return the journal's number, 0 for the name without one; None if the name is not that of a mark."""
    match = _NAME.fullmatch(name)
    return int(match[1] or 0) if match else None


def pack(mark: LogMark) -> bytes:
    return _MARK.pack(mark.journal_id, mark.offset)


def parse(data: bytes) -> LogMark | None:
    """Return the mark, or None for a torn copy, which does not count."""
    if len(data) != SIZE:
        return None
    mark = LogMark(*_MARK.unpack(data))
    return mark if mark.journal_id >= 0 and mark.offset >= 0 else None


def distinct(copies: Iterable[bytes]) -> list[LogMark]:
    """Return the distinct marks of the copies in all ledger directories, ascending, without torn ones."""
    return sorted({mark for data in copies if (mark := parse(data)) is not None})
