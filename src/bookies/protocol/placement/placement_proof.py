"""Why there is no ensemble, in words: which rule stands in the way, where the bookies are, and what would help."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from bookies.errors import NotEnoughBookies
from bookies.model import BookieId
from bookies.protocol.placement.candidates import Candidates
from bookies.protocol.placement.placement_search import STEPS_MAX, Search, everywhere
from bookies.protocol.placement.topology import Problem, name_of
from bookies.protocol.placement.write_sets import Condition, Spread

NAMES_MAX = 8  # of bookies or places, in one error


def no_ensemble(
    candidates: Candidates,
    size: int,
    write_quorum: int,
    rules: Sequence[Condition],
    exclude: Collection[BookieId] = (),
    *,
    is_proved: bool = True,
) -> NotEnoughBookies:
    """The error of a search that has found none. `is_proved`: it has not given up before it knew."""
    usable = [each for each in candidates.cluster.bookies if each not in exclude]
    nowhere = [each for each in candidates.cluster.unplaced if each not in exclude]
    if len(usable) < size <= len(usable) + len(nowhere):
        return NotEnoughBookies(
            f"an ensemble of {size} needs {size} writable bookies whose location is known, as the placement rule asks, "
            f"and {len(usable)} are available of {len(usable) + len(nowhere)} that are writable: say where the others "
            f"are{unplaced(candidates)}"
        )
    if len(usable) < size:
        text = (
            f"an ensemble of {size} needs {size} writable bookies, {len(usable)} are available; "
            "start more bookies or use a smaller ensemble"
        )
        return NotEnoughBookies(text + unplaced(candidates))

    def stands_in_the_way(rule: Condition) -> bool:
        search = Search(candidates, [None] * size, {}, everywhere(size, write_quorum, [rule]), exclude)
        return search.run() is None and not search.is_undecided

    reasons = [rule for rule in rules if stands_in_the_way(rule)] if is_proved else []
    reasons = reasons or list(rules)
    asked = ", and ".join(rule.wanted(write_quorum) for rule in reasons)
    given_up = "" if is_proved else f"no ensemble of {size} was found, nor that there is none, in {STEPS_MAX:,} steps: "
    shape = "" if size == write_quorum else f" in each write set of an ensemble of {size}"
    return NotEnoughBookies(
        f"{given_up}{asked}{shape}; {where(candidates, usable, reasons)}: start bookies elsewhere, or correct their "
        f"locations{unplaced(candidates)}"
    )


def no_replacement(
    candidates: Candidates,
    ensemble: Sequence[BookieId],
    positions: Sequence[int],
    write_quorum: int,
    rules: Sequence[Condition],
    exclude: Collection[BookieId] = (),
) -> NotEnoughBookies:
    """The error when nobody can take these positions."""
    usable = [each for each in candidates.cluster.bookies if each not in exclude and each not in ensemble]
    failed = some([ensemble[position] for position in positions])
    count = len(candidates) + len(candidates.cluster.unplaced)
    text = f"none of the {count} writable bookies can take the place of {failed} in [{', '.join(ensemble)}]"
    if len(usable) < len(positions) or not rules:
        others = f"{len(usable)} are no members" if usable else "no other works"
        return NotEnoughBookies(f"{text} ({others}); start another bookie{unplaced(candidates)}")
    asked = ", and ".join(rule.wanted(write_quorum) for rule in rules)
    return NotEnoughBookies(
        f"{text}: {asked}; {where(candidates, usable, rules)}: start bookies elsewhere, or correct their locations"
        f"{unplaced(candidates)}"
    )


def where(candidates: Candidates, bookies: Sequence[BookieId], rules: Sequence[Condition]) -> str:
    """Where these bookies are, at the level that the rules are about."""
    level = next((rule.level for rule in rules if isinstance(rule, Spread)), 0)
    counts: dict[str, int] = {}
    for bookie in bookies:
        name = name_of(candidates.cluster.places[bookie][level])
        counts[name] = counts.get(name, 0) + 1
    count = f"the {len(bookies)} writable bookies are" if len(bookies) > 1 else "the only writable bookie is"
    if len(counts) == 1:
        only = next(iter(counts))
        return f"{count} all in {only}" if len(bookies) > 1 else f"{count} in {only}"
    return f"{count} in " + some([f"{name} ({of_name})" for name, of_name in sorted(counts.items())])


def unplaced(candidates: Candidates) -> str:
    """Which bookies are left out because nobody knows where they are."""
    problems = list(candidates.cluster.unplaced.values())
    if not problems:
        return ""
    example = candidates.cluster.policy.kind.example
    return f"; not used, for where they are has to be known: {said(problems)} (a location looks like {example})"


def said(problems: Iterable[Problem]) -> str:
    """The bookies and why each is nowhere."""
    return some([f"{problem.bookie} ({problem.reason})" for problem in problems])


def some(names: Sequence[str]) -> str:
    """All of a few, the first of many and how many more."""
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
