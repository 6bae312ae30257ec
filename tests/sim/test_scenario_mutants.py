"""Each mutant of the protocol is killed by the schedule named for it; some by chance, in a profile of their own."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from types import ModuleType
from typing import Any

import pytest


def load_table() -> ModuleType:
    path = pathlib.Path(__file__).parent / "mutant_table.py"
    spec = importlib.util.spec_from_file_location("mutant_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


table = load_table()


@pytest.mark.parametrize("mutant", table.MUTANTS, ids=[each.what for each in table.MUTANTS])
def test_mutant_is_killed(mutant: Any) -> None:
    if mutant.schedules:
        assert table.run_mutant(mutant, mutant.schedules[0]) is not None, f"{mutant.schedules[0]} does not notice it"
    else:  # no matter of a schedule
        assert table.first_seed(mutant, range(1, 21), mutant.profile) is not None, (
            f"{mutant.profile} does not notice it"
        )


@pytest.mark.parametrize(
    ("what", "first_seed"),
    [
        ("count acks by bookie instead of position and bookie", 15),
        ("late failures forgotten", 8),
        ("limbo as negative", 1),
        ("the target of a force is taken after it", 1),
        ("swap before copy", 1),
        ("an id is refused by the last add confirmed only", 1),
        ("a change is not delayed until the quorum breaks", 1),
        ("what waits behind a hole outlives its client", 1),
        ("a fragment that may still receive entries is copied", 5),
        ("no clamp at the end of a closed ledger", 1),
        ("failures of a bookie that was replaced are not forgotten", 1),
        ("the memory limit is not enforced", 1),
        ("memory is free again as soon as the ack quorum has answered", 1),
        ("an entry that fits overtakes those that wait for memory", 1),
        ("a recovery takes the length from an answer to its fencing", 1),
    ],
)
def test_chance_finds_it(what: str, first_seed: int) -> None:
    """From a seed on that has found it; `mutant_table.py` looks from 1 on, and for all."""
    (mutant,) = [each for each in table.MUTANTS if each.what == what]
    assert table.first_seed(mutant, range(first_seed, first_seed + 90), mutant.profile) is not None
