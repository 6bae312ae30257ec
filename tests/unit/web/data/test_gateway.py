"""A gateway as a whole: users, roles, limits, probes, metrics, and what it does at its end."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable

import pytest
from tests.unit.bookie.conftest import World

from bookies.config import ClientConfig, GatewayConfig
from bookies.errors import ConfigError
from bookies.protocol.rights import ROLES
from bookies.protocol.rights.users import hash_of
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


# -- users with roles on some ledgers and logs, and with rates ---------------------------------------------------
def user(*lines: str) -> str:
    return "".join(f"app {line}\n" for line in (f"none {hash_of('app')}", *lines))


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("viewer", ("show",)),
        ("reader", ("show", "read", "tail", "cursor")),
        ("writer", ("show", "read", "tail", "cursor", "append")),
        ("operator", ("show", "read", "tail", "cursor", "append", "create", "truncate")),
        ("administrator", ("show", "read", "tail", "cursor", "append", "create", "truncate", "delete")),
    ],
)
def test_roles_on_logs(serve: Serve, role: str, allowed: tuple[str, ...]) -> None:
    calls: dict[str, tuple[str, str, object]] = {
        "show": ("GET", "", None),
        "create": ("PUT", "", ONE),
        "append": ("POST", "/entries", b"x"),
        "read": ("GET", "/entries", None),
        "tail": ("GET", "/tail?from=nonsense", None),
        "cursor": ("PUT", "/cursors/c", {"position": "0:0"}),
        "truncate": ("POST", "/truncate", {"before": "0:0"}),
        "delete": ("DELETE", "", None),
    }

    async def body(site: Site) -> None:
        for name in ("orders-1", "other"):
            await site.call("PUT", f"/logs/{name}", ONE)
            for call, (method, path, content) in calls.items():
                status = (await site.call(method, f"/logs/{name}{path}", content, role="app")).status
                assert (status != 403) == (name == "orders-1" and call in allowed), (name, call, status)
        assert (await site.call("GET", "/logs", role="app")).status == 403

    serve(body, users=user(f"{role} log=orders-*"))


def test_roles_on_ledgers(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async def body(site: Site) -> None:
        created = await site.call("POST", "/ledgers", ONE | {"labels": {"team": "a"}}, role="app")
        assert created.status == 201, created.body
        mine = created.json["ledger"]
        for labels in ({}, {"team": "b"}):
            assert (await site.call("POST", "/ledgers", ONE | {"labels": labels}, role="app")).status == 403
        for labels in (1, {"team": "\ud800"}):
            assert (await site.call("POST", "/ledgers", ONE | {"labels": labels}, role="app")).status == 400
        other = (await site.call("POST", "/ledgers", ONE, role="writer")).json["ledger"]
        for ledger_id, status in ((mine, 201), (other, 403), (other + 1, 403)):
            assert (await site.call("POST", f"/ledgers/{ledger_id}/entries", b"x", role="app")).status == status
        for ledger_id, status in ((mine, 200), (other, 403)):
            for target in (f"/ledgers/{ledger_id}/entries", f"/ledgers/{ledger_id}/entries/0"):
                assert (await site.call("GET", target, role="app")).status == status
            assert (await site.call("POST", f"/ledgers/{ledger_id}/seal", role="app")).status == status
        await asyncio.sleep(10)
        refused = await site.call("GET", f"/ledgers/{other}/entries", role="app")
        assert refused.json["detail"].startswith("app has the role none everywhere, writer on team=a: GET")

    with caplog.at_level(logging.WARNING, "bookies.audit"):
        serve(body, users=user("writer team=a"))
    assert [line for line in caplog.messages if line.startswith("audit.denied who=app") and "needs reader" in line]


def test_rates_delay_and_then_refuse(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await site.call("PUT", "/logs/orders", ONE)
        await asyncio.sleep(1)
        started = site.world.loop.time()
        answers = await asyncio.gather(
            *(site.call("POST", "/logs/orders/entries", b"x" * 1000, role="app") for _ in range(40))
        )
        statuses = [answer.status for answer in answers]
        assert statuses.count(201) + statuses.count(429) == 40
        assert 15 <= statuses.count(201) <= 25  # a second that may be made up for, and one that may be waited for
        assert site.world.loop.time() - started > 0.5
        assert all(answer.headers["retry-after"] == "2" for answer in answers if answer.status == 429)
        assert (await site.call("POST", "/logs/orders/entries", b"x", role="administrator")).status == 201
        await asyncio.sleep(3)
        assert (await site.call("GET", "/logs/orders/entries", role="app")).status == 200
        assert (await site.call("GET", "/logs/orders/entries", role="app")).status == 429  # its answer was long

    serve(body, users=user("writer log=*", "limit requests=10 bytes=10k"))


def test_a_tail_ends_with_the_right_to_it(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await site.call("PUT", "/logs/orders", ONE)
        client, other = await site.connect(), await site.connect()
        for connection, token in ((client, "app"), (other, "reader")):
            head = f"GET /api/v1/logs/orders/tail HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
            connection.send(head.encode())
        await site.call("POST", "/logs/orders/entries", b"first")
        await asyncio.gather(*(each.until(lambda each=each: b"first" in each.received) for each in (client, other)))
        site.world.disk.replace_bytes("/users", site.users.replace("app reader log=*\n", "").encode())
        await asyncio.sleep(1)
        await site.call("POST", "/logs/orders/entries", b"second")
        await client.end()
        await other.until(lambda: b"second" in other.received)
        assert b"second" not in client.received

    serve(body, users=user("reader log=*"))
