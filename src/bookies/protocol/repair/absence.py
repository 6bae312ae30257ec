"""Which bookies are away, and from when on a bookie that is away counts as lost.

A bookie is *expected* when it has a cookie or a ledger's record names it, and *away* when it is expected and not
registered. It is *lost* when it has been away without a break for the delay that operators have set, and after the
end of the maintenance that was announced for it, if there was one. Whatever comes back is neither, at once.

Several bookies away at the same time do not make the delay shorter. They mostly have one cause that passes: a rack
without power, a rolling restart, a store that was away itself and has given up every session. To copy what all of
them hold just then is the storm that the delay is there to prevent. What cannot wait is single ledgers, of which all
replicas but one are on bookies that are away: `is_endangered` finds those, and they are marked at once. While more
than half of the bookies are away not even that is done, and the delay is never shorter than `MASS_DELAY_S`, nor when
they come back one by one: then it is more probable that the store has lost them than that they are gone.

Time is data: seconds of one monotonic clock. Source: metadata 8.3 (the audit check; the delay that several lost
bookies skip there is kept here).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from bookies.model import BookieId, LedgerMetadata, fragments_of
from bookies.protocol.ledger.offload import is_given_up
from bookies.protocol.quorums.quorum import write_sets_of

NEVER = float("inf")
MASS_DELAY_S = 30.0
SETTLE_S = 1.0  # of any absence: a bookie that changes its mode may be in neither set for a moment
HURRY_S = 5.0  # of absences that together endanger ledgers, before anything is done about it
ENDANGERED_COUNT = 2  # bookies away that share entries; one alone is what the delay is about


class Absence:
    """The bookies of one cluster. Report with `expect` and `observe`, then ask."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self._expected: dict[BookieId, None] = {}
        self._since: dict[BookieId, float] = {}  # of those that are away
        self._maintenance: Mapping[BookieId, float] = {}  # until when
        self._declared: dict[BookieId, None] = {}  # away, and lost because somebody said so
        self._ended: dict[BookieId, tuple[float, float]] = {}  # of those that came back: their last absence
        self._mass_at = -NEVER  # when most bookies were away last

    def expect(self, bookies: Iterable[BookieId]) -> None:
        """These, and no others, are there or ought to be. `observe` comes next."""
        self._expected = dict.fromkeys(sorted(bookies))

    def observe(
        self, registered: Collection[BookieId], now: float, maintenance: Mapping[BookieId, float] | None = None
    ) -> None:
        """Who is registered now. `maintenance`: until when it does not matter that a bookie is away."""
        if maintenance is not None:
            self._maintenance = maintenance
        away = [bookie for bookie in self._expected if bookie not in registered]
        self._ended |= {bookie: (since, now) for bookie, since in self._since.items() if bookie in registered}
        self._since = {bookie: self._since.get(bookie, now) for bookie in away}
        self._declared = {bookie: None for bookie in self._declared if bookie in self._since}
        if self.is_mass:
            self._mass_at = now

    def declare(self, now: float) -> None:
        """Whoever is away now, outside a maintenance, is lost: somebody who knows does not want to wait."""
        self._declared.update(dict.fromkeys(each for each in self._since if not self.is_excused(each, now)))

    @property
    def away(self) -> list[BookieId]:
        return list(self._since)

    @property
    def is_mass(self) -> bool:
        """Whether more than half of the bookies are away."""
        return 2 * len(self._since) > len(self._expected)

    def away_since(self, bookie: BookieId) -> float | None:
        """Since when it is away; None: it is not, or nobody expects it."""
        return self._since.get(bookie)

    def is_away_for(self, bookie: BookieId, seconds: float, now: float) -> bool:
        """Whether it has been away for so long; of one that nobody expects that is so always."""
        return now >= self._since.get(bookie, -NEVER) + seconds

    def was_away_at(self, bookie: BookieId, when: float) -> bool:
        """Whether its last absence that has ended was then."""
        since, until = self._ended.get(bookie, (NEVER, NEVER))
        return since <= when <= until

    def is_excused(self, bookie: BookieId, now: float) -> bool:
        """Whether its maintenance lasts."""
        return now < self._maintenance.get(bookie, now)

    def lost_at(self, bookie: BookieId) -> float | None:
        """When it counts as lost unless it comes back; None: it is not away."""
        since = self._since.get(bookie)
        if since is None:
            return None
        if bookie in self._declared:
            return since
        settled_at = since + SETTLE_S
        if since <= self._mass_at:  # When they come back one by one, the last ones have not been away alone.
            settled_at = MASS_DELAY_S + (since if self.is_mass else self._mass_at)
        return max(since + self.delay_s, settled_at, self._maintenance.get(bookie, since))

    def lost(self, now: float) -> list[BookieId]:
        """Those that count as lost, sorted."""
        return [bookie for bookie in self._since if (self.lost_at(bookie) or 0.0) <= now]

    def next_loss(self, now: float) -> float | None:
        """When the next one that is away will count as lost; None: none will."""
        times = [when for bookie in self._since if (when := self.lost_at(bookie)) is not None and when > now]
        return min(times, default=None)

    def endangering(self, now: float) -> list[BookieId]:
        """Those whose absence together may endanger ledgers before the delay is over; none unless there are several."""
        away = [
            each for each, since in self._since.items() if now >= since + HURRY_S and not self.is_excused(each, now)
        ]
        return away if len(away) >= ENDANGERED_COUNT and not self.is_mass else []


def is_endangered(record: LedgerMetadata, away: Collection[BookieId]) -> bool:
    """Whether one replica of some entry is left, and several are on bookies that are away.

    With none left there is nothing to copy, and hurry does not help. An entry that a writer will yet add counts.
    """
    if is_given_up(record):
        return False
    size = record.ensemble_size
    # Of a ledger that is not closed the last fragment may receive entries of every write set.
    end = record.last_entry_id if record.is_closed else record.ensembles[-1][0] + size - 1
    for first, last, ensemble in fragments_of(record, end):
        if sum(bookie in away for bookie in ensemble) < ENDANGERED_COUNT:
            continue
        for members in write_sets_of(first, last, size, record.write_quorum):
            gone = sum(ensemble[position] in away for position in members)
            if gone >= ENDANGERED_COUNT and len(members) - gone == 1:
                return True
    return False


def due_in_s(interval_s: float, last_ms: int | None, now_ms: int) -> float | None:
    """In how many seconds a check is due that is to be made at this interval; None: never (0).

    `last_ms`: wall clock of the last one; None: there was none. A clock that was turned back makes no check wait for
    longer than the interval.
    """
    if interval_s <= 0:
        return None
    if last_ms is None:
        return 0.0
    elapsed_s = max(0.0, (now_ms - last_ms) / 1000)
    return max(0.0, interval_s - elapsed_s)
