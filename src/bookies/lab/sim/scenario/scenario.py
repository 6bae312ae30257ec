"""Scenario files: schedules of a cluster, written line by line, run against the production code on virtual time.

A file begins with a title and a description; the steps follow after the first empty line. Each step begins when the
previous one has ended and all free messages have been delivered. Steps on one line, separated by ` ; `, happen in the
same instant. After the common steps a file may have sections that begin with `(a) title`. Each section is a run of its
own, which starts with the common steps.

A run fails if a step does not happen as written, if a rule matches no message, if a background operation is never
awaited, or if one of the simulator's checkers reports a violation, during the run or after the healing.
"""

from __future__ import annotations

import asyncio
import pathlib
import re
from collections.abc import Sequence

from msgspec import Struct

from bookies.lab.sim.faults import Profile
from bookies.lab.sim.run import Simulation
from bookies.lab.sim.scenario import scenario_expect, scenario_healing, scenario_ledgers, scenario_steps
from bookies.lab.sim.scenario.scenario_failure import ScenarioFailure
from bookies.lab.sim.scenario.scenario_grammar import Given, Sentence, StepSyntaxError, parse_step
from bookies.lab.sim.scenario.scenario_stage import SETTLING_S, Stage

VOCABULARY = (
    scenario_steps,
    scenario_ledgers,
    scenario_healing,
    scenario_expect,
)  # Importing them declares every step.
_SECTION = re.compile(r"\((\w)\) (.+)")


class ScenarioError(ValueError):
    """Invalid scenario file. The message names the file, the line and the expected text."""


class Step(Struct, frozen=True):
    """One step of a file. `settles`: all free messages are delivered before the next step."""

    line: int
    text: str
    sentence: Sentence
    given: Given
    settles: bool


class Variant(Struct, frozen=True):
    """One run of a file. `name`: the letter of its section, empty without sections."""

    name: str
    title: str
    steps: Sequence[Step]


class Scenario(Struct, frozen=True):
    """A parsed scenario file. `about`: the lines below the title."""

    name: str
    title: str
    about: str
    variants: Sequence[Variant]


class ScenarioResult(Struct, frozen=True):
    """The result of a run. Empty `failures`: all steps happened as written, and every promise held."""

    name: str
    failures: Sequence[str]
    lines: Sequence[str]

    def report(self, line_count: int = 60) -> str:
        """Return the report for the user: the failures, and the last lines of the trace."""
        return "\n".join(
            [f"{self.name}: failed", *(f"  {failure}" for failure in self.failures), "", *self.lines[-line_count:]]
        )


def read_scenario(path: pathlib.Path) -> Scenario:
    """Read a scenario file. Raises `ScenarioError`, OSError."""
    return parse_scenario(path.name, path.read_text())


def parse_scenario(name: str, text: str) -> Scenario:
    """Parse the text of a scenario file. `name`: for messages. Raises `ScenarioError`."""
    head, _, _ = text.partition("\n\n")
    lines = text.splitlines()
    title, *about = head.splitlines() or [""]
    if not title.strip():
        raise ScenarioError(f"{name}:1: expected a title")
    common: list[Step] = []
    sections: list[tuple[str, str, list[Step]]] = []
    for number, line in enumerate(lines[len(about) + 1 :], len(about) + 2):
        words = " ".join(line.partition("#")[0].split())
        if not words:
            continue
        if section := _SECTION.fullmatch(words):
            if any(letter == section[1] for letter, _, _ in sections):
                raise ScenarioError(f"{name}:{number}: there is a section ({section[1]}) already")
            sections.append((section[1], section[2], []))
            continue
        parts = words.split(" ; ")
        for part in parts:
            try:
                sentence, given = parse_step(part)
            except StepSyntaxError as error:
                raise ScenarioError(f"{name}:{number}: {error}") from None
            step = Step(number, part, sentence, given, settles=part is parts[-1])
            (sections[-1][2] if sections else common).append(step)
    if not any(step.text.startswith("cluster ") for step in common[:1]):
        raise ScenarioError(f"{name}: expected the first step to be `cluster BOOKIES`")
    variants = [Variant(letter, its_title, [*common, *steps]) for letter, its_title, steps in sections]
    return Scenario(name, title, "\n".join(about), variants or [Variant("", title.partition("  ")[2] or title, common)])


def run_scenario(scenario: Scenario, variant: Variant, seed: int = 1) -> ScenarioResult:
    """Run one variant. Mistakes of the simulated code do not raise: they are in `failures`."""
    name = scenario.name + (f" ({variant.name})" if variant.name else "")
    simulation = Simulation(seed, Profile(bookies=0, client_settings={}))
    stage = Stage(simulation)
    failures: list[str] = []

    async def main(simulation: Simulation) -> None:
        for step in variant.steps:
            simulation.trace.note("script", f"line {step.line}: {step.text}")
            try:
                await step.sentence.perform(stage, **step.given)
            except ScenarioFailure as failure:
                failures.append(f"{scenario.name}:{step.line}: `{step.text}`: {failure}")
                return
            if step.settles:
                await asyncio.sleep(SETTLING_S)
        failures.extend(f"{scenario.name}: {problem}" for problem in stage.forgotten())
        failures.extend(f"{scenario.name}: `{rule}`: no such message was sent" for rule in stage.messages.end())
        failures.extend(f"{scenario.name}: {problem}" for problem in await scenario_healing.end_healing(stage))
        await simulation.heal_and_check()

    simulation.run(main)
    violations = simulation.history.violations
    failures += [violation for violation in violations if violation.split(":")[0] not in stage.allowed]
    return ScenarioResult(name, failures, simulation.trace.lines)
