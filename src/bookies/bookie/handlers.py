"""Handlers of the requests of a bookie, for both protocol versions. Reads are in `reads.py`.

Every decision about a ledger is made synchronously, on the event loop, in the order in which requests arrive on a
connection: `Storage.add`, `fence`, `write_lac` and `force` decide at the call and report durability later. Only
reads wait in between, and they change nothing.

Source: wire-protocol 5; the table of single situations: 2.6.
"""

from __future__ import annotations

import asyncio
import functools
import struct
from collections.abc import Callable, Mapping
from typing import Any

from bookies.bookie.former_ledgers import LedgerChecks
from bookies.bookie.reads import Reads
from bookies.bookie.served import Served
from bookies.bookie.state import BookieState, Phase
from bookies.bookie.storage_port import Storage
from bookies.bookie.transport.connection import Connection
from bookies.bookie.transport.pressure import Intake
from bookies.errors import BookKeeperError, Status, status_of_error
from bookies.kernels import Adds
from bookies.runtime.events import Events
from bookies.runtime.histogram import Outcomes
from bookies.storage.engine.store_writes import LedgerUnchecked
from bookies.wire.auth import auth_disabled
from bookies.wire.messages import (
    AddRequest,
    AuthRequest,
    BareResponse,
    BatchReadRequest,
    ForceLedgerRequest,
    ForceLedgerResponse,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    InvalidRequest,
    ListEntriesRequest,
    Operation,
    ReadLacRequest,
    ReadRequest,
    Request,
    StartTlsRequest,
    WriteLacRequest,
    WriteLacResponse,
)
from bookies.wire.server import encode_answers

LAC_PACKET_SIZE_MIN = 16
INFO_TOTAL, INFO_FREE, INFO_READS = 1, 2, 4

_LAC_PACKET = struct.Struct(">qq")


