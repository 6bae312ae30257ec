"""SASL SCRAM-SHA-256 and PLAIN, both sides: a bookie keeps verifiers, from which no password can be computed.

    client: n,,n=USER,r=NONCE                         (client-first)
    bookie: r=NONCE+NONCE,s=SALT,i=ITERATIONS         (server-first)
    client: c=biws,r=NONCE+NONCE,p=PROOF              (client-final: it knows the password)
    bookie: v=SIGNATURE                               (server-final: it has the verifier)

SCRAM sends no password, so it may be used without encryption, although a recording lets an attacker guess weak
passwords. PLAIN sends the password, and needs TLS. Channel binding is not offered. Source: RFC 5802, 7677, 4616, 4013.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import re
import stringprep
import unicodedata

from msgspec import Struct

from bookies.errors import Unauthorized

PREFIX = "scram-sha-256:"
ITERATIONS = 4096  # the least that RFC 7677 allows; passwords should be random
ITERATIONS_MAX = 100_000  # that a client computes for a bookie, which is not authenticated yet
SALT_SIZE = 16
SIZE_MAX = 4096  # bytes of one message
_HEADER = "n,,"
_FIRST = re.compile(r"([ny]),(?:a=([^,]*))?,(n=([^,]+),r=([\x21-\x2b\x2d-\x7e]+))(?:,.*)?", re.S)
_FINAL = re.compile(r"(c=([^,]+),r=([^,]+)(?:,[^p][^,]*)*),p=([^,]+)", re.S)
_CHALLENGE = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+),s=([^,]+),i=([0-9]{1,9})(?:,.*)?", re.S)


class ScramVerifier(Struct, frozen=True):
    """Keys that a bookie stores instead of a password."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @property
    def text(self) -> str:
        """Return the verifier as the file of users has it."""
        return f"{PREFIX}{self.iterations}:{':'.join(map(_base64, (self.salt, self.stored_key, self.server_key)))}"

    def matches(self, password: str) -> bool:
        """Report whether this is the password. Costs about a millisecond."""
        try:
            other = verifier_of(password, self.salt, self.iterations)
        except Unauthorized:
            return False
        return hmac.compare_digest(other.stored_key, self.stored_key)


def verifier_of(password: str, salt: bytes, iterations: int = ITERATIONS) -> ScramVerifier:
    """Return the verifier of a password. Raises `Unauthorized` if it has characters that RFC 4013 prohibits."""
    client_key, server_key = _keys(_salted(password, salt, iterations))
    return ScramVerifier(salt, iterations, hashlib.sha256(client_key).digest(), server_key)


def parse_verifier(text: str) -> ScramVerifier:
    """Return the verifier of a text. Raises ValueError."""
    iterations, *rest = text.removeprefix(PREFIX).split(":")
    salt, stored_key, server_key = (base64.b64decode(part, validate=True) for part in rest)
    if len(stored_key) != 32 or len(server_key) != 32 or not salt or not 1 <= int(iterations) <= ITERATIONS_MAX:
        raise ValueError("the verifier has a salt, two keys of 32 bytes, and at most 100,000 iterations")
    return ScramVerifier(salt, int(iterations), stored_key, server_key)


def decoy(user: str, secret: bytes) -> ScramVerifier:
    """Return a verifier that no password has, always the same of a name: answers do not reveal which users exist."""
    salt = hmac.digest(secret, user.encode("utf-8", "backslashreplace"), "sha256")
    return ScramVerifier(salt[:SALT_SIZE], ITERATIONS, hmac.digest(secret, salt, "sha256"), salt)


def parse_plain(message: bytes) -> tuple[str, str, str]:
    """Return (authorization, user, password) of a PLAIN message. Raises `Unauthorized`."""
    parts = _text(message).split("\0")
    if len(parts) != 3 or not parts[1] or not parts[2]:
        raise Unauthorized("the SASL message is malformed: PLAIN has a user and a password")
    return parts[0], parts[1], parts[2]


