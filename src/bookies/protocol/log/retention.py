"""Retention of a log: which of its oldest ledgers may go, by age, size and rows; and the history of what went.

The policy is a field of the log's record. The decision is a pure function of the list, the times of its extents, and
the cursors. It only ever names whole ledgers, never the last two, and none that a cursor still needs, unless the policy
lets it pass cursors whose consumer seems to be gone. The truncation itself checks the cursors again, with its swap.

Source: docs/explanation/logs.md, "Retention".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from msgspec import Struct, to_builtins
from msgspec.structs import fields

from bookies.encoding.documents import parse_json
from bookies.errors import InvalidArgument, MetadataCorrupt, NotSupported
from bookies.protocol.log.cursors import Cursor, is_lost
from bookies.protocol.log.log_model import OPEN_MAX, Extent, Manifest, Position, parse_position
from bookies.protocol.log.sequences import CURSOR

FORMAT = 1
REMOVALS_MAX = 100  # in the history
LEDGERS_MAX = 256  # removed at a time: the history names them


class Retention(Struct, frozen=True, kw_only=True):
    """Policy of a log. A limit that is None does not exist. `size`: bytes of payload.

    `cursor_age_ms`: a cursor that has not moved for this time, before entries as old, holds nothing back.
    """

    age_ms: int | None = None
    size: int | None = None
    rows: int | None = None
    cursor_age_ms: int | None = None

    @property
    def has_limit(self) -> bool:
        """Report whether there is a limit, so that entries are removed at all."""
        return any(limit is not None for limit in (self.age_ms, self.size, self.rows))


class LogRemoval(Struct, frozen=True):
    """Removal of a log's oldest entries. `at_ms`: wall clock. `before`: where the log begins then.

    `reasons`: the limits of the policy that ask for it. `ledgers`: that go; one that entries behind them share since a
    roll-up stays. `size`: payload bytes. `passed`: cursors that had unread entries there.
    """

    at_ms: int
    before: Position
    reasons: tuple[str, ...]
    ledgers: tuple[int, ...]
    rows: int
    size: int
    passed: tuple[str, ...] = ()


class RetentionDecision(NamedTuple):
    """Decision about a log. `removal` None: no ledger may go. `stale`: the cursors that it may pass.

    `held_by`: names of the cursors that keep more from going.
    """

    removal: LogRemoval | None
    stale: tuple[Cursor, ...] = ()
    held_by: tuple[str, ...] = ()


def retention_of(manifest: Manifest) -> Retention:
    """Return the policy of a log. Raises `MetadataCorrupt`."""
    limits = {field.name: manifest.retention.get(field.name) for field in fields(Retention)}
    if not all(limit is None or type(limit) is int for limit in limits.values()):
        raise MetadataCorrupt(f"the retention of a log cannot be read: {dict(manifest.retention)}")
    return Retention(**limits)


def retention_fields(policy: Retention) -> dict[str, int]:
    """Return a policy as the field of a log's record. Raises `InvalidArgument`."""
    limits = {name: limit for name, limit in to_builtins(policy).items() if limit is not None}
    for name, limit in limits.items():
        if limit < 1:
            raise InvalidArgument(f"{name.removesuffix('_ms')}: a retention of {limit} keeps nothing: give more than 0")
    if limits and not policy.has_limit:
        raise InvalidArgument("cursor_age alone removes nothing: give an age, a size or a number of rows too")
    return limits


def decide(
    manifest: Manifest, policy: Retention, ends: Mapping[int, int], cursors: Mapping[str, Cursor], now_ms: int
) -> RetentionDecision:
    """Decide which of the oldest ledgers go. `ends`: `ended_ms` of extents, as far as it is known."""
    if manifest.held or manifest.is_deleting:
        return RetentionDecision(None)
    closed = list(takewhile(lambda extent: extent.last is not None, manifest.extents[:-OPEN_MAX]))[:LEDGERS_MAX]
    wanted = {
        "age": _aged(closed, ends, now_ms, policy.age_ms),
        "size": _surplus(closed, [extent.bytes or 0 for extent in manifest.extents], policy.size),
        "rows": _surplus(closed, [_rows(extent) for extent in manifest.extents], policy.rows),
    }
    count = max(wanted.values())
    needed = _needed(manifest, cursors)
    stale = tuple(cursor for cursor in cursors.values() if _is_stale(cursor, manifest, needed, ends, policy, now_ms))
    holding = {name: index for name, index in needed.items() if cursors[name] not in stale}
    held_by = tuple(sorted(name for name, index in holding.items() if index < count))
    count = min([count, *holding.values()])
    if not count:
        return RetentionDecision(None, (), held_by)
    gone, first = manifest.extents[:count], manifest.extents[count]
    stay = {extent.storage for extent in manifest.extents[count:]}
    removal = LogRemoval(
        now_ms,
        Position(first.ledger_id, first.first),
        tuple(reason for reason, number in wanted.items() if number),
        tuple(dict.fromkeys(extent.storage for extent in gone if extent.storage not in stay)),
        sum(map(_rows, gone)),
        sum(extent.bytes or 0 for extent in gone),
        tuple(sorted(cursor.name for cursor in stale if needed[cursor.name] < count)),
    )
    return RetentionDecision(removal, stale, held_by)


