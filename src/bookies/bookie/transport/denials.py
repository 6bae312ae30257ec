"""Audit lines about what users were denied, so few of them that no user can fill the disk."""

from __future__ import annotations

from bookies.protocol.pacing import RateLimit
from bookies.protocol.rights import Role, User
from bookies.runtime.events import Events
from bookies.runtime.ports import Clock

DENIALS_S = 60.0  # between two lines about the same user, operation and object
DENIALS_MAX = 1000  # of which denials are counted
LINES_RATE, LINES_BURST_S = 1, 10.0  # lines a second about one user, and the seconds that may be made up for


class Denials:
    """Writes the lines, on the logger `bookies.audit`. `count`: requests denied."""

    def __init__(self, clock: Clock) -> None:
        self.count = 0
        self._events = Events("audit", clock, is_limited=False)
        self._clock = clock
        self._told: dict[tuple[str, str, str], tuple[float, int]] = {}  # when the last line was written, denials since
        self._lines: dict[str, RateLimit] = {}  # by user
        self._unwritten: dict[str, int] = {}  # denials of a user since its last line

    def denied(self, user: User, peer: str, operation: str, what: str, needed: Role) -> None:
        """Count a denial. The first of its kind is a line, then one a minute with the count since.

        `others` in the line: the user's denials of other kinds since its last line, which have none.
        """
        self.count += 1
        key, now = (user.name, operation, what), self._clock.monotonic()
        told_at, count = self._told.pop(key, (now - DENIALS_S, 0))
        count += 1
        unwritten = self._unwritten.get(user.name, 0) + 1
        lines = self._lines.setdefault(user.name, RateLimit(LINES_RATE, LINES_BURST_S))
        if now - told_at >= DENIALS_S and lines.charge(0, now) <= 0:
            lines.charge(1, now)
            self._events.warning(
                "audit.denied",
                who=user.name,
                peer=peer,
                call=operation,
                what=what,
                rule=f"{user.rights}; this needs {needed.word}",
                requests=count,
                others=max(0, unwritten - count),
            )
            told_at, count, unwritten = now, 0, 0
        self._unwritten[user.name] = unwritten
        if len(self._told) >= DENIALS_MAX:
            del self._told[next(iter(self._told))]
        self._told[key] = told_at, count
