"""Work of a drain: what is finished, in progress and blocked, and the figures for those who wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from bookies.client.repair.replication import Totals
from bookies.protocol.repair.drain import Forecast, Portion

LOCKED = "whoever is repairing it"  # part of the text that the drain's note stores


class Blocked(Struct, frozen=True):
    """Entries first..last of a ledger that cannot be moved from the bookie now; `last` -1: all from `first` on.

    cause, reason: the kind of obstacle, and its text.
    can_be_sealed: sealing the ledger would help.
    """

    ledger_id: int
    first: int
    last: int
    cause: str
    reason: str
    can_be_sealed: bool = False


class DrainProgress(Struct, frozen=True):
    """Progress of a drain.

    size_done, size: bytes, estimated.
    waits_for: ledgers that cannot be moved now, with the first obstacle of each.
    trouble: error of the metadata store since its last answer.
    """

    ledgers_done: int
    ledgers: int
    entries: int
    size_done: int
    size: int
    remaining_s: float | None
    waits_for: Sequence[Blocked] = ()
    trouble: str | None = None


class DrainWork:
    """Work of one drain, by ledger.

    total: all portions, finished or not.
    busy: portions in progress here, and what was copied of them.
    done: copied by finished repairs.
    marked: ledgers that still lack replicas for another reason.
    """

    def __init__(self, portions: Sequence[Portion] = (), expected_to_wait: Sequence[Blocked] = ()) -> None:
        self.total = {portion.ledger_id: portion for portion in portions}
        self.finished: dict[int, Portion] = {}
        self.blocked: dict[int, list[Blocked]] = {}
        self.busy: dict[int, tuple[Portion, Totals]] = {}
        self.done = Totals()
        self.marked: dict[int, None] = {}
        self._expected_to_wait = dict.fromkeys(blocked.ledger_id for blocked in expected_to_wait)  # by the plan

    @property
    def left(self) -> list[Portion]:
        return [portion for ledger_id, portion in self.total.items() if ledger_id not in self.finished]

    @property
    def copies(self) -> list[Totals]:
        """Return the totals of finished repairs, and of each one in progress."""
        return [self.done, *(totals for _, totals in self.busy.values())]

    def settle(self, done: Sequence[Portion], left: Mapping[int, Portion]) -> None:
        """Apply a new listing of the records: finish ledgers that others have moved, and add new ones."""
        for portion in done:
            if portion.ledger_id not in left:
                self.finish(portion)
        for ledger_id, portion in left.items():
            self.finished.pop(ledger_id, None)
            self.total.setdefault(ledger_id, portion)

    def finish(self, portion: Portion) -> None:
        self.finished[portion.ledger_id] = portion
        self.blocked.pop(portion.ledger_id, None)

    def progress(self, forecast: Forecast, now: float, owed_s: float, trouble: str | None) -> DrainProgress:
        """Return the progress. `owed_s`: seconds that the rate limit adds; `trouble`: error of the metadata store."""
        in_progress = [pair for pair in self.busy.values() if pair[0].ledger_id not in self.finished]
        size_done = sum(portion.size for portion in self.finished.values())
        shares = [min(1.0, totals.size / portion.size) if portion.size else 0.0 for portion, totals in in_progress]
        size_done += round(sum(share * portion.size for share, (portion, _) in zip(shares, in_progress, strict=True)))
        entries = sum(totals.entries for totals in self.copies)
        sizes = [portion.size for ledger_id, portion in self.total.items() if not self._waits(ledger_id)]
        forecast.set_work(len(sizes), sum(sizes))
        remaining_s = forecast.remaining_s(len(self.finished) + sum(shares), size_done, now, owed_s)
        waits_for = [blocked[0] for blocked in self.blocked.values()]
        size = sum(portion.size for portion in self.total.values())
        return DrainProgress(
            len(self.finished), len(self.total), entries, size_done, size, remaining_s, waits_for, trouble
        )

    def _waits(self, ledger_id: int) -> bool:
        if ledger_id in self.finished or ledger_id in self.busy:
            return False
        blocked = self.blocked.get(ledger_id)
        if blocked is None:
            return ledger_id in self._expected_to_wait
        # A lock ends soon, with its holder's session at the latest. Then the ledger has been copied, or is copied here.
        return any(obstacle.cause != LOCKED for obstacle in blocked)


def described(progress: DrainProgress, *, goes_on: bool = True) -> str:
    """Return the progress as a line of text."""
    text = f"{progress.ledgers_done:,} of {progress.ledgers:,} ledgers, {progress.entries:,} entries copied"
    if progress.remaining_s is not None and goes_on:
        text += f", about {progress.remaining_s:,.0f} s left"
    if progress.waits_for:
        text += f"; {len(progress.waits_for):,} ledgers wait, {progress.waits_for[0].ledger_id} for "
        text += progress.waits_for[0].cause
    return text
