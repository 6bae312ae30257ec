"""SASL DIGEST-MD5, both sides, like the Java platform's provider: quality of protection `auth` only.

    bookie: realm, nonce                                    (challenge)
    client: user, realm, nonce, cnonce, H(password, ...)    (response)
    bookie: rspauth = H(password, ...)                      (proof that the bookie knows the password as well)

The mechanism encrypts nothing and signs nothing that follows: without TLS an attacker between the two can take the
connection over, and can guess passwords from a recording. RFC 6331 retired the mechanism for that; it is here because
Apache's bookies and clients have it. Source: wire-protocol 5.2, RFC 2831.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable

from bookies.errors import Unauthorized

SERVICE = "bookkeeper"  # service of the digest-uri, and also the name of the server and the realm
SIZE_MAX = 4096  # bytes of one message
NONCE_COUNT = "00000001"  # a connection authenticates once

_DIRECTIVE = re.compile(
    rb'[\s,]*([A-Za-z][A-Za-z0-9-]*)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s",=]+))[ \t]*(?=,|$)', re.S
)


def parse_directives(message: bytes) -> dict[str, bytes]:
    """Return the values by name, in lower case; of a repeated name the first. Raises `Unauthorized`."""
    directives: dict[str, bytes] = {}
    at = 0
    if len(message) > SIZE_MAX:
        raise Unauthorized("the SASL message is too long")
    while at < len(message) and message[at:].strip(b", \t\r\n"):
        match = _DIRECTIVE.match(message, at)
        if match is None:
            raise Unauthorized("the SASL message is malformed")
        name, quoted, plain = match.groups()
        value = plain if quoted is None else re.sub(rb"\\(.)", rb"\1", quoted, flags=re.S)
        directives.setdefault(name.decode("ascii").lower(), value)
        at = match.end()
    return directives


class DigestMd5Server:
    """The bookie's side of one authentication. `secret_of`: `secret_of_password` of a user; None: it has none.

    `nonce`: unpredictable printable ASCII, new for every connection.
    """

    def __init__(self, secret_of: Callable[[str], bytes | None], nonce: str) -> None:
        self.user = ""  # known once `evaluate` has returned
        self.authorization = ""
        self._secret_of = secret_of
        self._nonce = nonce

    def challenge(self) -> bytes:
        return f'realm="{SERVICE}",nonce="{self._nonce}",qop="auth",charset=utf-8,algorithm=md5-sess'.encode("ascii")

    def evaluate(self, response: bytes) -> bytes:
        """Return the proof that answers a good response. Raises `Unauthorized` with the reason, for the log."""
        given = parse_directives(response)
        missing = [
            name for name in ("username", "nonce", "cnonce", "nc", "digest-uri", "response") if name not in given
        ]
        if missing:
            raise Unauthorized(f"the SASL response lacks {missing[0]}")
        encoding = "utf-8" if given.get("charset", b"").lower() == b"utf-8" else "latin-1"
        user, realm, authorization, uri = (
            _decode(given.get(name, b""), encoding) for name in ("username", "realm", "authzid", "digest-uri")
        )
        if realm != SERVICE:
            raise Unauthorized("the SASL realm is not ours")
        if uri.lower() != f"{SERVICE}/{SERVICE}":
            raise Unauthorized("the SASL response was made for another service")
        if given.get("qop", b"auth") != b"auth":
            raise Unauthorized("the SASL response asks for more than authentication")
        if given["nc"] != NONCE_COUNT.encode() or not hmac.compare_digest(given["nonce"], self._nonce.encode("ascii")):
            raise Unauthorized("the SASL response was made for another challenge")
        known = self._secret_of(user)
        # Unknown users are computed too, so that the response time does not reveal which users exist.
        secret = _secret(known or b"", given["nonce"], given["cnonce"], given.get("authzid"))
        expected = _proof(secret, given["nonce"], given["cnonce"], f"AUTHENTICATE:{uri}", encoding)
        if not hmac.compare_digest(expected, given["response"]) or known is None:
            raise Unauthorized("wrong user or password")
        self.user, self.authorization = user, authorization or user
        return b"rspauth=" + _proof(secret, given["nonce"], given["cnonce"], f":{uri}", encoding)


class DigestMd5Client:
    """The client's side of one authentication, as `auth.SaslClient`. `cnonce`: like the server's `nonce`. `uri`:
    service and host."""

    is_complete = False  # The server's proof answers the last response.

    def __init__(self, user: str, password: str, cnonce: str, uri: str = f"{SERVICE}/{SERVICE}") -> None:
        self._user = user
        self._password = password
        self._cnonce = cnonce.encode("ascii")
        self._uri = uri
        self._expected = b""

    def first(self) -> bytes:
        return b""

    def respond(self, message: bytes) -> bytes | None:
        """Return the response to a challenge; None: the message was the server's proof. Raises `Unauthorized`."""
        if self._expected:
            self._check(message)
            return None
        return self._respond(message)

    def _respond(self, challenge: bytes) -> bytes:
        given = parse_directives(challenge)
        if "nonce" not in given or given.get("algorithm", b"").lower() != b"md5-sess":
            raise Unauthorized("the server's SASL challenge is not one of DIGEST-MD5")
        if b"auth" not in [quality.strip() for quality in given.get("qop", b"auth").split(b",")]:
            raise Unauthorized("the server wants more than authentication from SASL, which is not offered here")
        encoding = "utf-8" if given.get("charset", b"").lower() == b"utf-8" else "latin-1"
        realm = _decode(given.get("realm", b""), encoding)
        uri = self._uri
        known = secret_of_password(self._user, self._password, realm)
        secret = _secret(known, given["nonce"], self._cnonce, None)
        proof = _proof(secret, given["nonce"], self._cnonce, f"AUTHENTICATE:{uri}", encoding)
        self._expected = b"rspauth=" + _proof(secret, given["nonce"], self._cnonce, f":{uri}", encoding)
        try:
            user = self._user.encode(encoding)
        except UnicodeEncodeError as error:
            raise Unauthorized("the server cannot read the user name: it does not know UTF-8") from error
        directives = [b"charset=utf-8"] if encoding == "utf-8" else []
        directives += [
            b"username=" + _quoted(user),
            b"realm=" + _quoted(given.get("realm", b"")),
            b"nonce=" + _quoted(given["nonce"]),
            b"nc=" + NONCE_COUNT.encode("ascii"),
            b"cnonce=" + _quoted(self._cnonce),
            b"digest-uri=" + _quoted(uri.encode(encoding)),
            b"response=" + proof,
            b"qop=auth",
        ]
        return b",".join(directives)

    def _check(self, answer: bytes) -> None:
        if not hmac.compare_digest(self._expected, answer.strip()):
            raise Unauthorized("the server does not prove that it knows our password")


def secret_of_password(user: str, password: str, realm: str = SERVICE) -> bytes:
    """Return what a bookie stores of a password. Who has it can act as the user, but only in this realm."""
    return _md5(b":".join(map(_hashed, (user, realm, password))))


def _secret(known: bytes, nonce: bytes, cnonce: bytes, authorization: bytes | None) -> bytes:
    """Return H(A1), in hexadecimal."""
    return _hex(b":".join([known, nonce, cnonce, *([authorization] if authorization else [])]))


def _proof(secret: bytes, nonce: bytes, cnonce: bytes, action: str, encoding: str) -> bytes:
    action_digest = _hex(action.encode(encoding))
    return _hex(b":".join([secret, nonce, NONCE_COUNT.encode("ascii"), cnonce, b"auth", action_digest]))


def _hashed(text: str) -> bytes:
    """Encode as Latin-1 if that has all the characters, as RFC 2831 requires, else as UTF-8."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8")


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _hex(data: bytes) -> bytes:
    return _md5(data).hex().encode("ascii")


def _decode(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise Unauthorized("the SASL message is not UTF-8") from error


def _quoted(value: bytes) -> bytes:
    return b'"' + value.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
