"""The HTTP server in its two processes: a bookie, and auto-recovery alone.

The server listens before a bookie replays its journal, so that probes are answered from the beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from bookies.bookie.server import BookieServer
from bookies.config import ClientConfig, HttpConfig
from bookies.metadata.interface import MetadataDriver
from bookies.metrics.collections import bookie_collection, recovery_collection
from bookies.metrics.health import BookieHealth, RecoveryHealth
from bookies.runtime.activities import LoopLag
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks
from bookies.web.apache_bookie import BookieEndpoints
from bookies.web.apache_cluster import ClusterEndpoints
from bookies.web.messages import Request, Response
from bookies.web.probes import Probes, overview
from bookies.web.routes import Route, Routes
from bookies.web.server import HttpServer

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.replication.daemon.daemon import AutoRecovery
    from bookies.replication.daemon.process import RecoveryProcess

OpenDriver = Callable[[], MetadataDriver]


class SharedClient:
    """The client of the endpoints that ask bookies, imported and opened for the first request that needs it."""

    def __init__(self, runtime: Runtime, open_driver: OpenDriver, config: ClientConfig) -> None:
        self._runtime = runtime
        self._open_driver = open_driver
        self._config = config
        self._client: Client | None = None
        self._opening = asyncio.Lock()

    async def get(self) -> Client:
        """Return the client. Raises `BookKeeperError` if there is no session with the metadata store."""
        from bookies.client.client import Client

        async with self._opening:
            if self._client is None:
                client = Client(self._runtime, self._open_driver(), self._config)
                try:
                    await client.open_session()
                except BaseException:
                    await client.close()
                    raise
                self._client = client
            return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


def bookie_routes(server: BookieServer, health: BookieHealth, probes: Probes, cluster: ClusterEndpoints) -> list[Route]:
    """Return the endpoints of a bookie."""
    return _with_overview([*probes.routes, *BookieEndpoints(server, health).routes, *cluster.routes])


def _with_overview(routes: list[Route]) -> list[Route]:
    async def show(request: Request) -> Response:
        return await overview(routes)

    return [Route("/", "this list", show), *routes]


@contextlib.asynccontextmanager
async def _serving(server: HttpServer, client: SharedClient) -> AsyncIterator[None]:
    await server.start()
    try:
        yield
    finally:
        await server.stop()
        await client.close()


def beside_start(
    client_config: ClientConfig, open_driver: OpenDriver, recovery: Callable[[], AutoRecovery | None] | None
) -> Callable[[BookieServer, Runtime], contextlib.AbstractAsyncContextManager[None]]:
    """Return the function that runs the HTTP server around the life of a bookie: see `bookie.main.run`.

    `recovery`: auto-recovery in the same process, which returns None while it does not run.
    """

    @contextlib.asynccontextmanager
    async def around(server: BookieServer, runtime: Runtime) -> AsyncIterator[None]:
        config = server.config
        health = BookieHealth(server, runtime.clock.monotonic)
        metrics = bookie_collection(server, recovery, health, runtime.clock)
        client = SharedClient(runtime, open_driver, client_config)
        cluster = ClusterEndpoints(lambda: server.metadata, client.get, runtime.clock)
        routes = bookie_routes(server, health, Probes(health, metrics, runtime.clock), cluster)
        names = [config.http_host, config.host, config.advertised_host, *config.http_names]
        http = HttpServer(runtime, config, Routes(routes, "bookie", [name for name in names if name]))
        async with _serving(http, client):
            server.http_address = http.address
            yield

    return around


@contextlib.asynccontextmanager
async def around_recovery(
    process: RecoveryProcess,
    config: HttpConfig,
    runtime: Runtime,
    open_driver: OpenDriver,
    client_config: ClientConfig,
) -> AsyncIterator[tuple[str, int]]:
    """Run the HTTP server around the life of a process of auto-recovery. Yields its address."""
    health, lag = RecoveryHealth(process), LoopLag()

    def current() -> AutoRecovery | None:
        return process.current

    metrics = recovery_collection(current, open_driver().uri, health, lag, runtime.clock)
    client = SharedClient(runtime, open_driver, client_config)
    cluster = ClusterEndpoints(
        lambda: None if process.current is None else process.current.driver, client.get, runtime.clock
    )
    routes = _with_overview([*Probes(health, metrics, runtime.clock).routes, *cluster.routes])
    names = [config.http_host, *config.http_names]
    http = HttpServer(runtime, config, Routes(routes, "the recovery process", names))
    events = Events("http", runtime.clock)
    tasks = Tasks(lambda error: events.error("http.broken", path="loop lag", error=error))
    async with _serving(http, client):
        tasks.start(lag.run(), "delay of the event loop")
        try:
            yield http.address
        finally:
            await tasks.stop()
