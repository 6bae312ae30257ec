"""The table of wire-protocol 5.1, row by row, and what a client does first."""

from __future__ import annotations

import itertools
from array import array

import pytest
from tests.fakes.adds import add_request

from bookies.encoding.digest_md5 import DigestMd5Client, DigestMd5Server, secret_of_password
from bookies.errors import Status, TlsFailed, Unauthorized
from bookies.kernels import Records
from bookies.wire.auth import (
    AUTH_DISABLED,
    CERTIFICATE_ROLES,
    NOT_AUTHENTICATED,
    NOT_ENCRYPTED,
    Ask,
    BeginTls,
    BookieGate,
    ClientOpening,
    Close,
    Effect,
    Encrypt,
    Fail,
    Open,
    Refused,
    RoleExchange,
    Send,
    auth_disabled,
    roles_of,
)
from bookies.wire.client import ResponseDecoder
from bookies.wire.messages import (
    AddRequest,
    AddResponses,
    AuthRequest,
    AuthResponse,
    BareResponse,
    BatchReadRequest,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    InvalidRequest,
    ListEntriesRequest,
    Operation,
    ReadLacRequest,
    ReadRequest,
    ReadResponse,
    Request,
    StartTlsRequest,
    StartTlsResponse,
    WriteLacRequest,
)
from bookies.wire.sasl import DIGEST_MD5, SaslExchange, Secrets, sasl_client
from bookies.wire.server import encode_response

KEY = bytes(20)
REFUSED = Status.UNAUTHORIZED
SECRETS = {
    user: secret_of_password(user, password) for user, password in (("bookkeeper-app", "secret"), ("other", "other"))
}
V3_REQUESTS: list[tuple[Request, Operation]] = [
    (ReadRequest(3, 9, 1, 2), Operation.READ),
    (WriteLacRequest(3, 9, 1, 2, KEY, b""), Operation.WRITE_LAC),
    (ReadLacRequest(3, 9, 1), Operation.READ_LAC),
    (GetBookieInfoRequest(3, 9, 3), Operation.GET_BOOKIE_INFO),
    (ForceLedgerRequest(3, 9, 1), Operation.FORCE_LEDGER),
    (ListEntriesRequest(3, 9, 1), Operation.LIST_ENTRIES),
    (InvalidRequest(3, 9, Operation.RANGE_ADD, Status.BAD_REQUEST), Operation.RANGE_ADD),
    (InvalidRequest(3, 9, Operation.AUTH, Status.BAD_REQUEST), Operation.AUTH),
]


def adds(version: int) -> AddRequest:
    records = Records.of([bytes(40), bytes(40)])
    return add_request(version, 7, KEY, [1, 2], records, -1, txn_ids=[11, 12] if version == 3 else None)


def sasl() -> SaslExchange:
    users = {user: Secrets(secret) for user, secret in SECRETS.items()}
    return SaslExchange(users.get, lambda user: user.startswith("bookkeeper"), "nonce", b"key")


def gate() -> BookieGate:
    return BookieGate(sasl(), requires_tls=False)


def sent(effects: list[Effect]) -> list[object]:
    return [effect.response for effect in effects if isinstance(effect, Send)]


# -- the bookie -----------------------------------------------------------------------------------------------------
def test_nothing_demanded_is_open_at_once() -> None:
    assert BookieGate(None, requires_tls=False).is_open


@pytest.mark.parametrize("version", [0, 1, 2])
def test_v2_adds_and_reads_are_refused_and_the_rest_closes(version: int) -> None:
    refusal = Refused(NOT_AUTHENTICATED)
    assert gate().received(adds(version)) == [Send(AddResponses(version, REFUSED, 7, array("q", [1, 2]))), refusal]
    read = ReadRequest(version, 0, 7, -1)
    assert gate().received(read) == [Send(ReadResponse(version, 0, REFUSED, 7, -1)), refusal]
    for operation in (Operation.ADD, Operation.READ):
        bad = InvalidRequest(version, 0, operation, Status.BAD_REQUEST, 7, 5)
        assert gate().received(bad) == [Send(BareResponse(version, 0, operation, REFUSED, 7, 5)), refusal]
    batch = BatchReadRequest(version, 5, 7, 0, 10, 1000)
    assert gate().received(batch) == [Close(), refusal]
    bad = InvalidRequest(version, 5, Operation.BATCH_READ, Status.BAD_VERSION, 7, 5)
    assert gate().received(bad) == [Close(), refusal]


@pytest.mark.parametrize(("request_", "operation"), V3_REQUESTS, ids=lambda value: type(value).__name__)
def test_v3_gets_a_bare_refusal(request_: Request, operation: Operation) -> None:
    effects = gate().received(request_)
    assert effects == [Send(BareResponse(3, 9, operation, REFUSED)), Refused(NOT_AUTHENTICATED)]
    (response,) = ResponseDecoder("v3", 1 << 20).feed(b"".join(map(bytes, encode_response(sent(effects)[0]))))  # type: ignore[arg-type]
    assert response.status is REFUSED


