"""Named cursors of a log: how far each of its consumers has come, so that truncation leaves what they have not read.

A cursor is the position of the next entry that a consumer will read. All cursors of a log are one record. Moving one
is conditional on the list of ledgers, truncating on the cursors, so neither can be decided on what was true a moment
ago. A cursor that was passed by force holds nothing back any more, because what it waited for is gone.

Source: pains H 67, 71; spark 3.6.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bookies.errors import InvalidArgument, LogTruncated, MetadataCorrupt, NotSupported
from bookies.protocol.log.log_model import Extent, LedgerEnd, Manifest, Position, check_log_name

FORMAT = 1
CURSORS_MAX = 1_000  # of one log; they share a record


@dataclass(frozen=True, slots=True)
class Cursor:
    """`position`: of the next entry to be read. `moved_ms`: when it came there, wall time."""

    name: str
    position: Position
    moved_ms: int


def moved(cursors: Mapping[str, Cursor], manifest: Manifest, cursor: Cursor) -> dict[str, Cursor] | None:
    """The cursors with this one in its new place, forward or back; None: it is there.

    Raises `LogTruncated` for a position that is not in the log, `InvalidArgument` for a name or one cursor too many.
    """
    check_log_name(cursor.name)
    extent = manifest.find(cursor.position)
    if extent is None or cursor.position.entry_id < extent.first:
        raise LogTruncated(f"position {cursor.position} is not in the log: truncated already, or of another log")
    if cursor.name in cursors and cursors[cursor.name].position == cursor.position:
        return None
    if len(cursors) >= CURSORS_MAX and cursor.name not in cursors:
        raise InvalidArgument(f"the log has {len(cursors):,} cursors, which is as many as it can have: delete some")
    return {**cursors, cursor.name: cursor}


def passed(
    cursors: Mapping[str, Cursor], manifest: Manifest, before: Position, ends: Mapping[int, LedgerEnd]
) -> list[Cursor]:
    """The cursors that still have something to read which a truncation to `before` would take away.

    `ends`: of ledgers that are closed though the list does not say it.
    """
    return [each for each in cursors.values() if _is_passed(each.position, manifest, before, ends)]


def _is_passed(at: Position, manifest: Manifest, before: Position, ends: Mapping[int, LedgerEnd]) -> bool:
    here, there = manifest.find(at), manifest.find(before)
    if here is None or there is None or is_lost(at, manifest):
        return False
    for extent in manifest.extents:
        if here.seq <= extent.seq <= there.seq:
            low = at.entry_id if extent.seq == here.seq else extent.first
            high = _last(extent, ends)
            if extent.seq == there.seq:
                high = before.entry_id - 1 if high is None else min(high, before.entry_id - 1)
            if high is None or low <= high:
                return True
    return False


def is_lost(at: Position, manifest: Manifest) -> bool:
    """Whether the entry at this position was truncated."""
    extent = manifest.find(at)
    return extent is None or at.entry_id < extent.first


def _last(extent: Extent, ends: Mapping[int, LedgerEnd]) -> int | None:
    if extent.last is not None:
        return extent.last
    end = ends.get(extent.ledger_id)
    return None if end is None else end.last_entry_id


# -- the record ------------------------------------------------------------------------------------------------------


def pack_cursors(token: str, cursors: Mapping[str, Cursor]) -> bytes:
    """As stored: JSON, one line. `token`: of the log, so that cursors of an earlier log of that name are not taken."""
    rows = {
        name: {"ledger": each.position.ledger_id, "entry": each.position.entry_id, "moved_ms": each.moved_ms}
        for name, each in sorted(cursors.items())
    }
    return json.dumps({"format": FORMAT, "token": token, "cursors": rows}, separators=(",", ":")).encode()


def parse_cursors(log: str, token: str, data: bytes) -> dict[str, Cursor]:
    """By name; none when they belong to another log of that name. Raises `MetadataCorrupt`, `NotSupported`."""
    try:
        content: dict[str, Any] = json.loads(data)
        if content["format"] > FORMAT:
            raise NotSupported(f"the cursors of log {log} have format {content['format']}: this version reads {FORMAT}")
        if content["token"] != token:
            return {}
        return {
            str(name): Cursor(str(name), Position(int(row["ledger"]), int(row["entry"])), int(row["moved_ms"]))
            for name, row in content["cursors"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MetadataCorrupt(f"the cursors of log {log} cannot be read: {error!r}") from error
