"""The options file of a ZooKeeper URI: what it can say, and sentences for what it cannot."""

from __future__ import annotations

import pathlib

import pytest

from bookies.errors import ConfigError
from bookies.metadata.zookeeper.zk_options import parse_options, read_options
from bookies.metadata.zookeeper.zookeeper_port import Credentials
from bookies.runtime import aio
from bookies.runtime.ports import KerberosLogin

DISK = aio.runtime(seed=1).disk


def test_no_file_means_no_credentials() -> None:
    assert read_options(DISK, None) == Credentials()


def test_everything(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "zookeeper.toml"
    path.write_text(
        'secure = true\ndigest = "bk:secret"\n[sasl]\nmechanism = "DIGEST-MD5"\nusername = "u"\npassword = "p"\n[tls]\n'
        'authority = "ca.pem"\ncertificate = "c.pem"\nkey = "k.pem"\nkey_password = "p"\n'
        "check_certificate = false\ncheck_host_name = false\n"
    )
    found = read_options(DISK, str(path))
    assert found == Credentials(
        digest="bk:secret",
        sasl=("u", "p"),
        is_tls=True,
        authority="ca.pem",
        certificate="c.pem",
        key="k.pem",
        key_password="p",
        checks_certificate=False,
        checks_host_name=False,
        is_secure=True,
    )
    assert repr(found) == "<Credentials digest, sasl, tls>"
    assert repr(Credentials()) == "<Credentials none>"
    assert found.__rich_repr__() == [("", repr(found))]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x", "f.toml is not TOML"),
        ("colour = 1", "colour is not known; known are secure, digest, sasl, tls"),
        ("secure = 1", "secure must be a bool"),
        ('digest = "secret"', "digest must be USER:PASSWORD"),
        ("[sasl]\nusername = 'u'", "sasl needs mechanism, username and password with DIGEST-MD5"),
        ("[sasl]\nmechanism = 'DIGEST-MD5'\nusername = 'u'", "sasl needs mechanism, username and password"),
        ("[sasl]\nmechanism = 'GSSAPI'\nusername = 'u'", "principal, keytab and service with GSSAPI"),
        ("[sasl]\nname = 'u'", "sasl.name is not known; known are mechanism"),
        ("[sasl]\nmechanism = 1", "sasl.mechanism must be a str"),
        ("[tls]\nca = 'x'", "tls.ca is not known; known are authority"),
        ("[tls]\nkey = 'x'", "tls.certificate and tls.key belong together"),
        ("secure = true\n[tls]", "secure = true needs an identity"),
    ],
)
def test_what_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        parse_options("f.toml", text.encode())
    assert "secret" not in str(raised.value)


def test_kerberos() -> None:
    found = parse_options("f.toml", b"[sasl]\nmechanism = 'GSSAPI'\nprincipal = 'bk@R'\nkeytab = '/k'")
    assert found.sasl == KerberosLogin("bk@R", "/k", "zookeeper")
    assert parse_options("f.toml", b"[sasl]\nmechanism = 'GSSAPI'").sasl == KerberosLogin("", "", "zookeeper")


def test_a_file_that_cannot_be_read(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read from .*none.toml: No such file"):
        read_options(DISK, str(tmp_path / "none.toml"))
