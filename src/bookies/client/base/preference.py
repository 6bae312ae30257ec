"""In which order a client wants its bookies: by chance, those with much free space more often, those that work first.

A choice takes a few bookies of perhaps thousands, so the order is drawn as far as somebody looks at it. Source:
client-protocol 2.2 and 7.8, metadata 9.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from math import log
from typing import Protocol

from bookies.model import BookieId

FEW = 64  # bookies of which all are put in order at once
REFUSALS_MAX = 30  # in a row; then a bookie is taken whatever its weight


class Chance(Protocol):
    """What is needed of `Runtime.random`."""

    def random(self) -> float: ...

    def shuffle(self, x: MutableSequence[BookieId]) -> None: ...


def preferred(
    bookies: Sequence[BookieId],
    chance: Chance,
    after: Mapping[BookieId, int],
    weights: Mapping[BookieId, float] | None = None,
) -> Iterable[BookieId]:
    """The bookies in an order by chance; those of `after` at the end, by their number there.

    `weights`: how likely each is to be taken before others, at most 1; without any, all orders are as likely.
    """
    if len(bookies) > FEW:
        return _drawn(bookies, chance, after, weights or {})
    order = list(bookies)
    chance.shuffle(order)
    if weights:  # the way of Efraimidis and Spirakis
        keys = {bookie: log(1 - chance.random()) / weights.get(bookie, 1.0) for bookie in order}
        order.sort(key=lambda bookie: -keys[bookie])
    return sorted(order, key=lambda bookie: after.get(bookie, -1)) if after else order


def _drawn(
    bookies: Sequence[BookieId], chance: Chance, after: Mapping[BookieId, int], weights: Mapping[BookieId, float]
) -> Iterator[BookieId]:
    """One by one: Fisher and Yates's shuffle, which remembers only the places that it has changed."""
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
    """Of each two that are at hand the one with less to do, then the other against the next one.

    The power of two choices: it keeps work away from busy bookies without sending everybody to the idlest one.
    """
    held: BookieId | None = None
    for bookie in order:
        if held is None:
            held = bookie
        elif load(bookie) < load(held):
            yield bookie
        else:
            yield held
            held = bookie
    if held is not None:
        yield held
