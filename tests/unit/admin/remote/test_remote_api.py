"""The administration over HTTP: the verbs of `bk`, their parameters, pages, dry runs and audit lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.web.conftest import Site, serve
from tests.unit.web.test_apache_changes import audit_lines, written
from tests.unit.web.test_site import client_of

from bookies.admin.remote.exposed import EXPOSED, PAGE_SIZE, options_of
from bookies.admin.shared.nouns import verb_of
from bookies.model import BookieId

__all__ = ["serve"]
API = "/api/v1"
Serve = Callable[..., None]


@pytest.mark.parametrize("row", EXPOSED, ids=lambda row: f"{row.method} {row.path}")
def test_rows_name_verbs_and_options_that_exist(row: Any) -> None:
    fields = {field for field, _ in options_of(verb_of(row.words))} | {"ledger", "entry"}
    assert {*row.options, *[part[1:-1] for part in row.path.split("/") if part.startswith("{")]} <= fields
    assert not row.watched or any(other.words == row.watched and other.method == "GET" for other in EXPOSED)


def test_reading_verbs_answer_with_the_facts_of_their_commands(serve: Serve) -> None:
    async def body(site: Site) -> None:
        client = await client_of(site)
        ledger_id = await written(client, b"one", b"two")

        async def facts(path: str) -> Any:
            answer = await site.call("viewer", "GET", f"{API}{path}")
            assert answer.status == 200, answer.body
            return answer.json

        assert (await facts("/status"))["ledgers"]["closed"] == 1
        assert (await facts("/cluster"))["bookies"] == 1
        assert [row["bookie"] for row in await facts("/bookies")] == ["b1"]
        assert (await facts("/bookies/b1"))["mode"] == "writable"
        for name in ("state", "disks", "space", "scrub"):
            assert list(await facts(f"/bookies/-/{name}")) == ["b1"]
        settings = (await facts("/bookies/b1/settings"))["b1"]
        assert {row["name"]: row["source"] for row in settings}["scrub_period_ms"] == "start"
        assert (await facts(f"/ledgers/{ledger_id}"))["last_entry"] == 1
        assert (await facts(f"/ledgers/{ledger_id}/explain"))["verdict"]
        entry = (await facts(f"/ledgers/{ledger_id}/entries/1/explain"))["entry"]
        assert [replica["state"] for replica in entry["replicas"]] == ["stored"]
        assert await facts("/drains") == await facts("/maintenance") == await facts("/recovery/ledgers") == []
        await client._driver.recovery.mark(ledger_id, [BookieId("b1"), BookieId("b2")], 1_000)
        for query, count in (("missing=b1", 1), ("missing=b3,b2", 1), ("missing=b3", 0), ("not_missing=b2", 0)):
            assert len(await facts(f"/recovery/ledgers?{query}")) == count
        assert await facts("/bookies/-/orphans") == {"b1": []}
        assert await facts("/metadata/changes") == []
        assert await facts("/metadata/orphans") == {"records": 1, "orphans": [], "unknown": [], "deleted": []}
        assert (await facts("/recovery"))["is_enabled"] is True
        balance = await facts("/balance?why=true")
        assert [(row["bookie"], row["why"]) for row in balance["bookies"]] == [
            ("b1", "holds its share, within the tolerance")
        ]
        assert balance["obstacle"].startswith(f"ledger {ledger_id} is marked for a repair")
        assert balance["automatic"] is None
        assert await facts("/recovery/delay") == {"seconds": None}
        for path, status in (
            ("/ledgers/77", 404),
            ("/ledgers/x", 422),
            ("/bookies/b2/state", 404),
            ("/bookies/b2", 422),
            ("/bookies?nonsense=1", 400),
            ("/balance", 422),
            ("/balance?why=true&tolerance=0", 422),
        ):
            assert (await site.call("viewer", "GET", f"{API}{path}")).status == status, path
        report = await site.get(
            f"{API}/bookies", Authorization="Bearer viewer", Accept="application/vnd.bookies.report+json"
        )
        assert report.json["text"][0]["headers"][:2] == ["bookie", "mode"]
        await client.close()

    serve(body, users=True, gc_interval_ms=600_000, scrub_period_ms=1_000_000_000)


def test_ledgers_come_in_pages(serve: Serve) -> None:
    async def body(site: Site) -> None:
        client = await client_of(site)
        for _ in range(PAGE_SIZE + 5):
            await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        first = await site.get(f"{API}/ledgers")
        last = first.json[-1]["ledger"]
        assert (len(first.json), first.headers["link"]) == (PAGE_SIZE, f'<{API}/ledgers?after={last}>; rel="next"')
        rest = await site.get(f"{API}/ledgers?after={last}&limit=10")
        assert ([row["ledger"] for row in rest.json], "link" in rest.headers) == (
            list(range(last + 1, last + 6)),
            False,
        )
        for limit in (0, 1001):
            assert (await site.get(f"{API}/ledgers?limit={limit}")).status == 400
        await client.close()

    serve(body)


def test_bookies_come_in_pages_with_their_space_and_conditions(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await site.server.metadata.create_cookie(BookieId("b0"), b"cookie")
        first = await site.get(f"{API}/bookies?limit=1&space=true")
        assert (first.json[0]["bookie"], first.headers["link"]) == (
            "b0",
            f'<{API}/bookies?limit=1&space=true&after=b0>; rel="next"',
        )
        assert "disk_total" not in first.json[0]  # it is down
        (row,) = (await site.get(f"{API}/bookies?after=b0&space=true")).json
        assert (row["bookie"], row["reasons"], row["http"]) == ("b1", [], "http://bookie:8080")
        assert 0 < row["disk_free"] <= row["disk_total"]
        assert [row["bookie"] for row in (await site.get(f"{API}/bookies?mode=down")).json] == ["b0"]
        assert (await site.get(f"{API}/bookies?mode=odd")).status == 422

    serve(body)


def test_logs_and_how_far_their_cursors_are_behind(serve: Serve) -> None:
    async def body(site: Site) -> None:
        client = await client_of(site)
        for name in ("audit", "orders", "orders-2"):
            await client.log(name).create(ensemble=1, write_quorum=1, ack_quorum=1)
        log = client.log("orders")
        async with log.lead(roll_size=300) as writer:
            positions = [await writer.append(b"x" * 100) for _ in range(10)]
            await log.move_cursor("billing", positions[2])
            await log.move_cursor("search", positions[9].next)
            cursors = (await site.get(f"{API}/logs/orders/cursors")).json
            assert cursors[0]["entries_behind"] in (7, 8)  # readers may not know the last entry yet
        cursors = (await site.get(f"{API}/logs/orders/cursors")).json
        assert {row["cursor"]: row["entries_behind"] for row in cursors} == {"billing": 8, "search": 0}
        page = await site.get(f"{API}/logs?prefix=orders&limit=1")
        assert (page.json, "after=orders" in page.headers["link"]) == (["orders"], True)
        assert (await site.get(f"{API}/logs?after=orders")).json == ["orders-2"]
        assert len((await site.get(f"{API}/logs/orders")).json["extents"]) > 1
        assert (await site.get(f"{API}/logs/none")).status == 404
        await client.close()

    serve(body)


CHANGES: list[tuple[str, str, object, int, object]] = [
    ("POST", "/bookies/b1/gc", {"force": True}, 200, None),
    ("POST", "/bookies/b1/gc", {"suspend": True, "resume": True}, 422, None),
    ("POST", "/bookies/b1/gc", {"force": "maybe"}, 422, None),
    ("POST", "/bookies/b1/gc", {"wait": True}, 400, None),
    ("POST", "/bookies/-/read-only", None, 200, None),
    ("POST", "/bookies/b1/compact", {"major": True}, 200, None),
    ("POST", "/bookies/b1/undelete/7", None, 422, None),
    ("POST", "/bookies/b1/scrub", {"suspend": True}, 200, None),
    ("PATCH", "/bookies/b1/settings", {"set": ["gc_share_max=20"]}, 200, {"gc_share_max": {"before": 10, "after": 20}}),
    ("PATCH", "/bookies/b1/settings", {"set": "gc_share_max=20"}, 422, None),
    ("PATCH", "/bookies/b1/settings", {"set": ["port=1"]}, 422, None),
    ("POST", "/bookies/b1/drain", None, 422, None),  # no auto-recovery would empty it
    ("POST", "/bookies/b1/drain", {"cancel": True}, 200, {"bookie": "b1", "changed": False}),
    ("POST", "/bookies/b1/maintenance", {"duration": "20m"}, 200, None),
    ("POST", "/bookies/b1/maintenance", {"duration": "20x"}, 422, None),
    ("POST", "/recovery/disable", None, 200, {"changed": True}),
    ("POST", "/recovery/audit", None, 422, None),
    ("PUT", "/recovery/delay", {"seconds": 60}, 200, {"seconds": 60}),
]


@pytest.mark.parametrize(("method", "path", "given", "status", "facts"), CHANGES)
def test_changes_are_carried_out_and_audited(
    serve: Serve, caplog: pytest.LogCaptureFixture, method: str, path: str, given: object, status: int, facts: object
) -> None:
    async def body(site: Site) -> None:
        answer = await site.call("operator", method, f"{API}{path}", given)
        assert answer.status == status, answer.body
        if facts is not None:
            assert facts in (answer.json, answer.json.get("b1"))

    serve(body, users=True, gc_interval_ms=600_000, scrub_period_ms=1_000_000_000)
    (line,) = audit_lines(caplog)
    assert (line["who"], line["call"], line["status"]) == ("operator-user", f"{method} {API}{path}", status)
    assert ("after" in line) == (status == 200)


@pytest.mark.parametrize(
    ("method", "path", "given", "status"),
    [
        ("PATCH", "/bookies/b1/settings", {"set": ["gc_share_max=20"], "dry_run": True}, 200),
        ("PATCH", "/bookies/b1/settings?dry_run=1", {"set": ["gc_share_max=20"]}, 200),
        ("PUT", "/config/server_config?dry_run=true", {"gc_share_max": 20}, 200),
        ("POST", "/bookies/b1/drain", {"dry_run": True}, 200),
        ("PUT", "/bookie/gc?dry_run=true", None, 400),  # never a change without its audit line
        ("POST", "/recovery/disable", {"dry_run": True}, 400),
    ],
)
def test_a_dry_run_changes_nothing(
    serve: Serve, caplog: pytest.LogCaptureFixture, method: str, path: str, given: object, status: int
) -> None:
    async def body(site: Site) -> None:
        assert (await site.call("operator", method, f"{API}{path}", given)).status == status
        assert site.server.config.gc_share_max == 10
        assert (await site.call("viewer", "GET", f"{API}/drains")).json == []
        assert (await site.call("viewer", "GET", f"{API}/recovery")).json["is_enabled"] is True

    serve(body, users=True, gc_interval_ms=600_000)
    assert audit_lines(caplog) == []


def test_a_deletion_shows_first_what_would_go(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async def body(site: Site) -> None:
        client = await client_of(site)
        ledger_id = await written(client, b"one")
        path = f"{API}/ledgers/{ledger_id}"
        plan = await site.call("administrator", "DELETE", f"{path}?dry_run=1")
        assert plan.json["would_delete"]["last_entry"] == 0
        assert (await site.call("viewer", "GET", path)).status == 200
        assert (await site.call("administrator", "DELETE", path)).json == {"deleted": ledger_id}
        assert (await site.call("viewer", "GET", path)).status == 404
        await client.close()

    serve(body, users=True)
    (line,) = audit_lines(caplog)
    assert (line["who"], json.loads(line["before"])["state"]) == ("administrator-user", "CLOSED")
    assert "no such ledger" in line["after"]


def test_ledgers_are_filtered_before_they_are_paged(serve: Serve) -> None:
    async def body(site: Site) -> None:
        client = await client_of(site)
        sealed = [await written(client, b"x") for _ in range(3)]
        opened = (await client.create(ensemble=1, write_quorum=1, ack_quorum=1)).ledger_id
        await site.server.metadata.recovery.mark(sealed[1], ["b9"], None)

        async def ids(query: str) -> list[int]:
            return [row["ledger"] for row in (await site.call("viewer", "GET", f"{API}/ledgers?{query}")).json]

        assert await ids("state=open") == [opened]
        assert await ids("state=closed&limit=2") == sealed[:2]
        assert await ids(f"state=closed&limit=2&after={sealed[1]}") == sealed[2:]
        assert await ids("bookie=b1") == [*sealed, opened]
        assert await ids("bookie=b2") == []
        assert await ids("under_replicated=true") == [sealed[1]]
        assert await ids(f"under_replicated=true&after={sealed[1]}") == []
        assert await ids("under_replicated=true&state=open") == []
        assert (await site.call("viewer", "GET", f"{API}/ledgers?state=x")).status == 422
        status = (await site.call("viewer", "GET", f"{API}/status?count=true")).json
        assert (status["ledgers"]["closed"], status["ledgers"]["open"], status["counted_ms"]) == (3, 1, None)
        await client.close()

    serve(body)
