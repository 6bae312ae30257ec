"""A bookie in memory that speaks the wire protocol and misbehaves on request.

It is the reference for what a client may meet: a dictionary per ledger, no disk, no delay of its own.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bookies.errors import Status
from bookies.kernels import Adds, Records
from bookies.protocol.pacing.read_rates import ReadLoad
from bookies.wire.availability import pack_availability
from bookies.wire.messages import (
    AddRequest,
    AddResponses,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    WriteLacRequest,
    WriteLacResponse,
)
from bookies.wire.server import RequestDecoder, encode_response

FRAME_SIZE_MAX = 5 * 1024 * 1024


@dataclass
class FakeLedger:
    master_key: bytes
    entries: dict[int, bytes] = field(default_factory=dict)
    is_fenced: bool = False
    last_add_confirmed: int = -1
    lac_body: bytes | None = None


class FakeBookie:
    """One bookie. `intercept` sees each request first: it returns a list of responses to send instead, an empty one
    for silence, or None to let the bookie answer. `delay_s`: how long the answer to a request takes.
    """

    def __init__(self, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self.ledgers: dict[int, FakeLedger] = {}
        self.requests: list[Request] = []
        self.connections: list[FakeConnection] = []
        self.connection_count = 0
        self.intercept: Callable[[Request], Sequence[Response] | None] = lambda request: None
        self.delay_s: Callable[[Request], float] = lambda request: 0.0
        self.frame_size_max = frame_size_max
        self._polls: list[tuple[FakeConnection, ReadRequest]] = []

    def accept(self) -> FakeConnection:
        """The protocol factory of its listening socket."""
        self.connection_count += 1
        return FakeConnection(self)

    def serve(self, connection: FakeConnection, request: Request) -> None:
        self.requests.append(request)
        responses = self.intercept(request)
        if responses is None:
            if isinstance(request, ReadRequest) and request.previous_lac is not None and not self._has_news(request):
                self._hold(connection, request)
                return
            if isinstance(request, AddRequest):
                responses = [self._add(request, part) for part in request.adds.parts()]
            else:
                responses = [self.answer(request)]
        delay_s = self.delay_s(request)
        for response in responses:
            if delay_s:
                asyncio.get_running_loop().call_later(delay_s, connection.send, response)
            else:
                connection.send(response)
        self._answer_polls()

    def answer(self, request: Request) -> Response:
        """What a well-behaved bookie says."""
        if isinstance(request, ReadRequest):
            return self._long_poll(request) if request.previous_lac is not None else self._read(request)
        if isinstance(request, BatchReadRequest):
            return self._batch_read(request)
        if isinstance(request, ReadLacRequest):
            return self._read_lac(request)
        if isinstance(request, WriteLacRequest):
            ledger = self.ledgers.setdefault(request.ledger_id, FakeLedger(request.master_key))
            ledger.lac_body = request.body
            ledger.last_add_confirmed = max(ledger.last_add_confirmed, request.last_add_confirmed)
            has_readers = request.asks_readers and any(poll.ledger_id == request.ledger_id for _, poll in self._polls)
            return WriteLacResponse(3, request.txn_id, Status.OK, request.ledger_id, has_readers)
        if isinstance(request, ForceLedgerRequest):
            return ForceLedgerResponse(3, request.txn_id, Status.OK, request.ledger_id)
        if isinstance(request, GetBookieInfoRequest):
            load = ReadLoad(70, {7: 60}) if request.requested & 4 else None
            reads = (None, None) if load is None else (load.rate, load.pack_ledgers())
            return GetBookieInfoResponse(3, request.txn_id, Status.OK, 1000, 400, *reads)
        assert isinstance(request, ListEntriesRequest), request
        ledger = self.ledgers.get(request.ledger_id)
        if ledger is None:
            return ListEntriesResponse(3, request.txn_id, Status.NO_LEDGER, request.ledger_id)
        runs = [range(entry_id, entry_id + 1) for entry_id in sorted(ledger.entries)]
        return ListEntriesResponse(3, request.txn_id, Status.OK, request.ledger_id, pack_availability(runs))

    def _add(self, request: AddRequest, adds: Adds) -> AddResponses:
        ((ledger_id, entry_ids, records),) = adds.stretches()
        ledger = self.ledgers.setdefault(ledger_id, FakeLedger(request.master_key))
        status = Status.OK
        if ledger.master_key != request.master_key:
            status = Status.UNAUTHORIZED
        elif ledger.is_fenced and not request.is_recovery:
            status = Status.FENCED
        else:
            for index, entry_id in enumerate(entry_ids):
                ledger.entries[entry_id] = records.body(index)
            ledger.last_add_confirmed = max(ledger.last_add_confirmed, *adds.lacs)
        return AddResponses(request.version, status, ledger_id, entry_ids, request.txn_ids)

    def _find(self, ledger_id: int, entry_id: int) -> tuple[Status, bytes | None]:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return Status.NO_LEDGER, None
        if entry_id == -1:
            entry_id = max(ledger.entries, default=-1)
        body = ledger.entries.get(entry_id)
        return (Status.OK, body) if body is not None else (Status.NO_ENTRY, None)

    def _fence(self, request: ReadRequest | BatchReadRequest) -> bool:
        if not request.is_fencing:
            return True
        ledger = self.ledgers.setdefault(request.ledger_id, FakeLedger(request.master_key or b""))
        if ledger.master_key != request.master_key:
            return False
        ledger.is_fenced = True
        return True

    def _read(self, request: ReadRequest) -> ReadResponse:
        status, body = self._find(request.ledger_id, request.entry_id)
        if not self._fence(request):
            status, body = Status.UNAUTHORIZED, None
        ledger = self.ledgers.get(request.ledger_id)
        lac = ledger.last_add_confirmed if ledger and request.version == 3 and status is Status.OK else None
        return ReadResponse(request.version, request.txn_id, status, request.ledger_id, request.entry_id, body, lac)

    def _batch_read(self, request: BatchReadRequest) -> BatchReadResponse:
        bodies: list[bytes] = []
        total = 36
        status = Status.OK if self._fence(request) else Status.UNAUTHORIZED
        while status is Status.OK and (request.count_max <= 0 or len(bodies) < request.count_max):
            found, body = self._find(request.ledger_id, request.entry_id + len(bodies))
            if body is None:
                status = found if not bodies else Status.OK
                break
            total += 4 + len(body)
            if bodies and total > request.size_max:
                break
            bodies.append(body)
        records = Records.of(bodies).data
        return BatchReadResponse(request.version, request.txn_id, status, request.ledger_id, request.entry_id, records)

    def _read_lac(self, request: ReadLacRequest) -> ReadLacResponse:
        ledger = self.ledgers.get(request.ledger_id)
        _, body = self._find(request.ledger_id, -1)
        lac_body = ledger.lac_body if ledger else None
        status = Status.OK if body or lac_body else Status.NO_ENTRY
        return ReadLacResponse(3, request.txn_id, status, request.ledger_id, lac_body, body)

    # -- long polls ----------------------------------------------------------------------------------------------
    def _has_news(self, request: ReadRequest) -> bool:
        ledger = self.ledgers.get(request.ledger_id)
        assert request.previous_lac is not None
        return ledger is None or ledger.is_fenced or ledger.last_add_confirmed > request.previous_lac

    def _hold(self, connection: FakeConnection, request: ReadRequest) -> None:
        self._polls.append((connection, request))
        asyncio.get_running_loop().call_later((request.timeout_ms or 0) / 1000, self._time_out, connection, request)

    def _time_out(self, connection: FakeConnection, request: ReadRequest) -> None:
        if (connection, request) in self._polls:
            self._polls.remove((connection, request))
            connection.send(self._long_poll(request))

    def _answer_polls(self) -> None:
        for connection, request in [poll for poll in self._polls if self._has_news(poll[1])]:
            self._polls.remove((connection, request))
            connection.send(self._long_poll(request))

    def _long_poll(self, request: ReadRequest) -> ReadResponse:
        ledger = self.ledgers.get(request.ledger_id)
        if ledger is None:
            return ReadResponse(3, request.txn_id, Status.NO_LEDGER, request.ledger_id, -1)
        assert request.previous_lac is not None
        lac, wanted = ledger.last_add_confirmed, request.previous_lac + 1
        body = ledger.entries.get(wanted) if lac > request.previous_lac else None
        found = wanted if body is not None else -1
        return ReadResponse(3, request.txn_id, Status.OK, request.ledger_id, found, body, lac)

    def corrupt(self, ledger_id: int, entry_id: int) -> None:
        """Flip a bit of the payload's end."""
        entries = self.ledgers[ledger_id].entries
        entries[entry_id] = entries[entry_id][:-1] + bytes([entries[entry_id][-1] ^ 1])

    def drop_connections(self) -> None:
        for connection in list(self.connections):
            connection.transport.abort()


class FakeConnection(asyncio.Protocol):
    """One accepted connection."""

    def __init__(self, bookie: FakeBookie) -> None:
        self._bookie = bookie
        self._decoder = RequestDecoder(bookie.frame_size_max)
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._bookie.connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._bookie.connections.remove(self)

    def data_received(self, data: bytes) -> None:
        for request in self._decoder.feed(data):
            self._bookie.serve(self, request)

    def send(self, response: Response) -> None:
        if not self.transport.is_closing():
            self.transport.writelines(encode_response(response))


def entry_id_of(body: bytes) -> int:
    return int(struct.unpack_from(">q", body, 8)[0])
