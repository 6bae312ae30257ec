"""Grammar of scenario files: a template declares each step, as its grammar and its documentation.

A template is a line of words. Words in capitals are placeholders from `FRAGMENTS`. `[ ]` encloses optional parts:

    @step("expect entry NUMBER on BOOKIES", "each of them has the entry", is_there=True)
    async def entry_on(stage, number, bookies, is_there): ...

The function receives the value of each placeholder: entries as a range, several names as a list, options as a
dictionary, missing parts as None. Values that a declaration adds are passed too: similar steps share a function.

`operation` declares a step that begins with a client. The client performs it; with ` &` it goes on in the background,
and the line up to there names it in `await`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from bookies.lab.sim.scenario.scenario_failure import ScenarioFailure
from bookies.lab.sim.scenario.scenario_messages import Pattern
from bookies.lab.sim.scenario.scenario_wire import KINDS

if TYPE_CHECKING:
    from bookies.lab.sim.scenario.scenario_stage import Stage

Given = dict[str, Any]
Perform = Callable[..., Coroutine[Any, Any, None]]  # of the stage, and of the values by their names

_CLIENT, _BOOKIE, _ENTRIES = r"[WRTHA]\d*", r"b\d+", r"\d+(?:\.\.\d+)?"
_BOOKIES = rf"{_BOOKIE}(?: {_BOOKIE})*"
_HOST = rf"(?:{_CLIENT}|{_BOOKIE}|store)"
# Placeholder -> (regular expression, description).
FRAGMENTS = {
    "CLIENT": (_CLIENT, "W, W1.. writer; R.. recovery; T.. reader; H.. auto-recovery; A.. administration"),
    "BOOKIE": (_BOOKIE, "b0, b1 .."),
    "BOOKIES": (_BOOKIES, "one or more bookies"),
    "HOST": (_HOST, "a client, a bookie or `store`, the metadata store"),
    "HOSTS": (rf"{_HOST}(?: {_HOST})*", "one or more hosts"),
    "ENTRIES": (_ENTRIES, "an entry id, or first..last"),
    "NUMBER": (r"-?\d+", "a number"),
    "COUNT": (r"(?:[<>]= )?\d+", "a number, or `>= ` or `<= ` a number"),
    "SECONDS": (r"\d+(?:\.\d+)?", "virtual seconds"),
    "QUORUMS": (r"\d+/\d+/\d+", "ensemble/write quorum/ack quorum"),
    "MESSAGES": (
        rf"{_CLIENT} [a-z-]+(?: {_ENTRIES})? (?:->|<-) (?:store|{_BOOKIES})",
        "CLIENT KIND [ENTRIES] -> PEERS (requests) or <- PEERS (answers)",
    ),
    "STATUS": (r"[A-Z]\w*", "status of an answer: OK, NO_ENTRY, FENCED, READ_ONLY, IO_ERROR .."),
    "STATE": (r"OPEN|IN_RECOVERY|CLOSED", "OPEN, IN_RECOVERY or CLOSED"),
    "REPAIR": (r"repairable|waiting|lost", "repairable, waiting or lost"),
    "FRAGMENTS": (rf"\d+: {_BOOKIES}(?:, \d+: {_BOOKIES})*", "0: b0 b1 b2, 10: b0 b3 b2"),
    "OPTIONS": (r"\w+=\S+(?: \w+=\S+)*", "name=value .."),
    "ERROR": (r"[A-Z]\w*", "the name of an exception"),
    "INVARIANT": (r"[A-Z]+-\d+", "I-2 .."),
    "ENDING": (r"&|fails [A-Z]\w*", "`&`: do not wait for the end; `fails ERROR`: the operation must fail with it"),
    "OPERATION": (r"[a-z]+(?: (?!fails)\S+)*?", "the client's operation, as in the step that began it"),
    "EXPECTATION": (r".+", "the rest of an `expect` step"),
}


PROMISES = (*(f"I-{number}" for number in range(1, 34)), "B-1", "L-1", "L-2", "L-3", "L-4")  # client-protocol 8.2
ENTRIES_MAX = 10_000  # of one step


class StepSyntaxError(ValueError):
    """A line that matches no step, or a value out of range."""


class Sentence(Struct, frozen=True):
    """One kind of step. `fixed`: values that the declaration adds. `is_operation`: see `operation`."""

    template: str
    help: str
    perform: Perform
    expression: re.Pattern[str]
    fixed: Given = field(default_factory=dict)
    is_operation: bool = False

    def match(self, text: str) -> Given | None:
        match = self.expression.fullmatch(text)
        if match is None:
            return None
        given = {name: _convert(name, value) for name, value in match.groupdict().items()}
        return {**given, **self.fixed, **({"text": _ADDITIONS.sub("", text)} if self.is_operation else {})}


_ADDITIONS = re.compile(rf"(?: {FRAGMENTS['OPTIONS'][0]})?(?: (?:{FRAGMENTS['ENDING'][0]}))?$")
SENTENCES: list[Sentence] = []


def step(template: str, help: str, **fixed: object) -> Callable[[Perform], Perform]:
    """Declare a step."""

    def declare(perform: Perform) -> Perform:
        SENTENCES.append(Sentence(template, help, perform, _compile(template), fixed))
        return perform

    return declare


def operation(template: str, help: str, **fixed: object) -> Callable[[Perform], Perform]:
    """Declare a step that a client performs. The function also receives the client, its `name` and its own `text`."""

    def declare(work: Perform) -> Perform:
        async def perform(stage: Stage, client: str, text: str, ending: str | None = None, **given: Any) -> None:
            performer = await stage.connected(client)
            await stage.perform(performer, text, work(stage, performer, client, **given), ending)

        SENTENCES.append(Sentence(template, help, perform, _compile(template), fixed, is_operation=True))
        return work

    return declare


def parse_step(text: str) -> tuple[Sentence, Given]:
    """Return a line's sentence and its values. Raises `StepSyntaxError`, whose message names the expected steps."""
    for sentence in SENTENCES:
        if (given := sentence.match(text)) is not None:
            return sentence, given
    raise StepSyntaxError(f"`{text}` is no step; expected {_expected(text)}")


