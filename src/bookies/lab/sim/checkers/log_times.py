"""Checks of a log's retention and of searches by time, at the end of a run.

    retention  a removal is in the log's history, and its ledgers were allowed to go: by age, or because the later ones
               have the size or the rows of the limit; a cursor that it passes had not moved for `cursor_age`
    time       no entry in front of the position of a time was appended at that time or later, and none at or behind an
               end before it

Clocks of processes differ. A check excuses as much as the clocks of the run differ from the true time: `skews_ms`.
Source: docs/explanation/logs.md, "Times" and "Retention".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bookies.lab.sim.checkers.log_history import ListCommit, LogCheck, Truncation
from bookies.lab.sim.world.cluster import WALL_START_MS
from bookies.lab.sim.world.sim_metadata import SimStore
from bookies.protocol.log import Position
from bookies.protocol.log.log_model import Extent, Manifest
from bookies.protocol.log.retention import LogRemoval, parse_history

OPEN_MAX = 2  # ledgers at the end of a list, which are never removed


class Removal(NamedTuple):
    """A removal in the log's history, and the time and the author of its commit."""

    at_s: float
    author: str
    row: LogRemoval


def removals_of(store: SimStore, log: str, token: str) -> list[Removal]:
    """Return the removals in the history of a log."""
    removals: list[Removal] = []
    for commit in store.record_commits.get(f"log-history/{log}", []):
        for row in [] if commit.after is None else parse_history(log, token, commit.after):
            if all(row != removal.row for removal in removals):
                removals.append(Removal(commit.at_s, commit.author, row))
    return removals


def truncations_by(removals: list[Removal]) -> list[Truncation]:
    """Return the removals as truncations."""
    return [Truncation(removal.row.before, removal.at_s) for removal in removals]


class TimeCheck:
    """Checks that depend on clocks. `skews_ms`: how much the clocks of the run were ahead, at least and at most."""

    def __init__(self, check: LogCheck, removals: list[Removal], skews_ms: tuple[int, int]) -> None:
        self._check = check
        self._removals = removals
        self._behind_ms, self._ahead_ms = skews_ms
        self._at = {ack.payload: ack.position for ack in check.history.acks if ack.position is not None}
        self._at |= check.positions()

    # -- searches ------------------------------------------------------------------------------------------------
    def check_seeks(self) -> None:
        """Check "time"."""
        history = self._check.history
        acks_s = {ack.payload: ack.at_s for ack in history.acks}
        for seek in history.seeks:
            if seek.position is None:
                continue
            key = self._check.key(seek.position)
            what = f"{seek.position} for {seek.time_ms - WALL_START_MS:,.0f} ms, asked at {seek.began_s:.3f}:"
            beginning = self._beginning(seek.ended_s)
            for payload, position in self._at.items():
                if self._check.key(position) < beginning:
                    continue  # It may have been truncated before.
                begun_s, acked_s = history.begun_s[payload], acks_s.get(payload, float("inf"))
                is_before = self._check.key(position) < key
                if is_before and not seek.is_end and self._earliest_ms(begun_s) > seek.time_ms:
                    self._check.report("time", f"{what} {payload!r} before it was appended from {begun_s:.3f} on")
                is_missed = not is_before and self._latest_ms(acked_s) < seek.time_ms
                if is_missed and seek.is_end and not seek.is_stale and self._was_closed(position, seek.began_s):
                    self._check.report("time", f"the end {what} {payload!r} was acknowledged at {acked_s:.3f}")

    def _beginning(self, at_s: float) -> tuple[int, int]:
        """Return the key of the log's beginning at a moment."""
        lists = [commit.manifest for commit in self._check.commits if commit.at_s <= at_s and commit.manifest]
        firsts = [manifest.beginning for manifest in lists if manifest.beginning is not None]
        return max((self._check.key(Position(first.ledger_id, first.first)) for first in firsts[-1:]), default=(-1, 0))

    def _was_closed(self, position: Position, at_s: float) -> bool:
        """Report whether the ledger of an entry was closed then. Readers do not know all entries of an open one."""
        commits = self._check.store.commits.get(position.ledger_id, ())
        return any(commit.at_s < at_s and commit.after is not None and commit.after.is_closed for commit in commits)

    def _earliest_ms(self, at_s: float) -> float:
        """Return the earliest wall time that a clock of the run can have shown at a moment."""
        return WALL_START_MS + at_s * 1000 + self._behind_ms - 1

    def _latest_ms(self, at_s: float) -> float:
        return WALL_START_MS + at_s * 1000 + self._ahead_ms + 1

    # -- retention -----------------------------------------------------------------------------------------------
    def check_retention(self) -> None:
        """Check "retention"."""
        before: Manifest | None = None
        for commit in self._check.commits:
            for removal in self._removals:
                if removal[:2] == commit[:2] and before is not None:
                    self._check_removal(removal, before)
            before = commit.manifest

    def _check_removal(self, removal: Removal, before: Manifest) -> None:
        limits = dict(before.retention)
        # Ledgers do not tell it: since a roll-up, extents that stay may share one.
        first = before.find(removal.row.before)
        gone = [extent for extent in before.extents if first is not None and extent.seq < first.seq]
        kept = [extent for extent in before.extents if extent not in gone]
        reasons = [
            ("age" in removal.row.reasons and self._is_old(gone, removal, limits)),
            ("rows" in removal.row.reasons and sum(self._rows(kept)) >= limits.get("rows", 1 << 60)),
            ("size" in removal.row.reasons and sum(self._sizes(kept)) >= limits.get("size", 1 << 60)),
        ]
        text = f"{removal.author} removed what is before {removal.row.before} at {removal.at_s:.3f}"
        if not any(reasons):
            self._check.report("retention", f"{text} because of {removal.row.reasons}, with the limits {limits}")
        if not gone or len(kept) < OPEN_MAX or before.held:
            self._check.report("retention", f"{text}; of the log {len(kept)} ledgers are left")

    def _is_old(self, gone: list[Extent], removal: Removal, limits: Mapping[str, object]) -> bool:
        """Report whether all entries of the removed ledgers can have had the age by some clock."""
        age_ms = limits.get("age_ms")
        ledgers = {extent.ledger_id for extent in gone}
        youngest = (
            self._check.history.begun_s[payload]
            for payload, position in self._at.items()
            if position.ledger_id in ledgers
        )
        now_ms = self._latest_ms(removal.at_s)
        return isinstance(age_ms, int) and self._earliest_ms(max(youngest, default=0.0)) <= now_ms - age_ms

    def _rows(self, extents: list[Extent]) -> Iterator[int]:
        """Yield the entries of ledgers with an end. Those of open ones count for nothing."""
        for extent in extents:
            last = None if extent.last is None else self._check.end_of(extent.ledger_id)
            yield 0 if last is None else max(0, last + 1 - extent.first)

    def _sizes(self, extents: list[Extent]) -> Iterator[int]:
        for extent in extents:
            records = [commit.after for commit in self._check.store.commits.get(extent.ledger_id, ())]
            closed = [record.length for record in records if record and record.is_closed]
            yield 0 if extent.last is None or not closed else closed[-1]

    def may_pass(self, commit: ListCommit, cursor: str, moved_s: float) -> bool:
        """Report whether a commit of the list may pass a cursor that was moved last at this time."""
        for removal in self._removals:
            if removal[:2] == commit[:2] and cursor in removal.row.passed and commit.manifest is not None:
                age_ms = commit.manifest.retention.get("cursor_age_ms")
                return age_ms is not None and self._earliest_ms(moved_s) <= self._latest_ms(commit.at_s) - age_ms
        return False
