"""The ZooKeeper port on kazoo, as far as it goes without a server; with one: tests/apache."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from bookies.errors import ClientClosed, MetadataError
from bookies.runtime.kazoo_client import KazooZooKeeper, is_available

pytestmark = pytest.mark.skipif(not is_available(), reason="needs the extra zookeeper")


def test_nobody_there() -> None:
    """A port that nobody listens at: an error in time, and no thread stays."""

    async def main(port: int) -> None:
        zookeeper = KazooZooKeeper(f"127.0.0.1:{port}", 300)
        with pytest.raises(MetadataError, match=r"no ZooKeeper server at 127.0.0.1:\d+ has answered for 0.3 s"):
            await zookeeper.open()
        assert zookeeper.session_id is None
        with pytest.raises(ClientClosed):
            await zookeeper.get("/x")
        await zookeeper.close()

    before = threading.active_count()
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        asyncio.run(main(taken.getsockname()[1]))
    assert threading.active_count() <= before + 1  # asyncio's own, which closed it


def test_opening_can_be_cancelled() -> None:
    async def main(port: int) -> None:
        zookeeper = KazooZooKeeper(f"127.0.0.1:{port}", 5000)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await zookeeper.open()

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        asyncio.run(main(taken.getsockname()[1]))
