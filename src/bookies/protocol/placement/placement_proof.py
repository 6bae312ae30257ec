"""Errors of a choice without result: the violated rule, the locations of the bookies, and a remedy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from bookies.errors import NotEnoughBookies
from bookies.model import BookieId
from bookies.protocol.placement.candidates import Candidates
from bookies.protocol.placement.placement_search import STEPS_MAX, Search, everywhere
from bookies.protocol.placement.topology import Problem, name_of
from bookies.protocol.placement.write_sets import Condition, Spread

NAMES_MAX = 8  # bookies or places in one message


def no_ensemble(
    candidates: Candidates,
    size: int,
    write_quorum: int,
    rules: Sequence[Condition],
    exclude: Collection[BookieId] = (),
    *,
    is_proved: bool = True,
) -> NotEnoughBookies:
    """Return the error of a search without result. `is_proved`: there is no ensemble; False: it was undecided."""
    usable = [bookie for bookie in candidates.cluster.bookies if bookie not in exclude]
    nowhere = [bookie for bookie in candidates.cluster.unplaced if bookie not in exclude]
    if len(usable) < size <= len(usable) + len(nowhere):
        return NotEnoughBookies(
            f"the placement rule needs {size} writable bookies with a known location for an ensemble of {size}; "
            f"{len(usable)} of the {len(usable) + len(nowhere)} writable bookies have one: set the locations of the "
            f"others{unplaced(candidates)}"
        )
    if len(usable) < size:
        text = (
            f"an ensemble of {size} needs {size} writable bookies, {len(usable)} are available; "
            "start more bookies or use a smaller ensemble"
        )
        return NotEnoughBookies(text + unplaced(candidates))

    def is_unsatisfiable(rule: Condition) -> bool:
        search = Search(candidates, [None] * size, {}, everywhere(size, write_quorum, (rule,)), exclude)
        return search.run() is None and not search.is_undecided

    reasons = [rule for rule in rules if is_unsatisfiable(rule)] if is_proved else []
    reasons = reasons or list(rules)
    asked = ", and ".join(rule.wanted(write_quorum) for rule in reasons)
    given_up = "" if is_proved else f"the search for an ensemble of {size} was undecided after {STEPS_MAX:,} steps: "
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
    """Return the error for positions that no bookie can take."""
    usable = [bookie for bookie in candidates.cluster.bookies if bookie not in exclude and bookie not in ensemble]
    failed = abbreviated([ensemble[position] for position in positions])
    count = len(candidates) + len(candidates.cluster.unplaced) + len(candidates.cluster.banned)
    text = f"none of the {count} writable bookies can take the place of {failed} in [{', '.join(ensemble)}]"
    if len(usable) < len(positions) or not rules:
        others = f"{len(usable)} are no members" if usable else "no other bookie is available"
        return NotEnoughBookies(f"{text} ({others}); start another bookie{unplaced(candidates)}")
    asked = ", and ".join(rule.wanted(write_quorum) for rule in rules)
    return NotEnoughBookies(
        f"{text}: {asked}; {where(candidates, usable, rules)}: start bookies elsewhere, or correct their locations"
        f"{unplaced(candidates)}"
    )


def where(candidates: Candidates, bookies: Sequence[BookieId], rules: Sequence[Condition]) -> str:
    """Return the text about the locations of these bookies, at the level that the rules are about."""
    level = next((rule.level for rule in rules if isinstance(rule, Spread)), 0)
    counts: dict[str, int] = {}
    for bookie in bookies:
        name = name_of(candidates.cluster.places[bookie][level])
        counts[name] = counts.get(name, 0) + 1
    count = f"the {len(bookies)} writable bookies are" if len(bookies) > 1 else "the only writable bookie is"
    if len(counts) == 1:
        only = next(iter(counts))
        return f"{count} all in {only}" if len(bookies) > 1 else f"{count} in {only}"
    return f"{count} in " + abbreviated([f"{name} ({of_name})" for name, of_name in sorted(counts.items())])


def unplaced(candidates: Candidates) -> str:
    """Return the text about bookies that are not used, because of their location or for lack of one; may be empty."""
    text = ""
    if problems := list(candidates.cluster.unplaced.values()):
        example = candidates.cluster.policy.kind.example
        text = f"; not used, because the rule needs their location: {_reasons(problems)} (a location has the form "
        text += f"{example})"
    if banned := list(candidates.cluster.banned.values()):
        text += f"; not used, because locations_banned names their location: {_reasons(banned)}"
    return text


def _reasons(problems: Iterable[Problem]) -> str:
    return abbreviated([f"{problem.bookie} ({problem.reason})" for problem in problems])


def abbreviated(names: Sequence[str]) -> str:
    """Return the names as text: all, or the first `NAMES_MAX` and how many more."""
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
