"""Apache's endpoints that change something: those of a bookie, and those of the cluster. Source: operations 1.2, 1.4.

A bookie carries them out by the calls of its operators (`bookie/control.py`), so they do what the commands do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from bookies.bookie.server import BookieServer
from bookies.errors import BookKeeperError
from bookies.model import BookieId, BookieMode
from bookies.protocol.rights import Role
from bookies.web.apache_bookie import API
from bookies.web.jobs import Jobs
from bookies.web.messages import Problem, Request, Response, json_response, text
from bookies.web.routes import Handler, Route
from bookies.web.shared_client import Connected

SANITY_S = 10.0  # for a check of sanity
SANITY_AGE_S = 5.0  # of a result that is shared
SANITY_ENTRIES = [b"sanity %d" % number for number in range(10)]
Open = Callable[[], Awaitable[Connected]]


def _put(
    path: str, help: str, handler: Handler, body: str = "", parameters: str = "", role: Role = Role.OPERATOR
) -> Route:
    return Route(f"{API}{path}", help, handler, parameters, method="PUT", role=role, body=body)


def _switch(document: dict[str, Any], name: str) -> bool:
    """Return a switch of a body, which Apache's manual writes as text in places."""
    return str(document.get(name, False)).lower() == "true"


def _user(request: Request) -> str:
    return request.user.name if request.user is not None else "-"


class BookieChanges:
    """The endpoints that change the bookie of this process. `connect`: as of `ClusterChanges`."""

    def __init__(self, server: BookieServer, connect: Open) -> None:
        self._server = server
        self._connect = connect
        self._sanity: asyncio.Task[dict[str, bool]] | None = None
        self._sanity_at = 0.0  # when it began, by the loop's clock
        self.routes = (
            _put(
                "/config/server_config",
                "change settings until the bookie stops",
                self._set,
                "NAME=VALUE",
                "dry_run=true",
            ),
            _put(
                "/bookie/gc",
                "collect garbage now, and compact unless that is suspended",
                self._collect,
                "forceMajor=true, forceMinor=false",
            ),
            _put(
                "/bookie/gc/suspend_compaction",
                "suspend compaction, across restarts",
                self._suspend,
                "suspendMajor=true, suspendMinor=true",
            ),
            _put(
                "/bookie/gc/resume_compaction",
                "resume compaction",
                self._resume,
                "resumeMajor=true, resumeMinor=true",
            ),
            _put("/bookie/state/readonly", "begin or end read-only", self._hold, "readOnly=true"),
            Route(
                f"{API}/bookie/sanity",
                "write a ledger to this bookie, read it, delete it",
                self._check_sanity,
                "probe=true for 503 on failure",
                role=Role.OPERATOR,
                writes=True,
            ),
            _put("/bookie/expand_storage", "409: a restart with allow_storage_expansion does it", self._expand),
            _put("/bookie/entry_location_compact", "nothing to do: index files need none", self._compact_locations),
        )

    async def _call(self, name: str, **arguments: object) -> Any:
        call = self._server.calls.get(name)
        if call is None:
            raise Problem(503, "the bookie has not started yet", headers={"Retry-After": "1"})
        return await call(**arguments)

    async def _set(self, request: Request) -> Response:
        values = request.document()
        if not values:
            raise Problem(404, "Request body not found. should contains k-v pairs")
        changes = await self._call("set", values=values, dry_run=request.is_dry_run)
        if request.is_dry_run:
            return json_response(changes)
        before, after = ({name: change[at] for name, change in changes.items()} for at in ("before", "after"))
        return Response(200, b"Success set server config.", before=before, after=after)

    async def _collect(self, request: Request) -> Response:
        try:
            given = request.document()
            is_suspended = (await self._call("space"))["is_compaction_held"]
            kinds = {"forceMajor": "major", "forceMinor": "minor"}
            kind = next((kinds[name] for name in kinds if _switch(given, name)), None) if given else "major"
            if kind is None or (is_suspended and not given):
                await self._call("gc")
            else:
                await self._call("compact", kind=kind)
        except BookKeeperError as error:
            raise Problem(400, f"Failed to handle the request, exception: {error}") from error
        after = {"requested": kind or "gc"}
        return _with(json_response(f"Triggered GC on BookieServer: {self._server.bookie_id}"), None, after)

    async def _suspend(self, request: Request) -> Response:
        return await self._hold_compaction(request, "suspend")

    async def _resume(self, request: Request) -> Response:
        return await self._hold_compaction(request, "resume")

    async def _hold_compaction(self, request: Request, word: str) -> Response:
        given = request.document()
        names = f"{word}Major", f"{word}Minor"
        if not given:
            raise Problem(400, "Empty request body")
        if not any(name in given for name in names):
            raise Problem(400, f"No {names[0]} or {names[1]} params found")
        if not all(_switch(given, name) for name in names):
            raise Problem(422, f"this bookie has one switch for both compactions: send {names[0]} and {names[1]}")
        before = (await self._call("space"))["is_compaction_held"]
        await self._call("suspend", suspended=word == "suspend")
        host, port = self._server.address
        bookie = f"Bookie Server listening on {host}:{port} with id {self._server.bookie_id}"
        answer = ", ".join(f"{word.capitalize()} {level}GC on BookieServer: {bookie}" for level in ("major", "minor"))
        return _with(json_response(answer), {"suspended": before}, {"suspended": word == "suspend"})

    async def _hold(self, request: Request) -> Response:
        given = request.document()
        if "readOnly" not in given:
            raise Problem(400, "the body needs readOnly, true or false")
        before = (await self._call("state"))["mode"]
        facts = await self._call("hold", read_only=_switch(given, "readOnly"))
        response = json_response({"readOnly": facts["mode"] != "writable"})
        headers = {"X-Bk-Until": str(facts["until"])} if "until" in facts else {}
        return Response(200, response.body, response.content_type, headers, {"mode": before}, {"mode": facts["mode"]})

    async def _check_sanity(self, request: Request) -> Response:
        """One check runs at a time. Requests that arrive meanwhile, and shortly afterwards, share its result."""
        loop = asyncio.get_running_loop()
        if self._sanity is None or (self._sanity.done() and loop.time() - self._sanity_at >= SANITY_AGE_S):
            self._sanity, self._sanity_at = loop.create_task(self._run_sanity(), name="sanity check"), loop.time()
        facts = await asyncio.shield(self._sanity)
        status = 503 if request.flag("probe") and not facts["passed"] else 200
        return _with(json_response(facts, status), None, facts)

    async def _run_sanity(self) -> dict[str, bool]:
        """Add entries to this bookie as a client does, and read them. A read-only bookie passes, as with Apache."""
        if self._server.state.mode is BookieMode.READ_ONLY:
            return {"passed": True, "readOnly": True}
        from bookies.replication.operator.write_and_read import write_and_read

        passed = False
        with contextlib.suppress(BookKeeperError):
            client = (await self._connect()).client
            passed = not await write_and_read(client, [self._server.bookie_id], SANITY_ENTRIES, SANITY_S)
        return {"passed": passed, "readOnly": False}

    async def _expand(self, request: Request) -> Response:
        raise Problem(
            409,
            "a running bookie does not accept new directories",
            "restart it with the empty directories listed after the others, and allow_storage_expansion=true",
        )

    async def _compact_locations(self, request: Request) -> Response:
        if not request.document():
            raise Problem(400, "Empty request body")
        return json_response("Not trigger Entry Location RocksDB compact.")