class ScramServer:
    """The bookie's side of one authentication. `nonce`: unpredictable printable ASCII without commas."""

    def __init__(self, nonce: str) -> None:
        self.user = ""  # as the client says, until `evaluate` has returned
        self.authorization = ""
        self._nonce = nonce
        self._header = self._signed = ""
        self.verifier: ScramVerifier

    def begin(self, message: bytes) -> str:
        """Read the client's first message, and return the user that it names. Raises `Unauthorized`."""
        match = _FIRST.fullmatch(_text(message))
        if match is None:
            raise Unauthorized("the SASL message is malformed, or asks for channel binding, which is not offered")
        flag, authorization, self._signed, user, nonce = match.groups()
        self._header = f"{flag},{'' if authorization is None else f'a={authorization}'},"
        self.user, self._nonce = _unescaped(user), nonce + self._nonce
        self.authorization = _unescaped(authorization) if authorization else self.user
        return self.user

    def challenge(self, verifier: ScramVerifier) -> bytes:
        self.verifier = verifier
        challenge = f"r={self._nonce},s={_base64(verifier.salt)},i={verifier.iterations}"
        self._signed += f",{challenge}"
        return challenge.encode()

    def evaluate(self, message: bytes) -> bytes:
        """Return the signature that answers a good proof. Raises `Unauthorized`."""
        match = _FINAL.fullmatch(_text(message))
        if match is None:
            raise Unauthorized("the SASL message is malformed")
        without_proof, binding, nonce, proof = match.groups()
        if nonce != self._nonce or binding != _base64(self._header.encode()):
            raise Unauthorized("the SASL response was made for another challenge")
        signed = f"{self._signed},{without_proof}".encode()
        key = _xor(_decoded(proof), hmac.digest(self.verifier.stored_key, signed, "sha256"))
        if not hmac.compare_digest(hashlib.sha256(key).digest(), self.verifier.stored_key):
            raise Unauthorized("wrong user or password")
        return b"v=" + _base64(hmac.digest(self.verifier.server_key, signed, "sha256")).encode()


class ScramClient:
    """The client's side of one authentication. `nonce`: like the server's."""

    is_complete = False  # A bookie answers the last response.

    def __init__(self, user: str, password: str, nonce: str) -> None:
        self._password = password
        self._nonce = nonce
        self._first = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return f"{_HEADER}{self._first}".encode()

    def respond(self, message: bytes) -> bytes | None:
        """Return the response to a bookie's message; None: the bookie has proved itself. Raises `Unauthorized`."""
        if self._signature:
            if not hmac.compare_digest(self._signature, message):
                raise Unauthorized("the bookie does not prove that it knows our password")
            return None
        match = _CHALLENGE.fullmatch(_text(message))
        if match is None or not match[1].startswith(self._nonce) or match[1] == self._nonce:
            raise Unauthorized("the bookie's SASL challenge is not one of SCRAM-SHA-256")
        iterations = int(match[3])
        if not ITERATIONS <= iterations <= ITERATIONS_MAX:
            raise Unauthorized(f"the bookie asks for {iterations:,} iterations of SCRAM: 4,096 to 100,000 are computed")
        client_key, server_key = _keys(_salted_before(self._password, _decoded(match[2]), iterations))
        without_proof = f"c={_base64(_HEADER.encode())},r={match[1]}"
        signed = f"{self._first},{_text(message)},{without_proof}".encode()
        self._signature = b"v=" + _base64(hmac.digest(server_key, signed, "sha256")).encode()
        proof = _xor(client_key, hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256"))
        return f"{without_proof},p={_base64(proof)}".encode()


class PlainClient:
    """The client's side of PLAIN: one message. The connection has to be encrypted."""

    is_complete = False  # A bookie answers the last response.

    def __init__(self, user: str, password: str) -> None:
        self._message = f"\0{user}\0{password}".encode()

    def first(self) -> bytes:
        return self._message

    def respond(self, message: bytes) -> bytes | None:
        """Return None: any answer means success."""
        return None


def prepared(password: str) -> str:
    """Return a password in the form that is hashed (SASLprep). Raises `Unauthorized` for prohibited characters."""
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in password
        if not stringprep.in_table_b1(character)
    )
    text = unicodedata.normalize("NFKC", mapped)
    prohibited = (
        stringprep.in_table_c21_c22,
        stringprep.in_table_c3,
        stringprep.in_table_c4,
        stringprep.in_table_c5,
        stringprep.in_table_c6,
        stringprep.in_table_c7,
        stringprep.in_table_c8,
        stringprep.in_table_c9,
    )
    if not text or any(is_prohibited(character) for character in text for is_prohibited in prohibited):
        raise Unauthorized("the password is empty, or has control characters")
    return text


def _salted(password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", prepared(password).encode(), salt, iterations)


# A client authenticates each connection to each bookie with the same salt.
_salted_before = functools.lru_cache(maxsize=16)(_salted)


def _keys(salted: bytes) -> tuple[bytes, bytes]:
    """Return the client's key and the server's."""
    return hmac.digest(salted, b"Client Key", "sha256"), hmac.digest(salted, b"Server Key", "sha256")


def _text(message: bytes) -> str:
    if len(message) > SIZE_MAX:
        raise Unauthorized("the SASL message is too long")
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise Unauthorized("the SASL message is not UTF-8") from error


def _unescaped(name: str) -> str:
    if "=" in name.replace("=2C", "").replace("=3D", ""):
        raise Unauthorized("the SASL message is malformed: the user has an `=` that is not escaped")
    return name.replace("=2C", ",").replace("=3D", "=")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unauthorized("the SASL message is malformed: no base64") from error


def _xor(first: bytes, second: bytes) -> bytes:
    if len(first) != len(second):
        raise Unauthorized("the SASL message is malformed: the proof has another length")
    return bytes(a ^ b for a, b in zip(first, second, strict=True))
