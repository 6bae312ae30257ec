"""`RecordLogWriter`: the leader of a log whose entries are records with key, headers and time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bookies.client.base.arguments import whole_number
from bookies.client.log.log_writer import NO_ENTRY, LogWriter
from bookies.client.write.writer import Payload
from bookies.encoding.envelope import Record, pack_record
from bookies.errors import InvalidArgument
from bookies.protocol.log import Position
from bookies.protocol.log.records import Decoder, Headers, entry_of, record_of
from bookies.protocol.log.sequences import HEADER, check_unnumbered

_HEADER = HEADER.encode()


class RecordLogWriter(LogWriter):
    """Writer that puts each payload into a record. A class of its own, so that raw logs pay nothing for it."""

    async def append(
        self,
        payload: Payload | Record,
        *,
        key: Payload | None = None,
        headers: Headers | None = None,
        timestamp: float | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        expected_last: Position | None = None,
        timeout: float | None = None,
    ) -> Position:
        """See `LogWriter.append`."""
        record = record_of(payload, self._now_us(), key, headers, timestamp)
        if producer is None and sequence is None:
            return await super().append(pack_record(record), expected_last=expected_last, timeout=timeout)
        if expected_last is not None:
            raise InvalidArgument("give expected_last, or producer and sequence: a repeated entry need not be the last")
        return await self._in_time(self._append_numbered([record], producer, sequence), timeout)

    async def append_many(
        self,
        payloads: Iterable[Payload | Record],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        timeout: float | None = None,
    ) -> Position:
        """See `LogWriter.append_many`."""
        now_us = self._now_us()
        if producer is None and sequence is None:
            return await self._append_packed([entry_of(payload, now_us) for payload in payloads], timeout)
        records = [record_of(payload, now_us) for payload in payloads]
        return await self._in_time(self._append_numbered(records, producer, sequence), timeout)

    async def append_entries(self, entries: Sequence[Payload], *, timeout: float | None = None) -> Position:
        """See `LogWriter.append_entries`."""
        entries = list(entries)
        copies = [bytes(entry) for entry in entries if isinstance(entry, bytes | bytearray | memoryview)]
        decoder = Decoder(self.name, self.manifest.record_format)
        if not decoder.is_sets:  # Search costs little, and only the others are packed.
            copies = [entry for entry in copies if _HEADER in entry]
        check_unnumbered(self.name, decoder.intact(self.ledger_id, range(len(copies)), copies))
        return await self._append_packed(entries, timeout)

    async def _append_numbered(self, records: list[Record], producer: str | None, sequence: int | None) -> Position:
        if producer is None or sequence is None:
            raise InvalidArgument("producer and sequence belong together: give both, or neither")
        first = whole_number("sequence", sequence)
        appended = await (await self.numbered()).append(producer, first, records)
        return appended.last or NO_ENTRY

    def _now_us(self) -> int:
        return 1000 * self._parts.runtime.clock.wall_ms()
