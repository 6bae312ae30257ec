"""TLS and authentication settings from Apache's configuration, each from several keys.

Apache names the format of each key store; we recognize it by the content. Its users and passwords are in JAAS, ours in
files. Source: wire-protocol 5.2, 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bookies.apache.properties import items_of
from bookies.apache.table import Level, Notice, seconds, switch, value_of
from bookies.errors import ConfigError

SASL_BOOKIE = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
SASL_CLIENT = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
ROLES = "org.apache.bookkeeper.tls.BookieAuthZFactory"
_PROVIDERS = ("TLSContextFactory", "SSLContextFactory")
_VERSIONS = {"TLSv1.3": "1.3", "TLSv1.2": "1.2"}
_NONE = ("", "null")
ALLOWED_IDS = ".*bookkeeper.*"  # Apache's default


def bookie_tls(properties: Mapping[str, str], settings: dict[str, Any], notices: list[Notice]) -> None:
    """Convert a bookie's TLS keys.

    Raises `ConfigError` for values that would leave connections with less protection than the file demands.
    """
    if not _is_encrypted(properties):
        return
    _identity(properties, settings, "tlsKeyStore")
    _authority(properties, settings, "tlsTrustStore")
    if not settings.get("tls_certificate"):
        raise ConfigError(
            "tlsProviderFactoryClass: tlsCertificatePath is missing, so there is no certificate to present"
        )
    if value_of(properties, "tlsClientAuthentication", switch):
        settings["tls_client_certificates"] = True
    _details(properties, settings, notices)


def client_tls(properties: Mapping[str, str], settings: dict[str, Any], notices: list[Notice]) -> None:
    """Convert a client's TLS keys. Raises `ConfigError` as `bookie_tls`."""
    if not _is_encrypted(properties):
        return
    settings["tls"] = True
    _authority(properties, settings, "clientTrustStore")
    if value_of(properties, "tlsClientAuthentication", switch):
        _identity(properties, settings, "clientKeyStore")
        if not settings.get("tls_certificate"):
            raise ConfigError(
                "tlsClientAuthentication=true: tlsCertificatePath is missing: name the certificate to present"
            )
    checks = value_of(properties, "tlsHostnameVerificationEnabled", switch)
    if checks is not None:
        settings["tls_check_host_name"] = checks
    _details(properties, settings, notices)


def _is_encrypted(properties: Mapping[str, str]) -> bool:
    provider = properties.get("tlsProviderFactoryClass", "")
    if provider in _NONE:
        return False
    if not provider.endswith(_PROVIDERS):
        raise ConfigError(
            f"tlsProviderFactoryClass={provider}: Java classes cannot be loaded here, and ignoring it would leave "
            f"connections unprotected; known are {', '.join(_PROVIDERS)}"
        )
    return True


def _identity(properties: Mapping[str, str], settings: dict[str, Any], key: str) -> None:
    """Set certificate and key: a key store has both, PEM files are two. Raises `ConfigError` for unknown formats."""
    path, is_pem = _store(properties, key)
    if is_pem:
        settings["tls_certificate"] = properties.get("tlsCertificatePath", "")
    if path:
        settings["tls_key" if is_pem else "tls_certificate"] = path
    _password(properties, settings, f"{key}PasswordPath", "tls_key_password_file")


def _authority(properties: Mapping[str, str], settings: dict[str, Any], key: str) -> None:
    """Set the trusted certificates. Raises `ConfigError` for unknown formats."""
    path, is_pem = _store(properties, key)
    if path:
        settings["tls_authority"] = path
    if path and not is_pem:
        _password(properties, settings, f"{key}PasswordPath", "tls_authority_password_file")


def _store(properties: Mapping[str, str], key: str) -> tuple[str, bool]:
    """Return the path of a store, empty if there is none, and whether it is a PEM file."""
    path, store_type = properties.get(key, ""), (properties.get(f"{key}Type", "") or "JKS").upper()
    if path in _NONE:
        return "", True
    if store_type not in ("PEM", "JKS", "PKCS12"):
        raise ConfigError(
            f"{key}={path} is a store of type {store_type}, and PEM, JKS and PKCS12 are read here: convert it with "
            f"`keytool -importkeystore -srckeystore {path} -destkeystore store.p12 -deststoretype PKCS12`, and set "
            f"{key}Type=PKCS12 and {key}=store.p12"
        )
    return path, store_type == "PEM"


def _password(properties: Mapping[str, str], settings: dict[str, Any], key: str, setting: str) -> None:
    path = properties.get(key, "")
    if path not in _NONE:
        settings[setting] = path


def _details(properties: Mapping[str, str], settings: dict[str, Any], notices: list[Notice]) -> None:
    versions = items_of(properties.get("tlsEnabledProtocols", ""))
    known = [_VERSIONS[version] for version in versions if version in _VERSIONS]
    older = [version for version in versions if version not in _VERSIONS]
    if known:
        settings["tls_version_min"] = min(known)
    if older:
        text = "TLS before 1.2 is not supported: peers without a later version cannot connect"
        notices.append(Notice(Level.DIFFERENT, f"tlsEnabledProtocols={','.join(older)}", text))
    if properties.get("tlsEnabledCipherSuites"):
        text = (
            "ignored: name ciphers as OpenSSL does in tls_ciphers (BK_TLS_CIPHERS); OpenSSL's defaults apply until then"
        )
        notices.append(Notice(Level.DANGER, "tlsEnabledCipherSuites", text))
    interval = value_of(properties, "tlsCertFilesRefreshDurationSeconds", seconds)
    if interval:
        settings["tls_reload_interval_ms"] = interval


def bookie_authentication(properties: Mapping[str, str], settings: dict[str, Any], notices: list[Notice]) -> None:
    """Convert a bookie's authentication keys. Raises `ConfigError` for unknown classes."""
    provider = properties.get("bookieAuthProviderFactoryClass", "")
    if provider in _NONE:
        return
    if provider == ROLES:
        settings["authentication"] = "certificate"
        settings["authorized_roles"] = items_of(properties.get("authorizedRoles", ""))
    elif provider == SASL_BOOKIE:
        settings["authentication"] = "sasl"
        settings["sasl_allowed_ids"] = properties.get("saslJaasClientAllowedIds") or ALLOWED_IDS
        text = "users_file names the file with users and passwords, which Apache reads from JAAS"
        notices.append(Notice(Level.DIFFERENT, "bookieAuthProviderFactoryClass", text))
    else:
        raise ConfigError(
            f"bookieAuthProviderFactoryClass={provider}: Java classes cannot be loaded here, and ignoring it would "
            f"admit every client; known are {SASL_BOOKIE} and {ROLES}"
        )


def check_client_authentication(properties: Mapping[str, str], sasl_file: str) -> None:
    """Check the client's authentication class and its credentials. Raises `ConfigError`."""
    provider = properties.get("clientAuthProviderFactoryClass", "")
    if provider in _NONE:
        return
    if provider != SASL_CLIENT:
        raise ConfigError(
            f"clientAuthProviderFactoryClass={provider}: Java classes cannot be loaded; use {SASL_CLIENT}"
        )
    if not sasl_file:
        raise ConfigError(
            "clientAuthProviderFactoryClass: Apache reads the credentials from JAAS, here they are in a file: name it "
            "in the environment variable BK_SASL_FILE (docs/howto/require-authentication.md)"
        )
