"""Placement in clusters of any shape: rules hold, and Apache's policies never find or accept what ours do not.

Apache's rules are written down here as its policies apply them (metadata 9.4, 9.5, 9.7), for bookies whose location is
known; a bookie in its default rack counts as being somewhere there, and as being nowhere here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import NotEnoughBookies
from bookies.model import BookieId
from bookies.protocol.placement import PlacementPolicy, Topology, choose_ensemble
from bookies.protocol.placement.candidates import Candidates, Cluster
from bookies.protocol.placement.placement import choose_replacements, fewest_changes, judge, replace_failed
from bookies.protocol.placement.placement_policy import Adherence
from bookies.protocol.placement.topology import Kind

QUORUMS = (
    st.integers(1, 7)
    .flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size)))
    .flatmap(lambda pair: st.tuples(st.just(pair[0]), st.just(pair[1]), st.integers(1, pair[1])))
)
POLICIES = st.builds(
    PlacementPolicy,
    st.sampled_from(Kind),
    st.booleans(),
    racks_min=st.integers(1, 3),
    regions_min=st.integers(0, 2),
    zones_min=st.integers(1, 2),
    zones_desired=st.integers(2, 3),
)
PLACES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 1), st.integers(0, 9)), min_size=1, max_size=14
)


def cluster_of(places: Sequence[tuple[int, int, int, int]], policy: PlacementPolicy) -> Candidates:
    """Bookies at (region, rack, host); the last number 0: nobody knows where."""
    names = [BookieId(f"h{region}{rack}{host}:{port}") for port, (region, rack, host, _) in enumerate(places)]
    locations = {
        name: f"/g{region}/r{rack}" for name, (region, rack, _, known) in zip(names, places, strict=True) if known
    }
    return Candidates.of(names, policy, Topology(locations))


@given(PLACES, POLICIES, QUORUMS, st.randoms(use_true_random=False))
def test_rules_hold_through_every_replacement(
    places: list[tuple[int, int, int, int]], policy: PlacementPolicy, quorums: tuple[int, int, int], rng: Random
) -> None:
    candidates = cluster_of(places, policy)
    size, write_quorum, ack_quorum = quorums
    try:
        ensemble = choose_ensemble(candidates, *quorums)
    except NotEnoughBookies:
        assert len(candidates) < size or policy.required(write_quorum, ack_quorum)
        return
    topology = candidates.cluster.topology
    must_adhere = policy.is_rule
    assert not must_adhere or judge(topology, policy, ensemble, write_quorum, ack_quorum).is_adhering
    for _ in range(4):
        failed = [(each, ensemble[each]) for each in rng.sample(range(size), rng.randint(1, size))]
        try:
            changed = replace_failed(ensemble, failed, candidates, write_quorum=write_quorum, ack_quorum=ack_quorum)
        except NotEnoughBookies:
            continue
        assert len(set(changed)) == size
        assert all(changed[at] == ensemble[at] for at in range(size) if at not in dict(failed))
        assert not must_adhere or judge(topology, policy, changed, write_quorum, ack_quorum).is_adhering
        ensemble = changed


@given(PLACES, POLICIES, QUORUMS, st.randoms(use_true_random=False))
def test_what_fewest_changes_says_makes_any_ensemble_adhere(
    places: list[tuple[int, int, int, int]], policy: PlacementPolicy, quorums: tuple[int, int, int], rng: Random
) -> None:
    candidates = cluster_of(places, policy)
    everybody = [*candidates.cluster.bookies, *candidates.cluster.unplaced]
    size = min(quorums[0], len(everybody), 5)
    write_quorum, ack_quorum = min(size, quorums[1]), min(size, quorums[2], quorums[1])
    ensemble = rng.sample(everybody, size)
    topology = candidates.cluster.topology
    try:
        changes = fewest_changes(candidates, ensemble, write_quorum, ack_quorum)
    except NotEnoughBookies:
        assert not judge(topology, policy, ensemble, write_quorum, ack_quorum).is_adhering
        return
    assert bool(changes) != judge(topology, policy, ensemble, write_quorum, ack_quorum).is_adhering
    for position, old, new in changes:
        assert ensemble[position] == old
        ensemble[position] = new
    assert judge(topology, policy, ensemble, write_quorum, ack_quorum).is_adhering


# -- Apache's ----------------------------------------------------------------------------------------------------------


def windows(ensemble: Sequence[str], write_quorum: int) -> list[list[str]]:
    """The write sets, by the position they begin with."""
    size = len(ensemble)
    return [[ensemble[(start + offset) % size] for offset in range(write_quorum)] for start in range(size)]


def apache_rack(ensemble: Sequence[str], racks: dict[str, str], write_quorum: int, least: int) -> Adherence:
    minimum = min(write_quorum, least)
    for members in windows(ensemble, write_quorum):
        if len({racks.get(each, "/default-rack") for each in members}) < minimum:
            return Adherence.FAIL
    return Adherence.STRICT


def apache_zone(ensemble: Sequence[str], where: dict[str, str], write_quorum: int, low: int, high: int) -> Adherence:
    if len(ensemble) % write_quorum or write_quorum <= low or any(each not in where for each in ensemble):
        return Adherence.FAIL
    result = Adherence.STRICT
    for members in windows(ensemble, write_quorum):
        zones: dict[str, list[str]] = {}
        for each in members:
            zone, domain = where[each].split("/")[1:]
            zones.setdefault(zone, []).append(domain)
        if len(zones) < low or any(len(domains) > 1 and len(set(domains)) == 1 for domains in zones.values()):
            return Adherence.FAIL
        if len(zones) < min(write_quorum, high):
            result = Adherence.SOFT
    return result


def apache_greedy(
    names: Sequence[str], racks: dict[str, str], quorums: tuple[int, int], least: int, rng: Random
) -> list[str] | None:
    """The rack-aware policy's choice, with its rule enforced: forward only. None: it says not enough bookies."""
    size, write_quorum = quorums
    minimum = min(write_quorum, least)
    if len(set(racks.values())) < 2 and minimum > 1:
        return None
    ensemble: list[str | None] = [None] * size
    avoided: set[str] = set()

    def covers(position: int, candidate: str) -> bool:
        if write_quorum < 2:
            return True
        for start in range(position - write_quorum + 1, position + 1):
            members = [ensemble[(start + offset) % size] for offset in range(write_quorum)]
            there = [each for each in members if each is not None]
            if len(there) + minimum - 1 < write_quorum:
                continue
            found = {racks[each] for each in there} | {racks[candidate]}
            if len(found) < minimum and write_quorum - len(there) - 1 < minimum - len(found):
                return False
        return True

    for position in range(size):
        order = rng.sample(list(names), len(names))
        fresh = [each for each in order if each not in ensemble and covers(position, each)]
        chosen = next((each for each in fresh if racks[each] not in avoided), None)
        if chosen is None:
            avoided.clear()
            if not fresh:
                return None
            chosen = fresh[0]
        ensemble[position] = chosen
        avoided.add(racks[chosen])
    return [each for each in ensemble if each is not None]


