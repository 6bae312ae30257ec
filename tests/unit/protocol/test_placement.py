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


@pytest.mark.parametrize(
    ("ensemble", "write_quorum", "expected"),
    [
        ("ab", 2, 1),
        ("ac", 2, 2),
        ("abc", 3, 2),
        ("abc", 2, 1),  # an entry on a and b
        ("acbd", 2, 2),
        ("acbe", 3, 2),
        ("ace", 3, 3),
        ("xy", 2, 1),  # neither has a domain
        ("ax", 2, 2),
        ("a", 1, 1),
    ],
)
def test_in_how_many_fault_domains_an_entry_is(ensemble: str, write_quorum: int, expected: int) -> None:
    domains = {BookieId(bookie): domain for bookie, domain in zip("abcde", ("1", "1", "2", "2", "3"), strict=True)}
    assert fewest_domains(tuple(map(BookieId, ensemble)), write_quorum, domains) == expected
