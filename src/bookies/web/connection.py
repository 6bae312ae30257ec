"""One connection of the HTTP server: HTTP/1.1 by h11, inside TLS if there is any, with bounds on sizes and times.

h11 decides what the bytes mean; this module moves them and keeps the time. Requests of a connection are answered one
after the other. While one is being answered nothing more is read, so a client cannot make the process hold more than
its limits: see operations 5.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, cast
from urllib.parse import parse_qsl, unquote

import h11

from bookies.errors import TlsFailed
from bookies.runtime.events import Events
from bookies.runtime.ports import Encryption
from bookies.web.messages import Problem, Request, Response

HEAD_SIZE_MAX = 16 << 10  # bytes of request line and headers
BODY_SIZE_MAX = 64 << 10  # bytes of a body
UNSENT_SIZE_MAX = 256 << 10  # bytes that wait for the client before a streamed body pauses
FIRST_BYTE_S = 5.0  # from the connection to the first byte
REQUEST_S = 30.0  # from the first byte to the end of the request, and for a handler
IDLE_S = 60.0  # between two requests
SLOW_S = 60.0  # for a client to fetch a part of an answer

Handle = Callable[[Request], Awaitable[Response]]


class _Handshake:
    """The TLS handshake of a connection. `is_due`: its first byte has not arrived.

    `early`: what arrives between its end and its callback.
    """

    def __init__(self, encryption: Encryption) -> None:
        self.encryption = encryption
        self.is_due = True
        self.early = b""
        self.task: asyncio.Task[None] | None = None


class _Incoming:
    """A request that is arriving. `head`: the event of h11."""

    def __init__(self, head: Any) -> None:
        self.head = head
        self.body = bytearray()


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
    """One accepted connection. `handle`: answers a request, and raises `Problem` alone. `date`: returns that header.

    `on_end`: called once, when it is closed. `encryption`: None for plain text.
    """

    def __init__(
        self,
        handle: Handle,
        date: Callable[[], str],
        events: Events,
        on_end: Callable[[HttpConnection], None],
        encryption: Encryption | None = None,
    ) -> None:
        self._handle = handle
        self._date = date
        self._events = events
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_SIZE_MAX)
        self._transport: asyncio.Transport | None = None
        self._tls = None if encryption is None else _Handshake(encryption)
        self._peer = ""
        self._subject: Any = None  # of the client's certificate
        self._request: _Incoming | None = None  # until its end has arrived
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
                self._request = _Incoming(event)
                if self._protocol.they_are_waiting_for_100_continue:
                    self._write(self._protocol.send(h11.InformationalResponse(status_code=100, headers=[])))
            elif isinstance(event, h11.Data) and self._request is not None:
                if len(self._request.body) + len(event.data) > BODY_SIZE_MAX:
                    self._refuse(Problem(413, f"the body is larger than {BODY_SIZE_MAX:,} bytes"))
                    return
                self._request.body += event.data
            elif isinstance(event, h11.EndOfMessage) and self._request is not None:
                request, self._request = self._request, None
                self._transport.pause_reading()
                self._pause.end()
                self._answering = self._loop.create_task(self._answer(request), name="HTTP request")

    async def _answer(self, request: _Incoming) -> None:
        response: Response
        parsed = replace(parse(request.head), body=bytes(request.body), peer=self._peer, subject=self._subject)
        request.body.clear()
        try:
            async with asyncio.timeout(REQUEST_S):
                response = await self._handle(parsed)
        except Problem as problem:
            response = problem.response(parsed.path)
        except TimeoutError:
            response = Problem(503, f"no answer within {REQUEST_S:.0f} s", headers={"Retry-After": "5"}).response(
                parsed.path
            )
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
            "Date": self._date(),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
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
                ("Date", self._date()),
                ("Content-Length", str(len(response.body))),
                ("Connection", "close"),
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
