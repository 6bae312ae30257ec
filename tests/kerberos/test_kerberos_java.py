"""Kerberos between Apache's clients and our bookies, the other way round, and with a real ZooKeeper."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.apache.apache import jars
from tests.apache.place import PLUGINS, Place, environment
from tests.apache.zookeeper import ZooKeeperServer, zookeeper_server
from tests.kerberos.kdc import REALM, Kdc
from tests.kerberos.test_kerberos import bookie, login, refused

from bookies.errors import MetadataError
from bookies.metadata.uri import connect
from bookies.runtime import aio

pytestmark = pytest.mark.kerberos
PATIENCE_S = 120.0
MODULE = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true useTicketCache=false"
SASL_OF_ZOOKEEPER = "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"


def jaas(folder: pathlib.Path, kdc: Kdc, client: str = "app") -> None:
    """Who Java's processes are: one section each."""
    sections = {
        "Bookie": ("services", "bookkeeper/localhost"),
        "Server": ("services", "zookeeper/localhost"),
        "BookKeeper": (client, client),
    }
    lines = [
        f'{section} {{ {MODULE} keyTab="{kdc.folder}/{keytab}.keytab" principal="{name}@{REALM}"; }};\n'
        for section, (keytab, name) in sections.items()
    ]
    (folder / "jaas.conf").write_text("".join(lines))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kdc: Kdc) -> Iterator[ZooKeeperServer]:
    jars()
    folder = tmp_path_factory.mktemp("java")
    options = f"-Djava.security.auth.login.config={folder}/jaas.conf -Djava.security.krb5.conf={kdc.config}"
    options += " -Dzookeeper.sasl.client=false"  # Java's clients of ZooKeeper here have no section
    with environment({"JDK_JAVA_OPTIONS": options}):
        jaas(folder, kdc)
        with zookeeper_server(folder, SASL_OF_ZOOKEEPER) as server:
            yield server


@pytest.fixture(scope="module")
def place(server: ZooKeeperServer, kdc: Kdc) -> Place:
    place = Place(server.folder, server.address)
    jaas(place.folder, kdc)
    with place.client("ours") as client:
        client.ask("init", uri=place.uri, wire="v2")
    return place


def java_client() -> dict[str, Any]:
    provider = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
    return {"readEntryTimeoutSec": 30, "addEntryTimeoutSec": 30, "clientAuthProviderFactoryClass": provider}


def test_java_clients_at_our_bookies(place: Place, kdc: Kdc) -> None:
    with place.serving("ours", bookie(kdc)) as server:
        for wire in ("v2", "v3"):
            place.use("java", wire, java_client())
        for client, wire in (("low", "v2"), ("low", "v3"), ("stranger", "v2"), ("stranger", "v3")):
            jaas(place.folder, kdc, client)
            try:
                with refused() as caught:
                    place.use("java", wire, java_client())
            finally:
                jaas(place.folder, kdc)
            assert "Timeout" not in str(caught.value)
        log = (server.folder / "bookie.log").read_text()
    assert "audit.denied who=low" in log
    assert f"detail=stranger@{REALM}" in log


def test_our_clients_at_java_bookies(place: Place, kdc: Kdc) -> None:
    settings = {"bookieAuthProviderFactoryClass": PLUGINS["sasl"], "saslJaasClientAllowedIds": "app@.*"}
    settings["advertisedAddress"] = "localhost"  # the host in its principal
    with place.serving("java", settings):
        for wire in ("v2", "v3"):
            place.use("ours", wire, login(place, kdc))
        with refused():
            place.use("ours", "v3", login(place, kdc, "stranger") | {"connect_timeout_ms": 1000})


def test_zookeeper(place: Place, kdc: Kdc, server: ZooKeeperServer) -> None:
    """Znodes of a principal are its own; whom the KDC does not know hears why."""
    port = server.address.rpartition(":")[2]

    async def open_as(client: str, **others: str) -> None:
        keys = {"principal": f"{client}@{REALM}", "keytab": str(kdc.folder / f"{client}.keytab")} | others
        text = 'secure = true\n[sasl]\nmechanism = "GSSAPI"\n' + "".join(f'{k} = "{v}"\n' for k, v in keys.items())
        options = place.file("zookeeper.toml", text)
        driver = connect(f"zk://localhost:{port}/kerberos?options={options}", aio.runtime(), lease_ms=10_000)
        try:
            await driver.open()
            await driver.initialize_cluster()
        finally:
            await driver.close()

    async def main() -> None:
        await open_as("app")
        await open_as("app")
        with pytest.raises(MetadataError, match="denies access to"):
            await open_as("low")
        with pytest.raises(MetadataError, match=r"<Credentials sasl>\): Kerberos: keytab /none is missing"):
            await open_as("app", keytab="/none")
        with pytest.raises(MetadataError, match=r"Server hdfs/localhost@BOOKIES.TEST not found in Kerberos database"):
            await open_as("app", service="hdfs")

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
