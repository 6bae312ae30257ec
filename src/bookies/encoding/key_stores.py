"""Keys and certificates in Java's key stores: the formats JKS and PKCS 12, converted to PEM in memory.

A JKS store is a list of entries: private keys with their chains, and trusted certificates. A key is encrypted with a
stream of SHA-1 digests of the password. PKCS 12 needs the package `cryptography`.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Sequence

from msgspec import Struct

from bookies.errors import ConfigError

JKS_MAGIC = b"\xfe\xed\xfe\xed"
DIGEST_SIZE = 20
_SIGNED = b"Mighty Aphrodite"  # hashed between the password and the content
_KEY, _TRUSTED = 1, 2


class KeyStore(Struct, frozen=True):
    """Content of a store, in DER. `chain`: of the first private key, its own certificate first; `key`: PKCS 8."""

    key: bytes
    chain: Sequence[bytes]
    trusted: Sequence[bytes]

    @property
    def key_and_chain(self) -> bytes:
        """Return key and chain as PEM."""
        return _pem("PRIVATE KEY", self.key) + b"".join(_pem("CERTIFICATE", data) for data in self.chain)

    @property
    def authorities(self) -> str:
        """Return the trusted certificates as PEM."""
        return b"".join(_pem("CERTIFICATE", data) for data in self.trusted).decode()


def is_key_store(data: bytes) -> bool:
    """Report whether a file is a key store, and not PEM."""
    is_der = data[:1] == b"\x30" and data[1:2] >= b"\x80"  # not a text that begins with the digit 0
    return is_der or data.startswith(JKS_MAGIC)


def read_key_store(data: bytes, password: bytes, path: str) -> KeyStore:
    """Return the content of a JKS or PKCS 12 store. Raises `ConfigError`, which has no password."""
    try:
        return _read_jks(data, password) if data.startswith(JKS_MAGIC) else _read_pkcs12(data, password, path)
    except (ValueError, struct.error) as error:
        raise ConfigError(f"the key store {path} cannot be read: {error}") from error


def _read_pkcs12(data: bytes, password: bytes, path: str) -> KeyStore:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError as error:
        raise ConfigError(
            f"{path} is a PKCS 12 store: pip install 'bookies[keystores]', or convert it to PEM with `openssl pkcs12`"
        ) from error
    store = pkcs12.load_pkcs12(data, password or None)
    encoding, plain = serialization.Encoding, serialization.NoEncryption()
    # A certificate of the chain may also be a trusted one.
    others = list(dict.fromkeys(entry.certificate.public_bytes(encoding.DER) for entry in store.additional_certs))
    own = [] if store.cert is None else [store.cert.certificate.public_bytes(encoding.DER)]
    if store.key is None:
        return KeyStore(b"", (), [*own, *others])
    key = store.key.private_bytes(encoding.DER, serialization.PrivateFormat.PKCS8, plain)
    return KeyStore(key, [*own, *others], others)


def _read_jks(data: bytes, password: bytes) -> KeyStore:
    content, digest = data[:-DIGEST_SIZE], data[-DIGEST_SIZE:]
    secret = password.decode().encode("utf-16-be")
    if hashlib.sha1(secret + _SIGNED + content, usedforsecurity=False).digest() != digest:
        raise ValueError("the password is wrong, or the file is damaged")
    reader = _Reader(content, len(JKS_MAGIC))
    version, count = reader.number(), reader.number()
    if version not in (1, 2):
        raise ValueError(f"version {version} of JKS is unknown")
    key, chain, trusted = b"", list[bytes](), list[bytes]()
    for _ in range(count):
        kind = reader.number()
        reader.text()  # the alias
        reader.skip(8)  # when it was made
        encrypted = reader.block() if kind == _KEY else b""
        certificates = [reader.certificate(version) for _ in range(reader.number() if kind == _KEY else 1)]
        if kind == _KEY and not key:
            key, chain = _decrypted(encrypted, secret), certificates
        elif kind == _TRUSTED:
            trusted += certificates
        elif kind != _KEY:
            raise ValueError(f"it has an entry of the unknown kind {kind}")
    return KeyStore(key, chain, trusted)


def _decrypted(encrypted: bytes, secret: bytes) -> bytes:
    """Return the PKCS 8 key in Java's EncryptedPrivateKeyInfo: algorithm, then salt, ciphertext and digest."""
    protected = _last_octets(encrypted)
    stream, ciphertext = protected[:DIGEST_SIZE], protected[DIGEST_SIZE:-DIGEST_SIZE]
    key = bytearray()
    while len(key) < len(ciphertext):
        stream = hashlib.sha1(secret + stream, usedforsecurity=False).digest()
        key += bytes(a ^ b for a, b in zip(ciphertext[len(key) :], stream, strict=False))
    if hashlib.sha1(secret + key, usedforsecurity=False).digest() != protected[-DIGEST_SIZE:]:
        raise ValueError("the password of the key is not that of the store")
    return bytes(key)


def _last_octets(data: bytes) -> bytes:
    """Return the OCTET STRING at the end of SEQUENCE { algorithm, OCTET STRING }, in DER."""
    start, _ = _der(data, 0)
    _, algorithm_end = _der(data, start)
    begin, end = _der(data, algorithm_end)
    return data[begin:end]


def _der(data: bytes, at: int) -> tuple[int, int]:
    """Return where the content of a DER element begins and ends."""
    if len(data) < at + 2:
        raise ValueError("the encrypted key is cut off")
    size, begin = data[at + 1], at + 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(data[at + 2 : begin], "big")
    if begin + size > len(data):
        raise ValueError("the encrypted key is cut off")
    return begin, begin + size


class _Reader:
    """Reads the fields of a JKS store."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def skip(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            raise ValueError("it is cut off")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self) -> int:
        return int.from_bytes(self.skip(4), "big")

    def block(self) -> bytes:
        return self.skip(self.number())

    def text(self) -> bytes:
        return self.skip(int.from_bytes(self.skip(2), "big"))

    def certificate(self, version: int) -> bytes:
        if version == 2 and (kind := self.text()) != b"X.509":
            raise ValueError(f"it has a certificate of the unknown kind {kind!r}")
        return self.block()


def _pem(label: str, data: bytes) -> bytes:
    lines = base64.encodebytes(data)
    return b"-----BEGIN %s-----\n%s-----END %s-----\n" % (label.encode(), lines, label.encode())
