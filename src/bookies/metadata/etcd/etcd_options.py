"""The TOML file that an etcd URI names with `?options=FILE`: credentials and TLS.

    user = "bookies"
    password = "secret"
    [tls]
    authority = "/etc/bookies/ca.pem"
    certificate = "/etc/bookies/client.pem"
    key = "/etc/bookies/client.key"
    server_name = "etcd.example.org"

Secrets are in a file because URIs are printed and logged. Source: metadata 10.
"""

from __future__ import annotations

from typing import Any

from bookies.encoding.documents import parse_toml
from bookies.errors import ConfigError
from bookies.metadata.etcd.etcd_port import Credentials
from bookies.runtime.ports import Disk

_TOP: dict[str, type] = {"user": str, "password": str, "tls": dict}
_TLS: dict[str, type] = {"authority": str, "certificate": str, "key": str, "server_name": str}


def read_options(disk: Disk, path: str | None) -> Credentials:
    """Read the file of options; None: no credentials, no TLS.

    Raises `ConfigError`, which names the file and the key, and never a secret.
    """
    if path is None:
        return Credentials()
    try:
        options = parse_toml(_read(disk, path, "the options of etcd"))
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    _check(path, "", options, _TOP)
    tls = options.get("tls", {})
    _check(path, "tls.", tls, _TLS)
    if ("user" in options) is not ("password" in options):
        raise ConfigError(f"{path}: user and password belong together")
    if ("certificate" in tls) is not ("key" in tls):
        raise ConfigError(f"{path}: tls.certificate and tls.key belong together")
    pem = {
        name: _read(disk, tls[name], f"{path}: tls.{name}")
        for name in ("authority", "certificate", "key")
        if name in tls
    }
    for name, data in pem.items():
        if b"-----BEGIN " not in data:
            raise ConfigError(f"{path}: tls.{name} names {tls[name]}, which is not a PEM file")
    if b"ENCRYPTED" in pem.get("key", b""):
        raise ConfigError(
            f"{path}: tls.key names {tls['key']}, which is encrypted; etcd's client accepts only unencrypted keys"
        )
    return Credentials(
        user=options.get("user"),
        password=options.get("password", ""),
        is_tls="tls" in options,
        server_name=tls.get("server_name"),
        **pem,
    )


def _read(disk: Disk, path: str, what: str) -> bytes:
    try:
        return disk.read_bytes(path)
    except OSError as error:
        raise ConfigError(f"{what} cannot be read from {path}: {error.strerror}") from error


def _check(path: str, where: str, options: dict[str, Any], known: dict[str, type]) -> None:
    for name, value in options.items():
        if name not in known:
            raise ConfigError(f"{path}: {where}{name} is not known; known are {', '.join(known)}")
        if not isinstance(value, known[name]):
            raise ConfigError(f"{path}: {where}{name} must be a {known[name].__name__}")
