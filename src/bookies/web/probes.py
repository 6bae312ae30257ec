"""Probes for orchestrators, health for people, and metrics for scrapers. Source: operations 2.1, 5.1."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from bookies.metrics.exposition import CONTENT_TYPE, exposition
from bookies.metrics.health import Condition, Health
from bookies.metrics.metric import Collection
from bookies.protocol.rights import Role
from bookies.runtime.ports import Clock
from bookies.web.messages import JSON, Request, Response, json_response, text
from bookies.web.routes import Handler, Route

SCRAPE_COST = 5  # requests of the server's rate: a scrape takes some 4 ms of processor time
SLICE_SIZE = 8 << 10  # bytes of metrics between two of which the loop does other work


def probe(path: str, help: str, handler: Handler) -> Route:
    """Return an endpoint that an orchestrator calls without a user."""
    return Route(path, help, handler, role=Role.ANYONE, is_probe=True)


class Probes:
    """The endpoints of every process."""

    def __init__(self, health: Health, metrics: Collection, clock: Clock) -> None:
        self._health = health
        self._metrics = metrics
        self._clock = clock
        self.routes = (
            probe("/livez", "200: the event loop answers", self._live),
            probe("/startupz", "200: the start is complete; 503 with the phase", self._startup),
            probe("/readyz", "200: it serves; 503 with the conditions that do not hold", self._ready),
            Route("/healthz", "all conditions, with reasons and next steps; no probe", self._healthy, is_probe=True),
            probe("/heartbeat", "`OK`", self._heartbeat),
            Route("/metrics", "all metrics in Prometheus's text format", self._scrape, is_probe=True, cost=SCRAPE_COST),
        )

    async def _live(self, request: Request) -> Response:
        return json_response({"live": True, "observed_at": self._now()})

    async def _heartbeat(self, request: Request) -> Response:
        return text("OK\n")

    async def _startup(self, request: Request) -> Response:
        is_started = self._health.is_started
        facts = {"started": is_started, "phase": self._health.phase, "observed_at": self._now()}
        return json_response(facts, 200 if is_started else 503)

    async def _ready(self, request: Request) -> Response:
        return self._report([condition for condition in self._health.conditions() if condition.for_readiness])

    async def _healthy(self, request: Request) -> Response:
        return self._report(self._health.conditions())

    def _report(self, conditions: Sequence[Condition]) -> Response:
        is_met = all(condition.holds for condition in conditions)
        rows = []
        for condition in conditions:
            row: dict[str, object] = {"name": condition.name, "holds": condition.holds}
            if not condition.holds:
                row |= {"reason": condition.reason, "next": condition.next_step}
            rows.append(row)
        return json_response({"ok": is_met, "conditions": rows, "observed_at": self._now()}, 200 if is_met else 503)

    async def _scrape(self, request: Request) -> Response:
        return Response(200, self._exposition(), CONTENT_TYPE)

    async def _exposition(self) -> AsyncIterator[bytes]:
        pieces: list[str] = []
        size = 0
        for piece in exposition(self._metrics.families()):
            pieces.append(piece)
            size += len(piece)
            if size >= SLICE_SIZE:
                yield "".join(pieces).encode()
                pieces, size = [], 0
                await asyncio.sleep(0)
        yield "".join(pieces).encode()

    def _now(self) -> int:
        return self._clock.wall_ms()


async def overview(routes: Sequence[Route]) -> Response:
    """Return the list of endpoints."""
    listed = [
        {
            "method": route.method,
            "path": route.path,
            "parameters": route.parameters,
            "help": route.help,
            "role": route.role.word,
        }
        for route in routes
    ]
    response = json_response(listed)
    return Response(200, response.body, JSON)
