"""What certificates say; and that no bytes do anything but say nothing."""

from __future__ import annotations

import datetime
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.certificates import Authority

from bookies.errors import InvalidArgument
from bookies.wire.auth import roles_of, text_of
from bookies.wire.certificate import parse_certificate, pem_blocks

# openssl req -x509 -newkey rsa:1024 -sha1 -days 3 -subj /C=DE/OU=0:a,b/OU=x/CN=b1
RSA_SHA1 = """-----BEGIN CERTIFICATE-----
MIICSDCCAbGgAwIBAgIUIfMmZH4f59w9qiJiDKnyLs71m1QwDQYJKoZIhvcNAQEF
BQAwNjELMAkGA1UEBhMCREUxDjAMBgNVBAsMBTA6YSxiMQowCAYDVQQLDAF4MQsw
CQYDVQQDDAJiMTAeFw0yNjExMjIwNjQyMTVaFw0yNjExMjUwNjQyMTVaMDYxCzAJ
BgNVBAYTAkRFMQ4wDAYDVQQLDAUwOmEsYjEKMAgGA1UECwwBeDELMAkGA1UEAwwC
YjEwgZ8wDQYJKoZIhvcNAQEBBQADgY0AMIGJAoGBANtr4kmdWPRlvxMWM13jooUV
QneNO0h0AlAACIArvChmb9XT9C1tAuujdNicBmhu6tM06xGGzVlOcXhwgbjCmCvX
z+1snq8N3oqm29RLp/F4qzxSDC6pRFRja0jcboilS+kIn7+mo4kRcPNKEmwXR0Dl
DcQL/EncbloFmX2gOZRhAgMBAAGjUzBRMB0GA1UdDgQWBBT4KQtBveCispRhdftp
x55TMfpyBzAfBgNVHSMEGDAWgBT4KQtBveCispRhdftpx55TMfpyBzAPBgNVHRMB
Af8EBTADAQH/MA0GCSqGSIb3DQEBBQUAA4GBACme1gy4bYghR22Ah95kf/Z9800X
BGJo6NhTxbN0LyhuM0Ywt+TGBCBarphjT1l7XkdxXyN2J8y5KDkwK5+gA3pmKySS
Avg0vbMUIat7fgJfDJn7FO7s0khJCGxd3EQkTWCEv8uZwgGf/vNzhITalwndPm9v
7nittBrYLg9nsz3s
-----END CERTIFICATE-----
"""


def test_what_it_says(tmp_path: pathlib.Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("b1", hosts=("b1.example", "10.0.0.1", "::1"), units=("0:admin,x;1:y", "z"))
    ((label, data),) = pem_blocks(pathlib.Path(files.certificate).read_text())
    assert label == "CERTIFICATE"
    found = parse_certificate(data)
    assert found.hosts == ("b1.example", "10.0.0.1", "::1")
    assert (found.key, found.key_bits, found.old_signature, found.is_authority) == (
        "elliptic curve P-256",
        256,
        "",
        False,
    )
    assert text_of(found.subject) == "commonName=b1, organizationalUnitName=z, organizationalUnitName=0:admin,x;1:y"
    assert text_of(found.issuer) == "commonName=authority"
    assert roles_of(found.subject) == ["admin", "x"]
    assert found.ends - found.begins == datetime.timedelta(days=31)
    ((_, own),) = pem_blocks(pathlib.Path(authority.path).read_text())
    assert parse_certificate(own).is_authority
    assert [label for label, _ in pem_blocks(pathlib.Path(files.key).read_text())] == ["PRIVATE KEY"]


def test_rsa_and_an_old_signature() -> None:
    ((_, data),) = pem_blocks(RSA_SHA1)
    found = parse_certificate(data)
    assert (found.key, found.old_signature, found.hosts) == ("RSA of 1024 bits", "SHA-1", ())
    assert roles_of(found.subject) == ["a", "b"]
    assert found.begins.tzinfo is datetime.UTC


def test_what_is_no_certificate(tmp_path: pathlib.Path) -> None:
    files = Authority(tmp_path).issue("b1")
    ((_, data),) = pem_blocks(pathlib.Path(files.certificate).read_text())
    for cut in range(0, len(data), 7):
        with pytest.raises(InvalidArgument):
            parse_certificate(data[:cut])
    assert pem_blocks("nothing") == []
    for body in ("!!!", "\N{BULLET}"):
        with pytest.raises(InvalidArgument, match="base64"):
            pem_blocks(f"-----BEGIN X-----\n{body}\n-----END X-----")


@given(st.binary(max_size=80))
def test_any_bytes(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        parse_certificate(data)


def test_an_empty_list_of_extensions() -> None:
    def der(tag: int, *parts: bytes) -> bytes:
        return bytes([tag, sum(map(len, parts))]) + b"".join(parts)

    oid, name = der(0x06, b"\x2a\x03"), der(0x30)
    times = der(0x30, der(0x17, b"260101000000Z"), der(0x17, b"270101000000Z"))
    key = der(0x30, der(0x30, oid), der(0x03, b"\0"))
    for extensions in (der(0xA3), der(0xA3, der(0x31))):
        body = der(0x30, der(0x02, b"\x01"), der(0x30, oid), name, times, name, key, extensions)
        with pytest.raises(InvalidArgument, match="not an X"):
            parse_certificate(der(0x30, body, der(0x30, oid), der(0x03, b"\0")))


def test_no_two_subjects_have_the_same_text() -> None:
    subjects = [
        ((("organizationName", "x"),), (("commonName", "b1"),)),
        ((("commonName", "b1, organizationName=x"),),),
        ((("organizationName", "x"),), (("commonName", "b1\\"),)),
        ((("commonName", "b1\\, organizationName=x"),),),
        ((("organizationName", "x"),), (("commonName", "b1,"),)),
        ((("commonName", "b1,, organizationName=x"),),),
    ]
    assert text_of(subjects[1]) == r"commonName=b1\, organizationName=x"
    assert len(set(map(text_of, subjects))) == len(subjects)
