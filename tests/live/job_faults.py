"""Fleet jobs that crash once, at a chosen call: they run in the process of the test, without Spark's tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from bookies.spark.base.counters import Sums
from bookies.spark.jobs.shared import common
from bookies.spark.jobs.shared.common import CarryOut, JobConfig, Run
from bookies.spark.jobs.shared.packing import estimate, pack


class Crash(BaseException):
    """The process is gone: nothing catches this."""


def crash_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool, skip: int = 0) -> None:
    """The next call but `skip` of `owner.name` crashes, before it did anything or `after` it did all."""
    original: Callable[..., Any] = getattr(owner, name)
    left = [skip]

    def call(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] != -1:
            return original(*arguments, **named)
        if after:
            made = original(*arguments, **named)
            if hasattr(made, "__await__"):
                return _then_crash(made)
        raise Crash

    monkeypatch.setattr(owner, name, call)


async def _then_crash(made: Any) -> None:
    await made
    raise Crash


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Carry out items here, one task after the other; what has ended is known to later runs of the same id."""
    done: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def execute(spark: Any, config: JobConfig, name: str, items: Any, work: Any, holds: Any = None) -> Run:
        rows = done.setdefault((name, config.run_id), [])
        finished = {
            row["item"] for row in rows if row["outcome"] not in common.UNFINISHED and
            (holds is None or row["outcome"] != common.DONE or holds(row["item"], json.loads(row["detail"])))
        }  # fmt: skip
        rows[:] = [row for row in rows if row["item"] in finished]
        tasks = pack([each for each in items if each.name not in finished], tasks_min=len(items))
        carry = CarryOut(config, work, None, name, spark.sparkContext.accumulator({}, Sums()))
        for task in tasks:
            for batch in carry(iter(common._work_table([task]).to_batches())):
                rows += batch.to_pylist()
        frame = spark.createDataFrame(pa.Table.from_pylist(rows, schema=common._RESULT))
        return Run(config, estimate(name, tasks, cores=1, bytes_per_s=None), len(finished), frame)

    monkeypatch.setattr(common, "execute", execute)
