"""Each mutant of the protocol is killed by the schedule that is named for it."""

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
