"""Progress of a job on stderr: the plan, then a line that updates on a terminal, or a line every `LINE_S` elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

from bookies.spark.jobs.shared.packing import Estimate
from bookies.units import decimal_size_text, duration_text

LOOK_S = 0.5
LINE_S = 15.0  # between lines if stderr is not a terminal


class Begun(Struct, frozen=True):
    """Run of a job that begins. `skipped`: items that are done. `is_kept`: results outlast an interruption."""

    name: str
    run_id: str
    plan: Estimate
    skipped: int = 0
    is_kept: bool = True


def rest_s(done: int, total: int, passed_s: float, forecast_s: float) -> float | None:
    """Return the seconds that are left: by the tasks that are done, before that by the forecast; None: unknown."""
    if done:
        return (total - done) * passed_s / done
    return forecast_s - passed_s if passed_s < forecast_s else None


class Progress:
    """Progress display of the Spark jobs of one run, as a context manager. Interrupting the block cancels the jobs."""

    def __init__(self, spark: Any, run: Begun, *, is_quiet: bool) -> None:
        self._context = spark.sparkContext
        self._run, self._group, self._is_quiet = run, f"{run.name}-{run.run_id}", is_quiet
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._width = 0

    def begin(self) -> None:
        """Print the plan. Call inside the block: interruptions from then on report what becomes of the run."""
        run, plan = self._run, self._run.plan
        before = f", {run.skipped:,} already done" if run.skipped else ""
        self._say(
            f"{run.name}, run {run.run_id}: {plan.items:,} items{before}, {decimal_size_text(plan.size)} in "
            f"{plan.tasks:,} tasks, about {duration_text(plan.seconds)}"
        )

    def __enter__(self) -> Self:
        self._context.setJobGroup(self._group, f"bookies {self._run.name}", interruptOnCancel=False)
        if not self._is_quiet:
            self._thread.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._clear()
        if error_type is None or not issubclass(error_type, KeyboardInterrupt):
            self._context.setLocalProperty("spark.jobGroup.id", None)
            return
        if self._run.is_kept:
            self._say(f"interrupted; finished items are kept: repeat it with run id {self._run.run_id}")
        else:
            self._say("interrupted; no results are kept, because there is no output directory")
        from py4j.protocol import Py4JError

        with contextlib.suppress(Py4JError):  # An interrupted call can break its connection to Java.
            self._context.cancelJobGroup(self._group)
            self._context.setLocalProperty("spark.jobGroup.id", None)

    def _watch(self) -> None:
        begin = printed = time.monotonic()
        is_terminal = sys.stderr.isatty()
        while not self._ended.wait(LOOK_S):
            now = time.monotonic()
            if not is_terminal and now - printed < LINE_S:
                continue
            printed = now
            done, total = self._tasks()
            left = rest_s(done, total, now - begin, self._run.plan.seconds)
            rest = "" if left is None else f", {duration_text(left)} left"
            text = f"  {self._run.name}: {done:,} of {total:,} tasks, {duration_text(now - begin)}{rest}"
            if is_terminal:
                sys.stderr.write("\r" + text.ljust(self._width))
                sys.stderr.flush()
                self._width = len(text)
            else:
                self._say(text)

    def _tasks(self) -> tuple[int, int]:
        """Return how many tasks of the last started stage are done, and how many it has."""
        tracker = self._context.statusTracker()
        done = total = 0
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info else ():
                stage_info = tracker.getStageInfo(stage)
                if stage_info is not None and stage_info.numTasks == self._run.plan.tasks:
                    done, total = stage_info.numCompletedTasks, stage_info.numTasks
        return done, total or self._run.plan.tasks

    def _clear(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0

    def _say(self, text: str) -> None:
        if not self._is_quiet:
            print(text, file=sys.stderr, flush=True)
