"""Run the exhibits: `python -m tests.museum.run [NAME ..] [--write]`.

Runs each exhibit with its mistake until the mistake is detected; then runs the same seeds or disk calls without it, and
continues for `--steps` steps. `--write` puts the results into docs/internals/museum.md and keeps the sections of
exhibits that are not named. The exit status is 0 if each mistake was detected and no run without it failed.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

import pytest
from tests.museum import exhibits, restarts, rows, space  # noqa: F401  (`restarts` adds its exhibits to the list)

from bookies.lab.sim.run import simulate
from bookies.lab.sim.scenario import read_scenario, run_scenario
from bookies.lab.sim.world.disk import LOSSES, NOTHING_SURVIVES, PROCESS_DIES

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "internals" / "museum.md"
SEEDS_MAX = 40
CALLS_MAX = 2_000
WAYS = (NOTHING_SURVIVES, *LOSSES, PROCESS_DIES)
INTRODUCTION = """# The museum

Widely used systems have lost data, or nearly lost it, by mistakes that are hard to see in the code.
Each exhibit repeats one of them: a patch makes one decision of this code wrong in the same way, and
the [simulator](simulator.md) must detect it. Without the patch every promise must hold.

`make museum` writes this page. `python -m tests.museum.run NAME --verbose` reproduces an exhibit. A
*step* is an event of the simulated world. In a crash sweep it is a disk call, at which the power
fails.
"""


@dataclass
class Seen:
    """Result of some histories. `number`: the one that failed (a seed, a disk call); `failure`: how it failed."""

    histories: int = 0
    steps: int = 0
    number: int | None = None
    failure: str = ""


def hunt(profile: str, seeds: range, steps_max: int = sys.maxsize, duration_s: float | None = None) -> Seen:
    """Run seeds until one fails or `steps_max` is reached. `duration_s`: virtual seconds; None: the profile's."""
    seen = Seen()
    for seed in seeds:
        result = simulate(seed, profile, stops_at_first=True, duration_s=duration_s)
        seen.histories += 1
        seen.steps += int(result.statistics["callbacks"])
        if result.violations:
            seen.number, seen.failure = seed, result.violations[0]
            break
        if seen.steps >= steps_max:
            break
    return seen


def sweep(where: Any, calls: range) -> Seen:
    """Crash at these disk calls, with alternating kinds of loss, until a promise is broken or the calls end."""
    seen = Seen()
    for number in calls:
        seen.histories += 1
        seen.steps = number
        machine = exhibits.lives.Machine("museum", **dict(where.settings))
        is_over = where.is_survived
        try:
            is_over = machine.live(where.script, crash_at=None if where.is_survived else number)
            if where.comes_back:
                machine.crash(PROCESS_DIES)
                machine.live(_nothing, stops=False)
                machine.crash(NOTHING_SURVIVES)
                machine.live(_keeps_its_index)
            elif not where.is_survived:
                machine.crash(NOTHING_SURVIVES if is_over else WAYS[number % len(WAYS)])
            machine.check(lives=1)
            assert not machine.failures, machine.failures
        except Exception as error:  # noqa: BLE001  (any failure is the result)
            seen.number, seen.failure = number, f"{type(error).__name__}: {error}"
            break
        if is_over:
            break
    return seen


def sweep_space(where: Any, calls: range) -> Seen:
    """Crash a bookie that collects or compacts, with the kinds of loss and the checks of `space_world`."""
    seen = Seen()
    crashes = space.sweep_of(where.script, dict(where.settings))
    for number in calls:
        seen.histories += 1
        seen.steps = number
        try:
            is_over = crashes.crash(number)
        except Exception as error:  # noqa: BLE001  (as above)
            seen.number, seen.failure = number, f"{type(error).__name__}: {error}"
            break
        if is_over:
            break
    return seen


async def _nothing(store: Any, promises: Any) -> None:
    """Start, and do nothing else."""


async def _keeps_its_index(store: Any, promises: Any) -> None:
    """Fail if an index file was lost. The rebuild of it would keep the promises, so they do not show the loss."""
    count = (await store.repair())["rebuilt"]
    assert count == 0, f"{count} index files are lost that a checkpoint had covered"


def play(where: Any) -> Seen:
    """Run the lives once. A step is a disk call."""
    machine = exhibits.lives.Machine("museum", **dict(where.settings))
    seen = Seen(histories=1)
    try:
        where.play(machine)
    except Exception as error:  # noqa: BLE001  (as above)
        seen.number, seen.failure = 1, f"{type(error).__name__}: {error}"
    seen.steps = machine.disk.call_count
    return seen


def schedule(where: Any) -> Seen:
    """Run the scenario in all its variants."""
    scenario = read_scenario(exhibits.mutants.SCENARIOS / f"{where.name}.txt")
    seen = Seen()
    for variant in scenario.variants:
        result = run_scenario(scenario, variant)
        seen.histories += 1
        seen.steps += len(result.lines)
        if result.failures and seen.number is None:
            seen.number, seen.failure = seen.histories, result.failures[0]
    return seen


