"""Identities and encryption between a driver and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import pathlib
import subprocess
import sys

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from tests.apache.zookeeper import ZooKeeperServer, zookeeper_server
from tests.fakes.openssl import make_certificates

from bookies.errors import MetadataError
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.uri import connect
from bookies.model import BookieId, BookieInfo, BookieMode, Endpoint
from bookies.runtime import aio

pytestmark = pytest.mark.apache
PATIENCE_S = 60.0
A = BookieId("bk-a:3181")
INFO = BookieInfo((Endpoint("bookie", "127.0.0.1", 3181, "bookie-rpc"),))


async def driver_of(uri: str) -> MetadataDriver:
    driver = connect(uri, aio.runtime(), lease_ms=10_000)
    await driver.open()
    return driver


def test_secure_znodes_are_nobody_elses(tmp_path: pathlib.Path) -> None:
    options = tmp_path / "zookeeper.toml"
    options.write_text('secure = true\ndigest = "bookies:secret"\n')

    with zookeeper_server(tmp_path) as server:
        check_identities(server, options)


def check_identities(server: ZooKeeperServer, options: pathlib.Path) -> None:
    async def main() -> None:
        ours = await driver_of(f"zk://{server.address}/ledgers?options={options}")
        await ours.initialize_cluster()
        await ours.register(A, BookieMode.WRITABLE, INFO)
        with pytest.raises(MetadataError, match=r"denies access to /ledgers/LAYOUT: authenticate"):
            await driver_of(f"zk://{server.address}/ledgers")
        await ours.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    client = KazooClient(hosts=server.address)
    client.start()
    client.add_auth("digest", "bookies:secret")
    for path in ("/ledgers", "/ledgers/LAYOUT", "/ledgers/available/readonly", "/ledgers/INSTANCEID"):
        acls, _ = client.get_acls(path)
        assert acls == [make_digest_acl("bookies", "secret", all=True)]
    client.stop()
    client.close()


def test_sasl(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Znodes of an identity that SASL has proved are its own; a wrong password is told as such."""
    login = tmp_path / "jaas.conf"
    login.write_text('Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_bookies="secret"; };\n')
    monkeypatch.setenv("JDK_JAVA_OPTIONS", f"-Djava.security.auth.login.config={login}")
    for name, password in (("right", "secret"), ("wrong", "guessed")):
        options = f'[sasl]\nmechanism = "DIGEST-MD5"\nusername = "bookies"\npassword = "{password}"\n'
        (tmp_path / f"{name}.toml").write_text(f"secure = true\n{options}")

    async def main(server: ZooKeeperServer) -> None:
        uri = f"zk://{server.address}/ledgers"
        ours = await driver_of(f"{uri}?options={tmp_path}/right.toml")
        await ours.initialize_cluster()
        await ours.register(A, BookieMode.WRITABLE, INFO)
        with pytest.raises(MetadataError, match=r"denies access to /ledgers/LAYOUT: authenticate"):
            await driver_of(uri)
        with pytest.raises(MetadataError, match=r"refuses our credentials \(<Credentials sasl>\): correct the file"):
            await driver_of(f"{uri}?options={tmp_path}/wrong.toml")
        await ours.close()

    settings = "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"
    with zookeeper_server(tmp_path, settings) as server:
        asyncio.run(asyncio.wait_for(main(server), PATIENCE_S))


def test_mutual_tls(tmp_path: pathlib.Path) -> None:
    make_certificates(tmp_path, "IP:127.0.0.1,DNS:localhost")
    settings = (
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\nsecureClientPort=PORT\n"
        f"ssl.keyStore.location={tmp_path}/server-both.pem\nssl.trustStore.location={tmp_path}/ca.pem\n"
    )
    trusted = f'[tls]\nauthority = "{tmp_path}/ca.pem"\n'
    known = f'certificate = "{tmp_path}/client.pem"\nkey = "{tmp_path}/client.key"\n'
    for name, text in (("both", trusted + known), ("nobody", trusted), ("untrusting", f"[tls]\n{known}")):
        (tmp_path / f"{name}.toml").write_text(text)

    async def main(server: ZooKeeperServer) -> None:
        uri = f"zk://{server.secure_address}/ledgers?options={tmp_path}"
        driver = await driver_of(f"{uri}/both.toml")
        await driver.initialize_cluster()
        await driver.register(A, BookieMode.WRITABLE, INFO)
        assert (await driver.bookies(BookieMode.WRITABLE)).bookies == (A,)
        await driver.close()
        for name in ("nobody", "untrusting"):
            # As an operator's command, which says what to look for.
            command = [sys.executable, "-m", "bookies.admin.cli", "status", "--metadata", f"{uri}/{name}.toml"]
            found = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
            assert found.returncode != 0
            assert "no ZooKeeper server at" in found.stderr
            assert "hosts, ports and certificates are right" in found.stderr

    with zookeeper_server(tmp_path, settings) as server:
        asyncio.run(asyncio.wait_for(main(server), PATIENCE_S))
