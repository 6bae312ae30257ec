"""Plan of faults of `bk chaos`: which fault begins when, by a seed; and the calls that end faults.

The plan depends on the seed and the weights only. The choices within a fault (which bookie, for how long) have a
generator of their own, which the seed and the number of the fault determine; candidates are those that are still able.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

SHORT_S, LONG_S = (0.05, 1.0), (2.5, 7.0)  # below and above the clients' time-outs and the bookies' leases


class Hit(Struct, frozen=True):
    """A fault that has begun: a description of its target, its duration, and the call that ends it."""

    text: str
    seconds: float = 0.0
    end: Callable[[], None] | None = None


def plan_faults(
    seed: int, seconds: float, gap_s: float, weights: Mapping[str, float]
) -> Iterator[tuple[float, str, random.Random]]:
    """Yield time since the start, name and source of choices of each fault. A longer run begins with the shorter.

    `gap_s`: mean time between two faults.
    """
    choices, at_s = random.Random(seed), 0.0
    for number in itertools.count(1):
        at_s += choices.expovariate(1 / gap_s)
        (fault,) = choices.choices(list(weights), list(weights.values()))
        if at_s >= seconds:
            return
        yield at_s, fault, random.Random(f"{seed}/{number}")


def duration_s(choices: random.Random) -> float:
    return choices.uniform(*choices.choice((SHORT_S, LONG_S)))


class Schedule:
    """Calls by their time. `is_closing`: no more faults begin, so calls do not prolong theirs."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, int, Callable[[], None]]] = []
        self.is_closing = False
        self._numbers = itertools.count()

    def add(self, at_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self.calls, (at_s, next(self._numbers), call))

    def run_until(self, now_s: float) -> None:
        while self.calls and self.calls[0][0] <= now_s:
            heapq.heappop(self.calls)[2]()
