"""The log mark's file format: from where on a journal has to be replayed.

16 bytes: int64 journal id, int64 offset in that journal. Everything before is durable in entry logs and index. Each
writable ledger directory has a copy. A mark only ever moves forward, so a smaller one is as right, as long as the
journals from there on are there.

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
    """Ordered as marks are: by journal, then by offset. (0, 0): replay everything there is."""

    journal_id: int = 0
    offset: int = 0


def file_name(journal_index: int, journal_count: int) -> str:
    """The name in a ledger directory for journal number `journal_index` of `journal_count`."""
    return "lastMark" if journal_count == 1 else f"lastMark.{journal_index}"


def parse_file_name(name: str) -> int | None:
    """The journal's number, 0 for the name without one; None if the name is not that of a mark."""
    match = _NAME.fullmatch(name)
    return int(match[1] or 0) if match else None


def pack(mark: LogMark) -> bytes:
    return _MARK.pack(mark.journal_id, mark.offset)


def parse(data: bytes) -> LogMark | None:
    """The mark, or None for a torn copy, which does not count."""
    if len(data) != SIZE:
        return None
    mark = LogMark(*_MARK.unpack(data))
    return mark if mark.journal_id >= 0 and mark.offset >= 0 else None


def distinct(copies: Iterable[bytes]) -> list[LogMark]:
    """The marks of the copies found in all ledger directories, ascending; without those that are torn."""
    return sorted({mark for data in copies if (mark := parse(data)) is not None})
