"""TLS, certificates with roles, and SASL between Apache's clients and our bookies, and the other way round."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.apache.apache import jars
from tests.apache.place import PASSWORD, PLUGINS, SIZES, Place, environment
from tests.apache.zookeeper import zookeeper_server
from tests.interop.processes import Client, Failed

pytestmark = pytest.mark.apache


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    jars()
    folder = tmp_path_factory.mktemp("security")
    with zookeeper_server(folder) as server:
        place = Place(folder, server.address)
        # Read by the launcher of every JVM that starts from here on.
        with environment({"JDK_JAVA_OPTIONS": f"-Djava.security.auth.login.config={folder}/jaas.conf"}):
            with place.client("ours") as client:
                client.ask("init", uri=place.uri, wire="v2")
            yield place


# -- our bookies, Java's clients ----------------------------------------------------------------------------------
def our_bookie(place: Place, *words: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if "tls" in words:
        settings |= {"tls_certificate": place.bookie.certificate, "tls_key": place.bookie.key, "tls_required": "true"}
        settings |= {"tls_authority": place.authority.path, "tls_client_certificates": "true"}
    if "sasl" in words:
        settings |= {"authentication": "sasl", "users_file": place.users}
    if "certificate" in words:
        settings |= {"authentication": "certificate", "authorized_roles": "app"}
    return settings


def java_client_settings(place: Place, *words: str) -> dict[str, Any]:
    # Java's own TLS is slow to warm up, and the machine may be busy.
    settings: dict[str, Any] = {"readEntryTimeoutSec": 30, "addEntryTimeoutSec": 30}
    if "tls" in words:
        settings |= place.java_tls(place.app)
    if "sasl" in words:
        settings["clientAuthProviderFactoryClass"] = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
    return settings


@pytest.mark.parametrize("words", [("tls",), ("sasl",), ("tls", "sasl"), ("tls", "certificate")], ids="-".join)
def test_java_clients_at_our_bookies(place: Place, words: tuple[str, ...]) -> None:
    with place.serving("ours", our_bookie(place, *words)):
        for wire in ("v2", "v3"):
            place.use("java", wire, java_client_settings(place, *words))


def test_java_clients_that_our_bookies_refuse(place: Place) -> None:
    """They hear of it: none waits for its timeout."""
    with place.serving("ours", our_bookie(place, "tls", "certificate")) as bookie:
        for wire, settings in (("v2", {}), ("v3", {}), ("v3", place.java_tls(place.other))):
            with pytest.raises((Failed, AssertionError)) as caught:
                place.use("java", wire, settings)
            assert "Timeout" not in str(caught.value)
        log = (bookie.folder / "bookie.log").read_text()
        assert log.count("its connection is not encrypted") + log.count("has not authenticated") >= 1
        assert "commonName=other" in log
    with place.serving("ours", our_bookie(place, "sasl")) as bookie:
        place.jaas("wrong")
        try:
            for wire in ("v2", "v3"):
                with pytest.raises((Failed, AssertionError)) as caught:
                    place.use("java", wire, java_client_settings(place, "sasl"))
                assert "Timeout" not in str(caught.value)
        finally:
            place.jaas(PASSWORD)
        assert (bookie.folder / "bookie.log").read_text().count("wrong user or password") == 1


@pytest.mark.parametrize(
    ("rights", "reads", "writes"),
    [
        (("viewer",), False, False),
        (("reader",), True, False),
        (("writer",), True, True),
        (("none", "reader team=a"), True, False),
        (("none", "writer team=[ab]"), True, True),
        (("none", "administrator team=b"), False, False),
    ],
)
def test_rights_of_java_clients(place: Place, rights: tuple[str, ...], reads: bool, writes: bool) -> None:
    """They get their own error for missing rights, and do not wait for a time-out."""
    admin = 'username = "bookkeeper-admin"\npassword = "admin"\nmechanism = "SCRAM-SHA-256"\n'
    admin_settings = {"sasl_file": place.file("admin.toml", admin)}
    words = {"uri": place.uri, "password": "ledger"}
    new = words | {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1, "labels": {"team": "a"}}
    java = java_client_settings(place, "sasl")
    with place.serving("ours", our_bookie(place, "sasl") | {"users_file": place.users_file(*rights)}):
        with place.client("ours") as client:
            ledger = append(client, new | {"wire": "v2", "settings": admin_settings})
        for wire in ("v2", "v3"):
            with place.client("java") as client, refused(not reads):
                found = client.ask("read", ledger=ledger, sizes=SIZES, **words, wire=wire, settings=java)
                assert (found["count"], found["good"]) == (300, 300)
            with place.client("java") as client, refused(not writes):
                append(client, new | {"wire": wire, "settings": java})


def append(client: Client, new: dict[str, Any]) -> int:
    """Write a ledger and return its id."""
    created = client.ask("create", **new)
    client.ask("append", handle=created["handle"], count=300, sizes=SIZES)
    closed = client.ask("close", handle=created["handle"])
    assert (closed["confirmed"], closed["failure"]) == (299, ""), closed["failure"]
    return int(created["ledger"])


@contextlib.contextmanager
def refused(is_refused: bool) -> Iterator[None]:
    """Expect Apache's error for missing rights, or none."""
    if not is_refused:
        yield
        return
    with pytest.raises((Failed, AssertionError)) as caught:
        yield
    assert "Timeout" not in str(caught.value)
    assert "nauthorized" in str(caught.value) or "-102" in str(caught.value)


# -- Java's bookies, our clients ----------------------------------------------------------------------------------
def java_bookie(place: Place, *words: str) -> dict[str, Any]:
    settings = place.java_tls(place.bookie) if "tls" in words else {}
    for word in words:
        if word in PLUGINS:
            settings["bookieAuthProviderFactoryClass"] = PLUGINS[word]
    return settings | {"authorizedRoles": "app"}


@pytest.mark.parametrize("words", [("tls",), ("sasl",), ("tls", "sasl"), ("tls", "certificate")], ids="-".join)
def test_our_clients_at_java_bookies(place: Place, words: tuple[str, ...]) -> None:
    settings = place.our_tls(place.app) if "tls" in words else {}
    with place.serving("java", java_bookie(place, *words)):
        for wire in ("v2", "v3"):
            place.use("ours", wire, settings | (place.credentials() if "sasl" in words else {}))
            if words == ("sasl",):
                short = place.credentials("wrong") | {"connect_timeout_ms": 1000}
                with pytest.raises((Failed, AssertionError), match="may be wrong"):
                    place.use("ours", wire, short)
            if words == ("tls", "certificate"):
                with pytest.raises((Failed, AssertionError), match="Unauthorized"):
                    place.use("ours", wire, place.our_tls(place.other))
