"""Backtracking search for an ensemble whose write sets meet given conditions, or the proof that there is none.

The search goes depth first, position after position, in the candidates' order of preference, and backtracks when a
position cannot be filled. So the first ensemble found is the most preferred one of a greedy choice with backtracking,
and the search finds an ensemble whenever there is one. Three rules keep it small:

* it abandons a partly filled write set at once when no completion can meet the conditions;
* of interchangeable candidates (`Cluster.alike`) it tries one: if that fails, the others would too;
* counting shows that domains are too few, or too small for the number of write sets.

Arrangements on a ring can still be hard, for ensembles of a dozen bookies and more in a few racks of very different
sizes. A search that reaches its step limit ends undecided (`is_undecided`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain

from bookies.model import BookieId, Ensemble
from bookies.protocol.placement.candidates import Candidates
from bookies.protocol.placement.topology import Place
from bookies.protocol.placement.write_sets import Condition, Spread, write_sets

STEPS_MAX = 50_000  # for rules; about a second
WISH_STEPS_MAX = 2_000  # for wishes beyond them

Conditions = Sequence[tuple[tuple[int, ...], tuple[Condition, ...]]]
"""Positions of a write set, and the conditions that it must meet."""


@lru_cache(256)
def everywhere(size: int, write_quorum: int, conditions: tuple[Condition, ...]) -> Conditions:
    """Return the same conditions for every write set."""
    strongest = tuple(without_implied(conditions))
    return tuple((positions, strongest) for positions in write_sets(size, write_quorum))


def without_implied(conditions: Sequence[Condition]) -> Iterator[Condition]:
    """Yield the conditions that do not follow from another: a spread over more domains implies one over fewer."""
    most: dict[int, int] = {}
    for condition in conditions:
        if isinstance(condition, Spread):
            most[condition.level] = max(condition.count, most.get(condition.level, 0))
    for condition in dict.fromkeys(conditions):
        if not isinstance(condition, Spread) or condition.count == most[condition.level]:
            yield condition


def most_preferred(
    candidates: Candidates, size: int, conditions: Conditions, exclude: Collection[BookieId]
) -> Ensemble | None:
    """Return the ensemble of the most preferred bookies if it meets the conditions: a search would find it first, at a
    multiple of the cost. None: they do not, or too few are drawn.
    """
    places = candidates.cluster.places
    chosen = [bookie for bookie in candidates.first if bookie in places and bookie not in exclude][:1]
    drawn = candidates.head()
    while len(chosen) < size and (bookie := next(drawn, None)) is not None:
        if bookie not in chosen and bookie not in exclude:
            chosen.append(bookie)
    if len(chosen) < size:
        return None
    for positions, required in conditions:
        if required:
            members = [places[chosen[position]] for position in positions]
            if not all(condition.holds(members, 0) for condition in required):
                return None
    return tuple(chosen)


class Search:
    """One search.

    ensemble: None at each position to fill.
    members: places of the members that stay, by position.
    conditions: conditions that the members alone do not violate.
    exclude: bookies that must not be chosen, beside the members.
    """

    def __init__(
        self,
        candidates: Candidates,
        ensemble: Sequence[BookieId | None],
        members: Mapping[int, Place],
        conditions: Conditions,
        exclude: Collection[BookieId] = (),
        steps_max: int = STEPS_MAX,
    ) -> None:
        self._candidates = candidates
        self._cluster = candidates.cluster
        self._chosen: list[BookieId | None] = list(ensemble)
        self._slots: list[Place | None] = [members.get(position) for position in range(len(ensemble))]
        self._open = [position for position, bookie in enumerate(ensemble) if bookie is None]
        self._taken: dict[BookieId, None] = dict.fromkeys(
            bookie for bookie in (*ensemble, *exclude) if bookie is not None
        )
        self._conditions = [constraint for constraint in conditions if constraint[1]]
        self._at: list[Conditions] = [
            [constraint for constraint in self._conditions if position in constraint[0]]
            for position in range(len(ensemble))
        ]
        # Domains that are no longer interchangeable, because a bookie in them is a member, is taken or is excluded.
        self._touched: dict[str, int] = {}
        for bookie in self._taken:
            for domain in self._cluster.places.get(bookie, ()):
                if domain is not None:
                    self._touched[domain] = 1
        for place in members.values():
            for domain in place:
                if domain is not None:
                    self._touched[domain] = self._touched.get(domain, 0) + 1
        self._free = len(self._cluster) - sum(bookie in self._cluster.places for bookie in self._taken)
        self._steps = 0
        self._steps_max = steps_max

    @property
    def is_undecided(self) -> bool:
        """Report whether the search ended before it found an ensemble or proved that there is none."""
        return self._steps >= self._steps_max

    def run(self) -> Ensemble | None:
        """Return the ensemble, or None: there is none, unless `is_undecided`."""
        if self._free < len(self._open) or not all(map(self._may_hold, self._conditions)) or not self._may_reach():
            return None
        if not self._fill(0):
            return None
        return tuple(bookie for bookie in self._chosen if bookie is not None)

    def _may_hold(self, constraint: tuple[tuple[int, ...], tuple[Condition, ...]]) -> bool:
        """Report whether there are enough domains for the conditions on one write set."""
        positions, conditions = constraint
        members, _ = self._members(positions)
        for condition in conditions:
            if isinstance(condition, Spread):
                sizes = self._cluster.sizes[condition.level]
                occupied = {place[condition.level] for place in members} - {None}
                others = sum(domain not in sizes for domain in occupied)
                if len(sizes) + others < condition.count:
                    return False
        return True

    def _may_reach(self) -> bool:
        """Report whether the domains are large enough: a bookie is in `write_quorum` write sets, so a domain of few
        bookies is in few of them."""
        wanted: dict[int, int] = {}
        for _, conditions in self._conditions:
            for condition in conditions:
                if isinstance(condition, Spread):
                    wanted[condition.level] = wanted.get(condition.level, 0) + condition.count
        count = len(self._conditions)
        sets_per_bookie = len(self._conditions[0][0]) if count > 1 else 1
        for level, needed in wanted.items():
            sizes = self._cluster.sizes[level]
            staying = Counter(place[level] for place in self._slots if place is not None)
            for domain in chain(staying, (domain for domain in sizes if domain not in staying)):
                if domain is not None:
                    needed -= min(count, sets_per_bookie * (sizes.get(domain, 0) + staying[domain]))
                    if needed <= 0:
                        break
            if needed > 0:
                return False
        return True

    def _members(self, positions: Sequence[int]) -> tuple[list[Place], int]:
        slots = self._slots
        members = [place for position in positions if (place := slots[position]) is not None]
        return members, len(positions) - len(members)

    def _fill(self, index: int) -> bool:
        """Fill the open positions from this index on; report success."""
        if index == len(self._open):
            return True
        position = self._open[index]
        tried: set[object] = set()
        for bookie in self._offers(position):
            if bookie in self._taken:
                continue
            place = self._cluster.places[bookie]
            sort = self._sort(place)
            if sort in tried:
                continue
            if self.is_undecided:
                return False
            tried.add(sort)
            self._steps += 1
            self._put(position, bookie, place)
            if self._holds(position) and self._fill(index + 1):
                return True
            self._remove(position, bookie, place)
        return False

    def _offers(self, position: int) -> Iterator[BookieId]:
        """Yield bookies in order of preference, then one of every sort."""
        candidates, cluster = self._candidates, self._cluster
        if position == 0:
            yield from (bookie for bookie in candidates.first if bookie in cluster.places)
        yield from candidates.head()
        if candidates.is_in_head:
            return
        for hosts in cluster.sorts.values():
            begin = candidates.turn % len(hosts)
            for index in range(begin, begin + len(hosts)):
                host = hosts[index % len(hosts)]
                if host not in self._touched:
                    bookies = cluster.on_host[host]
                    yield bookies[candidates.turn % len(bookies)]
                    break
        for domain in list(self._touched):
            yield from (bookie for bookie in cluster.on_host.get(domain, ()) if bookie not in self._taken)

    def _sort(self, place: Place) -> object:
        """Return a key that is equal for interchangeable candidates."""
        around: str | None = None
        for domain in place:
            if domain is not None:
                if domain not in self._touched:
                    return around, self._cluster.alike[domain]
                around = domain
        return place

    def _put(self, position: int, bookie: BookieId, place: Place) -> None:
        self._slots[position] = place
        self._chosen[position] = bookie
        self._taken[bookie] = None
        for domain in place:
            if domain is not None:
                self._touched[domain] = self._touched.get(domain, 0) + 1

    def _remove(self, position: int, bookie: BookieId, place: Place) -> None:
        self._slots[position] = self._chosen[position] = None
        del self._taken[bookie]
        for domain in place:
            if domain is not None:
                self._touched[domain] -= 1
                if not self._touched[domain]:
                    del self._touched[domain]

    def _holds(self, position: int) -> bool:
        for positions, conditions in self._at[position]:
            members, free = self._members(positions)
            for condition in conditions:
                if not condition.holds(members, free):
                    return False
        return True