def _aged(closed: Sequence[Extent], ends: Mapping[int, int], now_ms: int, age_ms: int | None) -> int:
    """Return how many of the oldest extents have no entry that is younger than an age."""
    if age_ms is None:
        return 0
    return len(list(takewhile(lambda extent: ends.get(extent.seq, now_ms) < now_ms - age_ms, closed)))


def _surplus(closed: Sequence[Extent], amounts: Sequence[int], limit: int | None) -> int:
    """Return how many of the oldest extents may go so that the others still have `limit`."""
    if limit is None:
        return 0
    left, count = sum(amounts), 0
    while count < len(closed) and left - amounts[count] >= limit:
        left -= amounts[count]
        count += 1
    return count


def _needed(manifest: Manifest, cursors: Mapping[str, Cursor]) -> dict[str, int]:
    """Return the index of the first extent that each consumer still needs; without those that need none of the log.

    An empty extent is needed by none: its leader wrote nothing, so its end tells nothing about entries, or a compaction
    has removed all of them.
    """
    indexes = {extent.seq: index for index, extent in enumerate(manifest.extents)}
    needed = {}
    for name, cursor in cursors.items():
        extent = manifest.find(cursor.position)
        if extent is not None and not is_lost(cursor.position, manifest):
            is_read = extent.last is not None and cursor.position.entry_id > extent.last
            left = manifest.extents[indexes[extent.seq] + is_read :]
            empty = takewhile(lambda other: other.last is not None and not _rows(other), left)
            needed[name] = len(manifest.extents) - len(left) + len(list(empty))
    return needed


def _is_stale(
    cursor: Cursor,
    manifest: Manifest,
    needed: Mapping[str, int],
    ends: Mapping[int, int],
    policy: Retention,
    now_ms: int,
) -> bool:
    """Report whether a cursor has not moved for too long although the entries that it waits for are as old.

    The cursor of numbered entries never is: past it, repeats of them would be appended again.
    """
    index = needed.get(cursor.name, len(manifest.extents))
    if policy.cursor_age_ms is None or index >= len(manifest.extents) or cursor.name == CURSOR:
        return False
    since_ms = max(cursor.moved_ms, ends.get(manifest.extents[index].seq, now_ms))
    return since_ms < now_ms - policy.cursor_age_ms


def _rows(extent: Extent) -> int:
    if extent.kept is not None:
        return extent.kept
    return 0 if extent.last is None else max(0, extent.last - extent.first + 1)


# -- the record of the history ---------------------------------------------------------------------------------------


def pack_history(token: str, removals: Sequence[LogRemoval]) -> bytes:
    """Return the stored record with the latest removals: JSON, one line."""
    rows = [{**to_builtins(removal), "before": str(removal.before)} for removal in removals[-REMOVALS_MAX:]]
    return json.dumps({"format": FORMAT, "token": token, "removals": rows}, separators=(",", ":")).encode()


def parse_history(log: str, token: str, data: bytes) -> list[LogRemoval]:
    """Return the removals, the oldest first; none if they belong to another log of that name.

    Raises `MetadataCorrupt`, `NotSupported` (a later format).
    """
    try:
        content: Mapping[str, Any] = parse_json(data)
        if content["format"] > FORMAT:
            raise NotSupported(f"the history of log {log} has format {content['format']}: this version reads {FORMAT}")
        if content["token"] != token:
            return []
        return [
            LogRemoval(
                int(row["at_ms"]),
                parse_position(row["before"]),
                tuple(map(str, row["reasons"])),
                tuple(map(int, row["ledgers"])),
                int(row["rows"]),
                int(row["size"]),
                tuple(map(str, row["passed"])),
            )
            for row in content["removals"]
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MetadataCorrupt(f"the history of log {log} cannot be read: {error!r}") from error
