"""Authentication of a connection, as state machines: a bookie's demands, and a client's opening steps.

A bookie's connection begins closed behind a `BookieGate`, unless the bookie demands nothing. The bookie's *method*
opens it: none at all, SASL (`wire/sasl/`, over AUTH messages) or the client's certificate (`RoleExchange`, of
Apache's `BookieAuthZFactory`); with `requires_tls` the connection has to be encrypted besides. Until then a peer gets
`UNAUTHORIZED` for v2 adds and reads and for everything of v3, and loses the connection for the rest of v2. AUTH and
START_TLS are accepted in either order: a Java client with both does not wait with the one for the other. Once open, a
gate is removed for good.

A client encrypts first, then authenticates, then sends its requests (`ClientOpening`).

Events in, steps out; the caller carries out the steps in their order, and stops at `Close` and `Fail`. Source:
wire-protocol 5.1 to 5.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from bookies.errors import BookKeeperError, Status, TlsFailed, Unauthorized
from bookies.wire.messages import (
    AddRequest,
    AddResponses,
    AuthRequest,
    AuthResponse,
    BareResponse,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    InvalidRequest,
    ListEntriesRequest,
    Operation,
    ReadLacRequest,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    StartTlsRequest,
    StartTlsResponse,
    WriteLacRequest,
)

SASL = "sasl"
CERTIFICATE_ROLES = "BookieAuthZFactory"
AUTH_DISABLED = "AuthDisabledPlugin"
V3 = 3

NOT_AUTHENTICATED = "it has not authenticated"
NOT_ENCRYPTED = "its connection is not encrypted"
OTHER_METHOD = "it authenticates by other means than ours"

OPERATIONS: dict[type, Operation] = {
    ReadRequest: Operation.READ,
    WriteLacRequest: Operation.WRITE_LAC,
    ReadLacRequest: Operation.READ_LAC,
    GetBookieInfoRequest: Operation.GET_BOOKIE_INFO,
    ForceLedgerRequest: Operation.FORCE_LEDGER,
    ListEntriesRequest: Operation.LIST_ENTRIES,
}

# fields of a certificate, as Python's ssl module gives them: in the order of DER
Subject = Sequence[Sequence[tuple[str, str]]]


class Send(Struct, frozen=True):
    response: Response


class Refused(Struct, frozen=True):
    """A refusal to log and count. `reason`: one of a few; `detail`: the peer or object that it concerns."""

    reason: str
    detail: str = ""


class Encrypt(Struct, frozen=True):
    """Answer START_TLS, and if the answer is OK use TLS from there on; then call `encrypted`."""

    request: StartTlsRequest


class Close(Struct, frozen=True):
    """Send the pending answers, then close."""


Effect = Send | Refused | Encrypt | Close


class Exchange(Protocol):
    """The authentication of one connection. `plugin`: its name on the wire. `user`: known once it is done; empty: a
    role of the certificate stands for it. `detail`: of a refusal, for the log."""

    plugin: str
    is_done: bool
    user: str
    detail: str

    def received(self, payload: bytes) -> bytes | None:
        """Return the answer to an AUTH message's payload; None: no answer. Raises `Unauthorized`."""

    def encrypted(self, subject: Subject | None) -> None:
        """Note that the connection is encrypted. `subject`: of the peer's verified certificate. Raises
        `Unauthorized`."""


class RoleExchange:
    """The certificate's subject has to be that of a user, or the first role in its OU one of `authorized`.

    `user_of`: returns the user with this subject. Source: wire-protocol 5.3.
    """

    plugin = CERTIFICATE_ROLES

    def __init__(
        self, authorized: Sequence[str], user_of: Callable[[Subject], str | None] = lambda subject: None
    ) -> None:
        self.is_done = False
        self.user = self.detail = ""
        self._authorized = authorized
        self._user_of = user_of

    def received(self, payload: bytes) -> bytes | None:
        """Do not answer, like Apache's plugin."""
        return None

    def encrypted(self, subject: Subject | None) -> None:
        if subject is None:
            raise Unauthorized("it presented no certificate")
        if (user := self._user_of(subject)) is not None:
            self.user, self.is_done = user, True
            return
        roles = roles_of(subject)
        if not roles:
            raise Unauthorized("its certificate names no roles (OU=0:role,role)")
        if roles[0] not in self._authorized:
            raise Unauthorized("the first role in its certificate is not in authorized_roles")
        self.is_done = True


def roles_of(subject: Subject) -> list[str]:
    """Return the roles that a certificate names in its OU: item `0` of `<digits>:<value>` items, separated by
    semicolons.

    Of several OUs the right-most in RFC 2253's order counts, which is the first in the certificate. Empty: none, or
    an OU of another form. Source: wire-protocol 5.3.
    """
    units = [value for names in subject for name, value in names if name == "organizationalUnitName"]
    items: dict[str, str] = {}
    for item in units[0].split(";") if units else []:
        number, colon, value = item.partition(":")
        if not colon or not re.fullmatch("[0-9]+", number):
            return []
        items[number] = value
    return [role for role in items.get("0", "").split(",") if role]


