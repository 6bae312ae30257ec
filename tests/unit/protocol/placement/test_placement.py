"""Choosing ensembles and judging them; replacements are in the scenario `placement/replace` too.

That what can be found is found, and nothing else, `tests/placement` compares with trying everything.
"""

from __future__ import annotations

import random

import pytest

from bookies.errors import ConfigError, NotEnoughBookies
from bookies.model import BookieId, DigestType
from bookies.protocol.ledger.add import ChangeEnsemble
from bookies.protocol.ledger.ledger import new_ledger
from bookies.protocol.placement import PlacementPolicy, Topology, choose_ensemble, placement
from bookies.protocol.placement.candidates import Candidates, Cluster
from bookies.protocol.placement.placement import (
    Change,
    changed_ensemble,
    choose_replacements,
    fewest_changes,
    judge,
    replace_failed,
)
from bookies.protocol.placement.placement_policy import Adherence
from bookies.protocol.placement.placement_search import Search, everywhere
from bookies.protocol.placement.topology import Kind
from bookies.protocol.placement.write_sets import Spread

WRITABLE = [BookieId(name) for name in ("c", "a", "b", "a", "d")]
RACKS = {"a": "/r1", "b": "/r1", "c": "/r2", "d": "/r2", "e": "/r3"}
RULE = PlacementPolicy(Kind.RACK, is_rule=True)


def ids(text: str) -> tuple[BookieId, ...]:
    return tuple(map(BookieId, text))


def candidates(bookies: str, policy: PlacementPolicy = RULE, locations: dict[str, str] | None = None) -> Candidates:
    return Candidates.of(ids(bookies), policy, Topology(RACKS if locations is None else locations))


def test_takes_distinct_candidates_in_the_order_given() -> None:
    assert choose_ensemble(Candidates.of(WRITABLE), 3, 2, 2) == ("c", "a", "b")
    assert choose_ensemble(Candidates.of(WRITABLE), 3, 2, 2, exclude={BookieId("a")}) == ("c", "b", "d")


def test_says_how_many_there_are() -> None:
    with pytest.raises(NotEnoughBookies, match="an ensemble of 5 needs 5 writable bookies, 4 are available"):
        choose_ensemble(Candidates.of(WRITABLE), 5, 2, 2)


def test_replacement_is_never_the_bookie_it_replaces() -> None:
    """Even if it is still listed as writable, and with members that were just replaced."""
    ensemble = (BookieId("a"), BookieId("b"))
    assert replace_failed(ensemble, [(0, BookieId("a")), (1, BookieId("b"))], WRITABLE) == ("c", "d")


def test_goes_back_when_the_preferred_bookies_lead_nowhere() -> None:
    """a and b first would leave the write set of a and b in one rack."""
    assert choose_ensemble(candidates("abc"), 2, 2, 2) == ("a", "c")
    assert choose_ensemble(candidates("abcd"), 4, 2, 2) == ("a", "c", "b", "d")


def test_goes_back_from_a_bookie_that_is_nowhere() -> None:
    """It counts for no rack, so a wish for two racks passes it over."""
    wish = PlacementPolicy(Kind.RACK)
    assert choose_ensemble(candidates("xac", wish), 2, 2, 2) == ("a", "c")
    assert choose_ensemble(candidates("xac", wish), 3, 3, 2) == ("x", "a", "c"), "it is better than none"
    assert choose_ensemble(candidates("xbad", wish), 2, 2, 2, exclude=ids("x")) == ("b", "d")


def test_says_which_rule_stands_in_the_way() -> None:
    with pytest.raises(
        NotEnoughBookies, match="a write quorum of 2 needs 2 racks; the 2 writable bookies are all in /r1: start"
    ):
        choose_ensemble(candidates("ab"), 2, 2, 2)
    with pytest.raises(
        NotEnoughBookies, match=r"in each write set of an ensemble of 3; the 3 .* in /r1 \(2\), /r2 \(1"
    ):
        choose_ensemble(candidates("abc"), 3, 2, 2)


def test_a_bookie_without_location_is_not_used_under_a_rule_and_named() -> None:
    found = candidates("axc")
    assert choose_ensemble(found, 2, 2, 2) == ("a", "c")
    with pytest.raises(NotEnoughBookies, match=r"2 of the 3 .*not used.*: x \(no location is known\).*form /rack"):
        choose_ensemble(found, 3, 2, 2)
    assert choose_ensemble(candidates("axc", PlacementPolicy(Kind.RACK)), 3, 2, 2) == ("a", "x", "c")


