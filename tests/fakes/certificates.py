"""An authority and certificates for tests, made in Python: curve P-256, X.509 in DER, files in PEM.

Slow and open to whoever measures times: for keys that protect nothing. Python has no such thing, and a test should
not need a package or a program for two hundred bytes.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import pathlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
Point = tuple[int, int] | None
DAY = datetime.timedelta(days=1)


def _add(one: Point, other: Point) -> Point:
    if one is None or other is None:
        return other if one is None else one
    (x, y), (u, v) = one, other
    if x == u and (y + v) % P == 0:
        return None
    slope = (3 * x * x - 3) * pow(2 * y, -1, P) if one == other else (v - y) * pow(u - x, -1, P)
    w = (slope * slope - x - u) % P
    return w, (slope * (x - w) - y) % P


def _multiply(point: Point, factor: int) -> tuple[int, int]:
    product: Point = None
    while factor:
        if factor & 1:
            product = _add(product, point)
        point = _add(point, point)
        factor >>= 1
    assert product is not None
    return product


def _der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    head = bytes([size]) if size < 128 else bytes([0x81, size]) if size < 256 else b"\x82" + size.to_bytes(2, "big")
    return bytes([tag]) + head + content


def _integer(value: int) -> bytes:
    return _der(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _oid(text: str) -> bytes:
    first, second, *rest = map(int, text.split("."))
    out = bytearray([40 * first + second])
    for number in rest:
        septets = [number & 0x7F]
        while number := number >> 7:
            septets.append(number & 0x7F | 0x80)
        out += bytes(reversed(septets))
    return _der(0x06, bytes(out))


EC_KEY = _der(0x30, _oid("1.2.840.10045.2.1"), _oid("1.2.840.10045.3.1.7"))
ECDSA_SHA256 = _der(0x30, _oid("1.2.840.10045.4.3.2"))
COMMON_NAME, UNIT = "2.5.4.3", "2.5.4.11"


def _name(common_name: str, units: Sequence[str]) -> bytes:
    pairs = [(UNIT, unit) for unit in units] + [(COMMON_NAME, common_name)]
    return _der(0x30, *(_der(0x31, _der(0x30, _oid(kind), _der(0x0C, text.encode()))) for kind, text in pairs))


def _time(when: datetime.datetime) -> bytes:
    return _der(0x18, when.strftime("%Y%m%d%H%M%SZ").encode())


def _extension(kind: str, value: bytes, is_critical: bool = False) -> bytes:
    return _der(0x30, _oid(kind), b"\x01\x01\xff" if is_critical else b"", _der(0x04, value))


def _alternative_name(host: str) -> bytes:
    try:
        return _der(0x87, ipaddress.ip_address(host).packed)
    except ValueError:
        return _der(0x82, host.encode())


def _pem(kind: str, data: bytes) -> str:
    text = base64.b64encode(data).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----", ""])


class _Key:
    def __init__(self) -> None:
        self._secret = secrets.randbelow(N - 1) + 1
        x, y = _multiply(G, self._secret)
        self._point = _der(0x03, b"\x00\x04", x.to_bytes(32, "big"), y.to_bytes(32, "big"))
        self.public = _der(0x30, EC_KEY, self._point)
        # OpenSSL's strict checks, Python's default since 3.13, demand that certificates name their keys.
        self._id = hashlib.sha1(self._point[3:]).digest()

    def own_id(self) -> bytes:
        """The extension that names this key as the certificate's own."""
        return _extension("2.5.29.14", _der(0x04, self._id))

    def signer_id(self) -> bytes:
        """The extension that names this key as the one that signed."""
        return _extension("2.5.29.35", _der(0x30, _der(0x80, self._id)))

    def pem(self) -> str:
        secret = _der(0x30, _integer(1), _der(0x04, self._secret.to_bytes(32, "big")), _der(0xA1, self._point))
        return _pem("PRIVATE KEY", _der(0x30, _integer(0), EC_KEY, _der(0x04, secret)))

    def sign(self, data: bytes) -> bytes:
        digest = int.from_bytes(hashlib.sha256(data).digest(), "big")
        k = secrets.randbelow(N - 1) + 1
        r = _multiply(G, k)[0] % N
        s = pow(k, -1, N) * (digest + r * self._secret) % N
        return _der(0x03, b"\x00", _der(0x30, _integer(r), _integer(s)))


@dataclass(frozen=True)
class Files:
    certificate: str
    key: str


class Authority:
    """Signs certificates; `path`: of its own, `NAME.pem` in the folder."""

    def __init__(self, folder: pathlib.Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = _Key()
        self._name = _name(name, ())
        extensions = [
            _extension("2.5.29.19", _der(0x30, b"\x01\x01\xff"), True),
            _extension("2.5.29.15", _der(0x03, b"\x02\x04"), True),  # may sign certificates
            self._key.own_id(),
        ]
        self.path = str(folder / f"{name}.pem")
        now = datetime.datetime.now(datetime.UTC)
        certificate = self._sign(self._name, self._key.public, now - DAY, now + 100 * DAY, extensions)
        pathlib.Path(self.path).write_text(_pem("CERTIFICATE", certificate))

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = ("127.0.0.1", "localhost"),
        units: Sequence[str] = (),
        begins: datetime.timedelta = -DAY,
        ends: datetime.timedelta = 30 * DAY,
    ) -> Files:
        """A certificate and its key in `NAME.pem` and `NAME.key`. `units`: OUs, in the order of the certificate."""
        key = _Key()
        names = _der(0x30, *map(_alternative_name, hosts))
        extensions = [_extension("2.5.29.17", names), key.own_id(), self._key.signer_id()]
        now = datetime.datetime.now(datetime.UTC)
        certificate = self._sign(_name(name, units), key.public, now + begins, now + ends, extensions)
        files = Files(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))
        pathlib.Path(files.certificate).write_text(_pem("CERTIFICATE", certificate))
        pathlib.Path(files.key).write_text(key.pem())
        return files

    def _sign(
        self,
        subject: bytes,
        public: bytes,
        begins: datetime.datetime,
        ends: datetime.datetime,
        extensions: Sequence[bytes],
    ) -> bytes:
        body = _der(
            0x30,
            _der(0xA0, _integer(2)),
            _integer(secrets.randbits(64)),
            ECDSA_SHA256,
            self._name,
            _der(0x30, _time(begins), _time(ends)),
            subject,
            public,
            _der(0xA3, _der(0x30, *extensions)),
        )
        return _der(0x30, body, ECDSA_SHA256, self._key.sign(body))
