"""`LogConsumer`: the entries of a log for one named consumer, which continues after the last commit of the one before.

Several processes may have the same consumer's name. One at a time has its lease and reads; the others wait for it. The
progress is the cursor of that name, which also keeps truncation from the entries that are not handled. Or they share
it: see `shared_consumer.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Self

from bookies.client.base import Entry, EntryBatch
from bookies.client.base.arguments import TimeLimit
from bookies.client.base.iteration import Batches, BatchSource
from bookies.client.base.metadata_loop import repeated
from bookies.client.log.base.log_operations import LogContext
from bookies.client.log.base.log_reader import LogReader
from bookies.client.log.consumers.consumer_states import lags
from bookies.client.turns.lease import Lease
from bookies.errors import (
    BookKeeperError,
    InvalidArgument,
    LeaseLost,
    LedgerClosed,
    LogError,
    LogNotFound,
    LogRecordCorrupt,
    MetadataError,
)
from bookies.kernels import Steps
from bookies.protocol.log import Position
from bookies.protocol.log.lag import Lag
from bookies.protocol.log.log_model import Address
from bookies.protocol.log.records import Decoder, LogRecord
from bookies.runtime.tasks import Tasks

LAST_COMMIT_S = 5.0  # seconds for the commit after an exception


class Progress:
    """Addresses of one consumer. An entry, record, or batch counts as handled when the next one is asked for.

    `start`: where it begins; None: at the beginning of a log without ledgers.
    """

    def __init__(self, start: Address | None) -> None:
        self._start = start  # of the batch that is being handled, or what follows it
        self._end = start  # of that batch
        self._given: tuple[Address, Address] | None = None  # what was handed out last of that batch, and what follows
        self._is_inside = False  # a batch is being handed out piece by piece

    @property
    def handled(self) -> Address | None:
        """Return the address of the first record that is not handled."""
        return self._start if self._given is None else self._given[0]

    @property
    def position(self) -> Position | None:
        """Return the position of the first entry that is not handled as a whole."""
        return None if self.handled is None else self.handled.position

    def accept(self) -> None:
        """Note that everything that was handed out is handled."""
        if self._given is not None:
            self._start, self._given = self._given[1], None
        elif not self._is_inside:
            self._start = self._end

    def ask(self) -> None:
        """Note that the next batch is asked for. Raises `InvalidArgument` in the middle of a batch."""
        if self._is_inside:
            raise InvalidArgument("entries of a batch are left: iterate over single entries, or over batches, not both")
        self.accept()

    def give(self, batch: EntryBatch) -> None:
        """Note that a batch is handed out."""
        start = self._start
        if start is None or start.position != (batch.ledger_id, batch.first_entry_id):
            self._start = Address(batch.ledger_id, batch.first_entry_id)
        self._end = Address(batch.ledger_id, batch.last_entry_id + 1)

    def entries(self, batch: EntryBatch) -> Iterator[Entry]:
        """Hand out the entries of a batch."""
        self._is_inside = True
        at = self._start  # The first one may be a set of which some records are handled already.
        assert at is not None
        for entry in batch.entries():
            self._given = at, Address(entry.ledger_id, entry.id + 1)
            at = self._given[1]
            yield entry
        self._is_inside = False

    def records(self, batch: EntryBatch, decode: Decoder) -> Iterator[Callable[[], LogRecord]]:
        """Hand out the records of a batch, as calls that raise `LogRecordCorrupt` for those that are damaged."""
        self._is_inside = True
        ledger_id, first = batch.ledger_id, 0 if self._start is None else self._start.slot
        for entry_id, entry in zip(batch.entry_ids, batch.payloads(), strict=True):
            following = Address(ledger_id, entry_id + 1)
            slot, last = first, decode.count(entry) - 1
            records = decode.records(ledger_id, (entry_id,), (entry,), first)
            first = 0
            while True:
                at = Address(ledger_id, entry_id, slot)
                make, is_whole = _step(records)
                if make is None:
                    break
                is_last = is_whole or slot >= last  # A damaged set may claim any number of records.
                self._given = at, following if is_last else Address(ledger_id, entry_id, slot + 1)
                slot += 1
                yield make
        self._is_inside = False


def _step(records: Iterator[LogRecord]) -> tuple[Callable[[], LogRecord] | None, bool]:
    """Return a call with the outcome of the next step, None: there is none; and whether it stands for a whole entry."""
    try:
        record = next(records, None)
    except LogRecordCorrupt as error:
        return partial(_refuse, error), error.slot is None
    return None if record is None else lambda: record, False


def _refuse(error: LogRecordCorrupt) -> LogRecord:
    raise error


class _Source:
    """The batches of a consumer."""

    def __init__(self, batches: Batches, progress: Progress, lease: Lease) -> None:
        self._batches = batches
        self._progress = progress
        self._lease = lease

    async def next_batch(self) -> EntryBatch | None:
        self._progress.ask()
        try:
            batch = await anext(self._batches)
        except LedgerClosed:
            self._lease.check()  # The end of the lease has closed the reader.
            raise
        self._progress.give(batch)
        return batch


class _ConsumedRecords(Steps[LogRecord]):
    """Asynchronous iterator over the records of a consumer. Made by `LogConsumer.records`."""

    def __init__(self, batches: Batches, progress: Progress, decode: Decoder) -> None:
        super().__init__()
        self._batches = batches
        self._progress = progress
        self._decode = decode

    async def _more(self) -> LogRecord:
        while True:
            self._items = consumed(self._progress, await anext(self._batches), self._decode)
            for record in self._items:  # A set may have none from the start on.
                return record


def consumed(progress: Progress, batch: EntryBatch, decode: Decoder) -> Iterator[LogRecord]:
    """Hand out the records of a batch. Unlike a generator, the iteration goes on after an error."""
    return map(operator.call, progress.records(batch, decode))


class LogConsumer(Steps[Entry]):
    """Entries of a log for one named consumer: `async with log.consumer("billing") as rows`, `async for entry in rows`.

    The iteration has no end: it waits for new entries. An entry counts as handled when the next one is asked for. What
    is handled is committed every `commit_interval`, and at the end of the block. A normal end also commits the last
    entry; an exception does not, so the next consumer begins with that entry. The block is cancelled and raises
    `LeaseLost` if the lease is lost, or `CursorMoved` if the cursor is deleted or another consumer has it.
    """

    def __init__(self, parts: LogContext, name: str, lease: Lease, start: Address | None) -> None:
        super().__init__()
        self.progress = Progress(start)
        self._parts = parts
        self._name = name
        self._lease = lease
        self._reader = LogReader(parts)
        self.decode = Decoder(self._reader.name, parts.records.current.record_format)
        self._batches = Batches(self._source(start))
        self._records = _ConsumedRecords(self._batches, self.progress, self.decode)
        self._committed = start  # None: there is no cursor yet
        self._is_ending = False
        self._turn = asyncio.Lock()  # one commit at a time, so that none moves the cursor back
        self._tasks = Tasks(lambda cause: lease.fail(LogError(f"commits of consumer {name} have failed: {cause!r}")))

    @classmethod
    async def begin(
        cls, parts: LogContext, name: str, lease: Lease, start: Position | None, interval_s: float | None
    ) -> LogConsumer:
        """Take the cursor over, and begin there; `start`: where to begin if there is none. Raises as `Log.consumer`."""
        at = await parts.cursors.claim(name, lease.token, start)
        consumer = cls(parts, name, lease, at)
        consumer._start(interval_s)
        return consumer

    def _start(self, interval_s: float | None) -> None:
        if interval_s is not None:
            self._tasks.start(self._commit_regularly(interval_s), f"commits of consumer {self._name}")
        self._lease.on_lost(self._stop_reading)

    def _source(self, start: Address | None) -> BatchSource:
        tail = self._reader.tail(start, from_beginning=True).batches()
        return _Source(tail, self.progress, self._lease)

    @property
    def lease(self) -> Lease:
        """The lease of the consumer's name. Its token grows with every consumer."""
        return self._lease

    def __repr__(self) -> str:
        return f"<LogConsumer {self._name} of log {self._reader.name} at {self.progress.handled} {self._lease!r}>"

    async def _more(self) -> Entry:
        self._items = self.progress.entries(await anext(self._batches))
        return next(self._items)

    def records(self) -> AsyncIterator[LogRecord]:
        """Return the same iteration by records, with value, key, headers and time: see `LogEntries.records`."""
        return self._records

    def batches(self) -> Batches:
        """Return the same iteration by batches. A batch counts as handled when the next one is asked for."""
        return self._batches

    # -- commits -----------------------------------------------------------------------------------------------------
    async def commit(self, *, timeout: float | None = None) -> None:
        """Commit everything that was handed out, the last entry or batch included. `timeout`: seconds.

        Raises `CursorMoved` (the cursor was deleted, or a later consumer has it: that one handles these entries again),
        `LogTruncated` (a forced truncation has passed the entries), `LogNotFound`, `MetadataError`.
        """
        self.progress.accept()
        async with TimeLimit(timeout, f"commit consumer {self._name} of log {self._reader.name}"):
            await self._commit()

    async def _commit(self) -> None:
        async with self._turn:
            address = self.progress.handled
            if address is None or address == self._committed:
                return
            may_create = self._committed is None
            await self._parts.cursors.move(self._name, address, token=self._lease.token, may_create=may_create)
            self._committed = address

    async def _commit_regularly(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self._commit()
            except BookKeeperError as error:
                if not (isinstance(error, MetadataError) and error.retriable):
                    self._lease.fail(error)
                    return

    def _stop_reading(self) -> None:
        if not self._is_ending:
            self._tasks.start(self._reader.close(), f"end of consumer {self._name}")

    def _position(self) -> Position | None:
        return self.progress.position

    async def lag(self, *, timeout: float | None = None) -> Lag:
        """Return how much of the log is not handled yet. Asks bookies for the end of the log. `timeout`: seconds."""
        async with TimeLimit(timeout, f"measure the lag of consumer {self._name}"):
            position = self._position()
            if position is None:
                beginning = (await repeated(self._parts.runtime, self._parts.records.refresh)).beginning
                if beginning is None:
                    return Lag(0, 0, 0.0)
                position = Position(beginning.ledger_id, beginning.first)
            return (await lags(self._parts, {self._name: position}))[self._name].without(self._handled_count())

    def _handled_count(self) -> int:
        """Return the number of handled entries after the first one that is not handled."""
        return 0

    # -- the end -----------------------------------------------------------------------------------------------------
    async def close(self) -> None:
        """Commit as `commit` does, and give the turn to the next process. Idempotent. Raises as `commit`."""
        await self.__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        await self._lease.__aenter__()
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_ending = True
        try:
            try:
                await self._tasks.stop()
                if error_type is None:
                    await self.commit()
                else:
                    with contextlib.suppress(BookKeeperError, TimeoutError):
                        async with asyncio.timeout(LAST_COMMIT_S):
                            await self._commit()
            finally:
                await self._reader.close()
        except BaseException as failure:  # such as the cancellation by a lease that was lost during the commit
            error_type, error, trace = type(failure), failure, failure.__traceback__
            raise
        finally:
            await self._leave(error_type, error, trace)

    async def _leave(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lease. Raises as `Lease.__aexit__`, or `LogNotFound` if it was lost with its log."""
        try:
            await self._lease.__aexit__(error_type, error, trace)
        except LeaseLost:
            with contextlib.suppress(MetadataError, TimeoutError):
                async with asyncio.timeout(LAST_COMMIT_S):
                    if (await self._parts.records.refresh()).is_deleting:
                        raise LogNotFound(f"log {self._reader.name} was deleted") from error
            raise
