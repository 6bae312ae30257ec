"""Registrations in ZooKeeper while the session ends: a request of the earlier session deletes nobody's registration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.fakes.zookeeper import Server
from tests.fakes.zookeeper_requests import NotedZooKeeper, settle

from bookies.errors import SessionExpired
from bookies.metadata.zookeeper import ZkCluster, ZooKeeperDriver
from bookies.metadata.zookeeper.zookeeper_port import Acl, Create
from bookies.model import BookieId, BookieInfo, BookieMode
from bookies.runtime import aio

BK, INFO = BookieId("bk:3181"), BookieInfo(())
WRITABLE, READ_ONLY = "/ledgers/available/bk:3181", "/ledgers/available/readonly/bk:3181"
OTHER = 99  # another process's session


class World:
    """A bookie that is registered as writable, and its client."""

    def __init__(self) -> None:
        self.server = Server("/ledgers", "/ledgers/available", "/ledgers/available/readonly")
        self.client = NotedZooKeeper(self.server)
        self.driver = ZooKeeperDriver(
            "zk://fake/ledgers", self.client, aio.runtime(seed=1), ZkCluster("/ledgers"), lease_ms=2000
        )

    def register_other(self, path: str) -> None:
        self.server.apply([Create(path, b"", Acl.OPEN, is_ephemeral=True)], OTHER)

    async def change_session(self) -> None:
        """End the session while a request waits. The client begins the next one."""
        await settle()
        self.client.expire()
        self.register_other(WRITABLE)
        with pytest.raises(SessionExpired):
            await self.client.exists("/ledgers")
        self.client.release()


def play(body: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        async with asyncio.timeout(120):
            await world.driver.open()
            await world.driver.register(BK, BookieMode.WRITABLE, INFO)
            await body(world)
            assert world.server.nodes[WRITABLE].owner == OTHER
            await world.driver.close()

    asyncio.run(main())


def test_a_late_change_of_the_mode() -> None:
    async def body(world: World) -> None:
        world.client.hold()
        change = asyncio.ensure_future(world.driver.register(BK, BookieMode.READ_ONLY, INFO))
        await world.change_session()
        with pytest.raises(SessionExpired):
            await change
        assert READ_ONLY not in world.server.nodes

    play(body)


def test_a_late_withdrawal_in_favour_of_another_mode() -> None:
    async def body(world: World) -> None:
        await world.driver.unregister(BK)
        world.client.hold()
        registration = asyncio.ensure_future(world.driver.register(BK, BookieMode.WRITABLE, INFO))
        await settle()
        world.register_other(READ_ONLY)
        world.server.watch(WRITABLE, False, world.client, world.client.hold)
        world.client.release()
        await settle()
        assert world.client.requests[-1][0].path == WRITABLE  # its deletion
        await world.change_session()
        with pytest.raises(SessionExpired):
            await registration

    play(body)


def test_a_late_end_of_a_registration() -> None:
    async def body(world: World) -> None:
        world.client.hold()
        end = asyncio.ensure_future(world.driver.unregister(BK))
        await world.change_session()
        await end

    play(body)
