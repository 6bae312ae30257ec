"""The SASL exchange: each mechanism is recognized by its first message."""

from __future__ import annotations

import pytest

from bookies.encoding.digest_md5 import secret_of_password
from bookies.errors import Unauthorized
from bookies.wire.sasl.mechanisms import DIGEST_MD5, MECHANISMS, PLAIN, SCRAM, SaslExchange, Secrets, sasl_client
from bookies.wire.sasl.scram import verifier_of

USERS = {
    "ann": Secrets(secret_of_password("ann", "secret"), verifier_of("secret", b"salt"), {"bk_1"}.__contains__),
    "outsider": Secrets(secret_of_password("outsider", "secret"), verifier_of("secret", b"salt")),
    "bob": Secrets(),
}


def exchange(*, is_encrypted: bool = True) -> SaslExchange:
    server = SaslExchange(USERS.get, lambda user: user != "outsider", "nonce", b"key")
    if is_encrypted:
        server.encrypted(None)
    return server


def run(server: SaslExchange, mechanism: str, user: str, password: str) -> None:
    client = sasl_client(mechanism, user, password, "cnonce")
    message: bytes | None = client.first()
    while message is not None:
        answer = server.received(message)
        assert answer is not None
        message = client.respond(answer)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_lets_in_who_has_the_password(mechanism: str) -> None:
    server = exchange()
    assert (server.is_done, server.user) == (False, "")
    run(server, mechanism, "ann", "secret")
    assert (server.is_done, server.user) == (True, "ann")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [
        ("ann", "Secret", "wrong user or password"),
        ("nobody", "secret", "wrong user or password"),
        ("bob", "secret", "wrong user or password"),
        ("outsider", "secret", "does not match sasl_allowed_ids"),
    ],
)
def test_no_mechanism_lets_in_others(mechanism: str, user: str, password: str, reason: str) -> None:
    server = exchange()
    with pytest.raises(Unauthorized, match=reason):
        run(server, mechanism, user, password)
    assert (server.is_done, server.user) == (False, "")


def test_a_token_is_a_password_of_plain() -> None:
    server = exchange()
    run(server, PLAIN, "ann", "bk_1")
    assert server.user == "ann"
    with pytest.raises(Unauthorized, match="wrong user or password"):
        run(exchange(), SCRAM, "ann", "bk_1")


def test_plain_needs_encryption_and_the_others_do_not() -> None:
    with pytest.raises(Unauthorized, match="without encryption"):
        run(exchange(is_encrypted=False), PLAIN, "ann", "secret")
    for mechanism in (DIGEST_MD5, SCRAM):
        run(exchange(is_encrypted=False), mechanism, "ann", "secret")


def test_another_mechanism_and_another_user_are_refused() -> None:
    with pytest.raises(Unauthorized, match="none of our SASL mechanisms, DIGEST-MD5, SCRAM-SHA-256, PLAIN"):
        exchange().received(b"NTLM")
    with pytest.raises(Unauthorized, match="act for another user"):
        exchange().received(b"bob\0ann\0secret")


def test_a_password_that_is_changed_during_the_exchange_is_refused() -> None:
    users = dict(USERS)
    server = SaslExchange(users.get, lambda user: True, "nonce", b"key")
    client = sasl_client(SCRAM, "ann", "secret", "cnonce")
    challenge = server.received(client.first())
    assert challenge is not None
    response = client.respond(challenge)
    assert response is not None
    users["ann"] = Secrets(None, verifier_of("other", b"salt"))
    with pytest.raises(Unauthorized, match="changed meanwhile"):
        server.received(response)
    assert (server.is_done, server.user) == (False, "")
