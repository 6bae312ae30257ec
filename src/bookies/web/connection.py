"""One connection of the HTTP server: HTTP/1.1 by h11, inside TLS if there is any, with bounds on sizes and times.

h11 decides what the bytes mean; this module moves them and keeps the time. Requests of a connection are answered one
after the other. While one is being answered nothing more is read, so a client cannot make the process hold more than
its limits: see operations 5.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, cast
from urllib.parse import parse_qsl, unquote

import h11
from msgspec.structs import replace

from bookies.errors import TlsFailed
from bookies.runtime.events import Events
from bookies.runtime.ports import Encryption
from bookies.web.messages import Problem, Request, Response

HEAD_SIZE_MAX = 16 << 10  # bytes of request line and headers
BODY_SIZE_MAX = 64 << 10  # bytes of a body that is not data
UNSENT_SIZE_MAX = 256 << 10  # bytes that wait for the client before a streamed body pauses
FIRST_BYTE_S = 5.0  # from the connection to the first byte
REQUEST_S = 30.0  # from the first byte to the end of the request, and for a handler
IDLE_S = 60.0  # between two requests
SLOW_S = 60.0  # for a client to fetch a part of an answer


class Service(Protocol):
    """The part of a server that answers the requests of its connections."""

    def admit(self, request: Request) -> int:
        """Return the bytes that the body of a request may have, of which only the head is known. Raises `Problem`."""

    def reserve(self, size: int) -> bool:
        """Count bytes of bodies; negative: they are released. Report whether there is memory for them."""

    async def handle(self, request: Request) -> Response:
        """Answer a request. Raises `Problem` alone."""

    def date(self) -> str:
        """Return the header `Date`."""


class _Body:
    """The body that arrives on one connection. It counts against the memory for all until `release`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._data = bytearray()
        self._size_max = 0
        self._reserved = 0

    def begin(self, size_max: int, size: int) -> None:
        """Begin a body. `size`: as its sender claims. Raises `Problem`."""
        self._size_max = size_max
        if size > size_max:
            raise Problem(413, f"the body has {size:,} bytes, and at most {size_max:,} are accepted")

    def add(self, data: bytes) -> None:
        """Raises `Problem` if there is too much of it, or no memory for it now."""
        if len(self._data) + len(data) > self._size_max:
            raise Problem(413, f"the body is larger than {self._size_max:,} bytes")
        if not self._service.reserve(len(data)):
            text = "other requests use the memory for bodies"
            raise Problem(429, text, headers={"Retry-After": "1"})
        self._reserved += len(data)
        self._data += data

    def take(self) -> bytes:
        """Return the complete body."""
        data, self._data = bytes(self._data), bytearray()
        return data

    def release(self) -> None:
        """Give its memory back."""
        self._data = bytearray()
        self._service.reserve(-self._reserved)
        self._reserved = 0


class _Handshake:
    """The TLS handshake of a connection. `is_due`: its first byte has not arrived.

    `early`: what arrives between its end and its callback.
    """

    def __init__(self, encryption: Encryption) -> None:
        self.encryption = encryption
        self.is_due = True
        self.early = b""
        self.task: asyncio.Task[None] | None = None


