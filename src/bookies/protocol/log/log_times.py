"""Times of a log: sparse points that tell when which part of it was appended, and the search among them.

A point (position, time) of a leader states: every entry before the position was confirmed at that wall clock time or
before, and no entry from it on. Neither is certain among several points: a leader may be suspended while another one
leads, and note a late time for an early position; a clock may be ahead for a while. So the raw times are kept, and:

* No entry before a point is later than the greatest time up to the point. So an entry that was confirmed at a time T
  or later is not before the last point up to which all times are earlier than T.
* A point whose time is later than that of a following point does not tell when the entries after it were confirmed.
  Without such points the times never fall. No entry from the first of the others with the time T or a later one on
  was confirmed before T.
* Omitting a point makes answers coarser and never wrong, if its time is not earlier than the one before it, and not
  later than the one after it. When there are too many, such points of the older half go.

An extent of a transaction has the time at which its commit began: its entries became part of the log soon afterwards.

Source: docs/explanation/logs.md, "Times".
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby, zip_longest
from typing import Any, NamedTuple

from bookies.encoding.documents import parse_json
from bookies.errors import MetadataCorrupt, NotSupported
from bookies.protocol.log.log_model import Extent, Manifest, Position

FORMAT = 1
COMMIT_MS = 120_000  # after a commit began, its outcome is known: see `COMMIT_TIMEOUT_S`
POINTS_MAX = 2_048  # of a log; they share a record of about 25 KiB


class Point(NamedTuple):
    """Entries before `position` were confirmed at `ms` (wall clock, ms since 1970) or before, all others later."""

    position: Position
    ms: int


def ordered(manifest: Manifest, points: Iterable[Point]) -> list[Point]:
    """Return the points of listed ledgers in the order of the list, one per position: the one with the latest time."""
    order = {ledger_id: index for index, ledger_id in reversed([*enumerate(manifest.ledger_ids)])}
    latest: dict[Position, int] = {}
    for at, ms in points:
        if at.ledger_id in order:
            latest[at] = max(ms, latest.get(at, 0))
    return [Point(at, latest[at]) for at in sorted(latest, key=lambda at: (order[at.ledger_id], at.entry_id))]


def merged(head: Manifest, points: Iterable[Point]) -> list[Point]:
    """Return the points to store. `head`: the log's record; its extents may be only the newest ones of the list.

    Points of ledgers that are not in it come first, in their order, if they may be in a segment.
    """
    points = list(points)
    newest = set(head.ledger_ids)
    others = [point for point in points if point.position.ledger_id not in newest] if head.segments else []
    return [*others, *ordered(head, points)]


def known_points(manifest: Manifest) -> list[Point]:
    """Return the points that the list itself has: of the log's creation, and of its transactions."""
    if not manifest.extents:
        return []
    points = [Point(Position(manifest.extents[0].ledger_id, 0), manifest.created_ms)]
    for extent, following in zip_longest(manifest.extents, manifest.extents[1:]):
        if extent.committed_ms is None or extent.last is None:
            continue
        points.append(Point(_start(extent), extent.committed_ms))
        ended_ms = extent.committed_ms + COMMIT_MS
        if following is None or (following.committed_ms is not None and following.committed_ms > ended_ms):
            points.append(Point(Position(extent.ledger_id, extent.last + 1), ended_ms))
    return points


def bracket(points: Sequence[Point], time_ms: int) -> tuple[Point | None, Point | None, bool]:
    """Return the last point before a time, the first one at that time or later, and whether others are between them.

    No entry of that time or later is before the first, and no earlier entry at or after the second. `points`:
    `ordered`.
    """
    low = next((index for index, point in enumerate(points) if point.ms >= time_ms), len(points)) - 1
    lowest, high = None, len(points)
    for index in range(len(points) - 1, low, -1):
        if points[index].ms < time_ms:
            break  # All points before it that are not earlier than `time_ms` are later than this one.
        if lowest is None or points[index].ms <= lowest:
            lowest, high = points[index].ms, index
    return points[low] if low >= 0 else None, points[high] if high < len(points) else None, high - low > 1


