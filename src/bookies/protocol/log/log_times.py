"""Times of a log: sparse points that tell when which part of it was appended, and the search among them.

A point (position, time) states: every entry before the position was confirmed at that wall clock time or before, and
no entry from it on. A leader notes points while it appends. So an entry that was confirmed at a time T or later is
never before the last point with an earlier time, and no entry from the first point with a later time on was confirmed
before T. Omitting points, or raising the times of later ones, makes answers coarser and never wrong. Hence:

* A clock that steps back, or a leader whose clock is behind, is covered by the greatest time so far, as long as the
  point with that time is kept.
* The record is bounded: the older half of its points is thinned when there are too many.

An extent of a transaction has the time at which its commit began: its entries became part of the log soon afterwards.

Source: docs/explanation/logs.md, "Times".
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, zip_longest
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
    """Return the points of listed ledgers in the order of the list, one per position, with times that never fall."""
    order = {ledger_id: index for index, ledger_id in reversed([*enumerate(manifest.ledger_ids)])}
    latest: dict[Position, int] = {}
    for at, ms in points:
        if at.ledger_id in order:
            latest[at] = max(ms, latest.get(at, 0))
    highest, rising = 0, []
    for at in sorted(latest, key=lambda at: (order[at.ledger_id], at.entry_id)):
        highest = max(highest, latest[at])
        rising.append(Point(at, highest))
    return rising


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


def bracket(points: Sequence[Point], time_ms: int) -> tuple[Point | None, Point | None]:
    """Return the last point before a time, and the first one at that time or later. `points`: `ordered`."""
    index = bisect_left(points, time_ms, key=lambda point: point.ms)
    return points[index - 1] if index else None, points[index] if index < len(points) else None


def thinned(points: Sequence[Point], limit: int = POINTS_MAX) -> list[Point]:
    """Return at most `limit` points: all of the newer half, and every second one of the older half, repeatedly.

    The first point of a ledger stays as long as that leaves something to omit.
    """
    left = list(points)
    while len(left) > limit:
        older, newer = left[: len(left) // 2], left[len(left) // 2 :]
        kept = [
            point
            for index, point in enumerate(older)
            if index % 2 == 0 or point.position.ledger_id != older[index - 1].position.ledger_id
        ]
        left = (kept if len(kept) < len(older) else older[::2]) + newer
    return left


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

    `points`: `ordered`.
    """
    order = {ledger_id: index for index, ledger_id in reversed([*enumerate(manifest.ledger_ids)])}
    keys = [(order[point.position.ledger_id], point.position.entry_id) for point in points]
    ends = {}
    for index, extent in enumerate(manifest.extents):
        if extent.last is None:
            continue
        at = bisect_left(keys, (index, extent.last + 1))
        if at < len(points):
            ends[extent.seq] = points[at].ms
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
