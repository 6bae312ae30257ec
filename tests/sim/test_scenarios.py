"""Every schedule of tests/scenarios comes out as written; the parser says where and what it expected."""

from __future__ import annotations

import pathlib
import re
from itertools import combinations

import pytest

from bookies.lab.sim.scenario import read_scenario, run_scenario
from bookies.lab.sim.scenario.scenario import Scenario, ScenarioError, Variant, parse_scenario
from bookies.lab.sim.scenario.scenario_grammar import FRAGMENTS, SENTENCES

ROOT = pathlib.Path(__file__).parent.parent.parent
FILES = sorted((ROOT / "tests" / "scenarios").glob("*.txt"))
RUNS = [(scenario, variant) for scenario in map(read_scenario, FILES) for variant in scenario.variants]
HEAD = "A title\n\ncluster b0 b1 b2\nW create 3/3/2 on b0 b1 b2\n"


@pytest.mark.parametrize(("scenario", "variant"), RUNS, ids=[f"{each.name}{way.name}" for each, way in RUNS])
def test_scenario(scenario: Scenario, variant: Variant) -> None:
    result = run_scenario(scenario, variant)
    assert not result.failures, result.report()


def failures_of(steps: str) -> str:
    scenario = parse_scenario("test", HEAD + steps)
    return "\n".join(run_scenario(scenario, scenario.variants[0]).failures)


def test_the_same_run_twice_has_the_same_trace() -> None:
    scenario, variant = RUNS[0]
    assert run_scenario(scenario, variant).lines == run_scenario(scenario, variant).lines


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ("W append 0 fails LedgerFenced", "test:5: `W append 0 fails LedgerFenced`: expected .* to fail with LedgerFe"),
        ("R recover\nW append 0", "test:6: .* to succeed; it failed with LedgerFenced"),
        ("hold W add 0 -> b0\nrelease W add 0 -> b0", "test:6: .*: no message is held for b0"),
        ("hold W add 0 -> b0 b1\nW seal", "test: `hold W add 0 -> b0 b1`: no such message was sent"),
        ("lose W read -> store", "test: `lose W read -> store`: no such message was sent"),
        ("W append 0 &", "test: `W append 0 &` is never awaited"),
        ("expect record CLOSED 0", "test:5: .*expected CLOSED, found <LedgerMetadata 0 OPEN"),
        ("expect entry 0 on b1", "test:5: .*b1: no entry 0"),
        ("expect 1 W add 0 -> b0", "expected 1 W add 0 -> b0, found 0"),
        ("expect W confirmed 3", "W knows -1"),
        ("crash b7", "there is no bookie b7"),
        ("crash T", "there is no client T"),
        ("T read 0", "T has not opened a ledger"),
        ("await W append 3", "not all of it was begun"),
        ("client T nothing=1", "there is no setting nothing"),
        ("expect pending W append 0", "was not begun"),
        ("start b0", "b0 is up"),
    ],
)
def test_what_does_not_happen_as_written_fails(steps: str, problem: str) -> None:
    assert re.search(problem, failures_of(steps)), failures_of(steps)


def test_a_broken_promise_fails() -> None:
    steps = "W append 0\nplant entry 1 lac 0 on b0 b1 b2\nT open\nR recover\nR read 0..1"
    assert failures_of(steps) == ""  # What somebody planted on all bookies is an entry of the ledger.
    assert "I-26" in failures_of("W append 0..1\nanswer all R recovery-read -> b0 b1 b2 with NO_ENTRY\nR recover")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "test:1: expected a title"),
        ("A title\n\nW append 0", "the first step to be `cluster BOOKIES`"),
        (HEAD + "W apend 0", "test:5: `W apend 0` is no step; expected a line that begins with one of"),
        (HEAD + "W append x", "test:5: .* expected `CLIENT append ENTRIES [ENDING]`"),
        (HEAD + "\n# why\nhold W ad 0 -> b0", "test:7: `ad` is not a kind of message; expected one of add, "),
        (HEAD + "W append 5..3", "test:5: `5..3`: expected first..last"),
        (HEAD + "W append 0..999999999999", "test:5: `0..999999999999`: expected at most 10,000 entries in one step"),
        (HEAD + "allow I-34", "test:5: `I-34` is no promise; expected I-1 to I-33, B-1, or L-1 to L-4"),
        (HEAD + "(a) one\nW append 0\n(a) two", "test:7: there is a section (a) already"),
        (HEAD + "expect record OPENED", "`expect record STATE [NUMBER]`"),
    ],
)
def test_errors_name_the_line_and_what_was_expected(text: str, problem: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(problem).replace("\\.\\*", ".*")):
        parse_scenario("test", text)


