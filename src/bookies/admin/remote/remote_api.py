"""The server's side: the verbs of `exposed.py` as endpoints, which run in the process that serves them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from bookies.admin.remote.exposed import (
    EXPOSED,
    PAGE_SIZE,
    PAGE_SIZE_MAX,
    PAGED,
    REPORT,
    THIS_BOOKIE,
    Exposed,
    namespace,
    options_of,
)
from bookies.admin.shared import Session, UsageError
from bookies.admin.shared.common import OnBookie, OnCluster, _jsonable
from bookies.admin.shared.nouns import verb_of
from bookies.admin.shared.report import Report, Table
from bookies.model import BookieId
from bookies.web.console.pages import Console
from bookies.web.messages import Problem, Request, Response
from bookies.web.routes import Route
from bookies.web.site import Process
from bookies.web.spark_jobs import SparkJobs


def routes(process: Process) -> list[Route]:
    """Return the endpoints that this process can answer, those of Spark jobs, and those of the console."""
    return [*verb_routes(process), *SparkJobs(process).routes, *Console(process).routes]


def verb_routes(process: Process) -> list[Route]:
    """Return the endpoints of verbs that this process can answer."""
    has_bookie = process.server is not None
    return [_route(row, process) for row in EXPOSED if has_bookie or not isinstance(verb_of(row.words).run, OnBookie)]


def _route(row: Exposed, process: Process) -> Route:
    verb = verb_of(row.words)
    given = {field: option for field, option in options_of(verb) if field in row.options and field != "yes"}
    parameters = ", ".join(
        f"{field}={'true' if option.kind is bool else option.name.partition(' ')[2] or 'TEXT'}"
        for field, option in given.items()
    )
    help = f"`bk {row.words}`: {verb.help}"
    is_body = row.method not in ("GET", "DELETE")
    return Route(
        row.full_path,
        help,
        _Endpoint(row, process).answer,
        "" if is_body else parameters,
        row.method,
        row.role,
        parameters if is_body else "",
        is_list=row.is_list,
    )


class _Endpoint:
    """One verb at one path."""

    def __init__(self, row: Exposed, process: Process) -> None:
        self._row = row
        self._process = process

    async def answer(self, request: Request) -> Response:
        """Run the verb for a request. Raises `Problem`, `BookKeeperError`."""
        row = self._row
        given = self._given(request)
        changes = row.method != "GET" and not given.get("dry_run")
        before = await self._watched(given) if changes else None
        try:
            report = await self._run(row.words, given)
        except UsageError as error:
            raise Problem(422, str(error), f"bk {row.words} --help") from error
        facts = _plain(report.facts)
        if changes and report.status and isinstance(facts, dict) and facts.get("changed") is False:
            raise Problem(409, "; ".join(line for line in (*report.remarks, *report.text) if isinstance(line, str)))
        after = (await self._watched(given) if row.watched else facts) if changes else None
        headers = {"X-Bk-Status": str(report.status)} if report.status else {}
        if (key := PAGED.get(row.words)) is not None and len(facts) == given["limit"]:
            following = urlencode({**request.query, "after": facts[-1][key] if key else facts[-1]})
            headers["Link"] = f'<{row.full_path}?{following}>; rel="next"'
        body: object = facts
        content_type = "application/json"
        if request.headers.get("accept") == REPORT:
            text = [part._asdict() if isinstance(part, Table) else part for part in report.text]
            body = {"facts": facts, "text": text, "status": report.status, "remarks": list(report.remarks)}
            content_type = REPORT
        data = json.dumps(body, default=_jsonable).encode() + b"\n"
        return Response(200, data, content_type, headers, before, after)

    def _given(self, request: Request) -> dict[str, Any]:
        """Return the values of a request by field. Raises `Problem` for those that the path does not accept."""
        row = self._row
        lists = {field for field, option in options_of(verb_of(row.words)) if option.may_repeat}
        query = {name: text.split(",") if name in lists else text for name, text in request.query.items()}
        given: dict[str, Any] = {**query, **request.document()}
        for name in given:
            if name not in row.options:
                accepted = ", ".join(row.options) or "none"
                raise Problem(400, f"{name}: not a parameter of {row.method} {row.full_path}; it accepts {accepted}")
        given |= request.values
        if row.words == "ledger explain":
            given["what"] = ":".join(filter(None, (given.pop("ledger"), given.pop("entry", ""))))
        elif row.words == "ledger delete":
            given["yes"] = True  # the method is the confirmation
        elif row.words in PAGED:
            given["limit"] = request.number("limit", PAGE_SIZE)
            if not 1 <= given["limit"] <= PAGE_SIZE_MAX:
                raise Problem(400, f"limit={given['limit']}: 1 to {PAGE_SIZE_MAX}")
        if given.get("bookie") == THIS_BOOKIE and self._process.server is not None:
            given["bookie"] = self._process.server.bookie_id
        return given

    async def _watched(self, given: dict[str, Any]) -> object:
        """Return the state that the change may affect, for the audit line; None if it cannot be determined."""
        if not self._row.watched:
            return None
        placeholders: dict[str, Any] = {name: given[name] for name in ("bookie", "ledger") if name in given}
        if self._row.watched in ("bookie drain", "bookie maintenance"):
            placeholders = {}
        try:
            return _plain((await self._run(self._row.watched, placeholders)).facts)
        except Exception as error:  # noqa: BLE001  (the change itself reports what is wrong)
            return f"unknown: {error}"

    async def _run(self, words: str, given: dict[str, Any]) -> Report:
        verb = verb_of(words)
        arguments = namespace(verb, given)
        if isinstance(verb.run, OnBookie):
            return await self._call(verb.run, arguments)
        assert isinstance(verb.run, OnCluster), words
        session = Session(*await self._process.client.connected())
        report = await verb.run.within(session, arguments)
        assert isinstance(report, Report), words
        return report

    async def _call(self, run: OnBookie, arguments: Any) -> Report:
        server = self._process.server
        assert server is not None
        if arguments.bookie != server.bookie_id:
            await self._refer(arguments.bookie)
        answer: Any = None
        for name, values in run.calls(arguments):
            if name not in server.calls:
                raise Problem(503, "the bookie has not started yet", headers={"Retry-After": "1"})
            answer = await server.calls[name](**values)
        lines = (f"{server.bookie_id}: {line}" for line in run.lines(answer))
        return Report({server.bookie_id: answer}, lines)

    async def _refer(self, bookie: str) -> None:
        """Raise the `Problem` that names the server of another bookie."""
        server = self._process.server
        assert server is not None
        info = await server.metadata.bookie_info(BookieId(bookie))
        if info is None:
            raise Problem(404, f"bookie {bookie} is not registered", "bk bookie list")
        where = info.http_address()
        raise Problem(
            404,
            f"this is the server of {server.bookie_id}; {bookie} has {where or 'no HTTP server'}",
            f"--server {where}" if where else "start it with http_port",
        )


def _plain(facts: Any) -> Any:
    """Return facts as lists and objects: commands may return iterators."""
    return json.loads(
        json.dumps(facts, default=lambda value: list(value) if hasattr(value, "__next__") else _jsonable(value))
    )
