"""The example of a schedule, run as Airflow does it, without Airflow: its commands are the ones that `bk` takes."""

from __future__ import annotations

import pathlib
import re
import runpy
import sys
import types
from typing import Any, Self

import pytest

from bookies.admin.shared.nouns import parser_of

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "airflow" / "bookies_nightly.py"


class FakeDag:
    """As much of a DAG as the example uses."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.name, self.settings = name, settings

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class FakeTask:
    made: list[FakeTask] = []

    def __init__(self, **settings: Any) -> None:
        self.settings, self.after = settings, []
        self.made.append(self)

    def __rshift__(self, other: FakeTask) -> FakeTask:
        other.after.append(self.settings["task_id"])
        return other


def test_the_schedule_runs_commands_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    for name in ("airflow", "airflow.providers", "airflow.providers.standard", "airflow.providers.standard.operators"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sdk, bash = types.ModuleType("airflow.sdk"), types.ModuleType("airflow.providers.standard.operators.bash")
    vars(sdk)["DAG"], vars(bash)["BashOperator"] = FakeDag, FakeTask
    monkeypatch.setitem(sys.modules, sdk.__name__, sdk)
    monkeypatch.setitem(sys.modules, bash.__name__, bash)
    dag = runpy.run_path(str(EXAMPLE))["dag"]
    assert dag.settings["max_active_runs"] == 1
    tasks = {task.settings["task_id"]: task for task in FakeTask.made}
    assert [task.after for task in tasks.values()] == [[], ["backup"], ["verify"], ["scrub"]]
    parsed = {}
    for name, task in tasks.items():
        command = re.sub(r"{{ *task.task_id *}}", name, task.settings["bash_command"])
        words = re.sub(r"{{.*?}}", "7", command).split()
        assert words[:2] == ["bk", "spark"]
        parsed[name] = parser_of("spark").parse_args(words[2:])
    assert parsed["verify"].backup_run == parsed["backup"].run_id == "7-backup"
    assert parsed["verify"].backup == parsed["backup"].to
