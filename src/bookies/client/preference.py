"""In which order a client wants its bookies: by chance, those that work before those that do not.

A choice takes a few bookies of perhaps thousands, so the order is drawn as far as somebody looks at it. Source:
client-protocol 2.2 and 7.8, metadata 9.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from bookies.model import BookieId


def shuffled(
    bookies: Sequence[BookieId], chance: Callable[[], float], after: Mapping[BookieId, int]
) -> Iterator[BookieId]:
    """The bookies in an order that is as likely as any other, drawn one by one; those of `after` at the end, by
    the number they have there. `chance`: a number from 0 to 1, without 1.

    Fisher and Yates's shuffle, which remembers only the places that it has changed.
    """
    count = len(bookies)
    moved: dict[int, int] = {}
    late: list[BookieId] = []
    for index in range(count):
        other = index + int(chance() * (count - index))
        chosen = bookies[moved.get(other, other)]
        moved[other] = moved.get(index, index)
        if chosen in after:
            late.append(chosen)
        else:
            yield chosen
    yield from sorted(late, key=after.__getitem__)
