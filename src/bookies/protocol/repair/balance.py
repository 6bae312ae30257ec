"""Balance plan: which fragments to move so that bookies hold data in proportion to their capacity. Without IO.

A bookie's *share* is what it would hold if all bookies held the same fraction of their capacity. Its *slack* is the
tolerance, a fraction of the share, or `size_min` bytes if that is more. Bookies above their share by more than the
slack give first, the largest excess first, to the emptiest bookies. Then bookies below their share by more than the
slack receive from those above it. So bookies that are all slightly too full fill an empty one.

A bookie gives its largest fragment that neither lifts the taker above its share nor drops the giver below its own. So
every move brings two bookies nearer to their shares, no replica moves twice, and two bookies never exchange replicas in
turn. An automatic balance begins only at twice the tolerance at which it ends, so that small changes start nothing.

Source: pains 27.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from bookies.model import BookieId, Ensemble
from bookies.protocol.repair.fragments import Fragment

OFFERS_MAX = 50_000  # replicas of all givers; a plan of more would need too much memory beside a bookie
REFUSALS_MAX = 200  # replicas of a bookie that placement refuses for a taker at a time; then another taker is tried


class Movable(Struct, frozen=True):
    """Replica of a finished fragment. `size`: bytes that the bookie at this position holds. `is_closed`: its ledger."""

    fragment: Fragment
    position: int
    size: int
    is_closed: bool = True


class BalanceMove(Struct, frozen=True):
    """Move of one replica, `size` bytes, from one bookie to another. `first`: the fragment's first entry."""

    ledger_id: int
    first: int
    position: int
    source: BookieId
    target: BookieId
    size: int


class BalancePlan(Struct, frozen=True):
    """Moves of a balance.

    before, after, shares (the ideal): bytes by bookie that takes part.
    excluded: why the other bookies neither give nor receive.
    obstacle: why an automatic balance moves nothing; None: it may move replicas.
    tolerance, size_min: the slack of a bookie.
    is_partial: there were too many replicas for one plan; the next one continues.
    read_rates: bytes per second that clients read, by bookie that reports it.
    relieves: the moves relieve bookies that are read much more than others.
    """

    moves: Sequence[BalanceMove]
    before: Mapping[BookieId, int]
    after: Mapping[BookieId, int]
    shares: Mapping[BookieId, float]
    excluded: Mapping[BookieId, str] = {}
    obstacle: str | None = None
    tolerance: float = 0.0
    size_min: int = 0
    is_partial: bool = False
    read_rates: Mapping[BookieId, int] = {}
    relieves: bool = False

    @property
    def size(self) -> int:
        """Return the bytes to move."""
        return sum(move.size for move in self.moves)

    @property
    def imbalance(self) -> float:
        """Return the largest deviation of a bookie from its share, before the moves, as a fraction of the share."""
        return max((abs(self.before[b] - share) / share for b, share in self.shares.items() if share), default=0.0)

    def reasons(self) -> dict[BookieId, str]:
        """Return what each bookie will do, or why it stands still."""
        gives = Counter(move.source for move in self.moves)
        takes = Counter(move.target for move in self.moves)
        reasons = dict(self.excluded)
        for bookie, share in self.shares.items():
            excess = self.after[bookie] - share
            if gives[bookie] or takes[bookie]:
                verb = "gives" if gives[bookie] else "receives"
                why = ", because clients read much from it" if gives[bookie] and self.relieves else ""
                reasons[bookie] = f"{verb} {gives[bookie] or takes[bookie]:,} replicas{why}"
            elif abs(excess) <= slack_of(share, self.tolerance, self.size_min):
                reasons[bookie] = "holds its share, within the tolerance"
            elif excess > 0:
                reasons[bookie] = (
                    "holds too much, but no replica can move: each is of an unfinished fragment, larger than what is "
                    "to move, on each possible target already, or would be placed less well there"
                )
            else:
                reasons[bookie] = "holds too little, but no replica of another bookie can move to it"
        return reasons


