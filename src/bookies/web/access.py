"""Access to endpoints: the user of a request, its role, and the names and pages that requests may come from.

Source: operations 5.3.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Collection, Mapping

from bookies.bookie.transport.denials import Denials
from bookies.bookie.transport.users_file import UsersFile
from bookies.protocol.rights import Allowance, Role, User
from bookies.protocol.rights.allowance import DELAY_S_MAX
from bookies.protocol.rights.users import CERTIFICATE, hash_of
from bookies.runtime.events import Events
from bookies.runtime.ports import Clock
from bookies.web.messages import Problem, Request
from bookies.web.routes import Route, host_name
from bookies.wire.auth import text_of

FAILURES_MAX = 5  # wrong tokens of one peer in a minute; more are answered 429
WINDOW_S = 60.0
PEERS_MAX = 1000  # peers whose failures are counted
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="bookies"'}
_ADD_USER = "`bk token add NAME --role {} --users FILE` creates a token; users_file names the file"


class Access:
    """The checks of one server. `users`: None where none are configured: then anyone may read, and changes are refused.

    `names`: host names besides IP addresses. `scheme`: http or https. `open_metrics`: scrapes need no user.
    """

    def __init__(
        self, users: UsersFile | None, names: Collection[str], clock: Clock, *, scheme: str, open_metrics: bool
    ) -> None:
        self._users = users
        self._names = {"localhost", *names}
        self._clock = clock
        self._scheme = scheme
        self._open_metrics = open_metrics
        self._events = Events("http", clock)
        self._denials = Denials(clock)
        self._allowances: dict[str, Allowance] = {}  # by user
        self._failures: dict[str, tuple[float, int]] = {}  # by peer: start of the window, wrong tokens in it

    def check_source(self, request: Request, *, changes: bool) -> None:
        """Refuse a page of another site. Raises `Problem`.

        Such a page may have let its own name point here (DNS rebinding), or send what the browser's certificate allows.
        """
        name = host_name(request.host)
        if name not in self._names and not _is_address(name):
            raise Problem(
                421,
                f"the Host header names {name!r}, which is not a name of this server",
                "use an address, or add the name to http_names",
            )
        origin = request.headers.get("origin")
        is_foreign = changes and request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        if is_foreign or (origin is not None and origin != f"{self._scheme}://{request.host}"):
            raise Problem(403, f"the request comes from a page of another site ({origin or 'no Origin'})")

    def user_of(self, request: Request, route: Route) -> User | None:
        """Return the user of a request, who may call this endpoint; None if it needs none. Raises `Problem`.

        An endpoint of a ledger or log may have to be checked again with `check_labels`.
        """
        role = Role.ANYONE if route.path == "/metrics" and self._open_metrics else route.role
        if role is Role.ANYONE or (self._users is None and not route.changes):
            return None
        if self._users is None:
            raise Problem(401, "this server has no users, so it changes nothing", _ADD_USER.format(role.word))
        user = self._identified(request, self._users)
        if user is None:
            raise Problem(
                401,
                f"{route.method} {route.path} needs a user with the role {role.word}",
                "send the header `Authorization: Bearer TOKEN`; " + _ADD_USER.format(role.word),
                _CHALLENGE,
            )
        if (user.role if route.labels is None else user.highest_role) < role:
            raise self._refused(request, route, user)
        return user

    def check_labels(self, request: Request, route: Route, labels: Mapping[str, bytes] | None) -> None:
        """Refuse a request about a ledger or log with these labels, on which the user lacks the role. Raises `Problem`.

        `labels`: None if there is no such ledger.
        """
        assert request.user is not None
        if request.user.role_on(labels) < route.role:
            raise self._refused(request, route, request.user)

    def delay_s(self, request: Request) -> float:
        """Count a request of a user who has a rate, and return the seconds to wait before it. Raises `Problem`."""
        user = request.user
        if user is None or not user.is_limited:
            return 0.0
        now, allowance = self._clock.monotonic(), self._allowances.setdefault(user.name, Allowance())
        allowance.renew(user.bytes_rate, user.requests_rate)
        wait_s = allowance.wait_s(now)
        if wait_s > DELAY_S_MAX:
            retry = {"Retry-After": str(math.ceil(wait_s))}
            raise Problem(429, f"{user.name} exceeds its rate, which users_file sets", headers=retry)
        allowance.charge(len(request.body), 1, now)
        return wait_s

    def answered(self, request: Request, size: int) -> float:
        """Count the bytes of an answer, and return the seconds to wait before more."""
        if request.user is None or not request.user.is_limited:
            return 0.0
        allowance, now = self._allowances[request.user.name], self._clock.monotonic()
        allowance.charge(size, 0, now)
        return allowance.wait_s(now)

    def is_current(self, request: Request) -> bool:
        """Report whether the user of a request in progress has lost no right since it began."""
        if request.user is None or self._users is None:
            return True
        later = self._users.current().by_name.get(request.user.name)
        return later is not None and not request.user.lost_rights(later)

    def _identified(self, request: Request, users: UsersFile) -> User | None:
        header, by_credential = request.headers.get("authorization"), users.current().by_credential
        if header is None:
            return None if request.subject is None else by_credential.get(f"{CERTIFICATE}{text_of(request.subject)}")
        kind, _, token = header.partition(" ")
        user = by_credential.get(hash_of(token.strip())) if kind.lower() == "bearer" else None
        if user is not None:
            return user
        now = self._clock.monotonic()
        start, count = self._failures.get(request.peer, (now, 0))
        if now - start >= WINDOW_S:
            start, count = now, 0
        if len(self._failures) >= PEERS_MAX and request.peer not in self._failures:
            self._failures.clear()
        self._failures[request.peer] = start, count + 1
        self._events.warning("http.denied", peer=request.peer, path=request.path, cause="unknown token")
        if count >= FAILURES_MAX:
            retry = {"Retry-After": str(max(1, round(start + WINDOW_S - now)))}
            raise Problem(429, "too many unknown tokens from this address", headers=retry)
        raise Problem(401, "the token is unknown or was revoked", _ADD_USER.format("viewer"), _CHALLENGE)

    def _refused(self, request: Request, route: Route, user: User) -> Problem:
        """Return the answer to a user who lacks a role, and write the audit line."""
        word = route.role.word
        self._denials.denied(user, request.peer, request.method, request.path, route.role)
        return Problem(
            403,
            f"{user.rights}: {request.method} {request.path} needs the role {word}",
            f"let a user with the role {word} do it, or give the role to {user.name} in users_file",
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
