"""One client of a bookie: turns bytes into requests and responses into bytes, and decides when to stop reading.

Requests go to the service in the order of their arrival. Responses gather in a list that is written once per
iteration of the event loop, so a group commit that answers twenty batches costs one system call per connection. While
the peer does not consume what was written, the rest stays in this object, which knows its size.

Pressure: a connection reads nothing while the bookie as a whole holds too much (`pressure.Intake`), while its peer
does not consume the answers it requested, or while too many of its requests wait. TCP then makes the peer wait. No
request is refused, and memory does not grow.

Source: wire-protocol 1.1, 1.2, 5.11.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

from msgspec import Struct

from bookies.bookie.transport.pressure import PARTIAL_SIZE_MIN, Intake, ReadShare
from bookies.errors import RemoteProtocolError, Status
from bookies.runtime.events import Events
from bookies.runtime.sockets import unacknowledged
from bookies.wire.messages import Buffer, Request, Response, StartTlsRequest, StartTlsResponse
from bookies.wire.server import RequestDecoder, encode_response

JOIN_SIZE_MAX = 64 * 1024  # bytes; smaller responses are joined into one buffer, larger ones are sent as they are
UNSENT_SIZE_MIN = 64 * 1024  # bytes waiting in the transport above which answers count as not consumed
UNSENT_SIZE_MAX = 1024 * 1024  # bytes above which reading from the socket stops, too
TASKS_MAX = 10_000  # requests of one connection; reading stops when more wait, until half of them are answered
LINGER_S = 2.0  # how long a closed connection may take to fetch its last answers
STALL_S = 30.0  # a peer that consumes no answers for this long is closed; its answers occupy memory
STALL_PRESSED_S = 2.0  # likewise, when others wait for that memory
STALL_CHECK_S = 0.5


class Service(Protocol):
    """Serves the requests of all connections."""

    def handle(self, connection: Connection, requests: list[Request]) -> None:
        """Start serving the requests, in order. Must not raise; answers come through `respond` and `send`."""


class UserService(Service, Protocol):
    """Serves the requests of one connection, within the rights of its user."""

    def answered(self, size: int) -> None:
        """Count the bytes of the answer to a read."""


class Surroundings(Struct, frozen=True):
    """Objects that all connections of a bookie share. `admit`: returns what serves a connection of a named user."""

    service: Service
    intake: Intake
    events: Events
    frame_size_max: int
    admit: Callable[[Connection, str], UserService] | None = None


class Answers:
    """Answers of one connection until the peer consumes them.

    Those of one iteration of the event loop are gathered. While the peer is slow, what the transport does not get stays
    here. `share`: the part of the read budget that the answers to reads occupy.
    """

    def __init__(self, share: ReadShare) -> None:
        self.gathered: list[Buffer] = []  # to be written at the end of the iteration
        self.size = 0  # bytes in the read budget
        self.part_size: int | None = None  # bytes that a transport gets at once; None: no limit
        self.is_flush_scheduled = False
        self.is_slow = False  # the peer does not consume its answers
        self.is_paused = False  # more than `UNSENT_SIZE_MAX` bytes are unsent: no requests are read
        self.stall_check: asyncio.TimerHandle | None = None  # the next one, while the peer is slow
        self._share = share
        self._kept: deque[Buffer] = deque()  # of earlier iterations, before `gathered`, while the peer is slow
        self._kept_size = 0
        self._taken_at = 0.0  # when the peer last consumed something, while it is slow
        self._accepted_size = 0  # bytes written so far, and the most of them that the peer was seen to have
        self._taken_size = 0

    def write_to(self, transport: asyncio.Transport, *, is_all: bool) -> None:
        """Give the transport the answers, as long as the peer consumes them, or unconditionally."""
        gathered, self.gathered = self.gathered, []
        if len(gathered) > 1 and sum(map(len, gathered)) <= JOIN_SIZE_MAX:
            gathered = [b"".join(gathered)]
        if len(gathered) == 1 and not self._kept and not self.is_slow and self.part_size is None:  # the usual case
            (buffer,) = gathered
            self._accepted_size += len(buffer)
            transport.write(buffer)
            return
        size = sum(map(len, gathered))
        self._kept += gathered
        self._kept_size += size
        self._accepted_size += size
        while self._kept and (is_all or not self.is_slow):
            buffer = self._kept.popleft()
            if self.part_size is not None and len(buffer) > self.part_size:
                self._kept.appendleft(memoryview(buffer)[self.part_size :])
                buffer = memoryview(buffer)[: self.part_size]
            self._kept_size -= len(buffer)
            transport.write(buffer)  # May find that the peer is slow.

    def unsent(self, transport: asyncio.Transport) -> int:
        """Return the bytes in our memory that wait for the socket."""
        return self._kept_size + transport.get_write_buffer_size()

    def release(self, size: int, *, is_closed: bool) -> None:
        """Release `size` bytes of answers that were handed to the socket."""
        if size:
            self.size -= size
            (self._share.release if is_closed else self._share.sent)(size)

    def drop_gathered(self) -> None:
        """Discard the answers that were not written, unless the peer has others to consume.

        Otherwise the unconsumed rest counts until the connection is closed.
        """
        self.gathered = []
        if not self.is_slow:
            self.drop()

    def drop(self) -> None:
        """Discard all answers: they cannot be delivered any more."""
        self.gathered.clear()
        self._kept.clear()
        size, self.size, self._kept_size = self.size, 0, 0
        if size:
            self._share.release(size)

    def slowed(self, now: float) -> None:
        """Note that the peer stopped to consume."""
        self.is_slow = True
        self._taken_at = now

    def resumed(self) -> None:
        """Note that the peer consumes again."""
        self.is_slow = self.is_paused = False
        if self.stall_check is not None:
            self.stall_check.cancel()

    def stalled_s(self, now: float, transport: asyncio.Transport) -> float:
        """Return for how many seconds a slow peer has consumed nothing."""
        unsent_size = self.unsent(transport) + unacknowledged(transport)
        if unsent_size == 0 or self._accepted_size - unsent_size > self._taken_size:
            self._taken_at = now
        self._taken_size = max(self._taken_size, self._accepted_size - unsent_size)
        return now - self._taken_at


class Connection(asyncio.Protocol):
    """One accepted connection.

    `share`: its part of the read budget, informed when the peer consumes answers to reads and when it stops doing so.
    """

    def __init__(self, surroundings: Surroundings, share: ReadShare) -> None:
        self.is_closed = False
        self.share = share
        self.peer = "?"
        self._surroundings = surroundings
        self._service = surroundings.service
        self._decoder = RequestDecoder(surroundings.frame_size_max)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answers = Answers(share)
        self._is_reading_paused = False
        self._holds_partial_frame = False
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._has_many_tasks = False
        self._linger: asyncio.TimerHandle | None = None

    # -- what handlers use ---------------------------------------------------------------------------------------
    @property
    def task_count(self) -> int:
        """Return the number of its requests that run in the background."""
        return len(self._tasks)

    def respond(self, response: Response, answer_size: int = 0) -> None:
        """Send a response with the others of this iteration. `answer_size`: its bytes in the read budget, until they
        are sent."""
        if self.is_closed:
            if answer_size:
                self.share.release(answer_size)
            return
        self._answers.size += answer_size
        self.send(encode_response(response))

    def send(self, frames: list[Buffer]) -> None:
        """Send responses that are encoded already, with the others of this iteration."""
        if self.is_closed:
            return
        answers = self._answers
        answers.gathered += frames
        if not answers.is_flush_scheduled:
            answers.is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run part of a request in the background. It is cancelled when the client disconnects."""
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._task_ended)
        if len(self._tasks) == TASKS_MAX:
            self._has_many_tasks = True
            self.update_reading()

    def close(self) -> None:
        """Flush, then shut down our direction; the peer gets `LINGER_S` to fetch pending answers. Idempotent.

        Closing at once while received bytes are unread would make the system reset the connection, and the peer would
        lose the last answers.
        """
        if self.is_closed or self._transport is None:
            return
        self._flush(is_all=True)
        self._set_closed()
        if self._transport.is_closing():
            return
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()  # TLS sends its own closing message
        self._linger = self._loop.call_later(LINGER_S, self._transport.abort)

    def start_tls(self, request: StartTlsRequest) -> None:
        """Answer the request, and start encryption if possible. This class never does. Source: wire-protocol 5.3."""
        self.respond(StartTlsResponse(request.version, request.txn_id, Status.BAD_REQUEST))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def update_reading(self) -> None:
        """Pause or resume reading, after one of the reasons has changed."""
        answers = self._answers
        is_left = answers.is_paused or (answers.is_slow and self.share.is_waiting)
        should_pause = (self._surroundings.intake.is_paused or is_left or self._has_many_tasks) and not self.is_closed
        if should_pause is self._is_reading_paused or self._transport is None or self._transport.is_closing():
            return
        self._is_reading_paused = should_pause
        if should_pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # -- what the transport calls --------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop has no equivalent by name
        transport.set_write_buffer_limits(high=UNSENT_SIZE_MIN)
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            self.peer = f"{address[0]}:{address[1]}"
        self._surroundings.intake.joined(self)
        self.update_reading()

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return  # Our side is closed; this only makes room for the peer's own end.
        if self._is_reading_paused and self._transport is not None:
            # uvloop starts to read after `connection_made` even if that paused: pause again.
            self._transport.pause_reading()
        try:
            requests = self._decoder.feed(data)
        except RemoteProtocolError as error:
            self._surroundings.events.warning("connection.refused", peer=self.peer, error=error)
            self.close()
            return
        held_size = self._decoder.frames.held_size
        if held_size > PARTIAL_SIZE_MIN or self._holds_partial_frame:
            self._holds_partial_frame = held_size > PARTIAL_SIZE_MIN
            size = held_size if self._holds_partial_frame else 0
            self._surroundings.intake.partial_frames.changed(self, size, is_new=bool(requests))
        self._service.handle(self, requests)
        if self._answers.is_slow:
            self.update_reading()

    def pause_writing(self) -> None:
        self._answers.slowed(self._loop.time())
        self._watch_stall()
        self.share.stuck(True)
        self.update_reading()

    def resume_writing(self) -> None:
        answers = self._answers
        answers.resumed()
        self._flush()
        if answers.is_slow:
            return  # The backlog is more than the transport accepts.
        self.share.stuck(False)
        self.update_reading()

    def eof_received(self) -> None:
        """Handle the end of the peer's requests: pending answers are sent, then the transport closes."""
        self._flush(is_all=True)

    def connection_lost(self, error: Exception | None) -> None:
        self._set_closed()
        self._transport = None
        self._answers.drop()
        self._surroundings.intake.left(self)
        if self._answers.stall_check is not None:
            self._answers.stall_check.cancel()
        if self._linger is not None:
            self._linger.cancel()

    # -- what a stage before the service or the transport uses ---------------------------------------------------
    def _continue_on(self, transport: asyncio.Transport, decoder: RequestDecoder, part_size: int) -> None:
        """Replace the transport, which reads. `part_size`: bytes that it gets at once."""
        self._transport, self._decoder, self._answers.part_size = transport, decoder, part_size
        self._is_reading_paused = False
        transport.set_write_buffer_limits(high=UNSENT_SIZE_MIN)

    # -- inside --------------------------------------------------------------------------------------------------
    def _flush(self, *, is_all: bool = False) -> None:
        """Give the transport the pending output, as long as the peer consumes it, or unconditionally."""
        answers, transport = self._answers, self._transport
        answers.is_flush_scheduled = False
        if transport is None or transport.is_closing():
            answers.drop_gathered()
            return
        answers.write_to(transport, is_all=is_all)
        if not answers.is_slow:
            if answers.size:
                answers.release(answers.size, is_closed=self.is_closed)
        elif not answers.is_paused and answers.unsent(transport) > UNSENT_SIZE_MAX:
            answers.is_paused = True
            self.update_reading()

    def _watch_stall(self) -> None:
        """Close the connection of a peer that consumes nothing for too long."""
        if self._transport is None:
            return
        size, seconds = self._answers.size, self._answers.stalled_s(self._loop.time(), self._transport)
        if seconds >= (STALL_PRESSED_S if size and self.share.is_pressed else STALL_S):
            self._surroundings.events.warning(
                "connection.stalled", peer=self.peer, answer_size=size, seconds=round(seconds, 1)
            )
            self.abort()
        else:
            self._answers.stall_check = self._loop.call_later(STALL_CHECK_S, self._watch_stall)

    def _set_closed(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        for task in list(self._tasks):
            task.cancel()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if self._has_many_tasks and len(self._tasks) <= TASKS_MAX // 2:
            self._has_many_tasks = False
            self.update_reading()
        if not task.cancelled() and (error := task.exception()) is not None:
            # Handlers answer every error, so this is a bug in the bookie; the client must not wait for its answer.
            self._surroundings.events.error("request.broken", peer=self.peer, error=error)
            self.abort()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "paused" if self._is_reading_paused else "open"
        return f"<Connection {self.peer} {state}, {len(self._tasks)} requests waiting>"


class RejectedConnection(asyncio.Protocol):
    """A connection that arrived before the bookie was ready, or while it stops. Source: wire-protocol 1.1."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
