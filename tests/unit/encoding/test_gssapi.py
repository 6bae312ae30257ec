"""SASL GSSAPI with made-up contexts: who says what, and what each side refuses."""

from __future__ import annotations

import pytest
from tests.fakes.kerberos import ANN, FakeContext, pair

from bookies.encoding.gssapi import GssapiClient, GssapiServer
from bookies.errors import Unauthorized


@pytest.mark.parametrize("is_mutual", [True, False])
def test_both_sides_agree_on_who_the_client_is(is_mutual: bool) -> None:
    server, client = pair(is_mutual)
    message = client.first()
    assert message.startswith(b"\x60")
    count = 0
    while (answer := server.received(message)) is not None:
        assert (client.is_complete, server.is_done) == (False, False)
        assert server.principal == ANN  # known with the ticket, before the client has said everything
        message, count = client.respond(answer), count + 1
    assert (server.principal, server.is_done, client.is_complete) == (ANN, True, True)
    assert count == (2 if is_mutual else 1)


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        (b"\1\0\0\0" + ANN.encode(), ""),
        (b"\1\0\0\0bob@REALM", "act for another user"),
        (b"\2\0\0\0", "a layer of SASL that is not offered"),
        (b"\1", "a layer of SASL that is not offered"),
    ],
)
def test_what_a_client_may_choose(choice: bytes, reason: str) -> None:
    server, client = pair(False)
    server.received(client.first())
    if not reason:
        assert server.received(b"signed:" + choice) is None
        return
    with pytest.raises(Unauthorized, match=reason):
        server.received(b"signed:" + choice)
    assert not server.is_done


@pytest.mark.parametrize("layers", [b"\2\0\0\0", b"\1\0\0", b""])
def test_a_client_refuses_layers_that_it_has_not(layers: bytes) -> None:
    client = pair(False)[1]
    client.first()
    with pytest.raises(Unauthorized, match="demands a layer of SASL"):
        client.respond(b"signed:" + layers)
    assert not client.is_complete


def test_what_the_library_refuses_is_refused() -> None:
    server = GssapiServer(FakeContext(is_mutual=True))
    with pytest.raises(Unauthorized, match="Ticket expired"):
        server.received(b"\x60expired")
    with pytest.raises(Unauthorized, match="too long"):
        server.received(b"\x60" * 100_000)
    server, client = pair(False)
    server.received(client.first())
    with pytest.raises(Unauthorized, match="signature"):
        server.received(b"forged:\1\0\0\0")
    with pytest.raises(Unauthorized, match="signature"):
        GssapiClient(FakeContext(is_mutual=False, is_client=True), b"").respond(b"forged:\1\0\0\0")
