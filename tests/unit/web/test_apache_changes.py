"""Apache's endpoints that change something: shapes, statuses, and the audit line of each change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from bookies.client.client import Client
from bookies.errors import LedgerNotFound
from bookies.model import BookieId
from bookies.protocol.rights import Role, User
from bookies.web.apache_changes import SANITY_AGE_S, ClusterChanges
from bookies.web.audit import VALUE_SIZE_MAX
from bookies.web.jobs import Jobs
from bookies.web.messages import Problem, Request
from bookies.web.shared_client import Connected

from .conftest import Site
from .test_site import client_of

API = "/api/v1"
Serve = Callable[..., None]
GC = f"{API}/bookie/gc"
SETTINGS = f"{API}/config/server_config"


def audit_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records if record.name == "bookies.audit"]  # type: ignore[attr-defined]


async def written(client: Client, *payloads: bytes) -> int:
    writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
    await writer.append_many(list(payloads))
    await writer.seal()
    return writer.ledger_id


def test_collection_and_compaction(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async def body(site: Site) -> None:
        for given in (None, {"forceMajor": "true"}, {"forceMinor": True}, {"forceMajor": False}):
            answer = await site.call("operator", "PUT", GC, given)
            assert (answer.status, answer.json) == (200, "Triggered GC on BookieServer: b1")
        suspend = f"{GC}/suspend_compaction"
        assert (await site.call("operator", "PUT", suspend)).json["detail"] == "Empty request body"
        assert (await site.call("operator", "PUT", suspend, {"x": 1})).status == 400
        assert (await site.call("operator", "PUT", suspend, {"suspendMajor": True})).status == 422
        both = {"suspendMajor": True, "suspendMinor": "true"}
        where = "Bookie Server listening on bookie:3181 with id b1"
        text = f"Suspend majorGC on BookieServer: {where}, Suspend minorGC on BookieServer: {where}"
        assert (await site.call("operator", "PUT", suspend, both)).json == text
        assert (await site.call("viewer", "GET", suspend)).json["isMajorGcSuspended"] == "true"
        assert (await site.call("operator", "PUT", GC)).status == 200
        refused = await site.call("operator", "PUT", GC, {"forceMajor": True})
        assert (refused.status, "suspended" in refused.json["detail"]) == (400, True)
        resume = {"resumeMajor": True, "resumeMinor": True}
        assert (await site.call("operator", "PUT", f"{GC}/resume_compaction", resume)).status == 200
        assert (await site.call("viewer", "GET", suspend)).json["isMajorGcSuspended"] == "false"

    serve(body, users=True, gc_interval_ms=600_000)
    held = [line for line in audit_lines(caplog) if "suspend_compaction" in line["call"] and line["status"] == 200]
    assert [(line["who"], line["before"], line["after"]) for line in held] == [
        ("operator-user", '{"suspended": false}', '{"suspended": true}')
    ]


def test_read_only(serve: Serve) -> None:
    async def body(site: Site) -> None:
        path = f"{API}/bookie/state/readonly"
        assert (await site.call("operator", "PUT", path)).status == 400
        answer = await site.call("operator", "PUT", path, {"readOnly": True})
        assert (answer.json, "stops" in answer.headers["x-bk-until"]) == ({"readOnly": True}, True)
        assert (await site.call("operator", "PUT", path, {"readOnly": False})).json == {"readOnly": False}

    serve(body, users=True)


@pytest.mark.parametrize(
    ("values", "status", "words"),
    [
        ({}, 404, "Request body not found"),
        ({"nonsense": 1}, 422, "no such setting"),
        ({"port": "1"}, 422, "restart"),
        ({"gc_interval_ms": 0}, 422, "cannot become 0"),
        ({"gc_share_max": "often"}, 422, "no whole number of percent"),
        ({"gc_share_max": 101}, 422, "at most 100"),
        ({"gc_share_max": 20, "major_compaction_threshold": 5}, 422, "major_compaction_threshold"),
        ({"gc_share_max": 20, "compaction_rate_size": "1048576", "disk_usage_threshold": 96}, 200, "Success"),
    ],
)
def test_settings_change_together_or_not_at_all(
    serve: Serve, caplog: pytest.LogCaptureFixture, values: dict[str, object], status: int, words: str
) -> None:
    async def body(site: Site) -> None:
        before = (await site.call("viewer", "GET", SETTINGS)).json
        answer = await site.call("operator", "PUT", SETTINGS, values)
        assert (answer.status, words in answer.body.decode()) == (status, True), answer.body
        after = (await site.call("viewer", "GET", SETTINGS)).json
        assert after == before | ({name: str(value) for name, value in values.items()} if status == 200 else {})
        parts = site.server.store.parts
        assert parts is not None
        assert parts.disks.marks.full == int(after.get("disk_usage_threshold", 95))

    serve(body, users=True, gc_interval_ms=600_000)
    (line,) = [line for line in audit_lines(caplog) if line["call"].startswith("PUT")]
    assert (line["status"], "before" in line) == (status, status == 200)


def test_a_ledger_is_deleted_by_administrators_after_a_dry_run(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async def body(site: Site) -> None:
        client = await client_of(site)
        ledger_id = await written(client, b"one", b"two")
        path = f"{API}/ledger/delete?ledger_id={ledger_id}"
        plan = await site.call("administrator", "DELETE", f"{path}&dry_run=true")
        assert plan.json["would_delete"] == {"ledger": ledger_id, "state": "CLOSED", "last_entry": 1}
        assert (await client.metadata(ledger_id)).last_entry_id == 1
        assert (await site.call("operator", "DELETE", path)).status == 403
        assert (await site.call("administrator", "DELETE", path)).json == f"Deleted ledger: {ledger_id}"
        with pytest.raises(LedgerNotFound):
            await client.metadata(ledger_id)
        assert (await site.call("administrator", "DELETE", path)).status == 404
        assert (await site.call("administrator", "DELETE", f"{API}/ledger/delete")).status == 404
        await client.close()

    serve(body, users=True)
    denied, changed, *failed = audit_lines(caplog)
    assert (denied["who"], denied["call"]) == ("operator-user", "DELETE")
    assert (changed["who"], json.loads(changed["before"])["state"], changed["after"]) == (
        "administrator-user",
        "CLOSED",
        "null",
    )
    assert [line["status"] for line in failed] == [404, 404]


def test_auto_recovery(serve: Serve) -> None:
    async def body(site: Site) -> None:
        auto = f"{API}/autorecovery"
        assert (await site.call("operator", "PUT", f"{auto}/status?enabled=maybe")).status == 400
        assert (await site.call("operator", "PUT", f"{auto}/status?enabled=false")).json == {"enabled": False}
        assert (await site.call("operator", "PUT", f"{auto}/trigger_audit")).status == 409
        assert (await site.call("operator", "PUT", f"{auto}/status", {"enabled": True})).json == {"enabled": True}
        assert (await site.call("operator", "PUT", f"{auto}/trigger_audit")).status == 409  # no auditor
        store = site.server.metadata.recovery
        candidacy = await store.campaign(BookieId("b1"), lambda: None)
        assert (await site.call("operator", "PUT", f"{auto}/trigger_audit")).body == b"Success trigger audit."
        await candidacy.resign()
        delay = f"{auto}/lost_bookie_recovery_delay"
        for given, status in (
            (None, 404),
            ({"x": 1}, 404),
            ({"delay_seconds": "1"}, 400),
            ({"delay_seconds": -1}, 400),
        ):
            assert (await site.call("operator", "PUT", delay, given)).status == status
        answer = await site.call("operator", "PUT", delay, {"delay_seconds": 60})
        assert (answer.body, await store.lost_bookie_delay_s()) == (b"Success set lostBookieRecoveryDelay to 60", 60)

    serve(body, users=True)


def test_jobs_of_recovery_and_decommission(serve: Serve) -> None:
    async def body(site: Site) -> None:
        path = f"{API}/autorecovery/decommission"
        for given, status in (
            (None, 404),
            ({"x": "b1"}, 404),
            ({"bookie_src": "b1"}, 409),
            ({"bookie_src": "b9"}, 404),
        ):
            assert (await site.call("administrator", "PUT", path, given)).status == status
        recover = f"{API}/autorecovery/bookie"
        for given, status in (
            (None, 404),
            ({"bookie_src": "b1"}, 404),
            ({"bookie_src": ["b1"], "bookie_dest": ["b2"]}, 422),
        ):
            assert (await site.call("administrator", "PUT", recover, given)).status == status
        answer = await site.call("administrator", "PUT", recover, {"bookie_src": ["b1"]})
        assert (answer.status, answer.body) == (200, b"Success send recovery request command.")
        await asyncio.sleep(5)
        (job,) = (await site.call("viewer", "GET", f"{API}/jobs")).json
        assert (job["id"], job["by"], job["state"]) == (answer.headers["x-bk-job"], "administrator-user", "failed")
        assert "b1" in job["error"]  # it is writable

    serve(body, users=True)


def test_a_job_is_cancelled(serve: Serve) -> None:
    async def body(site: Site) -> None:
        async def endless() -> None:
            await asyncio.sleep(1e9)

        async def unused() -> Connected:
            raise AssertionError

        jobs = Jobs(site.world.runtime("bookie").clock)
        (cancel,) = (route for route in ClusterChanges(unused, jobs).routes if "{job}" in route.path and route.changes)
        job_id = jobs.start("endless", "test", endless(), facts={"messages": ["a line"]})
        for path, has_messages in ((f"{API}/jobs", False), (f"{API}/jobs/{{job}}", True)):
            (shown,) = (
                route for route in ClusterChanges(unused, jobs).routes if (route.path, route.method) == (path, "GET")
            )
            answer = await shown.handler(Request("GET", path, {}, "localhost", values={"job": job_id}))
            assert (b"a line" in answer.body) == has_messages  # type: ignore[operator]
        request = Request("DELETE", f"{API}/jobs/{job_id}", {}, "localhost", values={"job": job_id})
        with pytest.raises(Problem, match="cancelling it needs the role administrator"):
            await cancel.handler(replace(request, user=User("o", Role.OPERATOR, ())))
        answer = await cancel.handler(replace(request, user=User("a", Role.ADMINISTRATOR, ())))
        assert isinstance(answer.body, bytes)
        assert json.loads(answer.body)["state"] == "cancelled"
        assert (answer.before, answer.after) != (None, None)
        with pytest.raises(Problem, match="cancelled"):
            await cancel.handler(request)
        assert (await site.call("administrator", "DELETE", f"{API}/jobs/7")).status == 404
        assert (await site.call("writer", "DELETE", f"{API}/jobs/7")).status == 403

    serve(body, users=True)


def test_sanity_writes_to_this_bookie_reads_and_deletes(serve: Serve) -> None:
    path = f"{API}/bookie/sanity"

    async def body(site: Site) -> None:
        answers = await asyncio.gather(*(site.call("operator", "GET", path) for _ in range(3)))
        assert [answer.json for answer in answers] == [{"passed": True, "readOnly": False}] * 3
        assert site.server.store.stats()["entries_added"] == 10  # the three shared one check
        client = await client_of(site)
        assert [record async for record in client.ledgers()] == []
        await client.close()
        assert (await site.call("viewer", "GET", path)).status == 403

        await asyncio.sleep(SANITY_AGE_S)
        site.world.network.block("bookie", "bookie")  # the way on which its own client reaches it
        failed = await site.call("operator", "GET", f"{path}?probe=true")
        assert (failed.status, failed.json["passed"]) == (503, False)
        site.world.network.unblock("bookie", "bookie")
        await asyncio.sleep(SANITY_AGE_S)
        await site.call("operator", "PUT", f"{API}/bookie/state/readonly", {"readOnly": True})
        assert (await site.call("operator", "GET", path)).json == {"passed": True, "readOnly": True}

    serve(body, users=True)


def test_values_of_audit_lines_are_bounded(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async def body(site: Site) -> None:
        await site.call("operator", "PUT", SETTINGS, {"x" * 9000: 1})

    serve(body, users=True)
    (line,) = audit_lines(caplog)
    assert len(line["body"]) < VALUE_SIZE_MAX + 10
