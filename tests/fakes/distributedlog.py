"""A namespace of DistributedLog on fake bookies, its znodes in a fake ZooKeeper or in the embedded store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.fakes.world import World, play
from tests.fakes.zookeeper import FakeZooKeeper, Server

from bookies.distributedlog import Dlog, Namespace
from bookies.distributedlog.store import RecordTree

QUICK = {"add_timeout_ms": 300, "read_timeout_ms": 300, "connect_timeout_ms": 1_000}
ROOT = "/dl"
Act = Callable[["Place"], Awaitable[None]]


class Place:
    """A world with one namespace. `server`: its fake ZooKeeper, None: the embedded store."""

    def __init__(self, world: World, server: Server | None) -> None:
        self.world = world
        self.server = server

    async def namespace(self, owner: str | None = None, **settings: Any) -> Namespace:
        """Another process's view of the namespace."""
        client = await self.world.client(**(QUICK | settings))
        runtime = self.world.runtime(f"namespace {owner}")
        if self.server is None:
            return Namespace(runtime, RecordTree(client._driver, ROOT[1:]), ROOT, client, owner=owner)
        zookeeper = FakeZooKeeper(self.server)
        await zookeeper.open()
        return Namespace(runtime, zookeeper, ROOT, client, owner=owner)

    async def log(self, name: str = "orders", owner: str | None = None) -> Dlog:
        return (await self.namespace(owner)).log(name)

    def znodes(self) -> dict[str, bytes]:
        """Every znode below the namespace."""
        assert self.server is not None
        return {path: node.data for path, node in self.server.nodes.items() if path.startswith(ROOT + "/")}


def in_namespace(act: Act, *, has_zookeeper: bool = True, bookies: int = 3, deadline_s: float = 600.0) -> None:
    """Run `act` on virtual time."""

    async def main(world: World) -> None:
        await act(Place(world, Server(ROOT) if has_zookeeper else None))

    play(main, bookies, deadline_s=deadline_s)