class _Pause:
    """A wait for the client, `since` a loop time. `is_in_request`: the first byte of the next request has arrived."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.since = loop.time()
        self.is_in_request = False
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float, timed_out: Callable[[], None]) -> None:
        self.end()
        self.since = self._loop.time()
        self._timer = self._loop.call_later(seconds, timed_out)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class HttpConnection(asyncio.Protocol):
    """One accepted connection. `on_end`: called once, when it is closed. `encryption`: None for plain text."""

    def __init__(
        self,
        service: Service,
        events: Events,
        on_end: Callable[[HttpConnection], None],
        encryption: Encryption | None = None,
    ) -> None:
        self._service = service
        self._events = events
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_SIZE_MAX)
        self._transport: asyncio.Transport | None = None
        self._tls = None if encryption is None else _Handshake(encryption)
        self._peer = ""
        self._subject: Any = None  # of the client's certificate
        self._request: Request | None = None  # until its end has arrived
        self._body = _Body(service)
        self._pause = _Pause(self._loop)
        self._answering: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def is_answering(self) -> bool:
        """Report whether a request is being answered."""
        return self._answering is not None

    @property
    def waits_since(self) -> float:
        """Loop time since which the connection waits for the client."""
        return self._pause.since

    # -- what the transport calls --------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self._peer = str(name[0]) if name else ""
        self._begin(self._transport)

    def _begin(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=UNSENT_SIZE_MAX)
        self._wait(FIRST_BYTE_S)

    async def _encrypt(self, plain: asyncio.Transport, tls: _Handshake, received: bytes) -> None:
        try:
            transport = await tls.encryption.encrypt(plain, self, received=received)
        except TlsFailed as error:
            tls.task = None
            self._events.info("http.no_tls", peer=self._peer, cause=error.message)
            self.connection_lost(error)  # no other callback will come
            return
        tls.task = None
        if self._transport is None:  # lost meanwhile
            transport.abort()
            return
        certificate = transport.get_extra_info("peercert")
        self._subject = certificate.get("subject") if certificate else None
        self._begin(transport)
        early, tls.early = tls.early, b""
        if early:
            self.data_received(early)

    def data_received(self, data: bytes) -> None:
        tls = self._tls
        if tls is not None and tls.task is not None:
            tls.early += data
            return
        if tls is not None and tls.is_due and self._transport is not None:
            tls.is_due = False
            self._pause.end()
            self._transport.pause_reading()
            tls.task = self._loop.create_task(self._encrypt(self._transport, tls, data), name="HTTPS")
            return
        if not self._pause.is_in_request:
            self._pause.is_in_request = True  # the time for a request counts from its first byte
            self._wait(REQUEST_S)
        try:
            self._protocol.receive_data(data)
            self._advance()
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            self._refuse(Problem(status, f"the request is malformed: {error}", headers={"Connection": "close"}))

    def eof_received(self) -> bool:
        """Note that the client sends no more. The connection stays until a request in progress is answered."""
        try:
            self._protocol.receive_data(b"")
            self._advance()
        except h11.RemoteProtocolError:
            return False
        return self._answering is not None

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._tls is not None and self._tls.task is not None:
            self._tls.task.cancel()
        self._pause.end()
        self._writable.set()
        if self._answering is not None:
            self._answering.cancel()
        self._body.release()
        self._on_end(self)

    def close(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    # -- requests ------------------------------------------------------------------------------------------------
    def _advance(self) -> None:
        """Take what has arrived, up to the end of one request. Raises `h11.RemoteProtocolError`."""
        while self._answering is None and self._transport is not None:
            event = self._protocol.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            if isinstance(event, h11.ConnectionClosed):
                self._transport.close()
                return
            if isinstance(event, h11.Request):
                names = [name for name, _ in event.headers]
                if b"transfer-encoding" in names and b"content-length" in names:
                    raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding", error_status_hint=400)
                if len(event.target) + sum(len(name) + len(value) for name, value in event.headers) > HEAD_SIZE_MAX:
                    self._refuse(Problem(431, f"request line and headers have more than {HEAD_SIZE_MAX:,} bytes"))
                    return
                if not self._admit(event):
                    return
                if self._protocol.they_are_waiting_for_100_continue:
                    self._write(self._protocol.send(h11.InformationalResponse(status_code=100, headers=[])))
            elif isinstance(event, h11.Data):
                try:
                    self._body.add(event.data)
                except Problem as problem:
                    self._refuse(problem)
                    return
            elif isinstance(event, h11.EndOfMessage):
                request, self._request = self._request, None
                assert request is not None, "a body without a head"
                self._transport.pause_reading()
                self._pause.end()
                self._answering = self._loop.create_task(self._answer(request), name="HTTP request")

    def _admit(self, request: Any) -> bool:
        """Begin a request, or refuse its head."""
        parsed = replace(parse(request), peer=self._peer, subject=self._subject)
        try:
            self._body.begin(self._service.admit(parsed), int(parsed.headers.get("content-length", "0")))
        except Problem as problem:
            self._refuse(problem)
            return False
        self._request = parsed
        return True

    async def _answer(self, request: Request) -> None:
        response: Response
        parsed = replace(request, body=self._body.take())
        try:
            async with asyncio.timeout(REQUEST_S):
                response = await self._service.handle(parsed)
        except Problem as problem:
            response = problem.response(parsed.path)
        except TimeoutError:
            response = _late(parsed).response(parsed.path)
        except Exception as error:  # noqa: BLE001  (our mistake, in one request: the process goes on)
            self._events.error("http.broken", path=parsed.path, error=error)
            response = Problem(500, f"{type(error).__name__}: {error}").response(parsed.path)
        try:
            await self._send(response, is_head=parsed.method == "HEAD")
        except (OSError, TimeoutError, h11.LocalProtocolError) as error:
            self._events.warning("http.cut", path=parsed.path, error=error)
            self.close()
            return
        except Exception as error:  # noqa: BLE001  (a streamed body failed: the client must see that it is incomplete)
            self._events.error("http.broken", path=parsed.path, error=error)
            self.close()
            return
        self._next()

    async def _send(self, response: Response, *, is_head: bool) -> None:
        body = response.body
        given = {
            "Content-Type": response.content_type,
            "Date": self._service.date(),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
            **response.headers,
        }
        headers = list(given.items())
        if self._tls is not None:
            headers.append(("Strict-Transport-Security", "max-age=31536000"))
        if isinstance(body, bytes) and response.status != 304:
            headers.append(("Content-Length", str(len(body))))
        self._write(self._protocol.send(h11.Response(status_code=response.status, headers=headers)))
        if isinstance(body, bytes):
            if not is_head and body:
                self._write(self._protocol.send(h11.Data(data=body)))
        else:
            try:
                if not is_head:
                    await self._stream(body)
            finally:
                if (aclose := getattr(body, "aclose", None)) is not None:
                    await aclose()
        self._write(self._protocol.send(h11.EndOfMessage()))
        await self._drain()

    async def _stream(self, body: AsyncIterator[bytes]) -> None:
        async for piece in body:
            self._write(self._protocol.send(h11.Data(data=piece)))
            await self._drain()

    async def _drain(self) -> None:
        """Wait until the client has fetched most of what was written. Raises TimeoutError, ConnectionError."""
        async with asyncio.timeout(SLOW_S):
            await self._writable.wait()
        if self._transport is None:
            raise ConnectionResetError("the client has disconnected")

    def _next(self) -> None:
        """Continue with the connection's next request, or close it."""
        self._answering = None
        self._body.release()
        if self._transport is None:
            return
        if self._protocol.our_state is not h11.DONE or self._protocol.their_state is not h11.DONE:
            self._transport.close()
            return
        self._protocol.start_next_cycle()
        self._pause.is_in_request = bool(self._protocol.trailing_data[0])
        self._wait(REQUEST_S if self._pause.is_in_request else IDLE_S)
        self._transport.resume_reading()
        try:
            self._advance()
        except h11.RemoteProtocolError as error:
            self._refuse(Problem(error.error_status_hint, f"the request is malformed: {error}"))

    def _refuse(self, problem: Problem) -> None:
        """Answer a request that is not read to its end, and close the connection."""
        if self._transport is None or self._answering is not None:
            self.close()
            return
        if self._protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = problem.response("")
            assert isinstance(response.body, bytes)
            headers = [
                ("Content-Type", response.content_type),
                ("Date", self._service.date()),
                ("Content-Length", str(len(response.body))),
                *{**response.headers, "Connection": "close"}.items(),
            ]
            self._write(self._protocol.send(h11.Response(status_code=response.status, headers=headers)))
            self._write(self._protocol.send(h11.Data(data=response.body)))
        self._transport.close()

    def _write(self, data: bytes | None) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    # -- time ----------------------------------------------------------------------------------------------------
    def _wait(self, seconds: float) -> None:
        """Close the connection unless it makes progress within this time."""
        self._pause.begin(seconds, self._timed_out)

    def _timed_out(self) -> None:
        if self._pause.is_in_request:
            self._refuse(Problem(408, f"the request did not arrive within {REQUEST_S:.0f} s"))
        else:
            self.close()


def parse(request: Any) -> Request:
    """Return h11's request as one of ours. A path counts the same with a slash at its end."""
    target = request.target.decode("ascii", "replace")
    path, _, query = target.partition("?")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(request.headers)}
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    path = unquote(path).rstrip("/") or "/"
    return Request(request.method.decode("ascii"), path, parameters, headers.get("host", ""), headers)


def _late(request: Request) -> Problem:
    """Return the answer to a request that takes too long. A change may have taken effect, or do so later."""
    text, headers = f"no answer within {REQUEST_S:.0f} s", {"Retry-After": "5"}
    if request.method in ("GET", "HEAD"):
        return Problem(503, text, headers=headers)
    return Problem(503, f"{text}: it may or may not have taken effect", headers={**headers, "Bk-Outcome": "unknown"})
