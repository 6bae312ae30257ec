"""Who may call what: every endpoint by every role, and pages of other sites."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from bookies.protocol.rights.users import ROLES, hash_of
from bookies.web.access import FAILURES_MAX, WINDOW_S

from .conftest import USERS, Site

Serve = Callable[..., None]
INFO = "/api/v1/bookie/info"
LEVELS = ("anyone", *ROLES)


async def statuses(site: Site, row: dict[str, Any]) -> list[int]:
    """Return the answers to each role, and first without a user."""
    target = re.sub(r"{(\w+)}", "0", row["path"])
    answers = [await site.get(target, method=row["method"])]
    answers += [await site.call(role, row["method"], target) for role in ROLES]
    return [answer.status for answer in answers]


def test_every_endpoint_answers_its_role_and_those_above_and_no_other(serve: Serve) -> None:
    async def body(site: Site) -> None:
        for row in (await site.call("viewer", "GET", "/")).json:
            needed = LEVELS.index(row["role"])
            for level, status in enumerate(await statuses(site, row)):
                refusal = 401 if level == 0 else 403
                assert (status == refusal) == (level < needed), f"{row}, {LEVELS[level]}: {status}"
            assert row["method"] == "GET" or needed >= LEVELS.index("operator"), row

    serve(body, users=True, gc_interval_ms=600_000)


def test_without_users_anyone_reads_and_nobody_changes(serve: Serve) -> None:
    async def body(site: Site) -> None:
        for row in (await site.get("/")).json:
            status = (await site.get(re.sub(r"{(\w+)}", "0", row["path"]), method=row["method"])).status
            changes = row["method"] != "GET" or row["path"].endswith("/sanity")  # which writes a ledger
            assert (status == 401) == changes, row

    serve(body, gc_interval_ms=600_000)


def test_tokens_are_checked_counted_and_revoked(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async def body(site: Site) -> None:
        missing = await site.get(INFO)
        assert (missing.status, missing.headers["www-authenticate"]) == (401, 'Bearer realm="bookies"')
        assert "bk token add" in missing.json["next"]
        wrong = [(await site.call("wrong", "GET", INFO)).status for _ in range(FAILURES_MAX + 1)]
        assert wrong == [401] * FAILURES_MAX + [429]
        assert (await site.call("viewer", "GET", INFO)).status == 200  # a right token still counts
        await asyncio.sleep(WINDOW_S)
        assert (await site.call("wrong", "GET", INFO)).status == 401
        assert (await site.get(INFO, Authorization="Basic viewer")).status == 401
        site.world.disk.replace_bytes("/users", USERS.replace(hash_of("viewer"), hash_of("new")).encode())
        await asyncio.sleep(2)
        assert (await site.call("viewer", "GET", INFO)).status == 401
        assert (await site.call("new", "GET", INFO)).status == 200

    serve(body, users=True)
    assert "wrong" not in caplog.text  # no token is logged


@pytest.mark.parametrize(
    ("headers", "method", "status"),
    [
        ({}, "GET", 200),
        ({"Origin": "http://localhost"}, "GET", 200),
        ({"Origin": "http://evil.example"}, "GET", 403),
        ({"Origin": "null"}, "GET", 403),
        ({"host": "evil.example"}, "GET", 421),
        ({"Sec_Fetch_Site": "cross-site"}, "GET", 200),  # a link on another page may lead here
        ({"Sec_Fetch_Site": "cross-site"}, "PUT", 403),
        ({"Sec_Fetch_Site": "same-origin", "Origin": "http://localhost"}, "PUT", 405),
    ],
)
def test_pages_of_other_sites_are_refused(serve: Serve, headers: dict[str, str], method: str, status: int) -> None:
    async def body(site: Site) -> None:
        assert (await site.get(INFO, method=method, **headers)).status == status

    serve(body)


def test_metrics_may_be_open(serve: Serve) -> None:
    async def body(site: Site) -> None:
        assert (await site.get("/metrics")).status == 200
        assert (await site.get("/healthz")).status == 401

    serve(body, users=True, http_open_metrics=True)
