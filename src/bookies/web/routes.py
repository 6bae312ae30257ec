"""The table of endpoints: which path and method, answered by which function, for which role, in which process.

Routing, `docs/reference/http.md`, `/openapi.json` and the test of every endpoint by every role are made from it.
Apache's endpoints that a process does not serve are known by name, and answer with the command that does it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct

from bookies.protocol.rights import Role
from bookies.web.messages import Problem, Request, Response

Handler = Callable[[Request], Awaitable[Response]]
_PLACEHOLDER = re.compile(r"{(\w+)}")
_PARAMETER = re.compile(r"([\w-]+)=(.*?)(?=, [\w-]+=|$)")


class Route(Struct, frozen=True):
    """One endpoint. `path`: may have placeholders such as {ledger}. `help`: for the documentation.

    `parameters`: of its query, or headers if they have a capital letter, and `body`: names of its JSON object, both as
    `name=values, name=values`. `role`: the
    lowest that may call it. `is_probe`: answered under any name of the host, and while many connections are open.
    `is_list`: may be long, so few run at a time. `writes`: a GET that changes something nevertheless. `body_max`: bytes
    of a body that is data and no JSON object; the audit has no line for each of these. `cost`: requests that a call
    counts for. What costs more than one has a budget of its own. `labels`: returns those of the ledger or log that a
    request is about, for users with the role on some only; None, or if it returns None: the role is needed everywhere.
    """

    path: str
    help: str
    handler: Handler
    parameters: str = ""
    method: str = "GET"
    role: Role = Role.VIEWER
    body: str = ""
    is_probe: bool = False
    is_list: bool = False
    writes: bool = False
    body_max: int = 0
    cost: int = 1
    labels: Callable[[Request], Awaitable[Mapping[str, bytes] | None]] | None = None

    @property
    def changes(self) -> bool:
        """Report whether a call may change something."""
        return self.method != "GET" or self.writes

    @property
    def placeholders(self) -> list[str]:
        return _PLACEHOLDER.findall(self.path)


def named(parameters: str) -> dict[str, str]:
    """Return the values of each parameter by its name."""
    return dict(_PARAMETER.findall(parameters))


class Routes:
    """The endpoints of one process. `process`: its description, for messages."""

    def __init__(self, routes: Sequence[Route], process: str) -> None:
        self.all = routes
        self._process = process
        self._by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            methods = self._by_path.setdefault(route.path, {})
            assert route.method not in methods, f"{route.method} {route.path} is there twice"
            methods[route.method] = route
        self._patterns = [
            (re.compile(_PLACEHOLDER.sub(r"(?P<\1>[^/]+)", path)), methods)
            for path, methods in self._by_path.items()
            if _PLACEHOLDER.search(path)
        ]

    def find(self, request: Request) -> tuple[Route, Mapping[str, str]] | None:
        """Return the endpoint of a request, and the values of its placeholders."""
        method = "GET" if request.method == "HEAD" else request.method
        methods, values = self._methods(request.path)
        return (methods[method], values) if method in methods else None

    def refusal(self, request: Request) -> Problem:
        """Return why there is no such endpoint."""
        methods, _ = self._methods(request.path)
        commands = _commands()
        if not methods and request.path not in commands:
            return Problem(404, f"{request.path}: no such endpoint; `/` lists what there is")
        if not methods and self._process != "bookie":
            return Problem(404, f"{request.path}: not served by {self._process}; `/` lists what is")
        allowed = [*methods, *(["HEAD"] if "GET" in methods else [])]
        allow = ", ".join(allowed)
        return Problem(
            405,
            f"{request.path} does not answer {request.method}{f', only {allow}' if allowed else ''}",
            f"{commands[request.path]} ..." if commands.get(request.path) else "",
            {"Allow": allow},
        )

    def _methods(self, path: str) -> tuple[Mapping[str, Route], Mapping[str, str]]:
        if path in self._by_path:
            return self._by_path[path], {}
        for pattern, methods in self._patterns:
            if match := pattern.fullmatch(path):
                return methods, match.groupdict()
        return {}, {}


def _commands() -> Mapping[str, str]:
    """Return the command for each of Apache's endpoints. Imported for the first request that needs it."""
    from bookies.apache.commands import HTTP

    return {counterpart.theirs: counterpart.ours for counterpart in HTTP}


def host_name(host: str) -> str:
    """Return the host of a `Host` header, without its port and without the brackets of IPv6."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host