class BookieGate:
    """The gate before one connection of a bookie until its peer is authenticated. `exchange`: None if no method is
    required."""

    def __init__(self, exchange: Exchange | None, *, requires_tls: bool) -> None:
        self.is_open = exchange is None and not requires_tls
        self._exchange = exchange
        self._requires_tls = requires_tls
        self._is_encrypted = False
        self._is_closed = False

    def received(self, request: Request) -> list[Effect]:
        """Return the steps for a request that arrives while the gate is closed."""
        assert not self.is_open
        if self._is_closed:
            return []
        if isinstance(request, AuthRequest):
            effects = self._authenticate(request)
        elif isinstance(request, StartTlsRequest):
            effects = [Encrypt(request)]
        else:
            effects = [*self._refuse(request), Refused(self.missing)]
        self._is_closed = Close() in effects
        self._update()
        return effects

    def encrypted(self, subject: Subject | None) -> list[Effect]:
        """Note that the connection is encrypted. `subject`: of the certificate that the peer showed; None: it showed
        none.

        Apache's bookies send a second, negative answer to START_TLS when the peer is still not authenticated; this
        gate does not, because clients that speak v2 by then cannot read it.
        """
        self._is_encrypted = True
        try:
            if self._is_pending():
                assert self._exchange is not None
                self._exchange.encrypted(subject)
        except Unauthorized as error:
            return [Refused(error.message, text_of(subject or ())[:200])]
        finally:
            self._update()
        return []

    @property
    def user(self) -> str:
        """Return the user of an open gate; empty: no user is required, or none is named."""
        return "" if self._exchange is None else self._exchange.user

    @property
    def missing(self) -> str:
        """Return what keeps the gate closed."""
        return NOT_AUTHENTICATED if self._is_pending() else NOT_ENCRYPTED

    def _is_pending(self) -> bool:
        return self._exchange is not None and not self._exchange.is_done

    def _update(self) -> None:
        self.is_open = not (self._is_closed or self._is_pending() or (self._requires_tls and not self._is_encrypted))

    def _authenticate(self, request: AuthRequest) -> list[Effect]:
        exchange = self._exchange
        if exchange is None or exchange.is_done:
            return [Send(auth_disabled(request))]
        if request.plugin != exchange.plugin:
            refusal = Refused(OTHER_METHOD, request.plugin[:40])
            return [refusal, Close()] if request.version != V3 else [refusal, Send(_bare(request, Operation.AUTH))]
        try:
            token = exchange.received(request.payload)
        except Unauthorized as error:
            bare: list[Effect] = [Send(_bare(request, Operation.AUTH))] if request.version == V3 else []
            return [Refused(error.message, exchange.detail), *bare, Close()]
        if token is None:
            return []
        return [Send(AuthResponse(request.version, request.txn_id, Status.OK, exchange.plugin, token))]

    @staticmethod
    def _refuse(request: Request) -> list[Effect]:
        """Return the steps of a refusal. Source: wire-protocol 5.1, the table."""
        refused = Status.UNAUTHORIZED
        match request:
            case AddRequest() if request.version != V3:
                stretches = request.adds.stretches()
                return [Send(AddResponses(request.version, refused, ledger, ids)) for ledger, ids, _ in stretches]
            case AddRequest():
                return [Send(BareResponse(V3, txn_id, Operation.ADD, refused)) for txn_id in request.txn_ids or ()]
            case ReadRequest() if request.version != V3:
                return [Send(ReadResponse(request.version, 0, refused, request.ledger_id, request.entry_id))]
            case InvalidRequest() if request.version == V3:
                return [Send(_bare(request, request.operation))]
            case InvalidRequest() if request.operation in (Operation.ADD, Operation.READ):
                ids = request.ledger_id, request.entry_id
                return [Send(BareResponse(request.version, request.txn_id, request.operation, refused, *ids))]
            case _ if request.version == V3:
                return [Send(_bare(request, OPERATIONS[type(request)]))]
        return [Close()]


def auth_disabled(request: AuthRequest) -> AuthResponse:
    """Return the answer of a bookie that demands no authentication, or none any more; v2 always as version 2."""
    version = request.version if request.version == V3 else 2
    return AuthResponse(version, request.txn_id, Status.OK, AUTH_DISABLED, b"")


def _bare(request: Request, operation: Operation) -> BareResponse:
    assert not isinstance(request, AddRequest)
    return BareResponse(V3, request.txn_id, operation, Status.UNAUTHORIZED)


