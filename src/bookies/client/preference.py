"""In which order a client wants its bookies: by chance, those that work before those that do not.

A choice takes a few bookies of perhaps thousands, so the order is drawn as far as somebody looks at it. Source:
client-protocol 2.2 and 7.8, metadata 9.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import Protocol

from bookies.model import BookieId

FEW = 64  # bookies of which all are put in order at once


class Chance(Protocol):
    """What is needed of `Runtime.random`."""

    def random(self) -> float: ...

    def shuffle(self, x: MutableSequence[BookieId]) -> None: ...


def preferred(bookies: Sequence[BookieId], chance: Chance, after: Mapping[BookieId, int]) -> Iterable[BookieId]:
    """The bookies in an order that is as likely as any other; those of `after` at the end, by their number there."""
    if len(bookies) > FEW:
        return _drawn(bookies, chance, after)
    order = list(bookies)
    chance.shuffle(order)
    return sorted(order, key=lambda bookie: after.get(bookie, -1)) if after else order


def _drawn(bookies: Sequence[BookieId], chance: Chance, after: Mapping[BookieId, int]) -> Iterator[BookieId]:
    """One by one: Fisher and Yates's shuffle, which remembers only the places that it has changed."""
    count = len(bookies)
    moved: dict[int, int] = {}
    late: list[BookieId] = []
    for index in range(count):
        other = index + int(chance.random() * (count - index))
        chosen = bookies[moved.get(other, other)]
        moved[other] = moved.get(index, index)
        if chosen in after:
            late.append(chosen)
        else:
            yield chosen
    yield from sorted(late, key=after.__getitem__)
