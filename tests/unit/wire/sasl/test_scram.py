"""SCRAM-SHA-256 and PLAIN: the example of RFC 7677, and messages that are refused."""

from __future__ import annotations

import base64

import pytest

from bookies.errors import Unauthorized
from bookies.wire.sasl.scram import (
    ITERATIONS_MAX,
    SIZE_MAX,
    PlainClient,
    ScramClient,
    ScramServer,
    decoy,
    parse_plain,
    parse_verifier,
    prepared,
    verifier_of,
)

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PENCIL = verifier_of("pencil", SALT)


def pair(password: str = "pencil", user: str = "user") -> tuple[ScramServer, ScramClient]:
    return ScramServer("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"), ScramClient(user, password, "rOprNGfwEbeRWgbNEkqO")


def test_the_example_of_the_rfc() -> None:
    server, client = pair()
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert server.begin(client.first()) == "user"
    challenge = server.challenge(PENCIL)
    nonce = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert challenge == nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = client.respond(challenge)
    assert final == b"c=biws," + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    signature = server.evaluate(final)
    assert signature == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert client.respond(signature) is None
    assert (server.user, server.authorization) == ("user", "user")


@pytest.mark.parametrize("user", ["a,b=c", "ü"])
def test_names_are_escaped(user: str) -> None:
    server, client = pair(user=user)
    assert server.begin(client.first()) == user


def test_a_wrong_password_and_a_bookie_without_the_verifier_are_noticed() -> None:
    server, client = pair("Pencil")
    server.begin(client.first())
    response = client.respond(server.challenge(PENCIL))
    assert response is not None
    with pytest.raises(Unauthorized, match="wrong user or password"):
        server.evaluate(response)
    with pytest.raises(Unauthorized, match="does not prove"):
        client.respond(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"", "malformed"),
        (b"n,,n=user", "malformed"),
        (b"n,,m=x,n=user,r=abc", "malformed"),
        (b"p=tls-exporter,,n=user,r=abc", "channel binding"),
        (b"n,,n=a=b,r=abc", "not escaped"),
        (b"n,,n=\xff,r=abc", "not UTF-8"),
        (b"n" * (SIZE_MAX + 1), "too long"),
    ],
)
def test_a_first_message_that_is_refused(message: bytes, problem: str) -> None:
    with pytest.raises(Unauthorized, match=problem):
        ScramServer("nonce").begin(message)


def test_another_authorization_is_reported() -> None:
    server = ScramServer("nonce")
    server.begin(b"y,a=ro=2Cot,n=user,r=abc")
    assert (server.user, server.authorization) == ("user", "ro,ot")


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"", "malformed"),
        (b"c=biws,r=abcnonce", "malformed"),
        (b"c=biws,r=abcnonc3,p=AAAA", "another challenge"),
        (b"c=eSws,r=abcnonce,p=AAAA", "another challenge"),
        (b"c=biws,r=abcnonce,p=A", "no base64"),
        (b"c=biws,r=abcnonce,p=AAAA", "another length"),
    ],
)
def test_a_final_message_that_is_refused(message: bytes, problem: str) -> None:
    server = ScramServer("nonce")
    server.begin(b"n,,n=user,r=abc")
    server.challenge(PENCIL)
    with pytest.raises(Unauthorized, match=problem):
        server.evaluate(message)


@pytest.mark.parametrize(
    ("challenge", "problem"),
    [
        (b"", "not one of SCRAM"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=AAAA,i=4096", "not one of SCRAM"),  # the bookie adds nothing of its own
        (b"r=other,s=AAAA,i=4096", "not one of SCRAM"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=4095", "4,096 to 100,000"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=999999999", "4,096 to 100,000"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=A,i=4096", "no base64"),
    ],
)
def test_a_challenge_that_a_client_refuses(challenge: bytes, problem: str) -> None:
    with pytest.raises(Unauthorized, match=problem):
        pair()[1].respond(challenge)


def test_verifiers_as_text() -> None:
    assert parse_verifier(PENCIL.text) == PENCIL
    assert PENCIL.matches("pencil")
    assert not PENCIL.matches("Pencil")
    assert not PENCIL.matches("\0")
    for text in ("4096:AAAA:AAAA:AAAA", f"{ITERATIONS_MAX + 1}{PENCIL.text[18:]}", "4096:AAAA", "x:A:A:A"):
        with pytest.raises(ValueError, match=r"."):
            parse_verifier(text)


def test_a_decoy_is_the_same_each_time_and_has_no_password() -> None:
    assert decoy("nobody", b"key") == decoy("nobody", b"key") != decoy("nobody", b"other key")
    assert not decoy("nobody", b"key").matches("")


def test_passwords_are_prepared() -> None:
    assert prepared("I\u00adX") == prepared("\u2168") == "IX"  # examples of RFC 4013
    assert prepared("a\u00a0b") == "a b"
    for password in ("", "\u0007", "\u00ad"):
        with pytest.raises(Unauthorized, match="empty, or has control characters"):
            prepared(password)


def test_plain() -> None:
    client = PlainClient("user", "secret")
    assert parse_plain(client.first()) == ("", "user", "secret")
    assert client.respond(b"") is None
    for message in (b"", b"user\0secret", b"\0\0secret", b"\0user\0", b"\0a\0b\0c", b"\0\xff\0b"):
        with pytest.raises(Unauthorized):
            parse_plain(message)
