"""Users, certificates and encryption between a driver and a real etcd."""

from __future__ import annotations

import asyncio
import base64
import json
import pathlib
import urllib.request
from typing import Any

import pytest
from tests.etcd.server import EtcdServer, etcd_server
from tests.fakes.openssl import make_certificates

from bookies.errors import InvalidArgument, MetadataError
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import RecordWrite
from bookies.metadata.uri import connect
from bookies.model import BookieId, BookieInfo, BookieMode, Endpoint
from bookies.runtime import aio

pytestmark = pytest.mark.etcd
PATIENCE_S = 60.0
A = BookieId("bk-a:3181")
INFO = BookieInfo((Endpoint("bookie", "127.0.0.1", 3181, "bookie-rpc"),))


async def driver_of(uri: str, lease_ms: int = 10_000) -> MetadataDriver:
    driver = connect(uri, aio.runtime(), lease_ms=lease_ms)
    await driver.open()
    return driver


class Administration:
    """etcd's users and roles, through its gateway for JSON."""

    def __init__(self, server: EtcdServer) -> None:
        self._url = f"http://{server.address}/v3"
        self._token = ""

    def do(self, method: str, **fields: Any) -> Any:
        headers = {"Authorization": self._token} if self._token else {}
        request = urllib.request.Request(f"{self._url}/auth/{method}", json.dumps(fields).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def enable(self) -> None:
        """Users from now on: root; bookies, who may do everything below /ledgers; and other, who may do nothing."""
        for name in ("root", "bookies", "other"):
            self.do("user/add", name=name, password=f"{name}-secret")
        self.do("role/add", name="root")
        self.do("role/add", name="ledgers")
        start, stop = (base64.b64encode(key).decode() for key in (b"/ledgers", b"/ledgers0"))
        self.do("role/grant", name="ledgers", perm={"permType": "READWRITE", "key": start, "range_end": stop})
        self.do("user/grant", user="root", role="root")
        self.do("user/grant", user="bookies", role="ledgers")
        self.do("enable")
        self._token = self.do("authenticate", name="root", password="root-secret")["token"]


def test_users(tmp_path: pathlib.Path) -> None:
    for name, password in (("bookies", "bookies-secret"), ("other", "other-secret"), ("wrong", "wrong-secret")):
        text = f'user = "{name.replace("wrong", "bookies")}"\npassword = "{password}"\n'
        (tmp_path / f"{name}.toml").write_text(text)

    async def main(server: EtcdServer, administration: Administration) -> None:
        uri = f"etcd://{server.address}/ledgers"
        early = await driver_of(f"{uri}?options={tmp_path}/bookies.toml")  # before there were users
        await asyncio.to_thread(administration.enable)
        ours = await driver_of(f"{uri}?options={tmp_path}/bookies.toml")
        assert await early.initialize_cluster() == await ours.initialize_cluster()
        await ours.register(A, BookieMode.WRITABLE, INFO)
        changed = asyncio.Event()
        ours.watch_record("r", 0, changed.set)
        # Whoever changes what anybody may do makes all tokens worthless.
        await asyncio.to_thread(administration.do, "role/add", name="more")
        await asyncio.sleep(0.2)
        assert (await ours.bookies(BookieMode.WRITABLE)).bookies == (A,)
        await early.create_record("r", b"")
        await changed.wait()
        with pytest.raises(
            MetadataError, match=r"denies access to user 'other' \(permission denied\): authenticate as"
        ):
            await driver_of(f"{uri}?options={tmp_path}/other.toml")
        with pytest.raises(MetadataError, match=r"denies access to user 'bookies' \(authentication failed"):
            await driver_of(f"{uri}?options={tmp_path}/wrong.toml")
        with pytest.raises(MetadataError, match=r"denies access without a user \(user name is empty\)"):
            await driver_of(uri)
        with pytest.raises(MetadataError, match=r"denies access to user 'bookies' \(permission denied\)"):
            await driver_of(f"etcd://{server.address}/elsewhere?options={tmp_path}/bookies.toml")
        await ours.close()
        await early.close()

    with etcd_server(tmp_path) as server:
        asyncio.run(asyncio.wait_for(main(server, Administration(server)), PATIENCE_S))


def test_mutual_tls(tmp_path: pathlib.Path) -> None:
    make_certificates(tmp_path, "DNS:etcd.example.org")
    trusted = f'[tls]\nauthority = "{tmp_path}/ca.pem"\n'
    known = f'certificate = "{tmp_path}/client.pem"\nkey = "{tmp_path}/client.key"\n'
    named = 'server_name = "etcd.example.org"\n'
    files = {
        "all": trusted + known + named,
        "nobody": trusted + named,
        "untrusting": f"[tls]\n{known}{named}",
        "misnamed": trusted + known,
    }
    for name, text in files.items():
        (tmp_path / f"{name}.toml").write_text(text)
    options = ["--client-cert-auth", "--trusted-ca-file", f"{tmp_path}/ca.pem"]
    options += ["--cert-file", f"{tmp_path}/server.pem", "--key-file", f"{tmp_path}/server.key"]

    async def main(server: EtcdServer) -> None:
        uri = f"etcd://{server.address}/ledgers"
        driver = await driver_of(f"{uri}?options={tmp_path}/all.toml")
        await driver.initialize_cluster()
        await driver.register(A, BookieMode.WRITABLE, INFO)
        assert (await driver.bookies(BookieMode.WRITABLE)).bookies == (A,)
        await driver.close()
        for name in ("nobody", "untrusting", "misnamed"):
            with pytest.raises(MetadataError, match=r"no etcd server at .* hosts, ports and certificates are right"):
                await driver_of(f"{uri}?options={tmp_path}/{name}.toml", lease_ms=1000)
        with pytest.raises(MetadataError, match=r"no etcd server at .* hosts and ports are right"):
            await driver_of(uri, lease_ms=1000)

    with etcd_server(tmp_path, *options, scheme="https") as server:
        asyncio.run(asyncio.wait_for(main(server), PATIENCE_S))


def test_what_is_too_much_says_so(tmp_path: pathlib.Path) -> None:
    """And a server that takes more takes it."""
    steps = [RecordWrite(f"r{number}", b"", 0) for number in range(1000)]
    large = [RecordWrite(f"s{number}", bytes(600_000), 0) for number in range(4)]

    async def main(server: EtcdServer, is_enough: bool) -> None:
        driver = await driver_of(f"etcd://{server.address}/ledgers")
        if is_enough:
            assert await driver.transact(steps) > 0
            assert await driver.transact(large) > 0
            assert len((await driver.read_record("s3"))[0]) == 600_000
            assert len(await driver.record_names("")) == 1004
        else:
            with pytest.raises(
                InvalidArgument, match=r"this number of operations in one request: .* larger --max-txn-ops"
            ):
                await driver.transact(steps)
            with pytest.raises(InvalidArgument, match=r"a request of this size: .* larger --max-request-bytes"):
                await driver.transact(large)
            assert await driver.record_names("") == []
        await driver.close()

    for name, options in (("small", []), ("large", ["--max-txn-ops", "4096", "--max-request-bytes", "4000000"])):
        folder = tmp_path / name
        folder.mkdir()
        with etcd_server(folder, *options) as server:
            asyncio.run(asyncio.wait_for(main(server, name == "large"), PATIENCE_S))
