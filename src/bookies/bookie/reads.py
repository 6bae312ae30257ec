"""Reads at a bookie: single entries, batches, long polls, LACs, lists of entries; and fencing, which is part of a read.

Entries in the memory of bookie or system are answered at once. Other reads wait for the disk, so each is a task of
its connection, cancelled when the client disconnects. Fencing does not wait: it is decided at the call, before
anything that arrives later on any connection; only its answer waits for the disk. An answer other than OK that is not
a definite statement of the storage is an I/O error, never "no such entry" (storage R-3).

Source: wire-protocol 5.5 to 5.10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from bookies.bookie.served import Reading, Served
from bookies.bookie.storage_port import Storage
from bookies.bookie.transport.connection import Connection
from bookies.bookie.transport.pressure import ReadShare
from bookies.config import BookieConfig
from bookies.errors import BookieBusy, BookKeeperError, EntryNotFound, LedgerUnknownToBookie, Status, status_of_error
from bookies.model import LAST_ENTRY
from bookies.protocol.pacing.read_rates import ReadLoad, ReadRates
from bookies.runtime.events import Events
from bookies.runtime.ports import Clock
from bookies.wire.availability import pack_availability
from bookies.wire.messages import (
    BatchReadRequest,
    BatchReadResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Response,
)

LONG_POLL_MS_MAX = 24 * 60 * 60 * 1000
LONG_POLLS_MAX = 20_000  # reads that wait, of all clients; each takes some kilobytes
BATCH_RESPONSE_OVERHEAD = 36  # length word, header, ids, request id: part of the size a batch read asks for


class Reads:
    """Serves the reading requests of all connections of one bookie."""

    def __init__(
        self, store: Storage, config: BookieConfig, clock: Clock, events: Events, served: Served | None = None
    ) -> None:
        self._store = store
        self._served = served
        self._clock = clock
        self._events = events
        self._batch_read_size_max = min(config.batch_read_size_max, config.frame_size_max)
        self._waiting: dict[int, int] = {}  # reads that wait, of each ledger that has any
        self.long_polls = 0  # the same of all ledgers
        self._rates = ReadRates(clock.monotonic())

    def load(self) -> ReadLoad:
        """Return how much clients read from this bookie."""
        return self._rates.report(self._clock.monotonic())

    def read(self, connection: Connection, request: ReadRequest) -> None:
        """Read a single entry: plain, fencing or long poll. Source: wire-protocol 5.5 to 5.7."""
        refusal = self._refusal(connection, request)
        durable = None
        if refusal is None and request.is_fencing:
            try:
                durable = self._fence(request)
            except BookKeeperError as error:
                refusal = status_of_error(error)
        if refusal is not None:
            self.refuse(connection, request, refusal)
        elif durable is None and request.previous_lac is not None:
            self._start(connection, request, self._long_poll, request.previous_lac)
        elif durable is not None or request.version == 3 or not self._maybe_read_now(connection, request):
            self._start(connection, request, self._read_entry, durable)

    def _fence(self, request: ReadRequest | BatchReadRequest) -> asyncio.Future[None]:
        """Fence at once, before any request that arrives later on any connection; the future is done when durable.

        Raises `Unauthorized` and the storage's other refusals.
        """
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # If the read failed first or the client disconnected, the failure of the fence is not lost: the ledger's next
        # fence meets it again.
        durable.add_done_callback(lambda future: future.cancelled() or future.exception())

        def done(error: BaseException | None) -> None:
            if durable.done():  # The client has disconnected.
                return
            if error is None:
                durable.set_result(None)
            else:
                durable.set_exception(error)

        assert request.master_key is not None
        self._store.fence(request.ledger_id, request.master_key, done)
        return durable

    def _refusal(self, connection: Connection, request: ReadRequest | BatchReadRequest) -> Status | None:
        """Return the status for a read that is refused without a disk read. Source: wire-protocol 2.6, 5.6, 9."""
        if request.ledger_id < 0:
            return Status.BAD_REQUEST
        if request.is_fencing:
            return Status.UNAUTHORIZED if request.master_key is None else None
        if connection.share.is_overrun(connection.task_count):
            if self._served is not None:
                self._served.reads_rejected += 1
            return Status.TOO_MANY_REQUESTS
        if request.entry_id >= 0:
            return None
        if isinstance(request, BatchReadRequest):
            return Status.BAD_REQUEST
        return None if request.entry_id == LAST_ENTRY else Status.NO_ENTRY

    def _maybe_read_now(self, connection: Connection, request: ReadRequest) -> bool:
        """Answer at once if the entry is in the write cache (recovery, tailing readers) or in the system's page
        cache."""
        share = connection.share
        if share.must_wait:
            return False
        # It is available at once, so it is counted when its size is known.
        body = self._store.read_resident(request.ledger_id, request.entry_id)
        if body is None or not share.maybe_take(len(body)):
            return False
        share.learn(len(body))
        self._rates.count(request.ledger_id, len(body))
        if self._served is not None:
            self._served.read_now(len(body))
        response = ReadResponse(request.version, 0, Status.OK, request.ledger_id, request.entry_id, body)
        connection.respond(response, len(body))
        return True

    async def _read_entry(
        self, connection: Connection, request: ReadRequest, durable: asyncio.Future[None] | None
    ) -> None:
        """Read and answer. v3 also reports the LAC, unless the request fences."""
        body = await self._read_body(connection, request.ledger_id, request.entry_id, durable)
        response = ReadResponse(request.version, request.txn_id, Status.OK, request.ledger_id, request.entry_id, body)
        try:
            if request.version == 3 and durable is None:
                response.max_lac = await self._store.last_add_confirmed(request.ledger_id)
        except BaseException:
            connection.share.release(len(body))
            raise
        self._count_size(request.ledger_id, len(body))
        connection.respond(response, len(body))

    def refuse(self, connection: Connection, request: Reading, status: Status) -> None:
        """Answer a read with a status, and read nothing."""
        if (served := self._served) is not None:
            served.finished(served.outcomes_of(request), served.began_s, has_failed=True)
        connection.respond(_failed(request, status))

    def _count_size(self, ledger_id: int, size: int) -> None:
        self._rates.count(ledger_id, size)
        if self._served is not None:
            self._served.read_size += size

    async def _read_body(
        self, connection: Connection, ledger_id: int, entry_id: int, durable: asyncio.Future[None] | None = None
    ) -> bytes:
        """Read an entry, counted in the read budget: the caller passes its size to `respond` or releases it.

        A fencing read does not wait for its turn. F-42: its outcome, a missing entry too, is withheld until the fence
        is durable, because clients take both for the fence's acknowledgement.
        """
        share = connection.share
        if durable is None:
            guess, size = share.size_guess, 0
            await share.wait_begin(guess)
            try:
                body = await self._store.read(ledger_id, entry_id)
                size = len(body)
                share.learn(size)
                return body
            finally:
                share.end(guess, size)
        missing: BookKeeperError | None = None
        try:
            body = await self._store.read(ledger_id, entry_id)
        except (EntryNotFound, LedgerUnknownToBookie) as error:
            missing = error
        await durable
        if missing is not None:
            raise missing
        share.take(len(body))
        return body

    async def _long_poll(self, connection: Connection, request: ReadRequest, previous_lac: int) -> None:
        """Wait until the LAC passes `previous_lac`, the ledger is fenced, or the time is up. Source: wire-protocol 5.7.

        Without `wants_piggyback` it continues as a plain read. With it the answer contains the next entry when the
        LAC confirms it and this bookie has it, and entry id -1 otherwise. It also waits for a ledger to become known:
        its reader may be here before the first entry.
        """
        if request.wants_piggyback and request.entry_id != LAST_ENTRY:
            connection.respond(_failed(request, Status.BAD_REQUEST))
            return
        updated_ms: int | None = None
        try:
            last_add_confirmed = await self._store.last_add_confirmed(request.ledger_id)
        except LedgerUnknownToBookie:
            if request.timeout_ms is None or previous_lac < -1:
                raise
            last_add_confirmed = -1
        if request.timeout_ms is not None and last_add_confirmed <= previous_lac:
            if self.long_polls >= LONG_POLLS_MAX:
                raise BookieBusy("too many clients wait for new entries", ledger_id=request.ledger_id)
            self._count_waiting(request.ledger_id, 1)
            try:
                woken_ms = await self._wait_lac(request.ledger_id, previous_lac, request.timeout_ms)
            finally:
                self._count_waiting(request.ledger_id, -1)
            last_add_confirmed = await self._store.last_add_confirmed(request.ledger_id)
            if last_add_confirmed > previous_lac:
                updated_ms = woken_ms
        if not request.wants_piggyback:
            await self._read_entry(connection, request, None)
            return
        response = ReadResponse(request.version, request.txn_id, Status.OK, request.ledger_id, LAST_ENTRY)
        response.max_lac = last_add_confirmed
        response.lac_update_ms = updated_ms
        size = 0
        if last_add_confirmed > previous_lac >= -1:
            try:
                response.body = body = await self._read_body(connection, request.ledger_id, previous_lac + 1)
                response.entry_id = previous_lac + 1
                size = len(body)
            except EntryNotFound:
                pass  # Striped: another bookie has it. The new LAC alone is an answer.
        self._count_size(request.ledger_id, size)
        connection.respond(response, size)

    def has_waiting(self, ledger_id: int) -> bool:
        """Report whether reads wait for news of this ledger."""
        return ledger_id in self._waiting

    def _count_waiting(self, ledger_id: int, change: int) -> None:
        self.long_polls += change
        count = self._waiting.get(ledger_id, 0) + change
        if count:
            self._waiting[ledger_id] = count
        else:
            del self._waiting[ledger_id]

    async def _wait_lac(self, ledger_id: int, previous_lac: int, timeout_ms: int) -> int | None:
        """Return when (wall clock) the store reported a change, None if the time was up first."""
        woken: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(self._clock.wall_ms())

        cancel = self._store.watch_lac(ledger_id, previous_lac, wake)
        try:
            async with asyncio.timeout(min(max(timeout_ms, 0), LONG_POLL_MS_MAX) / 1000):
                return await woken
        except TimeoutError:
            return None
        finally:
            cancel()

    def batch_read(self, connection: Connection, request: BatchReadRequest) -> None:
        """Read consecutive entries, at least the first. Source: wire-protocol 5.9."""
        refusal = self._refusal(connection, request)
        durable = None
        if refusal is None and request.is_fencing:
            try:
                durable = self._fence(request)
            except BookKeeperError as error:
                refusal = status_of_error(error)
        if refusal is not None:
            self.refuse(connection, request, refusal)
        elif durable is not None or not self._maybe_read_entries_now(connection, request):
            self._start(connection, request, self._read_entries, durable)

    def _maybe_read_entries_now(self, connection: Connection, request: BatchReadRequest) -> bool:
        """Answer at once if the read has to wait neither for its turn nor for the disk."""
        share = connection.share
        count_max, size_max, guess = self._bounds(connection, request)
        read = self._store.read_batch_resident
        records = _taken(share, guess, read, request.ledger_id, request.entry_id, count_max, size_max)
        if records is None:
            return False
        self._rates.count(request.ledger_id, len(records))
        if self._served is not None:
            self._served.read_now(len(records))
        self._respond_entries(connection, request, records)
        return True

    def _bounds(self, connection: Connection, request: BatchReadRequest) -> tuple[int, int, int]:
        """Return the maximum of entries, of bytes of records, and of bytes that the answer counts for until it is
        there."""
        count_max = request.count_max if request.count_max > 0 else (1 << 31) - 1
        size_max = max(0, min(request.size_max, self._batch_read_size_max) - BATCH_RESPONSE_OVERHEAD)
        return count_max, size_max, max(size_max, connection.share.size_guess)  # The first entry is read at any size.

    async def _read_entries(
        self, connection: Connection, request: BatchReadRequest, durable: asyncio.Future[None] | None
    ) -> None:
        share = connection.share
        count_max, size_max, guess = self._bounds(connection, request)
        if durable is None:
            # The answer's memory is reserved before the disk is read, because many reads may be in progress.
            await share.wait_begin(guess)
        records = b""
        missing: BookKeeperError | None = None
        try:
            try:
                records = await self._store.read_batch(request.ledger_id, request.entry_id, count_max, size_max)
            except (EntryNotFound, LedgerUnknownToBookie) as error:
                missing = error
            if durable is not None:
                await durable
            if missing is not None:
                raise missing
            if durable is not None:
                share.take(len(records))
            else:
                share.learn(len(records))
        finally:
            if durable is None:
                share.end(guess, len(records))
        self._count_size(request.ledger_id, len(records))
        self._respond_entries(connection, request, records)

    def _respond_entries(self, connection: Connection, request: BatchReadRequest, records: bytes) -> None:
        response = BatchReadResponse(
            request.version, request.txn_id, Status.OK, request.ledger_id, request.entry_id, records
        )
        connection.respond(response, len(records))

    def read_lac(self, connection: Connection, request: ReadLacRequest) -> None:
        self._start(connection, request, self._read_both_lacs)

    async def _read_both_lacs(self, connection: Connection, request: ReadLacRequest) -> None:
        """Read the explicit LAC and the last entry; without either NO_ENTRY, as for an unknown ledger. Source:
        wire-protocol 5.8."""
        response = ReadLacResponse(request.version, request.txn_id, Status.NO_ENTRY, request.ledger_id)
        try:
            response.lac_body, response.last_entry_body = await self._store.read_lac(request.ledger_id)
        except LedgerUnknownToBookie:
            pass
        if response.lac_body is not None or response.last_entry_body is not None:
            response.status = Status.OK
        size = len(response.last_entry_body or b"")
        connection.share.take(size)
        connection.respond(response, size)

    def list_entries(self, connection: Connection, request: ListEntriesRequest) -> None:
        self._start(connection, request, self._list_ranges)

    async def _list_ranges(self, connection: Connection, request: ListEntriesRequest) -> None:
        """List the ranges of stored entry ids. Source: wire-protocol 5.10."""
        availability = pack_availability(await self._store.list_entries(request.ledger_id))
        connection.share.take(len(availability))
        response = ListEntriesResponse(request.version, request.txn_id, Status.OK, request.ledger_id, availability)
        connection.respond(response, len(availability))

    def _start(
        self,
        connection: Connection,
        request: Reading,
        work: Callable[..., Coroutine[Any, Any, None]],
        *arguments: object,
    ) -> None:
        connection.start(
            self._guarded(connection, request, work, arguments, self._served.began_s if self._served else 0.0)
        )

    async def _guarded(
        self,
        connection: Connection,
        request: Reading,
        work: Callable[..., Coroutine[Any, Any, None]],
        arguments: tuple[object, ...],
        began_s: float,
    ) -> None:
        """Answer also if the read fails."""
        has_failed = False
        try:
            await work(connection, request, *arguments)
        except Exception as error:  # noqa: BLE001  (becomes the answer, and a line in the log)
            has_failed = True
            status = status_of_error(error)
            if status is Status.IO_ERROR:
                self._events.error("read.failed", ledger=request.ledger_id, peer=connection.peer, error=error)
            connection.respond(_failed(request, status))
        if self._served is not None:
            self._served.read_ended(request, began_s, connection.peer, has_failed=has_failed)


def _taken(share: ReadShare, guess: int, read: Callable[..., bytes | None], *arguments: int) -> bytes | None:
    """Return what `read` finds in memory, counted in the read budget as `guess` bytes before; None: not found, or no
    room."""
    if not share.maybe_take(guess):
        return None
    body = None
    try:
        body = read(*arguments)
    finally:
        share.settle(guess, 0 if body is None else len(body))
    return body


def _failed(request: Reading, status: Status) -> Response:
    """Return the answer to a read that failed: the ids, nothing else."""
    version, txn_id, ledger_id = request.version, request.txn_id, request.ledger_id
    if isinstance(request, ReadRequest):
        return ReadResponse(version, txn_id, status, ledger_id, request.entry_id)
    if isinstance(request, BatchReadRequest):
        return BatchReadResponse(version, txn_id, status, ledger_id, request.entry_id)
    if isinstance(request, ReadLacRequest):
        return ReadLacResponse(version, txn_id, status, ledger_id)
    return ListEntriesResponse(version, txn_id, status, ledger_id)