def thinned(points: Sequence[Point], limit: int = POINTS_MAX) -> list[Point]:
    """Return at most `limit` points (3 at least): the newer half, and older ones, farther apart the older they are.

    Points at which times begin to fall or to rise stay as long as that leaves something to omit. So do the first ones
    of ledgers, after other points.
    """
    left = list(points)
    while len(left) > limit:
        half = len(left) // 2
        costs = {at: _cost(left, at) for at in range(1, half)}
        cheapest = sorted(costs, key=costs.__getitem__)[: max(1, half // 4)]
        omitted: set[int] = set()
        for at in cheapest:
            if costs[at][0] == costs[cheapest[0]][0] and omitted.isdisjoint((at - 1, at + 1)):
                omitted.add(at)
        left = [point for at, point in enumerate(left) if at not in omitted]
    return left


def _cost(points: Sequence[Point], at: int) -> tuple[int, float]:
    """Return what the omission of a point costs: the kind of loss, and the gap in relation to the age of the point."""
    before, point, after = points[at - 1 : at + 2]
    kind = 2 * (not before.ms <= point.ms <= after.ms) + (before.position.ledger_id != point.position.ledger_id)
    return kind, abs(after.ms - before.ms) / (abs(points[-1].ms - point.ms) + 1)


def placed(manifest: Manifest, position: Position) -> Position:
    """Return a position of a listed ledger as one in the log as it is: not truncated, and not after a closed ledger
    that others follow."""
    extent = manifest.find(position)
    assert extent is not None, "a point of a ledger that is not listed"
    beginning = manifest.beginning
    assert beginning is not None
    if extent.seq < beginning.seq:
        extent, position = beginning, _start(beginning)
    while extent.last is not None and position.entry_id > extent.last:
        following = manifest.after(extent.seq)
        if following is None:
            return position
        extent, position = following, _start(following)
    return Position(position.ledger_id, max(position.entry_id, extent.first))


def ended_ms(manifest: Manifest, points: Sequence[Point]) -> dict[int, int]:
    """Return when closed extents had all their entries, at the latest: by number, as far as points tell.

    It is the greatest time so far, which is too late rather than too early. `points`: `ordered`.
    """
    order = {ledger_id: index for index, ledger_id in reversed([*enumerate(manifest.ledger_ids)])}
    keys = [(order[point.position.ledger_id], point.position.entry_id) for point in points]
    highest = [*accumulate((point.ms for point in points), max)]
    ends = {}
    for index, extent in enumerate(manifest.extents):
        if extent.last is None:
            continue
        at = bisect_left(keys, (index, extent.last + 1))
        if at < len(points):
            ends[extent.seq] = highest[at]
    return ends


def begun_ms(manifest: Manifest, points: Sequence[Point]) -> dict[int, int]:
    """Return when extents began, by number, as far as points at their first entry tell."""
    firsts = {point.position: point.ms for point in points if point.position.entry_id == 0}
    return {
        extent.seq: firsts[Position(extent.ledger_id, 0)]
        for extent in manifest.extents
        if Position(extent.ledger_id, 0) in firsts
    }


def _start(extent: Extent) -> Position:
    return Position(extent.ledger_id, extent.first)


# -- the record ------------------------------------------------------------------------------------------------------


def pack_times(token: str, points: Sequence[Point]) -> bytes:
    """Return the stored record: JSON, one line. Of a ledger: id, first entry and time, then differences in pairs."""
    rows = []
    for ledger_id, group in groupby(points, key=lambda point: point.position.ledger_id):
        row, entry, ms = [ledger_id], 0, 0
        for point in group:
            row += [point.position.entry_id - entry, point.ms - ms]
            entry, ms = point.position.entry_id, point.ms
        rows.append(row)
    return json.dumps({"format": FORMAT, "token": token, "points": rows}, separators=(",", ":")).encode()


def parse_times(log: str, token: str, data: bytes) -> list[Point]:
    """Return the points of a record; none if they belong to another log of that name.

    Raises `MetadataCorrupt`, `NotSupported` (a later format).
    """
    try:
        content: Mapping[str, Any] = parse_json(data)
        if content["format"] > FORMAT:
            raise NotSupported(f"the times of log {log} have format {content['format']}: this version reads {FORMAT}")
        if content["token"] != token:
            return []
        return [point for row in content["points"] for point in _parse_row(row)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MetadataCorrupt(f"the times of log {log} cannot be read: {error!r}") from error


def _parse_row(row: Sequence[int]) -> list[Point]:
    ledger_id, *steps = map(int, row)
    if len(steps) % 2:
        raise ValueError(f"row {list(row)}")
    points, entry, ms = [], 0, 0
    for entries, passed in zip(steps[::2], steps[1::2], strict=True):
        entry, ms = entry + entries, ms + passed
        points.append(Point(Position(ledger_id, entry), ms))
    return points
