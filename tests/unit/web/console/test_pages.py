"""The console's files with their headers, the user of a request, and samples."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.unit.web.conftest import Site

from bookies.web.audit import LATEST_MAX, LATEST_SIZE_MAX

API = "/api/v1"
Serve = Callable[..., None]


def test_files_need_no_user_and_are_kept_by_the_browser(serve: Serve) -> None:
    async def body(site: Site) -> None:
        page = await site.get("/console/")
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        script = await site.get("/console/console.js")
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        for answer in (page, script):
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["cache-control"] == "no-cache"
            kept = await site.get("/console/console.js", If_None_Match=answer.headers["etag"])
            assert (kept.status, kept.body == b"") == ((304, True) if answer is script else (200, False))
        assert (await site.get("/console/nothing.js")).status == 404
        assert (await site.get("/console/..%2fpages.py")).status == 404
        assert (await site.get("/", Accept="text/html,*/*")).headers["location"] == "/console"
        assert (await site.get("/", Authorization="Bearer viewer")).json[0]["path"] == "/livez"

    serve(body, users=True)


@pytest.mark.parametrize("users", [True, False])
def test_the_user_of_a_request(serve: Serve, users: bool) -> None:
    async def body(site: Site) -> None:
        known = await site.call("operator", "GET", f"{API}/user")
        named = {"user": "operator-user", "role": "operator", "has_users": True, "bookie": "b1"}
        nobody = {"user": None, "role": "viewer", "has_users": False, "bookie": "b1"}
        assert known.json == (named if users else nobody)
        assert (await site.get(f"{API}/user")).status == (401 if users else 200)

    serve(body, users=users)


def test_samples_are_taken_while_the_server_runs(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await asyncio.sleep(25)  # virtual
        samples = (await site.get(f"{API}/samples")).json
        assert len(samples["at_ms"]) == 3
        assert {"memory", "cpu"} <= {row["name"] for row in samples["series"]}
        assert all(len(row["values"]) == 3 for row in samples["series"])
        later = (await site.get(f"{API}/samples?since={samples['at_ms'][1]}")).json
        assert later["at_ms"] == samples["at_ms"][2:]

    serve(body)


def test_operators_see_the_latest_changes_and_who_made_them(serve: Serve) -> None:
    async def body(site: Site) -> None:
        settings = f"{API}/bookies/b1/settings"
        assert (await site.call("viewer", "GET", f"{API}/changes")).status == 403
        assert (await site.call("operator", "GET", f"{API}/changes")).json == []
        good, bad = {"set": ["scrub_rate_size=8m"]}, {"set": ["nothing=1"]}
        assert (await site.call("administrator", "PATCH", settings, good)).status == 200
        assert (await site.call("operator", "PATCH", settings, bad)).status == 422
        assert (await site.call("operator", "PATCH", f"{settings}?dry_run=true", good)).status == 200
        refused, changed = (await site.call("operator", "GET", f"{API}/changes")).json
        assert (refused["who"], refused["status"]) == ("operator-user", 422)
        assert "nothing" in refused["cause"]
        assert (changed["who"], changed["role"], changed["status"]) == ("administrator-user", "administrator", 200)
        assert changed["call"] == f"PATCH {settings}"
        assert "8388608" in changed["after"]
        assert changed["at_ms"] <= refused["at_ms"]

    serve(body, users=True)


def test_the_latest_changes_are_bounded(serve: Serve) -> None:
    async def body(site: Site) -> None:
        settings, long = f"{API}/bookies/b1/settings", {"set": [f"nothing={'x' * 5000}"]}
        for _ in range(LATEST_MAX + 3):
            assert (await site.call("operator", "PATCH", settings, long)).status == 422
        rows = (await site.call("operator", "GET", f"{API}/changes")).json
        assert len(rows) == LATEST_MAX
        assert all(len(str(value)) <= LATEST_SIZE_MAX + len("...") for value in rows[0].values())

    serve(body, users=True, http_requests_rate=100_000)
