"""DIGEST-MD5 against the example of RFC 2831's scheme computed by hand, and against itself."""

from __future__ import annotations

import hashlib

import pytest

from bookies.encoding.digest_md5 import DigestMd5Client, DigestMd5Server, parse_directives, secret_of_password
from bookies.errors import Unauthorized


def pair(user: str = "u", password: str = "p", known: str | None = None) -> tuple[DigestMd5Server, DigestMd5Client]:
    users = {user: secret_of_password(user, password if known is None else known)}
    return DigestMd5Server(users.get, "abcdef"), DigestMd5Client(user, password, "fedcba")


def test_the_formula() -> None:
    """RFC 2831 2.1.2.1, written out."""

    def h(text: bytes) -> bytes:
        return hashlib.md5(text).digest()

    server, client = pair()
    given = parse_directives(client.respond(server.challenge()))
    a1 = h(b"u:bookkeeper:p") + b":abcdef:fedcba"
    a2 = b"AUTHENTICATE:bookkeeper/bookkeeper"
    expected = h(b":".join([h(a1).hex().encode(), b"abcdef:00000001:fedcba:auth", h(a2).hex().encode()])).hex()
    assert given["response"] == expected.encode()
    assert given["digest-uri"] == b"bookkeeper/bookkeeper"


@pytest.mark.parametrize("user", ["u", 'quo"te\\', "größe", "用户", "a,b=c"])
@pytest.mark.parametrize("password", ["p", 'quo"te\\', "größe", "密码", " "])
def test_both_sides_agree(user: str, password: str) -> None:
    server, client = pair(user, password)
    client.respond(server.evaluate(client.respond(server.challenge())))
    assert (server.user, server.authorization) == (user, user)


def test_latin_1_when_the_bookie_does_not_offer_utf_8() -> None:
    server, client = pair("größe", "ä")
    response = client.respond(server.challenge().replace(b"charset=utf-8,", b""))
    assert b"charset" not in response
    client.respond(server.evaluate(response))
    with pytest.raises(Unauthorized, match="does not know UTF-8"):
        pair("用户")[1].respond(server.challenge().replace(b"charset=utf-8,", b""))


def test_who_acts_for_somebody_else_says_so() -> None:
    """The name he wants to have is part of what is proved."""
    server, client = pair()
    response = client.respond(server.challenge())
    with pytest.raises(Unauthorized, match="wrong user or password"):
        server.evaluate(response + b',authzid="root"')


@pytest.mark.parametrize(
    ("find", "put", "why"),
    [
        (b'realm="bookkeeper"', b'realm="elsewhere"', "realm"),
        (b'digest-uri="bookkeeper/bookkeeper"', b'digest-uri="ldap/bookkeeper"', "another service"),
        (b"qop=auth", b"qop=auth-conf", "more than authentication"),
        (b"nc=00000001", b"nc=00000002", "another challenge"),
        (b'nonce="abcdef"', b'nonce="abcdee"', "another challenge"),
        (b'cnonce="fedcba"', b'cnonce="x"', "wrong user or password"),
        (b'username="u"', b'username="v"', "wrong user or password"),
        (b'username="u"', b"", "lacks username"),
        (b"response=", b"response=0", "wrong user or password"),
        (b"response=", b'response="', "malformed"),
        (b'username="u"', b'username="\xff"', "not UTF-8"),
        (b"charset", b"x" * 5000 + b"=y,charset", "too long"),
    ],
)
def test_what_a_bookie_refuses(find: bytes, put: bytes, why: str) -> None:
    server, client = pair()
    response = client.respond(server.challenge())
    assert find in response
    with pytest.raises(Unauthorized, match=why):
        server.evaluate(response.replace(find, put))
    assert server.user == ""


def test_a_bookie_that_does_not_know_the_password_is_found_out() -> None:
    server, client = pair()
    client.respond(server.challenge())
    with pytest.raises(Unauthorized, match="does not prove"):
        client.respond(b"rspauth=" + b"0" * 32)
    for challenge, why in (
        (b'realm="r"', "not one of DIGEST-MD5"),
        (b'nonce="n",algorithm=md5-sess,qop="auth-conf"', "more than authentication"),
        (b"garbage", "malformed"),
        (b"", "not one of DIGEST-MD5"),
    ):
        with pytest.raises(Unauthorized, match=why):
            pair()[1].respond(challenge)


def test_directives() -> None:
    assert parse_directives(b' a = "x\\"y" ,, B=z,a=2 ,') == {"a": b'x"y', "b": b"z"}
    assert parse_directives(b"") == {}
