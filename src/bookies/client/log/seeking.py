"""Search for the position of a time in a log: by its points, its ledgers' creation, and the timestamps of its records.

Points of leaders and transactions limit the position to a range. If that has whole ledgers, as in logs that are older
than the points, the creation times of ledgers narrow it. In logs of records, timestamps that agree with the range give
the exact entry. Every step may be left out: then the answer is earlier, or later as an end.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple

from bookies.client.log.log_operations import LogContext
from bookies.encoding.envelope import parse_record
from bookies.errors import EntryError, LedgerNotFound, MetadataCorrupt
from bookies.protocol.log import Position
from bookies.protocol.log.log_model import ENVELOPE, Extent
from bookies.protocol.log.log_times import Point, bracket, known_points, ordered, placed

if TYPE_CHECKING:
    from bookies.client.read import LedgerReader

DISORDER = 256  # places by which timestamps may be out of order, because several producers append at once
SLACK_MS = 1_000  # between the timestamp of a record and the confirmation of its entry


class _Piece(NamedTuple):
    """Range of entries of one ledger."""

    ledger_id: int
    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.last - self.first + 1


async def points_of(parts: LogContext) -> list[Point]:
    """Return all points of a log in order. Raises `MetadataError`."""
    manifest = parts.records.current
    return ordered(manifest, [*await parts.times.read(manifest), *known_points(manifest)])


async def position_at(parts: LogContext, time_ms: int, *, is_end: bool) -> Position | None:
    """Return the position of a time: see `Log.at`."""
    while True:
        manifest = parts.records.current
        try:
            async with AsyncExitStack() as opened:
                return await _Search(parts, time_ms, opened).position(is_end=is_end)
        except LedgerNotFound:
            if await parts.records.refresh() is manifest:
                raise  # The ledger was not truncated. It is lost.


class _Search:
    """One search in one list. `opened`: closes the ledgers that it opens."""

    def __init__(self, parts: LogContext, time_ms: int, opened: AsyncExitStack) -> None:
        self._parts = parts
        self._manifest = parts.records.current
        self._extents = self._manifest.extents
        self._time_ms = time_ms
        self._now_ms = parts.runtime.clock.wall_ms()
        self._opened = opened
        self._readers: dict[int, LedgerReader] = {}

    async def position(self, *, is_end: bool) -> Position | None:
        if not self._extents:
            return None
        if self._time_ms > self._now_ms:
            return await self._end()
        low, high = await self._narrowed(*bracket(await points_of(self._parts), self._time_ms))
        start = Position(self._extents[0].ledger_id, 0) if low is None else low.position
        start = placed(self._manifest, start)
        end = await self._end() if high is None else placed(self._manifest, high.position)
        if self._manifest.record_format == ENVELOPE and low is not None:
            latest_ms = self._now_ms if high is None else high.ms
            try:
                start, end = await self._exact(start, end, range(low.ms - SLACK_MS, latest_ms + SLACK_MS))
            except EntryError:
                pass  # The next reader of the entry reports it.
        return end if is_end else start

    async def _end(self) -> Position:
        """Return the position after the last confirmed entry."""
        for extent in self._extents:
            if extent.last is None:
                ledger = await self._reader(extent.ledger_id)
                end = Position(extent.ledger_id, max(await ledger.read_last_add_confirmed() + 1, extent.first))
                if not ledger.is_sealed:
                    return end
            else:
                end = Position(extent.ledger_id, max(extent.last + 1, extent.first))
        return end

    async def _reader(self, ledger_id: int) -> LedgerReader:
        if ledger_id not in self._readers:
            opening = self._parts.client.open(ledger_id, password=self._parts.password)
            self._readers[ledger_id] = await self._opened.enter_async_context(opening)
        return self._readers[ledger_id]

    def _index(self, point: Point | None, default: int) -> int:
        extent = None if point is None else self._manifest.find(point.position)
        return default if extent is None else self._extents.index(extent)

    # -- by ledgers --------------------------------------------------------------------------------------------------
    async def _narrowed(self, low: Point | None, high: Point | None) -> tuple[Point | None, Point | None]:
        """Use the creation times of the ledgers between two points.

        A leader creates a ledger after the end of the last but one before it: see `LogWriter`.
        """
        first, last = self._index(low, -1), self._index(high, len(self._extents) - 1)
        start, stop = first + 1, last + 1
        if stop - start < 2:
            return low, high
        times: dict[int, int] = {}
        while start < stop:
            middle = (start + stop) // 2
            begun_ms = await self._begun_ms(self._extents[middle])
            if begun_ms is None:
                return low, high
            times[middle] = begun_ms
            if begun_ms < self._time_ms:
                start = middle + 1
            else:
                stop = middle
        if start <= last:
            high = Point(_start(self._extents[start]), times[start])
        if start - 2 > first:
            low = Point(_start(self._extents[start - 2]), times.get(start - 2, 0 if low is None else low.ms))
        return low, high

    async def _begun_ms(self, extent: Extent) -> int | None:
        """Return when an extent began; None: the store has no times."""
        if extent.committed_ms is not None:
            return extent.committed_ms  # Its ledger may be older than the one before it.
        return (await self._parts.client.metadata(extent.ledger_id)).ctime_ms

    # -- by timestamps -----------------------------------------------------------------------------------------------
    async def _exact(self, low: Position, high: Position, credible_ms: range) -> tuple[Position, Position]:
        """Return the first entry with this time or a later one, and the position after the last one before this time.

        If there is a record without a timestamp, or with one outside of `credible_ms`, the timestamps are no times of
        appends: then return the positions as they are. Raises `EntryError`.
        """
        pieces = await self._pieces(low, high)
        rows = sum(piece.rows for piece in pieces)
        start, stop = 0, rows
        while start < stop:
            middle = (start + stop) // 2
            [stamp_ms] = await self._timestamps(pieces, middle, middle + 1)
            if stamp_ms is None or int(stamp_ms) not in credible_ms:
                return low, high
            if stamp_ms < self._time_ms:
                start = middle + 1
            else:
                stop = middle
        begin, stop = max(0, start - DISORDER), min(rows, start + DISORDER)
        near = await self._timestamps(pieces, begin, stop)
        if not near or None in near:
            return low, high
        is_later = [stamp_ms is not None and stamp_ms >= self._time_ms for stamp_ms in near]
        earlier_count = len(near) - is_later[::-1].index(False) if False in is_later else 0
        later = is_later.index(True) if True in is_later else len(near)
        return _position(pieces, begin + later, high), _position(pieces, begin + earlier_count, high)

    async def _pieces(self, low: Position, high: Position) -> list[_Piece]:
        """Return the ranges of entries between two positions."""
        begin, end = self._manifest.find(low), self._manifest.find(high)
        assert begin is not None
        assert end is not None
        pieces = []
        for extent in self._extents:
            if begin.seq <= extent.seq <= end.seq:
                first = max(extent.first, low.entry_id) if extent is begin else extent.first
                last = high.entry_id - 1 if extent is end else extent.last
                if last is None:
                    last = await (await self._reader(extent.ledger_id)).read_last_add_confirmed()
                if first <= last:
                    pieces.append(_Piece(extent.ledger_id, first, last))
        return pieces

    async def _timestamps(self, pieces: Sequence[_Piece], start: int, stop: int) -> list[float | None]:
        """Return the timestamps of rows start..stop-1 of these ranges, in ms."""
        stamps: list[float | None] = []
        row = 0
        for piece in pieces:
            first, last = max(start, row) - row + piece.first, min(stop, row + piece.rows) - 1 - row + piece.first
            row += piece.rows
            if first <= last:
                batches = (await self._reader(piece.ledger_id)).read_batches(first, last)
                async for batch in batches:
                    stamps += map(_timestamp, batch.payloads())
        return stamps


def _position(pieces: Sequence[_Piece], row: int, end: Position) -> Position:
    """Return the position of a row of these ranges; `end`: the one after the last row."""
    for piece in pieces:
        if row < piece.rows:
            return Position(piece.ledger_id, piece.first + row)
        row -= piece.rows
    return end


def _timestamp(payload: bytes) -> float | None:
    try:
        stamp_us = parse_record(payload).timestamp_us
    except MetadataCorrupt:
        return None  # It was not written here.
    return None if stamp_us is None else stamp_us / 1000


def _start(extent: Extent) -> Position:
    return Position(extent.ledger_id, extent.first)