def obstacle_of(
    is_enabled: bool,
    missing: Collection[BookieId],
    marked: Sequence[int],
    announced: Mapping[BookieId, str],
    owing: Collection[BookieId] = (),
) -> str | None:
    """Return why an automatic balance moves nothing; None: it may.

    is_enabled: the switch of auto-recovery.
    missing: bookies that ledgers name and that are not registered.
    marked: some of the ledgers that auto-recovery has to repair.
    announced: why operators do not want data moved, by bookie.
    owing: bookies that have lost entries, and have not fetched them, or whose directories have failed.
    """
    if not is_enabled:
        return "auto-recovery is disabled; `bk recovery enable` allows it"
    if missing:
        return f"ledgers lack replicas: {', '.join(sorted(missing)[:3])} not registered"
    if marked:
        return f"ledger {marked[0]} is marked for a repair; `bk recovery why {marked[0]}` shows it"
    if owing:
        bookie = min(owing)
        return (
            f"ledgers lack replicas: {bookie} has lost entries; `bk bookie owed --bookie {bookie}` shows how many, and "
            f"`bk bookie disks --bookie {bookie}` whether a directory has failed"
        )
    return next((f"{bookie}: {why}" for bookie, why in announced.items()), None)


def shares_of(held: Mapping[BookieId, int], room: Mapping[BookieId, int]) -> dict[BookieId, float]:
    """Return each bookie's share of what they hold together. `room`: capacity in bytes; equal shares if all are 0."""
    total = sum(held.get(bookie, 0) for bookie in room)
    whole = sum(room.values())
    return {bookie: total * (size / whole if whole else 1 / len(room)) for bookie, size in room.items()}


def slack_of(share: float, tolerance: float, size_min: int) -> float:
    """Return the bytes by which a bookie may deviate from its share."""
    return max(share * tolerance, size_min)


class MovedEnsembles:
    """Ensembles of fragments after the moves of a plan so far."""

    def __init__(self) -> None:
        self._ensembles: dict[tuple[int, int], Ensemble] = {}

    def of(self, fragment: Fragment) -> Ensemble:
        return self._ensembles.get((fragment.ledger_id, fragment.first), fragment.ensemble)

    def with_target(self, replica: Movable, target: BookieId) -> Ensemble:
        """Return the ensemble with the target in the replica's position."""
        ensemble = self.of(replica.fragment)
        return (*ensemble[: replica.position], target, *ensemble[replica.position + 1 :])

    def move(self, replica: Movable, source: BookieId, target: BookieId) -> BalanceMove:
        """Move a replica; return the move."""
        fragment = replica.fragment
        self._ensembles[fragment.ledger_id, fragment.first] = self.with_target(replica, target)
        return BalanceMove(fragment.ledger_id, fragment.first, replica.position, source, target, replica.size)


