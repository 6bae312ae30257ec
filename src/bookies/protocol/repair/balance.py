"""Which fragments to move so that bookies hold as much as they have room for: the plan, without IO.

A bookie's *share* is what it would hold if all held the same fraction of their room. Bookies above their share by more
than the tolerance give, those below it take, until nobody is above. The largest giver gives first, to the emptiest
taker; of its fragments the largest that neither makes the taker larger than its share nor the giver smaller. So every
move brings two bookies nearer to their shares, nothing is moved twice, and no more bytes are moved than are above.

Where a fragment may go by the rules of placement is not decided here: a move that is refused is left out by the shell.
Source: pains 27.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bookies.model import BookieId, Ensemble


@dataclass(frozen=True, slots=True)
class Movable:
    """What a bookie has of a finished fragment. `first`: its first entry; `size`: bytes that the bookie has of it."""

    ledger_id: int
    first: int
    position: int
    ensemble: Ensemble
    size: int


@dataclass(frozen=True, slots=True)
class BalanceMove:
    """One replica, `size` bytes, goes from one bookie to another."""

    ledger_id: int
    first: int
    position: int
    source: BookieId
    target: BookieId
    size: int


@dataclass(frozen=True, slots=True)
class BalancePlan:
    """`before`, `after`: bytes by bookie, `shares`: as they ought to be."""

    moves: Sequence[BalanceMove]
    before: Mapping[BookieId, int]
    after: Mapping[BookieId, int]
    shares: Mapping[BookieId, float]

    @property
    def size(self) -> int:
        """Bytes to move."""
        return sum(move.size for move in self.moves)


def shares_of(held: Mapping[BookieId, int], room: Mapping[BookieId, int]) -> dict[BookieId, float]:
    """What each bookie of `room` ought to hold of what they hold together. `room`: bytes; equal shares without any."""
    total = sum(held.get(bookie, 0) for bookie in room)
    whole = sum(room.values())
    return {bookie: total * (size / whole if whole else 1 / len(room)) for bookie, size in room.items()}


def givers(held: Mapping[BookieId, int], shares: Mapping[BookieId, float], tolerance: float) -> list[BookieId]:
    """The bookies that hold more than their share and the tolerance, a fraction of it; the largest first."""
    above = [bookie for bookie, share in shares.items() if held.get(bookie, 0) > share * (1 + tolerance)]
    return sorted(above, key=lambda bookie: (shares[bookie] - held[bookie], bookie))


def plan_balance(
    held: Mapping[BookieId, int],
    room: Mapping[BookieId, int],
    movable: Mapping[BookieId, Sequence[Movable]],
    tolerance: float,
) -> BalancePlan:
    """`held`: bytes by bookie. `room`: of the bookies that give and take. `movable`: by giver."""
    shares = shares_of(held, room)
    now = {bookie: held.get(bookie, 0) for bookie in room}
    moved: dict[tuple[int, int], Ensemble] = {}  # fragments as they are by the moves so far
    moves: list[BalanceMove] = []
    for source in givers(held, shares, tolerance):
        waiting = sorted(movable.get(source, ()), key=lambda each: (each.size, each.ledger_id, each.first))
        while waiting and now[source] > shares[source] * (1 + tolerance):
            takers = sorted(
                (each for each in room if now[each] < shares[each]), key=lambda each: (now[each] - shares[each], each)
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
    """The largest fragment, of those that wait, that somebody can take; it waits no more. None: there is none."""
    for target in takers:
        limit = min(now[source] - shares[source], shares[target] - now[target])
        for index in range(bisect_right(waiting, limit, key=lambda each: each.size) - 1, -1, -1):
            each = waiting[index]
            if not each.size:
                break
            key = each.ledger_id, each.first
            ensemble = moved.get(key, each.ensemble)
            if target in ensemble:
                continue
            del waiting[index]
            moved[key] = tuple(target if bookie == source else bookie for bookie in ensemble)
            return BalanceMove(each.ledger_id, each.first, each.position, source, target, each.size)
    return None
