"""Choice and judgement of ensembles and replacements: pure functions over an order of preference.

Randomness is data: `Candidates` has the writable bookies in their order of preference, their locations, and the policy.
Members of an ensemble are always distinct. Entry e goes to the positions (e + k) mod E, so the order of the members
decides which of them hold the same entries.

Result of a choice
------------------
The search finds an ensemble that keeps every rule exactly when there is one (`placement_search`). Otherwise
`NotEnoughBookies` names the violated rule and the locations of the bookies, or reports that the search was undecided
after its step limit. Of several ensembles the best wins: wishes are met in their order of importance, each as far as
possible without giving up an earlier one. Bookies that do not work now are used only when the rules cannot be kept
without them.

Rules bind a replacement as far as the remaining members allow. A write set that violated a rule before may still
violate it, but no write set gets worse. Source: client-protocol 2.2 and 2.7; metadata 9.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bookies.errors import NotEnoughBookies
from bookies.model import BookieId, Ensemble, LedgerMetadata
from bookies.protocol.ledger.add import ChangeEnsemble
from bookies.protocol.placement.candidates import Candidates
from bookies.protocol.placement.placement_policy import Adherence, PlacementPolicy
from bookies.protocol.placement.placement_proof import no_ensemble, no_replacement
from bookies.protocol.placement.placement_search import (
    STEPS_MAX,
    WISH_STEPS_MAX,
    Conditions,
    Search,
    everywhere,
    most_preferred,
    without_implied,
)
from bookies.protocol.placement.topology import Place, Problem, Topology, name_of
from bookies.protocol.placement.write_sets import Condition, Spread, distinct, write_sets


class Finding(NamedTuple):
    """Write set that does not meet a condition. `bookies`: its members, from position `start` on."""

    start: int
    bookies: tuple[BookieId, ...]
    reason: str


class Judgement(Struct, frozen=True):
    """Adherence of an ensemble to a policy.

    `findings`: why the adherence is not strict, by write set. `problems`: members without a valid location.
    """

    adherence: Adherence
    findings: tuple[Finding, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def is_adhering(self) -> bool:
        return self.adherence is not Adherence.FAIL


class Change(NamedTuple):
    """Replacement of `old` by `new` at a position."""

    position: int
    old: BookieId
    new: BookieId


# -- choosing ----------------------------------------------------------------------------------------------------------
def choose_ensemble(
    candidates: Candidates, size: int, write_quorum: int, ack_quorum: int, exclude: Collection[BookieId] = ()
) -> Ensemble:
    """Return distinct candidates that are not excluded, as well spread as possible. Raises `NotEnoughBookies`."""
    cluster = candidates.cluster
    rules = cluster.policy.required(write_quorum, ack_quorum)
    quorums = (size, write_quorum, ack_quorum)

    undecided: list[bool] = []

    def find(unwanted: Collection[BookieId], conditions: tuple[Condition, ...]) -> Ensemble | None:
        of_sets = everywhere(size, write_quorum, conditions)
        if (ensemble := most_preferred(candidates, size, of_sets, unwanted)) is not None:
            return ensemble
        steps_max = STEPS_MAX if conditions == rules else WISH_STEPS_MAX
        search = Search(candidates, [None] * size, {}, of_sets, unwanted, steps_max)
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
    """Return the ensemble with a new bookie, not yet a member, at each of these positions.

    Raises `NotEnoughBookies`.
    """
    policy, topology = candidates.cluster.policy, candidates.cluster.topology
    places = [topology.place(bookie, policy.kind) for bookie in ensemble]
    kept = [None if position in positions else bookie for position, bookie in enumerate(ensemble)]
    members = {position: place for position, place in enumerate(places) if position not in positions}
    affected = [
        write_set
        for write_set in write_sets(len(ensemble), write_quorum)
        if any(position in positions for position in write_set)
    ]
    rules = policy.required(write_quorum, ack_quorum)
    wishes = candidates.cluster.wishes(write_quorum)

    def find(
        required: Callable[[Sequence[int]], Iterable[Condition]],
        unwanted: Collection[BookieId],
        wanted: tuple[Condition, ...],
    ) -> Ensemble | None:
        conditions: Conditions = [
            (
                write_set,
                tuple(without_implied([*required(write_set), *_in_reach(wanted, write_set, members)])),
            )
            for write_set in affected
        ]
        steps_max = WISH_STEPS_MAX if wanted else STEPS_MAX
        return Search(candidates, kept, members, conditions, [*ensemble, *unwanted], steps_max).run()

    ways: tuple[Callable[[Sequence[int]], Iterable[Condition]], ...] = (
        lambda write_set: _in_reach(rules, write_set, members),
        lambda write_set: _as_before(rules, [places[at] for at in write_set]),
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
    """Return the ensemble with a new bookie at every failed (position, bookie) that is still a member.

    Never choose bookies that failed, nor those in `exclude` (replaced earlier in the same change, D-21). If only some
    can be replaced, the result is partial: the others stay, and will fail again. Raises `NotEnoughBookies` when none
    can be replaced.
    """
    members = [(position, bookie) for position, bookie in failed if ensemble[position] == bookie]
    unwanted = list(exclude)
    choose = _Replacing(Candidates.of(candidates), ensemble, write_quorum or len(ensemble), ack_quorum, unwanted)
    positions = [position for position, _ in members]
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


def changed_ensemble(record: LedgerMetadata, change: ChangeEnsemble, candidates: Sequence[BookieId]) -> Ensemble:
    """Return the ensemble of a record after a change that its writer asked for. Raises as `replace_failed`."""
    quorums = {"write_quorum": record.write_quorum, "ack_quorum": record.ack_quorum}
    return replace_failed(record.last_ensemble, change.failed, candidates, change.excluded, **quorums)


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
    """Return the fewest changes that make the ensemble adhere to the policy; empty if it does.

    Members keep their positions: moving one to another position would cost two more copies. Raises `NotEnoughBookies`
    when no choice of new bookies makes it adhere.
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
        """Return a write set that needs another change; None: there is none."""
        for write_set in sets:
            members = [places[at] for at in write_set if at not in positions]
            if not all(condition.holds(members, len(write_set) - len(members)) for condition in minimum):
                return write_set
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
    """Yield the bookies not to choose: first including those that do not work now, then without them."""
    if candidates.last:
        yield [*exclude, *candidates.last]
    yield exclude