class Balancer:
    """Plans a balance, move by move.

    held: bytes by bookie.
    room: capacity in bytes of the bookies that take part.
    tolerance, size_min: slack, as a fraction of the share and in bytes.
    worsens: reports whether a fragment with this ensemble instead of its own would be placed less well.
    """

    def __init__(
        self,
        held: Mapping[BookieId, int],
        room: Mapping[BookieId, int],
        tolerance: float,
        *,
        size_min: int = 0,
        worsens: Callable[[Fragment, Ensemble], bool] = lambda fragment, ensemble: False,
    ) -> None:
        self.before = {bookie: held.get(bookie, 0) for bookie in room}
        self.shares = shares_of(held, room) if room else {}
        self.after = dict(self.before)
        self.tolerance = tolerance
        self.size_min = size_min
        self._worsens = worsens
        self._waiting: dict[BookieId, list[Movable]] = {bookie: [] for bookie in self._givers()}
        self._moved = MovedEnsembles()
        self._taken: dict[BookieId, set[int]] = {bookie: set() for bookie in self._waiting}  # indexes of replicas
        self._tried: dict[tuple[BookieId, BookieId], int] = {}  # by giver and taker: the last index that was tried
        self._stuck: dict[BookieId, None] = {}
        self._offers_max = OFFERS_MAX // max(1, len(self._waiting))
        self._is_partial = False

    def _excess(self, bookie: BookieId) -> float:
        return self.after[bookie] - self.shares[bookie]

    def _slack(self, bookie: BookieId) -> float:
        return slack_of(self.shares[bookie], self.tolerance, self.size_min)

    def _fullest(self) -> list[BookieId]:
        return sorted(self.shares, key=lambda bookie: (-self._excess(bookie), bookie))

    def _givers(self) -> list[BookieId]:
        """Return the bookies that may have to give."""
        is_one_empty = any(-self._excess(bookie) > self._slack(bookie) for bookie in self.shares)
        return [
            bookie for bookie in self._fullest() if self._excess(bookie) > (0 if is_one_empty else self._slack(bookie))
        ]

    def deviates(self, tolerance: float) -> bool:
        """Report whether a bookie deviates from its share by more than the slack with this tolerance."""
        return any(
            abs(self._excess(bookie)) > slack_of(share, tolerance, self.size_min)
            for bookie, share in self.shares.items()
        )

    def offer(self, replica: Movable, bookie: BookieId) -> None:
        """Add a bookie's replica that may move; those of bookies that do not give are ignored."""
        waiting = self._waiting.get(bookie)
        if waiting is None or not replica.size:
            return
        if len(waiting) < self._offers_max:
            waiting.append(replica)
        else:
            self._is_partial = True

    def begin(self) -> None:
        """End the offers."""
        for waiting in self._waiting.values():
            waiting.sort(key=lambda replica: (replica.size, replica.fragment.ledger_id, replica.fragment.first))

    def next_move(self) -> BalanceMove | None:
        """Return the next move, after `begin`; None: there is no other."""
        fullest = self._fullest()
        for bookie in [*fullest, *reversed(fullest)]:
            excess, slack = self._excess(bookie), self._slack(bookie)
            if abs(excess) <= slack or bookie in self._stuck:
                continue
            if excess > 0:
                pairs = [(bookie, other) for other in reversed(fullest) if self._excess(other) < 0]
            else:
                pairs = [(other, bookie) for other in fullest if self._excess(other) > 0]
            move = self._first_of(pairs)
            if move is not None:
                return move
            self._stuck[bookie] = None
        return None

    def plan(self, moves: Sequence[BalanceMove]) -> BalancePlan:
        """Return the plan with these moves, which are all that `next_move` has returned."""
        return BalancePlan(
            moves,
            self.before,
            dict(self.after),
            self.shares,
            tolerance=self.tolerance,
            size_min=self.size_min,
            is_partial=self._is_partial,
        )

    def _first_of(self, pairs: Iterable[tuple[BookieId, BookieId]]) -> BalanceMove | None:
        """Take the largest waiting replica that fits the first possible pair of giver and taker; return its move."""
        for source, target in pairs:
            index = self._fitting(source, target)
            if index is None:
                continue
            replica = self._waiting[source][index]
            self._taken[source].add(index)
            self.after[source] -= replica.size
            self.after[target] += replica.size
            return self._moved.move(replica, source, target)
        return None

    def _fitting(self, source: BookieId, target: BookieId) -> int | None:
        """Return the index of the giver's largest waiting replica that the taker can hold; None: there is none.

        Tries each replica once for a taker. What is too large stays so, because givers only give and takers only take.
        What placement refuses may be possible after another move of the fragment, but only the next plan tries again.
        """
        limit, refusals = min(self._excess(source), -self._excess(target)), 0
        waiting, taken = self._waiting.get(source, []), self._taken.get(source, ())
        end = bisect_right(waiting, limit, 0, self._tried.get((source, target)), key=lambda replica: replica.size)
        for index in range(end - 1, -1, -1):
            self._tried[source, target] = index
            replica = waiting[index]
            if index in taken or target in self._moved.of(replica.fragment):
                continue
            if not self._worsens(replica.fragment, self._moved.with_target(replica, target)):
                return index
            refusals += 1
            if refusals == REFUSALS_MAX:
                break
        return None
