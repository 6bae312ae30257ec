"""The file of options for etcd: what it may say, and what is said about anything else."""

from __future__ import annotations

import pathlib

import pytest

from bookies.errors import ConfigError
from bookies.metadata.etcd.etcd_options import read_options
from bookies.metadata.etcd.etcd_port import Credentials
from bookies.runtime import aio

DISK = aio.runtime(seed=1).disk
PEM = "-----BEGIN X-----\n"


def write(folder: pathlib.Path, text: str) -> str:
    for name in ("ca", "client", "key"):
        (folder / name).write_text(PEM + name)
    (folder / "der").write_bytes(b"\x30\x82")
    (folder / "locked").write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    (folder / "options").write_text(text.replace("DIR", str(folder)))
    return str(folder / "options")


def test_none() -> None:
    assert read_options(DISK, None) == Credentials()


def test_everything(tmp_path: pathlib.Path) -> None:
    path = write(
        tmp_path,
        'user = "u"\npassword = "secret"\n[tls]\nauthority = "DIR/ca"\ncertificate = "DIR/client"\nkey = "DIR/key"\n'
        'server_name = "s"\n',
    )
    found = read_options(DISK, path)
    pem = [(PEM + name).encode() for name in ("ca", "client", "key")]
    assert found == Credentials("u", "secret", True, *pem, server_name="s")
    assert "secret" not in repr(found)
    assert found.__rich_repr__() == [("", repr(found))]
    assert PEM.strip() not in repr(found)


def test_encryption_alone(tmp_path: pathlib.Path) -> None:
    assert read_options(DISK, write(tmp_path, "[tls]\n")) == Credentials(is_tls=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("user", "is not TOML"),
        ('user = "u"', "user and password belong together"),
        ("user = 1", "user must be a str"),
        ('digest = "u:secret"', "digest is not known; known are user, password, tls"),
        ('[tls]\nkey_password = "secret"', "tls.key_password is not known"),
        ('[tls]\nkey = "DIR/key"', "tls.certificate and tls.key belong together"),
        ('[tls]\nauthority = "DIR/none"', "tls.authority cannot be read from"),
        ('[tls]\nauthority = "DIR/der"', "tls.authority names"),
        ('[tls]\ncertificate = "DIR/client"\nkey = "DIR/locked"', "which is encrypted"),
    ],
)
def test_mistakes(tmp_path: pathlib.Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_options(DISK, write(tmp_path, text))
    assert said in str(raised.value)
    assert str(tmp_path / "options") in str(raised.value)
    assert "secret" not in str(raised.value)


def test_no_file() -> None:
    with pytest.raises(ConfigError, match="the options of etcd cannot be read from /none: No such file"):
        read_options(DISK, "/none")
