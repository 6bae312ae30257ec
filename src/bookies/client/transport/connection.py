"""One TCP connection to one bookie: requests in flight, their responses, their timeouts.

A connection speaks v2 or v3. The pool opens a new one for the next request after the end of this one. `TRANSITIONS` is
the table of its states, and `Event` states what becomes of the requests. Each request has exactly one outcome:

    answered           its response; for a refused add the error of the status
    not in time        `BookieTimeout`, and the connection stays: the request may or may not have taken effect
    given up           none; the response of a v2 read is still expected, because it names the entry alone
    connection ended   the error of the ending, whether the request was queued, sent or partly answered

Adds may have to wait until it is proved that their ledger is open (`open_ledgers.py`). Meanwhile they are held here,
and time out like others. Source: wire-protocol 1.4 and 6.1, client-protocol 2.21.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from typing import Protocol, cast

from bookies.client.transport.open_ledgers import NOT_ESTABLISHED, OpenProof
from bookies.client.transport.unanswered import (
    V3_ADDS,
    Answer,
    HeldAdds,
    PendingAdds,
    ReadKey,
    UnansweredAdds,
    UnansweredRequest,
    UnansweredRequests,
)
from bookies.errors import (
    BookieTimeout,
    BookieUnreachable,
    BookKeeperError,
    RemoteProtocolError,
    Status,
    TlsFailed,
    error_of_status,
)
from bookies.model import BookieId
from bookies.transitions import following
from bookies.wire.client import ResponseDecoder
from bookies.wire.messages import (
    AddResponses,
    BareResponse,
    BatchReadResponse,
    Buffer,
    Operation,
    ReadResponse,
    Response,
)

WRITE_SIZE = 64 * 1024  # bytes of adds that are sent at once instead of at the end of the loop iteration
CHECK_INTERVAL = 0.1  # seconds between checks of deadlines, while requests are outstanding
ABANDONED_READS_MAX = 10_000  # v2 reads given up whose response may still arrive; above this the connection is closed


_OK = Status.OK  # compared with the status of every response


class State(enum.Enum):
    CONNECTING = "connecting"  # requests wait in order
    OPEN = "open"
    CLOSED = "closed"  # every outstanding request has failed once


class Event(enum.Enum):
    CONNECTED = "connected, encrypted and authenticated as configured: the queued requests are sent in order"
    REFUSED = "not connected in time: requests fail with `BookieUnreachable`, `TlsFailed` or `Unauthorized`"
    LOST = (
        "the bookie or the network ended it: requests fail with `BookieUnreachable` and `was_connected`, or with "
        "`TlsFailed` if it was encrypted and never answered"
    )
    DROPPED = (
        "given up: malformed bytes, a socket that accepts none after a timeout, or too many reads without an answer: "
        "requests fail with `BookieUnreachable`"
    )
    CLOSED = "the client was closed: requests fail with `ClientClosed`"


TRANSITIONS = {
    (State.CONNECTING, Event.CONNECTED): State.OPEN,
    (State.CONNECTING, Event.REFUSED): State.CLOSED,
    (State.CONNECTING, Event.DROPPED): State.CLOSED,
    (State.CONNECTING, Event.CLOSED): State.CLOSED,
    (State.OPEN, Event.REFUSED): State.CLOSED,  # the time to connect ended in the same iteration of the event loop
    (State.OPEN, Event.LOST): State.CLOSED,
    (State.OPEN, Event.DROPPED): State.CLOSED,
    (State.OPEN, Event.CLOSED): State.CLOSED,
    (State.CLOSED, Event.CONNECTED): State.CLOSED,  # the new transport is aborted
}


class Flushes:
    """The outputs of one client's connections that have bytes to send. One callback per iteration flushes all."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: list[_Output] = []
        self._is_expected = False  # a call of `flush` follows

    def join(self, output: _Output) -> None:
        """Flush the output at the end of this iteration of the event loop."""
        self._due.append(output)
        if not self._is_expected:
            self._is_expected = True
            self._loop.call_soon(self.flush)

    def expect(self) -> None:
        """Announce a call of `flush` in this iteration, which saves the callback and an iteration of the loop."""
        self._is_expected = True

    def flush(self) -> None:
        """Flush the outputs that have joined."""
        self._is_expected = False
        due, self._due = self._due, []
        for output in due:
            output.flush()

    def failed(self, error: Exception) -> None:
        """Report that an output cannot send."""
        self._loop.call_exception_handler({"message": "a connection cannot send", "exception": error})


