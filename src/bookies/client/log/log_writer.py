"""`LogWriter`: the leader of a log. Appends, rolls from ledger to ledger, and continues after a failure.

Entries go to one ledger at a time. A roll creates the next one and lists it while appends go on; then new appends
wait at the gate until the old ledger is sealed, and go to the new one. So no entry is acknowledged in a ledger before
the preceding ledger has its end.

When an append fails, the ledger's end is unknown, and sending the entry again could store it twice. So the ledger is
recovered first, as by any new leader: each entry then is stored for certain, or certainly is not, and only the
missing ones go to the next ledger, in their old order. If a ledger is fenced, another process takes over, and this
writer ends.

Source: client-protocol 5.3.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Self

from bookies.client.base.arguments import TimeLimit, position, seconds, switch
from bookies.client.log.base.log_operations import (
    FutileLedgers,
    LogContext,
    discard,
    new_ledger,
    sweep,
    take_over,
    truncate,
)
from bookies.client.log.log_appends import FailedAppends, Gate, Pace, RollSchedule
from bookies.client.log.records import SetAppend
from bookies.client.log.sequenced import NumberedAppends, SequencedWriter
from bookies.client.turns.leader_turn import LeaderTurn
from bookies.client.write import LedgerWriter
from bookies.client.write.manifest import ManifestLoop
from bookies.client.write.writer import BATCH_SIZE_MAX, Payload
from bookies.encoding.envelope import Record
from bookies.errors import (
    AckQuorumTimeout,
    BookieBusy,
    BookKeeperError,
    InvalidArgument,
    LedgerClosed,
    LedgerFenced,
    LogError,
    LogFenced,
    LogNotFound,
    NotSupported,
    VersionConflict,
    WrongExpectedLast,
)
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.log_model import SETS, LedgerEnd, ended, rolled
from bookies.protocol.log.records import Headers, value_of
from bookies.runtime.tasks import Tasks

NO_ENTRY = Position(-1, -1)  # stands for the last entry of a log without entries
OVERHEAD_MAX = 128  # bytes that an entry takes beside its payload, at most
_new = tuple.__new__  # A named tuple's own one takes twice as long.


class LogWriter:
    """The one writer of a log, until another process takes over. Made by `Log.lead`."""

    def __init__(
        self,
        parts: LogContext,
        ledger: LedgerWriter,
        pace: Pace,
        turn: LeaderTurn | None,
        numbered: NumberedAppends,
    ) -> None:
        self._parts = parts
        self._epoch = parts.records.current.epoch
        self._tasks = Tasks(self._task_died)
        self._gate = Gate()
        self._failed = FailedAppends(FutileLedgers(parts.runtime))
        self._count = 0  # appends so far
        self._ends: dict[int, LedgerEnd] = {}  # ends of the ledgers that this writer has written, once they are decided
        self._next: LedgerWriter | None = None  # the next ledger of a roll: created, perhaps listed, not written to yet
        self._error: BookKeeperError | None = None  # the error that ended this writer
        self._schedule = RollSchedule(pace.roll_size, pace.roll_age_s, self._aged)
        self._turn = turn
        self._numbered = numbered
        self._install(ledger)
        parts.times.keep(self._confirmed, self._tasks)
        if self._records.current.deleting:
            self._tasks.start(self._sweep(), f"sweep up after log {self.name}")
        if turn is not None:
            self._tasks.start(turn.keep(self._check_lead), f"keep the lead of log {self.name}")

    # -- what it is ----------------------------------------------------------------------------------------------
    @property
    def _records(self) -> ManifestLoop:
        return self._parts.records

    @property
    def name(self) -> str:
        return self._records.name

    @property
    def epoch(self) -> int:
        """Return the epoch, which grows with every leader, and every time this one continues after a failure."""
        return self._epoch

    @property
    def ledger_id(self) -> int:
        """Return the ledger that receives entries at present."""
        return self._ledger.ledger_id

    @property
    def manifest(self) -> Manifest:
        """Return the list of ledgers as this writer knows it."""
        return self._records.current

    def __repr__(self) -> str:
        state = "open" if self._error is None else f"ended({type(self._error).__name__})"
        return f"<LogWriter {self.name} {state} epoch={self._epoch} {self._ledger!r}>"

    # -- appending -----------------------------------------------------------------------------------------------
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
        """Append one entry and return its position, once it is durable on the ack quorum.

        The entry has the log's record format. In an envelope log it is a record with `key`, `headers` (a mapping or
        pairs, from a name to bytes or None) and `timestamp` (seconds since 1970; None: now), or a `Record`, whose time
        is now if it has none. In a raw log it is the payload. In a log of record sets, such records
        share an entry, and its position.

        * `producer`, `sequence`: name of the caller's stream of entries, and the entry's number in it; numbers grow by
          one. The log holds each number once, however often the append is repeated, by any leader. Position (-1, -1):
          the log holds the entry, and its position is not known any more. Needs the record format "envelope".
        * `expected_last`: append only if the last entry of the log has this position; (-1, -1): if there is none.
          Entries that this writer has accepted before and that are not durable yet count.
        * `timeout`: seconds.

        Raises `LogFenced` (another process leads now: the entry may or may not be in the log), `AckQuorumTimeout`
        (not confirmed in time: the same), `LedgerClosed` (the writer was closed), `InvalidArgument` (too large, or not
        for a raw log), and the error that ended this writer after a failure. With `expected_last` also
        `WrongExpectedLast`, and with `producer` also `SequenceGap` and `LogError`: after an append with an unknown
        outcome take the lead again. `MetadataError`: it is unknown whether this process still leads, and nothing was
        appended.
        """
        if (
            timeout is not None
            or key is not None
            or headers is not None
            or timestamp is not None
            or producer is not None
            or sequence is not None
            or expected_last is not None
        ):
            value = value_of(self.name, payload, key, headers, timestamp)
            if producer is not None or sequence is not None:
                await self.numbered()  # It refuses a raw log.
            return await self._in_time(self._append_after(value, expected_last), timeout)
        if self._gate.is_busy or self._error is not None:
            return await self._append([value_of(self.name, payload)])
        self._count = number = self._count + 1
        ledger = self._ledger  # From here on like `_append`, which would cost half as much again per entry.
        try:
            entry_id = await ledger.append(payload)  # type: ignore[arg-type]  # A ledger refuses a `Record`.
        except InvalidArgument as error:
            if not isinstance(payload, Record):
                raise self._refused(error) from None
            return await self._append([value_of(self.name, payload)])
        except BookKeeperError as error:
            return await self._append_left([payload], number, ledger, error)  # type: ignore[list-item]
        self._size_left -= len(payload)
        if self._size_left <= 0:
            self._roll_soon()
        return _new(Position, (ledger.ledger_id, entry_id))

    async def append_many(
        self,
        payloads: Iterable[Payload | Record],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        timeout: float | None = None,
    ) -> Position:
        """Append entries one after the other, without any between them; return the last position, once all are durable.

        They have the log's record format: see `append`. They are in one ledger, unless it fails meanwhile. `producer`:
        as in `append`; `sequence`: the number of the first one. Raises like `append`; then some of them may be in the
        log.
        """
        batch = list(payloads)
        if producer is not None or sequence is not None:
            await self.numbered()  # It refuses a raw log.
        try:
            return await self._appending(batch, timeout)  # type: ignore[arg-type]
        except InvalidArgument:
            if not any(isinstance(payload, Record) for payload in batch):
                raise
        # Nothing was sent: a ledger checks the types of all payloads before.
        return await self._appending([value_of(self.name, payload) for payload in batch], timeout)

    async def append_entries(self, entries: Sequence[Payload], *, timeout: float | None = None) -> Position:
        """Append entries that have the log's record format already, byte for byte: copies, or packed elsewhere.

        See `append_many`, which is for values and records. Raises `InvalidArgument` also for an entry with the number
        of a producer: the number counts only in the log that has it.
        """
        return await self._append_packed(entries, timeout)

    async def _append_packed(self, entries: Sequence[Payload], timeout: float | None = None) -> Position:
        return await self._appending(list(entries), timeout)

    def append_nowait(
        self,
        payload: Payload | Record,
        *,
        key: Payload | None = None,
        headers: Headers | None = None,
        timestamp: float | None = None,
    ) -> SetAppend:
        """Add a record to the open record set without waiting, and return the outcome of that set, to await.

        Only in a log of record sets: `record_format="sets"`. The outcome's result is the position of the set's entry,
        which its records share; it raises as `append` does. A set is sent when it has 64 KiB, when it has been open for
        the linger (`Log.lead`), and at once when no other set is in flight. A record without `timestamp` has the time
        at which its set was opened.

        Raises `BookieBusy` if 4 MiB of sets are in flight (await `wait_writable`, then repeat), `InvalidArgument`,
        `NotSupported` (another record format), and the error that ended this writer.
        """
        raise NotSupported(
            f"log {self.name} has record format {self.manifest.record_format}: append_nowait collects record sets. Use "
            f'append, or create a log with record_format="{SETS}"'
        )

    async def wait_writable(self, *, timeout: float | None = None) -> None:
        """Wait until `append_nowait` may open a set. `timeout`: seconds."""

    async def flush(self, *, timeout: float | None = None) -> None:
        """Send the open record set, and wait until all sets are durable. `timeout`: seconds.

        Raises the first failure of a set since the last call. In other record formats there is nothing to send.
        """

    def _appending(self, batch: list[Payload], timeout: float | None) -> Coroutine[object, object, Position]:
        if not batch:
            raise InvalidArgument("append_many needs at least one payload")
        return self._append(batch) if timeout is None else self._in_time(self._append(batch), timeout)

    async def _in_time(self, appending: Coroutine[object, object, Position], timeout: float | None) -> Position:
        try:
            limit = asyncio.timeout(seconds(timeout))
        except InvalidArgument:
            appending.close()  # Nothing of it has run.
            raise
        try:
            async with limit:
                return await appending
        except TimeoutError:
            raise AckQuorumTimeout(f"not confirmed in time: it may or may not be in log {self.name}") from None

    async def numbered(self) -> SequencedWriter:
        """Return its writer of numbered entries: see `Log.sequenced`."""
        return await self._numbered.writer(self, self._append_packed)

    async def _append_after(self, payload: Payload, expected: Position | None) -> Position:
        """Append one entry if the last one has this position; None: any. Raises `WrongExpectedLast`."""
        if expected is None:
            return await self._append([payload])
        is_none = isinstance(expected, tuple | list) and tuple(expected) == NO_ENTRY
        expected = NO_ENTRY if is_none else position("expected_last", expected)
        self._count = number = self._count + 1
        is_first = True
        while True:
            if is_first and self._gate.is_busy:
                await self._gate.pass_through()  # After a failure it goes before those at the gate: `_append_left`.
            if self._error is not None:
                raise self._ended()
            ledger = self._ledger
            try:
                # No await between the comparison and the ledger's own queue.
                self._check_last(expected)
                try:
                    future = ledger.append_nowait(payload)
                except BookieBusy:
                    await ledger.wait_writable()
                    is_first = True
                    continue
                entry_id = await future
            except WrongExpectedLast:
                # A leader that was replaced without noticing it would refuse what follows entries of the next one.
                await self._check_lead()
                raise
            except InvalidArgument as error:
                raise self._refused(error) from None
            except BookKeeperError as error:
                if await self._left_of([payload], number, ledger, error) or error.entry_id is None:
                    is_first = False
                    continue  # The outcome of all entries before it is known.
                entry_id = error.entry_id
            self._add_size([payload])
            return Position(ledger.ledger_id, entry_id)

    def _check_last(self, expected: Position) -> None:
        """Raise `WrongExpectedLast` unless this is the last entry, and `LedgerClosed` while that is unknown."""
        last = Position(self._ledger.ledger_id, self._ledger.last_pushed())
        if last.entry_id < 0:
            ends = {
                extent.ledger_id: extent.end or self._ends.get(extent.ledger_id) for extent in self.manifest.extents
            }
            filled = [
                Position(ledger_id, end.last_entry_id)
                for ledger_id, end in ends.items()
                if end and end.last_entry_id >= 0
            ]
            last = filled[-1] if filled else NO_ENTRY
        if last != expected:
            actual = f"the last entry of log {self.name} is {last}" if last != NO_ENTRY else f"log {self.name} is empty"
            expectation = "no entry" if expected == NO_ENTRY else str(expected)
            text = (
                f"{actual}, and {expectation} was expected: nothing was appended. Read what follows, and decide again"
            )
            raise WrongExpectedLast(text, last=last)

    async def _append(self, batch: list[Payload]) -> Position:
        self._count = number = self._count + 1
        if self._gate.is_busy:
            await self._gate.pass_through()
        return await self._send(batch, number)

    async def _send(self, batch: list[Payload], number: int) -> Position:
        if self._error is not None:
            raise self._ended()
        # No await between here and the ledger's own queue: appends keep the order in which they came.
        ledger = self._ledger
        try:
            entry_id = await (ledger.append(batch[0]) if len(batch) == 1 else ledger.append_many(batch))
        except InvalidArgument as error:
            raise self._refused(error) from None
        except BookKeeperError as error:
            return await self._append_left(batch, number, ledger, error)
        self._add_size(batch)
        return Position(ledger.ledger_id, entry_id)

    async def _append_left(
        self, batch: list[Payload], number: int, ledger: LedgerWriter, error: BookKeeperError
    ) -> Position:
        """Append the part of a batch that is not in the failed ledger. Appends that wait for this are not kept at the
        gate."""
        left = await self._left_of(batch, number, ledger, error)
        self._add_size(batch[: len(batch) - len(left)])
        if left:
            return await self._send(left, number)
        assert error.entry_id is not None, "stored without having been sent"
        return Position(ledger.ledger_id, error.entry_id)

    def _add_size(self, batch: list[Payload]) -> None:
        self._size_left -= sum(map(len, batch))
        if self._size_left <= 0:
            self._roll_soon()

    async def _left_of(
        self, batch: list[Payload], number: int, ledger: LedgerWriter, error: BookKeeperError
    ) -> list[Payload]:
        """Return the part of a failed append that is certainly not in the log. Raises if that is unknown."""
        if self._error is not None:
            raise self._unknown()
        decided = self._failed.add(number)
        if not self._failed.is_recovering:
            self._failed.is_recovering = True
            self._tasks.start(self._recover(ledger, error), f"recover log {self.name}")
        try:
            await decided
        except asyncio.CancelledError:
            raise asyncio.CancelledError(f"append cancelled: it may or may not be in log {self.name}") from None
        if error.entry_id is None and len(batch) > 1 and not self._is_one_piece(batch):
            text = f"{error.message}: of the batch nothing, or some at its front, is in log {self.name}"
            raise LogError(text) from error
        if error.entry_id is None:
            return batch
        end = self._ends.get(ledger.ledger_id)
        if end is None:
            raise LogError(
                f"the entry may or may not have been in log {self.name}, which was truncated there"
            ) from error
        stored = end.last_entry_id - (error.entry_id - len(batch))
        return batch[max(0, stored) :]

    def _is_one_piece(self, batch: list[Payload]) -> bool:
        """Report whether a ledger accepts a batch as a whole or not at all. Of a larger one it counts no pieces."""
        size_max = min(BATCH_SIZE_MAX, self._parts.client.config.memory_limit)
        return sum(map(len, batch)) + OVERHEAD_MAX * len(batch) <= size_max

    # -- going on after a failure --------------------------------------------------------------------------------
    async def _recover(self, ledger: LedgerWriter, cause: BookKeeperError) -> None:
        async with self._gate.changing:
            with contextlib.suppress(BookKeeperError):  # It has become the error of every append, and of the writer.
                await self._replace(ledger, cause)

    async def _replace(self, ledger: LedgerWriter, cause: BookKeeperError) -> None:
        """Recover a failed ledger, continue in another, and report the outcome to the waiting appends.

        Raises the error that ended the writer.
        """
        if self._error is not None:
            self._wake_failed()
            raise self._error
        async with self._gate:
            if self._ledger is ledger:
                try:
                    if is_fenced(cause):
                        raise LogFenced(f"another process is taking log {self.name} over") from cause
                    await ledger.close()
                    await self._failed.futile.pause(ledger.last_add_confirmed, failure_of(cause))
                    following = await take_over(self._parts, leader=self._epoch)
                except BookKeeperError as error:
                    self._end(error)
                    raise
                # A concurrent truncation may have noted ends before the take-over.
                extents = self.manifest.extents
                self._ends.update((extent.ledger_id, extent.end) for extent in extents if extent.end is not None)
                self._epoch = self._records.current.epoch
                if self._next is not None:
                    await self._put_away(self._next)
                self._install(following)
            self._wake_failed()
            await asyncio.sleep(0)  # They go first, in their old order; then those at the gate, or the end.

    async def _put_away(self, ledger: LedgerWriter) -> None:
        """Keep the next ledger of a roll that did not end."""
        self._next = None
        if ledger.ledger_id in self._records.current.ledger_ids:
            await ledger.close()
        else:
            await discard(self._parts, ledger)

    def _wake_failed(self) -> None:
        self._failed.wake(None if self._error is None else self._unknown)

    def _install(self, ledger: LedgerWriter) -> None:
        self._ledger = ledger
        self._size_left = self._schedule.size  # payload bytes
        self._schedule.await_age()
        self._parts.times.note(Position(ledger.ledger_id, 0))

    def _confirmed(self) -> Position | None:
        """Return the position after the last confirmed entry; None: this writer has ended."""
        return None if self._error is not None else Position(self.ledger_id, self._ledger.last_add_confirmed + 1)

    def _end(self, error: BookKeeperError) -> None:
        """End the writer: no more appends."""
        if isinstance(error, InvalidArgument):  # The list is full. Of an append, it would say that nothing was sent.
            refusal, error = error, LogError(f"log {self.name} cannot be continued: {error.message}")
            error.__cause__ = refusal
        if self._error is None:
            self._error = error
        self._schedule.stop()
        self._wake_failed()

    def _ended(self) -> BookKeeperError:
        assert self._error is not None
        error = copy.copy(self._error)
        error.args = (f"the leader of log {self.name} has ended, nothing was sent: {self._error.message}",)
        return self._with_way_out(error)

    def _refused(self, error: InvalidArgument) -> InvalidArgument:
        """Let the refusal of an entry name the log."""
        error.args = (f"log {self.name}: {error.message}",)
        return error

    def _with_way_out(self, error: BookKeeperError) -> BookKeeperError:
        if isinstance(error, LogFenced):
            error.args = (f"{error.message}; take the lead again to append",)
        return error

    def _unknown(self) -> BookKeeperError:
        assert self._error is not None
        error = copy.copy(self._error)
        error.args = (f"{self._error.message}: the entry may or may not be in the log",)
        error.__cause__ = self._error
        return self._with_way_out(error)

    def _task_died(self, cause: BaseException) -> None:
        """End the writer after an unexpected failure of a background task, a bug: no append may wait for it."""
        error = LogError(f"the leader of log {self.name} has failed: {cause!r}")
        error.__cause__ = cause
        self._end(error)

    async def _check_lead(self) -> None:
        """Check that no other process has led the log meanwhile, or deleted it.

        Ends the writer, and raises `LogFenced` or `LogNotFound`.
        """
        async with self._gate.changing:
            try:
                manifest = await self._records.refresh()
            except LogNotFound as error:
                self._end(error)
                raise
            if manifest.epoch != self._epoch:
                self._end(LogFenced(f"another process leads log {self.name}, or has led it meanwhile"))
                raise self._ended()

    # -- rolling -------------------------------------------------------------------------------------------------
    async def roll(self, *, timeout: float | None = None) -> None:
        """Continue in a new ledger, and seal the present one.

        Raises `LogFenced`, `NotEnoughBookies` and `MetadataError`; after the last two the writer continues as before.
        """
        if self._error is not None:
            raise self._ended()
        async with TimeLimit(timeout, f"roll log {self.name}"):
            await self._roll(self._ledger)

    async def _roll(self, ledger: LedgerWriter) -> None:
        """Roll. A cancelled roll leaves a ledger that the next roll uses. Source: client-protocol 5.3."""
        async with self._gate.changing:
            if self._error is not None:
                raise self._ended()
            if self._ledger is not ledger:
                return  # It was replaced during the wait.
            if self._next is None:
                self._next = await new_ledger(self._parts, self._epoch)
            following, ends = self._next, self._ends
            try:
                await self._records.update(
                    lambda manifest: rolled(manifest, self._epoch, ledger.ledger_id, following.ledger_id, ends)
                )
            except (LogFenced, LogNotFound) as error:
                self._end(error)
                raise
            try:
                async with self._gate:
                    last = await ledger.seal()
                    self._ends = {ledger.ledger_id: LedgerEnd(last, ledger.length)}
                    self._next = None
                    self._install(following)
            except BookKeeperError as error:
                await self._replace(ledger, error)
            else:
                self._tasks.start(self._numbered.save(self._confirmed()), f"store the numbers of log {self.name}")
                await ledger.close()

    def _aged(self) -> None:
        if self._size_left < self._schedule.size:
            self._roll_soon()
        self._schedule.await_age()

    def _roll_soon(self) -> None:
        if self._error is None and self._schedule.may_roll():
            self._schedule.is_rolling = True
            self._tasks.start(self._roll_in_time(self._ledger), f"roll log {self.name}")

    async def _roll_in_time(self, ledger: LedgerWriter) -> None:
        try:
            await self._roll(ledger)
        except BookKeeperError:
            self._schedule.postpone()  # The present ledger is as good as before.
        finally:
            self._schedule.is_rolling = False

    # -- the rest ------------------------------------------------------------------------------------------------
    async def truncate(self, before: Position, *, force: bool = False, timeout: float | None = None) -> None:
        """See `Log.truncate`."""
        before, force = position("before", before), switch("force", force)
        async with TimeLimit(timeout, f"truncate log {self.name}"):
            await self._numbered.save(self._confirmed())  # Their cursor holds back truncation.
            await truncate(self._parts, before, self._ledger, is_forced=force)

    async def _sweep(self) -> None:
        with contextlib.suppress(BookKeeperError):  # The next truncation or leader does it.
            await sweep(self._parts)

    async def close(self, *, timeout: float | None = None) -> None:
        """Send the open record set, wait for pending appends, seal the last ledger, and give up the lead. Idempotent.

        Raises `LogFenced`, or the error that prevents sealing; the next leader seals it then.
        """
        try:
            if self._error is None:
                async with TimeLimit(timeout, f"end log {self.name} in order"):
                    await self._seal()
                end = Position(self.ledger_id, self._ledger.last_add_confirmed + 1)
                await self._parts.times.finish(end)
                await self._numbered.save(end)
        finally:
            await self.abandon()

    async def _seal(self) -> None:
        async with self._gate.changing:
            while self._error is None:
                ledger = self._ledger
                try:
                    async with self._gate:
                        last = await ledger.seal()
                        self._end(LedgerClosed("the writer was closed"))
                except BookKeeperError as error:
                    await self._replace(ledger, error)
                    continue
                self._ends[ledger.ledger_id] = LedgerEnd(last, ledger.length)
                with contextlib.suppress(BookKeeperError):  # Only to save the next leader a request.
                    await self._records.update(lambda current: ended(current, self._ends))

    async def abandon(self) -> None:
        """Release the log without sealing its last ledger: the next leader does. Pending appends become unknown."""
        self._end(LedgerClosed("the writer was closed"))
        await self._tasks.stop()
        if self._turn is not None:
            await self._turn.release()
        if self._next is not None:
            await self._next.close()
        await self._ledger.close()

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


def failure_of(cause: BookKeeperError) -> BookKeeperError:
    """Return the failure that ended a ledger's writer, if that is the cause of this error."""
    return cause.__cause__ if isinstance(cause.__cause__, BookKeeperError) else cause


def is_fenced(error: BaseException | None) -> bool:
    """Report whether another process seals, or has sealed, the ledger."""
    while error is not None:
        if isinstance(error, LedgerFenced | VersionConflict):
            return True
        error = error.__cause__
    return False
