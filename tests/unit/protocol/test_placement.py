"""Choosing ensembles; replacements are in the scenario `placement/replace`."""

from __future__ import annotations

import pytest

from bookies.errors import ConfigError, NotEnoughBookies
from bookies.model import BookieId
from bookies.protocol.placement import choose_ensemble, fewest_domains, parse_fault_domains, replace_failed

WRITABLE = [BookieId(name) for name in ("c", "a", "b", "a", "d")]


def test_takes_distinct_candidates_in_the_order_given() -> None:
    assert choose_ensemble(3, WRITABLE) == ("c", "a", "b")
    assert choose_ensemble(3, WRITABLE, exclude={BookieId("a")}) == ("c", "b", "d")


def test_says_how_many_there_are() -> None:
    with pytest.raises(NotEnoughBookies, match="an ensemble of 5 needs 5 writable bookies, 4 are available"):
        choose_ensemble(5, WRITABLE)


def test_replacement_is_never_the_bookie_it_replaces() -> None:
    """Even if it is still listed as writable, and with members that were just replaced."""
    ensemble = (BookieId("a"), BookieId("b"))
    assert replace_failed(ensemble, [(0, BookieId("a")), (1, BookieId("b"))], WRITABLE) == ("c", "d")


def test_fault_domains_by_bookie() -> None:
    """A bookie id may have an equals sign of its own; the domain is what follows the last."""
    found = parse_fault_domains(" b1:3181=east, b2:3181 = west ,,x=y=west,")
    assert found == {"b1:3181": "east", "b2:3181": "west", "x=y": "west"}
    assert parse_fault_domains("") == {}


@pytest.mark.parametrize("pair", ["b1", "=east", "b1=", "="])
def test_malformed_fault_domains(pair: str) -> None:
    with pytest.raises(ConfigError, match=f"fault_domains: '{pair}': must be bookie=domain pairs"):
        parse_fault_domains(f"b0=west,{pair}")


def test_the_entry_with_the_fewest_domains_counts() -> None:
    """Of a, b, c, d, two in each domain: striped over neighbours, and the last entry's replicas are d and a."""
    ensemble = tuple(BookieId(name) for name in "abcd")
    domains = {BookieId(name): domain for name, domain in zip("abcd", ("east", "west", "east", "west"), strict=True)}
    assert fewest_domains(ensemble, 2, domains) == 2
    assert fewest_domains(ensemble, 4, domains) == 2
    assert fewest_domains(ensemble, 1, domains) == 1
    assert fewest_domains((ensemble[0], ensemble[2], ensemble[1]), 2, domains) == 1
    assert fewest_domains(ensemble, 4, {}) == 1, "those nobody knows the domain of share one"