def test_a_wish_is_met_as_nearly_as_can_be() -> None:
    wish = PlacementPolicy(Kind.RACK)
    assert choose_ensemble(candidates("abce", wish), 3, 3, 2) == ("a", "c", "e"), "more racks than the minimum"
    assert choose_ensemble(candidates("abc", wish), 3, 3, 2) == ("a", "b", "c")
    assert choose_ensemble(candidates("ab", wish), 2, 2, 2) == ("a", "b")


def test_a_small_rack_is_not_overrun_for_more_racks_than_asked_for() -> None:
    """With one bookie in the third rack each of 21 would be in every ensemble of three racks."""
    locations = {f"b{n}": f"/r{n % 2}" for n in range(20)} | {"b20": "/r2"}
    cluster = Cluster(map(BookieId, locations), Topology(locations), PlacementPolicy(Kind.RACK))
    rng = random.Random(1)
    chosen = [choose_ensemble(Candidates(cluster, rng.sample(cluster.bookies, 21)), 3, 3, 2) for _ in range(200)]
    assert sum("b20" in each for each in chosen) < 100
    assert all(len({locations[bookie] for bookie in each}) >= 2 for each in chosen)


def test_hosts_are_fault_domains_below_racks() -> None:
    bookies = [BookieId(f"h{host}:{port}") for host in (1, 2) for port in (1, 2, 3)]
    assert choose_ensemble(Candidates.of(bookies), 2, 2, 2) == ("h1:1", "h2:1")
    assert choose_ensemble(Candidates.of(bookies[:3]), 2, 2, 2) == ("h1:1", "h1:2"), "one host: nothing else can be had"


def test_bookies_that_do_not_work_now_are_the_last_resort() -> None:
    cluster = candidates("abcd", PlacementPolicy(Kind.RACK)).cluster
    order = ids("cdab")
    assert choose_ensemble(Candidates(cluster, order, last=ids("cd")), 2, 2, 2) == ("a", "b"), "before a wish"
    rules = candidates("abcd").cluster
    assert choose_ensemble(Candidates(rules, order, last=ids("cd")), 2, 2, 2) == ("c", "a"), "not before a rule"


def test_the_first_bookie_is_near() -> None:
    cluster = candidates("abcd", PlacementPolicy(Kind.RACK)).cluster
    assert choose_ensemble(Candidates(cluster, ids("abcd"), first=ids("xdc")), 2, 2, 2) == ("d", "a")


def test_replacements_keep_rules_as_far_as_those_who_stay_allow() -> None:
    assert choose_replacements(candidates("abcde"), ids("ac"), [1], 2, 2) == ("a", "d")
    with pytest.raises(
        NotEnoughBookies, match=r"none of the 3 .* take the place of c in \[a, c\]: a write quorum of 2"
    ):
        choose_replacements(candidates("abc"), ids("ac"), [1], 2, 2)
    # b was in one rack with a before, and no rack is left for both neighbours: it may stay so.
    assert choose_replacements(candidates("abcdf", RULE, {**RACKS, "f": "/r1"}), ids("abc"), [1], 2, 2) == (
        "a",
        "f",
        "c",
    )


def test_a_member_that_is_nowhere_stays_and_counts_for_no_rack() -> None:
    """With b, all racks would be one."""
    assert choose_replacements(candidates("bd"), ids("xac"), [2], 3, 2) == ids("xad")


def test_a_replacement_of_some_when_not_all_can_be_had() -> None:
    failed = [(0, BookieId("a")), (1, BookieId("c"))]
    changed = replace_failed(ids("ac"), failed, candidates("abc"), write_quorum=2, ack_quorum=2)
    assert changed == ("b", "c")
    with pytest.raises(NotEnoughBookies, match=r"1 are no members\)|no other bookie is available"):
        replace_failed(ids("ac"), [(1, BookieId("c"))], candidates("ac"), write_quorum=2)
    with pytest.raises(NotEnoughBookies, match="take the place of a"):
        replace_failed(ids("ac"), failed, candidates("ac"), write_quorum=2)


def test_a_change_of_a_record_keeps_its_quorums_and_leaves_out_earlier_failures() -> None:
    record = new_ledger(1, ids("ab"), 2, 2, digest_type=DigestType.CRC32C, password=b"")
    change = ChangeEnsemble(0, failed=((0, BookieId("a")),), excluded=ids("c"))
    assert changed_ensemble(record, change, WRITABLE) == ("d", "b")
    with pytest.raises(NotEnoughBookies, match="take the place of a"):
        changed_ensemble(record, change, ids("abc"))


