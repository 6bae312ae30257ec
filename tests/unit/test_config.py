"""Settings that contradict each other are refused before anything is touched."""

from __future__ import annotations

from typing import Any

import pytest

from bookies.config import BookieConfig, ClientConfig, validate
from bookies.errors import ConfigError
from bookies.spark.base.options import client_config


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"journal_directories": ("/j", "/j")}, "journal_directories: /j is named twice"),
        ({"ledger_directories": ("/l", "/m", "/l")}, "ledger_directories: /l is named twice"),
        ({"ledger_directories": ("/l", "/l/")}, "/l and /l/ are one directory"),
        ({"journal_directories": ("./x",), "ledger_directories": ("x",)}, "./x and x are one directory"),
        ({"journal_directories": ("/x/current",), "ledger_directories": ("/x",)}, "/x/current is inside of /x/current"),
        ({"ledger_directories": ("/x",), "index_directories": ("/x/current/i",)}, "/x/current/i is inside of /x/curr"),
        ({"journal_directories": ()}, "journal_directories is empty"),
        ({"ledger_directories": ()}, "ledger_directories is empty"),
        ({"ledger_directories": ("a,b",)}, "'a,b' cannot be a directory"),
        ({"index_directories": ("",)}, "'' cannot be a directory"),
        ({"ledger_index": "rocks"}, "ledger_index = 'rocks': must be one of files, rocksdb"),
        (
            {"ledger_index": "rocksdb", "ledger_directories": ("/l", "/m"), "index_directories": ("/i",)},
            "with 2 ledger_directories and 1 index_directories: they are pairs",
        ),
    ],
)
def test_directories_in_each_others_way(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(BookieConfig(**settings))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"journal_directories": ("/x",), "ledger_directories": ("/x",), "index_directories": ("/x",)},
        {"ledger_index": "rocksdb", "ledger_directories": ("/x",), "index_directories": ("/y",)},
        {"journal_directories": ("/x/journal",), "ledger_directories": ("/x",)},
        {"journal_directories": ("/x/current2",), "ledger_directories": ("/x",)},
    ],
)
def test_directories_that_get_along(settings: dict[str, Any]) -> None:
    validate(BookieConfig(**settings))


TLS = {"tls_certificate": "b.pem"}
MUTUAL = TLS | {"tls_authority": "ca.pem", "tls_client_certificates": True}


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (BookieConfig(tls_required=True), "tls_required needs tls_certificate"),
        (BookieConfig(tls_port=0), "tls_port needs tls_certificate"),
        (BookieConfig(tls_key="b.key"), "tls_key without tls_certificate"),
        (BookieConfig(**TLS, tls_client_certificates=True), "needs tls_authority"),
        (BookieConfig(**TLS, tls_version_min="1.1"), "tls_version_min = '1.1': must be 1.2 or 1.3"),
        (BookieConfig(authentication="kerberos"), "authentication = 'kerberos': none, sasl or certificate"),
        (BookieConfig(authentication="sasl"), "needs users_file"),
        (BookieConfig(authentication="sasl", users_file="u", sasl_allowed_ids="("), "not a regular expression"),
        (BookieConfig(**MUTUAL, authentication="certificate"), "needs authorized_roles or users_file"),
        (BookieConfig(**TLS, authentication="certificate", authorized_roles=("a",)), "tls_client_certificates = true"),
        (ClientConfig(tls_authority="ca.pem"), "tls_authority without tls = true"),
        (ClientConfig(tls_certificate="c.pem"), "connections would not be encrypted"),
        (ClientConfig(tls_port=3182), "tls_port without tls = true"),
        (ClientConfig(tls=True, tls_key="c.key"), "tls_key without tls_certificate"),
    ],
)
def test_security_that_would_not_be_any(config: BookieConfig | ClientConfig, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(config)
    assert problem in str(caught.value)


def test_security_that_is_complete() -> None:
    validate(
        BookieConfig(**MUTUAL, authentication="certificate", authorized_roles=("a",), tls_required=True, tls_port=0)
    )
    validate(BookieConfig(**MUTUAL, authentication="certificate", users_file="users"))
    validate(BookieConfig(authentication="sasl", users_file="users"))
    validate(ClientConfig(tls=True, tls_port=3182, tls_certificate="c.pem", tls_authority="ca.pem"))


def test_spark_passes_it_on() -> None:
    options = {"bookkeeper.tls": "true", "bookkeeper.tlsAuthority": "ca.pem", "bookkeeper.saslFile": "s.toml"}
    config = client_config(options)
    assert (config.tls, config.tls_authority, config.sasl_file) == (True, "ca.pem", "s.toml")
