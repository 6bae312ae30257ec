"""The gateway: a process of its own that serves data over HTTP. Towards the cluster it is an ordinary client.

It is no part of a bookie, so that its memory and its event loop are not the bookie's: see docs/decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Sequence

from bookies.client.transport.client_counts import ClientUsage
from bookies.config import ClientConfig, GatewayConfig
from bookies.errors import BookKeeperError, ConfigError
from bookies.metrics.collections import gateway_collection
from bookies.metrics.gateway_table import GatewayFacts
from bookies.metrics.health import GatewayHealth
from bookies.runtime.activities import LoopLag
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks
from bookies.web.data.ledger_endpoints import LedgerEndpoints
from bookies.web.data.log_endpoints import LogEndpoints
from bookies.web.data.reading import Reading
from bookies.web.data.writers import Writers
from bookies.web.probes import Probes
from bookies.web.routes import Route, Routes
from bookies.web.server import HttpServer
from bookies.web.shared_client import OpenDriver, SharedClient
from bookies.web.site import OtherRoutes, Process, http_server, with_overview

_URL = re.compile(r"(https?://[^/\s?#@]+)?")
RETRY_S = 2.0  # between two attempts to reach the metadata store


class Gateway:
    """One gateway, from `start` to `stop`. `other_routes`: endpoints of other packages.

    Raises `ConfigError` without a file of users: data has no reader and no writer whom the gateway does not know.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: GatewayConfig,
        client_config: ClientConfig,
        open_driver: OpenDriver,
        other_routes: OtherRoutes = lambda process: (),
    ) -> None:
        if not config.users_file:
            raise ConfigError(
                "a gateway needs users: `bk token add NAME --role writer --users FILE`, and users_file = FILE"
            )
        if not _URL.fullmatch(config.gateway_url):
            raise ConfigError(f"gateway_url = {config.gateway_url!r}: must be as https://gw1:8081, or empty")
        self._client = SharedClient(runtime, open_driver, client_config)
        self._writers = Writers(runtime, self._client, config)
        self._reading = Reading(config.gateway_tails_max)
        self._logs = LogEndpoints(self._client, self._writers, self._reading)
        self._ledgers = LedgerEndpoints(self._client, self._writers, self._reading)
        self._is_stopping = False
        self._events = Events("gateway", runtime.clock)
        self._tasks = Tasks(lambda error: self._events.error("gateway.broken", error=error))
        self._lag = LoopLag()
        health = GatewayHealth(lambda: self._client.current is not None, lambda: self._is_stopping)
        metrics = gateway_collection(
            self._facts, self._usage, open_driver().uri, health, self._lag, runtime.clock.monotonic
        )
        routes: Sequence[Route] = [
            *Probes(health, metrics, runtime.clock).routes,
            *self._logs.routes,
            *self._ledgers.routes,
            *other_routes(Process(self._client, None)),
        ]
        self._config = config
        self._host = os.uname().nodename if config.http_host in ("0.0.0.0", "::") else config.http_host
        names = [self._host, *config.http_names]
        self._server: HttpServer = http_server(
            runtime, config, client_config, Routes(with_overview(list(routes)), "the gateway"), names
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[str, int]]:
        """Serve during the block. Yields the address. Its end waits for requests in progress, and seals the writers."""
        await self._server.start()
        self._writers.url = self._config.gateway_url or self._own_url()
        self._tasks.start(self._lag.run(), "delay of the event loop")
        self._tasks.start(self._connect(), "connect to the cluster")
        self._writers.start()
        try:
            yield self._server.address
        finally:
            self._is_stopping = True
            await self._reading.stop()
            await self._server.drain()
            await self._server.stop()
            await self._tasks.stop()
            await self._writers.stop()
            await self._client.close()

    def _own_url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._config.http_tls else 'http'}://{host}:{self._server.address[1]}"

    async def _connect(self) -> None:
        """Connect before the first request, so that readiness means that requests can be served."""
        while True:
            try:
                await self._client.connected()
                return
            except (BookKeeperError, OSError) as error:
                self._events.warning("gateway.not_connected", error=error)
                await asyncio.sleep(RETRY_S)

    def _facts(self) -> GatewayFacts:
        return GatewayFacts(
            self._server.statuses,
            self._logs.appended + self._ledgers.appended,
            self._logs.repeated + self._ledgers.repeated,
            self._reading.entries,
            self._writers.pending_size,
            self._server.bodies_size,
            len(self._reading.tails),
            len(self._writers.logs),
            len(self._writers.ledgers),
        )

    def _usage(self) -> ClientUsage | None:
        current = self._client.current
        return None if current is None else current.client.usage()