def test_v3_adds_are_refused_one_by_one() -> None:
    assert sent(gate().received(adds(3))) == [BareResponse(3, each, Operation.ADD, REFUSED) for each in (11, 12)]


@pytest.mark.parametrize("version", [2, 3])
def test_sasl(version: int) -> None:
    """Two round trips, then the gate is open; the client's last, empty message finds it so. Source: 5.2 (a)."""
    gate_, client = gate(), DigestMd5Client("bookkeeper-app", "secret", "cnonce")
    (challenge,) = sent(gate_.received(AuthRequest(version, 1, "sasl", b"")))
    assert isinstance(challenge, AuthResponse)
    assert (challenge.version, challenge.txn_id, challenge.plugin) == (version, 1, "sasl")
    assert not gate_.is_open
    (proof,) = sent(gate_.received(AuthRequest(version, 2, "sasl", client.respond(challenge.payload))))
    assert isinstance(proof, AuthResponse)
    client.respond(proof.payload)
    assert gate_.is_open


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [
        ("bookkeeper-app", "Secret", "wrong user or password"),
        ("nobody", "", "wrong user or password"),
        ("other", "other", "its user is known, but does not match sasl_allowed_ids"),
    ],
)
def test_sasl_that_fails_closes(version: int, user: str, password: str, reason: str) -> None:
    """v3 is told first. Source: 5.2, the quirk."""
    gate_ = gate()
    (challenge,) = sent(gate_.received(AuthRequest(version, 1, "sasl", b"")))
    assert isinstance(challenge, AuthResponse)
    response = DigestMd5Client(user, password, "c").respond(challenge.payload)
    effects = gate_.received(AuthRequest(version, 2, "sasl", response))
    bare = [Send(BareResponse(3, 2, Operation.AUTH, REFUSED))] if version == 3 else []
    assert effects == [Refused(reason), *bare, Close()]
    assert not gate_.is_open
    assert gate_.received(AuthRequest(version, 3, "sasl", b"")) == []


def test_an_unknown_sasl_mechanism() -> None:
    effects = gate().received(AuthRequest(2, 0, "sasl", b"NTLM"))
    assert effects == [Refused("it speaks none of our SASL mechanisms, DIGEST-MD5, SCRAM-SHA-256, PLAIN"), Close()]


def test_another_plugin() -> None:
    """v2: closed; v3: a bare refusal, and it may go on."""
    assert gate().received(AuthRequest(2, 0, "kerberos", b""))[-1] == Close()
    gate_ = gate()
    assert sent(gate_.received(AuthRequest(3, 4, "kerberos", b""))) == [BareResponse(3, 4, Operation.AUTH, REFUSED)]
    assert sent(gate_.received(AuthRequest(3, 5, "sasl", b"")))[0].status is Status.OK  # type: ignore[attr-defined]


def test_start_tls_comes_through_and_says_nothing_about_the_user() -> None:
    gate_ = gate()
    assert gate_.received(StartTlsRequest(3, 1)) == [Encrypt(StartTlsRequest(3, 1))]
    assert gate_.encrypted(None) == []
    assert not gate_.is_open


def test_tls_required() -> None:
    gate_ = BookieGate(None, requires_tls=True)
    assert gate_.received(adds(2))[-1] == Refused(NOT_ENCRYPTED)
    assert sent(gate_.received(AuthRequest(3, 5, "sasl", b"x"))) == [AuthResponse(3, 5, Status.OK, AUTH_DISABLED, b"")]
    assert not gate_.is_open
    assert gate_.encrypted(None) == []
    assert gate_.is_open


def test_tls_and_sasl_in_either_order() -> None:
    for order in itertools.permutations(["tls", "sasl"]):
        gate_ = BookieGate(sasl(), requires_tls=True)
        for step in order:
            assert not gate_.is_open
            if step == "tls":
                gate_.encrypted(None)
            else:
                client = DigestMd5Client("bookkeeper-app", "secret", "c")
                (challenge,) = sent(gate_.received(AuthRequest(3, 1, "sasl", b"")))
                gate_.received(AuthRequest(3, 2, "sasl", client.respond(challenge.payload)))  # type: ignore[attr-defined]
        assert gate_.is_open


def subject(*units: str) -> list[list[tuple[str, str]]]:
    return [[("countryName", "DE")], *([("organizationalUnitName", unit)] for unit in units), [("commonName", "x")]]


@pytest.mark.parametrize(
    ("units", "roles"),
    [
        ((), []),
        (("0:a",), ["a"]),
        (("0:a,b;1:c",), ["a", "b"]),
        (("1:c;0:b,a",), ["b", "a"]),
        (("1:c",), []),
        (("0:",), []),
        (("a",), []),
        (("0:a;x",), []),
        (("zero:a",), []),
        (("0:a", "0:b"), ["a"]),
        (("none", "0:b"), []),
        (("0:a:b",), ["a:b"]),
    ],
)
def test_roles(units: tuple[str, ...], roles: list[str]) -> None:
    assert roles_of(subject(*units)) == roles