def look(where: Any, first: int = 1, steps_max: int = sys.maxsize) -> Seen:
    """Search from the first seed or disk call on, until a failure or the end."""
    if isinstance(where, exhibits.Hunt):
        return hunt(where.profile, range(first, first + (SEEDS_MAX if steps_max == sys.maxsize else 10**6)), steps_max)
    if isinstance(where, exhibits.Lives):
        return play(where)
    if isinstance(where, exhibits.Schedule):
        return schedule(where)
    if isinstance(where, exhibits.Reclaim):
        return sweep_space(where, range(first, CALLS_MAX))
    return sweep(where, range(first, CALLS_MAX))


def look_with(each: Any, first: int = 1) -> Seen:
    """Search with the mistake in place."""
    with pytest.MonkeyPatch.context() as patch:
        each.apply(patch)
        seen = look(each.where, first)
    exhibits.mutants.expect_mistake([seen.failure])
    return seen


def short(text: str, width: int = 160) -> str:
    line = " ".join(text.split()).replace("|", "/").replace("<", "(").replace(">", ")")
    return line if len(line) <= width else line[: width - 2] + " .."


def where_text(where: Any, seen: Seen) -> str:
    if isinstance(where, exhibits.Hunt):
        return (
            f"profile `{where.profile}`, seed {seen.number}, after {seen.steps:,} steps in {seen.histories} histories"
        )
    if isinstance(where, exhibits.Schedule):
        return f"scenario `{where.name}`, {seen.steps:,} lines of trace"
    if isinstance(where, exhibits.Lives):
        return f"lives of `{where.play.__name__}`, {seen.steps:,} disk calls"
    what = f"crash sweep of `{where.script.__name__}`"
    if isinstance(where, exhibits.Reclaim):
        return f"{what}, a crash at its disk call {seen.number}"
    if where.comes_back:
        return f"{what}, the process dies at disk call {seen.number}, and the power fails when it is back"
    return f"{what}, no crash needed" if where.is_survived else f"{what}, power fails at disk call {seen.number}"


def links_of(each: Any) -> str:
    return ", ".join(f"[{link.rsplit('/', 1)[1]}]({link})" for link in each.links) or "no public report"


def wrapped(text: str) -> str:
    """Break a paragraph, or an item of a list, into lines of at most 100 characters."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def section(each: Any, seen: Seen, without: Seen) -> str:
    found = where_text(each.where, seen) if seen.number is not None else "**not found**"
    failures = 0 if without.number is None else 1
    facts = [
        f"- mistake: {each.here}",
        f"- detected by: {found}",
        f"- reported as: {short(seen.failure)}",
        f"- without the mistake: {without.histories:,} histories, {without.steps:,} steps, {failures} failures",
    ]
    head = wrapped(f"`{each.name}` · {links_of(each)}")
    return f"### {each.title}\n\n{head}\n\n{wrapped(each.story)}\n\n" + "\n".join(map(wrapped, facts)) + "\n"


def page(shown: dict[str, str]) -> str:
    """Return the page. `shown`: new sections by the name of the exhibit; the other sections stay."""
    old = re.split(r"^(?=##)", PAGE.read_text(), flags=re.MULTILINE)
    before = {match[1]: each for each in old if (match := re.match(r"### .*\n\n`([a-z-]+)` ·", each))}
    sections = [(before | shown).get(each.name, "").strip() + "\n" for each in exhibits.EXHIBITS]
    absent = [
        f"### {each.title}\n\n{wrapped(links_of(each))}\n\n{wrapped(f'{each.story} {each.will}')}\n"
        for each in rows.NOT_MADE
    ]
    lists = [rows.table(*each, exhibits.EXHIBITS) for each in rows.LISTS]
    return "\n".join([INTRODUCTION, "## Exhibits\n", *sections, "## Without an exhibit\n", *absent, *lists])


def main(arguments: list[str] | None = None) -> int:
    """Run the exhibits whose names are given, or all."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--steps", type=int, default=50_000, help="steps of each hunt without its mistake (default 50000)"
    )
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    parser.add_argument("--verbose", action="store_true", help="print the whole text of a failure")
    given = parser.parse_args(arguments)
    chosen = [each for each in exhibits.EXHIBITS if not given.names or each.name in given.names]
    shown: dict[str, str] = {}
    is_well = bool(chosen)
    for each in chosen:
        seen = look_with(each)
        without = look(each.where, steps_max=given.steps)
        is_well &= seen.number is not None and without.number is None
        shown[each.name] = section(each, seen, without)
        found = "NOT FOUND" if seen.number is None else where_text(each.where, seen)
        print(
            f"{each.name:28} {found}; without: {without.histories} histories, {without.failure or 'holds'}", flush=True
        )
        if given.verbose:
            print(seen.failure)
    if given.write:
        PAGE.write_text(page(shown))
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
