"""The TOML file that a ZooKeeper URI names with `?options=FILE`: credentials and TLS.

    secure = true                     # only this identity has access to created znodes; as Apache's zkEnableSecurity
    digest = "bookies:secret"         # or
    [sasl]
    mechanism = "DIGEST-MD5"
    username = "bookies"
    password = "secret"
    [tls]
    authority = "/etc/bookies/ca.pem"
    certificate = "/etc/bookies/client.pem"
    key = "/etc/bookies/client.key"

Secrets are in a file because URIs are printed and logged. Source: metadata 2.5.
"""

from __future__ import annotations

from typing import Any

from bookies.encoding.documents import parse_toml
from bookies.errors import ConfigError
from bookies.metadata.zookeeper.zookeeper_port import Credentials
from bookies.runtime.ports import Disk, KerberosLogin

_TOP = {"secure": bool, "digest": str, "sasl": dict, "tls": dict}
_SASL: dict[str, type] = dict.fromkeys(("mechanism", "username", "password", "principal", "keytab", "service"), str)
_TLS = {
    "authority": str,
    "certificate": str,
    "key": str,
    "key_password": str,
    "check_certificate": bool,
    "check_host_name": bool,
}


def read_options(disk: Disk, path: str | None) -> Credentials:
    """Read the file of options; None: no credentials, no TLS. Raises `ConfigError`."""
    if path is None:
        return Credentials()
    try:
        return parse_options(path, disk.read_bytes(path))
    except OSError as error:
        raise ConfigError(f"the options of ZooKeeper cannot be read from {path}: {error.strerror}") from error


def parse_options(path: str, data: bytes) -> Credentials:
    """Parse the options. Raises `ConfigError`, which names the file and the line or key, and never a secret."""
    try:
        options = parse_toml(data)
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    _check(path, "", options, _TOP)
    sasl, tls = options.get("sasl", {}), options.get("tls", {})
    _check(path, "tls.", tls, _TLS)
    _check(path, "sasl.", sasl, _SASL)
    digest = options.get("digest")
    if digest is not None and ":" not in digest:
        raise ConfigError(f"{path}: digest must be USER:PASSWORD")
    if ("certificate" in tls) is not ("key" in tls):
        raise ConfigError(f"{path}: tls.certificate and tls.key belong together")
    if options.get("secure") and not (digest or sasl or "certificate" in tls):
        raise ConfigError(f"{path}: secure = true needs an identity: digest, sasl, or tls.certificate and tls.key")
    return Credentials(
        digest=digest,
        sasl=_sasl(path, sasl) if "sasl" in options else None,
        is_tls="tls" in options,
        authority=tls.get("authority"),
        certificate=tls.get("certificate"),
        key=tls.get("key"),
        key_password=tls.get("key_password"),
        checks_certificate=tls.get("check_certificate", True),
        checks_host_name=tls.get("check_host_name", True),
        is_secure=options.get("secure", False),
    )


def _sasl(path: str, sasl: dict[str, str]) -> tuple[str, str] | KerberosLogin:
    match sasl.get("mechanism"):
        case "DIGEST-MD5" if set(sasl) == {"mechanism", "username", "password"}:
            return sasl["username"], sasl["password"]
        case "GSSAPI" if not {"username", "password"} & set(sasl):
            return KerberosLogin(sasl.get("principal", ""), sasl.get("keytab", ""), sasl.get("service") or "zookeeper")
        case _:
            raise ConfigError(
                f"{path}: sasl needs mechanism, username and password with DIGEST-MD5, or mechanism and, where they "
                "are not the defaults, principal, keytab and service with GSSAPI"
            )


def _check(path: str, where: str, options: dict[str, Any], known: dict[str, type]) -> None:
    for name, value in options.items():
        if name not in known:
            raise ConfigError(f"{path}: {where}{name} is not known; known are {', '.join(known)}")
        if not isinstance(value, known[name]):
            raise ConfigError(f"{path}: {where}{name} must be a {known[name].__name__}")
