"""`DlogWriter`: the leader of a log of DistributedLog. Appends, rolls from segment to segment, goes on after a failure.

Records are collected in a buffer, and a pump sends them as entries of the present segment's ledger. Changes of the
segment run in one task, the worker: it starts one when the first record comes, completes it at a roll, and recovers it
when an append failed. Meanwhile the pump rests. A segment is completed before the next one is started, so a list has at
most one segment in progress that this writer wrote.

After a failure the ledger is recovered, as by any new writer. Then each entry is stored for certain, or is not: missing
entries are packed again with other positions, and sent in their order in the next segment. So a record is in the log
once.

Source: distributedlog 4.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from msgspec import Struct, field

from bookies.client.base.arguments import TimeLimit, named, whole_number
from bookies.client.log.base.log_operations import FutileLedgers, Patience
from bookies.client.log.log_writer import is_fenced
from bookies.client.write import LedgerWriter
from bookies.client.write.send_scheduler import FifoLock
from bookies.distributedlog.dlog_append import DlogAppend, EntryOutcome
from bookies.distributedlog.formats.compression import codec_of
from bookies.distributedlog.formats.dlsn import Dlsn
from bookies.distributedlog.formats.entries import SET, TXID_MAX, check_record_size, pack_entry, pack_set
from bookies.distributedlog.formats.segment import Segment
from bookies.distributedlog.model.buffer import Batch, RecordBuffer, needs_control
from bookies.distributedlog.model.segment_list import LastRecord, completed, started
from bookies.distributedlog.parts import LogParts, recover
from bookies.distributedlog.store import LogLock, Ownership
from bookies.errors import (
    BookieBusy,
    BookKeeperError,
    InvalidArgument,
    LedgerClosed,
    LogEnded,
    LogError,
    LogFenced,
    TxidOutOfOrder,
)
from bookies.runtime.tasks import Tasks


class WriterOptions(Struct, frozen=True):
    """See `Dlog.lead`."""

    ensemble: int
    write_quorum: int
    ack_quorum: int
    roll_size: int
    roll_age_s: float
    entry_size: int
    delay_s: float
    codec: int
    is_eager: bool


DELAY_MIN_S = 0.001  # between two looks at what waits: without it a delay of 0 would keep the loop busy
_BYTES = (bytes, bytearray, memoryview)
_Batch = Batch[EntryOutcome]


class _Open(Struct):
    """The segment that receives records. `written`: user records sent; `last`: the end of those acknowledged;
    `shown`: the last entry that readers can know of, because a later one carried the number.

    `failure`: of its ledger. `must_roll`: it is to be completed. `drained`: no entry is in flight, or it failed.
    """

    segment: Segment
    ledger: LedgerWriter
    last: LastRecord
    written: int = 0
    next_entry: int = 0
    size: int = 0
    shown: int = -1
    in_flight: deque[tuple[int, _Batch]] = field(default_factory=deque)
    failure: BaseException | None = None
    must_roll: bool = False
    drained: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_unseen(self) -> bool:
        """Report whether a record was acknowledged that no later entry has announced to readers."""
        return self.last.entry > self.shown

    async def drain(self) -> None:
        """Wait until nothing is in flight, or an append has failed."""
        while self.in_flight and self.failure is None:
            self.drained.clear()
            await self.drained.wait()


class _Queue(RecordBuffer[EntryOutcome]):
    """The records that are not sent, about `limit` bytes at most. `turns`: of appends that wait for room."""

    def __init__(self, entry_size: int, limit: int, last_txid: int) -> None:
        super().__init__(DlogAppend, entry_size, last_txid, EntryOutcome)
        self.turns = FifoLock()
        self.has_room = asyncio.Event()
        self._limit = limit

    @property
    def is_crowded(self) -> bool:
        return self.size >= self._limit

    async def admit(self, has_ended: Callable[[], bool]) -> None:
        """Wait until there is room, in the order of the calls."""
        if self.turns.is_empty and not self.is_crowded:
            return
        self.builder.is_shut = True  # `append_nowait` does not overtake.
        async with self.turns:
            while self.is_crowded and not has_ended():
                self.has_room.clear()
                await self.has_room.wait()


def _way_out(error: BookKeeperError) -> str:
    return "; take the lead again to append" if isinstance(error, LogFenced) else ""


class _PumpCalls:
    """Calls of `pump(waited=...)`: at the end of this iteration of the event loop, and after `delay_s`. Another call,
    when a segment is old enough to be completed.

    `is_due`: the first of these comes.
    """

    def __init__(self, pump: Callable[..., None], delay_s: float) -> None:
        self._pump = pump
        self._delay_s = delay_s
        self._loop = asyncio.get_running_loop()
        self.is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._age_timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        self.is_due = True
        self._loop.call_soon(self._now)

    def later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(max(self._delay_s, DELAY_MIN_S), self._delay_over)

    def at_age(self, age_s: float, call: Callable[[], None]) -> None:
        self._cancel_age()
        self._age_timer = self._loop.call_later(age_s, call)

    def cancel_later(self) -> None:
        self._cancel_age()
        if self._timer is not None:
            self._timer.cancel()

    def _cancel_age(self) -> None:
        if self._age_timer is not None:
            self._age_timer.cancel()

    def _now(self) -> None:
        self.is_due = False
        self._pump()

    def _delay_over(self) -> None:
        self._timer = None
        self._pump(waited=True)


class DlogWriter:
    """The one writer of a log, until another process takes over. Made by `Dlog.lead`."""

    def __init__(
        self, parts: LogParts, ownership: Ownership, lock: LogLock | None, options: WriterOptions, last_txid: int
    ) -> None:
        self._parts = parts
        self._ownership = ownership
        self._lock = lock
        self._options = options
        self._buffer = _Queue(options.entry_size, parts.client.config.memory_limit, last_txid)
        self._add_next = self._buffer.add_next
        self._open: _Open | None = None
        self._error: BookKeeperError | None = None
        self._is_ended = False  # the end-of-stream record was appended
        self._tasks = Tasks(self._task_died)
        self._worker: asyncio.Task[None] | None = None
        self._pump_calls = _PumpCalls(self._pump, options.delay_s)
        self._futile = FutileLedgers(parts.runtime)

    @property
    def name(self) -> str:
        return self._parts.name

    @property
    def last_txid(self) -> int:
        """The greatest transaction id so far."""
        return self._buffer.builder.last_txid

    @property
    def segment(self) -> Segment | None:
        """The segment that receives records; None: the next record starts one."""
        return None if self._open is None else self._open.segment

    def __repr__(self) -> str:
        state = "open" if self._error is None else f"ended({type(self._error).__name__})"
        return f"<DlogWriter {self.name} {state} last_txid={self.last_txid}>"

    # -- appending -----------------------------------------------------------------------------------------------
    async def append(self, payload: bytes, *, txid: int | None = None, timeout: float | None = None) -> Dlsn:
        """Append one record and return its position, once it is durable on the ack quorum.

        `txid`: the transaction id, not less than that of the record before; None: one more. `timeout`: seconds.

        Raises `LogFenced` (another process leads now: the record may or may not be in the log), `TxidOutOfOrder`,
        `LogEnded`, `LedgerClosed` (the writer was closed), `InvalidArgument`, and the error that ended this writer.
        """
        data = self._checked(payload)
        async with TimeLimit(timeout, f"append to log {self.name}"):
            await self._buffer.admit(self._has_ended)
            return await self._put(data, self._next_txid(txid))

    def append_nowait(self, payload: bytes, *, txid: int | None = None) -> DlogAppend:
        """Append one record without waiting. Await what it returns for the position, or the error of `append`.

        Raises `BookieBusy` if records of `memory_limit` bytes wait to be sent: use `append`, which waits.
        """
        append = self._add_next(payload, txid)
        return self._append_first(payload, txid) if append is None else append  # type: ignore[return-value]

    def _append_first(self, payload: bytes, txid: int | None) -> DlogAppend:
        """Append a record that begins an entry, or is to be refused."""
        data = self._checked(payload)
        buffer = self._buffer
        if buffer.is_crowded or not buffer.turns.is_empty:
            raise BookieBusy(f"records of {buffer.size:,} bytes wait to be sent to log {self.name}")
        buffer.builder.is_shut = False
        return self._put(data, self._next_txid(txid))

    async def append_many(
        self, payloads: Iterable[bytes], *, txid: int | None = None, timeout: float | None = None
    ) -> Dlsn:
        """Append records one after the other; return the last one's position, once all are durable.

        `txid`: of the first, each other has one more. Raises as `append` does; then some may be in the log.
        """
        batch = [self._checked(payload) for payload in payloads]
        if not batch:
            raise InvalidArgument("append_many needs at least one payload")
        async with TimeLimit(timeout, f"append to log {self.name}"):
            await self._buffer.admit(self._has_ended)
            last = self._next_txid(txid, len(batch))
            first = last - len(batch) + 1
            for offset, payload in enumerate(batch[:-1]):
                self._buffer.add(payload, first + offset)
            return await self._put(batch[-1], last)

    async def append_set(
        self,
        payloads: Sequence[bytes],
        *,
        txid: int | None = None,
        compression: str = "none",
        timeout: float | None = None,
    ) -> Dlsn:
        """Append records as one record set, all or none; return the last one's position. They share a transaction id.

        `compression`: "none" or "lz4", of the set. Raises as `append` does.
        """
        with named(self.name):
            packed = pack_set([self._checked(payload) for payload in payloads], codec_of(compression))
        async with TimeLimit(timeout, f"append to log {self.name}"):
            await self._buffer.admit(self._has_ended)
            return await self._put(packed, self._next_txid(txid), SET, len(payloads))

    async def seal(self, *, timeout: float | None = None) -> Dlsn:
        """Append the end-of-stream record, after which no record can follow, and close the writer."""
        self._check()
        async with TimeLimit(timeout, f"end log {self.name}"):
            outcome = self._buffer.add_end()
            self._is_ended = True
            self._send_soon()
            position = await outcome.future(0)
            await self.close()
            return position

    def _checked(self, payload: object) -> bytes:
        """Return a payload as bytes. Raises `InvalidArgument`."""
        if not isinstance(payload, _BYTES):
            raise InvalidArgument(f"a payload is bytes, bytearray or memoryview, not {type(payload).__name__}")
        data = bytes(payload)
        try:
            check_record_size(len(data))
        except InvalidArgument as error:
            raise InvalidArgument(f"log {self.name}: {error.message}") from None
        return data

    def _next_txid(self, txid: int | None, count: int = 1) -> int:
        """Return the transaction id of the last of `count` records. `txid`: of the first; None: the next one."""
        if self._error is not None or self._is_ended:
            self._check()
        builder = self._buffer.builder
        if txid is None:
            txid = max(builder.last_txid, 0) + 1
        elif whole_number("txid", txid, None) < 0:
            raise InvalidArgument(f"txid={txid}: must be 0 or more")
        if txid < builder.last_txid:
            raise TxidOutOfOrder(
                f"txid={txid} is less than {builder.last_txid}, that of an earlier record of log {self.name}: give "
                f"{builder.last_txid} or more"
            )
        last = txid + count - 1
        if last >= TXID_MAX:
            raise InvalidArgument(
                f"txid={last}: must be less than {TXID_MAX:,} in log {self.name}, whose last one is {self.last_txid:,}"
            )
        builder.last_txid = last
        return last

    def _has_ended(self) -> bool:
        return self._error is not None

    def _check(self) -> None:
        if self._is_ended and (self._error is None or isinstance(self._error, LedgerClosed)):
            raise LogEnded(f"log {self.name} has its end-of-stream record")
        if self._error is not None:
            error = copy.copy(self._error)
            text = f"the leader of log {self.name} has ended, the record was not sent: {self._error.message}"
            error.args = (f"{text}{_way_out(error)}",)
            raise error

    def _put(self, data: bytes, txid: int, flags: int = 0, count: int = 1) -> DlogAppend:
        append: DlogAppend = self._buffer.add(data, txid, flags, count)
        self._send_soon()
        return append

    def _send_soon(self) -> None:
        if not self._pump_calls.is_due:  # Records of one loop iteration share an entry.
            self._pump_calls.soon()

    # -- sending -------------------------------------------------------------------------------------------------
    def _pump(self, *, waited: bool = False) -> None:
        """Send what is due. While the worker changes the segment, it does nothing: the worker calls it at its end."""
        if self._worker is not None or self._error is not None:
            return
        segment = self._open
        if segment is None:
            if self._buffer:
                self._work()
            return
        if segment.failure is not None or self._is_full(segment):
            self._work()
            return
        try:
            if self._lock is not None:
                self._lock.check()
            while self._buffer.is_due(len(segment.in_flight), waited):
                waited = False
                self._send(segment, self._buffer.take())
                if self._is_full(segment):
                    self._work()
                    return
            unseen = self._options.is_eager and segment.has_unseen
            if needs_control(unseen and waited, len(self._buffer), len(segment.in_flight)):
                self._send(segment, self._buffer.control(segment.last.txid))
        except LogFenced as error:
            self._end(error)
            return
        except BookieBusy:
            pass  # The next acknowledgement, or the timer, tries again.
        except BookKeeperError as error:
            self._fail(segment, error)
            return
        except Exception as error:  # noqa: BLE001 - such as of a codec: no append may wait for it
            self._task_died(error)
            return
        if self._buffer or (segment.has_unseen and self._options.is_eager):
            self._pump_calls.later()

    def _is_full(self, segment: _Open) -> bool:
        """Report whether the present segment is to be completed."""
        if segment.next_entry == 0:
            return False
        return segment.must_roll or segment.size >= self._options.roll_size

    def _aged(self, segment: _Open) -> None:
        """Complete a segment because of its age, though no record may come."""
        segment.must_roll = True
        self._pump()

    def _send(self, segment: _Open, batch: _Batch) -> None:
        confirmed = segment.ledger.last_add_confirmed
        try:
            entry = pack_entry(batch.body, segment.written, self._options.codec)
            future = segment.ledger.append_nowait(entry)
        except Exception:
            self._buffer.put_back([batch])
            raise
        self._buffer.has_room.set()
        segment.shown = confirmed
        segment.in_flight.append((segment.next_entry, batch))
        segment.next_entry += 1
        segment.size += len(entry)
        segment.written += batch.count
        segment.drained.clear()
        future.add_done_callback(lambda done: self._done(segment, done))

    def _done(self, segment: _Open, future: asyncio.Future[int]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            if self._open is segment:
                self._fail(segment, error)
            return
        self._acknowledge(segment)
        if not segment.in_flight:
            segment.drained.set()
        self._pump()

    def _acknowledge(self, segment: _Open) -> None:
        """Resolve the oldest entry in flight."""
        entry, batch = segment.in_flight.popleft()
        batch.tag.settle((segment.segment.lssn, entry))
        if not batch.is_control:
            segment.last = LastRecord(batch.last_txid, entry, batch.last_slot, segment.last.records + batch.count)

    def _fail(self, segment: _Open, error: BaseException) -> None:
        if segment.failure is None:
            segment.failure = error
            segment.drained.set()
            self._work()

    # -- changing the segment ------------------------------------------------------------------------------------
    def _work(self) -> None:
        if self._worker is None and self._error is None:
            self._worker = self._tasks.start(self._change(), f"change the segment of log {self.name}")

    async def _change(self) -> None:
        """Change the segment until records can be sent."""
        patience = Patience(self._parts.runtime)
        try:
            while True:
                segment = self._open
                try:
                    if segment is None:
                        if not self._buffer:
                            break
                        await self._start()
                    elif segment.failure is not None:
                        await self._replace(segment, segment.failure)
                    elif self._is_full(segment):
                        await self._complete(segment)
                    else:
                        break
                    patience.reset()
                except BookKeeperError as error:
                    if segment is not None and segment is self._open and segment.failure is None:
                        self._fail(segment, error)  # Recovery decides what is in it.
                    await patience.pause(error)
        except BookKeeperError as error:
            self._end(error)
        finally:
            self._worker = None
        self._pump()

    async def _start(self) -> None:
        """Start a segment. The buffer has a record."""
        if self._lock is not None:
            self._lock.check()
        options, parts = self._options, self._parts
        segments = await parts.segments()
        ledger = await parts.client.create(
            ensemble=options.ensemble,
            write_quorum=options.write_quorum,
            ack_quorum=options.ack_quorum,
            digest="crc32",
            password=parts.password,
        )
        try:
            garbage = await self._ownership.reserve(ledger.ledger_id)
            if garbage is not None:
                await parts.delete_ledger(garbage)
            txid = self._buffer.first_txid
            segment = started(segments, self._ownership.highest, parts.first_lssn, ledger.ledger_id, txid)
            await self._ownership.start(segment)
        except BaseException:
            await ledger.close()
            if self._ownership.reserved != ledger.ledger_id:  # Otherwise the next writer deletes it.
                with contextlib.suppress(BookKeeperError):
                    await parts.delete_ledger(ledger.ledger_id)
            raise
        self._open = _Open(segment, ledger, LastRecord(txid, -1, -1, 0))
        self._pump_calls.at_age(options.roll_age_s, partial(self._aged, self._open))

    async def _complete(self, segment: _Open) -> None:
        """Complete the present segment: nothing is in flight at its end, which is a control entry."""
        await segment.drain()
        if segment.failure is None:
            await self._send_control(segment)
            await segment.drain()
        if segment.failure is None:
            await segment.ledger.seal()
            await self._write_end(segment)

    async def _send_control(self, segment: _Open) -> None:
        await segment.ledger.wait_writable()
        self._send(segment, self._buffer.control(segment.last.txid))

    async def _write_end(self, segment: _Open) -> None:
        if self._lock is not None:
            self._lock.check()
        segments = await self._parts.segments()
        now_ms = self._parts.runtime.clock.wall_ms()
        await self._ownership.complete(segment.segment, completed(segments, segment.segment, segment.last, now_ms))
        self._open = None

    async def _replace(self, segment: _Open, failure: BaseException) -> None:
        """Recover the failed segment, and put the entries that are not in it back into the buffer."""
        if is_fenced(failure):
            raise LogFenced(f"another process is taking log {self.name} over") from failure
        await segment.ledger.close()
        ledger = await self._parts.client.recover(segment.segment.ledger_id, password=self._parts.password)
        await ledger.close()
        while segment.in_flight and segment.in_flight[0][0] <= ledger.last_add_confirmed:
            self._acknowledge(segment)
        left = [batch for _, batch in segment.in_flight if not batch.is_control]
        segment.in_flight.clear()
        self._buffer.put_back(left)
        await self._futile.pause(ledger.last_add_confirmed, failure)
        if ledger.last_add_confirmed < 0:
            await self._parts.delete_ledger(segment.segment.ledger_id)
            await self._ownership.remove(segment.segment)
            self._open = None
        else:
            await self._write_end(segment)

    def _end(self, error: BookKeeperError) -> None:
        """End the writer: what waits may or may not be in the log if it was sent."""
        if self._error is not None:
            return
        self._error = error
        self._buffer.has_room.set()
        self._pump_calls.cancel_later()
        sent: list[_Batch] = []
        if self._open is not None:
            self._open.drained.set()
            sent = [batch for _, batch in self._open.in_flight]
        for batches, fate in ((sent, "may or may not be"), (self._buffer.clear(), "is not")):
            unknown = copy.copy(error)
            unknown.args = (f"{error.message}: the record {fate} in log {self.name}{_way_out(error)}",)
            for batch in batches:
                batch.tag.settle(unknown)

    def _task_died(self, cause: BaseException) -> None:
        error = LogError(f"the leader of log {self.name} has failed: {cause!r}")
        error.__cause__ = cause
        self._end(error)

    # -- ending --------------------------------------------------------------------------------------------------
    async def flush(self, *, timeout: float | None = None) -> None:
        """Wait until every record appended so far is durable and readers can see it. Raises as `append` does."""
        async with TimeLimit(timeout, f"flush log {self.name}"):
            await self._settle()
            segment = self._open
            if segment is not None and segment.has_unseen:
                await self._send_control(segment)
                await self._settle()

    async def _settle(self) -> None:
        """Wait until all records are acknowledged and the worker rests."""
        while self._error is None:
            if self._worker is not None:
                await asyncio.wait([self._worker])
            elif self._open is not None and self._open.failure is None and self._open.in_flight:
                segment = self._open
                segment.drained.clear()
                self._pump(waited=True)
                await segment.drained.wait()
            elif self._buffer:
                self._pump(waited=True)
                await asyncio.sleep(0 if self._worker is None else self._options.delay_s)
            else:
                return
        raise copy.copy(self._error)

    async def roll(self, *, timeout: float | None = None) -> None:
        """Complete the present segment now; the next record starts another."""
        self._check()
        async with TimeLimit(timeout, f"roll log {self.name}"):
            await self._settle()
            if self._open is not None:
                self._open.must_roll = True
            self._pump()
            await self._settle()

    async def close(self, *, timeout: float | None = None) -> None:
        """Wait for appended records, complete the segment, and release the log. Idempotent.

        Raises `LogFenced`, or the error that prevents it; the next leader completes the segment then.
        """
        try:
            if self._error is None:
                async with TimeLimit(timeout, f"close the leader of log {self.name}"):
                    await self._settle()
                    while self._open is not None and self._open.next_entry > 0:
                        self._open.must_roll = True
                        self._work()
                        await self._settle()
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Release the log without completing the segment: the next writer does. Pending records become unknown."""
        self._end(LedgerClosed("the writer was closed"))
        await self._tasks.stop()
        if self._open is not None:
            await self._open.ledger.close()
        if self._lock is not None:
            await self._lock.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close after a normal end of the block; after an exception only release."""
        if error_type is None:
            await self.close()
        else:
            await self.abandon()


async def take_over(parts: LogParts, lock: LogLock | None, options: WriterOptions) -> DlogWriter:
    """Recover the log and become its writer. Raises `LogFenced` if another process does the same meanwhile."""
    ownership = Ownership(parts.runtime, parts.store)
    await ownership.load()
    await recover(parts, ownership)
    return DlogWriter(parts, ownership, lock, options, ownership.max_txid)
