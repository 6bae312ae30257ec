"""A bookie with its HTTP server in the simulated world, and a client that sends what it likes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import h11
import pytest
from tests.unit.bookie.conftest import World

from bookies.admin.remote import remote_api
from bookies.bookie.server import BookieServer
from bookies.config import ClientConfig
from bookies.metadata.embedded import MemoryDriver
from bookies.protocol.rights.users import ROLES, hash_of
from bookies.web.site import beside_start

PORT = 8080


class Answer:
    """One response, complete."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class HttpClient(asyncio.Protocol):
    """One connection: `send` bytes, then `answer` reads the next response, or look at all bytes `received`.

    `ended`: the server has closed it.
    """

    def __init__(self) -> None:
        self.ended = False
        self.received = b""
        self.transport: Any = None
        self._protocol = h11.Connection(h11.CLIENT)
        self._news = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self._protocol.receive_data(data)
        self._news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        self._news.set()

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    async def get(
        self, target: str, *, method: str = "GET", host: str = "localhost", body: object = None, **headers: str
    ) -> Answer:
        lines = [("Host", host), *((name.replace("_", "-"), value) for name, value in headers.items())]
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        if data:
            lines.append(("Content-Length", str(len(data))))
        self.send(self._protocol.send(h11.Request(method=method, target=target, headers=lines)))
        if data:
            self.send(self._protocol.send(h11.Data(data=data)))
        self.send(self._protocol.send(h11.EndOfMessage()))
        answer = await self.answer()
        if self._protocol.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
            self._protocol.start_next_cycle()
        return answer

    async def answer(self) -> Answer:
        status, headers, body = 0, {}, b""
        while True:
            event = self._protocol.next_event()
            if event is h11.NEED_DATA:
                assert not self.ended, "the server closed the connection"
                self._news.clear()
                await self._news.wait()
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return Answer(status, headers, body)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds, which what arrives may change."""
        while not condition():
            self._news.clear()
            await self._news.wait()

    async def end(self) -> None:
        """Wait until the server has closed the connection."""
        await self.until(lambda: self.ended)


class Site:
    """The bookie, its HTTP server, and connections to it."""

    def __init__(self, world: World, server: BookieServer) -> None:
        self.world = world
        self.server = server

    async def connect(self) -> HttpClient:
        _, client = await self.world.network.port("client").connect("bookie", PORT, HttpClient)
        assert isinstance(client, HttpClient)
        return client

    async def get(self, target: str, **arguments: Any) -> Answer:
        client = await self.connect()
        answer = await client.get(target, **arguments)
        client.transport.close()
        return answer

    async def call(self, role: str, method: str, target: str, body: object = None) -> Answer:
        """Send a request as the user of this role; see `USERS`."""
        return await self.get(target, method=method, body=body, Authorization=f"Bearer {role}")


USERS = "".join(f"{role}-user {role} {hash_of(role)}\n" for role in ROLES)  # the role is the token too
Body = Callable[[Site], Coroutine[Any, Any, None]]


@pytest.fixture
def serve() -> Callable[..., None]:
    """Run a coroutine with the site of a bookie. `is_started=False`: the bookie only listens. `users`: with `USERS`."""

    def run(body: Body, *, is_started: bool = True, users: bool = False, **settings: Any) -> None:
        world = World()
        if users:
            world.disk.replace_bytes("/users", USERS.encode())
            settings["users_file"] = "/users"

        async def inside(world: World) -> None:
            server = await world.on_bookie(
                world.new_server(http_port=PORT, http_host="bookie", http_insecure=True, **settings)
            )
            runtime = world.runtime("bookie")
            around = beside_start(
                ClientConfig(), lambda: MemoryDriver(world.metadata, runtime), None, remote_api.routes
            )
            surroundings = around(server, runtime)
            await world.on_bookie(surroundings.__aenter__())
            try:
                if is_started:
                    await world.on_bookie(server.start())
                await body(Site(world, server))
            finally:
                await world.on_bookie(surroundings.__aexit__(None, None, None))

        world.run(inside)

    return run
