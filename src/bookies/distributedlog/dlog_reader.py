"""`DlogReader`: the records of a log of DistributedLog, segment by segment. It disturbs no other process.

The reader moves to the next segment only when the ledger of the present one is sealed and read to its end. A segment
that stays empty is deleted by its recovery, and its number is used again with another ledger: a reader waits.

Source: distributedlog 5.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator
from itertools import pairwise
from types import TracebackType
from typing import NamedTuple, Self
from weakref import WeakSet

from bookies.client.base import EntryBatch
from bookies.client.base.arguments import TimeLimit, seconds
from bookies.client.base.iteration import Batches
from bookies.client.log.base.log_operations import Patience
from bookies.client.log.base.log_reader import POLL_S
from bookies.client.read import LedgerReader
from bookies.distributedlog.formats.dlsn import FIRST, Dlsn, dlsn_of
from bookies.distributedlog.formats.entries import CONTROL, END_OF_STREAM, body_of
from bookies.distributedlog.formats.segment import PARTLY_TRUNCATED, Segment
from bookies.distributedlog.model.segment_list import Segments, first_to_read
from bookies.distributedlog.parts import LogParts, last_of, pause, records_of
from bookies.distributedlog.store.lock import LogLock
from bookies.errors import (
    BookKeeperError,
    InvalidArgument,
    LedgerClosed,
    LedgerNotFound,
    LogRecordCorrupt,
    LogTruncated,
)
from bookies.kernels import Steps, cut_records

GAPS = ("skip", "error")
LIST_SIZE = 500  # records of a list: more would leave the processor's cache before the caller has seen them
IGNORED = CONTROL | END_OF_STREAM
_new = tuple.__new__  # costs half of a call of the class


class Record(NamedTuple):
    """One record. `sequence_id`: its ordinal in the log, from 0; negative if older segments do not tell."""

    payload: bytes
    txid: int
    position: Dlsn
    sequence_id: int


class Records(Steps[Record]):
    """Asynchronous iterator over records, for one task; `batches()` returns lists of them instead.

    `timeout`: seconds that a step may wait. After the `TimeoutError` the iteration may be continued.
    """

    def __init__(self, source: _Source, timeout: float | None) -> None:
        super().__init__()
        self._batches = RecordBatches(source, timeout)

    async def _more(self) -> Record:
        self._items = iter(await anext(self._batches))
        return next(self._items)

    def batches(self) -> RecordBatches:
        """Return the same iteration by lists of records."""
        return self._batches


class RecordBatches:
    """Asynchronous iterator over lists of records, for one task. None of them is empty."""

    def __init__(self, source: _Source, timeout: float | None) -> None:
        self._source = source
        self._timeout = seconds(timeout)

    def __aiter__(self) -> AsyncIterator[list[Record]]:
        return self

    async def __anext__(self) -> list[Record]:
        async with TimeLimit(self._timeout, "the next step of an iteration"):
            batch = await self._source.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch


class DlogReader:
    """A log open for reading; any number of iterations at once. Made by `Dlog.open`."""

    def __init__(self, parts: LogParts, lock: LogLock | None = None) -> None:
        self._parts = parts
        self._lock = lock
        self._sources: WeakSet[_Source] = WeakSet()
        self.is_closed = False

    @property
    def name(self) -> str:
        return self._parts.name

    def __repr__(self) -> str:
        return f"<DlogReader {self.name} {'closed' if self.is_closed else 'open'}>"

    def read(self, start: Dlsn | None = None, *, on_gap: str = "skip", timeout: float | None = None) -> Records:
        """Iterate over the records from `start` on (None: from the beginning) up to those visible at that moment.

        `async for record in reader.read()`; `record.position` is its position, `record.position.next` the one to
        continue from. It ends before the end-of-stream record. `on_gap`: what to do if records from `start` on were
        truncated: "skip" them, or raise "error" `LogTruncated`. `timeout`: seconds that a step may take.

        Raises `LogTruncated` also if the records to read next are deleted meanwhile, `LogRecordCorrupt`, `LogNotFound`,
        and the errors of `LedgerReader.read`.
        """
        return self._records(start, on_gap, timeout, is_tail=False)

    def tail(self, start: Dlsn | None = None, *, on_gap: str = "skip", timeout: float | None = None) -> Records:
        """Iterate over the records from `start` on (None: new ones only) as they become visible, until the end of the
        stream. See `read`."""
        return self._records(start, on_gap, timeout, is_tail=True)

    def _records(self, start: Dlsn | None, on_gap: str, timeout: float | None, *, is_tail: bool) -> Records:
        if on_gap not in GAPS:
            raise InvalidArgument(f"on_gap={on_gap!r}: must be one of {', '.join(GAPS)}")
        source = _Source(self, self._parts, start, is_strict=on_gap == "error", is_tail=is_tail)
        self._sources.add(source)
        return Records(source, timeout)

    def check_open(self) -> None:
        """Raise `LedgerClosed` if the reader is closed, `LogFenced` if it has lost its lock."""
        if self.is_closed:
            raise LedgerClosed(f"the reader of log {self.name} is closed: open the log again")
        if self._lock is not None:
            self._lock.check_strictly()

    async def close(self) -> None:
        """End its iterations and release its lock. Idempotent."""
        self.is_closed = True
        for source in list(self._sources):
            await source.stop()
        if self._lock is not None:
            await self._lock.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class _OpenSegment:
    """A segment that is being read. `is_sealed`: the end of its entries is the end of the segment. `left`: entries that
    were read, and are not delivered."""

    def __init__(self, ledger: LedgerReader) -> None:
        self.ledger = ledger
        self.is_sealed = True
        self.batches: Batches | None = None
        self.left: EntryBatch | None = None

    async def next_entries(self, first: int, *, is_tail: bool) -> EntryBatch | None:
        """Return the next entries; None: there are no more now. `first`: where to begin."""
        if self.batches is None and is_tail and not self.ledger.is_sealed:
            self.batches = self.ledger.tail(first).batches()
        elif self.batches is None:
            last = await self.ledger.read_last_add_confirmed()
            self.is_sealed = self.ledger.is_sealed
            if first > last:
                return None
            self.batches = self.ledger.read_batches(first, last)
        return await anext(self.batches, None)


class _End(enum.Enum):
    """Why a reader moves on from a segment."""

    READ = enum.auto()
    DELETED = enum.auto()  # before it was read to its end


class _Source:
    """The batches of one iteration. `_next`: the least position to deliver."""

    def __init__(
        self, reader: DlogReader, parts: LogParts, start: Dlsn | None, *, is_strict: bool, is_tail: bool
    ) -> None:
        self._reader = reader
        self._parts = parts
        self._start = None if start is None else dlsn_of("start", start)
        self._next = self._start or FIRST
        self._is_strict = is_strict
        self._is_tail = is_tail
        self._segment: Segment | None = None
        self._sequence = 0  # records of the log before the present segment
        self._count = 0  # records of the present segment, as far as it was read
        self._end: _End | None = None  # of the present segment
        self._is_ended = False  # the end-of-stream record was read
        self._open: _OpenSegment | None = None  # the present segment, while it is read
        self._changed = asyncio.Event()
        self._patience = Patience(parts.runtime)

    async def next_batch(self) -> list[Record] | None:
        while not self._is_ended:
            self._reader.check_open()
            if (self._open is None or self._open.left is None) and not await self._read_on():
                return None
            if self._open is not None and self._open.left is not None:
                records = self._decoded(self._open, self._open.left)
                if records:
                    return records
        return None

    async def _read_on(self) -> bool:
        """Read the next entries, or move on to where some may be. False: there are no more now."""
        try:
            if (self._segment is None or self._end is not None) and not await self._enter_next():
                return self._is_tail
            has_more = await self._read_entries()
        except LedgerNotFound:
            await self._lost()
            return True
        except BookKeeperError as error:
            await self._let_go()
            if not self._is_tail or isinstance(error, LogTruncated | LedgerClosed):
                raise
            await self._patience.pause(error)
            return True
        self._patience.reset()
        if has_more:
            return True
        self._end = _End.READ if await self._let_go() else None
        return self._end is not None

    async def _enter_next(self) -> bool:
        """Move to the segment after the present one, or to the first. False: there is none yet."""
        if self._segment is None and self._start is None and self._is_tail:
            await self._find_end()
        self._changed.clear()
        watch = self._changed.set if self._is_tail else None
        try:
            segments = await self._parts.segments(watch)
            following = self._following(segments)
            if following is None:
                if self._is_tail:
                    await pause(self._changed, POLL_S)
                return False
        finally:
            if watch is not None:
                self._parts.store.tree.unwatch(watch)
        least = following.min_dlsn if following.truncation == PARTLY_TRUNCATED else following.first_dlsn
        if self._is_strict and self._has_gap(following, least):
            raise LogTruncated(f"log {self._reader.name} begins at {least}: {self._next} was truncated")
        self._sequence = self._sequence_before(following)
        self._segment, self._end, self._count = following, None, 0
        self._next = max(self._next, least)
        return True

    def _has_gap(self, following: Segment, least: Dlsn) -> bool:
        """Report whether records from the next one on were truncated. `least`: where the following segment begins."""
        present = self._segment
        if present is None:
            return self._start is not None and least > self._next
        if self._end is _End.DELETED and following.lssn > present.lssn:
            return True  # An empty one would have left its number to the following one.
        return following.lssn > self._next.segment + 1 or least > max(self._next, following.first_dlsn)

    async def _find_end(self) -> None:
        """Begin after the last visible record."""
        last = await last_of(self._parts)
        self._start = self._next = Dlsn(last[0].lssn, last[1], last[2].slot).next if last is not None else FIRST

    def _sequence_before(self, following: Segment) -> int:
        """Return the number of records before a segment. The list does not tell it of a second one in progress."""
        present = self._segment
        if following.start_sequence_id < 0 and present is not None and following.lssn == present.lssn + 1:
            return self._sequence + self._count
        return following.exposed_start_sequence_id

    def _following(self, segments: Segments) -> Segment | None:
        if self._segment is None:
            return first_to_read(segments, self._next)
        present = self._segment
        for segment in segments:
            if segment.lssn > present.lssn:
                return segment
            if segment.lssn == present.lssn and segment.ledger_id != present.ledger_id:
                return segment  # The present one was empty and is deleted.
        return None

    async def _read_entries(self) -> bool:
        """Read the next entries of the present segment. False: there are no more now."""
        segment = self._segment
        assert segment is not None
        if self._open is None:
            self._open = _OpenSegment(await self._parts.client.open(segment.ledger_id, password=self._parts.password))
        first = self._next.entry if self._next.segment == segment.lssn else 0
        self._open.left = await self._open.next_entries(first, is_tail=self._is_tail)
        return self._open.left is not None

    def _go_to(self, position: Dlsn) -> None:
        """Read the present segment from another position on."""
        assert self._open is not None
        self._next, self._open.batches, self._open.left = position, None, None

    def _decoded(self, present: _OpenSegment, entries: EntryBatch) -> list[Record]:
        """Return the records of the first ones of these entries, and keep the others."""
        segment, start = self._segment, self._next
        assert segment is not None
        lssn, skip, last = segment.lssn, 4 + entries.header_size, entries.last_entry_id
        records: list[Record] = []
        for entry_id, (at, end) in zip(entries.entry_ids, pairwise(entries.starts), strict=True):
            least = start.slot if (lssn, entry_id) == start[:2] else 0
            try:
                cut, position, flags = self._cut(segment, entry_id, (entries.data, at + skip, end), least)
            except LogRecordCorrupt as error:
                self._go_to(Dlsn(lssn, entry_id, 0) if records else Dlsn(lssn, entry_id + 1, 0))
                if records:  # Deliver those before it; the next step raises.
                    return records
                text = f"log {self._reader.name}: {error.message}; read on from {self._next}"
                raise LogRecordCorrupt(text, ledger_id=segment.ledger_id, entry_id=entry_id) from error
            if position >= 0:
                self._count = position
                self._is_ended |= bool(flags & END_OF_STREAM)
            records += cut
            if len(records) >= LIST_SIZE:
                last = entry_id
                break
        present.left = entries.slice(last + 1, entries.last_entry_id) if last < entries.last_entry_id else None
        self._next = Dlsn(lssn, last + 1, 0)
        return records

    def _cut(
        self, segment: Segment, entry_id: int, entry: tuple[bytes, int, int], least: int
    ) -> tuple[list[Record], int, int]:
        """Return the records of an entry from a slot on, with position and flags of its last one.

        `entry`: where it is. The position is -1 if the entry has no record. Raises `LogRecordCorrupt`.
        """
        lssn, base = segment.lssn, self._sequence - 1
        try:
            body = body_of(*entry) if segment.is_enveloped else entry
            cut = cut_records((Record, Dlsn), body, (lssn, entry_id), base, least)
        except LogRecordCorrupt:
            cut = None  # `records_of` names the place.
        if cut is not None:
            return cut
        data, start, end = entry
        parsed = records_of(segment, entry_id, data[start:end])
        records = [
            _new(Record, (value, txid, _new(Dlsn, (lssn, entry_id, slot)), base + position))
            for slot, txid, position, flags, value in parsed
            if slot >= least and not flags & IGNORED
        ]
        return records, *((parsed[-1].position, parsed[-1].flags) if parsed else (-1, 0))

    async def _lost(self) -> None:
        """Go on after a ledger that does not exist: its segment was empty, truncated, or is lost."""
        await self._let_go()
        assert self._segment is not None
        segments = await self._parts.segments()
        present = next((segment for segment in segments if segment.ledger_id == self._segment.ledger_id), None)
        if present is None and (self._count == 0 or not self._is_strict):
            self._end = _End.DELETED
        elif present is None:
            raise LogTruncated(f"log {self._reader.name}: the records from {self._next} on were deleted")
        else:
            raise LedgerNotFound(
                f"segment {present.lssn} of log {self._reader.name} has lost its ledger", ledger_id=present.ledger_id
            )

    async def _let_go(self) -> bool:
        """Close the present segment. Return whether its end is the end of the segment."""
        segment, self._open = self._open, None
        if segment is None:
            return False
        await segment.ledger.close()
        return segment.is_sealed

    async def stop(self) -> None:
        """End the iteration with an error that the reader is closed."""
        self._changed.set()
        if self._open is not None:
            await self._open.ledger.close()
