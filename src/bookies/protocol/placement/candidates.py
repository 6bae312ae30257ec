"""Candidates of a choice: an index of bookies by location, and the order of preference.

`Cluster` is the index. The caller rebuilds it when bookies come or go or a location changes; it serves any number of
choices. `Candidates` is one choice's view of it: an order of preference that the caller decides (random, weighted, by
health). It is drawn lazily, so that a choice among thousands of bookies draws a few dozen.

A search need not try interchangeable bookies. Two fresh hosts of one rack with equally many bookies are the same to it,
and so are two untouched racks with equally many hosts of each size. `Cluster.alike` numbers the domains accordingly:
domains with equal numbers are interchangeable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from bookies.model import BookieId
from bookies.protocol.placement.placement_policy import PlacementPolicy
from bookies.protocol.placement.topology import Kind, Place, Problem, Topology, is_within_any
from bookies.protocol.placement.write_sets import Condition

HEAD_MAX = 48  # drawn in order of preference before the search takes one bookie of each sort from the index


class Cluster:
    """Index of writable bookies by fault domain.

    `unplaced`: bookies that must not be used, because the policy is a rule and they have no valid location.
    `banned`: bookies that must not be used, because the policy bans their location.
    """

    def __init__(self, bookies: Iterable[BookieId], topology: Topology, policy: PlacementPolicy) -> None:
        self.topology = topology
        self.policy = policy
        kind = policy.kind
        self.unplaced: dict[BookieId, Problem] = {}
        self.banned: dict[BookieId, Problem] = {}
        self.places: dict[BookieId, Place] = {}
        for bookie in bookies:
            location = topology.location(bookie) if policy.banned else None
            if location is not None and is_within_any(location, policy.banned):
                self.banned[bookie] = Problem(bookie, location)
                continue
            problem = topology.problem(bookie, kind) if policy.is_rule else None
            if problem is not None:
                self.unplaced[bookie] = problem
            else:
                self.places[bookie] = topology.place(bookie, kind)
        self.bookies = tuple(self.places)
        self.on_host: dict[str, list[BookieId]] = {}
        for bookie, place in self.places.items():
            self.on_host.setdefault(str(place[-1]), []).append(bookie)
        self.sizes: tuple[Counter[str], ...] = tuple(
            Counter(place[level] for place in self.places.values() if place[level] is not None)  # type: ignore[misc]
            for level in range(len(kind.levels))
        )
        self.alike = self._sorts()
        self.sorts: dict[tuple[str | None, int], list[str]] = {}  # (domain around the host, sort) -> hosts
        for host, bookies_there in self.on_host.items():
            place = self.places[bookies_there[0]]
            around = place[-2] if len(place) > 1 else None
            self.sorts.setdefault((around, self.alike[host]), []).append(host)
        self.met: dict[
            tuple[int, int, int], tuple[Condition, ...]
        ] = {}  # by quorums: the most conditions that can hold
        self._within: dict[str, list[BookieId]] | None = None
        self._wishes: dict[int, list[list[Condition]]] = {}

    def within(self, domain: str) -> Sequence[BookieId]:
        """Return the bookies in a fault domain."""
        if self._within is None:
            self._within = {}
            for bookie, place in self.places.items():
                for own_domain in place:
                    if own_domain is not None:
                        self._within.setdefault(own_domain, []).append(bookie)
        return self._within.get(domain, ())

    def wishes(self, write_quorum: int) -> list[list[Condition]]:
        """Return the wishes beyond the rules for this cluster (`PlacementPolicy.wishes`)."""
        wishes = self._wishes.get(write_quorum)
        if wishes is None:
            sizes = [by_domain.values() for by_domain in self.sizes]
            wishes = self._wishes[write_quorum] = self.policy.wishes(write_quorum, sizes)
        return wishes

    def _sorts(self) -> dict[str, int]:
        """Return a number for every domain, equal for interchangeable ones."""
        numbers: dict[object, int] = {}
        alike: dict[str, int] = {}
        for host, bookies in self.on_host.items():
            alike[host] = numbers.setdefault(("host", len(bookies)), len(numbers))
        for level in range(len(self.policy.kind.levels) - 2, -1, -1):
            below: dict[str, dict[str, None]] = {}
            for place in self.places.values():
                domain, child = place[level], place[level + 1]
                if domain is not None and child is not None:
                    below.setdefault(domain, {})[child] = None
            for domain, children in below.items():
                counts = tuple(sorted(Counter(alike[child] for child in children).items()))
                alike[domain] = numbers.setdefault((level, counts), len(numbers))
        return alike

    def __len__(self) -> int:
        return len(self.bookies)


class Candidates(Sequence[BookieId]):
    """Bookies of a cluster in order of preference.

    order: drawn lazily; the bookies that it leaves out follow it.
    last: bookies that do not work now; chosen only when there is no ensemble without them.
    first: nearby bookies, preferred for the first position.
    turn: any number; rotates the choice among interchangeable hosts and bookies when the order has been drawn.
    """

    def __init__(
        self,
        cluster: Cluster,
        order: Iterable[BookieId],
        *,
        last: Collection[BookieId] = (),
        first: Iterable[BookieId] = (),
        turn: int = 0,
    ) -> None:
        self.cluster = cluster
        self.last = last
        self.first = tuple(first)
        self.turn = turn
        self._drawn: list[BookieId] = []
        self._there: dict[BookieId, None] = {}
        self._order = iter(order)
        self._is_drawn = False

    @classmethod
    def of(
        cls,
        bookies: Sequence[BookieId],
        policy: PlacementPolicy | None = None,
        topology: Topology | None = None,
    ) -> Candidates:
        """Return candidates from available bookies in order; without a policy any of them fits any position."""
        if isinstance(bookies, Candidates) and policy is None and topology is None:
            return bookies
        order = list(dict.fromkeys(bookies))
        return cls(Cluster(order, topology or Topology(), policy or PlacementPolicy(Kind.RANDOM)), order)

    def head(self) -> Iterator[BookieId]:
        """Yield the most preferred bookies, at most `HEAD_MAX`."""
        for index in range(HEAD_MAX):
            if len(self._drawn) <= index and not self._draw():
                return
            yield self._drawn[index]

    @property
    def is_in_head(self) -> bool:
        """Report whether `head` has yielded every bookie."""
        return len(self._drawn) >= len(self.cluster) and len(self.cluster) <= HEAD_MAX

    def _draw(self) -> bool:
        for bookie in self._order:
            if bookie in self.cluster.places and bookie not in self._there:
                self._there[bookie] = None
                self._drawn.append(bookie)
                return True
        if not self._is_drawn:
            self._is_drawn = True
            self._order = iter(self.cluster.bookies)
            return self._draw()
        return False

    def _all(self) -> list[BookieId]:
        while self._draw():
            pass
        return self._drawn

    def __len__(self) -> int:
        return len(self.cluster)

    def __contains__(self, bookie: object) -> bool:
        return bookie in self.cluster.places

    def __iter__(self) -> Iterator[BookieId]:
        return iter(self._all())

    def __getitem__(self, index: Any) -> Any:
        """Return one bookie by its index, or a list by a slice."""
        return self._all()[index]
