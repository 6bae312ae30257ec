"""TLS and authentication of Apache's configuration: several keys together make settings of ours.

Apache knows key stores in Java's formats and in PEM; ours are PEM. Its users and passwords are in JAAS, ours in files.
Source: wire-protocol 5.2, 5.3.
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


def bookie_tls(properties: Mapping[str, str], settings: dict[str, Any], notices: list[Notice]) -> None:
    """Raises `ConfigError` for what would leave connections less protected than the file says."""
    if not _is_encrypted(properties):
        return
    settings["tls_certificate"] = properties.get("tlsCertificatePath", "")
    _store(properties, settings, "tlsKeyStore", "tls_key")
    _store(properties, settings, "tlsTrustStore", "tls_authority")
    _password(properties, settings, "tlsKeyStorePasswordPath")
    if not settings["tls_certificate"]:
        raise ConfigError("tlsProviderFactoryClass: no tlsCertificatePath, so there is no certificate to show")
    if value_of(properties, "tlsClientAuthentication", switch):
        settings["tls_client_certificates"] = True
    _details(properties, settings, notices)


def client_tls(properties: Mapping[str, str], settings: dict[str, Any], notices: list[Notice]) -> None:
    """As `bookie_tls`."""
    if not _is_encrypted(properties):
        return
    settings["tls"] = True
    _store(properties, settings, "clientTrustStore", "tls_authority")
    if value_of(properties, "tlsClientAuthentication", switch):
        settings["tls_certificate"] = properties.get("tlsCertificatePath", "")
        if not settings["tls_certificate"]:
            raise ConfigError("tlsClientAuthentication=true: no tlsCertificatePath, so there is no certificate to show")
        _store(properties, settings, "clientKeyStore", "tls_key")
        _password(properties, settings, "clientKeyStorePasswordPath")
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
            f"tlsProviderFactoryClass={provider}: Java classes cannot be loaded here, and to ignore it would leave "
            f"connections open; known are {', '.join(_PROVIDERS)}"
        )
    return True


def _store(properties: Mapping[str, str], settings: dict[str, Any], key: str, setting: str) -> None:
    """A PEM file. Java's own formats are not read."""
    path, kind = properties.get(key, ""), properties.get(f"{key}Type", "") or "JKS"
    if path in _NONE:
        return
    if kind.upper() != "PEM":
        raise ConfigError(
            f"{key}={path} is a store of type {kind}, and only PEM files are read here: `keytool -importkeystore "
            f"-srckeystore {path} -destkeystore store.p12 -deststoretype PKCS12`, then `openssl pkcs12 -in store.p12 "
            f"-out store.pem -nodes`, and set {key}Type=PEM, {key} and tlsCertificatePath to files of that"
        )
    settings[setting] = path


def _password(properties: Mapping[str, str], settings: dict[str, Any], key: str) -> None:
    path = properties.get(key, "")
    if path not in _NONE:
        settings["tls_key_password_file"] = path


def _details(properties: Mapping[str, str], settings: dict[str, Any], notices: list[Notice]) -> None:
    versions = items_of(properties.get("tlsEnabledProtocols", ""))
    known = [_VERSIONS[each] for each in versions if each in _VERSIONS]
    older = [each for each in versions if each not in _VERSIONS]
    if known:
        settings["tls_version_min"] = min(known)
    if older:
        text = "TLS before 1.2 is not spoken: who knows nothing later cannot connect"
        notices.append(Notice(Level.DIFFERENT, f"tlsEnabledProtocols={','.join(older)}", text))
    if properties.get("tlsEnabledCipherSuites"):
        text = "ignored: ciphers are named as OpenSSL does, tls_ciphers (BK_TLS_CIPHERS); now its defaults count"
        notices.append(Notice(Level.DANGER, "tlsEnabledCipherSuites", text))
    interval = value_of(properties, "tlsCertFilesRefreshDurationSeconds", seconds)
    if interval:
        settings["tls_reload_interval_ms"] = interval


def bookie_authentication(properties: Mapping[str, str], settings: dict[str, Any], notices: list[Notice]) -> None:
    """Raises `ConfigError` for classes that are not known."""
    provider = properties.get("bookieAuthProviderFactoryClass", "")
    if provider in _NONE:
        return
    if provider == ROLES:
        settings["authentication"] = "certificate"
        settings["authorized_roles"] = items_of(properties.get("authorizedRoles", ""))
    elif provider == SASL_BOOKIE:
        settings["authentication"] = "sasl"
        if properties.get("saslJaasClientAllowedIds"):
            settings["sasl_allowed_ids"] = properties["saslJaasClientAllowedIds"]
        text = "users and passwords, which Apache takes from JAAS, are in the file that sasl_users_file names"
        notices.append(Notice(Level.DIFFERENT, "bookieAuthProviderFactoryClass", text))
    else:
        raise ConfigError(
            f"bookieAuthProviderFactoryClass={provider}: Java classes cannot be loaded here, and to ignore it would "
            f"let everybody in; known are {SASL_BOOKIE} and {ROLES}"
        )


def check_client_authentication(properties: Mapping[str, str], sasl_file: str) -> None:
    """Raises `ConfigError` for a class that is not known, and without credentials."""
    provider = properties.get("clientAuthProviderFactoryClass", "")
    if provider in _NONE:
        return
    if provider != SASL_CLIENT:
        raise ConfigError(
            f"clientAuthProviderFactoryClass={provider}: Java classes cannot be loaded here; known is {SASL_CLIENT}"
        )
    if not sasl_file:
        raise ConfigError(
            "clientAuthProviderFactoryClass: Apache takes the credentials from JAAS, here they are in a file: name it "
            "in the environment, BK_SASL_FILE (docs/howto/require-authentication.md)"
        )
