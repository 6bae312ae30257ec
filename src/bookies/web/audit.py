"""The audit line of each change: who, from where, what, the state before and after. It is never limited or left out.

The latest ones are also kept in memory, for the console.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from bookies.runtime.events import Events
from bookies.runtime.ports import Clock
from bookies.web.messages import Request, Response

VALUE_SIZE_MAX = 1000  # characters of a value in a line
DATA_S = 60.0  # between two lines about the data that one user sends to one place
PLACES_MAX = 1000  # of which data is counted
LATEST_MAX = 100  # changes kept
LATEST_SIZE_MAX = 300  # characters of a value of theirs


class Audit:
    """Writes the lines, on the logger `bookies.audit`. `latest`: changes carried out or refused, the newest last."""

    def __init__(self, clock: Clock) -> None:
        self._events = Events("audit", clock, is_limited=False)
        self._clock = clock
        self.latest: deque[Mapping[str, object]] = deque(maxlen=LATEST_MAX)
        self._data: dict[tuple[str, str], tuple[float, int, int]] = {}  # user and path: since, requests, bytes

    def changed(self, request: Request, response: Response) -> None:
        """Note a change that was carried out. A warning, so that a log of warnings has it too."""
        call, before, after = _call(request), _short(response.before), _short(response.after)
        self._events.warning("audit.changed", **call, status=response.status, before=before, after=after)
        self._keep({**call, "status": response.status, "before": before, "after": after})

    def failed(self, request: Request, status: int, reason: str) -> None:
        """Note a change that was refused, or that failed."""
        call = _call(request)
        self._events.warning("audit.failed", **call, status=status, cause=reason)
        self._keep({**call, "status": status, "cause": reason})

    def _keep(self, fields: Mapping[str, object]) -> None:
        kept = {
            key: _short(value, LATEST_SIZE_MAX) if isinstance(value, str) else value for key, value in fields.items()
        }
        self.latest.append({"at_ms": self._clock.wall_ms(), **kept})

    def received(self, request: Request) -> None:
        """Note data that was stored: a line for the first request of a user to a path, then one a minute with sums."""
        who = request.user.name if request.user is not None else "-"
        now = self._clock.monotonic()
        since, count, size = self._data.get((who, request.path), (-DATA_S, 0, 0))
        count, size = count + 1, size + len(request.body)
        if now - since >= DATA_S:
            call = f"{request.method} {request.path}"
            self._events.warning("audit.received", who=who, peer=request.peer, call=call, requests=count, bytes=size)
            since, count, size = now, 0, 0
        if len(self._data) >= PLACES_MAX and (who, request.path) not in self._data:
            self._data.clear()
        self._data[who, request.path] = since, count, size


def _call(request: Request) -> dict[str, Any]:
    return {
        "who": request.user.name if request.user is not None else "-",
        "role": request.user.role.word if request.user is not None else "-",
        "peer": request.peer,
        "call": f"{request.method} {request.path}",
        "arguments": _short(dict(request.query)),
        "body": _short(request.body.decode("utf-8", "backslashreplace")) if request.body else "-",
    }


def _short(value: object, size_max: int = VALUE_SIZE_MAX) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= size_max else f"{text[:size_max]}..."
