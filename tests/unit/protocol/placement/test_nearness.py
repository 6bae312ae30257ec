"""How near bookies are to a client, and where the client is."""

from __future__ import annotations

import pytest

from bookies.errors import ConfigError, NotEnoughBookies
from bookies.model import BookieId
from bookies.protocol.placement import PlacementPolicy, Topology, choose_ensemble
from bookies.protocol.placement.candidates import Candidates
from bookies.protocol.placement.nearness import STEP, Nearness, Vantage, nearness_of, own_location, parse_locations
from bookies.protocol.placement.placement import choose_replacements
from bookies.protocol.placement.topology import Kind

HERE, MATE, NEXT, FAR, WEST, SOUTH, LOST = (BookieId(f"{name}:3181") for name in "hmnfwsl")
TOPOLOGY = Topology(
    {
        HERE: "/east/r1",
        MATE: "/east/r1",
        NEXT: "/east/r2",
        FAR: "/north/r1",
        WEST: "/west/r1",
        SOUTH: "/south/r1",
    }
)
ALL = (HERE, MATE, NEXT, FAR, WEST, SOUTH, LOST)


def kinds(vantage: Vantage, kind: Kind = Kind.REGION) -> list[Nearness]:
    return [nearness_of(vantage.rank(bookie, TOPOLOGY, kind)) for bookie in ALL]


def test_from_the_own_host_to_banned_regions() -> None:
    vantage = Vantage(frozenset(["h"]), "/east/r1", ("/west",), ("/south",))
    assert kinds(vantage) == [
        Nearness.HOST,
        Nearness.RACK,
        Nearness.REGION,
        Nearness.OTHER,
        Nearness.PREFERRED,
        Nearness.BANNED,
        Nearness.UNKNOWN,
    ]
    assert [kind.label for kind in Nearness] == ["host", "rack", "region", "preferred", "unknown", "other", "banned"]


def test_preferred_locations_have_an_order_and_a_ban_counts_more_than_being_near() -> None:
    vantage = Vantage(location="/east/r1", preferred=("/west", "/north/r1", "/east"), banned=("/east/r1",))
    assert vantage.rank(WEST, TOPOLOGY, Kind.REGION) == Nearness.PREFERRED * STEP
    assert vantage.rank(FAR, TOPOLOGY, Kind.REGION) == Nearness.PREFERRED * STEP + 1
    assert nearness_of(vantage.rank(NEXT, TOPOLOGY, Kind.REGION)) is Nearness.REGION
    assert nearness_of(vantage.rank(HERE, TOPOLOGY, Kind.REGION)) is Nearness.BANNED
    assert not vantage.bans("/east/r10")


def test_upgrade_domains_are_not_near_each_other() -> None:
    assert kinds(Vantage(location="/east/r1"), Kind.ZONE)[:4] == [*3 * [Nearness.REGION], Nearness.OTHER]


def test_a_client_that_does_not_know_its_place_calls_no_bookie_far() -> None:
    assert kinds(Vantage(frozenset(["h"]))) == [Nearness.HOST, *6 * [Nearness.UNKNOWN]]
    assert Vantage(frozenset(["h"])).distinguishes
    assert not Vantage().distinguishes


def test_with_several_locations_on_one_host_the_locations_count() -> None:
    vantage = Vantage(frozenset(["h", "f", "l"]), "/east/r1")
    assert nearness_of(vantage.rank(FAR, TOPOLOGY, Kind.RACK)) is Nearness.OTHER
    assert nearness_of(vantage.rank(LOST, TOPOLOGY, Kind.RACK)) is Nearness.HOST


def test_a_rack_without_a_region_has_no_neighbours() -> None:
    topology = Topology({HERE: "/r1", FAR: "/r2"})
    ranks = [Vantage(location="/r1").rank(bookie, topology, Kind.RACK) for bookie in (HERE, FAR)]
    assert list(map(nearness_of, ranks)) == [Nearness.RACK, Nearness.OTHER]


def test_the_location_of_a_client() -> None:
    assert own_location(["10.0.0.1", "h"], {"h": "/file"}, TOPOLOGY, ALL) == "/file"
    assert own_location(["a", "h"], {"a": "/one", "h": "/two"}, TOPOLOGY, ALL) == "", "they contradict each other"
    assert own_location(["n"], {}, TOPOLOGY, ALL) == "/east/r2", "where a bookie on this host is"
    assert own_location(["n", "f"], {}, TOPOLOGY, ALL) == ""
    assert own_location(["l"], {}, TOPOLOGY, ALL) == ""
    assert own_location(["x"], {}, TOPOLOGY, ALL) == ""


def test_lists_of_locations() -> None:
    assert parse_locations(" /east , /west/r1/,", "locations_preferred") == ("/east", "/west/r1")
    with pytest.raises(ConfigError, match="locations_banned: location 'west': must be an absolute path"):
        parse_locations("/east,west", "locations_banned")


def test_banned_bookies_are_not_chosen_and_the_error_names_them() -> None:
    policy = PlacementPolicy(Kind.REGION, banned=("/east/r1", "/west"))
    candidates = Candidates.of(ALL, policy, TOPOLOGY)
    assert set(choose_ensemble(candidates, 4, 2, 1)) == {NEXT, FAR, SOUTH, LOST}
    names = r"not used, because locations_banned names their location: h:3181 \(/east/r1\), m:3181"
    with pytest.raises(NotEnoughBookies, match=names):
        choose_ensemble(candidates, 5, 2, 1)
    with pytest.raises(NotEnoughBookies, match=f"none of the 7 writable bookies .*{names}"):
        choose_replacements(candidates, (NEXT, FAR, SOUTH, LOST), [0], 2, 1)
