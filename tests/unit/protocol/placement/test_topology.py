"""Where bookies are, as text and as fault domains."""

from __future__ import annotations

import pytest

from bookies.errors import ConfigError
from bookies.model import BookieId
from bookies.protocol.placement import Topology
from bookies.protocol.placement.topology import (
    Kind,
    host_of,
    name_of,
    parse_fault_domains,
    parse_location,
    parse_location_lines,
)

A, B, C = BookieId("a:3181"), BookieId("a:3182"), BookieId("b:3181")


def test_fault_domains_by_bookie() -> None:
    """A bookie id may have an equals sign of its own; the domain is what follows the last. A name is a rack's."""
    found = parse_fault_domains(" b1:3181=east, b2:3181 = /west/r1 ,,x=y=west,")
    assert found == {"b1:3181": "/east", "b2:3181": "/west/r1", "x=y": "/west"}
    assert parse_fault_domains("") == {}


@pytest.mark.parametrize("pair", ["b1", "=east", "b1=", "="])
def test_malformed_fault_domains(pair: str) -> None:
    with pytest.raises(ConfigError, match=f"fault_domains: '{pair}': must be bookie=domain pairs"):
        parse_fault_domains(f"b0=west,{pair}")


def test_locations_have_one_spelling() -> None:
    assert parse_location(" /east/r1/ ") == "/east/r1"
    for wrong in ("", "r1", "/", "//", "/a//b", "/a b"):
        with pytest.raises(ConfigError, match="location"):
            parse_location(wrong)


def test_lines_of_a_file() -> None:
    text = "# racks\na:3181 /r1\n\nb /r2/  # a host\na:3181 /r1\n"
    assert parse_location_lines(text, "racks.txt") == {"a:3181": "/r1", "b": "/r2"}
    for wrong, why in (
        ("a /r1\nb\n", "racks.txt, line 2: 'b': must be `bookie-or-host location`"),
        ("a r1", "racks.txt, line 1: location 'r1': must be an absolute path"),
        ("a /r1\na /r2", "racks.txt, line 2: an earlier line has /r1 for a"),
        ("# nothing\n", "racks.txt contains no location"),
    ):
        with pytest.raises(ConfigError, match=why):
            parse_location_lines(wrong, "racks.txt")


def test_hosts() -> None:
    assert host_of(A) == "a"
    assert host_of(BookieId("bookie-1")) == "bookie-1"
    assert host_of(BookieId("[::1]:3181")) == "[::1]"
    topology = Topology({}, {BookieId("bookie-1"): "10.0.0.1"})
    assert topology.host(BookieId("bookie-1")) == "10.0.0.1"
    assert topology.place(BookieId("bookie-1"), Kind.RANDOM) == ("10.0.0.1",)


def test_a_bookies_own_location_counts_more_than_its_hosts() -> None:
    topology = Topology({"a": "/r1", B: "/r2"})
    assert (topology.location(A), topology.location(B), topology.location(C)) == ("/r1", "/r2", None)
    assert topology.place(A, Kind.RACK) == ("/r1", "/r1 a")
    assert topology.place(C, Kind.RACK) == (None, " b")
    assert topology.place(C, Kind.ZONE) == (None, None, " b")
    assert not topology.is_empty
    assert topology == Topology({"a": "/r1", B: "/r2"})
    assert topology != Topology({"a": "/r1"})


def test_a_location_of_another_depth_is_none() -> None:
    topology = Topology({A: "/r1", B: "/east/r1", C: "/r2"})
    assert topology.problems([A, B, C], Kind.RACK) == [(B, "its location /east/r1 has 2 parts, most others have 1")]
    assert topology.place(B, Kind.RACK) == (None, " a")
    assert topology.place(B, Kind.REGION) == ("/east", "/east/r1", "/east/r1 a")
    assert topology.problem(A, Kind.ZONE) == (A, "its location /r1 has 1 parts, zone placement needs 2")
    assert topology.problem(BookieId("x"), Kind.RACK) == ("x", "no location is known")
    assert topology.problem(BookieId("x"), Kind.RANDOM) is None


def test_names_for_people() -> None:
    assert [name_of(each) for each in (None, "/r1", "/r1 a", " a", "a")] == ["nowhere", "/r1", "a", "a", "a"]
