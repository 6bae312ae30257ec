"""Explicit LAC: announce the last add confirmed of idle writers, so readers need not wait for the next entry.

An entry carries the last add confirmed at the moment it was sent, so the last entry before a pause has to be announced
separately. All writers of a client share one `LacAnnouncer`: a queue ordered by the time when they may become idle, and
one timer, so a busy writer costs one check per interval. Announcements yield to other work: a timer that fires late
shows that the event loop is busy, and then only a few ledgers are announced at a time.

Source: client-protocol 2.15.
"""

from __future__ import annotations

import asyncio
from itertools import takewhile
from typing import Protocol

LATE_S = 0.01  # a timer this late means that the loop has other work
AT_ONCE = 64  # ledgers announced by one firing of the timer
AT_ONCE_BUSY = 2
STEP_S = 0.05  # between two firings while due writers are left


class LacSource(Protocol):
    """The methods of a writer that the announcer calls."""

    @property
    def is_busy(self) -> bool:
        """Report whether entries are in flight, which carry the last add confirmed to readers."""

    def announce(self) -> bool:
        """Announce the last add confirmed if readers lack it; report whether it did."""


class LacAnnouncer:
    """Announces the last add confirmed of writers that are idle for `interval_s` seconds; 0: never."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._due: dict[LacSource, float] = {}  # loop time, ascending
        self._timer: asyncio.TimerHandle | None = None

    def later(self, writer: LacSource) -> None:
        """Check the writer, which has confirmed entries, once per interval from now on until it has announced."""
        if not self._interval_s or writer in self._due:
            return
        self._due[writer] = self._loop.time() + self._interval_s
        if self._timer is None:
            self._wake_at(self._due[writer])

    def forget(self, writer: LacSource) -> None:
        """Drop a writer that has ended. Idempotent."""
        self._due.pop(writer, None)
        if not self._due and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stop(self) -> None:
        """Stop announcing. Idempotent."""
        self._interval_s = 0.0
        for writer in list(self._due):
            self.forget(writer)

    def _wake_at(self, when: float) -> None:
        self._timer = self._loop.call_at(when, self._wake, when)

    def _wake(self, expected: float) -> None:
        self._timer = None
        now = self._loop.time()
        room = AT_ONCE_BUSY if now - expected > LATE_S else AT_ONCE
        for writer, _ in list(takewhile(lambda item: item[1] <= now, self._due.items())):
            if not room:
                break
            del self._due[writer]
            if writer.is_busy:
                self._due[writer] = now + self._interval_s
            elif writer.announce():
                room -= 1
        if self._due:
            self._wake_at(max(now + STEP_S, next(iter(self._due.values()))))
