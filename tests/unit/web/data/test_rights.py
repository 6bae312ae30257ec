"""Users of a gateway with roles on some ledgers and logs, and with rates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from bookies.protocol.rights.users import hash_of

from .conftest import ONE, Site

Serve = Callable[..., None]


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
        assert (await site.call("POST", "/ledgers", ONE | {"labels": 1}, role="app")).status == 400
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
