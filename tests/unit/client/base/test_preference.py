"""The order in which bookies are wanted: as likely as any other, and drawn no further than it is looked at."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from random import Random

from bookies.client.base.preference import FEW, lighter_first, preferred
from bookies.model import BookieId

MANY = [BookieId(f"b{number}") for number in range(3 * FEW)]


def test_every_bookie_once() -> None:
    for bookies in (MANY, MANY[:5], MANY[:1], []):
        assert sorted(preferred(bookies, Random(1), {})) == sorted(bookies)


def test_those_that_do_not_work_are_at_the_end() -> None:
    ailing = {MANY[3]: 2, MANY[0]: 1, MANY[2]: 2}
    for bookies in (MANY, MANY[:5]):
        order = list(preferred(bookies, Random(2), ailing))
        assert order[-3] == MANY[0]
        assert set(order[-2:]) == {MANY[2], MANY[3]}


def test_all_are_first_equally_often() -> None:
    rng = Random(3)
    firsts: Counter[BookieId] = Counter()
    for _ in range(6000):
        firsts.update(islice(preferred(MANY, rng, {}), 2))
    assert len(firsts) == len(MANY)
    assert 30 < min(firsts.values()) < max(firsts.values()) < 100


def test_draws_no_more_than_is_wanted() -> None:
    class Counting(Random):
        draws = 0

        def random(self) -> float:
            self.draws += 1
            return super().random()

    rng = Counting(4)
    list(islice(preferred(MANY, rng, {}), 7))
    assert rng.draws == 7


def test_weights_decide_how_often_a_bookie_is_the_first() -> None:
    """A third as heavy, a third as often: among few, and among many."""
    rng = Random(5)
    for bookies, tries in ((MANY[:4], 2000), (MANY, 24_000)):
        weights = {bookie: 1.0 if number % 2 else 1 / 3 for number, bookie in enumerate(bookies)}
        firsts = Counter(next(iter(preferred(bookies, rng, {}, weights))) for _ in range(tries))
        heavy = sum(firsts[bookie] for bookie in bookies[1::2])
        assert 0.72 < heavy / tries < 0.78
        assert sorted(preferred(bookies, rng, {}, weights)) == sorted(bookies)


def test_a_bookie_without_any_weight_is_taken_in_the_end() -> None:
    weights = dict.fromkeys(MANY, 1.0) | {MANY[0]: 1e-12}
    assert list(preferred(MANY, Random(6), {}, weights))[-1] == MANY[0]


def test_the_lighter_of_two_comes_first() -> None:
    a, b, c, d = MANY[:4]
    load = {a: 2.0, b: 1.0, c: 3.0, d: 0.0}.__getitem__
    assert list(lighter_first([a, b, c, d], load)) == [b, a, d, c]
    assert list(lighter_first([a, b, c], lambda _: 0.0)) == [a, b, c], "nobody has anything to do"
    assert list(lighter_first([], load)) == []
