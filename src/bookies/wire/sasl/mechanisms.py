"""SASL over AUTH messages: the mechanisms, and how a bookie recognizes them.

No message names the mechanism, and all have the same plugin name. DIGEST-MD5 begins with an empty message; GSSAPI's
first byte begins no name of a user; PLAIN's message has NUL bytes, which SCRAM's never has. Apache's bookies and
clients have DIGEST-MD5 and GSSAPI only. Source: wire-protocol 5.2, RFC 4616, 4752, 5802.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from bookies.encoding.digest_md5 import DigestMd5Client, DigestMd5Server
from bookies.encoding.gssapi import TAG, GssapiServer, SecurityContext
from bookies.errors import Unauthorized
from bookies.wire.auth import SASL, SaslClient, Subject
from bookies.wire.sasl.scram import PlainClient, ScramClient, ScramServer, ScramVerifier, decoy, parse_plain

DIGEST_MD5, SCRAM, PLAIN, GSSAPI = "DIGEST-MD5", "SCRAM-SHA-256", "PLAIN", "GSSAPI"
MECHANISMS = (DIGEST_MD5, SCRAM, PLAIN)  # by password


class Secrets(Struct, frozen=True):
    """Secrets of a user, which a bookie has. `is_token`: decides whether a password is a token of the user."""

    digest_md5: bytes | None = None
    scram: ScramVerifier | None = None
    is_token: Callable[[str], bool] = lambda password: False


class Principals(Struct, frozen=True):
    """Kerberos at a bookie. `accept`: returns the context of a connection. `user_of`: of a principal; None: none."""

    accept: Callable[[], SecurityContext]
    user_of: Callable[[str], str | None]


class SaslExchange:
    """The bookie's side. `secrets_of`: of a user; None: there is no such user. `is_allowed`: decides whether an
    authenticated user, or principal, may connect. `nonce`, `decoy_key`: unpredictable, the first for each connection.
    `principals`: None: GSSAPI is not offered."""

    plugin = SASL

    def __init__(
        self,
        secrets_of: Callable[[str], Secrets | None],
        is_allowed: Callable[[str], bool],
        nonce: str,
        decoy_key: bytes,
        principals: Principals | None = None,
    ) -> None:
        self.is_done = False
        self.user = self.detail = ""
        self._secrets_of = secrets_of
        self._is_allowed = is_allowed
        self._nonce = nonce
        self._decoy_key = decoy_key
        self._principals = principals
        self._is_encrypted = False
        self._server: DigestMd5Server | ScramServer | None = None
        self._gssapi: GssapiServer | None = None

    def received(self, payload: bytes) -> bytes | None:
        """See `auth.Exchange`."""
        server = self._server
        if server is not None:
            proof = server.evaluate(payload)
            if isinstance(server, ScramServer) and server.verifier != self._verifier(server.user):
                raise Unauthorized("its password was changed meanwhile")
            self._finish(server.authorization, server.user)
            return proof
        if self._gssapi is not None or payload.startswith(TAG):
            return self._check_ticket(payload)
        if not payload:
            self._server = md5 = DigestMd5Server(self._digest_md5, self._nonce)
            return md5.challenge()
        if b"\0" in payload:
            self._check_plain(payload)
            return b""
        if payload[:2] not in (b"n,", b"y,", b"p="):
            spoken = [*MECHANISMS, *([] if self._principals is None else [GSSAPI])]
            raise Unauthorized(f"it speaks none of our SASL mechanisms, {', '.join(spoken)}")
        self._server = scram = ScramServer(self._nonce)
        return scram.challenge(self._verifier(scram.begin(payload)))

    def encrypted(self, subject: Subject | None) -> None:
        """See `auth.Exchange`. TLS does not identify the user, and is the condition for PLAIN."""
        self._is_encrypted = True

    def _check_ticket(self, payload: bytes) -> bytes | None:
        """Return the answer to a message of GSSAPI. The user is checked as soon as the principal is known, because
        nothing answers the last message, and again then."""
        principals = self._principals
        if principals is None:
            raise Unauthorized("it presents a Kerberos ticket, and this bookie has no kerberos_keytab")
        try:
            if self._gssapi is None:
                self._gssapi = GssapiServer(principals.accept())
            answer = self._gssapi.received(payload)
        except Unauthorized as error:
            self.detail = error.message
            raise Unauthorized("its Kerberos ticket is not accepted") from error
        if principal := self._gssapi.principal:
            self.detail = principal
            user = principals.user_of(principal)
            if user is None:
                raise Unauthorized("users_file lists no user with its principal (bk token add --kerberos)")
            if not self._is_allowed(principal):
                raise Unauthorized("its principal is known, but does not match sasl_allowed_ids")
            if self._gssapi.is_done:
                self.user, self.is_done = user, True
        return answer

    def _check_plain(self, payload: bytes) -> None:
        if not self._is_encrypted:
            raise Unauthorized("it sends its password without encryption (SASL PLAIN)")
        authorization, user, password = parse_plain(payload)
        secrets = self._secrets_of(user)
        is_token = secrets is not None and secrets.is_token(password)
        if not is_token and not self._verifier(user).matches(password):
            raise Unauthorized("wrong user or password")
        self._finish(authorization or user, user)

    def _finish(self, authorization: str, user: str) -> None:
        if authorization != user:
            raise Unauthorized("it requests to act for another user than itself")
        if not self._is_allowed(user):
            raise Unauthorized("its user is known, but does not match sasl_allowed_ids")
        self.user, self.is_done = user, True

    def _digest_md5(self, user: str) -> bytes | None:
        secrets = self._secrets_of(user)
        return None if secrets is None else secrets.digest_md5

    def _verifier(self, user: str) -> ScramVerifier:
        secrets = self._secrets_of(user)
        verifier = None if secrets is None else secrets.scram
        return decoy(user, self._decoy_key) if verifier is None else verifier


def sasl_client(mechanism: str, user: str, password: str, nonce: str) -> SaslClient:
    """Return the client's side of one of `MECHANISMS`. `nonce`: unpredictable, of each connection."""
    if mechanism == SCRAM:
        return ScramClient(user, password, nonce)
    return PlainClient(user, password) if mechanism == PLAIN else DigestMd5Client(user, password, nonce)
