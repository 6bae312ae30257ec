"""`bk sim --damage N`: N random mutations of a bookie's files, each followed by a check of the bookie's answers."""

from __future__ import annotations

import logging
import time

from bookies.admin.shared import Progress
from bookies.admin.shared.common import quiet_logs
from bookies.admin.shared.report import Report, Table
from bookies.lab.sim.faults.damage import Summary, build, fuzz


def run_damage(count: int, *, first: int = 0, is_quiet: bool = False) -> Report:
    """Run mutations `first` to `first + count - 1`, of a stopped and of a killed bookie. Status 1: a bookie lied."""
    with quiet_logs(logging.CRITICAL):  # every event would report the injected damage
        return _run(count, first, is_quiet)


def _run(count: int, first: int, is_quiet: bool) -> Report:
    began = time.process_time()
    bases = build("fuzz", is_clean=True), build("fuzz", is_clean=False)
    others = build("other", is_clean=True, skip=1).files
    progress = Progress("mutations", count, quiet=is_quiet)
    total = Summary()
    for number in range(first, first + count):
        total.add(fuzz(number, 1, bases, others))
        progress.update(total.count, f"{len(total.lies)} lies")
    progress.clear()
    row = {
        "mutations": total.count,
        "lies": len(total.lies),
        "starts_refused": total.refused,
        "served_whole": total.unharmed,
        "cpu_s": round(time.process_time() - began),
    }
    facts = row | {"said": [{"mutation": name, "lie": text} for name, text in total.lies]}
    cells = [(name.replace("_", " "), f"{value:,}") for name, value in row.items()]
    lies = [f"mutation {name}: {text}" for name, text in total.lies]
    return Report(facts, [*lies, Table(("what", "count"), cells, (1,))], 1 if total.lies else 0)
