"""Traced requests at Apache's bookies, which put the identity of a trace into the context of their log lines."""

from __future__ import annotations

import asyncio
import pathlib

import pytest
from opentelemetry.sdk.trace import TracerProvider
from tests.apache.apache import VERSION
from tests.apache.zookeeper import zookeeper_server
from tests.interop.processes import Bookie

import bookies
from bookies.metadata.uri import connect
from bookies.runtime import aio

pytestmark = pytest.mark.apache


@pytest.mark.parametrize("keeps_context", [False, True])
def test_apaches_bookies_serve_traced_requests(tmp_path: pathlib.Path, keeps_context: bool) -> None:
    provider = TracerProvider(shutdown_on_exit=False)

    async def write_and_read(uri: str) -> None:
        async with bookies.connect(uri) as store:
            client = bookies.metrics.trace(store, provider)
            with provider.get_tracer("shop").start_as_current_span("order"):
                async with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger:
                    assert await ledger.append(b"first") == 0
                    assert await ledger.append_many([b"next"] * 100) == 100
                    appends = [ledger.append(b"%d" % number) for number in range(50)]
                    assert sorted(await asyncio.gather(*appends)) == list(range(101, 151))
                async with client.open(ledger.ledger_id) as reader:
                    assert (await reader.read_entry(0)).payload == b"first"
                    assert [entry.id async for entry in reader.read()] == list(range(151))

    async def create_cluster(uri: str) -> None:
        driver = connect(uri, aio.runtime())
        await driver.open()
        await driver.initialize_cluster()
        await driver.close()

    with zookeeper_server(tmp_path) as server:
        uri = f"zk+hierarchical://{server.address}/ledgers"
        asyncio.run(create_cluster(uri))
        settings = {"preserveMdcForTaskExecution": str(keeps_context).lower()}
        bookie = Bookie("java", "bookie-0", tmp_path / "bookie", uri, version=VERSION, settings=settings)
        try:
            bookie.start()
            asyncio.run(write_and_read(uri))
        finally:
            bookie.kill()
