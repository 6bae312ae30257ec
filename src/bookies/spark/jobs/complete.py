"""Result of a job: its table, and the report about it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from bookies.spark.jobs.shared.common import Run
from bookies.spark.jobs.shared.report import Report, Section, Table
from bookies.units import decimal_size_text, duration_text


class Complete(Struct, frozen=True):
    """Result of a job. `frame`: the job's table."""

    frame: Any
    report: Report

    def _repr_html_(self) -> str:
        """Show the report in a notebook."""
        return self.report._repr_html_()

    @classmethod
    def planned(cls, name: str, run: Run) -> Complete:
        """Return the result of a run that was only planned: its tasks."""
        plan = run.estimate
        lead = (
            f"{plan.items:,} items in {plan.tasks:,} tasks, {decimal_size_text(plan.size)}, about "
            f"{duration_text(plan.seconds)}; nothing was done"
        )
        by_bookie = sorted(plan.by_bookie.items())
        sections = [
            Section(
                "Bytes by bookie",
                table=Table(("bookie", "bytes"), by_bookie, (1,), [size for _, size in by_bookie]),
            )
        ]
        return cls(run.results, Report(f"Plan of {name}", lead, True, dict(run.config.options), sections))
