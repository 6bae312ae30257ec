"""The order of runs: case by case, contestants in turn, those of a pair one right after the other."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.suite.cases import DEFAULT, Case, Setting
from benchmarks.suite.figures import Row, Run, compare
from benchmarks.suite.guard import DriveFailed
from benchmarks.suite.limits import Limits
from benchmarks.suite.servers import SETTINGS
from benchmarks.suite.stage import BEFORE, NOW, Contestant, Stage

APACHE = "Apache"


@dataclass(frozen=True, slots=True)
class Contest:
    """A case with what takes part in it. `references`: by contestant that is judged, the name of its reference."""

    case: Case
    setting: str
    contestants: tuple[Contestant, ...]
    references: dict[str, str]


def against_apache(case: Case, setting: Setting) -> Contest:
    """Apache with one of its settings, then each way of ours; of a crossed case the two mixtures."""
    servers = f"{APACHE}: {setting.servers}"
    apache = Contestant(APACHE, servers, "Java", setting.words)
    if case.is_crossed:
        others = [
            Contestant("our bookies, Apache's client", "ours", "Java", setting.words),
            Contestant("Apache's bookies, our client", servers, "ours"),
        ]
    else:
        others = [
            Contestant(f"ours, {way.name}" if way.name else "ours", "ours", "ours", way.words, is_asked=not number)
            for number, way in enumerate(case.ways)
        ]
    return Contest(case, str(setting), (apache, *others), {each.name: APACHE for each in others})


def against_revision(case: Case) -> Contest:
    """The same way with both revisions, one way after the other; nothing is asked."""
    contestants, references = [], {}
    for way in case.ways:
        before, now = (f"{name}, {way.name}" if way.name else name for name in (BEFORE, NOW))
        contestants.append(Contestant(before, BEFORE, BEFORE, way.words, is_asked=False))
        contestants.append(Contestant(now, NOW, NOW, way.words, is_asked=False))
        references[now] = before
    return Contest(case, "", tuple(contestants), references)


def contests(cases: Sequence[Case], *, is_apache: bool) -> list[Contest]:
    """Those with clusters of their own first, then by what Apache's bookies run with: one of its clusters at a time."""
    if not is_apache:
        # Without those that are there twice, for another setting of Apache's.
        usual = [case for case in cases if any(each.servers == DEFAULT.servers for each in case.settings)]
        return [against_revision(case) for case in usual if not case.is_crossed]
    found = [against_apache(case, setting) for case in cases for setting in case.settings]
    order = [f"{APACHE}: {name}" for name in SETTINGS]
    return sorted(found, key=lambda each: (not each.case.has_own_cluster, order.index(each.contestants[0].servers)))


def run(stage: Stage, planned: Sequence[Contest], pairs: int, runs: list[Run]) -> None:
    """Every contest so many times, each run added to `runs`; one that fails is kept with what went wrong."""
    servers: set[str] = set()
    for contest in planned:
        needed = {each.servers for each in contest.contestants} if not contest.case.has_own_cluster else set()
        for name in sorted(servers - needed):
            if name.startswith(APACHE):
                stage.stop(name)
        servers = needed
        for pair in range(pairs):
            # A B, B A, A B: nobody always runs on what the other one has left behind.
            for contestant in contest.contestants if pair % 2 == 0 else reversed(contest.contestants):
                runs.append(_run(stage, contest, contestant, pair))
                _say(runs[-1])


def _run(stage: Stage, contest: Contest, contestant: Contestant, pair: int) -> Run:
    case = contest.case
    stage.make_room()
    os.sync()  # What the one before has written is not this one's to wait for.
    try:
        values = dict(case.run(stage, contestant))
    except (DriveFailed, RuntimeError, OSError) as error:
        stage.stop_broken()
        return Run(case.name, contest.setting, contestant.name, pair, failure=f"{type(error).__name__}: {error}")
    return Run(case.name, contest.setting, contestant.name, pair, values)


def _say(run: Run) -> None:
    shown = ", ".join(f"{name} {value:,.4g}" for name, value in run.values.items() if name != "ledger")
    place = f"{time.strftime('%H:%M:%S')} load {os.getloadavg()[0]:.1f}  {run.case}, {run.contestant}"
    place += f" [{run.setting}]" if run.setting else ""
    print(f"{place}: {run.failure or shown}", file=sys.stderr, flush=True)


def rows(planned: Sequence[Contest], runs: Sequence[Run], limits: Limits, *, is_quick: bool = False) -> list[Row]:
    """One for each figure and contestant that is judged, and of a case with several settings for the best of them."""
    found: list[Row] = []
    seen: set[tuple[str, str]] = set()
    ran = {run.case for run in runs}
    for contest in (each for each in planned if each.case.name in ran):
        asked = {each.name: each.is_asked for each in contest.contestants}
        case = contest.case.name
        for name, reference in contest.references.items():
            if (case, name) in seen:
                continue
            seen.add((case, name))
            found += [
                compare(runs, case, figure, name, reference, is_asked=asked[name], is_quick=is_quick, limits=limits)
                for figure in contest.case.figures
            ]
    return found
