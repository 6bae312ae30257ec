"""The HTTP server: listens, bounds the number of connections, and passes requests to the endpoints.

It runs on the event loop of its process. Long answers are streamed in pieces, between which the loop does other work.
Requests beyond a rate wait, so that a flood of them leaves the loop to the adds; a connection has one at a time, so
the number of those that wait is bounded too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime

from msgspec.structs import replace

from bookies.config import HttpConfig
from bookies.errors import (
    BookKeeperError,
    ConfigError,
    CursorBehind,
    CursorMoved,
    EntryNotFound,
    InvalidArgument,
    LeaseHeld,
    LedgerClosed,
    LedgerFenced,
    LedgerNotFound,
    LogExists,
    LogFenced,
    LogInUse,
    LogNotFound,
    LogRecordCorrupt,
    LogTruncated,
    MetadataError,
    NotConfirmed,
    SequenceGap,
    Unauthorized,
)
from bookies.protocol.pacing import RateLimit
from bookies.runtime.events import Events
from bookies.runtime.ports import Encryption, Listener, Runtime
from bookies.runtime.tasks import pause
from bookies.web.access import Access
from bookies.web.audit import Audit
from bookies.web.connection import BODY_SIZE_MAX, HttpConnection
from bookies.web.messages import Problem, Request, Response
from bookies.web.routes import Route, Routes, named

KEPT_FOR_PROBES = 4  # of the connections
LISTS_MAX = 4  # long answers at a time
DRAIN_S = 10.0  # for answers in progress when the process ends
BURST_S = 1.0  # seconds of unused rate that may be made up for
STATUSES: Mapping[type[BookKeeperError], int] = {
    InvalidArgument: 422,
    LogRecordCorrupt: 422,
    Unauthorized: 403,
    LogNotFound: 404,
    EntryNotFound: 404,
    NotConfirmed: 404,
    LogTruncated: 410,
    CursorMoved: 412,
    **dict.fromkeys((LogExists, CursorBehind, LeaseHeld, LogInUse, SequenceGap, LedgerClosed, LedgerFenced), 409),
    LogFenced: 503,
}
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class HttpServer:
    """Serves the endpoints from `start` to `stop`. `address`: known from `start` on."""

    def __init__(
        self,
        runtime: Runtime,
        config: HttpConfig,
        routes: Routes,
        access: Access,
        encryption: Encryption | None,
        audit: Audit,
    ) -> None:
        self.address = (config.http_host, config.http_port)
        self._access = access
        self._encryption = encryption
        self._audit = audit
        # A flood of scrapes must not delay probes, which would end the process: each cost has a budget of its own.
        budgets = {(False, 1), *((route.is_probe, route.cost) for route in routes.all)}
        self._paces = {budget: RateLimit(config.http_requests_rate, BURST_S) for budget in budgets}
        self._runtime = runtime
        self._config = config
        self._routes = routes
        self._events = Events("http", runtime.clock)
        self._listener: Listener | None = None
        self._connections: dict[HttpConnection, None] = {}
        self._lists = 0
        self.bodies_size = 0  # bytes of the bodies of requests in progress
        self.statuses: dict[int, int] = {}  # requests by status

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
            self._events.warning(
                "http.insecure",
                host=host,
                consequence="without users any machine that reaches it may read; without TLS tokens can be overheard",
            )

    async def drain(self) -> None:
        """Close the port and idle connections, and wait a while for the answers of the others."""
        await self._close_port()
        deadline = self._runtime.clock.monotonic() + DRAIN_S
        while self._connections and self._runtime.clock.monotonic() < deadline:
            for connection in [idle for idle in self._connections if not idle.is_answering]:
                connection.close()
                self._connections.pop(connection, None)
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Close the port and all connections."""
        await self._close_port()
        for connection in list(self._connections):
            connection.close()

    async def _close_port(self) -> None:
        if self._listener is not None:
            self._listener.close()
            await self._listener.wait_closed()
            self._listener = None

    def _accept(self) -> asyncio.BaseProtocol:
        if len(self._connections) >= self._config.http_connections_max:
            # A client that only holds connections must not keep the others out: the longest idle one makes room.
            waiting = [connection for connection in self._connections if not connection.is_answering]
            if not waiting:
                return _Rejected()
            idle = min(waiting, key=lambda connection: connection.waits_since)
            self._connections.pop(idle)
            idle.close()
        connection = HttpConnection(self, self._events, self._ended, self._encryption)
        self._connections[connection] = None
        return connection

    def _ended(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)

    def date(self) -> str:
        """Return the header `Date`."""
        now = datetime.fromtimestamp(self._runtime.clock.wall_ms() / 1000, UTC)
        return f"{DAYS[now.weekday()]}, {now.day:02} {MONTHS[now.month - 1]} {now:%Y %H:%M:%S} GMT"

    def reserve(self, size: int) -> bool:
        """See `connection.Service`."""
        if size > 0 and self.bodies_size + size > self._config.http_bodies_size:
            return False
        self.bodies_size += size
        return True

    def admit(self, request: Request) -> int:
        """Return the bytes that a body may have. Only a user who may send data sends more than a small one."""
        match = self._routes.find(request)
        if match is None or not match[0].body_max:
            return BODY_SIZE_MAX
        self._access.check_source(request, changes=True)
        self._access.user_of(request, match[0])
        return match[0].body_max

    async def handle(self, request: Request) -> Response:
        """Answer one request. Raises `Problem`."""
        status = 500
        try:
            response = await self._handle(request)
            status = response.status
        except Problem as problem:
            status = problem.status
            raise
        finally:
            self.statuses[status] = self.statuses.get(status, 0) + 1
        return response

    async def _handle(self, request: Request) -> Response:
        match = self._routes.find(request)
        route = match[0] if match is not None else None
        is_probe = route is not None and route.is_probe
        cost = route.cost if route is not None else 1
        await pause(self._paces[is_probe, cost].charge(cost, self._runtime.clock.monotonic()))
        if not is_probe:
            self._access.check_source(request, changes=request.method not in ("GET", "HEAD"))
        if match is None:
            raise self._routes.refusal(request)
        route, values = match
        request = replace(request, values=values, user=self._access.user_of(request, route))
        await pause(self._access.delay_s(request))
        await self._check_labels(route, request)
        if not is_probe and len(self._connections) > self._config.http_connections_max - KEPT_FOR_PROBES:
            raise Problem(503, "too many connections", headers={"Retry-After": "1"})
        if route.is_list and self._lists >= LISTS_MAX:
            raise Problem(429, f"{LISTS_MAX} lists are being sent already", headers={"Retry-After": "1"})
        if route.changes and not route.body_max:
            if not request.is_dry_run:
                return await self._change(route, request)
            if "dry_run" not in {**named(route.parameters), **named(route.body)}:
                raise Problem(400, f"{route.method} {route.path} has no dry run")
        response = await self._answer(route, request)
        if isinstance(response.body, bytes):
            self._access.answered(request, len(response.body))
        elif request.user is not None:
            response = replace(response, body=self._streamed(request, response.body))
        if route.body_max:
            self._audit.received(request)
        if route.is_list and not isinstance(response.body, bytes):
            return replace(response, body=self._counted(response.body))
        return response

    async def _check_labels(self, route: Route, request: Request) -> None:
        """Refuse a user who has the role on other ledgers and logs only. Raises `Problem`."""
        if route.labels is None or request.user is None or request.user.role >= route.role:
            return
        labels: Mapping[str, bytes] | None = None
        try:
            labels = await route.labels(request)
        except LedgerNotFound:
            pass
        except BookKeeperError as error:
            raise problem_of(error) from error
        self._access.check_labels(request, route, labels)

    async def _change(self, route: Route, request: Request) -> Response:
        """Carry out a change, and write its audit line. Raises `Problem`."""
        try:
            response = await self._answer(route, request)
        except Problem as problem:
            self._audit.failed(request, problem.status, problem.detail)
            raise
        except BaseException as error:
            self._audit.failed(request, 500, f"{type(error).__name__}: {error}; it may have been carried out")
            raise
        self._audit.changed(request, response)
        return response

    async def _answer(self, route: Route, request: Request) -> Response:
        try:
            return await route.handler(request)
        except BookKeeperError as error:
            raise problem_of(error) from error

    async def _streamed(self, request: Request, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield a body at the rate of its user, until the user loses a right."""
        try:
            async for piece in body:
                if not self._access.is_current(request):
                    return
                yield piece
                await pause(self._access.answered(request, len(piece)))
        finally:
            if (aclose := getattr(body, "aclose", None)) is not None:
                await aclose()

    async def _counted(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield a body, counted among the lists while it is sent."""
        self._lists += 1
        try:
            async for piece in body:
                yield piece
        finally:
            self._lists -= 1


def problem_of(error: BookKeeperError) -> Problem:
    """Return the answer to a request that failed with this error."""
    if isinstance(error, LedgerNotFound):
        return Problem(404, str(error), "bk ledger list")
    if isinstance(error, MetadataError):
        return Problem(503, str(error), "bk status", {"Retry-After": "5"})
    status = next((status for kind, status in STATUSES.items() if isinstance(error, kind)), None)
    if status is None:
        status = 503 if error.retriable else 500
    return Problem(status, str(error), headers={"Retry-After": "1"} if status == 503 else None)


class _Rejected(asyncio.Protocol):
    """A connection beyond the limit, which is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
