"""Named cursors of a log: the progress of each consumer. Truncation keeps the entries that they have not read.

A cursor is the position of the next entry that a consumer will read. All cursors of a log share one record. Moving a
cursor is conditional on the list of ledgers, and truncating is conditional on the cursors, so neither acts on stale
data. A cursor that a forced truncation has passed no longer holds entries back, because the entry it waited for is
deleted.

A consumer that has the lease of its name (`Log.consumer`) writes the lease's token into its cursor. A move with a
smaller token is refused, so a consumer that was suspended cannot move the cursor of the one that followed it. A version
that does not know tokens drops them when it rewrites the record; the next commit of the present consumer restores its
own.

Source: pains H 67, 71; spark 3.6.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from bookies.encoding.documents import parse_json
from bookies.errors import CursorMoved, InvalidArgument, MetadataCorrupt, NotSupported
from bookies.protocol.log.log_model import Address, Extent, LedgerEnd, Manifest, Position, check_log_name, not_in_log

FORMAT = 1
CURSORS_MAX = 1_000  # of one log; they share a record


class Cursor(Struct, frozen=True):
    """Cursor of one consumer. `position`: the next entry to read. `moved_ms`: wall time of the last move,
    or of a later consumer's beginning.

    `token`: of the consumer that used it last; 0: none, or unknown. `slot`: the next record in the entry, if that is a
    record set. A version that drops it makes the records before it repeat.
    """

    name: str
    position: Position
    moved_ms: int
    token: int = 0
    slot: int = 0

    @property
    def address(self) -> Address:
        """Return the address of the next record."""
        return Address(*self.position, self.slot)


def moved(cursors: Mapping[str, Cursor], manifest: Manifest, cursor: Cursor) -> dict[str, Cursor] | None:
    """Return the cursors with this one moved, forward or back; None: it is there already.

    Raises `LogTruncated` (position not in the log, or the next entry was truncated), `InvalidArgument` (bad name,
    or too many cursors).
    """
    check_log_name(cursor.name, "cursor")
    if is_lost(cursor.position, manifest):
        raise not_in_log(cursor.position, manifest)
    present = cursors.get(cursor.name)
    if present is not None and (present.address, present.token) == (cursor.address, cursor.token):
        return None
    if len(cursors) >= CURSORS_MAX and present is None:
        raise InvalidArgument(f"the log has {len(cursors):,} cursors, the most that it can have: delete some")
    return {**cursors, cursor.name: cursor}


def check_at(name: str, cursor: Cursor | None, expected: Position) -> None:
    """Check that a cursor is where its consumer has left it. Raises `CursorMoved`."""
    if cursor is None or cursor.position != expected:
        at = "nowhere: it does not exist" if cursor is None else f"at {cursor.position}"
        raise CursorMoved(f"cursor {name} is {at}, not at {expected}: another consumer uses it, or has deleted it")


def check_token(name: str, cursor: Cursor | None, token: int, *, may_create: bool) -> None:
    """Check that a consumer may move its cursor. Raises `CursorMoved`."""
    if cursor is None and not may_create:
        raise CursorMoved(f"cursor {name} was deleted while its consumer used it: nothing was committed")
    if cursor is not None and cursor.token > token:
        raise CursorMoved(
            f"cursor {name} belongs to a later consumer (token {cursor.token}; this one has {token}): nothing was "
            "committed. That one handles these entries again"
        )


def passed(
    cursors: Mapping[str, Cursor], manifest: Manifest, before: Position, ends: Mapping[int, LedgerEnd]
) -> list[Cursor]:
    """Return the cursors with unread entries that a truncation to `before` would delete.

    `ends`: ends of ledgers that are closed while the list has no end for them.
    """
    return [cursor for cursor in cursors.values() if _is_passed(cursor.position, manifest, before, ends)]


def carried(cursors: Mapping[str, Cursor], manifest: Manifest, before: Position) -> dict[str, Cursor]:
    """Return the cursors as a truncation to `before` leaves them.

    A cursor at the end of a ledger before that position has no unread entries there. The truncation may drop the
    ledger, and then the cursor would hold nothing back and its consumer could not continue: so it moves to `before`.
    """
    target = manifest.find(before)
    if target is None:
        return {**cursors}
    position = Position(target.ledger_id, max(target.first, before.entry_id))
    kept = {}
    for name, cursor in cursors.items():
        extent = manifest.find(cursor.position)
        is_behind = extent is not None and extent.seq < target.seq and not is_lost(cursor.position, manifest)
        kept[name] = replace(cursor, position=position, slot=0) if is_behind else cursor
    return kept


def _is_passed(at: Position, manifest: Manifest, before: Position, ends: Mapping[int, LedgerEnd]) -> bool:
    extent_at, extent_before = manifest.find(at), manifest.find(before)
    if extent_at is None or extent_before is None or is_lost(at, manifest):
        return False
    for extent in manifest.extents:
        if extent_at.seq <= extent.seq <= extent_before.seq and extent.kept != 0:  # 0: a compaction has emptied it
            low = at.entry_id if extent.seq == extent_at.seq else extent.first
            high = _last(extent, ends)
            if extent.seq == extent_before.seq:
                high = before.entry_id - 1 if high is None else min(high, before.entry_id - 1)
            if high is None or low <= high:
                return True
    return False


def is_lost(at: Position, manifest: Manifest) -> bool:
    """Report whether the entry at this position was truncated, or the next one if its ledger ends before it."""
    extent = manifest.find(at)
    if extent is None or at.entry_id < extent.first:
        return True
    if extent.last is None or at.entry_id <= extent.last:
        return False
    later = (other for other in manifest.extents if other.seq > extent.seq and (other.first or other.last != -1))
    return next((other.first > 0 for other in later), False)


def _last(extent: Extent, ends: Mapping[int, LedgerEnd]) -> int | None:
    if extent.last is not None:
        return extent.last
    end = ends.get(extent.ledger_id)
    return None if end is None else end.last_entry_id


# -- the record ------------------------------------------------------------------------------------------------------


def pack_cursors(token: str, cursors: Mapping[str, Cursor]) -> bytes:
    """Return the stored record: JSON, one line. `token`: of the log; excludes cursors of an earlier log of its name."""
    rows = {
        name: {"ledger": cursor.position.ledger_id, "entry": cursor.position.entry_id, "moved_ms": cursor.moved_ms}
        | ({"token": cursor.token} if cursor.token else {})
        | ({"slot": cursor.slot} if cursor.slot else {})
        for name, cursor in sorted(cursors.items())
    }
    return json.dumps({"format": FORMAT, "token": token, "cursors": rows}, separators=(",", ":")).encode()


def parse_cursors(log: str, token: str, data: bytes) -> dict[str, Cursor]:
    """Return the cursors by name; none if they belong to another log of that name.

    Raises `MetadataCorrupt`, `NotSupported` (a later format).
    """
    try:
        content: dict[str, Any] = parse_json(data)
        if content["format"] > FORMAT:
            raise NotSupported(f"the cursors of log {log} have format {content['format']}: this version reads {FORMAT}")
        if content["token"] != token:
            return {}
        return {str(name): _parse_cursor(str(name), row) for name, row in content["cursors"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MetadataCorrupt(f"the cursors of log {log} cannot be read: {error!r}") from error


def _parse_cursor(name: str, row: Mapping[str, Any]) -> Cursor:
    position = Position(int(row["ledger"]), int(row["entry"]))
    return Cursor(name, position, int(row["moved_ms"]), int(row.get("token", 0)), int(row.get("slot", 0)))
