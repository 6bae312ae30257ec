"""Kerberos without a KDC: a token names the client, and a signature is a word."""

from __future__ import annotations

import asyncio

from bookies.encoding.gssapi import GssapiClient, GssapiServer, SecurityContext
from bookies.errors import BookieUnreachable, Unauthorized
from bookies.runtime.ports import KerberosLogin

ANN = "ann@REALM"


class FakeContext:
    """See `SecurityContext`. `is_mutual`: the server's side answers the ticket; the client's side waits for that."""

    def __init__(self, is_mutual: bool, *, is_client: bool = False) -> None:
        self.peer = ""
        self._is_mutual = is_mutual
        self._is_complete = is_client and not is_mutual

    def is_complete(self) -> bool:
        return self._is_complete

    def step(self, token: bytes) -> bytes:
        if token == b"\x60expired":
            raise Unauthorized("Kerberos: Ticket expired: run kinit")
        self._is_complete = True
        self.peer = token[1:].decode()
        return b"proof" if self._is_mutual and token.startswith(b"\x60") else b""

    def wrap(self, message: bytes) -> bytes:
        return b"signed:" + message

    def unwrap(self, token: bytes) -> bytes:
        if not token.startswith(b"signed:"):
            raise Unauthorized("the signature is wrong")
        return token.removeprefix(b"signed:")


def pair(is_mutual: bool, principal: str = ANN) -> tuple[GssapiServer, GssapiClient]:
    """Both sides of one authentication."""
    client = FakeContext(is_mutual, is_client=True)
    return GssapiServer(FakeContext(is_mutual)), GssapiClient(client, b"\x60" + principal.encode())


class FakeKerberos:
    """See `ports.Kerberos`. `is_down`, `is_silent`: the KDC. `hosts`: for which tickets were asked."""

    def __init__(self) -> None:
        self.is_down = self.is_silent = False
        self.hosts: list[str] = []

    def accept(self, keytab: str) -> SecurityContext:
        if keytab != "/good.keytab":
            raise Unauthorized(f"Kerberos: Keytab {keytab} is nonexistent or empty: export the service's keys")
        return FakeContext(is_mutual=True)

    async def initiate(self, login: KerberosLogin, host: str) -> tuple[SecurityContext, bytes]:
        if self.is_silent:
            await asyncio.sleep(3600)
        if self.is_down:
            raise BookieUnreachable("Kerberos: Cannot contact any KDC")
        self.hosts.append(f"{login.service}/{host}")
        return FakeContext(is_mutual=True, is_client=True), b"\x60" + login.principal.encode()
