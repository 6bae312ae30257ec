"""The order of a ledger: histories that one order explains, and histories that none does."""

from __future__ import annotations

from itertools import pairwise, permutations, product

import pytest

from bookies.lab.sim.checkers.linearizability import Observations, disorder


def test_nothing_happened() -> None:
    assert list(disorder(Observations())) == []


def test_a_usual_ledger() -> None:
    seen = Observations(
        begun={0: 1, 1: 2, 2: 6},
        acknowledged={0: 4, 1: 5},
        reads=[(0, 7, "reader"), (1, 8, "reader")],
        ends=[(2, 10, "recoverer"), (2, 12, "writer")],
    )
    assert list(disorder(seen)) == []


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        (Observations({0: 5, 1: 1}, {1: 3}), "in front of it"),
        (Observations({0: 1, 1: 5}, {}, [(1, 3, "r")]), "r read entry 1 before"),
        (Observations({0: 1}, {}, [(1, 3, "r")]), "r read entry 1 before"),
        (Observations({0: 1}, {0: 2}, [], [(-1, 4, "w")]), "entries [0] behind the end -1"),
        (Observations({0: 1}, {}, [], [(0, 4, "w"), (-1, 5, "r")]), "ends at 0 for w, at -1 for r"),
        (Observations({0: 1, 1: 6}, {0: 2}, [], [(1, 4, "w")]), "told the end 1 before"),
        (Observations({0: 1}, {}, [(0, 2, "r")], [(-1, 4, "w")]), "r read entry 0 behind the end -1"),
    ],
)
def test_what_cannot_have_happened(seen: Observations, problem: str) -> None:
    assert any(problem in each for each in disorder(seen)), list(disorder(seen))


def _explicable(seen: Observations) -> bool:
    """By brute force: some instant for each entry and for the close explains everything."""
    told = [at for _, at, _ in seen.ends]
    last = {end for end, _, _ in seen.ends}
    if len(last) > 1:
        return False
    end = last.pop() if last else None
    for instants in product(range(6), repeat=len(seen.begun)):
        if any(instants[entry] < begin for entry, begin in seen.begun.items()):
            continue
        if any(first > second for first, second in pairwise(instants)):
            continue
        in_time = all(entry in seen.begun and instants[entry] <= at for entry, at in seen.acknowledged.items())
        read = all(entry in seen.begun and instants[entry] <= at for entry, at, _ in seen.reads)
        if not in_time or not read:
            continue
        if end is None:
            return True
        kept = end < 0 or (end in seen.begun and instants[end] <= min(told))
        if kept and all(each <= end for each in (*seen.acknowledged, *(entry for entry, _, _ in seen.reads))):
            return True
    return False


def test_it_agrees_with_brute_force() -> None:
    """Two entries, an answer, a read and an end at all combinations of times."""
    for begin_0, begin_1, acked_at, read_at, told_at in permutations(range(1, 6)):
        for acked, read, end in product((0, 1), (0, 1), (-1, 0, 1)):
            seen = Observations(
                {0: begin_0, 1: begin_1}, {acked: acked_at}, [(read, read_at, "r")], [(end, told_at, "w")]
            )
            assert (not list(disorder(seen))) == _explicable(seen), seen
