"""Balance plan: which fragments to move so that bookies hold data in proportion to their capacity. Without IO.

A bookie's *share* is what it would hold if all bookies held the same fraction of their capacity. Bookies above their
share by more than the tolerance give, those below it take, until none is above. The largest giver gives first, to the
emptiest taker. It gives its largest fragment that neither lifts the taker above its share nor drops the giver below
its own. So every move brings two bookies nearer to their shares, no replica moves twice, and no more bytes move than
are above the shares.

The placement rules are not checked here: the caller skips a move that they refuse. Source: pains 27.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from msgspec import Struct

from bookies.model import BookieId, Ensemble


class Movable(Struct, frozen=True):
    """Replica of a finished fragment. `first`: the fragment's first entry; `size`: bytes that the bookie holds."""

    ledger_id: int
    first: int
    position: int
    ensemble: Ensemble
    size: int


class BalanceMove(Struct, frozen=True):
    """Move of one replica, `size` bytes, from one bookie to another."""

    ledger_id: int
    first: int
    position: int
    source: BookieId
    target: BookieId
    size: int


class BalancePlan(Struct, frozen=True):
    """Moves of a balance. `before`, `after`, `shares` (the ideal): bytes by bookie."""

    moves: Sequence[BalanceMove]
    before: Mapping[BookieId, int]
    after: Mapping[BookieId, int]
    shares: Mapping[BookieId, float]

    @property
    def size(self) -> int:
        """Return the bytes to move."""
        return sum(move.size for move in self.moves)


def shares_of(held: Mapping[BookieId, int], room: Mapping[BookieId, int]) -> dict[BookieId, float]:
    """Return each bookie's share of what they hold together. `room`: capacity in bytes; equal shares if all are 0."""
    total = sum(held.get(bookie, 0) for bookie in room)
    whole = sum(room.values())
    return {bookie: total * (size / whole if whole else 1 / len(room)) for bookie, size in room.items()}


def givers(held: Mapping[BookieId, int], shares: Mapping[BookieId, float], tolerance: float) -> list[BookieId]:
    """Return the bookies above their share by more than the tolerance, a fraction of it; the largest excess first."""
    above = [bookie for bookie, share in shares.items() if held.get(bookie, 0) > share * (1 + tolerance)]
    return sorted(above, key=lambda bookie: (shares[bookie] - held[bookie], bookie))


def plan_balance(
    held: Mapping[BookieId, int],
    room: Mapping[BookieId, int],
    movable: Mapping[BookieId, Sequence[Movable]],
    tolerance: float,
) -> BalancePlan:
    """Plan a balance.

    held: bytes by bookie.
    room: capacity in bytes of the bookies that take part.
    movable: replicas that may move, by giver.
    tolerance: fraction of its share that a bookie may exceed it by.
    """
    shares = shares_of(held, room)
    now = {bookie: held.get(bookie, 0) for bookie in room}
    moved: dict[tuple[int, int], Ensemble] = {}  # ensembles of fragments after the moves so far
    moves: list[BalanceMove] = []
    for source in givers(held, shares, tolerance):
        waiting = sorted(movable.get(source, ()), key=lambda replica: (replica.size, replica.ledger_id, replica.first))
        while waiting and now[source] > shares[source] * (1 + tolerance):
            takers = sorted(
                (bookie for bookie in room if now[bookie] < shares[bookie]),
                key=lambda bookie: (now[bookie] - shares[bookie], bookie),
            )
            move = _next(source, takers, now, shares, waiting, moved)
            if move is None:
                break
            moves.append(move)
            now[move.source] -= move.size
            now[move.target] += move.size
    return BalancePlan(moves, {bookie: held.get(bookie, 0) for bookie in room}, now, shares)


def _next(
    source: BookieId,
    takers: Sequence[BookieId],
    now: Mapping[BookieId, int],
    shares: Mapping[BookieId, float],
    waiting: list[Movable],
    moved: dict[tuple[int, int], Ensemble],
) -> BalanceMove | None:
    """Remove the largest waiting replica that a taker can hold, and return its move. None: there is none."""
    for target in takers:
        limit = min(now[source] - shares[source], shares[target] - now[target])
        for index in range(bisect_right(waiting, limit, key=lambda replica: replica.size) - 1, -1, -1):
            replica = waiting[index]
            if not replica.size:
                break
            key = replica.ledger_id, replica.first
            ensemble = moved.get(key, replica.ensemble)
            if target in ensemble:
                continue
            del waiting[index]
            moved[key] = tuple(target if bookie == source else bookie for bookie in ensemble)
            return BalanceMove(replica.ledger_id, replica.first, replica.position, source, target, replica.size)
    return None
