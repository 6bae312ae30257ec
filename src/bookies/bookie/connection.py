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
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, cast

from bookies.bookie.pressure import PARTIAL_SIZE_MIN, Intake, ReadShare
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


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Objects that all connections of a bookie share."""

    service: Service
    intake: Intake
    events: Events
    frame_size_max: int


class Connection(asyncio.Protocol):
    """One accepted connection.

    `share`: its part of the read budget, informed when the peer consumes answers to reads and when it stops doing so.
    """

    def __init__(self, surroundings: Surroundings, share: ReadShare) -> None:
        self.is_closed = False
        self.share = share
        self.peer = "?"
        self._service = surroundings.service
        self._intake = surroundings.intake
        self._events = surroundings.events
        self._decoder = RequestDecoder(surroundings.frame_size_max)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._output: list[Buffer] = []
        self._kept: deque[Buffer] = deque()  # of earlier iterations, before `_output`, while the peer is slow
        self._kept_size = 0
        self._part_size: int | None = None  # bytes that a transport gets at once; None: no limit
        self._is_flush_scheduled = False
        self._is_slow = False  # the peer does not consume its answers
        self._is_writing_paused = False
        self._is_reading_paused = False
        self._holds_partial_frame = False
        self._answer_size = 0
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._has_many_tasks = False
        self._linger: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._taken_at = 0.0  # when the peer last consumed something, while it is slow
        self._accepted_size = 0  # bytes written so far, and the most of them that the peer was seen to have
        self._taken_size = 0

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
        self._output += encode_response(response)
        self._answer_size += answer_size
        self._schedule_flush()

    def send(self, frames: list[Buffer]) -> None:
        """Send responses that are encoded already, with the others of this iteration."""
        if not self.is_closed:
            self._output += frames
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
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
        is_left = self._is_writing_paused or (self._is_slow and self.share.is_waiting)
        should_pause = (self._intake.is_paused or is_left or self._has_many_tasks) and not self.is_closed
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
        self._intake.joined(self)
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
            self._events.warning("connection.refused", peer=self.peer, error=error)
            self.close()
            return
        held_size = self._decoder.held_size
        if held_size > PARTIAL_SIZE_MIN or self._holds_partial_frame:
            self._holds_partial_frame = held_size > PARTIAL_SIZE_MIN
            size = held_size if self._holds_partial_frame else 0
            self._intake.partial_frames.changed(self, size, is_new=bool(requests))
        self._service.handle(self, requests)
        if self._is_slow:
            self.update_reading()

    def pause_writing(self) -> None:
        self._is_slow = True
        self._taken_at = self._loop.time()
        self._watch_stall()
        self.share.stuck(True)
        self.update_reading()

    def resume_writing(self) -> None:
        self._is_slow = self._is_writing_paused = False
        if self._stall is not None:
            self._stall.cancel()
        self._flush()
        if self._is_slow:
            return  # The backlog is more than the transport accepts.
        self.share.stuck(False)
        self.update_reading()

    def eof_received(self) -> None:
        """Handle the end of the peer's requests: pending answers are sent, then the transport closes."""
        self._flush(is_all=True)

    def connection_lost(self, error: Exception | None) -> None:
        self._set_closed()
        self._transport = None
        self._drop_output()
        self._intake.left(self)
        for timer in (self._linger, self._stall):
            if timer is not None:
                timer.cancel()

    # -- what a stage before the service or the transport uses ---------------------------------------------------
    def _continue_on(self, transport: asyncio.Transport, decoder: RequestDecoder, part_size: int) -> None:
        """Replace the transport, which reads. `part_size`: bytes that it gets at once."""
        self._transport, self._decoder, self._part_size = transport, decoder, part_size
        self._is_reading_paused = False
        transport.set_write_buffer_limits(high=UNSENT_SIZE_MIN)

    # -- inside --------------------------------------------------------------------------------------------------
    def _flush(self, *, is_all: bool = False) -> None:
        """Give the transport the pending output, as long as the peer consumes it, or unconditionally."""
        self._is_flush_scheduled = False
        output, self._output = self._output, []
        if self._transport is None or self._transport.is_closing():
            if not self._is_slow:  # Otherwise the unconsumed rest counts until the connection is closed.
                self._drop_output()
            return
        size = sum(map(len, output))
        if len(output) > 1 and size <= JOIN_SIZE_MAX:
            output = [b"".join(output)]
        self._kept += output
        self._kept_size += size
        self._accepted_size += size
        while self._kept and (is_all or not self._is_slow):
            buffer = self._kept.popleft()
            if self._part_size is not None and len(buffer) > self._part_size:
                self._kept.appendleft(memoryview(buffer)[self._part_size :])
                buffer = memoryview(buffer)[: self._part_size]
            self._kept_size -= len(buffer)
            self._transport.write(buffer)  # May find that the peer is slow.
        if not self._is_slow:
            self._answers_went(self._answer_size)
        elif not self._is_writing_paused and self._unsent() > UNSENT_SIZE_MAX:
            self._is_writing_paused = True
            self.update_reading()

    def _unsent(self) -> int:
        """Return the bytes in our memory that wait for the socket."""
        assert self._transport is not None
        return self._kept_size + self._transport.get_write_buffer_size()

    def _drop_output(self) -> None:
        """Discard the output: it cannot be delivered any more."""
        self._output.clear()
        self._kept.clear()
        size, self._answer_size, self._kept_size = self._answer_size, 0, 0
        if size:
            self.share.release(size)

    def _watch_stall(self) -> None:
        """Close the connection of a peer that consumes nothing for too long."""
        if self._transport is None:
            return
        now, unsent_size = self._loop.time(), self._unsent() + unacknowledged(self._transport)
        if unsent_size == 0 or self._accepted_size - unsent_size > self._taken_size:
            self._taken_at = now
        self._taken_size = max(self._taken_size, self._accepted_size - unsent_size)
        seconds = now - self._taken_at
        if seconds >= (STALL_PRESSED_S if self._answer_size and self.share.is_pressed else STALL_S):
            self._events.warning(
                "connection.stalled", peer=self.peer, answer_size=self._answer_size, seconds=round(seconds, 1)
            )
            self.abort()
        else:
            self._stall = self._loop.call_later(STALL_CHECK_S, self._watch_stall)

    def _answers_went(self, size: int) -> None:
        """Release `size` bytes of answers that were handed to the socket."""
        if size:
            self._answer_size -= size
            (self.share.release if self.is_closed else self.share.sent)(size)

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
            self._events.error("request.broken", peer=self.peer, error=error)
            self.abort()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "paused" if self._is_reading_paused else "open"
        return f"<Connection {self.peer} {state}, {len(self._tasks)} requests waiting>"


class RejectedConnection(asyncio.Protocol):
    """A connection that arrived before the bookie was ready, or while it stops. Source: wire-protocol 1.1."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