def test_the_first_role_counts_and_auth_is_not_answered() -> None:
    gate_ = BookieGate(RoleExchange(["a", "b"]), requires_tls=False)
    assert gate_.received(AuthRequest(3, 1, CERTIFICATE_ROLES, b"x")) == []
    assert gate_.encrypted(subject("0:b,c")) == []
    assert gate_.is_open
    for found, why in ((None, "no certificate"), (subject(), "no roles"), (subject("0:c,a"), "first role")):
        gate_ = BookieGate(RoleExchange(["a", "b"]), requires_tls=False)
        (refusal,) = gate_.encrypted(found)
        assert isinstance(refusal, Refused)
        assert why in refusal.reason
        assert not gate_.is_open


def test_auth_when_nobody_asks() -> None:
    """v2 replies always as version 2. Source: 2.1, 5.1."""
    assert auth_disabled(AuthRequest(0, 0, "sasl", b"x")) == AuthResponse(2, 0, Status.OK, AUTH_DISABLED, b"")
    assert auth_disabled(AuthRequest(3, 8, "sasl", b"x")) == AuthResponse(3, 8, Status.OK, AUTH_DISABLED, b"")


# -- the client -----------------------------------------------------------------------------------------------------
def opening(version: int = 2, tls: str = "", *, has_sasl: bool = False) -> ClientOpening:
    client = sasl_client(DIGEST_MD5, "bookkeeper-app", "secret", "c") if has_sasl else None
    return ClientOpening(version, tls, client, itertools.count(1).__next__)


def test_a_client_encrypts_before_it_authenticates() -> None:
    client = opening(tls="start", has_sasl=True)
    assert client.connected() == [Ask(StartTlsRequest(3, 1))]
    assert client.received(AddResponses(2, Status.OK, 1, [1])) == []
    assert client.received(StartTlsResponse(3, 1, Status.OK)) == [BeginTls()]
    assert client.received(StartTlsResponse(3, 1, Status.OK)) == []
    assert client.encrypted() == [Ask(AuthRequest(2, 0, "sasl", b""))]
    assert client.received(StartTlsResponse(3, 1, Status.IO_ERROR)) == []  # Apache's second answer
    server = DigestMd5Server(SECRETS.get, "nonce")
    (ask,) = client.received(AuthResponse(2, 0, Status.OK, "sasl", server.challenge()))
    assert isinstance(ask, Ask)
    assert isinstance(ask.request, AuthRequest)
    proof = server.evaluate(ask.request.payload)
    assert client.received(AuthResponse(2, 0, Status.OK, "sasl", proof)) == [Open()]
    assert client.received(AuthResponse(2, 0, Status.OK, AUTH_DISABLED, b"")) == []


def test_a_client_of_a_tls_port_and_one_with_nothing_to_do() -> None:
    client = opening(tls="direct")
    assert client.connected() == [BeginTls()]
    assert client.encrypted() == [Open()]
    assert opening().connected() == [Open()]


def failure(steps: list[object]) -> Exception:
    (step,) = steps
    assert isinstance(step, Fail)
    return step.error


def test_what_makes_a_client_give_up() -> None:
    client = opening(tls="start")
    client.connected()
    assert isinstance(failure(client.received(StartTlsResponse(3, 1, Status.BAD_REQUEST))), TlsFailed)  # type: ignore[arg-type]
    for answer, why in (
        (BareResponse(3, 1, Operation.AUTH, REFUSED), "refuses"),
        (AuthResponse(3, 1, Status.OK, "kerberos", b""), "kerberos"),
        (AuthResponse(3, 1, Status.OK, "sasl", b"garbage"), "malformed"),
    ):
        client = opening(3, has_sasl=True)
        client.connected()
        error = failure(client.received(answer))  # type: ignore[arg-type]
        assert isinstance(error, Unauthorized)
        assert why in str(error)
        assert client.received(AuthResponse(3, 1, Status.OK, AUTH_DISABLED, b"")) == []


def test_a_bookie_that_does_not_ask_is_fine() -> None:
    client = opening(3, has_sasl=True)
    assert client.connected() == [Ask(AuthRequest(3, 1, "sasl", b""))]
    assert client.received(AuthResponse(3, 1, Status.OK, AUTH_DISABLED, b"")) == [Open()]


def test_what_a_timeout_is_about() -> None:
    client = opening(tls="start", has_sasl=True)
    assert client.waits_for == "the connection"
    client.connected()
    assert "START_TLS" in client.waits_for
    client.received(StartTlsResponse(3, 1, Status.OK))
    assert "handshake" in client.waits_for
    client.encrypted()
    assert "challenge" in client.waits_for
    challenge = DigestMd5Server(SECRETS.get, "n").challenge()
    client.received(AuthResponse(2, 0, Status.OK, "sasl", challenge))
    assert "may be wrong" in client.waits_for
