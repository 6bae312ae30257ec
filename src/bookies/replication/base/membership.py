"""Cluster membership as auto-recovery sees it: registered bookies, absent bookies, and those that count as lost.

The auditor and the worker of a process share one object. It watches the two sets of registered bookies and the delay.
On a change it reads the cookies and the notes about single bookies, and notifies its listeners. The decisions are
those of `protocol/repair/absence.py`. Source: metadata 8.2 and 8.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from bookies.config import RecoveryConfig
from bookies.errors import MetadataCorrupt
from bookies.metadata.interface import MetadataDriver, Watch
from bookies.metadata.interface.driver import BookieSet
from bookies.metadata.shared import BookieNotes
from bookies.metadata.shared.bookie_notes import Notes
from bookies.model import BookieId, BookieMode
from bookies.protocol.repair.absence import HURRY_S, Absence
from bookies.protocol.repair.repair_work import Circumstances
from bookies.runtime.events import Events
from bookies.runtime.ports import Clock


class _KnownNotes:
    """Notes about single bookies as last read, watched for changes, and which bookies were to be emptied, and when."""

    def __init__(self, reader: BookieNotes, on_change: Callable[[], None]) -> None:
        self.current = Notes()
        self.emptied: dict[BookieId, tuple[float, float]] = {}  # bookies no longer to be emptied, and when they were
        self._emptying: dict[BookieId, float] = {}  # bookies to be emptied, and when this process first saw that
        self._reader = reader
        self._on_change = on_change
        self._watch: Watch | None = None

    async def read(self) -> None:
        """Read the notes; afterwards they are not older than the call. Raises `MetadataError`."""
        notes = await self._reader.read()
        if self._watch is None or notes.version != self.current.version:
            self.stop()
            self._watch = self._reader.watch(notes, self._on_change)
        self.current = notes
        now = _now()
        self.emptied |= {
            bookie: (since, now) for bookie, since in self._emptying.items() if bookie not in notes.draining
        }
        self._emptying = {bookie: self._emptying.get(bookie, now) for bookie in notes.draining}

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None


class _StoredDelay:
    """The lost-bookie delay in the store. `triggered`: how often it was written unchanged, which requests an audit."""

    def __init__(self, driver: MetadataDriver, events: Events) -> None:
        self.triggered = 0
        self._driver = driver
        self._events = events
        self._written = -1  # calls of the watch since the last read; the first call is not a change
        self._seen: int | None = None

    def written(self) -> None:
        self._written += 1

    async def read(self, absence: Absence) -> None:
        """Read the delay, and let it apply if the store has one that can be read. Raises `MetadataError`."""
        try:
            delay_s = await self._driver.recovery.lost_bookie_delay_s()
        except MetadataCorrupt as error:
            self._events.error("delay.unreadable", kept_s=absence.delay_s, error=error)
            return
        if self._written > 0:
            self._written = 0
            self.triggered += delay_s == self._seen
        self._seen = delay_s
        if delay_s is not None:
            absence.delay_s = delay_s


class Membership:
    """Membership of a cluster's bookies.

    config: has the lost-bookie delay until the store's own is read, and the minimum of any absence.
    writes_delay: write the delay to the store if the store has none.
    """

    def __init__(
        self,
        driver: MetadataDriver,
        clock: Clock,
        config: RecoveryConfig,
        events: Events,
        *,
        writes_delay: bool = True,
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._delay_s = config.lost_bookie_delay_s
        self._writes_delay = writes_delay
        self._notes = _KnownNotes(BookieNotes(driver, clock.wall_ms), self._note_changed)
        self._delay = _StoredDelay(driver, events)
        self.absence = Absence(config.lost_bookie_delay_s, config.lost_bookie_settle_ms / 1000)
        self._sets: dict[BookieMode, BookieSet | None] = dict.fromkeys(BookieMode)
        self._cookies: tuple[BookieId, ...] = ()
        self._named: tuple[BookieId, ...] = ()  # named by records, perhaps without a cookie
        self._marked: tuple[BookieId, ...] = ()  # the same by marks
        self._watches: list[Watch] = []
        self._listeners: dict[Callable[[], None], None] = {}
        self._is_stale = True  # a change has to be read

    async def start(self) -> None:
        """Begin to watch; the state is complete when it returns. Raises `MetadataError`."""
        if self._writes_delay:
            await self._driver.recovery.init_lost_bookie_delay_s(self._delay_s)
        for mode in BookieMode:
            self._sets[mode] = await self._driver.bookies(mode)
            self._watches.append(self._driver.watch_bookies(mode, partial(self._changed, mode)))
        self._watches.append(self._driver.recovery.watch_lost_bookie_delay(self._delay_changed))
        await self.refresh()

    def stop(self) -> None:
        for watch in self._watches:
            watch.cancel()
        self._watches.clear()
        self._notes.stop()

    def listen(self, callback: Callable[[], None]) -> None:
        self._listeners[callback] = None

    def unlisten(self, callback: Callable[[], None]) -> None:
        self._listeners.pop(callback, None)

    # -- state ---------------------------------------------------------------------------------------------------
    @property
    def triggered(self) -> int:
        """Return how many audits were requested by writing the delay unchanged."""
        return self._delay.triggered

    @property
    def writable(self) -> tuple[BookieId, ...]:
        return self._of(BookieMode.WRITABLE)

    @property
    def targets(self) -> list[BookieId]:
        """Return the bookies that can be copied to."""
        return [bookie for bookie in self.writable if bookie not in self._notes.current.by_bookie]

    @property
    def registered(self) -> frozenset[BookieId]:
        """Return the registered bookies of both modes. For membership tests: the order is arbitrary."""
        return frozenset((*self.writable, *self._of(BookieMode.READ_ONLY)))

    @property
    def draining(self) -> list[BookieId]:
        """Return the bookies that are to be emptied."""
        return list(self._notes.current.draining)

    def announced(self, named: Collection[BookieId]) -> dict[BookieId, str]:
        """Return the bookies in maintenance, and those of `named` that are to be emptied; with the reason."""
        now_ms = self._clock.wall_ms()
        return {
            bookie: note.why_avoided
            for bookie, note in self._notes.current.by_bookie.items()
            if (note.maintenance is not None and note.maintenance.until_ms > now_ms)
            or (note.draining is not None and bookie in named)
        }

    def circumstances(
        self,
        named: Iterable[BookieId] = (),
        claimed: Iterable[BookieId] = (),
        declared: Collection[BookieId] = (),
    ) -> Circumstances:
        """Return the states of bookies for a repair.

        named: bookies that other processes consider lost; they are, if they are neither registered nor excused.
        claimed: likewise, but named by marks alone.
        declared: bookies that the operator declares lost; this overrides an announced maintenance.
        """
        self._update()
        now, registered = _now(), self.registered
        away = self.absence.away
        excused = [bookie for bookie in away if self.absence.is_excused(bookie, now) and bookie not in declared]
        named = *self.absence.lost(now), *named, *declared
        known = [bookie for bookie in named if bookie not in (*registered, *excused)]
        only_claimed = [bookie for bookie in claimed if bookie not in (*registered, *excused, *known)]
        lost = dict.fromkeys([*known, *only_claimed])
        unwanted = {bookie: note.why_avoided for bookie, note in self._notes.current.by_bookie.items()}
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
        """Return the bookies that have not been registered for `HURRY_S`, or are not expected: no mere restart."""
        self._update()
        now, registered = _now(), self.registered
        return [
            bookie for bookie in bookies if bookie not in registered and self.absence.is_away_for(bookie, HURRY_S, now)
        ]

    def away_when_marked(self, seen: Mapping[BookieId, float]) -> list[BookieId]:
        """Return the bookies named by a mark that an auditor may have considered lost, and that are still away.

        `seen`: loop time at which the mark was first seen to name each. A bookie that was registered then or later had
        lost entries, was to be emptied, or has returned since. If it has returned since the mark was written, only the
        lost-bookie delay applies to its present absence. The absence of a bookie that only marks name is noted after
        them, so it says nothing about that.
        """
        claimed, known = [], {*self._cookies, *self._named}
        for bookie in self.long_away(bookie for bookie in seen if bookie not in self._notes.current.draining):
            since = self.absence.away_since(bookie)
            if since is None or since <= seen[bookie] or bookie not in known:
                claimed.append(bookie)
        return claimed

    def may_lack(
        self, named: Collection[BookieId], marked_ms: int | None, seen: Mapping[BookieId, float] | None = None
    ) -> dict[BookieId, bool]:
        """Return the bookies named by a mark that are registered, not leaving, and may lack entries.

        The value is True if the mark may have a reason other than the bookie's absence.

        marked_ms: when the mark last grew, by its writer's wall clock; None, 0: unknown.
        seen: loop time at which the mark was first seen to name each bookie. If the mark names several, one may have
            been added much earlier; so each must have been away at this time too.
        """
        self._update()
        when = _now() + ((marked_ms or 0) - self._clock.wall_ms()) / 1000
        registered, leaving = self.registered, self._notes.current.draining
        suspects = {}
        for bookie in named:
            if bookie in registered and bookie not in leaving:
                began, ended = self._notes.emptied.get(bookie, (when + 1, when + 1))
                was_away = self.absence.was_away_at(bookie, when)
                if len(named) > 1:
                    seen_at = None if seen is None else seen.get(bookie)
                    was_away = was_away and seen_at is not None and self.absence.was_away_at(bookie, seen_at)
                suspects[bookie] = not (was_away or began <= when <= ended)
        return suspects

    async def settle(self, bookies: Iterable[BookieId]) -> None:
        """Wait at most `HURRY_S` until those of these bookies that stay away are `long_away`.

        For callers that have just begun to watch. A bookie that others report as lost may be starting at this moment.
        """
        self._update()
        now, registered = _now(), self.registered
        starts = [self.absence.away_since(bookie) for bookie in bookies if bookie not in registered]
        wait_s = max((HURRY_S - (now - start) for start in starts if start is not None), default=0.0)
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def lost(self) -> list[BookieId]:
        self._update()
        return self.absence.lost(_now())

    def lost_or_draining(self) -> dict[BookieId, object]:
        """Return the bookies whose ledgers need marks, each with what identifies the reason: the start of its absence
        if it is lost, otherwise its draining."""
        lost: dict[BookieId, object] = {bookie: self.absence.away_since(bookie) for bookie in self.lost()}
        draining = self._notes.current.draining
        return lost | {bookie: note.since_ms for bookie, note in draining.items() if bookie not in lost}

    def next_loss_s(self) -> float | None:
        """Return in how many seconds another bookie will count as lost; None: none will."""
        self._update()
        when = self.absence.next_loss(_now())
        return None if when is None else max(0.0, when - _now())

    # -- changes -------------------------------------------------------------------------------------------------
    async def refresh(self, *, is_forced: bool = False) -> None:
        """Read what cannot be watched, if there was a change since the last read. Raises `MetadataError`."""
        if not (self._is_stale or is_forced):
            return
        self._is_stale = False
        try:
            self._cookies = (await self._driver.all_bookies()).bookies
            await self.read_notes()
            await self._delay.read(self.absence)
        except BaseException:
            self._is_stale = True
            raise
        self._update()

    def note_named(self, bookies: Collection[BookieId]) -> None:
        """Set the bookies that ledgers' records name, with or without a cookie."""
        self._named = tuple(sorted(bookies))
        self._update()

    def note_marked(self, bookies: Collection[BookieId]) -> None:
        """Set the bookies that marks name. Only an auditor reads the records, and it may be one of Apache's."""
        self._marked = tuple(sorted(bookies))
        self._update()

    @property
    def notes_version(self) -> int:
        """Return the version of the known notes about single bookies."""
        return self._notes.current.version

    async def knows_new_drains(self) -> bool:
        """Read the notes, and report whether other bookies are to be emptied than before. Raises `MetadataError`.

        A mark may name a bookie that is to be emptied. It must not be deleted by a process that did not know that.
        """
        before = self.draining
        await self.read_notes()
        return self.draining != before

    async def read_notes(self) -> None:
        """Read the notes about single bookies; afterwards they are not older than the call. Raises `MetadataError`."""
        await self._notes.read()

    def _update(self) -> None:
        """Update the absences to the present time."""
        now, wall_ms = _now(), self._clock.wall_ms()
        until = {bookie: now + (at - wall_ms) / 1000 for bookie, at in self._notes.current.exempt.items()}
        self.absence.expect((*self._cookies, *self._named, *self._marked))
        self.absence.observe(self.registered, now, until)

    def _of(self, mode: BookieMode) -> tuple[BookieId, ...]:
        known = self._sets[mode]
        return () if known is None else known.bookies

    def _changed(self, mode: BookieMode, bookies: BookieSet) -> None:
        known = self._sets[mode]
        if known is None or bookies.version >= known.version:
            self._sets[mode] = bookies
        self._is_stale = True
        self._update()
        self._notify()

    def _note_changed(self) -> None:
        self._is_stale = True
        self._notify()

    def _delay_changed(self) -> None:
        self._delay.written()
        self._is_stale = True
        self._notify()

    def _notify(self) -> None:
        for callback in list(self._listeners):
            callback()


def _now() -> float:
    return asyncio.get_running_loop().time()
