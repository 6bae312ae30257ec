"""The file format of `BOOKIE_STATUS`: the last mode of a bookie, and whether an operator set it.

Every ledger directory has one line: `1,READ_ONLY,1700000000000,true` and a newline. Fields: layout, mode, time of
writing (milliseconds since 1970), set by an operator. A line of three fields is from an older release and counts as set
by an operator. The newest of all copies counts.

Source: storage 8.5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from bookies.errors import CorruptRecord

FILE_NAME = "BOOKIE_STATUS"
LAYOUT = 1

_LINE = re.compile(rb"1,(READ_ONLY|READ_WRITE),([0-9]{1,18})(?:,(true|false))?\n?")


class StatusRecord(Struct, frozen=True):
    """Content of a status file. `written_ms`: milliseconds since 1970."""

    is_read_only: bool
    written_ms: int
    is_manual: bool

    @property
    def is_held(self) -> bool:
        """Report whether the bookie stays read-only until an operator changes it."""
        return self.is_read_only and self.is_manual

    def pack(self) -> bytes:
        mode = "READ_ONLY" if self.is_read_only else "READ_WRITE"
        return f"{LAYOUT},{mode},{self.written_ms},{'true' if self.is_manual else 'false'}\n".encode()


def parse(data: bytes, *, path: str = FILE_NAME) -> StatusRecord:
    """Parse a status file. Raises CorruptRecord."""
    match = _LINE.fullmatch(data)
    if match is None:
        raise CorruptRecord(f"not a status of layout {LAYOUT}: {data[:40]!r}", path=path, offset=0)
    mode, written_ms, manual = match.groups()
    return StatusRecord(mode == b"READ_ONLY", int(written_ms), manual != b"false")


def newest(records: Iterable[StatusRecord]) -> StatusRecord | None:
    """Return the newest record; of two from the same moment, the one that holds the bookie read-only."""
    return max(records, key=lambda record: (record.written_ms, record.is_held), default=None)
