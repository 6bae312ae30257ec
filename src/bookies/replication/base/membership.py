"""The bookies of a cluster as auto-recovery sees them: who is registered, who is away, and who counts as lost.

One object for the auditor and the worker of a process. It watches the two sets of registered bookies and the delay,
reads the cookies and what is announced for single bookies when something changes, and tells whoever wants to know. The
decisions are those of `protocol/repair/absence.py`. Source: metadata 8.2 and 8.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from bookies.errors import MetadataCorrupt
from bookies.metadata.interface import MetadataDriver, Watch
from bookies.metadata.interface.driver import BookieSet
from bookies.metadata.shared import BookieNotes
from bookies.metadata.shared.bookie_notes import Note, Notes
from bookies.model import BookieId, BookieMode
from bookies.protocol.repair.absence import HURRY_S, Absence
from bookies.protocol.repair.repair_work import Circumstances
from bookies.runtime.events import Events
from bookies.runtime.ports import Clock


class Membership:
    """`delay_s`: until the store's own is read; `writes_delay`: and the store's from now on, if it has none."""

    def __init__(
        self, driver: MetadataDriver, clock: Clock, delay_s: int, events: Events, *, writes_delay: bool = True
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._delay_s = delay_s
        self._writes_delay = writes_delay
        self._reader = BookieNotes(driver, clock.wall_ms)
        self._notes = Notes()
        self._notes_watch: Watch | None = None
        self._events = events
        self.absence = Absence(delay_s)
        self._sets: dict[BookieMode, BookieSet | None] = dict.fromkeys(BookieMode)
        self._cookies: tuple[BookieId, ...] = ()
        self._named: tuple[BookieId, ...] = ()  # by records, though they have no cookie
        self._emptying: dict[BookieId, float] = {}  # those to be emptied, as far as known since when
        self._emptied: dict[BookieId, tuple[float, float]] = {}  # those that are not any more, and when they were
        self._watches: list[Watch] = []
        self._listeners: dict[Callable[[], None], None] = {}
        self._is_stale = True  # something changed that has to be read
        self._delay_written = -1  # the first call of the watch says nothing
        self._seen_delay: int | None = None
        self.triggered = 0  # how often somebody asked for an audit by writing the delay that was there

    async def start(self) -> None:
        """Begin to watch; everything is known when it returns. Raises `MetadataError`."""
        if self._writes_delay:
            await self._driver.recovery.init_lost_bookie_delay_s(self._delay_s)
        for mode in BookieMode:
            self._sets[mode] = await self._driver.bookies(mode)
            self._watches.append(self._driver.watch_bookies(mode, partial(self._changed, mode)))
        self._watches.append(self._driver.recovery.watch_lost_bookie_delay(self._delay_changed))
        await self.refresh()

    def stop(self) -> None:
        for watch in (*self._watches, self._notes_watch):
            if watch is not None:
                watch.cancel()
        self._watches.clear()
        self._notes_watch = None

    def listen(self, callback: Callable[[], None]) -> None:
        self._listeners[callback] = None

    def unlisten(self, callback: Callable[[], None]) -> None:
        self._listeners.pop(callback, None)

    # -- what is known -------------------------------------------------------------------------------------------
    @property
    def writable(self) -> tuple[BookieId, ...]:
        return self._of(BookieMode.WRITABLE)

    @property
    def targets(self) -> list[BookieId]:
        """Bookies that can be copied to."""
        return [each for each in self.writable if each not in self._notes.by_bookie]

    @property
    def registered(self) -> frozenset[BookieId]:
        """In whatever mode. For membership tests: its order means nothing."""
        return frozenset((*self.writable, *self._of(BookieMode.READ_ONLY)))

    @property
    def draining(self) -> list[BookieId]:
        """Bookies that are to be emptied."""
        return list(self._notes.draining)

    def circumstances(
        self,
        named: Iterable[BookieId] = (),
        claimed: Iterable[BookieId] = (),
        declared: Collection[BookieId] = (),
    ) -> Circumstances:
        """What a repair has to know. `named`: by somebody who takes them for lost; if they are not registered now, nor
        under maintenance, they are. `claimed`: likewise, but by marks alone. `declared`: by the operator who asks for
        the repair, whose word counts for more than a maintenance that was announced before.
        """
        self._look()
        now, registered = self._now(), self.registered
        away = self.absence.away
        excused = [each for each in away if self.absence.is_excused(each, now) and each not in declared]
        named = *self.absence.lost(now), *named, *declared
        known = [bookie for bookie in named if bookie not in (*registered, *excused)]
        only_claimed = [bookie for bookie in claimed if bookie not in (*registered, *excused, *known)]
        lost = dict.fromkeys([*known, *only_claimed])
        unwanted = {bookie: _why_avoided(note) for bookie, note in self._notes.by_bookie.items()}
        return Circumstances(
            registered,
            tuple(lost),
            tuple(excused),
            tuple(self.draining),
            unwanted,
            self._of(BookieMode.READ_ONLY),
            tuple(dict.fromkeys(only_claimed)),
        )

    def long_away(self, bookies: Iterable[BookieId]) -> list[BookieId]:
        """Those that have not been registered for some seconds, or that nobody expects: no mere restart."""
        self._look()
        now, registered = self._now(), self.registered
        return [each for each in bookies if each not in registered and self.absence.is_away_for(each, HURRY_S, now)]

    def away_when_marked(self, seen: Mapping[BookieId, float]) -> list[BookieId]:
        """Those of the bookies that a mark names which somebody may have taken for lost, and which still stay away.

        `seen`: when the mark was first seen to name each, loop time. Who was there then, or later, had lost entries or
        was to be emptied, or has been back since; then that it is away now is another matter, and the delay decides.
        """
        claimed = []
        for bookie in self.long_away(each for each in seen if each not in self._notes.draining):
            since = self.absence.away_since(bookie)
            if since is None or since <= seen[bookie]:
                claimed.append(bookie)
        return claimed

    def may_lack(
        self, named: Collection[BookieId], marked_ms: int | None, seen: Mapping[BookieId, float] | None = None
    ) -> dict[BookieId, bool]:
        """Of the bookies that a mark names: those that are registered and stay, for which it may stand for entries
        that they lack; and for each whether it may stand for anything else than that the bookie was away.

        `marked_ms`: when the mark grew last, by the wall clock of whoever made it; None, 0: nobody knows. Of several
        bookies one may have been added much earlier, so each must have been away, too, when the mark was first `seen`
        to name it, loop time.
        """
        self._look()
        when = self._now() + ((marked_ms or 0) - self._clock.wall_ms()) / 1000
        registered, leaving = self.registered, self._notes.draining
        found = {}
        for bookie in named:
            if bookie in registered and bookie not in leaving:
                began, ended = self._emptied.get(bookie, (when + 1, when + 1))
                was_away = self.absence.was_away_at(bookie, when)
                if len(named) > 1:
                    seen_at = None if seen is None else seen.get(bookie)
                    was_away = was_away and seen_at is not None and self.absence.was_away_at(bookie, seen_at)
                found[bookie] = not (was_away or began <= when <= ended)
        return found

    async def settle(self, bookies: Iterable[BookieId]) -> None:
        """Some seconds at most: afterwards those of them that stay away are `long_away`. For those who have only begun
        to watch, and were told by others that a bookie is lost, which may be starting just now."""
        self._look()
        now, registered = self._now(), self.registered
        since = [self.absence.away_since(each) for each in bookies if each not in registered]
        wait_s = max((HURRY_S - (now - each) for each in since if each is not None), default=0.0)
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def lost(self) -> list[BookieId]:
        self._look()
        return self.absence.lost(self._now())

    def next_loss_s(self) -> float | None:
        """In how many seconds another bookie will count as lost; None: none is away."""
        self._look()
        when = self.absence.next_loss(self._now())
        return None if when is None else max(0.0, when - self._now())

    # -- changes -------------------------------------------------------------------------------------------------
    async def refresh(self, *, is_forced: bool = False) -> None:
        """Read what cannot be watched, if anything has changed since the last time. Raises `MetadataError`."""
        if not (self._is_stale or is_forced):
            return
        self._is_stale = False
        try:
            self._cookies = (await self._driver.all_bookies()).bookies
            await self.read_notes()
            await self._read_delay()
        except BaseException:
            self._is_stale = True
            raise
        self._look()

    def note_named(self, bookies: Collection[BookieId]) -> None:
        """Records name these, and no others, though perhaps they have no cookie."""
        self._named = tuple(sorted(bookies))
        self._look()

    @property
    def notes_version(self) -> int:
        """Of what is announced for single bookies, as far as known."""
        return self._notes.version

    async def read_notes(self) -> None:
        """What is announced is not older than the call afterwards. Raises `MetadataError`."""
        notes = await self._reader.read()
        if self._notes_watch is None or notes.version != self._notes.version:
            if self._notes_watch is not None:
                self._notes_watch.cancel()
            self._notes_watch = self._reader.watch(notes, self._note_changed)
        self._notes = notes
        now = self._now()
        self._emptied |= {each: (at, now) for each, at in self._emptying.items() if each not in notes.draining}
        self._emptying = {each: self._emptying.get(each, now) for each in notes.draining}

    async def _read_delay(self) -> None:
        try:
            delay_s = await self._driver.recovery.lost_bookie_delay_s()
        except MetadataCorrupt as error:
            self._events.error("delay.unreadable", kept_s=self.absence.delay_s, error=error)
            return
        if self._delay_written > 0:
            self._delay_written = 0
            self.triggered += delay_s == self._seen_delay
        self._seen_delay = delay_s
        if delay_s is not None:
            self.absence.delay_s = delay_s

    def _look(self) -> None:
        """Bring the judgement up to now."""
        now, wall_ms = self._now(), self._clock.wall_ms()
        until = {bookie: now + (at - wall_ms) / 1000 for bookie, at in self._notes.exempt.items()}
        self.absence.expect((*self._cookies, *self._named))
        self.absence.observe(self.registered, now, until)

    def _of(self, mode: BookieMode) -> tuple[BookieId, ...]:
        found = self._sets[mode]
        return () if found is None else found.bookies

    def _changed(self, mode: BookieMode, found: BookieSet) -> None:
        known = self._sets[mode]
        if known is None or found.version >= known.version:
            self._sets[mode] = found
        self._is_stale = True
        self._look()
        self._tell()

    def _note_changed(self) -> None:
        self._is_stale = True
        self._tell()

    def _delay_changed(self) -> None:
        self._delay_written += 1
        self._is_stale = True
        self._tell()

    def _tell(self) -> None:
        for callback in list(self._listeners):
            callback()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _why_avoided(note: Note) -> str:
    return "it is to be emptied" if note.draining is not None else "it is in maintenance"
