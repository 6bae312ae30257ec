"""The HTTP server in its two processes: a bookie, and auto-recovery alone.

The server listens before a bookie replays its journal, so that probes are answered from the beginning.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bookies.bookie.server import BookieServer
from bookies.bookie.transport.security import server_files
from bookies.bookie.transport.users_file import UsersFile
from bookies.config import BookieConfig, ClientConfig, HttpConfig, SiteConfig
from bookies.errors import ConfigError
from bookies.metrics.collections import bookie_collection, recovery_collection
from bookies.metrics.health import BookieHealth, RecoveryHealth
from bookies.metrics.samples import Samples
from bookies.protocol.rights import Role
from bookies.runtime.activities import LoopLag
from bookies.runtime.events import Events
from bookies.runtime.ports import Clock, Encryption, Runtime
from bookies.runtime.tasks import Tasks
from bookies.web import openapi
from bookies.web.access import Access
from bookies.web.apache_bookie import BookieEndpoints
from bookies.web.apache_changes import BookieChanges, ClusterChanges
from bookies.web.apache_cluster import ClusterEndpoints
from bookies.web.audit import Audit
from bookies.web.jobs import Jobs
from bookies.web.messages import Request, Response, json_response
from bookies.web.probes import Probes, overview
from bookies.web.routes import Route, Routes
from bookies.web.server import HttpServer
from bookies.web.shared_client import OpenDriver, SharedClient

if TYPE_CHECKING:
    from bookies.replication.auditor.log_retention import LogRetention
    from bookies.replication.daemon.daemon import AutoRecovery
    from bookies.replication.daemon.process import RecoveryProcess


class Process(Struct, frozen=True):
    """The process of a server, for endpoints of other packages. `server`: None in a process without a bookie.

    `samples`: None in a process that takes none. `audit`: None in a process that is not asked for its changes. `jobs`
    and `config`: None in a process that runs no jobs.
    """

    client: SharedClient
    server: BookieServer | None
    samples: Samples | None = None
    audit: Audit | None = None
    jobs: Jobs | None = None
    config: SiteConfig | None = None


OtherRoutes = Callable[[Process], Sequence[Route]]
Background = Callable[[], Coroutine[Any, Any, None]]


def with_overview(routes: list[Route]) -> list[Route]:
    """Return the endpoints of a process, and those that describe them."""
    has_console = any(route.path == "/console" for route in routes)

    async def show(request: Request) -> Response:
        if has_console and "text/html" in request.headers.get("accept", ""):
            return Response(303, b"", headers={"Location": "/console"})
        return await overview(routes)

    async def describe(request: Request) -> Response:
        return json_response(openapi.document(routes, "bookies"))

    return [
        Route("/", "this list; a browser is led to the console", show, role=Role.ANYONE),
        Route(openapi.PATH, "this list in OpenAPI", describe),
        *routes,
    ]


@contextlib.asynccontextmanager
async def _serving(
    server: HttpServer, client: SharedClient, jobs: Jobs, background: Iterable[Background], clock: Clock
) -> AsyncIterator[None]:
    """Serve, and run `background` meanwhile."""
    events = Events("http", clock)
    tasks = Tasks(lambda error: events.error("http.broken", path="background", error=error))
    await server.start()
    for work in background:
        tasks.start(work(), "background of the HTTP server")
    try:
        yield
    finally:
        await tasks.stop()
        await server.stop()
        await jobs.stop()
        await client.close()


def http_server(
    runtime: Runtime,
    config: HttpConfig,
    tls: BookieConfig | ClientConfig,
    routes: Routes,
    names: Sequence[str],
    audit: Audit | None = None,
) -> HttpServer:
    """Return the server. `tls`: its certificate's settings. Raises `ConfigError` if a file of it cannot be used."""
    users = UsersFile(runtime.disk, config.users_file, runtime.clock) if config.users_file else None
    access = Access(
        users,
        [name for name in names if name],
        runtime.clock,
        scheme="https" if config.http_tls else "http",
        open_metrics=config.http_open_metrics,
    )
    encryption = _encryption(runtime, tls) if config.http_tls else None
    return HttpServer(runtime, config, routes, access, encryption, audit or Audit(runtime.clock))


def _encryption(runtime: Runtime, tls: BookieConfig | ClientConfig) -> Encryption:
    if runtime.tls is None or not tls.tls_certificate:
        raise ConfigError("http_tls needs tls_certificate: without it nothing can be encrypted")
    files = server_files(tls, checks_peer=False, asks_peer=bool(tls.tls_authority))
    return runtime.tls(files, True)


def beside_start(
    client_config: ClientConfig,
    open_driver: OpenDriver,
    recovery: Callable[[], AutoRecovery | None] | None,
    other_routes: OtherRoutes = lambda process: (),
    retention: Callable[[], LogRetention | None] | None = None,
) -> Callable[[BookieServer, Runtime], contextlib.AbstractAsyncContextManager[None]]:
    """Return the function that runs the HTTP server around the life of a bookie: see `bookie.main.run`.

    `recovery`: auto-recovery in the same process, which returns None while it does not run. `other_routes`: endpoints
    of other packages. `retention`: of logs, as `recovery`.
    """

    @contextlib.asynccontextmanager
    async def around(server: BookieServer, runtime: Runtime) -> AsyncIterator[None]:
        config = server.config
        health = BookieHealth(server, runtime.clock.monotonic)
        metrics = bookie_collection(server, recovery, health, runtime.clock, retention)
        client = SharedClient(runtime, open_driver, client_config)
        jobs, samples, audit = Jobs(runtime.clock), Samples(metrics, runtime.clock), Audit(runtime.clock)
        routes = with_overview(
            [
                *Probes(health, metrics, runtime.clock).routes,
                *BookieEndpoints(server, health).routes,
                *BookieChanges(server, client.connected).routes,
                *ClusterEndpoints(lambda: server.metadata, client.get, runtime.clock).routes,
                *ClusterChanges(client.connected, jobs).routes,
                *other_routes(Process(client, server, samples, audit, jobs, config)),
            ]
        )
        names = [config.http_host, config.host, config.advertised_host, *config.http_names]
        http = http_server(runtime, config, config, Routes(routes, "bookie"), names, audit)
        async with _serving(http, client, jobs, [samples.run], runtime.clock):
            server.http_address = http.address
            yield

    return around


@contextlib.asynccontextmanager
async def around_recovery(
    process: RecoveryProcess,
    config: SiteConfig,
    runtime: Runtime,
    open_driver: OpenDriver,
    client_config: ClientConfig,
    other_routes: OtherRoutes = lambda process: (),
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
    jobs, samples, audit = Jobs(runtime.clock), Samples(metrics, runtime.clock), Audit(runtime.clock)
    routes = with_overview(
        [
            *Probes(health, metrics, runtime.clock).routes,
            *cluster.routes,
            *ClusterChanges(client.connected, jobs).routes,
            *other_routes(Process(client, None, samples, audit, jobs, config)),
        ]
    )
    names = [config.http_host, *config.http_names]
    http = http_server(runtime, config, client_config, Routes(routes, "the recovery process"), names, audit)
    async with _serving(http, client, jobs, [lag.run, samples.run], runtime.clock):
        yield http.address