LOCATED = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=9)


@given(LOCATED, QUORUMS, st.integers(1, 3), st.booleans(), st.randoms(use_true_random=False))
def test_judged_as_by_apaches_policies(
    places: list[tuple[int, int]], quorums: tuple[int, int, int], least: int, all_known: bool, rng: Random
) -> None:
    names = [f"b{number}" for number in range(len(places))]
    where = {name: f"/z{zone}/u{domain}" for name, (zone, domain) in zip(names, places, strict=True)}
    if not all_known:
        del where["b0"]
    size = min(quorums[0], len(names))
    write_quorum, ack_quorum = min(size, quorums[1]), min(size, quorums[1], quorums[2])
    ensemble = [BookieId(each) for each in rng.sample(names, size)]
    topology = Topology(where)
    ours = judge(topology, PlacementPolicy(Kind.RACK, racks_min=least), ensemble, write_quorum, ack_quorum)
    theirs = apache_rack(ensemble, where, write_quorum, least)
    assert ours.adherence <= theirs
    if all_known:
        assert ours.adherence is theirs
    zones = PlacementPolicy(Kind.ZONE, is_rule=True, zones_min=least, zones_desired=3)
    of_apache = apache_zone(ensemble, where, write_quorum, least, 3)
    ours = judge(topology, zones, ensemble, write_quorum, ack_quorum)
    assert ours.adherence >= of_apache
    if not size % write_quorum and write_quorum > least:
        assert ours.adherence is of_apache


