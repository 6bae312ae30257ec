"""Choose an ensemble, choose replacements, judge what was chosen: pure functions over an order of preference.

Randomness comes in as data: `Candidates` has the writable bookies in the order in which they shall be taken, and knows
where they are and what the policy asks for. Members of an ensemble are always distinct, and entry e goes to the
positions (e + k) mod E, so the order of the members decides which of them hold the same entries.

What is found
-------------
An ensemble that keeps every rule is found exactly when there is one (`placement_search`); otherwise `NotEnoughBookies`
says which rule stands in the way and where the bookies are, or that it could not be decided in so many steps. Of
several the best degree wins: wishes are met in their order of importance, each as far as it can be without giving up
one before it. Bookies that do not work now are used only when the rules cannot be kept without them.

A replacement is bound by rules as far as those who stay allow: a write set that did not keep a rule before need not
keep it afterwards, but no write set gets worse for it. Source: client-protocol 2.2 and 2.7; metadata 9.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from bookies.errors import NotEnoughBookies
from bookies.model import BookieId, Ensemble
from bookies.protocol.placement.candidates import Candidates
from bookies.protocol.placement.placement_policy import Adherence, PlacementPolicy
from bookies.protocol.placement.placement_proof import no_ensemble, no_replacement
from bookies.protocol.placement.placement_search import (
    STEPS_MAX,
    WISH_STEPS_MAX,
    Conditions,
    Search,
    everywhere,
    without_implied,
)
from bookies.protocol.placement.topology import Place, Problem, Topology, name_of
from bookies.protocol.placement.write_sets import Condition, Spread, distinct, write_sets


class Finding(NamedTuple):
    """A write set that does not meet a condition. `bookies`: its members, from position `start` on."""

    start: int
    bookies: tuple[BookieId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """`findings`: why the adherence is not strict, by write set. `problems`: members that are nowhere."""

    adherence: Adherence
    findings: tuple[Finding, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def is_adhering(self) -> bool:
        return self.adherence is not Adherence.FAIL


class Change(NamedTuple):
    """`new` instead of `old` at a position."""

    position: int
    old: BookieId
    new: BookieId


# -- choosing ----------------------------------------------------------------------------------------------------------
def choose_ensemble(
    candidates: Candidates, size: int, write_quorum: int, ack_quorum: int, exclude: Collection[BookieId] = ()
) -> Ensemble:
    """Distinct candidates that are not excluded, as well spread as they can be. Raises `NotEnoughBookies`."""
    cluster = candidates.cluster
    rules = cluster.policy.required(write_quorum, ack_quorum)
    quorums = (size, write_quorum, ack_quorum)

    undecided: list[bool] = []

    def find(unwanted: Collection[BookieId], conditions: tuple[Condition, ...]) -> Ensemble | None:
        steps_max = STEPS_MAX if conditions == rules else WISH_STEPS_MAX
        search = Search(candidates, [None] * size, {}, everywhere(size, write_quorum, conditions), unwanted, steps_max)
        ensemble = search.run()
        if conditions == rules:
            undecided.append(ensemble is None and search.is_undecided)
        return ensemble

    for unwanted in _without(candidates, exclude):
        met = cluster.met.get(quorums)
        if met is not None and (ensemble := find(unwanted, met)) is not None:
            return ensemble
        best = _best(partial(find, unwanted), rules, cluster.wishes(write_quorum))
        if best is not None:
            if not unwanted:
                cluster.met[quorums] = best[1]
            return best[0]
    raise no_ensemble(candidates, size, write_quorum, rules, exclude, is_proved=not any(undecided))


def choose_replacements(
    candidates: Candidates,
    ensemble: Sequence[BookieId],
    positions: Collection[int],
    write_quorum: int,
    ack_quorum: int,
    exclude: Collection[BookieId] = (),
) -> Ensemble:
    """The ensemble with fresh bookies, no members before, at all these positions. Raises `NotEnoughBookies`."""
    policy, topology = candidates.cluster.policy, candidates.cluster.topology
    places = [topology.place(bookie, policy.kind) for bookie in ensemble]
    kept = [None if position in positions else bookie for position, bookie in enumerate(ensemble)]
    members = {position: place for position, place in enumerate(places) if position not in positions}
    concerned = [each for each in write_sets(len(ensemble), write_quorum) if any(at in positions for at in each)]
    rules = policy.required(write_quorum, ack_quorum)
    wishes = candidates.cluster.wishes(write_quorum)

    def find(
        required: Callable[[Sequence[int]], Iterable[Condition]],
        unwanted: Collection[BookieId],
        wanted: tuple[Condition, ...],
    ) -> Ensemble | None:
        conditions: Conditions = [
            (each, tuple(without_implied([*required(each), *_in_reach(wanted, each, members)]))) for each in concerned
        ]
        steps_max = WISH_STEPS_MAX if wanted else STEPS_MAX
        return Search(candidates, kept, members, conditions, [*ensemble, *unwanted], steps_max).run()

    ways: tuple[Callable[[Sequence[int]], Iterable[Condition]], ...] = (
        lambda each: _in_reach(rules, each, members),
        lambda each: _as_before(rules, [places[at] for at in each]),
    )
    for required in ways if rules else ways[:1]:
        for unwanted in _without(candidates, exclude):
            best = _best(partial(find, required, unwanted), (), wishes)
            if best is not None:
                return best[0]
    raise no_replacement(candidates, ensemble, list(positions), write_quorum, rules, exclude)


def replace_failed(
    ensemble: Ensemble,
    failed: Iterable[tuple[int, BookieId]],
    candidates: Sequence[BookieId],
    exclude: Collection[BookieId] = (),
    *,
    write_quorum: int | None = None,
    ack_quorum: int = 1,
) -> Ensemble:
    """Put a fresh bookie at every failed (position, bookie) whose bookie is still there.

    Bookies that failed are never chosen, nor are those in `exclude` (replaced earlier in the same change, D-21). When
    some but not all can be replaced the partial result counts: the others stay, and will fail again.
    Raises `NotEnoughBookies` when not even one can be replaced.
    """
    there = [(position, bookie) for position, bookie in failed if ensemble[position] == bookie]
    unwanted = list(exclude)
    choose = _Replacing(Candidates.of(candidates), ensemble, write_quorum or len(ensemble), ack_quorum, unwanted)
    positions = [position for position, _ in there]
    try:
        return choose(positions) if positions else ensemble
    except NotEnoughBookies:
        if len(positions) == 1:
            raise
        first_error: NotEnoughBookies | None = None
        changed: Ensemble | None = None
        replaced: list[int] = []
        for position in positions:
            try:
                changed = choose([*replaced, position])
                replaced.append(position)
            except NotEnoughBookies as error:
                first_error = first_error or error
        if changed is None:
            raise first_error or NotEnoughBookies("no bookie can be replaced") from None
        return changed


class _Replacing(NamedTuple):
    candidates: Candidates
    ensemble: Ensemble
    write_quorum: int
    ack_quorum: int
    exclude: Sequence[BookieId]

    def __call__(self, positions: Collection[int]) -> Ensemble:
        try:
            return choose_replacements(
                self.candidates, self.ensemble, positions, self.write_quorum, self.ack_quorum, self.exclude
            )
        except NotEnoughBookies as error:
            failed = [self.ensemble[position] for position in positions]
            which = f"bookie {failed[0]}" if len(failed) == 1 else f"bookies {', '.join(failed)}"
            raise NotEnoughBookies(f"{which} failed and {error.message}") from None


def fewest_changes(
    candidates: Candidates,
    ensemble: Sequence[BookieId],
    write_quorum: int,
    ack_quorum: int,
    exclude: Collection[BookieId] = (),
) -> tuple[Change, ...]:
    """What makes the ensemble adhere to the policy with as few new bookies as possible; nothing if it does.

    Members keep their positions; no member moves to another one, for that would be two copies more. Raises
    `NotEnoughBookies`: no choice of new bookies makes it adhere.
    """
    topology, policy = candidates.cluster.topology, candidates.cluster.policy
    minimum = policy.minimum(write_quorum, ack_quorum)
    places: list[Place] = [topology.place(bookie, policy.kind) for bookie in ensemble]
    sets = write_sets(len(ensemble), write_quorum)
    homeless = [at for at, bookie in enumerate(ensemble) if policy.is_rule and topology.problem(bookie, policy.kind)]

    def attempt(positions: Collection[int]) -> Ensemble | None:
        kept = [None if at in positions else bookie for at, bookie in enumerate(ensemble)]
        members = {at: places[at] for at in range(len(ensemble)) if at not in positions}
        taken = [*ensemble, *exclude]
        return Search(candidates, kept, members, everywhere(len(ensemble), write_quorum, minimum), taken).run()

    def broken(positions: Collection[int]) -> tuple[int, ...] | None:
        """A write set that needs another change. None: there is no such."""
        for each in sets:
            members = [places[at] for at in each if at not in positions]
            if not all(condition.holds(members, len(each) - len(members)) for condition in minimum):
                return each
        return None

    def of_size(count: int, positions: tuple[int, ...], seen: set[frozenset[int]]) -> Ensemble | None:
        if (key := frozenset(positions)) in seen:
            return None
        seen.add(key)
        write_set = broken(positions)
        if write_set is None and (changed := attempt(positions)) is not None:
            return changed
        if len(positions) == count:
            return None
        for at in range(len(ensemble)) if write_set is None else write_set:
            if at not in positions and (changed := of_size(count, (*positions, at), seen)) is not None:
                return changed
        return None

    for count in range(len(homeless), len(ensemble) + 1):
        if (changed := of_size(count, tuple(homeless), set())) is not None:
            return tuple(
                Change(at, old, new) for at, (old, new) in enumerate(zip(ensemble, changed, strict=True)) if old != new
            )
    raise no_replacement(candidates, ensemble, range(len(ensemble)), write_quorum, minimum, exclude)


def _without(candidates: Candidates, exclude: Collection[BookieId]) -> Iterator[Collection[BookieId]]:
    """Whom not to choose: first those that do not work now either."""
    if candidates.last:
        yield [*exclude, *candidates.last]
    yield exclude


def _best(
    find: Callable[[tuple[Condition, ...]], Ensemble | None],
    rules: tuple[Condition, ...],
    wishes: Sequence[Sequence[Condition]],
) -> tuple[Ensemble, tuple[Condition, ...]] | None:
    """What is found for the most that can be had, and what that is. None: not even the rules can be kept.

    First everything is asked for; then the best of each wish that leaves all before it as they are.
    """
    granted = (*rules, *(alternatives[0] for alternatives in wishes))
    ensemble = find(granted)
    if ensemble is not None:
        return ensemble, granted
    granted, ensemble = rules, find(rules)
    if ensemble is None:
        return None
    for alternatives in wishes:
        for condition in alternatives:
            better = find((*granted, condition))
            if better is not None:
                ensemble, granted = better, (*granted, condition)
                break
    return ensemble, granted


def _as_before(rules: Iterable[Condition], members: Sequence[Place]) -> Iterator[Condition]:
    """The rules as far as a write set keeps them now. Members that are nowhere may be anywhere."""
    for rule in rules:
        if isinstance(rule, Spread):
            nowhere = sum(place[rule.level] is None for place in members)
            yield replace(rule, count=min(rule.count, distinct(members, rule.level) + nowhere))
        elif rule.holds(members, 0):
            yield rule


def _in_reach(
    wishes: Iterable[Condition], write_set: Sequence[int], members: Mapping[int, Place]
) -> Iterator[Condition]:
    """The wishes as far as the members of a write set who stay leave room for them."""
    there = [members[at] for at in write_set if at in members]
    free = len(write_set) - len(there)
    for wish in wishes:
        if isinstance(wish, Spread):
            yield replace(wish, count=min(wish.count, distinct(there, wish.level) + free))
        elif wish.holds(there, free):
            yield wish


# -- judging -----------------------------------------------------------------------------------------------------------
def judge(
    topology: Topology, policy: PlacementPolicy, ensemble: Sequence[BookieId], write_quorum: int, ack_quorum: int
) -> Judgement:
    """How well an ensemble meets a policy, and what is wrong with which write sets.

    Whether its bookies run does not matter: one that is down for a while has not moved.
    """
    places = [topology.place(bookie, policy.kind) for bookie in ensemble]
    problems = tuple(topology.problems(ensemble, policy.kind))
    minimum, desired = policy.minimum(write_quorum, ack_quorum), policy.desired(write_quorum)
    adherence = Adherence.FAIL if problems and policy.is_rule else Adherence.STRICT
    findings = []
    for positions in write_sets(len(ensemble), write_quorum):
        members = [places[at] for at in positions]
        bookies = tuple(ensemble[at] for at in positions)
        for of_minimum, conditions in ((True, minimum), (False, desired)):
            for condition in conditions:
                if not condition.holds(members, 0):
                    adherence = min(adherence, Adherence.FAIL if of_minimum else Adherence.SOFT)
                    where = ", ".join(
                        f"{bookie} in {_where(place)}" for bookie, place in zip(bookies, members, strict=True)
                    )
                    findings.append(Finding(positions[0], bookies, f"{condition.wanted(write_quorum)}: {where}"))
    return Judgement(adherence, tuple(findings), problems)


def acks_adhere(
    topology: Topology, policy: PlacementPolicy, acked: Collection[BookieId], write_quorum: int, ack_quorum: int
) -> bool:
    """Whether acknowledgements from these bookies alone are in as many fault domains as the policy asks for."""
    places = [topology.place(bookie, policy.kind) for bookie in acked]
    if len(places) < ack_quorum:
        return False
    spreads = [each for each in policy.minimum(write_quorum, ack_quorum) if isinstance(each, Spread)]
    regions = policy.regions_min if policy.kind.levels[0] == "region" else 0
    return distinct(places, 0) >= regions and all(each.holds(places, 0) for each in spreads)


def _where(place: Place) -> str:
    return name_of(place[-2]) if len(place) > 1 else name_of(place[-1])
