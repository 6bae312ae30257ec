"""`RecordLogWriter`: the leader of a log whose entries are records with key, headers and time."""

from __future__ import annotations

from collections.abc import Iterable

from bookies.client.log.log_writer import LogWriter
from bookies.client.write.writer import Payload
from bookies.encoding.envelope import Record
from bookies.protocol.log import Position
from bookies.protocol.log.records import Headers, entry_of


class RecordLogWriter(LogWriter):
    """Writer that puts each payload into a record. A class of its own, so that raw logs pay nothing for it."""

    async def append(
        self,
        payload: Payload | Record,
        *,
        key: Payload | None = None,
        headers: Headers | None = None,
        timestamp: float | None = None,
        timeout: float | None = None,
    ) -> Position:
        """See `LogWriter.append`."""
        return await super().append(entry_of(payload, self._now_us(), key, headers, timestamp), timeout=timeout)

    async def append_many(self, payloads: Iterable[Payload | Record], *, timeout: float | None = None) -> Position:
        """See `LogWriter.append_many`."""
        now_us = self._now_us()
        return await self.append_entries([entry_of(payload, now_us) for payload in payloads], timeout=timeout)

    def _now_us(self) -> int:
        return 1000 * self._parts.runtime.clock.wall_ms()
