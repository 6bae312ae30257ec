"""A connection of a bookie that encrypts, or that authenticates its peer. Source: wire-protocol 5.1, 5.3.

Two stages stand between the socket and the handlers, and each is removed for good once it is done: the gate
(`wire/auth.py`), which stands in for the service until the peer may be served, and TLS, which stands in for the
transport. A served connection then costs the same as any other, plus the encryption itself.

After a positive answer to START_TLS the next byte should be TLS. Java clients that also authenticate may have AUTH
frames in flight then: a frame begins with the high byte of its length, 0x00, and a TLS record with 0x16, so the two
can be distinguished. Such frames are accepted and answered inside TLS; other plain text ends the connection.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence

from bookies.bookie.transport.connection import UNSENT_SIZE_MIN, Connection, Surroundings, UserService
from bookies.bookie.transport.pressure import ReadShare
from bookies.bookie.transport.security import Security
from bookies.errors import RemoteProtocolError, Status, TlsFailed
from bookies.wire.auth import Close, Effect, Encrypt, Refused, Send
from bookies.wire.framing import PREFIX_SIZE
from bookies.wire.messages import (
    AuthRequest,
    BatchReadResponse,
    ReadResponse,
    Request,
    Response,
    StartTlsRequest,
    StartTlsResponse,
)
from bookies.wire.server import RequestDecoder

TLS_RECORD = 0x16  # first byte of a handshake
HANDSHAKE_S = 10.0  # a peer that requests TLS and does not begin is closed
GATE_S = 30.0  # a peer that has not authenticated by then is closed
NO_TLS = "it requested TLS and then sent something else"
EARLY_FRAME_SIZE_MAX = 16 << 10  # bytes of a frame between START_TLS and TLS


class _Stage(enum.Enum):
    PLAIN = "plain"
    DIRECT = "TLS from the first byte"
    ASKED = "TLS requested"  # START_TLS is answered; TLS should follow
    SHAKING = "shaking hands"
    ENCRYPTED = "encrypted"


class SecureConnection(Connection):
    """A `Connection` with the two stages of this module. `is_direct`: TLS begins with the first byte."""

    def __init__(self, security: Security, is_direct: bool, surroundings: Surroundings, share: ReadShare) -> None:
        super().__init__(surroundings, share)
        self._security = security
        self._gate = security.gate()
        self._decoder = RequestDecoder(surroundings.frame_size_max, stops_at_start_tls=security.encryption is not None)
        if not self._gate.is_open:
            self._service = _Guard()
        self._user_service: UserService | None = None
        self._stage = _Stage.DIRECT if is_direct else _Stage.PLAIN
        self._is_held = False  # answers wait until they can be encrypted
        self._early = b""  # bytes that arrived while the stage could not use them
        self._plain_size = 0  # of answers that were sent before the handshake and are not consumed yet
        self._is_lost = False
        self._is_shaking = False  # the handshake runs, and will report how it ended
        self._deadline: asyncio.TimerHandle | None = None  # of the peer's part of the handshake to come
        self._gate_deadline: asyncio.TimerHandle | None = None

    def guard(self, requests: Sequence[Request]) -> None:
        """Pass on what the gate lets through."""
        for position, request in enumerate(requests):
            if self.is_closed:
                return
            if self._let_in():
                self._service.handle(self, list(requests[position:]))
                return
            self._carry_out(self._gate.received(request))
        self._let_in()

    def start_tls(self, request: StartTlsRequest) -> None:
        """See `Connection.start_tls`."""
        if self._security.encryption is None or self._stage is not _Stage.PLAIN:
            super().start_tls(request)
            return
        self.respond(StartTlsResponse(request.version, request.txn_id, Status.OK))
        self._flush(is_all=True)  # Later output is encrypted.
        self._plain_size = self._answers.size
        self._stage = _Stage.ASKED
        self._expect_handshake()
        self._hear_early(self._decoder.take_rest())

    def respond(self, response: Response, answer_size: int = 0) -> None:
        """See `Connection.respond`."""
        if self._user_service is not None and isinstance(response, ReadResponse | BatchReadResponse):
            self._user_service.answered(answer_size)
        super().respond(response, answer_size)

    # -- what the transport calls --------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._gate.is_open:
            self._gate_deadline = self._loop.call_later(GATE_S, self._refuse_stranger)
        if self._stage is _Stage.DIRECT:
            self._expect_handshake()

    def data_received(self, data: bytes) -> None:
        match self._stage:
            case _ if self.is_closed:
                return
            case _Stage.DIRECT:
                self._begin_tls(data)
            case _Stage.ASKED:
                self._hear_early(data)
            case _Stage.SHAKING:
                self._early += data  # The handshake is over, and its callback is due.
            case _:
                super().data_received(data)

    def resume_writing(self) -> None:
        if self._is_held:
            size, self._plain_size = self._plain_size, 0
            self._answers.release(size, is_closed=self.is_closed)
        super().resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        self._stop_deadline()
        if self._gate_deadline is not None:
            self._gate_deadline.cancel()
        if not self._is_shaking:  # otherwise the handshake reports the reason
            super().connection_lost(error)

    # -- inside --------------------------------------------------------------------------------------------------
    def _let_in(self) -> bool:
        """Remove the gate if it is open."""
        if self._gate.is_open:
            self._service, admit = self._surroundings.service, self._surroundings.admit
            if admit is not None and self._gate.user:
                self._service = self._user_service = admit(self, self._gate.user)
            if self._gate_deadline is not None:
                self._gate_deadline.cancel()
        return self._gate.is_open

    def _flush(self, *, is_all: bool = False) -> None:
        if self._is_held:
            self._answers.is_flush_scheduled = False
        else:
            super()._flush(is_all=is_all)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(response):
                    self.respond(response)
                case Refused(reason, detail):
                    self._security.refused(self.peer, reason, detail)
                case Encrypt(request):
                    self.start_tls(request)
                case Close():
                    self.close()

    def _expect_handshake(self) -> None:
        """Hold answers back for TLS, which the peer has to begin soon."""
        self._is_held = True
        self._deadline = self._loop.call_later(HANDSHAKE_S, self._refuse, "it did not begin the TLS handshake in time")

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _hear_early(self, data: bytes) -> None:
        """Handle the bytes after START_TLS: frames with AUTH messages, then the client's part of the handshake."""
        self._early += data
        while self._early and self._early[0] != TLS_RECORD and not self.is_closed:
            end = PREFIX_SIZE + int.from_bytes(self._early[:PREFIX_SIZE], "big")
            if len(self._early) < PREFIX_SIZE:
                return
            if end > EARLY_FRAME_SIZE_MAX:
                self._refuse(NO_TLS)
                return
            if len(self._early) < end:
                return
            frame, self._early = self._early[:end], self._early[end:]
            try:
                requests = self._decoder.feed(frame)
            except RemoteProtocolError:
                requests = []
            if not requests or not all(isinstance(request, AuthRequest) for request in requests):
                self._refuse(NO_TLS)
                return
            self._service.handle(self, requests)
        if self._early and not self.is_closed:
            received, self._early = self._early, b""
            self._begin_tls(received)

    def _refuse_stranger(self) -> None:
        """Close a peer that does not authenticate in time: connections are few, and others wait for its place."""
        if not self._gate.is_open and not self.is_closed:
            self._refuse(f"{self._gate.missing} in time")

    def _refuse(self, reason: str) -> None:
        self._stop_deadline()
        self._security.refused(self.peer, reason)
        self.close()

    def _begin_tls(self, received: bytes) -> None:
        """Begin the handshake with `received`, its first bytes. Later bytes wait until TLS can accept them."""
        assert self._transport is not None
        self._stop_deadline()
        self._stage = _Stage.SHAKING
        self._transport.pause_reading()
        self.start(self._shake_hands(received))

    async def _shake_hands(self, received: bytes) -> None:
        assert self._transport is not None
        assert self._security.encryption is not None
        self._is_shaking = True
        error: TlsFailed | None = None
        transport: asyncio.Transport | None = None
        try:
            transport = await self._security.encryption.encrypt(self._transport, self, received=received)
        except TlsFailed as failure:
            error = failure
            if not self.is_closed:
                self._security.refused(self.peer, failure.message)
        finally:
            self._is_shaking = False
            self._stage = _Stage.ENCRYPTED
            if transport is None or self._is_lost:
                self.connection_lost(error)  # No other callback will come.
        if transport is not None and not self._is_lost:
            self._encrypted(transport)

    def _encrypted(self, transport: asyncio.Transport) -> None:
        decoder = RequestDecoder(self._surroundings.frame_size_max)
        # TLS passes on all data it gets, and reports only what the inner transport refuses.
        self._continue_on(transport, decoder, part_size=UNSENT_SIZE_MIN)
        self._is_held = False
        if self._answers.is_slow:
            self.resume_writing()
        if not self._gate.is_open:
            certificate = transport.get_extra_info("peercert")
            self._carry_out(self._gate.encrypted(certificate.get("subject") if certificate else None))
            self._let_in()
        early, self._early = self._early, b""
        if early:
            super().data_received(early)
        self.update_reading()
        self._flush()


class _Guard:
    """Stands in for the service while the gate is closed."""

    def handle(self, connection: Connection, requests: list[Request]) -> None:
        """See `connection.Service`."""
        assert isinstance(connection, SecureConnection)
        connection.guard(requests)
