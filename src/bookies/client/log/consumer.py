"""`LogConsumer`: the entries of a log for one named consumer, which continues after the last commit of the one before.

Several processes may have the same consumer's name. One at a time has its lease and reads; the others wait for it. The
progress is the cursor of that name, which also keeps truncation from the entries that are not handled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import TracebackType
from typing import NamedTuple, Self

from bookies.client.base import Entry, EntryBatch
from bookies.client.base.arguments import TimeLimit
from bookies.client.base.iteration import Batches, BatchSource
from bookies.client.base.metadata_loop import repeated
from bookies.client.log.log_operations import LogContext
from bookies.client.log.log_reader import LogReader
from bookies.client.turns.lease import Contest, Lease
from bookies.encoding.envelope import parse_record
from bookies.errors import (
    BookKeeperError,
    InvalidArgument,
    LeaseLost,
    LedgerClosed,
    LogError,
    LogNotFound,
    MetadataError,
)
from bookies.kernels import Steps
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.cursors import Cursor
from bookies.protocol.log.lag import Lag, rows_and_bytes
from bookies.protocol.log.lease import LeaseQueue
from bookies.protocol.log.log_model import ENVELOPE, LedgerEnd
from bookies.protocol.log.records import Decode, LogRecord, decoder
from bookies.protocol.log.sequences import CURSOR as SEQUENCES_CURSOR
from bookies.protocol.log.shares import Shares
from bookies.runtime.tasks import Tasks

LAST_COMMIT_S = 5.0  # seconds for the commit after an exception


class Progress:
    """Positions of one consumer. An entry, or a batch, counts as handled when the next one is asked for.

    `start`: where it begins; None: at the beginning of a log without ledgers.
    """

    def __init__(self, start: Position | None) -> None:
        self._start = start  # of the batch that is being handled, or what follows it
        self._end = start  # of that batch
        self._entry: Entry | None = None  # of that batch, handed out last
        self._is_inside = False  # a batch is being handed out entry by entry

    @property
    def handled(self) -> Position | None:
        """Return the position of the first entry that is not handled."""
        return self._start if self._entry is None else self._entry.position

    def accept(self) -> None:
        """Note that everything that was handed out is handled."""
        if self._entry is not None:
            self._start, self._entry = self._entry.position.next, None
        elif not self._is_inside:
            self._start = self._end

    def ask(self) -> None:
        """Note that the next batch is asked for. Raises `InvalidArgument` in the middle of a batch."""
        if self._is_inside:
            raise InvalidArgument("entries of a batch are left: iterate over single entries, or over batches, not both")
        self.accept()

    def give(self, batch: EntryBatch) -> None:
        """Note that a batch is handed out."""
        self._start = Position(batch.ledger_id, batch.first_entry_id)
        self._end = Position(batch.ledger_id, batch.last_entry_id).next

    def entries(self, batch: EntryBatch) -> Iterator[Entry]:
        """Hand out the entries of a batch."""
        self._is_inside = True
        for entry in batch.entries():
            self._entry = entry
            yield entry
        self._is_inside = False


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

    def __init__(self, batches: Batches, progress: Progress, decode: Decode) -> None:
        super().__init__()
        self._batches = batches
        self._progress = progress
        self._decode = decode

    async def _more(self) -> LogRecord:
        entries = self._progress.entries(await anext(self._batches))
        self._items = map(self._record, entries)  # unlike a generator, it goes on after an error
        return next(self._items)

    def _record(self, entry: Entry) -> LogRecord:
        return self._decode(entry.ledger_id, entry.id, entry.payload)


class LogConsumer(Steps[Entry]):
    """Entries of a log for one named consumer: `async with log.consumer("billing") as rows`, `async for entry in rows`.

    The iteration has no end: it waits for new entries. An entry counts as handled when the next one is asked for. What
    is handled is committed every `commit_interval`, and at the end of the block. A normal end also commits the last
    entry; an exception does not, so the next consumer begins with that entry. The block is cancelled and raises
    `LeaseLost` if the lease is lost, or `CursorMoved` if the cursor is deleted or another consumer has it.
    """

    def __init__(self, parts: LogContext, name: str, lease: Lease, start: Position | None) -> None:
        super().__init__()
        self.progress = Progress(start)
        self._parts = parts
        self._name = name
        self._lease = lease
        self._reader = LogReader(parts)
        self.decode = decoder(self._reader.name, parts.records.current.record_format)
        self._batches = Batches(self._source(start))
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

    def _source(self, start: Position | None) -> BatchSource:
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
        return _ConsumedRecords(self._batches, self.progress, self.decode)

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
            position = self.progress.handled
            if position is None or position == self._committed:
                return
            may_create = self._committed is None
            await self._parts.cursors.move(self._name, position, token=self._lease.token, may_create=may_create)
            self._committed = position

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
        return self.progress.handled

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


# -- the state of consumers ------------------------------------------------------------------------------------------


class MemberState(NamedTuple):
    """One process of a shared consumer. `first`, `last`: the entries that it has claimed; None: none."""

    process: str
    first: Position | None
    last: Position | None


class ConsumerState(NamedTuple):
    """State of one consumer of a log.

    `processes`: the one that consumes, then those that wait, by their texts. `members`: those of them that share it.
    """

    cursor: Cursor
    lag: Lag
    processes: tuple[str, ...]
    members: tuple[MemberState, ...] = ()


async def consumer_states(parts: LogContext, contest_of: Callable[[str], Contest]) -> dict[str, ConsumerState]:
    """Return the state of each consumer that has a cursor. Raises `LogNotFound`, `MetadataError`."""
    cursors = (await repeated(parts.runtime, parts.cursors.read))[0]
    cursors.pop(SEQUENCES_CURSOR, None)
    queues, positions = {}, {}
    for name, cursor in cursors.items():
        try:
            queues[name], _ = await repeated(parts.runtime, contest_of(name).queue)
        except InvalidArgument:
            queues[name] = LeaseQueue()  # The names of log and cursor are too long together to consume under them.
        positions[name] = cursor.position
        if (shares := _shares_of(queues[name])) is not None:
            positions[name] = shares.position or cursor.position
    measured = await lags(parts, positions)
    return {name: _state(cursor, measured[name], queues[name]) for name, cursor in cursors.items()}


def _shares_of(queue: LeaseQueue) -> Shares | None:
    """Return the shares that processes hold at present."""
    return queue.shares if any(row.is_shared for row in queue.participants) else None


def _state(cursor: Cursor, lag: Lag, queue: LeaseQueue) -> ConsumerState:
    processes, shares = tuple(row.text for row in queue.participants), _shares_of(queue)
    if shares is None:
        return ConsumerState(cursor, lag, processes)
    claims = {row.token: row for row in shares.ranges}
    members = []
    for row in queue.participants:
        claim = claims.get(row.token)
        first, last = (None, None) if claim is None else claim.positions
        if row.is_shared:
            members.append(MemberState(row.text, first, last))
    return ConsumerState(cursor, lag.without(shares.handled_count), processes, tuple(members))


async def lags(parts: LogContext, positions: Mapping[str, Position]) -> dict[str, Lag]:
    """Return the lag of consumers that will read from these positions on. Raises `LogNotFound`, `MetadataError`."""
    manifest = await repeated(parts.runtime, parts.records.refresh)
    ends = await _open_ends(parts, manifest) if positions else {}
    measured = {}
    for name, position in positions.items():
        rows, size = rows_and_bytes(position, manifest, ends) or (None, None)
        measured[name] = Lag(rows, size, 0.0 if rows == 0 else await _age_s(parts, manifest, position))
    return measured


async def _open_ends(parts: LogContext, manifest: Manifest) -> dict[int, LedgerEnd]:
    """Return the confirmed ends of ledgers without an end in the list, except for those that cannot be read."""
    ends: dict[int, LedgerEnd] = {}
    for ledger_id in manifest.open_ledgers:
        try:
            async with parts.client.open(ledger_id, password=parts.password) as ledger:
                ends[ledger_id] = LedgerEnd(ledger.last_add_confirmed, ledger.length)
        except BookKeeperError:
            continue  # It has a password, or its bookies do not answer.
    return ends


async def _age_s(parts: LogContext, manifest: Manifest, position: Position) -> float | None:
    """Return the age of the first entry from a position on, by its timestamp; None: it has none."""
    if manifest.record_format != ENVELOPE:
        return None
    try:
        async with LogReader(parts) as reader:
            entry = await anext(reader.read(position), None)
        timestamp_us = None if entry is None else parse_record(entry.payload).timestamp_us
    except BookKeeperError:
        return None
    if timestamp_us is None:
        return None
    return max(0.0, parts.runtime.clock.wall_ms() / 1000 - timestamp_us / 1_000_000)
