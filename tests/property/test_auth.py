"""No order of messages opens a gate to somebody without credentials, and none that has them is kept out by noise."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.adds import add_request
from tests.fakes.examples import scaled

from bookies.encoding.digest_md5 import DigestMd5Client, DigestMd5Server, parse_directives, secret_of_password
from bookies.errors import Status
from bookies.kernels import Records
from bookies.wire.auth import (
    CERTIFICATE_ROLES,
    SASL,
    BookieGate,
    Close,
    RoleExchange,
    Send,
)
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
    WriteLacRequest,
)
from bookies.wire.sasl import SaslExchange, Secrets
from bookies.wire.sasl.scram import ScramClient, ScramServer, verifier_of

SECRET = "the password"
USERS = {"bookkeeper": Secrets(secret_of_password("bookkeeper", SECRET), verifier_of(SECRET, b"salt"))}
versions = st.sampled_from([0, 1, 2, 3, 256 + 7])
v2_or_3 = st.sampled_from([2, 3])
ids = st.integers(-1, 3)
subjects = st.none() | st.lists(
    st.lists(st.tuples(st.sampled_from(["organizationalUnitName", "commonName"]), st.text("01:;,ab", max_size=8))),
    max_size=4,
)


def sasl() -> SaslExchange:
    return SaslExchange(USERS.get, lambda user: True, "nonce", b"key")


def add(version: int, ledger_id: int) -> AddRequest:
    return add_request(
        version, ledger_id, bytes(20), [0], Records.of([bytes(40)]), -1, txn_ids=[1] if version == 3 else None
    )


# What somebody without the password may put into a message: pieces of good ones among them.
users, passwords = st.sampled_from(["bookkeeper", "x"]), st.sampled_from(["", "The password", "bookkeeper"])


def scram_final(password: str) -> bytes:
    """The last message of SCRAM, for the challenge of `sasl`'s exchange, with a wrong password."""
    client, server = ScramClient("bookkeeper", password or "x", "c"), ScramServer("nonce")
    server.begin(client.first())
    return client.respond(server.challenge(verifier_of(SECRET, b"salt"))) or b""


payloads = (
    st.just(b"")
    | st.binary(max_size=30)
    | st.builds(
        lambda user, password, cnonce: DigestMd5Client(user, password, cnonce).respond(
            DigestMd5Server({}.get, "nonce").challenge()
        ),
        st.sampled_from(["bookkeeper", "x"]),
        st.sampled_from(["", "The password", "bookkeeper"]),
        st.sampled_from(["", "nonce", "c"]),
    )
    | st.builds(lambda user, password: f"\0{user}\0{password}".encode(), users, passwords)
    | st.builds(lambda user: ScramClient(user, "", "c").first(), users)
    | st.builds(scram_final, passwords)
)
requests: st.SearchStrategy[Request] = st.one_of(
    st.builds(add, st.sampled_from([0, 2, 3]), ids),
    st.builds(ReadRequest, st.sampled_from([0, 2, 3]), ids, ids, ids),
    st.builds(BatchReadRequest, st.just(2), ids, ids, ids, ids, ids),
    st.builds(WriteLacRequest, st.just(3), ids, ids, ids, st.just(bytes(20)), st.just(b"")),
    st.builds(ReadLacRequest, st.just(3), ids, ids),
    st.builds(GetBookieInfoRequest, st.just(3), ids, ids),
    st.builds(ForceLedgerRequest, st.just(3), ids, ids),
    st.builds(ListEntriesRequest, st.just(3), ids, ids),
    st.builds(StartTlsRequest, st.just(3), ids),
    st.builds(InvalidRequest, versions, ids, st.sampled_from(Operation), st.just(Status.BAD_REQUEST), ids, ids),
    st.builds(
        AuthRequest, v2_or_3, ids, st.sampled_from([SASL, CERTIFICATE_ROLES, "", "AuthDisabledPlugin"]), payloads
    ),
)
steps = st.lists(requests | st.tuples(subjects), max_size=25)


def play(gate: BookieGate, moves: Sequence[object]) -> None:
    """Everything that is answered is a refusal, AUTH apart."""
    for move in moves:
        if isinstance(move, tuple):
            gate.encrypted(move[0])
            continue
        effects = gate.received(move)  # type: ignore[arg-type]
        for effect in effects:
            if isinstance(effect, Send) and not isinstance(effect.response, AuthResponse):
                assert isinstance(effect.response, AddResponses | ReadResponse | BareResponse)
                assert effect.response.status is Status.UNAUTHORIZED
        assert not gate.is_open
        if Close() in effects:
            return


@scaled(400)
@given(steps, st.booleans())
def test_nobody_comes_in_without_the_password(moves: list[object], requires_tls: bool) -> None:
    exchange = sasl()
    gate = BookieGate(exchange, requires_tls=requires_tls)
    play(gate, moves)
    assert not gate.is_open


@scaled(300)
@given(steps)
def test_nobody_comes_in_without_a_role(moves: list[object]) -> None:
    gate = BookieGate(RoleExchange(["admin"]), requires_tls=False)
    play(gate, moves)
    assert not gate.is_open


@scaled(200)
@given(st.lists(requests, max_size=25))
def test_nobody_comes_in_without_encryption(moves: list[object]) -> None:
    gate = BookieGate(None, requires_tls=True)
    play(gate, moves)
    assert not gate.is_open


harmless = st.one_of(
    st.builds(add, st.sampled_from([0, 2, 3]), ids),
    st.builds(ReadRequest, st.sampled_from([0, 2, 3]), ids, ids, ids),
    st.builds(StartTlsRequest, st.just(3), ids),
    st.builds(ForceLedgerRequest, st.just(3), ids, ids),
    st.builds(AuthRequest, st.just(3), ids, st.just("kerberos"), st.binary(max_size=9)),
)


@given(st.lists(harmless, max_size=6), st.lists(harmless, max_size=6), v2_or_3)
def test_who_has_the_password_comes_in_whatever_else_he_says(
    before: list[Request], between: list[Request], version: int
) -> None:
    gate = BookieGate(sasl(), requires_tls=False)
    client = DigestMd5Client("bookkeeper", SECRET, "c")
    play(gate, before)
    (effect,) = gate.received(AuthRequest(version, 1, SASL, b""))
    assert isinstance(effect, Send)
    assert isinstance(effect.response, AuthResponse)
    play(gate, between)
    gate.received(AuthRequest(version, 1, SASL, client.respond(effect.response.payload)))
    assert gate.is_open


@given(st.binary(max_size=200) | st.text('a="\\, ', max_size=60).map(str.encode))
def test_directives_of_any_bytes(message: bytes) -> None:
    from bookies.errors import Unauthorized

    try:
        found = parse_directives(message)
    except Unauthorized:
        return
    assert all(name for name in found)
