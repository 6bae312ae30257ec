"""TLS, certificates with roles, and SASL between Apache's clients and our bookies, and the other way round."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.apache.apache import VERSION, jars
from tests.apache.zookeeper import zookeeper_server
from tests.fakes.certificates import Authority, Files
from tests.interop.processes import Bookie, Client, Failed, java_client, our_client

from bookies.wire.sasl.digest_md5 import secret_of_password
from bookies.wire.sasl.scram import verifier_of

pytestmark = pytest.mark.apache

USER, PASSWORD = "bookkeeper-app", "päss wörd€"
SIZES = [0, 100, 20_000]
PLUGINS = {
    "sasl": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory",
    "certificate": "org.apache.bookkeeper.tls.BookieAuthZFactory",
}
CONTEXT_FACTORY = "org.apache.bookkeeper.tls.TLSContextFactory"
LOGIN_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"


class Place:
    """A ZooKeeper, an authority, and the users' files of both kinds."""

    def __init__(self, folder: pathlib.Path, address: str) -> None:
        self.folder, self.uri = folder, f"zk+hierarchical://{address}/ledgers"
        self.count = 0
        (folder / "certificates").mkdir()
        self.authority = Authority(folder / "certificates")
        self.bookie = self.authority.issue("bookie")
        self.app = self.authority.issue("app", units=("0:app,other",))
        self.other = self.authority.issue("other", units=("0:other",))
        self.users = self.users_file("writer")
        self.jaas(PASSWORD)

    def file(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def users_file(self, role: str, *grants: str) -> str:
        """A file of users: `USER` with this role and these grants, and an administrator who uses SCRAM."""
        lines = [f"{USER} {role} digest-md5:{secret_of_password(USER, PASSWORD).hex()}"]
        lines += [f"{USER} {grant}" for grant in grants]
        lines.append(f"bookkeeper-admin administrator {verifier_of('admin', b'salt').text}\n")
        return self.file("users-rights", "\n".join(lines))

    def jaas(self, password: str) -> str:
        """Users of Java's bookies, and the one that Java's clients are."""
        return self.file(
            "jaas.conf",
            f'Bookie {{ {LOGIN_MODULE} required user_{USER}="{PASSWORD}"; }};\n'
            f'BookKeeper {{ {LOGIN_MODULE} required username="{USER}" password="{password}"; }};\n',
        )

    def credentials(self, password: str = PASSWORD) -> dict[str, Any]:
        path = self.file(f"credentials-{password == PASSWORD}.toml", f'username = "{USER}"\npassword = "{password}"\n')
        return {"sasl_file": path}

    def our_tls(self, files: Files) -> dict[str, Any]:
        own = {"tls_certificate": files.certificate, "tls_key": files.key}
        return {"tls": True, "tls_authority": self.authority.path} | own

    def java_tls(self, files: Files) -> dict[str, Any]:
        """Of a client or a bookie."""
        return {
            "tlsProviderFactoryClass": CONTEXT_FACTORY,
            "tlsProvider": "JDK",
            "tlsClientAuthentication": "true",
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": files.key,
            "tlsCertificatePath": files.certificate,
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": self.authority.path,
        }

    @contextlib.contextmanager
    def serving(self, kind: str, settings: dict[str, Any]) -> Iterator[Bookie]:
        """One bookie. Ours takes its settings from the environment."""
        self.count += 1
        name = f"b{self.count}"
        bookie = Bookie(kind, name, self.folder / name, self.uri, version=VERSION, settings=settings)
        with _environment(
            {f"BK_{key.upper()}": str(value) for key, value in settings.items()} if kind == "ours" else {}
        ):
            bookie.launch()
        try:
            bookie.wait_ready()
            yield bookie
        finally:
            bookie.stop()

    @contextlib.contextmanager
    def client(self, kind: str) -> Iterator[Client]:
        client = our_client(self.folder) if kind == "ours" else java_client(VERSION, self.folder)
        try:
            yield client
        finally:
            client.kill()

    def use(self, kind: str, wire: str, settings: dict[str, Any]) -> None:
        """Write and read a ledger with a new client. Raises `Failed`."""
        words = {"uri": self.uri, "wire": wire, "settings": settings, "password": "ledger"}
        quorums = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
        with self.client(kind) as client:
            created = client.ask("create", **words, **quorums)
            client.ask("append", handle=created["handle"], count=300, sizes=SIZES)
            closed = client.ask("close", handle=created["handle"])
            assert (closed["confirmed"], closed["failure"]) == (299, ""), closed["failure"]
            found = client.ask("read", ledger=created["ledger"], sizes=SIZES, **words)
            assert (found["count"], found["good"]) == (300, 300)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    jars()
    folder = tmp_path_factory.mktemp("security")
    with zookeeper_server(folder) as server:
        place = Place(folder, server.address)
        # Read by the launcher of every JVM that starts from here on.
        with _environment({"JDK_JAVA_OPTIONS": f"-Djava.security.auth.login.config={folder}/jaas.conf"}):
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
