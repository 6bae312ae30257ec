"""`LogConsumer`: the entries of a log for one named consumer, which continues after the last commit of the one before.

Several processes may have the same consumer's name. One at a time has its lease and reads; the others wait for it. The
progress is the cursor of that name, which also keeps truncation from the entries that are not handled. Or they share
it (`SharedLogConsumer`): `protocol/log/shares.py` decides then which process handles which entries.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from bookies.client.base import Entry, EntryBatch
from bookies.client.base.arguments import TimeLimit
from bookies.client.base.iteration import Batches, BatchSource
from bookies.client.base.metadata_loop import back_off, repeated
from bookies.client.log.cursor_store import LogCursors, beginning_of
from bookies.client.log.log_operations import LogContext
from bookies.client.log.log_reader import LogReader
from bookies.client.turns.lease import Contest, Lease
from bookies.errors import (
    BookKeeperError,
    CursorMoved,
    InvalidArgument,
    LeaseLost,
    LedgerClosed,
    LogError,
    LogNotFound,
    LogRecordCorrupt,
    LogTruncated,
    MetadataError,
    VersionConflict,
)
from bookies.kernels import Steps
from bookies.metadata.interface.driver import RecordWrite
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.cursors import Cursor, is_lost
from bookies.protocol.log.lag import Lag, rows_and_bytes
from bookies.protocol.log.lease import RENEWALS, LeaseQueue, pack_queue
from bookies.protocol.log.log_model import RAW, Address, LedgerEnd
from bookies.protocol.log.member import Member
from bookies.protocol.log.records import Decoder, LogRecord
from bookies.protocol.log.sequences import CURSOR as SEQUENCES_CURSOR
from bookies.protocol.log.shares import Offer, Shares, begun
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
        for entry in batch.entries():
            self._given = Address(entry.ledger_id, entry.id), Address(entry.ledger_id, entry.id + 1)
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


# -- several processes share it ----------------------------------------------------------------------------------------


class SharedContest(Contest, frozen=True):
    """The record of a shared consumer. `name`: of the consumer, and of its cursor."""

    cursors: LogCursors
    name: str
    member: Member

    async def write(self, queue: LeaseQueue, version: int) -> int:
        """Write the record, and move the cursor with it if the content says so. Raises `CursorMoved`."""
        shares = queue.shares
        if shares is None or not self.member.moves_cursor(queue):
            return await Contest.write(self, queue, version)
        position, has_cursor = shares.cursor, self.member.shares.cursor is not None

        def decide(cursor: Cursor | None, _: Manifest) -> tuple[Position | None, RecordWrite]:
            if cursor is None and has_cursor:
                raise deleted(self.name)
            return position, RecordWrite(self.record, pack_queue(queue), version)

        return await self.cursors.move_with(self.name, decide, self.member.token)

    async def begin(self, start: Position | None) -> None:
        """Take part in the shares, from the cursor on. `start`: where to create it if there is none.

        Raises `LogTruncated`, `LogNotFound`.
        """
        conflicts = 0
        while not await repeated(self.runtime, lambda: self._begin(start)):
            conflicts += 1
            await back_off(self.runtime, conflicts)

    async def _begin(self, start: Position | None) -> bool:
        queue, version = await self.queue()
        if self.member.token not in queue.tokens:
            return True  # The lease is lost; its owner notices.

        def decide(cursor: Cursor | None, manifest: Manifest) -> tuple[Position | None, RecordWrite]:
            at = None if cursor is None else cursor.position
            is_alone = not any(row.is_shared and row.token != self.member.token for row in queue.participants)
            present = None if queue.shares is None else queue.shares.position
            shares = begun(
                queue.shares,
                at,
                start or beginning_of(manifest),
                is_alone=is_alone,
                is_truncated=present is not None and is_lost(present, manifest),
            )
            content = LeaseQueue(queue.next_token, queue.participants, shares)
            return shares.cursor, RecordWrite(self.record, pack_queue(content), version)

        try:
            await self.cursors.move_with(self.name, decide, self.member.token)
        except VersionConflict:
            return False
        return True


def deleted(name: str) -> CursorMoved:
    """Return the error of a process whose consumer has lost its cursor."""
    return CursorMoved(
        f"cursor {name} was deleted while processes shared it: what this one had claimed is handled again. "
        "Begin to consume again"
    )


class _SharedSource:
    """The batches of one process: parts of the ranges that it claims, one range after the other."""

    def __init__(
        self, reader: LogReader, progress: Progress, lease: Lease, contest: SharedContest, poll_s: float
    ) -> None:
        self._tail = reader._source(None, is_tail=True)
        self._batches = Batches(self._tail, poll_s)
        self._poll_s = poll_s
        self._progress = progress
        self._lease = lease
        self._contest = contest
        self._member = contest.member
        self._batch: EntryBatch | None = None  # read last
        self._start: Position | None = None  # from which it was read
        self._at: Position | None = None  # what the tail delivers next
        self._is_of_claim = False  # whether the progress is inside of the member's claim, or at its end

    def note(self) -> None:
        """Tell the member how far its claim is handled. The progress of an earlier claim says nothing about this one.

        The cursor may have moved back, so that this claim has entries before it.
        """
        if self._is_of_claim:
            self._member.handled = self._progress.position

    async def next_batch(self) -> EntryBatch | None:
        self._progress.ask()
        self.note()
        self._is_of_claim = False
        try:
            batch = await self._next()
        except LedgerClosed:
            self._lease.check()  # The end of the lease has closed the reader.
            raise
        self._progress.give(batch)
        self._is_of_claim = True
        return batch

    async def _next(self) -> EntryBatch:
        while True:
            self.check()
            if (claim := self._member.claim) is not None:
                batch = await self._read(claim.positions[0])
                if self._member.claim is None:
                    continue
                if batch is not None and batch.ledger_id == claim.ledger_id and batch.first_entry_id <= claim.last:
                    first = max(claim.first, batch.first_entry_id)
                    return batch.slice(first, min(claim.last, batch.last_entry_id))
                if batch is not None or self._tail.is_past(claim.ledger_id):
                    # A compaction has removed the rest of the claim.
                    self._member.handled = Position(claim.ledger_id, claim.last + 1)
            elif self._member.has_free:
                await self._claim(None)
            elif self._member.is_full:
                await asyncio.sleep(self._poll_s)
                await self._lease._synchronize()
            elif (offer := await self._offer()) is not None:
                await self._claim(offer)

    def check(self) -> None:
        """Raise the error that has ended the lease, or `CursorMoved`."""
        self._lease.check()
        if self._member.is_reset:
            raise deleted(self._contest.name)

    async def _claim(self, offer: Offer | None) -> None:
        self._member.asks, self._member.offer = True, offer
        try:
            await self._lease._synchronize()
        finally:
            self._member.asks, self._member.offer = False, None

    async def _offer(self) -> Offer | None:
        """Return entries that no process has claimed, when there are some; None: after a while without."""
        start = self._member.shares.next
        try:
            batch = await self._read(start)
        except LogTruncated:
            await self._contest.begin(None)  # A truncation may have carried the cursor along, while all is handled.
            await self._lease._synchronize()
            if self._member.shares.next == start:
                raise
            return None
        return None if batch is None else Offer(start, batch.ledger_id, batch.first_entry_id, batch.last_entry_id)

    async def _read(self, start: Position | None) -> EntryBatch | None:
        """Return entries from a position on; None: after a while without."""
        batch = self._batch
        if batch is not None and start == self._start:
            return batch
        if start is not None and batch is not None and start.ledger_id == batch.ledger_id:
            first, last = start.entry_id, batch.last_entry_id
            if batch.first_entry_id <= first <= last:
                return batch.slice(first, last)
        if start is not None and start != self._at:
            self._tail.seek(start)
        self._at = start
        try:
            batch = await anext(self._batches)
        except TimeoutError:
            return None
        self._batch, self._start = batch, start
        self._at = Position(batch.ledger_id, batch.last_entry_id).next
        return batch


class SharedLogConsumer(LogConsumer):
    """Entries of a log for one of the processes that share a consumer: `log.consumer("billing", shared=True)`.

    Each process claims up to `claim_size` entries at a time, and handles them in order. Entries that it has claimed and
    not committed when it ends are given to another one. The rest is as in `LogConsumer`.
    """

    def __init__(self, parts: LogContext, lease: Lease, contest: SharedContest, poll_s: float) -> None:
        self._contest = contest
        self._poll_s = poll_s
        super().__init__(parts, contest.name, lease, None)

    @classmethod
    async def share(
        cls, parts: LogContext, contest: SharedContest, start: Position | None, interval_s: float | None, ttl_s: float
    ) -> SharedLogConsumer:
        """Wait until this process may take part, and take part. Raises as `Log.consumer`."""
        lease = await Lease.enter(contest, contest.member)
        try:
            await contest.begin(start)
            await lease._synchronize()
            consumer = cls(parts, lease, contest, ttl_s / RENEWALS)
        except BaseException:
            await lease.release()
            raise
        consumer._start(interval_s)
        return consumer

    def _source(self, start: Address | None) -> BatchSource:
        self._shared = _SharedSource(self._reader, self.progress, self._lease, self._contest, self._poll_s)
        return self._shared

    async def _commit(self) -> None:
        member = self._contest.member
        async with self._turn:
            self._shared.check()
            self._shared.note()
            member.saves = True
            try:
                await self._lease._synchronize()
            finally:
                member.saves = False
            self._shared.check()

    def _position(self) -> Position | None:
        return self._contest.member.shares.position

    def _handled_count(self) -> int:
        return self._contest.member.shares.handled_count


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
    if manifest.record_format == RAW:
        return None
    decode = Decoder(parts.records.name, manifest.record_format)
    try:
        async with LogReader(parts) as reader:
            entry = await anext(reader.read(position), None)
        records = iter(()) if entry is None else decode.intact(entry.ledger_id, (entry.id,), (entry.payload,))
        record = next(records, None)
    except BookKeeperError:
        return None
    if record is None or record.timestamp_us is None:
        return None
    return max(0.0, parts.runtime.clock.wall_ms() / 1000 - record.timestamp_us / 1_000_000)
