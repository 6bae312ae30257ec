"""`SetLogWriter`: the leader of a log whose entries are record sets.

Records of all calls are collected in one open set: see `records/open_sets.py`. Sets are entries like others, and follow
each other in the order of the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from bookies.client.base.arguments import TimeLimit
from bookies.client.log.base.log_operations import LogContext
from bookies.client.log.log_appends import Pace
from bookies.client.log.record_writer import RecordLogWriter
from bookies.client.log.records import OpenSets, SetAppend
from bookies.client.log.sequenced import NumberedAppends
from bookies.client.turns.leader_turn import LeaderTurn
from bookies.client.write import LedgerWriter
from bookies.client.write.writer import Payload
from bookies.encoding.envelope import Record
from bookies.encoding.record_sets import codec_of, pack_sets
from bookies.errors import BookieBusy, InvalidArgument, LedgerClosed
from bookies.protocol.log import Position
from bookies.protocol.log.records import Headers, record_of


class SetLogWriter(RecordLogWriter):
    """Writer that collects records in sets."""

    def __init__(
        self,
        parts: LogContext,
        ledger: LedgerWriter,
        pace: Pace,
        turn: LeaderTurn | None,
        numbered: NumberedAppends,
    ) -> None:
        super().__init__(parts, ledger, pace, turn, numbered)
        self._codec = codec_of(parts.records.current.compression)
        config = parts.client.config
        entry_size_max = min(config.frame_size_max, config.memory_limit)
        self._sets = OpenSets(
            self._codec, pace.linger_s, entry_size_max, self._send_set, self._tasks.start, self._begin_us
        )

    def _begin_us(self) -> int:
        if self._error is not None:
            raise self._ended()
        return self._now_us()

    async def _send_set(self, entry: bytes) -> Position:
        return await self._append([entry])

    def append_nowait(
        self,
        payload: Payload | Record,
        *,
        key: Payload | None = None,
        headers: Headers | None = None,
        timestamp: float | None = None,
    ) -> SetAppend:
        """See `LogWriter.append_nowait`."""
        if key is None and headers is None and timestamp is None:
            token = self._sets.add_plain(payload)
            if token is not None:
                return token  # type: ignore[return-value]
        return self._add(payload, key, headers, timestamp)

    def _add(
        self,
        payload: Payload | Record,
        key: Payload | None = None,
        headers: Headers | None = None,
        timestamp: float | None = None,
    ) -> SetAppend:
        value, own_key, pairs, time_us = record_of(payload, 0, key, headers, timestamp)
        has_time = timestamp is not None or (isinstance(payload, Record) and payload.timestamp_us is not None)
        return self._sets.add(value, own_key, pairs, time_us if has_time else None)

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
        if producer is not None or sequence is not None:
            return await super().append(
                payload,
                key=key,
                headers=headers,
                timestamp=timestamp,
                producer=producer,
                sequence=sequence,
                expected_last=expected_last,
                timeout=timeout,
            )
        if expected_last is None:
            appending = self._append_one(payload, key, headers, timestamp)
        else:
            record = record_of(payload, self._now_us(), key, headers, timestamp)
            appending = self._append_expected(record, expected_last)
        return await (appending if timeout is None else self._in_time(appending, timeout))

    async def _append_one(
        self,
        payload: Payload | Record,
        key: Payload | None,
        headers: Headers | None,
        timestamp: float | None,
    ) -> Position:
        while True:
            try:
                append = self.append_nowait(payload, key=key, headers=headers, timestamp=timestamp)
            except BookieBusy:
                await self.wait_writable()
                continue
            try:
                return await append
            except InvalidArgument as error:  # A record that is too large is alone in its set.
                self._sets.forget(error)
                raise

    async def _append_expected(self, record: Record, expected_last: Position) -> Position:
        await self._close_set()
        ((_, entry),) = pack_sets([record], self._codec, record.timestamp_us or 0)
        return await self._append_after(entry, expected_last)

    async def append_many(
        self,
        payloads: Iterable[Payload | Record],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        timeout: float | None = None,
    ) -> Position:
        """See `LogWriter.append_many`."""
        if producer is not None or sequence is not None:
            return await super().append_many(payloads, producer=producer, sequence=sequence, timeout=timeout)
        now_us = self._now_us()
        sets = pack_sets([record_of(payload, now_us) for payload in payloads], self._codec, now_us)
        return await self._append_packed([entry for _, entry in sets], timeout)

    async def _append_packed(self, entries: Sequence[Payload], timeout: float | None = None) -> Position:
        await self._close_set()
        return await super()._append_packed(entries, timeout)

    async def _close_set(self) -> None:
        """Close the open set, and let its task go first."""
        self._sets.close_set()
        await asyncio.sleep(0)

    async def wait_writable(self, *, timeout: float | None = None) -> None:
        """See `LogWriter.wait_writable`."""
        async with TimeLimit(timeout, f"wait for the record sets of log {self.name}"):
            await self._sets.wait_writable()

    async def flush(self, *, timeout: float | None = None) -> None:
        """See `LogWriter.flush`."""
        async with TimeLimit(timeout, f"flush log {self.name}"):
            await self._sets.drain()
        self._sets.check()

    async def close(self, *, timeout: float | None = None) -> None:
        """See `LogWriter.close`. Raises the first failure of a set, too."""
        await super().close(timeout=timeout)
        self._sets.check()

    async def _seal(self) -> None:
        await self._sets.drain()
        await super()._seal()

    async def abandon(self) -> None:
        """See `LogWriter.abandon`."""
        self._sets.end(LedgerClosed(f"the writer of log {self.name} was closed: the records were not sent"))
        try:
            await super().abandon()
        finally:
            self._sets.lose()
