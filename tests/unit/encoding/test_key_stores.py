"""Key stores that `keytool` wrote: `identity` has a key, its chain and the authority, `trust` the authority alone."""

from __future__ import annotations

import hashlib
import pathlib
import ssl
import struct
import sys

import pytest

from bookies.encoding.key_stores import JKS_MAGIC, is_key_store, read_key_store
from bookies.errors import ConfigError
from bookies.runtime.tls import load_authorities, load_certificate
from bookies.wire.auth import text_of
from bookies.wire.certificate import parse_certificate

STORES = pathlib.Path(__file__).parents[2] / "golden" / "key-stores"
PASSWORD = b"changeit"
FORMATS = ("jks", "p12")


def names(certificates: object) -> list[str]:
    return [text_of(parse_certificate(data).subject) for data in certificates]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", FORMATS)
def test_keys_chains_and_trusted_certificates(name: str) -> None:
    data = (STORES / f"identity.{name}").read_bytes()
    assert is_key_store(data)
    store = read_key_store(data, PASSWORD, "identity")
    assert names(store.chain) == ["commonName=bookie, organizationalUnitName=0:app", "commonName=authority"]
    assert names(store.trusted)[-1] == "commonName=authority"
    assert store.key_and_chain.startswith(b"-----BEGIN PRIVATE KEY-----")
    trust = read_key_store((STORES / f"trust.{name}").read_bytes(), PASSWORD, "trust")
    assert (trust.key, list(trust.chain), names(trust.trusted)) == (b"", [], ["commonName=authority"])
    assert not is_key_store(store.key_and_chain)


@pytest.mark.parametrize("name", FORMATS)
def test_openssl_loads_them(name: str, tmp_path: pathlib.Path) -> None:
    secret = tmp_path / "password"
    secret.write_bytes(PASSWORD + b"\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(context, str(STORES / f"identity.{name}"), "", str(secret))
    load_authorities(context, str(STORES / f"trust.{name}"), str(secret))
    assert [authority["subject"] for authority in context.get_ca_certs()] == [((("commonName", "authority"),),)]
    secret.write_bytes(b"secret")
    with pytest.raises(ConfigError, match=f"identity.{name} cannot be read") as caught:
        load_certificate(context, str(STORES / f"identity.{name}"), "", str(secret))
    assert "secret" not in str(caught.value)


def test_without_the_package_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    with pytest.raises(ConfigError, match=r"pip install 'bookies\[keystores\]'"):
        read_key_store((STORES / "trust.p12").read_bytes(), PASSWORD, "trust.p12")


def test_a_store_without_what_is_needed_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty.jks").write_bytes(signed(JKS_MAGIC + struct.pack(">II", 2, 0)))
    with pytest.raises(ConfigError, match="no trusted certificate"):
        load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), str(tmp_path / "empty.jks"), "")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), str(tmp_path / "empty.jks"), "", "")


def test_text_before_a_certificate_is_no_key_store() -> None:
    assert not is_key_store(b"0 s:CN = b1\n-----BEGIN CERTIFICATE-----\n")
    assert is_key_store(b"\x30\x82\x01\x00")


def signed(content: bytes) -> bytes:
    return content + hashlib.sha1(b"Mighty Aphrodite" + content).digest()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (struct.pack(">II", 3, 0), "version 3 of JKS is unknown"),
        (struct.pack(">II", 2, 1), "cut off"),
        (struct.pack(">IIIHq", 2, 1, 3, 0, 0) + struct.pack(">H5sI", 5, b"X.509", 0), "unknown kind 3"),
        (struct.pack(">IIIHq", 2, 1, 2, 0, 0) + struct.pack(">H3sI", 3, b"PGP", 0), "unknown kind b'PGP'"),
        (struct.pack(">IIIHqI", 2, 1, 1, 0, 0, 0) + struct.pack(">I", 0), "key is cut off"),
        (struct.pack(">IIIHqI4sI", 2, 1, 1, 0, 0, 4, b"0\x82\xff\xff", 0), "key is cut off"),
        (struct.pack(">IIIHqI", 2, 1, 1, 0, 0, 46) + b"\x30\x2c\x30\x00\x04\x28" + bytes(40) + struct.pack(">I", 0),
         "password of the key"),
    ],
)  # fmt: skip
def test_malformed_stores(content: bytes, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_key_store(signed(JKS_MAGIC + content), b"", "store.jks")


def test_every_cut_and_every_other_byte_is_noticed() -> None:
    data = (STORES / "trust.jks").read_bytes()
    for size in range(4, len(data), 7):
        with pytest.raises(ConfigError):
            read_key_store(data[:size], PASSWORD, "cut")
    for at in range(4, len(data), 7):
        with pytest.raises(ConfigError):
            read_key_store(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], PASSWORD, "changed")
