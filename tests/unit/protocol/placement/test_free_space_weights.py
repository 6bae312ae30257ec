"""Free space as chances."""

from __future__ import annotations

import pytest

from bookies.model import BookieId
from bookies.protocol.placement.free_space_weights import weights_of

A, B, C = (BookieId(name) for name in "abc")


def test_in_proportion_up_to_a_multiple_of_the_median() -> None:
    free = {A: 10, B: 20, C: 100}
    assert weights_of([A, B, C], free, 0) == {A: 0.1, B: 0.2, C: 1.0}
    assert weights_of([A, B, C], free, 3) == {A: pytest.approx(1 / 6), B: pytest.approx(1 / 3), C: 1.0}


def test_who_says_nothing_counts_as_the_least() -> None:
    assert weights_of([A, B, C], {A: 10, B: 40, C: 0}, 0) == {A: 0.25, B: 1.0, C: 0.25}
    assert weights_of([A, B], {A: 30}, 3) == {A: 1.0, B: 1.0}
    assert weights_of([A, B], {}, 3) == {}
    assert weights_of([A, B], {A: 0, C: 7}, 3) == {}, "c is not asked about"
