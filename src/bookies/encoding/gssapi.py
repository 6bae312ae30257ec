"""SASL GSSAPI, which is Kerberos: the messages of both sides, around a context that a library keeps.

    client: a token with its ticket                         (context)
    server: a token, if the client demands a proof          (context)
    client: empty, if the server sent a token
    server: the layers of protection that it offers         (wrapped)
    client: the layer that it chooses, and on whose behalf  (wrapped)

The server does not answer the last message. No layer protects what follows, as between Apache's processes: TLS does.
Source: wire-protocol 5.2, RFC 4752.
"""

from __future__ import annotations

from typing import Protocol

from bookies.errors import Unauthorized

TAG = b"\x60"  # first byte of every first token; no other mechanism's first message begins with it
NO_LAYER = 1  # bit of the layers
SIZE_MAX = 64 << 10  # bytes of a token; tickets of large domains have tens of kilobytes
_LAYER_SIZE = 4  # bytes: the layers, and the size of the largest message


class SecurityContext(Protocol):
    """One side of a context of GSSAPI. Every method raises `Unauthorized` for what the library refuses.

    `is_complete`: no token of the peer is needed any more. `peer`: then, on the server's side, the client's principal.
    """

    def is_complete(self) -> bool: ...

    @property
    def peer(self) -> str: ...

    def step(self, token: bytes) -> bytes:
        """Return the answer to a token; empty: none."""

    def wrap(self, message: bytes) -> bytes:
        """Return a message with its signature."""

    def unwrap(self, token: bytes) -> bytes:
        """Return the message of a token, if the signature is the peer's."""


class GssapiServer:
    """The server's side. `principal`: the client's, once its ticket is accepted. `is_done`: and nothing is missing."""

    def __init__(self, context: SecurityContext) -> None:
        self.principal = ""
        self.is_done = False
        self._context = context
        self._has_offered = False

    def received(self, message: bytes) -> bytes | None:
        """Return the answer to a message; None: there is none, and the client is authenticated. Raises
        `Unauthorized`."""
        if len(message) > SIZE_MAX:
            raise Unauthorized("the SASL message is too long")
        if self._has_offered:
            self._check_choice(self._context.unwrap(message))
            self.is_done = True
            return None
        if not self._context.is_complete():
            token = self._context.step(message)
            if self._context.is_complete():
                self.principal = self._context.peer
            if token or not self._context.is_complete():
                return token
        self._has_offered = True
        return self._context.wrap(bytes([NO_LAYER, 0, 0, 0]))

    def _check_choice(self, choice: bytes) -> None:
        if len(choice) < _LAYER_SIZE or choice[0] != NO_LAYER:
            raise Unauthorized("it chooses a layer of SASL that is not offered")
        if choice[_LAYER_SIZE:] not in (b"", self.principal.encode()):
            raise Unauthorized("it requests to act for another user than itself")


class GssapiClient:
    """The client's side, as `auth.SaslClient`. `token`: the context's first, which a library got from the KDC."""

    def __init__(self, context: SecurityContext, token: bytes) -> None:
        self.is_complete = False
        self._context = context
        self._token = token

    def first(self) -> bytes:
        return self._token

    def respond(self, message: bytes) -> bytes:
        """Return the response to a server's message. Raises `Unauthorized`."""
        if not self._context.is_complete():
            return self._context.step(message)
        layers = self._context.unwrap(message)
        if len(layers) != _LAYER_SIZE or not layers[0] & NO_LAYER:
            raise Unauthorized("the server demands a layer of SASL that is not offered here: TLS protects connections")
        self.is_complete = True
        return self._context.wrap(bytes([NO_LAYER, 0, 0, 0]))
