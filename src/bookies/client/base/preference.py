"""Order in which a client prefers bookies: random, weighted by free space, healthy bookies first.

A choice takes a few of possibly thousands of bookies, so the order is generated lazily. Source: client-protocol 2.2 and
7.8, metadata 9.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from math import log
from typing import Protocol

from bookies.model import BookieId

FEW = 64  # up to this many bookies are ordered at once
REFUSALS_MAX = 30  # consecutive rejections; then a bookie is taken regardless of its weight


class Chance(Protocol):
    """The methods of `Runtime.random` used here."""

    def random(self) -> float: ...

    def shuffle(self, x: MutableSequence[BookieId]) -> None: ...


def preferred(
    bookies: Sequence[BookieId],
    chance: Chance,
    after: Mapping[BookieId, int],
    weights: Mapping[BookieId, float] | None = None,
) -> Iterable[BookieId]:
    """Return the bookies in random order; those in `after` at the end, ordered by their number there.

    `weights`: relative probability of being taken before others, at most 1. Without weights all orders are equally
    likely.
    """
    if len(bookies) > FEW:
        return _drawn(bookies, chance, after, weights or {})
    order = list(bookies)
    chance.shuffle(order)
    if weights:  # weighted random order by Efraimidis and Spirakis
        keys = {bookie: log(1 - chance.random()) / weights.get(bookie, 1.0) for bookie in order}
        order.sort(key=lambda bookie: -keys[bookie])
    return sorted(order, key=lambda bookie: after.get(bookie, -1)) if after else order


def _drawn(
    bookies: Sequence[BookieId], chance: Chance, after: Mapping[BookieId, int], weights: Mapping[BookieId, float]
) -> Iterator[BookieId]:
    """Draw one by one: Fisher-Yates shuffle that remembers only the places that it has changed."""
    count = len(bookies)
    moved: dict[int, int] = {}
    late: list[BookieId] = []
    for index in range(count):
        for _ in range(REFUSALS_MAX):
            other = index + int(chance.random() * (count - index))
            chosen = bookies[moved.get(other, other)]
            if not weights or chance.random() < weights.get(chosen, 1.0):
                break
        moved[other] = moved.get(index, index)
        if chosen in after:
            late.append(chosen)
        else:
            yield chosen
    yield from sorted(late, key=after.__getitem__)


def lighter_first(order: Iterable[BookieId], load: Callable[[BookieId], float]) -> Iterator[BookieId]:
    """Yield the less loaded of each two candidates; the other one competes with the next.

    This is the power of two choices: it keeps work away from busy bookies without sending every client to the idlest
    one.
    """
    held: BookieId | None = None
    held_load = 0.0
    for bookie in order:
        bookie_load = load(bookie)
        if held is not None and bookie_load < held_load:
            yield bookie
            continue
        if held is not None:
            yield held
        held, held_load = bookie, bookie_load
    if held is not None:
        yield held
