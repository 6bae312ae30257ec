"""Explicit LAC: announce the last add confirmed of writers, so that readers need not wait for the next entry.

An entry carries the last add confirmed at the moment it was sent. An entry that is confirmed is announced

* at once, if readers are known to wait for it, and no queued entry is about to carry it. While other entries are in
  flight, the next one gets a moment (`MOMENT_S`) to carry it;
* at once as well if nothing was confirmed in the last interval: that is how waiting readers become known;
* after the interval, if the writer is idle: to the bookies that were not told;
* again, if a bookie could not be told: after the interval, then with pauses that double, up to `REPEAT_MAX_S`.

All writers of a client share one `LacAnnouncer`: a queue ordered by the time when they may become idle, and one timer,
so a busy writer without readers costs one check per interval. Announcements yield to other work: a timer that fires
late shows that the event loop is busy, and then only a few ledgers are announced at a time.

Source: client-protocol 2.15.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import takewhile
from typing import Protocol

from bookies.protocol.pacing import doubled

LATE_S = 0.01  # a timer this late means that the loop has other work
AT_ONCE = 64  # idle ledgers announced by one firing of the timer
AT_ONCE_BUSY = 2  # the same if the loop has other work, and for ledgers with entries in flight
STEP_S = 0.05  # between two firings while due writers are left
MOMENT_S = 0.0005  # for the next entry to carry the news, while others are in flight
REPEAT_MAX_S = 10.0  # longest pause before an announcement that failed is repeated
CROWD = 16  # ledgers with news in one loop iteration, above which only those with known readers are announced


class LacSource(Protocol):
    """The members of a writer's announcements that the announcer needs."""

    @property
    def has_readers(self) -> bool:
        """Report whether readers are taken to wait for this ledger's entries."""

    @property
    def is_busy(self) -> bool:
        """Report whether entries are in flight or queued, which carry the last add confirmed to readers."""

    def news(self) -> int | None:
        """Return the last add confirmed, if no bookie was told it and no queued entry is about to carry it."""

    def is_untold(self, last_add_confirmed: int) -> bool:
        """Report whether no bookie was told this last add confirmed, or a later one."""

    def at_once(self) -> bool:
        """Tell the bookie at which readers wait; report whether there was news."""

    def when_idle(self) -> bool:
        """Tell the bookies of the last entry that were not told; report whether there were any."""

    @property
    def repeats(self) -> int:
        """Return how often the last announcement was repeated."""

    def repeat(self) -> None:
        """Tell the last add confirmed again to bookies whose announcement failed, unless it is superseded."""


class LacAnnouncer:
    """Announces the last add confirmed of writers. `interval_s`: seconds until a writer is idle; 0: never.

    jitter(a, b): a random number between a and b. Then the writers whose announcements one bookie has failed do not
    repeat them in the same moment: each pause is between half of its length and all of it.
    """

    def __init__(self, interval_s: float, jitter: Callable[[float, float], float] = max) -> None:
        self._interval_s = interval_s
        self._jitter = jitter
        self._loop = asyncio.get_running_loop()
        self._due: dict[LacSource, float] = {}  # loop time, ascending
        self._timer: asyncio.TimerHandle | None = None
        self._confirmed: dict[LacSource, None] = {}  # in this loop iteration, with readers
        self._moments: dict[LacSource, int] = {}  # what the next entry of a busy writer may still carry
        self._moment: asyncio.TimerHandle | None = None
        self._repeats: dict[LacSource, asyncio.TimerHandle] = {}

    def confirmed(self, writer: LacSource) -> None:
        """Announce what the writer has confirmed, now or later: see above."""
        if writer in self._due:
            if not writer.has_readers:
                return
        elif self._interval_s:
            self._due[writer] = self._loop.time() + self._interval_s
            if self._timer is None:
                self._wake_at(self._due[writer])
        else:
            return
        if not self._confirmed:
            self._loop.call_soon(self._announce_confirmed)
        self._confirmed[writer] = None

    def failed(self, writer: LacSource) -> None:
        """Repeat the writer's announcement after a pause: a bookie could not be told."""
        if not self._interval_s:
            return
        pause_s = doubled(self._interval_s, REPEAT_MAX_S, writer.repeats)
        due = self._loop.time() + self._jitter(pause_s / 2, pause_s)
        repetition = self._repeats.get(writer)
        if repetition is not None:
            if repetition.when() <= due:
                return
            repetition.cancel()  # It has the longer pause of an earlier announcement.
        self._repeats[writer] = self._loop.call_at(due, self._repeat, writer)

    def _repeat(self, writer: LacSource) -> None:
        del self._repeats[writer]
        writer.repeat()

    def forget(self, writer: LacSource) -> None:
        """Drop a writer that has ended. Idempotent."""
        self._due.pop(writer, None)
        self._confirmed.pop(writer, None)
        self._moments.pop(writer, None)
        if (repetition := self._repeats.pop(writer, None)) is not None:
            repetition.cancel()
        if not self._due and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stop(self) -> None:
        """Stop announcing. Idempotent."""
        self._interval_s = 0.0
        for writer in [*self._due, *self._repeats]:
            self.forget(writer)
        if self._moment is not None:
            self._moment.cancel()
            self._moment = None

    def _announce_confirmed(self) -> None:
        """Run after the code that waited for these confirmations, which may have queued the next entries."""
        writers, self._confirmed = self._confirmed, {}
        is_crowd = len(writers) > CROWD
        for writer in writers:
            news = writer.news()
            if news is None:
                continue
            if writer.has_readers and writer.is_busy:
                self._moments.setdefault(writer, news)
            elif writer.has_readers or not (is_crowd or writer.is_busy):
                writer.at_once()
        if self._moments and self._moment is None:
            self._moment = self._loop.call_later(MOMENT_S, self._end_moments)

    def _end_moments(self) -> None:
        moments, self._moments, self._moment = self._moments, {}, None
        for writer, news in moments.items():
            if writer.is_untold(news):
                writer.at_once()

    def _wake_at(self, when: float) -> None:
        self._timer = self._loop.call_at(when, self._wake, when)

    def _wake(self, expected: float) -> None:
        self._timer = None
        now = self._loop.time()
        room = AT_ONCE_BUSY if now - expected > LATE_S else AT_ONCE
        room_busy = AT_ONCE_BUSY
        for writer, _ in list(takewhile(lambda item: item[1] <= now, self._due.items())):
            if not room:
                break
            del self._due[writer]
            if writer.is_busy:
                self._due[writer] = now + self._interval_s
                if room_busy and writer.at_once():
                    room_busy -= 1
            elif writer.when_idle():
                room -= 1
        if self._due:
            self._wake_at(max(now + STEP_S, next(iter(self._due.values()))))
