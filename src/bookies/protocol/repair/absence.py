"""Absence of bookies: which are away, and when an absent bookie counts as lost.

A bookie is *expected* when it has a cookie or a ledger's record names it. It is *away* when it is expected and not
registered. It is *lost* when it has been away without a break for the configured delay, and any announced maintenance
has ended. A bookie that returns is neither, at once.

Several bookies away at the same time do not shorten the delay. They mostly have one transient cause: a rack without
power, a rolling restart, an outage of the metadata store that ended every session. Copying all their entries then is
the storm that the delay prevents. Only ledgers with all replicas but one on bookies that are away cannot wait:
`is_endangered` finds them, and they are marked at once. While more than half of the bookies are away, even these are
not marked, and the delay is at least `MASS_DELAY_S`, also while the bookies return one by one: it is more likely that
the store has lost their registrations than that the bookies are lost.

Time is data: seconds of one monotonic clock. Source: metadata 8.3 (the audit check; several lost bookies skip the delay
there, but not here).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from bookies.model import BookieId, LedgerMetadata, fragments_of
from bookies.protocol.ledger.offload import is_given_up
from bookies.protocol.quorums.quorum import write_sets_of

NEVER = float("inf")
MASS_DELAY_S = 30.0
HURRY_S = 5.0  # minimum of absences that together endanger ledgers, before those ledgers are marked
ENDANGERED_COUNT = 2  # bookies away that share entries; a single one waits for the delay


class Absence:
    """Absences in one cluster. Report the bookies with `expect` and `observe`, then query.

    settle_s: minimum of any absence. A bookie of Apache's that changes its mode is in neither set for a moment.
    """

    def __init__(self, delay_s: float, settle_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self._settle_s = settle_s
        self._expected: dict[BookieId, None] = {}
        self._since: dict[BookieId, float] = {}  # of those that are away
        self._maintenance: Mapping[BookieId, float] = {}  # end of each
        self._declared: dict[BookieId, None] = {}  # away, and declared lost
        self._ended: dict[BookieId, tuple[float, float]] = {}  # last absence of those that returned
        self._mass_at = -NEVER  # last time at which most bookies were away

    def expect(self, bookies: Iterable[BookieId]) -> None:
        """Set the bookies that are expected. Call `observe` next."""
        self._expected = dict.fromkeys(sorted(bookies))

    def observe(
        self, registered: Collection[BookieId], now: float, maintenance: Mapping[BookieId, float] | None = None
    ) -> None:
        """Set the bookies that are registered now. `maintenance`: time until which a bookie's absence is excused."""
        if maintenance is not None:
            self._maintenance = maintenance
        away = [bookie for bookie in self._expected if bookie not in registered]
        self._ended |= {bookie: (since, now) for bookie, since in self._since.items() if bookie in registered}
        self._since = {bookie: self._since.get(bookie, now) for bookie in away}
        self._declared = {bookie: None for bookie in self._declared if bookie in self._since}
        if self.is_mass:
            self._mass_at = now

    def declare(self, now: float) -> None:
        """Declare every bookie lost that is away now outside a maintenance: an operator skips the delay."""
        self._declared.update(dict.fromkeys(bookie for bookie in self._since if not self.is_excused(bookie, now)))

    @property
    def away(self) -> list[BookieId]:
        return list(self._since)

    @property
    def is_mass(self) -> bool:
        """Report whether more than half of the bookies are away."""
        return 2 * len(self._since) > len(self._expected)

    def away_since(self, bookie: BookieId) -> float | None:
        """Return the start of a bookie's absence; None: it is not away, or not expected."""
        return self._since.get(bookie)

    def is_away_for(self, bookie: BookieId, seconds: float, now: float) -> bool:
        """Report whether a bookie has been away for this time; always true for one that is not expected."""
        return now >= self._since.get(bookie, -NEVER) + seconds

    def was_away_at(self, bookie: BookieId, when: float) -> bool:
        """Report whether the bookie's last completed absence included this time."""
        since, until = self._ended.get(bookie, (NEVER, NEVER))
        return since <= when <= until

    def is_excused(self, bookie: BookieId, now: float) -> bool:
        """Report whether the bookie is under maintenance."""
        return now < self._maintenance.get(bookie, now)

    def lost_at(self, bookie: BookieId) -> float | None:
        """Return when the bookie counts as lost unless it returns; None: it is not away."""
        since = self._since.get(bookie)
        if since is None:
            return None
        if bookie in self._declared:
            return since
        settled_at = since + self._settle_s
        if since <= self._mass_at:  # Bookies return one by one, but the last of them were part of the mass absence.
            settled_at = MASS_DELAY_S + (since if self.is_mass else self._mass_at)
        return max(since + self.delay_s, settled_at, self._maintenance.get(bookie, since))

    def lost(self, now: float) -> list[BookieId]:
        """Return the bookies that count as lost, sorted."""
        return [bookie for bookie in self._since if (self.lost_at(bookie) or 0.0) <= now]

    def next_loss(self, now: float) -> float | None:
        """Return when the next absent bookie will count as lost; None: none will."""
        times = [when for bookie in self._since if (when := self.lost_at(bookie)) is not None and when > now]
        return min(times, default=None)

    def endangering(self, now: float) -> list[BookieId]:
        """Return the bookies whose joint absence may endanger ledgers before the delay is over: none, or several."""
        away = [
            bookie
            for bookie, since in self._since.items()
            if now >= since + HURRY_S and not self.is_excused(bookie, now)
        ]
        return away if len(away) >= ENDANGERED_COUNT and not self.is_mass else []


def is_endangered(record: LedgerMetadata, away: Collection[BookieId]) -> bool:
    """Report whether some entry has one replica left, and several on bookies that are away.

    An entry with none left cannot be copied, so haste does not help. Entries that a writer may yet add count.
    """
    if is_given_up(record):
        return False
    size = record.ensemble_size
    # The last fragment of a ledger that is not closed may receive entries of every write set.
    end = record.last_entry_id if record.is_closed else record.ensembles[-1][0] + size - 1
    for first, last, ensemble in fragments_of(record, end):
        if sum(bookie in away for bookie in ensemble) < ENDANGERED_COUNT:
            continue
        for members in write_sets_of(first, last, size, record.write_quorum):
            away_count = sum(ensemble[position] in away for position in members)
            if away_count >= ENDANGERED_COUNT and len(members) - away_count == 1:
                return True
    return False


def due_in_s(interval_s: float, last_ms: int | None, now_ms: int) -> float | None:
    """Return in how many seconds a periodic check is due; None: never (interval 0).

    `last_ms`: wall clock of the last check; None: there was none. A clock that was set back delays a check by at most
    the interval: a check that lies further in the future than that has been noted by a clock that was wrong.
    """
    if interval_s <= 0:
        return None
    if last_ms is None:
        return 0.0
    elapsed_s = (now_ms - last_ms) / 1000
    return 0.0 if abs(elapsed_s) >= interval_s else interval_s - max(0.0, elapsed_s)
