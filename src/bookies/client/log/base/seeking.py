"""Search for the position of a time in a log: by its points, and by the creation of its ledgers.

Points of leaders and transactions limit the position to a range. If that has whole ledgers and no other points, as in
logs that are older than the points, the creation times of ledgers narrow it. The timestamps of records do not count:
they may be the times of events, and those of appends are earlier than the confirmation by an unknown time.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from bookies.client.log.base.log_operations import LogContext
from bookies.errors import LedgerNotFound
from bookies.protocol.log import Position
from bookies.protocol.log.log_model import Extent
from bookies.protocol.log.log_times import Point, bracket, known_points, ordered, placed

if TYPE_CHECKING:
    from bookies.client.read import LedgerReader


async def points_of(parts: LogContext) -> list[Point]:
    """Return all points of a log in order. Raises `MetadataError`."""
    manifest = parts.records.current
    return ordered(manifest, [*await parts.times.read(manifest), *known_points(manifest)])


async def created_ms_of(parts: LogContext, extent: Extent) -> int | None:
    """Return when the ledger was created in which an extent was written; None: that is not known any more."""
    if extent.stored is not None:
        return extent.created_ms  # The ledger is deleted.
    return (await parts.client.metadata(extent.ledger_id)).ctime_ms


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
        before, after, has_others = bracket(await points_of(self._parts), self._time_ms)
        low, high = before and before.position, after and after.position
        if not has_others:
            low, high = await self._narrowed(low, high)
        if is_end:
            return await self._end() if high is None else placed(self._manifest, high)
        return placed(self._manifest, low or _start(self._extents[0]))

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

    def _index(self, position: Position | None, default: int) -> int:
        extent = None if position is None else self._manifest.find(position)
        return default if extent is None else self._extents.index(extent)

    async def _narrowed(self, low: Position | None, high: Position | None) -> tuple[Position | None, Position | None]:
        """Use the creation times of the ledgers between the positions of two points.

        A leader creates a ledger after the end of the last but one before it: see `LogWriter`.
        """
        first, last = self._index(low, -1), self._index(high, len(self._extents) - 1)
        start, stop = first + 1, last + 1
        if stop - start < 2:
            return low, high
        while start < stop:
            middle = (start + stop) // 2
            begun_ms = await self._begun_ms(self._extents[middle])
            if begun_ms is None:
                return low, high
            if begun_ms < self._time_ms:
                start = middle + 1
            else:
                stop = middle
        if start <= last:
            high = _start(self._extents[start])
        if start - 2 > first:
            low = _start(self._extents[start - 2])
        return low, high

    async def _begun_ms(self, extent: Extent) -> int | None:
        """Return when an extent began; None: the store has no times."""
        if extent.committed_ms is not None:
            return extent.committed_ms  # Its ledger may be older than the one before it.
        return await created_ms_of(self._parts, extent)


def _start(extent: Extent) -> Position:
    return Position(extent.ledger_id, extent.first)