def _best(
    find: Callable[[tuple[Condition, ...]], Ensemble | None],
    rules: tuple[Condition, ...],
    wishes: Sequence[Sequence[Condition]],
) -> tuple[Ensemble, tuple[Condition, ...]] | None:
    """Return an ensemble that meets the most wishes, and its conditions. None: the rules cannot be kept.

    First ask for all wishes; then, wish by wish, for the best alternative that keeps all earlier ones.
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
    """Yield the rules as far as a write set keeps them now. Members without a location may be anywhere."""
    for rule in rules:
        if isinstance(rule, Spread):
            nowhere = sum(place[rule.level] is None for place in members)
            yield replace(rule, count=min(rule.count, distinct(members, rule.level) + nowhere))
        elif rule.holds(members, 0):
            yield rule


def _in_reach(
    wishes: Iterable[Condition], write_set: Sequence[int], members: Mapping[int, Place]
) -> Iterator[Condition]:
    """Yield the wishes as far as the remaining members of a write set leave them possible."""
    places = [members[at] for at in write_set if at in members]
    free = len(write_set) - len(places)
    for wish in wishes:
        if isinstance(wish, Spread):
            yield replace(wish, count=min(wish.count, distinct(places, wish.level) + free))
        elif wish.holds(places, free):
            yield wish


# -- judging -----------------------------------------------------------------------------------------------------------
def judge(
    topology: Topology, policy: PlacementPolicy, ensemble: Sequence[BookieId], write_quorum: int, ack_quorum: int
) -> Judgement:
    """Judge how well an ensemble meets a policy, and which write sets do not.

    Whether its bookies run does not matter: a bookie that is down has not moved.
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


def _where(place: Place) -> str:
    return name_of(place[-2]) if len(place) > 1 else name_of(place[-1])
