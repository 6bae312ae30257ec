"""HTTP as others may send it: malformed, slow, large, under another name, and many connections."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest
from tests.unit.bookie.conftest import World

from bookies.config import HttpConfig
from bookies.runtime.events import Events
from bookies.web.connection import (
    BODY_SIZE_MAX,
    FIRST_BYTE_S,
    HEAD_SIZE_MAX,
    IDLE_S,
    REQUEST_S,
    SLOW_S,
    HttpConnection,
)
from bookies.web.messages import Request, Response
from bookies.web.routes import host_name
from bookies.web.server import KEPT_FOR_PROBES

from .conftest import PORT, HttpClient, Site

Serve = Callable[..., None]
INFO = "/api/v1/bookie/info"
CONNECTIONS_MAX = HttpConfig().http_connections_max


def test_one_connection_serves_one_request_after_the_other(serve: Serve) -> None:
    async def body(site: Site) -> None:
        client = await site.connect()
        for _ in range(3):
            assert (await client.get("/livez")).status == 200
        head = await client.get("/metrics", method="HEAD")
        assert (head.status, head.body) == (200, b"")
        assert (await client.get("/livez")).status == 200

    serve(body)


def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    async def body(site: Site) -> None:
        client = await site.connect()
        client.send(
            b"GET /heartbeat HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3 + b"GET /nope HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        statuses = re.compile(rb"HTTP/1\.1 (\d+)")
        await client.until(lambda: len(statuses.findall(client.received)) >= 4)
        assert statuses.findall(client.received) == [b"200", b"200", b"200", b"404"]

    serve(body)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /livez HTTP/1.1\r\n\r\n", b"400"),  # without Host
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * HEAD_SIZE_MAX + b"\r\n\r\n", b"431"),
        (
            b"POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"400",
        ),
        (
            b"POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (2 * BODY_SIZE_MAX)
            + b"x" * (BODY_SIZE_MAX + 1),
            b"413",
        ),
    ],
)
def test_bad_requests_are_refused_and_the_connection_closed(serve: Serve, request_bytes: bytes, status: bytes) -> None:
    async def body(site: Site) -> None:
        client = await site.connect()
        client.send(request_bytes)
        await client.end()
        assert client.received.startswith(b"HTTP/1.1 " + status)
        assert (await site.get("/livez")).status == 200

    serve(body)


@pytest.mark.parametrize(
    ("first", "seconds"),
    [
        (b"", FIRST_BYTE_S),
        (b"GET /li", REQUEST_S),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx", REQUEST_S),
    ],
)
def test_a_client_that_sends_nothing_more_is_closed(serve: Serve, first: bytes, seconds: float) -> None:
    async def body(site: Site) -> None:
        client = await site.connect()
        began = site.world.loop.time()
        client.send(first)
        await client.end()
        assert site.world.loop.time() - began == pytest.approx(seconds, abs=0.5)

    serve(body)


def test_one_byte_at_a_time_does_not_extend_the_time_of_a_request(serve: Serve) -> None:
    async def body(site: Site) -> None:
        client = await site.connect()
        began = site.world.loop.time()
        for letter in b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 100:
            client.send(bytes([letter]))
            await asyncio.sleep(1)
            if client.ended:
                break
        assert client.ended
        assert site.world.loop.time() - began < REQUEST_S + 2

    serve(body)


class EndlessService:
    """A service that never answers."""

    def admit(self, request: Request) -> int:
        return BODY_SIZE_MAX

    def reserve(self, size: int) -> bool:
        return True

    async def handle(self, request: Request) -> Response:
        await asyncio.Event().wait()
        raise AssertionError

    def date(self) -> str:
        return "today"


def test_a_change_that_takes_too_long_has_an_unknown_outcome() -> None:
    async def main(world: World) -> None:
        runtime = world.runtime("late")
        events = Events("http", runtime.clock)
        listener = await runtime.network.listen(
            "late", PORT, lambda: HttpConnection(EndlessService(), events, lambda connection: None)
        )
        for method, outcome in (("GET", None), ("POST", "unknown")):
            _, client = await world.network.port("client").connect("late", PORT, HttpClient)
            assert isinstance(client, HttpClient)
            answer = await client.get("/", method=method)
            assert (answer.status, answer.headers.get("bk-outcome"), answer.headers["retry-after"]) == (
                503,
                outcome,
                "5",
            )
            assert ("may or may not" in answer.json["detail"]) is (outcome is not None)
            client.transport.close()
        listener.close()

    World().run(main)


def test_an_idle_connection_is_closed(serve: Serve) -> None:
    async def body(site: Site) -> None:
        client = await site.connect()
        await client.get("/livez")
        began = site.world.loop.time()
        await client.end()
        assert site.world.loop.time() - began == pytest.approx(IDLE_S, abs=0.5)

    serve(body)


def test_connections_are_bounded_and_probes_have_a_share(serve: Serve) -> None:
    async def body(site: Site) -> None:
        clients = [await site.connect() for _ in range(CONNECTIONS_MAX - KEPT_FOR_PROBES + 1)]
        assert (await clients[0].get(INFO)).status == 503
        assert (await clients[0].get("/readyz")).status == 200
        clients += [await site.connect() for _ in range(KEPT_FOR_PROBES - 1)]
        surplus = await site.connect()  # the connection that has waited longest for its client makes room
        await clients[1].end()
        assert (await surplus.get("/livez")).status == 200
        assert (await clients[0].get("/livez")).status == 200

    serve(body)


def test_a_name_that_is_not_the_servers_is_refused_except_by_probes(serve: Serve) -> None:
    async def body(site: Site) -> None:
        assert (await site.get(INFO, host="evil.example")).status == 421
        assert (await site.get("/metrics", host="evil.example")).status == 200
        for host in ("127.0.0.1:8080", "[::1]:8080", "localhost", "bookie:8080", "b1.example"):
            assert (await site.get(INFO, host=host)).status == 200

    serve(body, http_names=("b1.example",))


def test_methods_that_change_something_are_refused_with_the_command_that_does_it(serve: Serve) -> None:
    async def body(site: Site) -> None:
        answer = await site.get("/api/v1/bookie/last_log_mark", method="PUT")
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
        assert answer.json["next"].startswith("bk inspect lastmark")
        assert answer.headers["content-type"] == "application/problem+json"
        sanity = await site.get("/api/v1/bookie/sanity", method="PUT")
        assert (sanity.status, sanity.headers["allow"]) == (405, "GET, HEAD")
        assert (await site.get("/nowhere")).status == 404
        assert [row["path"] for row in (await site.get("/")).json][:2] == ["/livez", "/startupz"]

    serve(body)


@pytest.mark.parametrize(
    ("header", "name"),
    [("h:80", "h"), ("h", "h"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("::1", "::1"), ("", "")],
)
def test_the_host_of_a_header(header: str, name: str) -> None:
    assert host_name(header) == name


def test_a_client_that_sends_no_more_still_gets_its_answer(serve: Serve) -> None:
    async def body(site: Site) -> None:
        client = await site.connect()
        client.send(b"GET /heartbeat HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.transport.write_eof()
        assert (await client.answer()).body == b"OK\n"
        began = site.world.loop.time()
        await client.end()
        assert site.world.loop.time() - began < 1

    serve(body)


def test_a_client_that_fetches_nothing_is_cut(serve: Serve) -> None:
    async def body(site: Site) -> None:
        client = await site.connect()
        client.transport.pause_reading()
        client.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
        await asyncio.sleep(SLOW_S + 5)
        began = site.world.loop.time()
        client.transport.resume_reading()
        await client.end()
        assert site.world.loop.time() - began < 1  # it was cut before
        assert (await site.get("/livez")).status == 200

    serve(body)
