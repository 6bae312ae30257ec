"""Fill positions of an ensemble so that conditions on its write sets hold, or prove that nobody can.

Depth first, position after position, each time in the candidates' order of preference, going back when a position
cannot be filled. The first ensemble found is thus the most preferred one that a greedy choice with hindsight finds, and
if there is one at all it is found. What keeps the search small:

* a partly filled write set that nobody could fill well any more is given up at once;
* of candidates that are alike (`Cluster.alike`) one is tried: if it leads nowhere the others do not either;
* what cannot be because domains are too few, or too small for the write sets there are, is told by counting.

Arranging things on a ring can be a puzzle all the same, for ensembles of a dozen bookies and more in a few racks of
very different sizes. A search that has taken so many steps ends undecided, and says so (`is_undecided`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

from bookies.model import BookieId, Ensemble
from bookies.protocol.placement.candidates import Candidates
from bookies.protocol.placement.topology import Place
from bookies.protocol.placement.write_sets import Condition, Spread, write_sets

STEPS_MAX = 50_000  # for rules; about a second
WISH_STEPS_MAX = 2_000  # for what goes beyond them

Conditions = Sequence[tuple[tuple[int, ...], tuple[Condition, ...]]]
"""Positions of a write set, and what it has to meet."""


def everywhere(size: int, write_quorum: int, conditions: Sequence[Condition]) -> Conditions:
    """The same conditions for every write set."""
    strongest = tuple(without_implied(conditions))
    return [(positions, strongest) for positions in write_sets(size, write_quorum)]


def without_implied(conditions: Sequence[Condition]) -> Iterator[Condition]:
    """Those that do not follow from another: more domains of one level are fewer, too."""
    most: dict[int, int] = {}
    for each in conditions:
        if isinstance(each, Spread):
            most[each.level] = max(each.count, most.get(each.level, 0))
    for each in dict.fromkeys(conditions):
        if not isinstance(each, Spread) or each.count == most[each.level]:
            yield each


class Search:
    """One search. `ensemble`: None where a bookie is to be found. `members`: the places of those who stay.

    `conditions`: those that the members alone do not break already. `exclude`: who must not be chosen, beside the
    members.
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
        self._taken: dict[BookieId, None] = dict.fromkeys(each for each in (*ensemble, *exclude) if each is not None)
        self._conditions = [each for each in conditions if each[1]]
        self._at: list[Conditions] = [
            [each for each in self._conditions if position in each[0]] for position in range(len(ensemble))
        ]
        # Domains that are not like others any more, since somebody in them is a member, is taken or is excluded.
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
        """Whether it has ended before it could find an ensemble or prove that there is none."""
        return self._steps >= self._steps_max

    def run(self) -> Ensemble | None:
        """The ensemble, or None: there is none, unless `is_undecided`."""
        if self._free < len(self._open) or not all(map(self._may_hold, self._conditions)) or not self._may_reach():
            return None
        if not self._fill(0):
            return None
        return tuple(bookie for bookie in self._chosen if bookie is not None)

    def _may_hold(self, each: tuple[tuple[int, ...], tuple[Condition, ...]]) -> bool:
        """A quick look: there are enough domains at all."""
        positions, conditions = each
        members, _ = self._members(positions)
        for condition in conditions:
            if isinstance(condition, Spread):
                sizes = self._cluster.sizes[condition.level]
                there = {place[condition.level] for place in members} - {None}
                others = sum(domain not in sizes for domain in there)
                if len(sizes) + others < condition.count:
                    return False
        return True

    def _may_reach(self) -> bool:
        """Another: a bookie is in `write_quorum` write sets, so a domain of few bookies is not in many of them."""
        wanted: dict[int, int] = {}
        for _, conditions in self._conditions:
            for each in conditions:
                if isinstance(each, Spread):
                    wanted[each.level] = wanted.get(each.level, 0) + each.count
        count = len(self._conditions)
        each_bookie = len(self._conditions[0][0]) if count > 1 else 1
        for level, needed in wanted.items():
            sizes = self._cluster.sizes[level]
            staying = Counter(place[level] for place in self._slots if place is not None)
            for domain in chain(staying, (each for each in sizes if each not in staying)):
                if domain is not None:
                    needed -= min(count, each_bookie * (sizes.get(domain, 0) + staying[domain]))
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
        """Fill the open positions from this one on."""
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
        """Bookies in order of preference, then one of every sort that there is."""
        candidates, cluster = self._candidates, self._cluster
        if position == 0:
            yield from (each for each in candidates.first if each in cluster.places)
        yield from candidates.head()
        if candidates.is_in_head:
            return
        for hosts in cluster.sorts.values():
            begin = candidates.turn % len(hosts)
            for at in range(begin, begin + len(hosts)):
                host = hosts[at % len(hosts)]
                if host not in self._touched:
                    there = cluster.on_host[host]
                    yield there[candidates.turn % len(there)]
                    break
        for domain in list(self._touched):
            yield from (each for each in cluster.on_host.get(domain, ()) if each not in self._taken)

    def _sort(self, place: Place) -> object:
        """Equal for candidates of which either could stand for the other."""
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
