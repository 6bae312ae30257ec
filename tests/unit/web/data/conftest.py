"""A gateway and a bookie in the simulated world, and HTTP clients with a token for each role."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.unit.bookie.conftest import World
from tests.unit.web.conftest import PORT, USERS, Answer, HttpClient

from bookies.admin.commands.gateway import ledger_routes
from bookies.client.client import Client
from bookies.config import ClientConfig, GatewayConfig
from bookies.metadata.embedded import MemoryDriver
from bookies.web.data.gateway import Gateway

API = "/api/v1"
ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}


class Site:
    """The gateways, and requests to them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._count = 0
        self.users = USERS

    async def start(self, **settings: Any) -> tuple[str, Any]:
        """Start a gateway. Return its host, and the block whose exit stops it."""
        self._count += 1
        host = f"gateway{self._count}"
        runtime = self.world.runtime(host)
        self.world.disk.replace_bytes("/users", self.users.encode())
        given = {"http_host": host, "http_insecure": True, **settings}
        config = GatewayConfig(http_port=PORT, users_file="/users", **given)
        gateway = Gateway(
            runtime, config, ClientConfig(), lambda: MemoryDriver(self.world.metadata, runtime), ledger_routes
        )
        block = gateway.running()
        await block.__aenter__()
        return host, block

    async def connect(self, host: str = "gateway1") -> HttpClient:
        _, client = await self.world.network.port("client").connect(host, PORT, HttpClient)
        assert isinstance(client, HttpClient)
        return client

    async def call(
        self, method: str, target: str, body: object = None, *, role: str = "administrator", host: str = "gateway1",
        **headers: str,
    ) -> Answer:  # fmt: skip
        """Send a request; `body`: bytes as they are, anything else as JSON. Headers may be named with `_`."""
        client = await self.connect(host)
        if role:
            headers["Authorization"] = f"Bearer {role}"
        answer = await client.get(
            API + target if target.startswith("/l") else target, method=method, body=body, **headers
        )
        client.transport.close()
        return answer

    async def client(self, host: str = "client") -> Client:
        """Return a client beside the gateways."""
        runtime = self.world.runtime(host)
        return await Client(runtime, MemoryDriver(self.world.metadata, runtime), ClientConfig()).open_session()


Body = Callable[[Site], Coroutine[Any, Any, None]]


@pytest.fixture
def serve() -> Callable[..., None]:
    """Run a coroutine with a gateway, `gateway1`, and a cluster of one bookie. `users`: lines besides `USERS`."""

    def run(body: Body, users: str = "", **settings: Any) -> None:
        world = World()

        async def inside(world: World) -> None:
            await world.start()
            site = Site(world)
            site.users += users
            _, block = await site.start(**settings)
            try:
                await body(site)
            finally:
                await block.__aexit__(None, None, None)

        world.run(inside)

    return run
