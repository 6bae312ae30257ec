"""One TCP connection to one bookie: requests in flight, their responses, their timeouts.

A connection speaks v2 or v3 and goes through three states, never back: connecting (requests wait in order), open,
closed (every outstanding request has failed once). The pool opens a new connection for the next request.

Adds are the bulk of the traffic, so they are tracked in runs: one `PendingAdds` per call, acknowledged from its front
as long as responses arrive in the order of the requests, which they normally do. Every other request has one future.
Its result is the response or the error, never an exception, so an abandoned read leaves no unretrieved exception.

Responses over v2 carry no request id. A response completes any request with its key, which is harmless with one
exception: the response to a plain read must not pass for the acknowledgement of a fence. `accepts_read` keeps the two
apart.

Adds may have to wait until it is proved that their ledger is open (`open_ledgers.py`). Meanwhile they are held here,
and time out like others. Source: wire-protocol 1.4 and 6.1, client-protocol 2.21.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, cast

from bookies.client.transport.open_ledgers import NOT_ESTABLISHED, OpenProof
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

Outcome = Response | BookKeeperError
ReadKey = tuple[int, int]  # ledger id, entry id


class AddSink(Protocol):
    """Sender of adds, which receives the outcome of each entry exactly once."""

    def on_acknowledged(self, bookie: BookieId, entry_ids: Sequence[int]) -> None: ...

    def on_failed(self, bookie: BookieId, entry_ids: Sequence[int], error: BookKeeperError) -> None: ...


class PendingAdds:
    """Unanswered adds of one call. `keys`: match responses to entries, one per entry."""

    __slots__ = ("deadline", "entry_ids", "keys", "ledger_id", "sink", "size")

    def __init__(
        self, ledger_id: int, keys: Sequence[int], entry_ids: Sequence[int], sink: AddSink, deadline: float, size: int
    ) -> None:
        self.ledger_id = ledger_id
        self.keys = keys
        self.entry_ids = entry_ids
        self.sink = sink
        self.deadline = deadline
        self.size = size

    def cut(self, count: int) -> PendingAdds:
        """Split off the first `count` entries, with their share of the size."""
        size = self.size * count // len(self.keys)
        front = PendingAdds(self.ledger_id, self.keys[:count], self.entry_ids[:count], self.sink, self.deadline, size)
        self.keys = self.keys[count:]
        self.entry_ids = self.entry_ids[count:]
        self.size -= size
        return front


class AddQueue:
    """Unanswered adds in the order in which they were sent. A single run is held without a deque."""

    __slots__ = ("_more", "_only")

    def __init__(self) -> None:
        self._only: PendingAdds | None = None
        self._more: deque[PendingAdds] | None = None

    def __bool__(self) -> bool:
        return self._only is not None or bool(self._more)

    def append(self, adds: PendingAdds) -> None:
        if self._only is None and not self._more:
            self._only = adds
        else:
            self._as_deque().append(adds)

    def _as_deque(self) -> deque[PendingAdds]:
        """Move all runs to `_more`, which the uncommon operations work on."""
        if self._more is None:
            self._more = deque()
        if self._only is not None:
            self._more.append(self._only)
            self._only = None
        return self._more

    def take_run(self, keys: Sequence[int]) -> PendingAdds | None:
        """Remove and return the oldest run if these keys answer exactly that: the cheap and usual case of `take`."""
        if (only := self._only) is not None:
            if only.keys != keys:
                return None
            self._only = None
            return only
        more = self._more
        return more.popleft() if more and more[0].keys == keys else None

    def take(self, keys: Sequence[int]) -> tuple[list[PendingAdds], Sequence[int]]:
        """Remove the adds that these keys answer. Return (parts in order, keys without a pending add)."""
        taken: list[PendingAdds] = []
        runs = self._as_deque()
        while keys and runs:
            head = runs[0]
            count = min(len(keys), len(head.keys))
            if not _equal(head.keys[:count], keys[:count]):
                break
            taken.append(runs.popleft() if count == len(head.keys) else head.cut(count))
            keys = keys[count:]
        unknown: list[int] = []
        while keys:  # Out of order: an early failure overtook, or a response is late.
            count = self._take_from_middle(keys, taken)
            if count == 0:
                unknown.append(keys[0])
            keys = keys[count or 1 :]
        return taken, unknown

    def _take_from_middle(self, keys: Sequence[int], taken: list[PendingAdds]) -> int:
        runs = self._as_deque()
        for position, run in enumerate(runs):
            if keys[0] not in run.keys:
                continue
            at = run.keys.index(keys[0])
            count = 1
            while count < len(keys) and at + count < len(run.keys) and run.keys[at + count] == keys[count]:
                count += 1
            if at:
                runs.insert(position, run.cut(at))
                position += 1
            if count == len(run.keys):
                del runs[position]
                taken.append(run)
            else:
                taken.append(run.cut(count))
            return count
        return 0

    def is_waiting(self, now: float) -> bool:
        """Report whether adds are pending and none has expired."""
        oldest = self._only or (self._more[0] if self._more else None)
        return oldest is not None and oldest.deadline > now

    def take_expired(self, now: float) -> Iterator[PendingAdds]:
        """Remove and yield runs whose deadline has passed.

        All adds of a queue use one timeout, so the first are the oldest.
        """
        runs = self._as_deque()
        while runs and runs[0].deadline <= now:
            yield runs.popleft()

    def take_all(self) -> Iterator[PendingAdds]:
        runs = self._as_deque()
        while runs:
            yield runs.popleft()


class _Request:
    """A request other than an add. `key`: None if responses are matched by transaction or request id."""

    __slots__ = ("deadline", "future", "is_fencing", "key")

    def __init__(
        self, future: asyncio.Future[Outcome], deadline: float, key: ReadKey | None = None, is_fencing: bool = False
    ) -> None:
        self.future = future
        self.deadline = deadline
        self.key = key
        self.is_fencing = is_fencing


class Connection(asyncio.BufferedProtocol):
    """One connection to one bookie; the module describes its states.

    `number`: see `open_ledgers`. `on_established(connection)` sets it. `on_end(connection, error)` is called once, when
    it closes, before any request fails; `on_timeout(bookie)` when a request was not answered in time. `scratch`:
    receive buffer for short responses, which the connections of one loop can share. It is a view because asyncio's TLS
    fills views piece by piece, and a slice of any other buffer would be a copy.
    """

    def __init__(
        self,
        bookie: BookieId,
        wire: str,
        frame_size_max: int,
        on_established: Callable[[Connection], None],
        on_end: Callable[[Connection, BookKeeperError], None],
        on_timeout: Callable[[BookieId], None],
        scratch: memoryview,
    ) -> None:
        self.bookie = bookie
        self.wire = wire
        self.number = NOT_ESTABLISHED
        self.adds_size = 0  # bytes of adds sent or waiting to be sent, and not answered
        self.error: BookKeeperError | None = None  # why it is closed
        self.has_answered = False  # at least one response was received
        self._loop = asyncio.get_running_loop()
        self._on_established = on_established
        self._on_end = on_end
        self._on_timeout = on_timeout
        self._scratch = scratch
        self._decoder = ResponseDecoder(wire, frame_size_max)
        self._room: memoryview | None = None  # buffer of the decoder that the transport is about to fill
        self._transport: asyncio.Transport | None = None
        self._unsent: list[Buffer] = []
        self._unsent_size = 0  # bytes of adds in it
        self._is_flush_scheduled = False
        self._adds: dict[int, AddQueue] = {}  # by ledger; v3: all under -1, by transaction id
        self._recovery_adds: dict[int, AddQueue] = {}  # v2 only: see `_queues_for`
        self._held: dict[OpenProof, deque[tuple[PendingAdds, Sequence[Buffer]]]] = {}
        self._reads: dict[ReadKey, deque[_Request]] = {}  # v2 single reads
        self._abandoned: dict[ReadKey, int] = {}  # v2 reads given up whose responses may still arrive
        self._requests: dict[int, _Request] = {}  # by transaction or request id
        self._next_txn_id = 1
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    def __repr__(self) -> str:
        state = "closed" if self.error else "open" if self._transport else "connecting"
        return f"<Connection {self.bookie} {self.wire} {state} unanswered={self.adds_size:,} bytes of adds>"

    # -- requests ------------------------------------------------------------------------------------------------
    def next_txn_ids(self, count: int = 1) -> range:
        first = self._next_txn_id
        self._next_txn_id += count
        return range(first, first + count)

    def send_adds(self, adds: PendingAdds, buffers: Sequence[Buffer], *, is_recovery: bool = False) -> None:
        """Send the frames of these adds. Never blocks."""
        assert self.error is None
        is_v2 = self.wire == "v2"
        queues = self._recovery_adds if is_recovery and is_v2 else self._adds
        where = adds.ledger_id if is_v2 else -1
        queue = queues.get(where)
        if queue is None:
            queue = queues[where] = AddQueue()
        queue.append(adds)
        size = adds.size
        self.adds_size += size
        self._unsent.extend(buffers)
        self._unsent_size += size
        if self._unsent_size >= WRITE_SIZE:
            self._flush()
        elif not self._is_flush_scheduled:
            self._schedule_flush()
        if self._timer is None:
            self._watch_deadlines()

    def hold_adds(self, adds: PendingAdds, buffers: Sequence[Buffer], proof: OpenProof) -> None:
        """Send the frames of these adds once the ledger is proved to be open. Never blocks."""
        assert self.error is None
        held = self._held.get(proof)
        if held is None:
            held = self._held[proof] = deque()
            if self._transport is not None:
                proof.demand(self)
        held.append((adds, buffers))
        self.adds_size += adds.size
        self._watch_deadlines()

    def holds(self, proof: OpenProof) -> bool:
        """See `open_ledgers.Holder`."""
        return proof in self._held

    def release(self, proof: OpenProof) -> None:
        """See `open_ledgers.Holder`."""
        for adds, buffers in self._held.pop(proof, ()):
            self.adds_size -= adds.size
            self.send_adds(adds, buffers)

    def refuse(self, proof: OpenProof, error: BookKeeperError) -> None:
        """See `open_ledgers.Holder`."""
        held = [adds for adds, _ in self._held.pop(proof, ())]
        self.adds_size -= sum(adds.size for adds in held)
        for adds in held:
            adds.sink.on_failed(self.bookie, adds.entry_ids, error)

    def accepts_read(self, key: ReadKey, is_fencing: bool) -> bool:
        """Report whether the response to a v2 read can be told from the responses that are still to come."""
        if is_fencing and key in self._abandoned:
            return False
        waiting = self._reads.get(key)
        return not waiting or waiting[0].is_fencing == is_fencing  # All requests of one key agree in this.

    def request(
        self,
        buffers: Sequence[Buffer],
        timeout_ms: int,
        *,
        txn_id: int | None = None,
        key: ReadKey | None = None,
        is_fencing: bool = False,
    ) -> asyncio.Future[Outcome]:
        """Send a request in this or the next iteration of the event loop. Cancelling the future gives the request up.

        `txn_id`: its transaction id (v3) or request id (v2 batch read). `key`: of a v2 read, which has neither;
        `accepts_read` must be true for it.
        """
        assert self.error is None
        future: asyncio.Future[Outcome] = self._loop.create_future()
        request = _Request(future, self._loop.time() + timeout_ms / 1000, key, is_fencing)
        if txn_id is not None:
            self._requests[txn_id] = request
        else:
            assert key is not None
            waiting = self._reads.get(key)
            if waiting is None:
                waiting = self._reads[key] = deque()
            waiting.append(request)
        self._unsent.extend(buffers)
        self._schedule_flush()
        self._watch_deadlines()
        return future

    def close(self, error: BookKeeperError) -> None:
        """Fail every outstanding request with `error` and drop the connection. Idempotent."""
        if self.error is not None:
            return
        self.error = error
        self._unsent.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._on_end(self, error)
        queues = [*self._adds.values(), *self._recovery_adds.values()]
        held = [waiting.popleft()[0] for waiting in self._held.values() for _ in range(len(waiting))]
        requests = [request for waiting in self._reads.values() for request in waiting]
        requests += self._requests.values()
        for pending in (self._adds, self._recovery_adds, self._held, self._reads, self._requests, self._abandoned):
            pending.clear()
        self.adds_size = 0
        for queue in queues:
            for adds in queue.take_all():
                adds.sink.on_failed(self.bookie, adds.entry_ids, error)
        for adds in held:
            adds.sink.on_failed(self.bookie, adds.entry_ids, error)
        for request in requests:
            if not request.future.done():
                request.future.set_result(error)

    # -- asyncio.BufferedProtocol ---------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        if self.error is not None:
            stream.abort()
            return
        self._transport = stream
        self._on_established(self)
        for proof in self._held:
            proof.demand(self)
        self._flush()

    def get_buffer(self, sizehint: int) -> Buffer:
        self._room = self._decoder.room()
        return self._scratch if self._room is None else self._room

    def buffer_updated(self, nbytes: int) -> None:
        if self.error is not None:
            return
        try:
            if self._room is None:
                responses = self._decoder.feed(self._scratch[:nbytes])
            else:
                self._room = None
                responses = self._decoder.received(nbytes)
        except RemoteProtocolError as cause:
            error = BookieUnreachable(f"connection dropped: {cause.message}", bookie=self.bookie)
            error.__cause__ = cause
            self.close(error)
            return
        self.has_answered = True
        for response in responses:
            if isinstance(response, AddResponses):
                self._answer_adds(response)
            else:
                self._answer(response)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f": {exc}" if exc else " by the bookie"
        error = BookieUnreachable(f"connection closed{reason}", bookie=self.bookie)
        if not self.has_answered and self._transport is not None and self._transport.get_extra_info("ssl_object"):
            # In TLS 1.3 a bookie rejects a client's certificate only after the client has finished the handshake.
            text = "it ended the encrypted connection without an answer: it requires a certificate, or another one"
            error = TlsFailed(text + (f" ({exc})" if exc else ""), bookie=self.bookie)
        error.was_connected = True
        error.__cause__ = exc
        self._transport = None
        self.close(error)

    # -- responses -----------------------------------------------------------------------------------------------
    def _answer_adds(self, response: AddResponses) -> None:
        keys = response.entry_ids if response.txn_ids is None else response.txn_ids
        if response.status is Status.OK and not self._recovery_adds:
            only = self._adds.get(-1 if response.txn_ids is not None else response.ledger_id)
            if only is not None and (run := only.take_run(keys)) is not None:
                self.adds_size -= run.size
                run.sink.on_acknowledged(self.bookie, run.entry_ids)
                return
        for queues, where in self._queues_for(response):
            queue = queues.get(where)
            if queue is None:
                continue
            taken, keys = queue.take(keys)
            for adds in taken:
                self.adds_size -= adds.size
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
            if not keys:
                return

    def _queues_for(self, response: AddResponses) -> list[tuple[dict[int, AddQueue], int]]:
        """Return the queues in which to look up a response, first choice first.

        A writer and a recovery of one ledger in one process may both add an entry over this connection. Their responses
        look alike, but only the writer's add can be refused as fenced. So a success goes to the recovery (the entry is
        stored, whichever request stored it) and a refusal to the writer.
        """
        if response.txn_ids is not None:
            return [(self._adds, -1)]
        if not self._recovery_adds:
            return [(self._adds, response.ledger_id)]
        order = [(self._adds, response.ledger_id), (self._recovery_adds, response.ledger_id)]
        return order[::-1] if response.status is Status.OK else order

    def _answer(self, response: Response) -> None:
        request: _Request | None = None
        if isinstance(response, BareResponse) and response.operation is Operation.ADD:
            self._answer_adds(AddResponses(response.version, response.status, -1, (-1,), (response.txn_id,)))
        elif self.wire == "v3" or isinstance(response, BatchReadResponse):
            request = self._requests.pop(response.txn_id, None)  # type: ignore[union-attr]
        elif isinstance(response, ReadResponse):
            request = self._take_read((response.ledger_id, response.entry_id))
        if request is not None and not request.future.done():
            request.future.set_result(response)

    def _take_read(self, key: ReadKey) -> _Request | None:
        """Remove and return the oldest read with this key that was not given up."""
        waiting = self._reads.get(key)
        request: _Request | None = None
        while waiting:
            request = waiting.popleft()
            if not request.future.done():
                break
            self._abandon(request)
            request = None
        if request is None and (abandoned := self._abandoned.pop(key, 0)) > 1:
            self._abandoned[key] = abandoned - 1
        if not waiting:
            self._reads.pop(key, None)
        return request

    def _abandon(self, request: _Request) -> None:
        assert request.key is not None
        self._abandoned[request.key] = self._abandoned.get(request.key, 0) + 1

    # -- sending and deadlines -----------------------------------------------------------------------------------
    def _schedule_flush(self) -> None:
        """Flush at the end of this loop iteration, so that requests of all ledgers share a system call."""
        if self._transport is not None and not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if self._transport is None or not self._unsent:
            return
        unsent, self._unsent = self._unsent, []
        size, self._unsent_size = self._unsent_size, 0
        if len(unsent) == 1:
            self._transport.write(unsent[0])
        elif size < 2 * WRITE_SIZE:  # One copy is cheaper than many buffers.
            self._transport.write(b"".join(unsent))
        else:
            self._transport.writelines(unsent)

    def _watch_deadlines(self) -> None:
        if self._timer is None and self.error is None:
            self._timer_due = self._loop.time() + CHECK_INTERVAL
            self._timer = self._loop.call_at(self._timer_due, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer = None
        now = self._loop.time()
        if now - self._timer_due > CHECK_INTERVAL:
            # This process was stalled, so responses may be waiting in the socket: read them before expiring requests.
            self._watch_deadlines()
            return
        has_timed_out = self._expire_adds(self._adds, now)
        has_timed_out |= self._expire_adds(self._recovery_adds, now)
        has_timed_out |= self._expire_requests(now)
        has_timed_out |= self._expire_held(now)
        if self.error is not None:
            return  # A sink closed the client when its adds failed.
        if has_timed_out:
            self._on_timeout(self.bookie)
        if has_timed_out and self._transport is not None and self._transport.get_write_buffer_size():
            # The bookie does not read the socket. Unsent bytes would be memory that no budget accounts for.
            self.close(BookieUnreachable("connection dropped: the bookie accepts no more bytes", bookie=self.bookie))
        elif len(self._abandoned) > ABANDONED_READS_MAX:
            self.close(BookieUnreachable("connection dropped: too many reads without answer", bookie=self.bookie))
        elif self._adds or self._recovery_adds or self._held or self._reads or self._requests:
            self._watch_deadlines()

    def _expire_adds(self, queues: dict[int, AddQueue], now: float) -> bool:
        has_timed_out = False
        for ledger_id, queue in list(queues.items()):
            if queue.is_waiting(now):
                continue
            for adds in queue.take_expired(now):
                has_timed_out = True
                self.adds_size -= adds.size
                adds.sink.on_failed(self.bookie, adds.entry_ids, self._timeout(adds.ledger_id, adds.entry_ids[0]))
            # Not as soon as it is empty: a ledger written one entry at a time would create a new queue each time.
            if not queue and queues.get(ledger_id) is queue:
                del queues[ledger_id]
        return has_timed_out

    def _expire_held(self, now: float) -> bool:
        """Fail held adds whose time is over. Return whether the bookie is the reason: there is no connection yet."""
        has_timed_out = False
        for proof, held in list(self._held.items()):
            while held and held[0][0].deadline <= now:
                adds, _ = held.popleft()
                self.adds_size -= adds.size
                problem = "not sent: no connection to the bookie, or no answer from the metadata store, in time"
                entry_id = adds.entry_ids[0]
                error = BookieTimeout(problem, ledger_id=adds.ledger_id, entry_id=entry_id, bookie=self.bookie)
                has_timed_out = True
                adds.sink.on_failed(self.bookie, adds.entry_ids, error)
            if not held and self._held.get(proof) is held:
                del self._held[proof]
        return has_timed_out and self._transport is None

    def _expire_requests(self, now: float) -> bool:
        has_timed_out = False
        for txn_id, request in list(self._requests.items()):
            if request.deadline <= now or request.future.done():
                del self._requests[txn_id]
                if not request.future.done():
                    has_timed_out = True
                    request.future.set_result(self._timeout())
        for key, waiting in list(self._reads.items()):
            for request in list(waiting):
                if request.deadline <= now or request.future.done():
                    waiting.remove(request)
                    self._abandon(request)
                    if not request.future.done():
                        has_timed_out = True
                        request.future.set_result(self._timeout(*key))
            if not waiting and self._reads.get(key) is waiting:
                del self._reads[key]
        return has_timed_out

    def _timeout(self, ledger_id: int | None = None, entry_id: int | None = None) -> BookieTimeout:
        return BookieTimeout(
            "no answer in time; the request may or may not have taken effect",
            ledger_id=ledger_id,
            entry_id=entry_id,
            bookie=self.bookie,
        )


def _equal(one: Sequence[int], other: Sequence[int]) -> bool:
    """Report whether two sequences, ranges or lists, hold the same numbers."""
    if one[0] != other[0] or one[-1] != other[-1]:
        return False
    return one == other if type(one) is type(other) else list(one) == list(other)
