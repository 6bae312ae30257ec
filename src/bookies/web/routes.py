"""The table of endpoints: which path, answered by which function, in which process, and for which clients.

Only endpoints that read exist. Apache's endpoints that change something are known by name, and answer 405 with the
command that does it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from bookies.web.messages import Problem, Request, Response

READS = ("GET", "HEAD")
_ALLOW = ", ".join(READS)

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint. `help`: for the documentation; `parameters`: of its query.

    `is_probe`: answered under any name of the host, and while many connections are open. `is_list`: may be long, so few
    run at a time.
    """

    path: str
    help: str
    handler: Handler
    parameters: str = ""
    is_probe: bool = False
    is_list: bool = False


class Routes:
    """The endpoints of one process. `process`: what it is, for messages. `names`: host names besides IP addresses."""

    def __init__(self, routes: Sequence[Route], process: str, names: Collection[str]) -> None:
        self.by_path: Mapping[str, Route] = {route.path: route for route in routes}
        self._process = process
        self._names = {"localhost", *names}

    def route_of(self, request: Request) -> Route:
        """Return the endpoint of a request. Raises `Problem`."""
        route = self.by_path.get(request.path)
        if route is None or not route.is_probe:
            self._check_host(request.host)
        if request.method in READS and route is not None:
            return route
        commands = _commands()
        if route is None and request.path not in commands:
            raise Problem(404, f"{request.path}: no such endpoint; `/` lists what there is")
        if route is None and request.method in READS and self._process != "bookie":
            raise Problem(404, f"{request.path}: not served by {self._process}; `/` lists what is")
        raise Problem(
            405,
            f"{request.method} {request.path}: this server only reads",
            f"{commands[request.path]} ..." if commands.get(request.path) else "",
            {"Allow": _ALLOW if route is not None else ""},
        )

    def _check_host(self, host: str) -> None:
        """Refuse a name that is not this server's. A page from elsewhere may have let its name point here."""
        name = host_name(host)
        if name in self._names:
            return
        try:
            ipaddress.ip_address(name)
        except ValueError:
            raise Problem(
                421,
                f"the Host header names {name!r}, which is not a name of this server",
                "use an address, or add the name to http_names",
            ) from None


def _commands() -> Mapping[str, str]:
    """Return the command for each of Apache's endpoints. Imported for the first request that needs it."""
    from bookies.apache.commands import HTTP

    return {counterpart.theirs: counterpart.ours for counterpart in HTTP}


def host_name(host: str) -> str:
    """Return the host of a `Host` header, without its port and without the brackets of IPv6."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host
