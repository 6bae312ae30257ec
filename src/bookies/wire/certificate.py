"""Fields of an X.509 certificate that operators need: subject, issuer, validity, host names.

This module verifies nothing; OpenSSL does, but reports nothing about a certificate that it rejects. Source: RFC 5280
4.1, X.690.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from bookies.errors import InvalidArgument
from bookies.wire.auth import Subject

NAMES = {
    "2.5.4.3": "commonName",
    "2.5.4.6": "countryName",
    "2.5.4.7": "localityName",
    "2.5.4.8": "stateOrProvinceName",
    "2.5.4.10": "organizationName",
    "2.5.4.11": "organizationalUnitName",
}
CURVES = {"1.2.840.10045.3.1.7": "P-256", "1.3.132.0.34": "P-384", "1.3.132.0.35": "P-521"}
RSA, EC = "1.2.840.113549.1.1.1", "1.2.840.10045.2.1"
KEYS = {"1.3.101.112": "Ed25519", "1.3.101.113": "Ed448"}
OLD_SIGNATURES = {
    "1.2.840.113549.1.1.4": "MD5",
    "1.2.840.113549.1.1.5": "SHA-1",
    "1.2.840.10045.4.1": "SHA-1",
}
ALTERNATIVE_NAMES, BASIC_CONSTRAINTS = "2.5.29.17", "2.5.29.19"
SEQUENCE, OID, UTC_TIME, DNS_NAME, IP_ADDRESS = 0x30, 0x06, 0x17, 0x82, 0x87

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\s(.*?)-----END \1-----", re.S)


class Certificate(Struct, frozen=True):
    """One certificate. `begins`, `ends`: of its validity, in UTC. `hosts`: names and addresses. `key`: a description.

    `old_signature`: the broken hash that its signature uses; empty: none of those. `is_authority`: may sign others.
    """

    subject: Subject
    issuer: Subject
    begins: datetime.datetime
    ends: datetime.datetime
    hosts: tuple[str, ...]
    key: str
    key_bits: int
    old_signature: str
    is_authority: bool


class _Value(NamedTuple):
    tag: int
    content: bytes


def pem_blocks(text: str) -> list[tuple[str, bytes]]:
    """Return (label, bytes) of every block of a PEM file. Raises `InvalidArgument` for a block that is not base64."""
    blocks = []
    for label, body in _BLOCK.findall(text):
        lines = [line for line in body.splitlines() if line and ":" not in line]  # Old keys have headers.
        try:
            blocks.append((label, base64.b64decode("".join(lines), validate=True)))
        except ValueError as error:
            raise InvalidArgument(f"the block {label} is not base64: {error}") from error
    return blocks


def parse_certificate(data: bytes) -> Certificate:
    """Parse the DER form. Raises `InvalidArgument` when it is malformed."""
    try:
        return _parse(data)
    except (ValueError, IndexError) as error:
        raise InvalidArgument(f"not an X.509 certificate: {error!r}") from error


def _parse(data: bytes) -> Certificate:
    body, algorithm, _ = _parts(_one(data, SEQUENCE))
    fields = _parts(body.content)
    if fields[0].tag == 0xA0:  # the version, which is missing if it is the default
        fields = fields[1:]
    _, _, issuer, validity, subject, key, *rest = fields
    begins, ends = map(_time, _parts(validity.content))
    extensions = dict(_extensions(rest))
    key_text, bits = _key(key.content)
    constraints = _parts(_one(extensions[BASIC_CONSTRAINTS], SEQUENCE)) if BASIC_CONSTRAINTS in extensions else []
    return Certificate(
        subject=_names(subject.content),
        issuer=_names(issuer.content),
        begins=begins,
        ends=ends,
        hosts=tuple(_hosts(extensions.get(ALTERNATIVE_NAMES))),
        key=key_text,
        key_bits=bits,
        old_signature=OLD_SIGNATURES.get(_oid(_parts(algorithm.content)[0]), ""),
        is_authority=bool(constraints) and constraints[0] == _Value(0x01, b"\xff"),
    )


def _values(data: bytes) -> Iterator[_Value]:
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            if not 0 < count <= 4:
                raise ValueError("length of unknown form")
            size = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + size > len(data):
            raise ValueError("cut off")
        yield _Value(tag, data[at : at + size])
        at += size


def _parts(data: bytes) -> list[_Value]:
    return list(_values(data))


def _one(data: bytes, tag: int) -> bytes:
    value = next(_values(data), None)
    if value is None or value.tag != tag:
        raise ValueError("nothing" if value is None else f"tag {value.tag:#x}")
    return value.content


def _oid(value: _Value) -> str:
    if value.tag != OID:
        raise ValueError("no object identifier")
    numbers, number = [], 0
    for byte in value.content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _names(data: bytes) -> list[list[tuple[str, str]]]:
    names_of = []
    for names in _values(data):
        pairs = []
        for pair in _values(names.content):
            attribute, value = _parts(pair.content)
            encoding = "utf-16-be" if value.tag == 0x1E else "utf-8" if value.tag == 0x0C else "latin-1"
            pairs.append((NAMES.get(_oid(attribute), _oid(attribute)), value.content.decode(encoding)))
        names_of.append(pairs)
    return names_of


def _time(value: _Value) -> datetime.datetime:
    text = value.content.decode("ascii")
    if value.tag == UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC)


def _extensions(rest: list[_Value]) -> Iterator[tuple[str, bytes]]:
    for field in rest:
        if field.tag == 0xA3:
            for extension in _values(_one(field.content, SEQUENCE)):
                identifier, *_, value = _parts(extension.content)
                yield _oid(identifier), value.content


def _hosts(extension: bytes | None) -> Iterator[str]:
    for value in _values(_one(extension, SEQUENCE)) if extension is not None else ():
        if value.tag == DNS_NAME:
            yield value.content.decode("latin-1")
        elif value.tag == IP_ADDRESS:
            yield str(ipaddress.ip_address(value.content))


def _key(data: bytes) -> tuple[str, int]:
    """Return (algorithm, size in bits)."""
    algorithm, point = _parts(data)
    identifier, *parameters = _parts(algorithm.content)
    name = _oid(identifier)
    if name == RSA:
        modulus = _one(_one(point.content[1:], SEQUENCE), 0x02)
        bits = int.from_bytes(modulus, "big").bit_length()
        return f"RSA of {bits} bits", bits
    if name == EC:
        curve = CURVES.get(_oid(parameters[0]), _oid(parameters[0]))
        return f"elliptic curve {curve}", 4 * len(point.content) - 8
    return KEYS.get(name, name), 256
