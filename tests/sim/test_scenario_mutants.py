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
    assert table.run_mutant(mutant, mutant.schedules[0]) is not None, f"{mutant.schedules[0]} does not notice it"


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
    ],
)
def test_chance_finds_it(what: str, first_seed: int) -> None:
    """From a seed on that has found it; `mutant_table.py` looks from 1 on, and for all."""
    (mutant,) = [each for each in table.MUTANTS if each.what == what]
    assert table.first_seed(mutant, range(first_seed, first_seed + 30), mutant.profile) is not None


def test_a_recovery_that_takes_the_length_of_another_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """D-10. Chance cannot tell it from a recovery to which nobody could read the last entry, and which may."""
    from bookies.client import recovery
    from bookies.sim.scenario import read_scenario, run_scenario

    async def length_at(self: Any, metadata: Any, end: int, otherwise: int) -> int:
        return otherwise

    monkeypatch.setattr(recovery._Recovery, "_length_at", length_at)
    scenario = read_scenario(table.SCENARIOS / "length.txt")
    failures = [failure for each in scenario.variants for failure in run_scenario(scenario, each).failures]
    assert any("expected the length" in failure for failure in failures)
