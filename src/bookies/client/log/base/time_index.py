"""Record of a log's points in time: read by those who seek, and written by the leader. See `protocol/log/log_times.py`.

The leader looks at its last add confirmed once a second, so an append costs nothing. It writes the record in the
background: soon after the beginning of a ledger, then every `SAVE_S` seconds with appends, and when it closes. A write
that fails is repeated with the next one; until then the answers are coarser.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from bookies.client.log.base.cursor_store import TIMES
from bookies.client.write.manifest import ManifestLoop
from bookies.errors import BookKeeperError, LogNotFound, MetadataCorrupt, RecordNotFound
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import RecordAt, RecordWrite
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.log_model import parse_manifest
from bookies.protocol.log.log_times import POINTS_MAX, Point, merged, pack_times, parse_times, thinned
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks

INTERVAL_S = 1.0  # seconds between two points while entries are confirmed
SAVE_S = 10.0  # seconds between two writes
CLOSE_S = 2.0  # seconds that the end of a leader waits for the last write


class TimeIndex:
    """The points of one log, whose list `records` has; of a leader also those that are not stored yet."""

    def __init__(self, runtime: Runtime, driver: MetadataDriver, records: ManifestLoop) -> None:
        self._runtime = runtime
        self._driver = driver
        self._records = records
        self._record = TIMES + records.name
        self._unsaved: list[Point] = []
        self._last: Position | None = None
        self._due_s = 0.0  # loop time of the next write
        self._turn = asyncio.Lock()

    async def read(self, manifest: Manifest) -> list[Point]:
        """Return the stored points. Raises `MetadataError`."""
        return (await self._read(manifest))[0]

    async def _read(self, manifest: Manifest) -> tuple[list[Point], int]:
        try:
            data, version = await self._driver.read_record(self._record)
        except RecordNotFound:
            return [], 0
        return parse_times(self._records.name, manifest.token, data), version

    def note(self, position: Position) -> None:
        """Note that by now all entries before a position are confirmed, and no other one."""
        if position == self._last:
            return
        if self._last is None or position.ledger_id != self._last.ledger_id:
            self._due_s = 0.0
        self._last = position
        self._unsaved.append(Point(position, self._runtime.clock.wall_ms()))
        if len(self._unsaved) > POINTS_MAX:  # The store does not answer.
            self._unsaved = thinned(self._unsaved)

    def keep(self, confirmed: Callable[[], Position | None], tasks: Tasks) -> None:
        """Note points and store them. `confirmed`: the position after the last confirmed entry; None ends this.

        `tasks`: run the writes.
        """
        loop = asyncio.get_running_loop()

        def look() -> None:
            position = confirmed()
            if position is None:
                return
            self.note(position)
            if self._unsaved and loop.time() >= self._due_s:
                self._due_s = loop.time() + SAVE_S
                tasks.start(self._try_to_save(), f"store times of log {self._records.name}")
            loop.call_later(INTERVAL_S, look)

        loop.call_later(INTERVAL_S, look)

    async def _try_to_save(self) -> None:
        with contextlib.suppress(BookKeeperError):
            await self.save()

    async def finish(self, position: Position) -> None:
        """Note the end of the leader's last ledger, and store all points. Best effort."""
        self.note(position)
        with contextlib.suppress(BookKeeperError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self.save()

    async def save(self) -> None:
        """Store the noted points, if the log still exists. Raises `MetadataError`, `LogNotFound`."""
        async with self._turn:
            head, head_version = await self._head()
            if head.is_deleting or head.token != self._records.current.token:
                raise LogNotFound(f"log {self._records.name} was deleted")
            stored, version = await self._stored(head)
            new, self._unsaved = self._unsaved, []
            data = pack_times(head.token, thinned(merged(head, [*stored, *new])))
            try:
                await self._driver.transact(
                    [RecordAt(self._records.record, head_version), RecordWrite(self._record, data, version)]
                )
            except BaseException:
                self._unsaved = [*new, *self._unsaved]
                raise

    async def _head(self) -> tuple[Manifest, int]:
        """Read the log's record. The leader's own copy of the list must not change under it."""
        try:
            data, version = await self._driver.read_record(self._records.record)
        except RecordNotFound:
            raise LogNotFound(f"log {self._records.name} was deleted") from None
        return parse_manifest(self._records.name, data), version

    async def _stored(self, manifest: Manifest) -> tuple[list[Point], int]:
        try:
            return await self._read(manifest)
        except MetadataCorrupt:
            return [], (await self._driver.read_record(self._record))[1]  # It can be replaced: answers get coarser.
