"""How often the interpreter looks for cycles of garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import bookies
from bookies.runtime.memory import TRACKED_MIN, collect_rarely


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_collections_become_rarer_and_the_older_generations_stay_as_they_are() -> None:
    gc.set_threshold(700, 11, 12)
    collect_rarely()
    assert gc.get_threshold() == (TRACKED_MIN, 11, 12)


@pytest.mark.parametrize("first", [0, TRACKED_MIN + 1])
def test_what_somebody_chose_stays(first: int) -> None:
    gc.set_threshold(first, 10, 10)
    collect_rarely()
    assert gc.get_threshold() == (first, 10, 10)


def test_a_process_that_is_run_collects_rarely_and_gets_its_result() -> None:
    gc.set_threshold(700, 10, 10)

    async def main() -> int:
        return gc.get_threshold()[0]

    assert bookies.run(main()) == TRACKED_MIN