def test_fewest_changes() -> None:
    assert fewest_changes(candidates("abcde"), ids("ac"), 2, 2) == ()
    assert fewest_changes(candidates("abcde"), ids("abe"), 2, 2) == (Change(0, BookieId("a"), BookieId("c")),)
    assert fewest_changes(candidates("abcde"), ids("xc"), 2, 2)[0].old == "x", "nobody knows where it is"
    with pytest.raises(NotEnoughBookies, match="take the place of a, b"):
        fewest_changes(candidates("ab"), ids("ab"), 2, 2)


# -- judging ---------------------------------------------------------------------------------------------------------


def test_judges_by_write_set() -> None:
    judgement = judge(Topology(RACKS), RULE, ids("abc"), 2, 2)
    assert judgement.adherence is Adherence.FAIL
    assert not judgement.is_adhering
    [finding] = judgement.findings
    assert (finding.start, finding.bookies) == (0, ("a", "b"))
    assert finding.reason == "a write quorum of 2 needs 2 racks: a in /r1, b in /r1"
    assert judge(Topology(RACKS), RULE, ids("ac"), 2, 2).adherence is Adherence.STRICT


def test_judges_members_that_are_nowhere() -> None:
    assert judge(Topology(RACKS), RULE, ids("acx"), 3, 2).adherence is Adherence.FAIL
    wish = judge(Topology(RACKS), PlacementPolicy(Kind.RACK), ids("acx"), 3, 2)
    assert wish.adherence is Adherence.STRICT
    assert wish.problems == ((BookieId("x"), "no location is known"),)
    assert judge(Topology(), PlacementPolicy(Kind.RANDOM), ids("ab"), 2, 2).adherence is Adherence.STRICT


ZONES = {"a": "/z1/u1", "b": "/z1/u1", "c": "/z1/u2", "d": "/z2/u1", "e": "/z3/u1"}


@pytest.mark.parametrize(
    ("ensemble", "expected"),
    [("ade", Adherence.STRICT), ("acd", Adherence.SOFT), ("abd", Adherence.FAIL), ("abc", Adherence.FAIL)],
)
def test_zones_and_upgrade_domains(ensemble: str, expected: Adherence) -> None:
    policy = PlacementPolicy(Kind.ZONE, is_rule=True)
    assert judge(Topology(ZONES), policy, ids(ensemble), 3, 2).adherence is expected


def test_a_broken_rule_does_not_keep_a_bookie_from_being_replaced() -> None:
    """a and b share an upgrade domain whatever takes the third place; what held before has to hold again."""
    policy = PlacementPolicy(Kind.ZONE, is_rule=True)
    assert choose_replacements(candidates("abde", policy, ZONES), ids("abd"), [2], 3, 2) == ("a", "b", "e")
    with pytest.raises(NotEnoughBookies, match="different upgrade domains"):
        choose_replacements(candidates("abde", policy, ZONES), ids("ade"), [2], 3, 2)
    more = {**ZONES, "f": "/z2/u1"}
    wish = PlacementPolicy(Kind.ZONE)
    changed = choose_replacements(candidates("abdefc", wish, more), ids("abdfc"), [4], 5, 2)
    assert changed == ("a", "b", "d", "f", "e"), "both zones are lost anyway"


REGIONS = {"a": "/x/r1", "b": "/x/r2", "c": "/x/r3", "d": "/y/r1", "e": "/y/r2", "f": "/z/r1"}


def test_regions() -> None:
    durable = PlacementPolicy(Kind.REGION, regions_min=2)
    topology = Topology(REGIONS)
    assert judge(topology, durable, ids("abd"), 3, 2).adherence is Adherence.FAIL, "a and b could acknowledge alone"
    assert judge(topology, durable, ids("abd"), 3, 3).adherence is Adherence.STRICT
    assert judge(topology, durable, ids("adf"), 3, 2).adherence is Adherence.STRICT
    assert judge(topology, PlacementPolicy(Kind.REGION), ids("abc"), 3, 2).adherence is Adherence.SOFT
    with pytest.raises(NotEnoughBookies, match="any 2 replicas of an entry have to be in 2 regions, so at most 1 of 3"):
        choose_ensemble(candidates("abcde", durable, REGIONS), 3, 3, 2)
    assert sorted(choose_ensemble(candidates("abcdef", durable, REGIONS), 3, 3, 2)) == ["a", "d", "f"]