@given(LOCATED, QUORUMS, st.randoms(use_true_random=False))
def test_regions_survive_as_apaches_do(
    places: list[tuple[int, int]], quorums: tuple[int, int, int], rng: Random
) -> None:
    """No m - 1 regions hold an ack quorum of any write set, for m = 2 and 3: of its durability rule."""
    names = [BookieId(f"b{number}") for number in range(len(places))]
    where = {name: f"/g{region}/r{rack}" for name, (region, rack) in zip(names, places, strict=True)}
    size = min(quorums[0], len(names))
    write_quorum, ack_quorum = min(size, quorums[1]), min(size, quorums[1], quorums[2])
    ensemble = rng.sample(names, size)
    for least in (2, 3):
        is_durable = all(
            sum(count for _, count in Counter(where[each].split("/")[1] for each in members).most_common(least - 1))
            < ack_quorum
            for members in windows(ensemble, write_quorum)
        )
        policy = PlacementPolicy(Kind.REGION, racks_min=1, regions_min=least)
        assert judge(Topology(where), policy, ensemble, write_quorum, ack_quorum).is_adhering == is_durable


@given(LOCATED, QUORUMS, st.integers(2, 3), st.randoms(use_true_random=False))
def test_finds_an_ensemble_whenever_apaches_policy_does(
    places: list[tuple[int, int]], quorums: tuple[int, int, int], least: int, rng: Random
) -> None:
    names = [BookieId(f"b{number}") for number in range(len(places))]
    racks = {name: f"/r{rack}" for name, (_, rack) in zip(names, places, strict=True)}
    theirs = apache_greedy(names, racks, quorums[:2], least, rng)
    if theirs is not None:
        policy = PlacementPolicy(Kind.RACK, is_rule=True, racks_min=least)
        assert apache_rack(theirs, racks, quorums[1], least) is Adherence.STRICT
        found = choose_ensemble(Candidates.of(names, policy, Topology(racks)), *quorums)
        assert apache_rack(found, racks, quorums[1], least) is Adherence.STRICT


def test_finds_an_ensemble_where_apaches_policy_gives_up() -> None:
    """The bookies of the first rack have to be opposite each other; who only goes forward puts them side by side."""
    names = [BookieId(each) for each in "abcd"]
    racks = {"a": "/r1", "b": "/r1", "c": "/r2", "d": "/r3"}
    given_up = sum(apache_greedy(names, racks, (4, 2), 2, Random(seed)) is None for seed in range(200))
    assert given_up > 20
    policy = PlacementPolicy(Kind.RACK, is_rule=True)
    for seed in range(200):
        order = Random(seed).sample(names, 4)
        choose_ensemble(Candidates.of(order, policy, Topology(racks)), 4, 2, 2)


@pytest.mark.parametrize("sizes", [(4,), (9, 1), (5, 5, 5), (30, 2, 10, 10)])
def test_every_bookie_of_a_rack_is_taken_as_often(sizes: tuple[int, ...]) -> None:
    """However large racks are, bookies in one rack have the same chance."""
    rng = Random(str(sizes))
    racks = {f"b{rack}-{each}": f"/r{rack}" for rack, size in enumerate(sizes) for each in range(size)}
    cluster = Cluster(map(BookieId, racks), Topology(racks), PlacementPolicy(Kind.RACK))
    taken: Counter[str] = Counter()
    for _ in range(300):
        taken.update(choose_ensemble(Candidates(cluster, rng.sample(cluster.bookies, len(cluster))), 3, 3, 2))
    for rack in range(len(sizes)):
        counts = [taken[name] for name, of_name in racks.items() if of_name == f"/r{rack}"]
        mean = sum(counts) / len(counts)
        assert all(abs(count - mean) <= 6 * max(1.0, mean) ** 0.5 for count in counts)


@given(PLACES, st.integers(2, 6))
def test_replacements_never_raise_when_any_bookie_is_left_and_nothing_is_a_rule(
    places: list[tuple[int, int, int, int]], size: int
) -> None:
    candidates = cluster_of(places, PlacementPolicy(Kind.RACK))
    if len(candidates) > size:
        ensemble = tuple(candidates.cluster.bookies[:size])
        for position in range(size):
            changed = choose_replacements(candidates, ensemble, [position], size, 1)
            assert changed[position] not in ensemble
