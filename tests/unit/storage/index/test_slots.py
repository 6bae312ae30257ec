"""Arithmetic on index slots."""

from __future__ import annotations

import struct
from random import Random

import pytest

from bookies.storage.index.slots import LeadingSlots, leading_present, overlaid


def packed(numbers: list[int]) -> bytes:
    return struct.pack(f">{len(numbers)}q", *numbers)


@pytest.mark.parametrize("seed", range(30))
def test_leading_slots_end_at_the_first_that_is_missing(seed: int) -> None:
    """Also where the zeros of neighbours would make one: numbers are small, or end in many zeros."""
    chance = Random(seed)
    kinds = (lambda: chance.randrange(1, 300), lambda: chance.randrange(1, 1 << 23) << 40, lambda: 0)
    for size in range(40):
        numbers = [chance.choices(kinds, (10, 10, 1))[0]() for _ in range(size)]
        assert leading_present(packed(numbers)) == (numbers.index(0) if 0 in numbers else size)


def test_pages_follow_each_other_until_one_is_not_full() -> None:
    found = LeadingSlots(6, 100, 1000, 8)
    found.add(packed([10, 20]))
    assert (found.first, found.count) == (8, 98)
    found.add(packed([30, 40, 0, 60, 70, 80, 90, 100]))
    assert (found.slots, found.count) == (packed([10, 20, 30, 40]), 0)


def test_no_more_pages_than_the_size_can_need() -> None:
    found = LeadingSlots(0, 100, 75, 8)
    found.add(packed(list(range(10, 90, 10))))
    assert found.count == 92
    found.add(packed(list(range(90, 170, 10))))
    assert (len(found.slots), found.count) == (16 * 8, 0)


def test_nothing_there() -> None:
    found = LeadingSlots(3, 10, 1000, 8)
    found.add(b"")
    assert (found.slots, found.count) == (b"", 0)


def test_slots_over_stored_ones() -> None:
    assert overlaid(packed([1, 2, 3]), 1, packed([7, 0, 8])) == packed([1, 7, 3, 8])
    assert overlaid(b"", 2, packed([7])) == packed([0, 0, 7])
    assert overlaid(packed([1, 2]), 0, b"") == packed([1, 2])