class Handlers:
    """Serves the requests of all connections of one bookie by `storage`. See `connection.Service`."""

    def __init__(
        self,
        store: Storage,
        state: BookieState,
        intake: Intake,
        reads: Reads,
        checks: LedgerChecks,
        events: Events,
        served: Served | None = None,
    ) -> None:
        self.storage = store
        self.reads = reads
        self.checks = checks
        self._served = served
        self._state = state
        self._intake = intake
        self._events = events
        self.on_add_latency: Callable[[float], None] | None = None  # of batches of ordinary adds, seconds
        self._handlers: Mapping[type, Callable[[Connection, Any], None]] = {
            AddRequest: self._add,
            ReadRequest: reads.read,
            BatchReadRequest: reads.batch_read,
            WriteLacRequest: self._write_lac,
            ReadLacRequest: reads.read_lac,
            ForceLedgerRequest: self._force,
            GetBookieInfoRequest: self._bookie_info,
            ListEntriesRequest: reads.list_entries,
            AuthRequest: self._auth,
            StartTlsRequest: self._start_tls,
            InvalidRequest: self._invalid,
        }

    def handle(self, connection: Connection, requests: list[Request]) -> None:
        """See `connection.Service`."""
        handlers, served = self._handlers, self._served
        if served is not None:
            served.began_s = served.clock()
        try:
            for request in requests:
                handlers[type(request)](connection, request)
        except Exception as error:  # noqa: BLE001  (our mistake, on one connection: the bookie goes on)
            self._broken(connection, error)
        if served is not None and served.answered_now:
            served.end_reads()
        self._intake.check()

    def refuse(self, connection: Connection, request: Request, status: Status) -> None:
        """Answer a request with a status, and serve nothing. One without an effect is answered as usual."""
        if self._served is not None:
            self._served.began_s = self._served.clock()
        match request:
            case AddRequest():
                self._refused_adds(connection, request, request.adds, status)
            case WriteLacRequest():
                self._finishing(self._served.lac_writes if self._served else None)(status)
                connection.respond(WriteLacResponse(request.version, request.txn_id, status, request.ledger_id))
            case ForceLedgerRequest():
                self._finishing(self._served.forces if self._served else None)(status)
                connection.respond(ForceLedgerResponse(request.version, request.txn_id, status, request.ledger_id))
            case ReadRequest() | BatchReadRequest() | ReadLacRequest() | ListEntriesRequest():
                self.reads.refuse(connection, request, status)
            case GetBookieInfoRequest():
                self._finishing(self._served.info_requests if self._served else None)(status)
                connection.respond(GetBookieInfoResponse(request.version, request.txn_id, status))
            case _:
                self._handlers[type(request)](connection, request)

    def _broken(self, connection: Connection, error: Exception) -> None:
        self._events.error("request.broken", peer=connection.peer, error=error)
        connection.abort()

    # -- writes --------------------------------------------------------------------------------------------------
    def _add(self, connection: Connection, request: AddRequest) -> None:
        """Add entries of one or more ledgers. Source: wire-protocol 5.4."""
        is_allowed = self._state.may_add(request.is_high_priority)
        if not is_allowed and self._state.phase is Phase.STOPPING:
            # The closed connection is the answer. "Read-only" would be wrong: a writer may go on without this bookie
            # only by a failure.
            return
        adds = request.adds
        if self._served is not None:
            self._served.adds_received += len(adds)
        if is_allowed:
            self._add_some(connection, request, adds)
        else:
            self._refused_adds(connection, request, adds, Status.READ_ONLY)

    def _add_some(self, connection: Connection, request: AddRequest, adds: Adds) -> None:
        """Add some stretches of a request."""
        is_timed = self._served is not None or self.on_add_latency is not None
        begun = self._begun(request) if is_timed else None
        refused = self.storage.add(
            adds,
            request.master_key,
            is_recovery=request.is_recovery,
            is_deferred_sync=request.is_deferred_sync and not request.is_recovery,
            accepted=self._intake.accepted,
            done=functools.partial(self._added, connection, request, begun),
        )
        for part, error in refused:
            if isinstance(error, LedgerUnchecked):
                self._check(connection, request, part)
            else:
                self._refused_adds(connection, request, part, status_of_error(error))

    def _check(self, connection: Connection, request: AddRequest, part: Adds) -> None:
        """Let a stretch wait until the record of its ledger is known. Source: storage 9.7 (F-44)."""

        def resume(error: BookKeeperError | None) -> None:
            self._intake.answered(part.records.size)
            try:
                if error is not None:
                    self._refused_adds(connection, request, part, status_of_error(error))
                else:
                    self._add_some(connection, request, part)
            except Exception as mistake:  # noqa: BLE001  (as in `handle`; adds of others wait for the same record)
                self._broken(connection, mistake)

        self._intake.accepted(part.records.size)
        self.checks.hold(part.first_ledger_id, part.entry_ids[0], resume)

    def _added(
        self,
        connection: Connection,
        request: AddRequest,
        begun: float | None,
        part: Adds,
        error: BaseException | None,
    ) -> None:
        if isinstance(error, LedgerUnchecked):
            self._check(connection, request, part)
            self._intake.answered(part.records.size)
            return
        if begun is not None:
            if self.on_add_latency is not None and not request.is_recovery:
                self.on_add_latency(asyncio.get_running_loop().time() - begun)
            if self._served is not None:
                self._served.added(begun, part, connection.peer, request, has_failed=error is not None)
        status = Status.OK if error is None else self._status(error, Operation.ADD)
        connection.send(encode_answers(request, part, status))
        self._intake.answered(part.records.size)

    def _refused_adds(self, connection: Connection, request: AddRequest, part: Adds, status: Status) -> None:
        if (served := self._served) is not None:
            served.adds_rejected += len(part) if status is Status.TOO_MANY_REQUESTS else 0
            served.added(served.began_s, part, connection.peer, request, has_failed=True)
        connection.send(encode_answers(request, part, status))

    def _begun(self, request: AddRequest) -> float | None:
        """Return the time if a caller measures how long adds like these take."""
        if self._served is not None:
            return self._served.began_s
        is_measured = self.on_add_latency is not None and not request.is_recovery
        return asyncio.get_running_loop().time() if is_measured else None

    def _write_lac(self, connection: Connection, request: WriteLacRequest) -> None:
        """Store an explicit LAC. A fence does not prevent it; ledger and LAC are those in the body. Source:
        wire-protocol 5.8.

        If the writer asks, the answer tells whether readers wait, so that it knows whether to announce its next LAC at
        once.
        """

        finished = self._finishing(self._served.lac_writes if self._served else None)
        has_readers = self.reads.has_waiting(request.ledger_id) if request.asks_readers else None

        def answer(status: Status) -> None:
            finished(status)
            connection.respond(
                WriteLacResponse(request.version, request.txn_id, status, request.ledger_id, has_readers)
            )

        if not self._state.may_write_lac():
            answer(Status.READ_ONLY)
            return
        if len(request.body) < LAC_PACKET_SIZE_MIN:
            answer(Status.BAD_REQUEST)
            return
        ledger_id, last_add_confirmed = _LAC_PACKET.unpack_from(request.body)
        if ledger_id < 0:
            answer(Status.BAD_REQUEST)
            return

        def done(error: BaseException | None) -> None:
            answer(Status.OK if error is None else self._status(error, Operation.WRITE_LAC))

        try:
            self.storage.write_lac(ledger_id, request.master_key, last_add_confirmed, request.body, done)
        except BookKeeperError as error:
            answer(status_of_error(error))

    def _force(self, connection: Connection, request: ForceLedgerRequest) -> None:
        """Answer when all earlier adds are durable. Source: wire-protocol 5.8."""
        finished = self._finishing(self._served.forces if self._served else None)

        def done(error: BaseException | None) -> None:
            status = Status.OK if error is None else self._status(error, Operation.FORCE_LEDGER)
            finished(status)
            connection.respond(ForceLedgerResponse(request.version, request.txn_id, status, request.ledger_id))

        try:
            self.storage.force(request.ledger_id, done)
        except BookKeeperError as error:
            done(error)

    # -- the rest ------------------------------------------------------------------------------------------------
    def _bookie_info(self, connection: Connection, request: GetBookieInfoRequest) -> None:
        """Answer with disk space, with what clients read, and with what is lost. Source: wire-protocol 5.8."""
        response = GetBookieInfoResponse(request.version, request.txn_id, Status.OK)
        if request.requested & (INFO_TOTAL | INFO_FREE):
            try:
                total, free = self.storage.usage()
            except (OSError, BookKeeperError) as error:
                response.status = self._status(error, Operation.GET_BOOKIE_INFO)
            else:
                response.total_disk_capacity = total if request.requested & INFO_TOTAL else None
                response.free_disk_space = free if request.requested & INFO_FREE else None
        if request.requested & INFO_READS and response.status is Status.OK:
            load = self.reads.load()
            response.read_rate, response.read_ledgers = load.rate, load.pack_ledgers()
            response.owed_entries = self._state.owed.entries or None
        self._finishing(self._served.info_requests if self._served else None)(response.status)
        connection.respond(response)

    @staticmethod
    def _auth(connection: Connection, request: AuthRequest) -> None:
        """Answer AUTH of a peer that is already served: authentication is not needed. Source: wire-protocol 5.1."""
        connection.respond(auth_disabled(request))

    @staticmethod
    def _start_tls(connection: Connection, request: StartTlsRequest) -> None:
        connection.start_tls(request)

    @staticmethod
    def _invalid(connection: Connection, request: InvalidRequest) -> None:
        connection.respond(
            BareResponse(
                request.version, request.txn_id, request.operation, request.status, request.ledger_id, request.entry_id
            )
        )

    def _finishing(self, outcomes: Outcomes | None) -> Callable[[Status], None]:
        """Return the function that records the end of the request at hand."""
        served = self._served
        if served is None or outcomes is None:
            return _ignore_status
        began_s = served.began_s
        return lambda status: served.finished(outcomes, began_s, has_failed=status is not Status.OK)

    def _status(self, error: BaseException, operation: Operation) -> Status:
        """Return the status of an error found while serving. Errors that do not concern the client are logged."""
        status = status_of_error(error)
        if status is Status.IO_ERROR:
            self._events.error("request.failed", operation=operation.value, error=error)
        return status


def _ignore_status(status: Status) -> None:
    """Record no request: the bookie has no metrics."""