def test_sections_share_the_steps_before_them() -> None:
    scenario = parse_scenario("test", HEAD + "(a) one\nW seal\n\n(b) two\nW append 0\n")
    assert [(each.name, each.title, len(each.steps)) for each in scenario.variants] == [
        ("a", "one", 3),
        ("b", "two", 3),
    ]


STRIPED = "A title\n\ncluster b0 b1 b2 b3 b4\nW create 5/3/2 on b0 b1 b2 b3 b4\nW append 0..3\n"


@pytest.mark.parametrize("silent", list(combinations("01234", 2)), ids="".join)
def test_no_three_answers_cover_five_bookies(silent: tuple[str, str]) -> None:
    """X-21 for every subset: with two silent a recovery waits, whichever they are; with one it goes on."""
    first, second = silent
    steps = f"hold R fence -> b{first} b{second}\nR recover &\nwait 1 s\nexpect pending R recover\n"
    steps += f"expect 0 R recovery-read -> b0 b1 b2 b3 b4\nrelease R fence -> b{second}\nwait 1 s\nawait R recover"
    scenario = parse_scenario("test", STRIPED + steps)
    assert not run_scenario(scenario, scenario.variants[0]).failures


TAIL = """
W append 0..1
hold W add 2 -> b0 b2
hold W add 3 -> b0 b1
W append 2..3 &
"""
ANY_MESSAGE = {
    "a recovery dies": TAIL + "crash W\ncrash R after {n} messages\nR recover &\nwait 8 s\nR2 recover\nR2 read 0..1",
    "a recovery loses its connections": TAIL + "crash W\nbreak R after {n} messages\nR recover &\nwait 8 s\nR2 recover",
    "a writer dies": "start b3\ncrash W after {n} messages\nW append 0..3 &\nwait 0.1 s\nR recover\nR read all",
    "a writer dies that replaces a bookie": (
        "start b3\nW append 0..1\nhold W add 2 -> b0\ncrash b2\n"
        "crash W after {n} messages\nW append 2..3 &\nwait 1 s\nR recover"
    ),
    "a bookie fails while recovered": TAIL
    + "start b3\npower fails at b1 after {n} messages\nR recover &\nwait 8 s\nR2 recover",
}


@pytest.mark.parametrize("steps", ANY_MESSAGE.values(), ids=ANY_MESSAGE)
def test_after_any_message(steps: str) -> None:
    """What is on its way and what is not, is decided at every message in turn (X-4, X-6); every promise holds."""
    for number in range(1, 200):
        failures = failures_of(steps.format(n=number))
        if "more messages`: no such message was sent" in failures:
            assert number > 4, failures
            return
        unjudged = [line for line in failures.splitlines() if "is never awaited" not in line]
        assert not unjudged, f"after message {number}: {failures}"
    raise AssertionError("it never ends")


def test_the_page_has_every_step() -> None:
    page = (ROOT / "docs" / "internals" / "scenarios.md").read_text()
    lacking = [sentence.template for sentence in SENTENCES if f"`{sentence.template}`" not in page]
    lacking += [name for name in FRAGMENTS if f"`{name}`" not in page]
    assert not lacking, "docs/internals/scenarios.md lacks " + "; ".join(lacking)
