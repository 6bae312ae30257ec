"""A sample of `exhaustive.py`, which `make placement` runs to the end."""

from __future__ import annotations

import random

import pytest
from tests.placement.exhaustive import Mismatch, check, check_changes
from tests.placement.twin import Shape, shapes

SMALL = list(shapes(5, 3, 2))
LARGE = [shape for shape in shapes(8, 3, 2) if sum(map(sum, (hosts for _, hosts in shape.racks))) >= 6]


def test_as_trying_everything_says() -> None:
    _check_all(random.Random(1).sample(SMALL, 40) + random.Random(2).sample(LARGE, 5))


def _check_all(topologies: list[Shape]) -> None:
    for shape in topologies:
        check(shape)


def test_replacements_and_fewest_changes() -> None:
    for number, shape in enumerate(random.Random(3).sample(SMALL, 40) + random.Random(4).sample(LARGE, 20)):
        check_changes(shape, seed=number)


def test_the_comparison_finds_a_choice_that_looks_only_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without going back an ensemble that exists is not found."""
    from bookies.protocol.placement import placement_search

    fill = placement_search.Search._fill

    def only_first(self: placement_search.Search, index: int) -> bool:
        offers = self._offers
        self._offers = lambda position: iter(list(offers(position))[:4])  # type: ignore[method-assign]
        return fill(self, index)

    monkeypatch.setattr(placement_search.Search, "_fill", only_first)
    with pytest.raises(Mismatch):
        _check_all(random.Random(5).sample(SMALL, 60))


def test_counts_each_topology_once() -> None:
    assert list(shapes(1, 3, 2)) == [Shape((), (1,)), Shape(((0, (1,)),), ())]
    assert len(set(SMALL)) == len(SMALL)
