"""etcd is killed, paused and started again under a cluster: appends continue, and nothing is lost."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Iterator

import pytest
from tests.conformance.metadata_outages import INFO, PATIENCE_S, A, MetadataOutages
from tests.conformance.turns_outages import TurnsOutages
from tests.etcd.server import EtcdServer, etcd_server

from bookies.errors import MetadataError, VersionConflict
from bookies.metadata.interface.driver import LedgerEvent
from bookies.metadata.uri import connect
from bookies.model import BookieMode, LedgerMetadata
from bookies.runtime import aio

pytestmark = pytest.mark.etcd


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[EtcdServer]:
    folder = tmp_path / "etcd"
    folder.mkdir()
    with etcd_server(folder) as running:
        yield running


class TestTurns(TurnsOutages):
    scheme = "etcd"


class TestEtcd(MetadataOutages):
    scheme, product = "etcd", "etcd"


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_another_server_takes_over(tmp_path: pathlib.Path, how: str) -> None:
    """Of three, the one that we use goes: the registration stays, watches hear, and calls are answered."""
    servers = [EtcdServer(tmp_path, name=name) for name in ("one", "two", "three")]
    peers = ",".join(each.peers for each in servers)
    for each in servers:
        each.peers = peers

    async def main() -> None:
        uri = "etcd://" + ";".join(each.address for each in servers) + "/ledgers"
        bookie, client = (connect(uri, aio.runtime(), lease_ms=6000) for _ in range(2))
        for driver in (bookie, client):
            await driver.open()
        await bookie.initialize_cluster()
        await bookie.register(A, BookieMode.WRITABLE, INFO)
        bookie.on_session_expired(lambda: pytest.fail("the lease was lost"))
        changes: asyncio.Queue[LedgerEvent] = asyncio.Queue()
        record = await client.create_ledger(LedgerMetadata(7, 1, 1, 1, ((0, (A,)),)))
        client.watch_ledger(7, changes.put_nowait)
        assert await client.read_ledger(7) == record
        if how == "kill":
            servers[0].kill()
        else:
            servers[0].pause()
        await asyncio.sleep(8.0)  # longer than the lease
        assert (await client.bookies(BookieMode.WRITABLE)).bookies == (A,)
        changed = record.metadata.replace(custom_metadata={"n": b"1"})
        while True:
            try:
                await bookie.write_ledger(changed, record.version)
                break
            except MetadataError:
                continue
            except VersionConflict:  # One before it had happened.
                break
        assert await changes.get() is LedgerEvent.CHANGED
        for driver in (bookie, client):
            await driver.close()

    try:
        for each in servers:
            each.begin()
        for each in servers:
            each.wait()
        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    finally:
        for each in servers:
            each.kill()
