"""The HTTP server: listens, bounds the number of connections, and passes requests to the endpoints.

It runs on the event loop of its process. Long answers are streamed in pieces, between which the loop does other work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from bookies.config import HttpConfig
from bookies.errors import BookKeeperError, ConfigError, LedgerNotFound, MetadataError
from bookies.runtime.events import Events
from bookies.runtime.ports import Listener, Runtime
from bookies.web.connection import HttpConnection
from bookies.web.messages import Problem, Request, Response
from bookies.web.routes import Routes

CONNECTIONS_MAX = 100
KEPT_FOR_PROBES = 4  # of these connections
LISTS_MAX = 4  # long answers at a time
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class HttpServer:
    """Serves the endpoints from `start` to `stop`. `address`: known from `start` on."""

    def __init__(self, runtime: Runtime, config: HttpConfig, routes: Routes) -> None:
        self.address = (config.http_host, config.http_port)
        self._runtime = runtime
        self._config = config
        self._routes = routes
        self._events = Events("http", runtime.clock)
        self._listener: Listener | None = None
        self._connections: dict[HttpConnection, None] = {}
        self._lists = 0

    async def start(self) -> None:
        """Listen. Raises `ConfigError` if the address cannot be used."""
        host, port = self._config.http_host, self._config.http_port
        try:
            self._listener = await self._runtime.network.listen(host, port, self._accept)
        except OSError as error:
            raise ConfigError(
                f"http_port = {port}: cannot listen on {host}: {error.strerror or error}; choose another http_port, "
                "or 0 for any free one"
            ) from error
        self.address = (host, self._listener.address[1])
        self._events.info("http.serving", host=host, port=self.address[1])
        if self._config.http_insecure:
            self._events.warning("http.insecure", host=host, consequence="every machine that reaches it may read it")

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._listener is not None:
            self._listener.close()
            await self._listener.wait_closed()
            self._listener = None
        for connection in list(self._connections):
            connection.close()

    def _accept(self) -> asyncio.BaseProtocol:
        if len(self._connections) >= CONNECTIONS_MAX:
            return _Rejected()
        connection = HttpConnection(self.handle, self._date, self._events, self._ended)
        self._connections[connection] = None
        return connection

    def _ended(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)

    def _date(self) -> str:
        now = datetime.fromtimestamp(self._runtime.clock.wall_ms() / 1000, UTC)
        return f"{DAYS[now.weekday()]}, {now.day:02} {MONTHS[now.month - 1]} {now:%Y %H:%M:%S} GMT"

    async def handle(self, request: Request) -> Response:
        """Answer one request. Raises `Problem`."""
        route = self._routes.route_of(request)
        if not route.is_probe and len(self._connections) > CONNECTIONS_MAX - KEPT_FOR_PROBES:
            raise Problem(503, "too many connections", headers={"Retry-After": "1"})
        if route.is_list and self._lists >= LISTS_MAX:
            raise Problem(429, f"{LISTS_MAX} lists are being sent already", headers={"Retry-After": "1"})
        try:
            response = await route.handler(request)
        except LedgerNotFound as error:
            raise Problem(404, str(error), "bk ledger list") from error
        except MetadataError as error:
            raise Problem(503, str(error), "bk status", {"Retry-After": "5"}) from error
        except BookKeeperError as error:
            raise Problem(500, str(error)) from error
        if route.is_list and not isinstance(response.body, bytes):
            return Response(response.status, self._counted(response.body), response.content_type, response.headers)
        return response

    async def _counted(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield a body, counted among the lists while it is sent."""
        self._lists += 1
        try:
            async for piece in body:
                yield piece
        finally:
            self._lists -= 1


class _Rejected(asyncio.Protocol):
    """A connection beyond the limit, which is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
