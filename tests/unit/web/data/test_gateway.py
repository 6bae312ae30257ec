"""A gateway as a whole: users, roles, limits, probes, metrics, and what it does at its end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest
from tests.unit.bookie.conftest import World

from bookies.config import ClientConfig, GatewayConfig
from bookies.errors import ConfigError
from bookies.protocol.rights import ROLES
from bookies.web.data.gateway import Gateway

from .conftest import ONE, Site

Serve = Callable[..., None]
LEVELS = ("anyone", *ROLES)


def test_every_endpoint_answers_its_role_and_those_above_and_no_other(serve: Serve) -> None:
    async def body(site: Site) -> None:
        for row in (await site.call("GET", "/")).json:
            needed = LEVELS.index(row["role"])
            target = re.sub(r"{(\w+)}", "0", row["path"]).removeprefix("/api/v1")
            for level, role in enumerate(("", *ROLES)):
                status = (await site.call(row["method"], target, role=role)).status
                assert (status == (401 if level == 0 else 403)) == (level < needed), f"{row}, {role}: {status}"
            assert row["method"] == "GET" or needed >= LEVELS.index("reader"), row
            assert not re.search(r"entries|tail", row["path"]) or row["path"].endswith("explain") or (
                needed >= LEVELS.index("reader")
            ), f"a viewer may read entries: {row}"  # fmt: skip

    serve(body)


def test_a_gateway_without_users_does_not_start() -> None:
    with pytest.raises(ConfigError, match="bk token add"):
        Gateway(World().runtime("gateway"), GatewayConfig(), ClientConfig(), lambda: None)  # type: ignore[arg-type, return-value]


def test_a_body_is_refused_by_its_head_when_its_sender_may_not_send_it(serve: Serve) -> None:
    async def body(site: Site) -> None:
        for role, size, status in (("", 100, 401), ("reader", 100, 403), ("writer", 5 << 20, 413)):
            client = await site.connect()
            client.send(
                b"POST /api/v1/logs/orders/entries HTTP/1.1\r\nHost: localhost\r\n"
                + (f"Authorization: Bearer {role}\r\n" if role else "").encode()
                + b"Content-Length: %d\r\n\r\n" % size
            )
            await client.end()
            assert client.received.startswith(b"HTTP/1.1 %d" % status)

    serve(body)


def test_bodies_are_bounded_together_and_the_others_are_told_to_wait(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await site.call("PUT", "/logs/orders", ONE)
        head = (
            b"POST /api/v1/logs/orders/entries HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer writer\r\n"
            b"Content-Length: 4194304\r\n\r\n"
        )
        held = [await site.connect() for _ in range(3)]
        for client in held:
            client.send(head + b"x" * 3_000_000)  # and not the rest
        ends = [asyncio.ensure_future(client.end()) for client in held]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = [client for client in held if client.ended]
        assert refused.received.startswith(b"HTTP/1.1 429")
        assert b"retry-after: 1" in refused.received.lower()
        assert (await site.call("POST", "/logs/orders/entries", b"small")).status == 201
        await asyncio.gather(*ends)  # the others were too slow
        sizes = [line for line in (await site.call("GET", "/metrics")).body.decode().splitlines() if "bodies" in line]
        assert float(sizes[-1].split()[1]) == 0

    serve(body, http_bodies_size=8 << 20)


def test_probes_metrics_and_the_description(serve: Serve) -> None:
    async def body(site: Site) -> None:
        for _ in range(50):
            if (await site.call("GET", "/readyz", role="")).status == 200:
                break
            await asyncio.sleep(0.1)
        assert (await site.call("GET", "/startupz", role="")).json["phase"] == "serving"
        await site.call("PUT", "/logs/orders", ONE)
        await site.call("POST", "/logs/orders/entries", b"x")
        metrics = (await site.call("GET", "/metrics")).body.decode()
        for line in (
            r"bookies_gateway_entries_appended_total 1",
            r"bookies_gateway_logs 1",
            r"bookies_client_entries_",
        ):
            assert re.search(line, metrics), line
        assert re.search(r'bookies_gateway_requests_total{status="201"} 2', metrics)
        assert re.search(r"bookies_metrics_failed_total 0", metrics)
        paths = (await site.call("GET", "/openapi.json")).json["paths"]
        append = paths["/api/v1/logs/{log}/entries"]["post"]
        assert {part["name"]: part["in"] for part in append["parameters"]} == {
            "log": "path", "Bk-Writer": "header", "Bk-Sequence": "header", "Bk-Ledger-Password": "header",
        }  # fmt: skip
        assert next(iter(append["requestBody"]["content"])) == "application/octet-stream"
        unknown = await site.call("GET", "/api/v1/bookie/info")
        assert "not served by the gateway" in unknown.json["detail"]

    serve(body)


def test_the_end_waits_for_appends_and_seals(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await site.call("PUT", "/logs/orders", ONE)
        host, block = await site.start()
        appending = asyncio.ensure_future(site.call("POST", "/logs/orders/entries", b"x", host=host))
        while not (await site.call("GET", "/metrics", host=host)).body.count(b"bookies_gateway_appends_bytes 1\n"):
            if appending.done():
                break
        await block.__aexit__(None, None, None)
        assert (await appending).status == 201
        client = await site.client()
        (extent,) = (await client.log("orders").manifest()).extents
        assert extent.last == 0  # sealed
        await client.close()

    serve(body)
