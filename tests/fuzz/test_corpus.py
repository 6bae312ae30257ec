"""Every input that was worth keeping, again: what a run of `make fuzz` found stays mended."""

from __future__ import annotations

import pytest
from tests.fuzz.corpus import FOLDER, inputs
from tests.fuzz.targets import TARGETS

SIZE_MAX = 1_000_000  # bytes of all corpora


@pytest.mark.parametrize("name", TARGETS)
def test_corpus(name: str) -> None:
    target = TARGETS[name]
    for data in inputs(target):
        try:
            target.run(data)
        except BaseException as error:
            error.add_note(f"fuzz target {name}, input {data!r}")
            raise


def test_corpora_are_small_and_of_known_targets() -> None:
    files = list(FOLDER.glob("*.txt"))
    assert {path.stem for path in files} <= set(TARGETS)
    assert sum(path.stat().st_size for path in files) < SIZE_MAX
