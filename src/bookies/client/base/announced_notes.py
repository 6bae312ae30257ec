"""Bookies that operators put into maintenance or drain: they receive no new data.

The notes are read before a client first chooses bookies, and again after the record changes. A failed read counts as
"no notes": notes must never keep a cluster from working. Source: pains 34 and 38.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from bookies.errors import MetadataError
from bookies.metadata.interface import MetadataDriver, Watch
from bookies.metadata.shared import BookieNotes
from bookies.metadata.shared.bookie_notes import Notes
from bookies.model import BookieId


class MaintenanceNotes:
    """The operators' notes on bookies, for one client. `on_change`: called when `learn` has something to read."""

    def __init__(self, driver: MetadataDriver, wall_ms: Callable[[], int], on_change: Callable[[], None]) -> None:
        self._reader = BookieNotes(driver, wall_ms)
        self._wall_ms = wall_ms
        self._on_change = on_change
        self._notes = Notes()
        self._watch: Watch | None = None
        self._is_stale = True

    def avoided(self) -> Mapping[BookieId, str]:
        """Return the bookies that must get no new data now, and why.

        Leases that have expired since the notes were read do not count.
        """
        notes = self._notes.by_bookie
        if not notes:
            return {}
        now_ms = self._wall_ms()
        return {
            bookie: note.why_avoided
            for bookie, note in notes.items()
            if note.draining is not None or (note.maintenance is not None and note.maintenance.until_ms > now_ms)
        }

    def leaving(self) -> Collection[BookieId]:
        """Return the bookies that are to be emptied."""
        return self._notes.draining

    async def learn(self) -> None:
        """Read the notes unless they are current. If the store does not answer, the next call tries again."""
        if not self._is_stale:
            return
        self._is_stale = False
        try:
            notes = await self._reader.read()
        except MetadataError:
            self._is_stale = True
            return
        except BaseException:
            self._is_stale = True
            raise
        if self._watch is None or notes.version != self._notes.version:
            self.stop()
            self._watch = self._reader.watch(notes, self._changed)
        self._notes = notes

    def stop(self) -> None:
        """Stop watching. Idempotent."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _changed(self) -> None:
        self._is_stale = True
        self._on_change()