class _Output:
    """Bytes to send: gathers those of one iteration of the event loop. `transport`: None while there is none."""

    def __init__(self, flushes: Flushes) -> None:
        self.transport: asyncio.Transport | None = None
        self._flushes = flushes
        self._unsent: list[Buffer] = []
        self._size = 0  # bytes of adds in it
        self._has_joined = False  # the flush at the end of this iteration
        self.sent = 0  # bytes given to the transport

    def connected(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.flush()

    def send_adds(self, buffers: Sequence[Buffer], size: int) -> None:
        """Send in this or the next iteration of the event loop. `size`: bytes of adds."""
        self._unsent.extend(buffers)
        self._size += size
        if self._size >= WRITE_SIZE:
            self.flush()
        elif not self._has_joined and self.transport is not None:
            self._has_joined = True
            self._flushes.join(self)

    def send(self, buffers: Sequence[Buffer], *, is_idle: bool) -> None:
        """Send at the end of this loop iteration, so that requests of all ledgers share a system call.

        `is_idle`: no request is unanswered. Then it is sent at once, which saves a lone one an iteration of the loop.
        """
        self._unsent.extend(buffers)
        if is_idle:
            self.flush()
        elif not self._has_joined and self.transport is not None:
            self._has_joined = True
            self._flushes.join(self)

    def drop(self) -> None:
        """Discard the bytes and abort the transport."""
        self._unsent.clear()
        if self.transport is not None:
            self.transport.abort()

    @property
    def is_stuck(self) -> bool:
        """Report whether the transport holds bytes that the bookie does not accept."""
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    def flush(self) -> None:
        """Give the bytes to the transport, if there is one."""
        self._has_joined = False
        unsent, size, transport = self._unsent, self._size, self.transport
        if transport is None or not unsent:
            return
        self._unsent, self._size = [], 0
        self.sent += sum(map(len, unsent))
        try:
            if len(unsent) == 1:
                transport.write(unsent[0])
            elif size < 2 * WRITE_SIZE:  # One copy is cheaper than many buffers.
                transport.write(b"".join(unsent))
            else:
                transport.writelines(unsent)
        except Exception as error:  # noqa: BLE001  (it must not silence others, which are to be flushed after this one)
            self.drop()  # An unknown part of its bytes is lost.
            self._flushes.failed(error)


class _Input:
    """Received bytes: goes into the shared `scratch`, or into the decoder's own buffer during a large response."""

    def __init__(self, decoder: ResponseDecoder, scratch: memoryview) -> None:
        self._decoder = decoder
        self._frames = decoder.frames
        self._scratch = scratch
        self.size = 0  # bytes received

    def buffer(self, sizehint: int) -> Buffer:
        """Return the buffer for the next bytes. See `asyncio.BufferedProtocol.get_buffer`."""
        direct = self._frames.direct
        return self._scratch if direct is None else direct.rest()

    def received(self, size: int) -> Sequence[Response]:
        """Return the responses that `size` more bytes in the buffer complete. Raises `RemoteProtocolError`."""
        self.size += size
        if self._frames.direct is None:
            return self._decoder.feed(self._scratch[:size])
        return self._decoder.received(size)


class ConnectionOwner(Protocol):
    """The pool, as a connection sees it."""

    def established(self, connection: Connection) -> None:
        """Set the connection's `number`."""

    def ended(self, connection: Connection, error: BookKeeperError) -> None:
        """Learn, once, that the connection closes, before any of its requests fails."""

    def suspect(self, bookie: BookieId) -> None:
        """Learn that a request was not answered in time."""


class Connection(asyncio.BufferedProtocol):
    """One connection to one bookie; the module describes its states.

    `number`: see `open_ledgers`. `scratch`: receive buffer for short responses, which the connections of one loop can
    share. It is a view because asyncio's TLS fills views piece by piece, and a slice of any other buffer would be a
    copy.
    """

    def __init__(
        self,
        bookie: BookieId,
        wire: str,
        frame_size_max: int,
        owner: ConnectionOwner,
        scratch: memoryview,
        flushes: Flushes,
    ) -> None:
        self.bookie = bookie
        self.wire = wire
        self.number = NOT_ESTABLISHED
        self.state = State.CONNECTING
        self.error: BookKeeperError | None = None  # why it is closed
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._input = _Input(ResponseDecoder(wire, frame_size_max), scratch)
        self.get_buffer = self._input.buffer  # type: ignore[method-assign]  # One call less for each read.
        self._output = _Output(flushes)
        self._held = HeldAdds()
        self._adds = UnansweredAdds()
        self._requests = UnansweredRequests()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Connection {self.bookie} {self.wire} {self.state.value} unanswered={self.adds_size:,} bytes of adds>"

    @property
    def adds_size(self) -> int:
        """Bytes of adds sent or waiting to be sent, and not answered."""
        return self._adds.size + self._held.size

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes received and sent so far, without those of TLS."""
        return self._input.size, self._output.sent

    def _follow(self, event: Event) -> None:
        self.state = following(TRANSITIONS, self.state, event)

    # -- requests ------------------------------------------------------------------------------------------------
    def next_txn_ids(self, count: int = 1) -> range:
        return self._requests.next_txn_ids(count)

    def send_adds(self, adds: PendingAdds, buffers: Sequence[Buffer], *, is_recovery: bool = False) -> None:
        """Send the frames of these adds. Never blocks."""
        assert self.error is None
        if self.wire == "v2":
            self._adds.append(adds, adds.ledger_id, is_recovery=is_recovery)
        else:
            self._adds.append(adds, V3_ADDS, is_recovery=False)
        self._output.send_adds(buffers, adds.size)
        if self._timer is None:
            self._watch_deadlines()

    def hold_adds(self, adds: PendingAdds, buffers: Sequence[Buffer], proof: OpenProof) -> None:
        """Send the frames of these adds once the ledger is proved to be open. Never blocks."""
        assert self.error is None
        if self._held.append(adds, buffers, proof) and self.state is State.OPEN:
            proof.demand(self)
        self._watch_deadlines()

    def holds(self, proof: OpenProof) -> bool:
        """See `open_ledgers.Holder`."""
        return proof in self._held

    def release(self, proof: OpenProof) -> None:
        """See `open_ledgers.Holder`."""
        for adds, buffers in self._held.take(proof):
            self.send_adds(adds, buffers)

    def refuse(self, proof: OpenProof, error: BookKeeperError, last: int) -> None:
        """See `open_ledgers.Holder`."""
        for adds, buffers in self._held.take(proof):
            if adds.entry_ids[-1] <= last and self.error is None:
                self.send_adds(adds, buffers)
            else:
                adds.sink.on_failed(self.bookie, adds.entry_ids, error)

    def accepts_read(self, key: ReadKey, is_fencing: bool) -> bool:
        """Report whether the response to a v2 read can be told from the responses that are still to come."""
        return self._requests.accepts_read(key, is_fencing)

    def request(
        self,
        buffers: Sequence[Buffer],
        timeout_ms: int,
        *,
        txn_id: int | None = None,
        key: ReadKey | None = None,
        is_fencing: bool = False,
    ) -> Answer:
        """Send a request in this or the next iteration of the event loop. Cancelling the future gives the request up.

        `txn_id`: its transaction id (v3) or request id (v2 batch read). `key`: of a v2 read, which has neither;
        `accepts_read` must be true for it.
        """
        assert self.error is None
        answer = Answer(loop=self._loop)
        deadline = self._loop.time() + timeout_ms / 1000
        is_idle = not self._requests
        self._requests.append(UnansweredRequest(answer, deadline, key, is_fencing), txn_id)
        self._output.send(buffers, is_idle=is_idle)
        if self._timer is None:
            self._watch_deadlines()
        return answer

    def refused(self, error: BookKeeperError) -> None:
        """Report that there is no connection. It ends as by `close`."""
        self._end(Event.REFUSED, error)

    def close(self, error: BookKeeperError) -> None:
        """Fail every outstanding request with `error` and drop the connection. Idempotent."""
        self._end(Event.CLOSED, error)

    def _end(self, event: Event, error: BookKeeperError) -> None:
        if self.error is not None:
            return
        self._follow(event)
        self.error = error
        if self._timer is not None:
            self._timer.cancel()
        self._output.drop()
        self._owner.ended(self, error)
        unanswered, requests = [*self._adds.take_all(), *self._held.take_all()], self._requests.take_all()
        for adds in unanswered:
            adds.sink.on_failed(self.bookie, adds.entry_ids, error)
        for request in requests:
            request.finish(error)

    def _drop(self, reason: str, cause: BookKeeperError | None = None) -> None:
        error = BookieUnreachable(f"connection dropped: {reason}", bookie=self.bookie)
        error.__cause__ = cause
        self._end(Event.DROPPED, error)

    # -- asyncio.BufferedProtocol ---------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self._follow(Event.CONNECTED)
        if self.state is not State.OPEN:
            stream.abort()
            return
        self._owner.established(self)
        for proof in self._held.proofs():
            proof.demand(self)
        self._output.connected(stream)

    def buffer_updated(self, nbytes: int) -> None:
        if self.error is not None:
            return
        try:
            responses = self._input.received(nbytes)
        except RemoteProtocolError as cause:
            self._drop(cause.message, cause)
            return
        for response in responses:
            if isinstance(response, AddResponses):
                self._answer_adds(response)
            else:
                self._answer(response)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f": {exc}" if exc else " by the bookie"
        error = BookieUnreachable(f"connection closed{reason}", bookie=self.bookie)
        transport, self._output.transport = self._output.transport, None
        if not self._input.size and transport is not None and transport.get_extra_info("ssl_object"):
            # In TLS 1.3 a bookie rejects a client's certificate only after the client has finished the handshake.
            text = "it ended the encrypted connection without an answer: it requires a certificate, or another one"
            error = TlsFailed(text + (f" ({exc})" if exc else ""), bookie=self.bookie)
        error.was_connected = True
        error.__cause__ = exc
        self._end(Event.LOST, error)

    # -- responses -----------------------------------------------------------------------------------------------
    def _answer_adds(self, response: AddResponses) -> None:
        keys, where = response.txn_ids, V3_ADDS
        if keys is None:
            keys, where = response.entry_ids, response.ledger_id
        if response.status is _OK:
            run = self._adds.take_run(where, keys)
            if run is not None:
                run.sink.on_acknowledged(self.bookie, run.entry_ids)
                return
        for adds in self._adds.take(response, keys):
            if response.status is Status.OK:
                adds.sink.on_acknowledged(self.bookie, adds.entry_ids)
            else:
                error = error_of_status(
                    response.status,
                    is_write=True,
                    ledger_id=adds.ledger_id,
                    entry_id=adds.entry_ids[0],
                    bookie=self.bookie,
                )
                adds.sink.on_failed(self.bookie, adds.entry_ids, error)

    def _answer(self, response: Response) -> None:
        request: UnansweredRequest | None = None
        if isinstance(response, ReadResponse) and self.wire == "v2":
            request = self._requests.take_read((response.ledger_id, response.entry_id))
        elif isinstance(response, BareResponse) and response.operation is Operation.ADD:
            self._answer_adds(AddResponses(response.version, response.status, -1, (-1,), (response.txn_id,)))
        elif self.wire == "v3" or isinstance(response, BatchReadResponse):
            request = self._requests.take(response.txn_id)  # type: ignore[union-attr]
        if request is not None:
            request.finish(response)

    # -- deadlines -----------------------------------------------------------------------------------------------
    def _watch_deadlines(self, *, again: bool = False) -> None:
        if self._timer is None and self.error is None:
            due = self._loop.time() + CHECK_INTERVAL
            self._timer = self._loop.call_at(due, self._check_deadlines, due, again)

    def _check_deadlines(self, due: float, is_second: bool) -> None:
        self._timer = None
        now = self._loop.time()
        if now - due > CHECK_INTERVAL and not is_second:
            # This process was stalled, so responses may be waiting in the socket: read them before expiring requests.
            self._watch_deadlines(again=True)  # Iterations may go on to last so long.
            return
        has_timed_out = False
        for adds in self._adds.take_expired(now):
            has_timed_out = True
            adds.sink.on_failed(self.bookie, adds.entry_ids, self._timeout(adds.ledger_id, adds.entry_ids[0]))
        for request in self._requests.take_expired(now):
            has_timed_out |= request.finish(self._timeout(*request.key or ()))
        has_timed_out |= self._expire_held(now)
        if self.error is not None:
            return  # A sink closed the client when its adds failed.
        if has_timed_out:
            self._owner.suspect(self.bookie)
        if has_timed_out and self._output.is_stuck:
            # The bookie does not read the socket. Unsent bytes would be memory that no budget accounts for.
            self._drop("the bookie accepts no more bytes")
        elif self._requests.abandoned_count > ABANDONED_READS_MAX:
            self._drop("too many reads without answer")
        elif self._adds or self._held or self._requests:
            self._watch_deadlines()

    def _expire_held(self, now: float) -> bool:
        """Fail held adds whose time is over. Return whether the bookie is the reason: there is no connection yet."""
        has_timed_out = False
        for adds in self._held.take_expired(now):
            problem = "not sent: no connection to the bookie, or no answer from the metadata store, in time"
            entry_id = adds.entry_ids[0]
            error = BookieTimeout(problem, ledger_id=adds.ledger_id, entry_id=entry_id, bookie=self.bookie)
            has_timed_out = True
            adds.sink.on_failed(self.bookie, adds.entry_ids, error)
        return has_timed_out and self._output.transport is None

    def _timeout(self, ledger_id: int | None = None, entry_id: int | None = None) -> BookieTimeout:
        return BookieTimeout(
            "no answer in time; the request may or may not have taken effect",
            ledger_id=ledger_id,
            entry_id=entry_id,
            bookie=self.bookie,
        )