def text_of(subject: Subject) -> str:
    r"""Return a name as `commonName=b1, organizationName=x`: the most specific part first, in the order of RFC 2253.

    A comma before a space and a backslash are escaped by one, so no two subjects have the same text.
    """
    parts = [part for names in reversed(subject) for part in names]
    escaped = [(name, value.replace("\\", r"\\").replace(", ", r"\, ")) for name, value in parts]
    return ", ".join(f"{name}={value}" for name, value in escaped)


# -- the client's side -----------------------------------------------------------------------------------------------
class Ask(Struct, frozen=True):
    request: AuthRequest | StartTlsRequest


class BeginTls(Struct, frozen=True):
    """Use TLS from here on; then call `encrypted`."""


class Open(Struct, frozen=True):
    """The connection may be used."""


class Fail(Struct, frozen=True):
    error: BookKeeperError


Step = Ask | BeginTls | Open | Fail


class SaslClient(Protocol):
    """The client's side of a SASL mechanism. `is_complete`: the last response needs no answer."""

    @property
    def is_complete(self) -> bool: ...

    def first(self) -> bytes:
        """Return the first message."""

    def respond(self, message: bytes) -> bytes | None:
        """Return the response to a bookie's message; None: it is the last one. Raises `Unauthorized`."""


class ClientOpening:
    """The steps of a client on a new connection before its first request.

    `version`: of the protocol that the connection is for, 2 or 3. `tls`: "" none, "start" by START_TLS, "direct" from
    the first byte. `sasl`: None when the client does not authenticate. `next_txn_id`: for v3. Like Apache's clients,
    this one accepts a bookie's answer that it does not authenticate; only TLS proves the bookie's identity.
    """

    def __init__(self, version: int, tls: str, sasl: SaslClient | None, next_txn_id: Callable[[], int]) -> None:
        self.waits_for = "the connection"  # names the step in a time-out's message
        self._version = version
        self._tls = tls
        self._sasl = sasl
        self._next_txn_id = next_txn_id
        self._receive: Callable[[Response], list[Step]] = lambda response: []

    def connected(self) -> list[Step]:
        if self._tls == "direct":
            return self._begin_tls()
        if self._tls == "start":
            self.waits_for = "its answer to START_TLS"
            self._receive = self._tls_answered
            return [Ask(StartTlsRequest(V3, self._next_txn_id()))]
        return self._authenticate()

    def encrypted(self) -> list[Step]:
        return self._authenticate()

    def received(self, response: Response) -> list[Step]:
        """Return the steps for an answer. Unexpected answers are dropped, such as the one that Apache's bookies send
        after TLS has begun."""
        return self._receive(response)

    def _begin_tls(self) -> list[Step]:
        self.waits_for = "the TLS handshake"
        self._receive = lambda response: []
        return [BeginTls()]

    def _tls_answered(self, response: Response) -> list[Step]:
        if not isinstance(response, StartTlsResponse):
            return []
        if response.status is Status.OK:
            return self._begin_tls()
        return self._failed(
            TlsFailed("it does not offer TLS: give it a certificate, or connect with tls = false if that is no secret")
        )

    def _authenticate(self) -> list[Step]:
        if self._sasl is None:
            return self._opened()
        self.waits_for = "its challenge: a bookie that refuses a ticket logs the reason, and may not answer"
        self._receive = self._answered
        return [self._auth(self._sasl.first())]

    def _respond(self, token: bytes) -> list[Step]:
        assert self._sasl is not None
        answer = self._sasl.respond(token)
        if answer is None:
            return self._opened()
        # Apache's bookies do not answer a wrong password.
        self.waits_for = "its answer to our user, password or ticket, which may be wrong"
        return [self._auth(answer), *(self._opened() if self._sasl.is_complete else [])]

    def _answered(self, response: Response) -> list[Step]:
        is_auth = isinstance(response, AuthResponse) or (
            isinstance(response, BareResponse) and response.operation is Operation.AUTH
        )
        if not is_auth:
            return []
        if not isinstance(response, AuthResponse) or response.status is not Status.OK:
            return self._failed(
                Unauthorized(
                    "it refuses our user, password or ticket, or requires another proof of identity: its log has the "
                    "reason"
                )
            )
        if response.plugin == AUTH_DISABLED:
            return self._opened()
        if response.plugin != SASL:
            return self._failed(Unauthorized(f"it authenticates with {response.plugin}, and we with sasl"))
        try:
            return self._respond(response.payload)
        except Unauthorized as error:
            return self._failed(error)

    def _auth(self, payload: bytes) -> Ask:
        return Ask(AuthRequest(self._version, self._next_txn_id() if self._version == V3 else 0, SASL, payload))

    def _opened(self) -> list[Step]:
        self._receive = lambda response: []
        return [Open()]

    def _failed(self, error: BookKeeperError) -> list[Step]:
        self._receive = lambda response: []
        return [Fail(error)]
