"""The console's files, the user of a request, the samples for its plots, and the latest changes.

The files are data of this package: one page, one style sheet, and modules that the browser runs as they are. They hold
no facts about the cluster, so they are sent without a user. Browsers keep them and ask whether they have changed.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files

from bookies.protocol.rights import Role
from bookies.web.apache_bookie import API
from bookies.web.messages import Problem, Request, Response, json_response
from bookies.web.routes import Route
from bookies.web.site import Process

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
PAGE = "console.html"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Console:
    """The endpoints of the console in one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._files: dict[str, Response] = {}
        self.routes = (
            Route("/console", "the console: the cluster in a browser", self._page, role=Role.ANYONE),
            Route("/console/{file}", "a file of the console", self._file, role=Role.ANYONE),
            Route(f"{API}/user", "name and role of the user, and whether the server has users", self._user),
            Route(
                f"{API}/samples",
                "load and durations of this process, every 10 s of the last 3 h",
                self._samples,
                "since=MILLISECONDS",
            ),
            Route(
                f"{API}/changes",
                "the last 100 changes asked of this server, also those refused, the newest first",
                self._changes,
                role=Role.OPERATOR,
            ),
        )

    async def _page(self, request: Request) -> Response:
        return self._unless_kept(request, PAGE)

    async def _file(self, request: Request) -> Response:
        return self._unless_kept(request, request.values["file"])

    def _unless_kept(self, request: Request, name: str) -> Response:
        """Return a file, or 304 if the browser has it. Raises `Problem`."""
        if not self._files:
            self._files = _read_files()
        if name not in self._files:
            raise Problem(404, f"the console has no file {name}", "/console")
        response = self._files[name]
        if request.headers.get("if-none-match") == response.headers["ETag"]:
            return Response(304, b"", response.content_type, response.headers)
        return response

    async def _user(self, request: Request) -> Response:
        user, server = request.user, self._process.server
        return json_response(
            {
                "user": None if user is None else user.name,
                "role": Role.VIEWER.word if user is None else user.role.word,
                "has_users": user is not None,
                "bookie": None if server is None or not server.has_started else server.bookie_id,
            }
        )

    async def _samples(self, request: Request) -> Response:
        if self._process.samples is None:
            raise Problem(404, "this process takes no samples")
        return json_response(self._process.samples.since(request.number("since", 0)))

    async def _changes(self, request: Request) -> Response:
        audit = self._process.audit
        return json_response([] if audit is None else list(reversed(audit.latest)))


def _read_files() -> dict[str, Response]:
    """Read the files of the console, some 100 KB, with their headers."""
    responses = {}
    for entry in files("bookies.web.console").joinpath("static").iterdir():
        data = entry.read_bytes()
        headers = {
            "Cache-Control": "no-cache",  # kept, and asked about each time
            "ETag": f'"{hashlib.sha256(data).hexdigest()[:16]}"',
            "Content-Security-Policy": POLICY,
            "Referrer-Policy": "no-referrer",
        }
        kind = TYPES.get(entry.name.rpartition(".")[2], "application/octet-stream")
        responses[entry.name] = Response(200, data, f"{kind}; charset=utf-8", headers)
    return responses