class ClusterChanges:
    """The endpoints that change the cluster. `connect`: returns the shared client and its session."""

    def __init__(self, connect: Open, jobs: Jobs) -> None:
        self._connect = connect
        self._jobs = jobs
        auto = "/autorecovery"
        self.routes = (
            Route(
                f"{API}/ledger/delete",
                "delete a ledger; `bk bookie undelete` restores it during the quarantine",
                self._delete,
                "ledger_id=N, dry_run=true",
                method="DELETE",
                role=Role.ADMINISTRATOR,
            ),
            _put(f"{auto}/status", "enable or disable auto-recovery", self._enable, parameters="enabled=true or false"),
            _put(f"{auto}/trigger_audit", "request an audit now; 409 if no auditor would do it", self._audit),
            _put(
                f"{auto}/lost_bookie_recovery_delay",
                "set the seconds until a bookie counts as lost",
                self._delay,
                "delay_seconds=N",
            ),
            _put(
                f"{auto}/bookie",
                "copy the replicas of lost bookies to others, as a job",
                self._recover,
                'bookie_src=["ID"], delete_cookie=false',
                role=Role.ADMINISTRATOR,
            ),
            _put(
                f"{auto}/decommission",
                "empty a stopped bookie, and delete its cookie, as a job; 409 while it is registered",
                self._decommission,
                "bookie_src=ID, delete_cookie=true",
                role=Role.ADMINISTRATOR,
            ),
            Route(f"{API}/jobs", "jobs of this process: recoveries, decommissions, Spark jobs", self._list_jobs),
            Route(f"{API}/jobs/{{job}}", "one job", self._show_job),
            Route(
                f"{API}/jobs/{{job}}",
                "cancel a job, with its role: what it has copied stays, and no ledger is left incomplete",
                self._cancel_job,
                method="DELETE",
                role=Role.OPERATOR,
            ),
        )

    async def _delete(self, request: Request) -> Response:
        if "ledger_id" not in request.query:
            raise Problem(404, "Not ledger found. Should provide ledger_id=<id>")
        ledger_id = request.number("ledger_id")
        client = (await self._connect()).client
        record = await client.metadata(ledger_id)
        facts = {"ledger": ledger_id, "state": record.state.name, "last_entry": record.last_entry_id}
        if request.is_dry_run:
            return json_response({"dry_run": True, "would_delete": facts})
        await client.delete(ledger_id)
        return _with(json_response(f"Deleted ledger: {ledger_id}"), facts, None)

    async def _enable(self, request: Request) -> Response:
        given = str(request.query.get("enabled", request.document().get("enabled", ""))).lower()
        if given not in ("true", "false"):
            raise Problem(400, f"Param 'enabled' not found in {dict(request.query)}")
        driver = (await self._connect()).driver
        before = await driver.recovery.is_enabled()
        await (driver.recovery.enable() if given == "true" else driver.recovery.disable())
        after = {"enabled": await driver.recovery.is_enabled()}
        return _with(json_response(after), {"enabled": before}, after)

    async def _audit(self, request: Request) -> Response:
        from bookies.errors import InvalidArgument
        from bookies.replication.operator.audit_request import request_audit

        driver = (await self._connect()).driver
        try:
            auditor = await request_audit(driver)
        except InvalidArgument as error:
            raise Problem(409, str(error)) from error
        return _with(text("Success trigger audit."), None, {"requested_from": auditor})

    async def _delay(self, request: Request) -> Response:
        seconds = request.document().get("delay_seconds")
        if seconds is None:
            raise Problem(404, "Request body not contains lostBookieRecoveryDelay.")
        if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds < 0:
            raise Problem(400, f"delay_seconds={seconds}: a whole number, 0 or more, is needed")
        driver = (await self._connect()).driver
        before = await driver.recovery.lost_bookie_delay_s()
        await driver.recovery.set_lost_bookie_delay_s(seconds)
        return _with(text(f"Success set lostBookieRecoveryDelay to {seconds}"), before, seconds)

    async def _recover(self, request: Request) -> Response:
        given = request.document()
        if not given:
            raise Problem(404, "No request body provide.")
        sources = given.get("bookie_src")
        if not isinstance(sources, list) or not sources or not all(isinstance(name, str) for name in sources):
            raise Problem(404, "ERROR parameters: bookie_src has to be a list of bookies")
        if "bookie_dest" in given:
            raise Problem(422, "bookie_dest: the placement policy chooses the bookies that receive the copies")
        connected = await self._connect()
        self._jobs.check()
        by, removes = _user(request), _switch(given, "delete_cookie")

        async def recover() -> object:
            administration = connected.client.administration(owner=f"{by}, by HTTP")
            report = await administration.recover_bookies([BookieId(name) for name in sources])
            if removes:
                for name in sources:
                    await _empty(connected, name, by, removes=True)
            return {"fragments": len(report.moves), "entries": report.entries, "size": report.size}

        job_id = self._jobs.start(f"recover {', '.join(sources)}", by, recover())
        return _job("Success send recovery request command.", job_id)

    async def _decommission(self, request: Request) -> Response:
        given = request.document()
        if not given:
            raise Problem(404, "Null request body for DecommissionService.")
        name = given.get("bookie_src")
        if not isinstance(name, str) or not name:
            raise Problem(404, "Request body not contains bookie_src.")
        connected = await self._connect()
        driver = connected.driver
        if BookieId(name) in await driver.modes():
            raise Problem(409, f"{name} is registered: stop it first", f"bk bookie drain {name}")
        if BookieId(name) not in (await driver.all_bookies()).bookies:
            raise Problem(404, f"there is no bookie {name}", "bk bookie list")
        self._jobs.check()
        by, removes = _user(request), _switch(given, "delete_cookie")
        job_id = self._jobs.start(f"decommission {name}", by, _empty(connected, name, by, removes=removes))
        return _job(f"Success send decommission Bookie command {name}", job_id)

    async def _list_jobs(self, request: Request) -> Response:
        rows = self._jobs.rows.values()
        return json_response([{name: row[name] for name in row if name != "messages"} for row in rows])

    async def _show_job(self, request: Request) -> Response:
        return json_response(self._jobs.row(request.values["job"]))

    async def _cancel_job(self, request: Request) -> Response:
        before = dict(self._jobs.row(request.values["job"]))
        if request.user is not None and request.user.role < Role[str(before["role"]).upper()]:
            raise Problem(403, f"job {before['id']}: cancelling it needs the role {before['role']}")
        after = await self._jobs.cancel(request.values["job"])
        return _with(json_response(after), before, after)


async def _empty(connected: Connected, name: str, by: str, *, removes: bool) -> object:
    """Drain a bookie. If it is empty then and this is wanted, delete its cookie. Raises `BookKeeperError`."""
    from bookies.replication.operator import Drain, Operator

    drain = Drain(Operator(*connected, f"{by}, by HTTP"), BookieId(name))
    await drain.start()
    try:
        plan = await drain.plan()
        await drain.begin()
        result = await drain.run(plan)
        if not result.is_empty:
            raise BookKeeperError(f"{name} is not empty; `bk bookie drain {name} --dry-run` lists the obstacles")
        if removes:
            await drain.remove()
    finally:
        drain.stop()
    return {"entries": result.entries, "size": result.size, "removed": removes}


def _with(response: Response, before: object, after: object) -> Response:
    """Return the response with the states for the audit line."""
    return Response(response.status, response.body, response.content_type, response.headers, before, after)


def _job(answer: str, job_id: str) -> Response:
    return Response(
        200, answer.encode(), headers={"X-Bk-Job": job_id, "Location": f"{API}/jobs/{job_id}"}, after={"job": job_id}
    )
