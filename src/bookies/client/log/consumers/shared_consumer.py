"""`SharedLogConsumer`: one of several processes that share a consumer of a log.

`protocol/log/shares.py` decides which process handles which entries. The record of the consumer's lease has the ranges
that the processes have claimed; see `docs/explanation/logs.md`.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from bookies.client.base import EntryBatch
from bookies.client.base.iteration import Batches, BatchSource
from bookies.client.base.metadata_loop import back_off, repeated
from bookies.client.log.base.cursor_store import LogCursors, beginning_of
from bookies.client.log.base.log_operations import LogContext
from bookies.client.log.base.log_reader import LogReader
from bookies.client.log.consumers.consumer import LogConsumer, Progress
from bookies.client.turns.lease import Contest, Lease
from bookies.errors import BookKeeperError, CursorMoved, LedgerClosed, LogTruncated, VersionConflict
from bookies.metadata.interface.driver import RecordWrite
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.cursors import Cursor, is_lost
from bookies.protocol.log.lease import RENEWALS, LeaseQueue, pack_queue
from bookies.protocol.log.log_model import Address
from bookies.protocol.log.member import Member
from bookies.protocol.log.shares import Offer, begun


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

    def ended(self) -> BookKeeperError:
        return deleted(self.name)

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
            return shares.cursor, RecordWrite(self.record, pack_queue(replace(queue, shares=shares)), version)

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