def check(condition: object, problem: str) -> None:
    """Raise `ScenarioFailure` with this text unless the condition is met."""
    if not condition:
        raise ScenarioFailure(problem)


def compare(description: str, expected: str, count: int) -> None:
    """Raise `ScenarioFailure` if `count` does not match a COUNT. `description`: of the counted objects."""
    least, most = expected.startswith(">="), expected.startswith("<=")
    number = int(expected.strip("<>= "))
    is_met = count >= number if least else count <= number if most else count == number
    check(is_met, f"expected {expected} {description}, found {count}")


def _expected(text: str) -> str:
    """Return the templates that share the most literal words with the line; if none does, all first words."""
    words = text.split()

    def likeness(sentence: Sentence) -> int:
        return sum(word in words[:2] for word in sentence.template.split() if word.islower())

    best = max(likeness(sentence) for sentence in SENTENCES)
    alike = [f"`{sentence.template}`" for sentence in SENTENCES if best and likeness(sentence) == best]
    if alike:
        return " or ".join(alike)
    first_words = dict.fromkeys(sentence.template.split()[0] for sentence in SENTENCES)
    return "a line that begins with one of " + ", ".join(first_words)


def _compile(template: str) -> re.Pattern[str]:
    parts: list[str] = []
    for token in template.split():
        word = token.strip("[]")
        name, _, alias = word.partition(":")
        if name in FRAGMENTS:
            expression = f"(?P<{(alias or name).lower()}>{FRAGMENTS[name][0]})"
        else:
            assert word.islower() or not word.isalpha(), f"{word} is no placeholder"
            expression = re.escape(word)
        expression = expression if not parts else " " + expression
        parts.append(f"(?:{expression})?" if token.startswith("[") else expression)
    return re.compile("".join(parts))


def _convert(name: str, value: str | None) -> Any:
    if value is None:
        return {} if name == "options" else None
    if name == "invariant" and value not in PROMISES:
        raise StepSyntaxError(f"`{value}` is no promise; expected I-1 to I-33, B-1, or L-1 to L-4")
    return _CONVERSIONS.get(name, str)(value)


def range_of(text: str) -> range:
    """Parse `7` or `3..7`. Raises `StepSyntaxError`."""
    first, _, last = text.partition("..")
    if last and int(last) < int(first):
        raise StepSyntaxError(f"`{text}`: expected first..last, ascending")
    ids = range(int(first), int(last or first) + 1)
    if ids.stop - ids.start > ENTRIES_MAX:
        raise StepSyntaxError(f"`{text}`: expected at most {ENTRIES_MAX:,} entries in one step")
    return ids


def pattern_of(text: str) -> Pattern:
    """Parse a MESSAGES value such as `W add 10 -> b1 b2`. Raises `StepSyntaxError`."""
    words = text.split()
    arrow = words.index("->" if "->" in words else "<-")
    if words[1] not in KINDS:
        raise StepSyntaxError(f"`{words[1]}` is not a kind of message; expected one of {', '.join(KINDS)}")
    entries = range_of(words[2]) if arrow == 3 else None
    return Pattern(
        client=words[0],
        kind=words[1],
        first=entries[0] if entries else None,
        last=entries[-1] if entries else None,
        is_answer=words[arrow] == "<-",
        peers=tuple(words[arrow + 1 :]),
    )


def _fragments_of(text: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
    return tuple((int(first), tuple(names.split())) for first, names in (part.split(": ") for part in text.split(", ")))


_CONVERSIONS: dict[str, Callable[[str], Any]] = {  # by placeholder; of the others the text is the value
    "bookies": str.split,
    "hosts": str.split,
    "entries": range_of,
    "number": int,
    "lac": int,
    "seconds": float,
    "quorums": lambda text: tuple(map(int, text.split("/"))),
    "options": lambda text: dict(part.split("=", 1) for part in text.split()),
    "fragments": _fragments_of,
    "messages": pattern_of,
}
