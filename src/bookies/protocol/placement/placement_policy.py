"""Placement policy as a value, and its conditions on the write sets of an ensemble.

An ensemble adheres to a policy if it meets the *minimum*. As a rule the minimum is binding: without an ensemble that
meets it, the choice fails. As a wish it is met if possible, else as nearly as possible. Beyond the minimum more is
better: as many racks as an entry has replicas, unless that gives some bookies far more than their share, and as many
hosts. Source: metadata 9.1, 9.4, 9.5, 9.7.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from msgspec import Struct

from bookies.errors import ConfigError
from bookies.protocol.placement.topology import Kind
from bookies.protocol.placement.write_sets import Condition, Outlives, Spread, UpgradeDomains

SHARE_MAX = 3.0  # multiple of its fair share that a bookie may get for more domains than the minimum
HOSTS_WISHED = 2  # regardless of their shares


class Adherence(enum.IntEnum):
    """Degree to which an ensemble meets a policy; the numbers are Apache's. Source: metadata 9.1."""

    FAIL = 1
    SOFT = 3  # the minimum, but less than desired
    STRICT = 5


class PlacementPolicy(Struct, frozen=True):
    """Placement policy.

    racks_min, zones_min: racks (zones) that hold every entry, at most as many as it has replicas.
    is_rule: whether these two are rules; otherwise they are wishes.
    regions_min: regions that any ack quorum of an entry's replicas spans, always a rule; below 2: entries are spread
        over `racks_min` regions, as a wish.
    zones_desired: zones for strict adherence.
    banned: locations, with all below them, of bookies that are not chosen; always a rule. It does not concern replicas
        that exist.
    """

    kind: Kind = Kind.RACK
    is_rule: bool = False
    racks_min: int = 2
    regions_min: int = 0
    zones_min: int = 2
    zones_desired: int = 3
    banned: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind is Kind.ZONE and self.zones_min > self.zones_desired:
            raise ConfigError(f"zones_min = {self.zones_min} is more than zones_desired = {self.zones_desired}")

    def minimum(self, write_quorum: int, ack_quorum: int) -> tuple[Condition, ...]:
        """Return the conditions that every write set must meet for the ensemble to adhere."""
        conditions: list[Condition] = []
        if self.kind is Kind.ZONE:
            conditions = [Spread(0, min(write_quorum, self.zones_min), "zone"), UpgradeDomains()]
        elif self.kind is not Kind.RANDOM:
            level = self.kind.levels.index("rack")
            conditions = [Spread(level, min(write_quorum, self.racks_min), "rack")]
            if self.kind is Kind.REGION and self.regions_min > 1:
                conditions.insert(0, Outlives(self.regions_min, ack_quorum))
        return tuple(rule for rule in conditions if not (isinstance(rule, Spread) and rule.count < 2))

    def required(self, write_quorum: int, ack_quorum: int) -> tuple[Condition, ...]:
        """Return the conditions of the minimum that are rules."""
        return tuple(
            rule for rule in self.minimum(write_quorum, ack_quorum) if self.is_rule or isinstance(rule, Outlives)
        )

    def desired(self, write_quorum: int) -> tuple[Condition, ...]:
        """Return the conditions beyond the minimum that every write set of a strictly adhering ensemble meets."""
        if self.kind is Kind.ZONE:
            return (Spread(0, min(write_quorum, self.zones_desired), "zone"),)
        if self.kind is Kind.REGION and self.regions_min < 2:
            return (Spread(0, min(write_quorum, self.racks_min), "region"),)
        return ()

    def wishes(self, write_quorum: int, sizes: Sequence[Iterable[int]]) -> list[list[Condition]]:
        """Return the wishes beyond the rules, the most important first; each is a list of alternatives, the best first.

        `sizes`: by level, the number of bookies of each domain.
        """
        wishes: list[list[Condition]] = []
        for level, name in enumerate(self.kind.levels):
            if name == "upgrade domain":
                wishes.append([UpgradeDomains()])
                continue
            asked, most = self._asked(name, write_quorum)
            of_level = sorted(sizes[level], reverse=True)
            wishes.append(
                [
                    Spread(level, count, name)
                    for count in range(min(most, len(of_level)), 1, -1)
                    if count <= asked or _share(of_level, count, write_quorum) <= SHARE_MAX
                ]
            )
        return [alternatives for alternatives in wishes if alternatives]

    def _asked(self, name: str, write_quorum: int) -> tuple[int, int]:
        """Return how many domains of a level are asked for in any case, and how many at most."""
        if name == "zone":
            return self.zones_desired, min(write_quorum, self.zones_desired)
        return HOSTS_WISHED if name == "host" else self.racks_min, write_quorum


def _share(sizes: Sequence[int], count: int, write_quorum: int) -> float:
    """Return the busiest bookie's multiple of its fair share if every write set is in `count` of these domains.

    `sizes`: number of bookies of each domain, the largest first. A domain gets at most as many replicas as leave one
    for each of the others; the small domains share the excess of the large ones.
    """
    most = (write_quorum - count + 1) / write_quorum
    share, left, total = 1.0, sum(sizes), sum(sizes)
    for size in sizes[: count - 1]:  # At most this many domains can be full: `count` full shares exceed the total.
        if size * share / left <= most:
            break
        share -= most
        left -= size
    return share * total / left
