"""Every topology of up to 8 bookies, 3 racks and 2 regions: an ensemble is found exactly when there is one.

`make placement` runs all of them in some minutes; `test_exhaustive.py` a sample. For each topology, each policy, and
each ensemble size, write quorum and ack quorum up to 5, what `choose_ensemble` says is compared with all ensembles
there are (`twin`): that it finds one exactly when some ensemble keeps the rules, that what it finds keeps them, that no
ensemble is better in the order of the wishes, and that `judge` agrees.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections.abc import Iterable, Sequence

from tests.placement.twin import Measures, Shape, Where, ensembles, measure, shapes

from bookies.errors import NotEnoughBookies
from bookies.model import BookieId
from bookies.protocol.placement import PlacementPolicy, Topology, choose_ensemble
from bookies.protocol.placement.candidates import Candidates, Cluster
from bookies.protocol.placement.placement import choose_replacements, fewest_changes, judge
from bookies.protocol.placement.topology import Kind
from bookies.protocol.placement.write_sets import Condition, Outlives, Spread, UpgradeDomains

SIZE_MAX = 5
POLICIES = (
    PlacementPolicy(Kind.RANDOM),
    *(PlacementPolicy(Kind.RACK, is_rule=rule, racks_min=count) for rule in (True, False) for count in (2, 3)),
    *(PlacementPolicy(Kind.REGION, is_rule=rule, regions_min=count) for rule in (True, False) for count in (0, 2)),
    PlacementPolicy(Kind.REGION, racks_min=1, regions_min=2),
    *(
        PlacementPolicy(Kind.ZONE, is_rule=rule, zones_min=low, zones_desired=high)
        for rule in (True, False)
        for low, high in ((1, 2), (2, 2), (2, 3))
    ),
)


class Mismatch(AssertionError):
    """Placement and trying everything disagree."""


def meets(found: Measures, condition: Condition, kind: Kind) -> bool:
    """What a condition asks for, told from the measures."""
    if isinstance(condition, Spread):
        name = kind.levels[condition.level]
        has = {"host": found.hosts, "rack": found.racks, "region": found.regions, "zone": found.regions}[name]
        return has >= condition.count
    if isinstance(condition, Outlives):
        return found.fullest < condition.ack_quorum
    assert isinstance(condition, UpgradeDomains)
    return not found.is_crowded


def grades(found: Measures, wishes: Sequence[Sequence[Condition]], kind: Kind) -> tuple[int, ...]:
    """Which alternative of each wish an ensemble has; less is better."""
    return tuple(
        next((number for number, each in enumerate(wish) if meets(found, each, kind)), len(wish)) for wish in wishes
    )


def topology_of(places: dict[str, Where]) -> Topology:
    return Topology({name: place[1] for name, place in places.items() if place[1] is not None})


def check(shape: Shape, policies: Iterable[PlacementPolicy] = POLICIES, seed: int = 0) -> int:
    """Compare for one topology; how many choices were compared. Raises `Mismatch`."""
    rng = random.Random(f"{shape}{seed}")
    places = shape.places()
    topology = topology_of(places)
    measures: dict[tuple[int, int, bool], list[Measures]] = {}
    for size in range(1, SIZE_MAX + 1):
        for is_placed in (False, True):
            usable = [place for place in places.values() if place[1] is not None or not is_placed]
            everything = list(ensembles(usable, size))
            for write_quorum in range(1, size + 1):
                found = {measure(each, write_quorum) for each in everything}
                measures[size, write_quorum, is_placed] = sorted(found)
    count = 0
    for policy in policies:
        order = [BookieId(name) for name in places]
        rng.shuffle(order)
        cluster = Cluster(order, topology, policy)
        for size in range(1, SIZE_MAX + 1):
            for write_quorum in range(1, size + 1):
                for ack_quorum in range(1, write_quorum + 1) if policy.regions_min else (write_quorum,):
                    there = measures[size, write_quorum, policy.is_rule and policy.kind is not Kind.RANDOM]
                    _check_choice(cluster, places, order, (size, write_quorum, ack_quorum), there)
                    count += 1
    return count


def _check_choice(
    cluster: Cluster,
    places: dict[str, Where],
    order: Sequence[BookieId],
    quorums: tuple[int, int, int],
    there: Sequence[Measures],
) -> None:
    policy = cluster.policy
    rules = policy.required(*quorums[1:])
    wishes = cluster.wishes(quorums[1])
    possible = [grades(each, wishes, policy.kind) for each in there if all(meets(each, r, policy.kind) for r in rules)]
    what = f"{policy} {quorums} of {dict.fromkeys(map(str, order))}"
    try:
        chosen = choose_ensemble(Candidates(cluster, order), *quorums)
    except NotEnoughBookies as error:
        if possible:
            raise Mismatch(f"{what}: there is an ensemble, and: {error}") from error
        return
    if not possible:
        raise Mismatch(f"{what}: {chosen} cannot be right")
    if len(set(chosen)) != quorums[0]:
        raise Mismatch(f"{what}: {chosen} has a bookie twice, or not so many")
    found = measure([places[each] for each in chosen], quorums[1])
    if not all(meets(found, rule, policy.kind) for rule in rules):
        raise Mismatch(f"{what}: {chosen} breaks a rule")
    if grades(found, wishes, policy.kind) != min(possible):
        raise Mismatch(f"{what}: {chosen} has {grades(found, wishes, policy.kind)}, {min(possible)} is possible")
    adheres = all(meets(found, each, policy.kind) for each in policy.minimum(*quorums[1:]))
    if judge(cluster.topology, policy, chosen, *quorums[1:]).is_adhering != adheres:
        raise Mismatch(f"{what}: {chosen} is judged wrongly")


def check_changes(shape: Shape, seed: int) -> None:
    """Replacements in a random ensemble, and the fewest changes that make it adhere, against every other ensemble."""
    rng = random.Random(f"changes {shape}{seed}")
    places = shape.places()
    names = [BookieId(each) for each in places]
    topology = topology_of(places)
    size = rng.randint(1, min(SIZE_MAX, len(names)))
    write_quorum = rng.randint(1, size)
    ack_quorum = rng.randint(1, write_quorum)
    ensemble = tuple(rng.sample(names, size))
    for policy in POLICIES:
        candidates = Candidates.of(names, policy, topology)
        usable = [each for each in names if not policy.is_rule or places[each][1] or policy.kind is Kind.RANDOM]
        fresh = [each for each in usable if each not in ensemble]
        minimum = policy.minimum(write_quorum, ack_quorum)
        what = f"{policy} {size}/{write_quorum}/{ack_quorum} {ensemble} of {names}"
        best = min(
            (
                changes
                for changes, other in _variants(ensemble, fresh)
                if set(other) <= {*usable}
                and all(meets(measure([places[each] for each in other], write_quorum), c, policy.kind) for c in minimum)
            ),
            default=None,
        )
        try:
            changes = fewest_changes(candidates, ensemble, write_quorum, ack_quorum)
        except NotEnoughBookies as error:
            if best is not None:
                raise Mismatch(f"{what}: {best} changes make it adhere, and: {error}") from error
        else:
            changed = list(ensemble)
            for position, old, new in changes:
                assert changed[position] == old
                changed[position] = new
            found = measure([places[each] for each in changed], write_quorum)
            if best != len(changes) or not all(meets(found, each, policy.kind) for each in minimum):
                raise Mismatch(f"{what}: {changes}, and {best} changes do")
        _check_replacement(candidates, places, ensemble, fresh, (write_quorum, ack_quorum), rng)


def _check_replacement(
    candidates: Candidates,
    places: dict[str, Where],
    ensemble: tuple[BookieId, ...],
    fresh: Sequence[BookieId],
    quorums: tuple[int, int],
    rng: random.Random,
) -> None:
    """If some replacement keeps all rules one is found that does; none makes an ensemble that kept them break them."""
    policy = candidates.cluster.policy
    rules = policy.required(*quorums)
    positions = rng.sample(range(len(ensemble)), rng.randint(1, len(ensemble)))
    others = [other for _, other in _variants(ensemble, fresh) if _differing(ensemble, other) == sorted(positions)]
    keeping = [
        other
        for other in others
        if all(meets(measure([places[each] for each in other], quorums[0]), rule, policy.kind) for rule in rules)
    ]
    what = f"{policy} {quorums} {ensemble} at {positions}"
    try:
        changed = choose_replacements(candidates, ensemble, positions, *quorums)
    except NotEnoughBookies as error:
        if keeping:
            raise Mismatch(f"{what}: {keeping[0]} would do, and: {error}") from error
        return
    if _differing(ensemble, changed) != sorted(positions) or not set(changed) - set(ensemble) <= set(fresh):
        raise Mismatch(f"{what}: {changed}")
    if keeping and changed not in keeping:
        raise Mismatch(f"{what}: {changed} breaks a rule, {keeping[0]} does not")


def _variants(ensemble: tuple[BookieId, ...], fresh: Sequence[BookieId]) -> Iterable[tuple[int, tuple[BookieId, ...]]]:
    """Every ensemble that has other bookies at some positions, and at how many."""

    def extend(position: int, chosen: tuple[BookieId, ...], changes: int) -> Iterable[tuple[int, tuple[BookieId, ...]]]:
        if position == len(ensemble):
            yield changes, chosen
            return
        yield from extend(position + 1, (*chosen, ensemble[position]), changes)
        for bookie in fresh:
            if bookie not in chosen:
                yield from extend(position + 1, (*chosen, bookie), changes + 1)

    return extend(0, (), 0)


def _differing(before: Sequence[BookieId], after: Sequence[BookieId]) -> list[int]:
    return [position for position, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]


def _both(shape: Shape) -> int:
    check_changes(shape, seed=0)
    return check(shape)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--bookies", type=int, default=8, help="at most")
    options = parser.parse_args()
    everything = list(shapes(options.bookies, 3, 2))
    random.Random(0).shuffle(everything)  # Large ones take long; this spreads them over the processes.
    begun = time.monotonic()
    with multiprocessing.Pool(options.jobs) as pool:
        choices = 0
        for done, count in enumerate(pool.imap_unordered(_both, everything, chunksize=4), 1):
            choices += count
            if done % 200 == 0:
                print(f"{done} of {len(everything)} topologies, {time.monotonic() - begun:.0f} s", flush=True)
    print(
        f"{len(everything)} topologies, {choices} choices: as trying everything says ({time.monotonic() - begun:.0f} s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