def test_a_policy_that_contradicts_itself() -> None:
    with pytest.raises(ConfigError, match="zones_min = 3 is more than zones_desired = 2"):
        PlacementPolicy(Kind.ZONE, zones_min=3, zones_desired=2)


def test_a_proof_does_not_try_what_is_the_same() -> None:
    """Ten racks of one bookie are not enough for ensembles of 20 whose neighbours are mostly elsewhere: 10! orders."""
    locations = {f"s{number}": f"/s{number}" for number in range(10)} | {f"l{number}": "/large" for number in range(50)}
    search = Search(
        Candidates.of([BookieId(name) for name in locations], PlacementPolicy(Kind.RACK), Topology(locations)),
        [None] * 20,
        {},
        everywhere(20, 3, (Spread(0, 3, "rack"),)),
    )
    assert search.run() is None
    assert search._steps < 5000


def test_a_puzzle_that_is_too_long_is_given_up_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that there is no ensemble; as a wish it does not matter."""
    locations = {f"h{rack}{host}:{port}": f"/r{rack}" for rack in range(7) for host in range(2) for port in range(2)}
    names = [BookieId(name) for name in locations]
    monkeypatch.setattr(placement, "STEPS_MAX", 20)
    monkeypatch.setattr(placement, "WISH_STEPS_MAX", 20)
    policy = PlacementPolicy(Kind.RACK, is_rule=True, racks_min=6)
    with pytest.raises(NotEnoughBookies, match="the search for an ensemble of 27 was undecided after 50,000 steps"):
        choose_ensemble(Candidates.of(names, policy, Topology(locations)), 27, 7, 4)
    wish = PlacementPolicy(Kind.RACK, racks_min=6)
    assert len(choose_ensemble(Candidates.of(names, wish, Topology(locations)), 20, 7, 4)) == 20


# -- many bookies ----------------------------------------------------------------------------------------------------


def test_looks_at_few_of_many_bookies() -> None:
    """Racks of thousands: neither an ensemble nor a proof takes more than one bookie of each sort."""
    locations = {f"b{n}": f"/r{n % 3}" for n in range(3000)} | {"z0": "/r9"}
    drawn = []

    def order(names: list[BookieId]):  # type: ignore[no-untyped-def]
        for name in names:
            drawn.append(name)
            yield name

    names = [BookieId(name) for name in locations]
    cluster = Cluster(names, Topology(locations), PlacementPolicy(Kind.RACK, is_rule=True, racks_min=4))
    for _ in range(2):
        drawn.clear()
        chosen = choose_ensemble(Candidates(cluster, order(names)), 4, 4, 3)
        assert {locations[bookie] for bookie in chosen} == {"/r0", "/r1", "/r2", "/r9"}
        assert len(drawn) < 100
    with pytest.raises(
        NotEnoughBookies, match="a write quorum of 4 needs 4 racks in each write set of an ensemble of 5"
    ):
        choose_ensemble(Candidates(cluster, order(names)), 5, 4, 3)


def test_proves_with_one_bookie_of_each_sort() -> None:
    """Three racks of a hundred hosts cannot be in turn on a ring of five; one host has room for nobody else."""
    locations = {f"h{n}:{port}": f"/r{n % 3}" for n in range(300) for port in (1, 2)}
    names = [BookieId(name) for name in locations]
    rule = PlacementPolicy(Kind.RACK, is_rule=True, racks_min=3)
    with pytest.raises(
        NotEnoughBookies, match=r"needs 3 racks in each write set of an ensemble of 5; the 600 writable"
    ):
        choose_ensemble(Candidates.of(names, rule, Topology(locations)), 5, 3, 2)
    one = {BookieId(f"h0:{port}"): "/r0" for port in range(60)}
    both = PlacementPolicy(Kind.RACK)
    assert len(choose_ensemble(Candidates.of(list(one), both, Topology(dict(one))), 60, 2, 2)) == 60


def test_candidates_are_a_sequence() -> None:
    cluster = candidates("abcde").cluster
    found = Candidates(cluster, iter(ids("ed")))
    assert found[0] == "e"
    assert list(found) == ["e", "d", "a", "b", "c"]
    assert (len(found), found[1:3], BookieId("a") in found, "x" in found) == (5, ["d", "a"], True, False)
    assert Candidates.of(found) is found
    assert list(cluster.within("/r2")) == ["c", "d"]
    assert list(cluster.within("/r7")) == []
    wish = candidates("ax", PlacementPolicy(Kind.RACK)).cluster
    assert list(wish.within("/r1")) == ["a"], "x is nowhere"
